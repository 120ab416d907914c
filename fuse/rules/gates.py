"""Gates: an activation of one half times the other."""

from __future__ import annotations

from fuse import forms
from fuse.guards import dims_text
from fuse.ir import Graph, Op
from fuse.match import Match
from fuse.pattern import Mul, Pow, anything, constant, form
from fuse.rule import Built, Rule, Wrong, guard

#: Activation of the gate -> the class.
GATES = {"silu": "swiglu", "gelu": "geglu", "fast_gelu": "geglu", "quick_gelu": "geglu", "relu": "reglu"}
#: Results in codes, and read back from them: still the product's.
_CODES = frozenset(
    "QuantizeLinear DequantizeLinear com.microsoft.QuantizeLinear com.microsoft.DequantizeLinear".split()
)
_PASSES = _CODES | frozenset("Reshape Transpose Cast Squeeze Unsqueeze Slice Split Gather Clip".split())
#: What lies between two products and the activation that both read.
_SAME_ROWS = _CODES | frozenset("Reshape Unsqueeze Squeeze Transpose Expand DynamicQuantizeLinear".split())
_PRODUCTS = forms.product.kinds | frozenset(
    (
        "MatMul MatMulInteger QLinearMatMul Einsum merged_qkv merged_gate_up merged_products "
        "quantized_matmul com.microsoft.MatMulNBits com.microsoft.MatMulIntegerToFloat "
        "com.microsoft.DynamicQuantizeMatMul com.microsoft.QGemm com.microsoft.MatMulBnb4"
    ).split()
)
#: Ops that scale or shift a product's result by something narrower: still that product.
_EPILOGUES = frozenset({"Add", "Mul"})


_act = form(forms.activation, "act", where=lambda a: a.name in GATES)
_relu = form(forms.activation, "act", where=lambda a: a.name == "relu")
#: As Primer, Nemotron and BitNet have it.
squared_relu = Mul(_relu, _relu) | Pow(_relu, constant(2))


def squaring(graph: Graph, value: str) -> Op | None:
    """The op that multiplies a value by itself, if nothing else reads it."""
    readers = graph.readers(value)
    op = graph.slots[readers[0]] if len(readers) == 1 and not graph.is_output(value) else None
    if op is None or op.kind not in ("Mul", "Pow") or op.inputs[0] != value:
        return None
    square = op.inputs[1] == value if op.kind == "Mul" else graph.scalar(op.inputs[1]) == 2
    return op if square else None


def source(graph: Graph, value: str) -> str | None:
    """The activation that a product's result, split or sliced or biased, comes from; None if no product."""
    for _ in range(8):
        op = graph.producer(value)
        if op is None:
            return None
        if op.kind in _PRODUCTS:
            return op.inputs[0]
        if op.kind in _EPILOGUES:
            whole = [v for v in op.inputs if graph.dims(v) == graph.dims(value) and not graph.is_constant(v)]
            rest = [v for v in op.inputs if v not in whole]
            narrow = all(_vector(graph, v) or (op.kind == "Mul" and graph.scalar(v)) for v in rest)
            if len(whole) != 1 or not rest or not narrow:
                return None
            value = whole[0]
        elif op.kind in _PASSES:
            value = op.inputs[0]
        else:
            return None
    return None


def _vector(graph: Graph, value: str) -> bool:
    """A bias row or the scale of a quantized product: no number added, which means something to a gate."""
    dims = graph.dims(value)
    return dims is not None and (sum(dim != 1 for dim in dims) == 1 or not graph.is_constant(value))


def halves_are_of_one_activation(m: Match) -> Wrong | None:
    """gate and up are products of one activation"""
    one, two = _sources(m)
    if one is None or two is None or _one_activation(m.graph, one, two):
        return None
    return Wrong(m["up"], f"products of {one} and {two}")


def halves_are_one_width(m: Match) -> Wrong | None:
    """gate and up have the same dims"""
    gate, up = m.graph.dims(m["act"].x), m.graph.dims(m["up"])
    return (
        None
        if gate is not None and gate == up
        else Wrong(m["up"], f"{dims_text(up)} beside {dims_text(gate)}")
    )


def _sources(m: Match) -> tuple[str | None, str | None]:
    return source(m.graph, m["act"].x), source(m.graph, m["up"])


def _is_gate(m: Match) -> bool:
    """Whether both sides come from products: else it is just a product of two values.

    A value times an activation of itself is an activation.
    """
    return m["act"].x != m["up"] and None not in _sources(m)


def _gate(m: Match) -> Built | None:
    act = m["act"]
    if not _is_gate(m):
        return None
    name, root = act.name, m.graph.producer(m.root)
    if root is not None and act.out not in root.inputs:
        name = "squared_relu"
    attrs: dict[str, object] = {} if name in ("silu", "relu", "gelu") else {"act": name}
    if act.alpha != 1.0:
        attrs["alpha"] = act.alpha
    return Built(GATES[act.name], (act.x, m["up"]), attrs)


def _one_activation(graph: Graph, one: str, two: str) -> bool:
    """Whether two products read one activation, or rows of it laid out alike (experts)."""
    return one == two or _root(graph, one) == _root(graph, two)


def _root(graph: Graph, value: str) -> str:
    for _ in range(8):
        op = graph.producer(value)
        if op is None or op.kind not in _SAME_ROWS:
            return value
        value = op.inputs[0]
    return value


gated_act = Rule(
    "gated_act",
    """an activation of the gate times up: swiglu, geglu, reglu

    Two or three kernels become one. Gate and up come from two products of one x, a merged one, or
    the halves of one product, in either order; a relu may be squared.""",
    finds=Mul(_act | squared_relu, anything("up")),
    marks=tuple(sorted(forms.activation.kinds)),
    needs=(guard(halves_are_of_one_activation), guard(halves_are_one_width)),
    place=_is_gate,
    almost=lambda m, fault: fault.code in ("op", "guard:halves_are_of_one_activation"),
    builds=_gate,
    classes=("swiglu", "geglu", "reglu"),
    reads=tuple(sorted(forms.activation.kinds)),
)
