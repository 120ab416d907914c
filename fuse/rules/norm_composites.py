"""Norms with what stands around them: the residual before, a sandwich, heads, a rotation after."""

from __future__ import annotations

from typing import Any, NamedTuple

from fuse import forms
from fuse.forms.modulations import gated_branch, is_modulated
from fuse.guards import agree, dims_text, regroups_rows, squeezed
from fuse.ir import Graph, Op
from fuse.match import Fault, Match
from fuse.match.plausible import NO_SUM, PASSING, READERS, STRAY
from fuse.pattern import HOLE, Add, Reshape, Transpose, anything, form, form_of, star
from fuse.rule import Built, Rule, Wrong, guard
from fuse.types import Dims

a, b = anything("a"), anything("b")


def norm_attrs(norm: Any, prefix: str = "") -> dict[str, Any]:
    """The attributes that a class over a norm carries: those that are not their defaults."""
    attrs: dict[str, Any] = {prefix + "eps": norm.eps}
    for name, default in (("norm", "rms"), ("offset", 0.0), ("compute", "")):
        if getattr(norm, name) != default:
            attrs[prefix + name] = getattr(norm, name)
    return attrs


class Regrouped(NamedTuple):
    """A sum whose rows a reshape puts under other leading axes; add: what makes the sum, op: the reshape."""

    add: Op
    out: str
    op: Op


@form_of("Reshape")
def _regrouped(graph: Graph, op: Op) -> Regrouped | None:
    add = graph.producer(op.inputs[0])
    if add is None or add.kind != "Add" or not regroups_rows(graph, op):
        return None
    return Regrouped(add, op.outputs[0], op)


def one_addend_is_the_sum(m: Match) -> Wrong | None:
    """one addend has the dims of the sum, the other has them or broadcasts"""
    dims, (one, two) = m.graph.dims(_total(m)), _addends(m)
    if agree(m.graph.dims(one), dims) or agree(m.graph.dims(two), dims):
        return None
    return Wrong(
        one, f"{dims_text(m.graph.dims(one))} and {dims_text(m.graph.dims(two))} for {dims_text(dims)}"
    )


def _addends(m: Match) -> tuple[str, str]:
    found = m.get("regrouped")
    return (m["a"], m["b"]) if not found else (found.add.inputs[0], found.add.inputs[1])


def _total(m: Match) -> str:
    found = m.get("regrouped")
    value: str = found.add.outputs[0] if found else m["norm"].x
    return value


def _ordered(m: Match) -> tuple[str, str]:
    """The full-sized addend first; of two, the one that is not a product's result is the residual."""
    graph, total, (one, two) = m.graph, m.graph.dims(_total(m)), _addends(m)
    full = [value for value in (one, two) if agree(graph.dims(value), total)]
    if len(full) == 1:
        return full[0], two if full[0] == one else one
    branch = graph.producer(two)
    is_branch = branch is not None and branch.kind in forms.product.kinds
    return (two, one) if is_branch else (one, two)


def weights_are_rows(m: Match) -> Wrong | None:
    """where a reshape regroups the rows of the sum, weight and bias are one row for all"""
    for value in (m["norm"].weight, m["norm"].bias) if m.get("regrouped") else ():
        dims = m.graph.dims(value) if value else ()
        if dims is None or len(squeezed(dims)) > 1:
            return Wrong(value, dims_text(dims))
    return None


def _has_a_residual(m: Match) -> bool:
    """Whether neither addend is a constant row (a bias of what stands before), nor a gated branch."""
    fixed = [v for v in _addends(m) if m.graph.is_constant(v)]
    rows = any(_is_row(m.graph.dims(v)) for v in fixed)
    return len(fixed) < 2 and not rows and not _is_adaptive(m.graph, m)


def _two_streams(m: Match, fault: Fault) -> bool:
    """Whether what a norm reads is made of two values of its own dims (or rows looked up), no gate among
    them; or is a sum."""
    if m.get("regrouped"):
        return fault.code == "guard:weights_are_rows"
    if fault.code != "op" or fault.got not in PASSING | NO_SUM | {"Mul", "Div"}:
        return False
    graph, values = m.graph, _addends(m)
    made = [graph.producer(value) for value in values]
    looked_up = any(op is not None and op.kind == "Gather" for op in made) or any(
        graph.is_constant(value) for value in values
    )
    if graph.dims(values[0]) != graph.dims(values[1]) and not looked_up:
        return False
    gates = forms.activation.kinds | {"Softmax", "Exp", "Expand"}
    if any(op is not None and op.kind in gates for op in made):
        return False
    return any(_may_be_the_stream(graph, op) for op in made)


def _may_be_the_stream(graph: Graph, op: Op | None) -> bool:
    """Whether what makes a value may make the stream that branches are added to: no product, no power, and
    nothing times another value."""
    if op is not None and op.kind in ("Mul", "Div"):
        return any(graph.scalar(value) is not None for value in op.inputs)
    return op is None or op.kind not in _BRANCHES


#: What makes a branch, never the stream.
_BRANCHES = forms.product.kinds | frozenset("Pow merged_qkv merged_gate_up merged_products".split())


def _add_norm(m: Match) -> Built | None:
    norm = m["norm"]
    if not _has_a_residual(m):
        return None
    x, residual = _ordered(m)
    found = m.get("regrouped")
    # What others read of the sum is written on: the sum itself, or its rows as the norm has them.
    total = found.out if found and m.graph.readers(_total(m)) == [found.op.slot] else _total(m)
    return Built(
        "add_norm",
        (x, residual, norm.weight, norm.bias, ""),
        norm_attrs(norm) | ({"regrouped": True} if found else {}),
        also=[found.add] if found else [],
        outputs=(norm.out, total),
    )


def _is_adaptive(graph: Graph, m: Match) -> bool:
    """Whether a gated branch joins the stream before an adaptive norm: gated_residual and ada_norm take
    all of it, where add_norm would leave gate, scale and shift alone."""
    norm = m["norm"]
    if not is_modulated(graph, norm.out):
        return False
    branches = (gated_branch(graph, value) for value in _addends(m))
    return any(branch is not None and not graph.is_constant(branch.gate) for branch in branches)


def _is_row(dims: Dims | None) -> bool:
    """A constant row is a bias of what stands before, no residual."""
    return dims is None or sum(dim != 1 for dim in dims) <= 1


add_norm = Rule(
    "add_norm",
    """a residual add, then a norm; the sum is written on where others read it

    Two kernels become one and the sum is read from registers. Two outputs, or no pre-norm decoder
    ever fuses: its next residual reads the sum.""",
    finds=form(forms.norm, "norm", x=Add(a, b) | form(_regrouped, "regrouped")),
    marks=tuple(sorted(forms.norm.kinds)),
    needs=(guard(one_addend_is_the_sum), guard(weights_are_rows)),
    place=_has_a_residual,
    almost=_two_streams,
    builds=_add_norm,
    reads=tuple(sorted(forms.norm.kinds | forms.product.kinds)),
)

inner_norm = form(forms.norm, "inner")


def _sandwich(m: Match) -> Built:
    outer, inner = m["outer"], m["inner"]
    stream = outer.residual if m["side"] == "x" else outer.x
    attrs = norm_attrs(outer) | norm_attrs(inner, "inner_")
    operands = (stream, inner.x, inner.weight, inner.bias, outer.weight, outer.bias)
    return Built("norm_add_norm", operands, attrs, outputs=(outer.out, outer.total))


def find_sandwich(graph: Graph, op: Op, budget: int) -> Any:
    """A norm whose result an add_norm adds to the stream."""
    outer = None if budget else forms.add_norm(graph, op)
    if outer is None or outer.add_bias:
        return
    for side in ("x", "residual"):
        made = graph.producer(getattr(outer, side))
        inner = forms.norm(graph, made) if made is not None and made.kind in forms.norm.kinds else None
        if inner is not None and graph.dims(inner.out) == graph.dims(outer.out):
            match = Match(graph)
            match.ops = [inner.op, op]
            match.bound = {"outer": outer, "inner": inner, "side": side}
            match.root = outer.out
            yield match


norm_add_norm = Rule(
    "norm_add_norm",
    """x plus a norm of y, then a norm (a sandwich)

    Three kernels become one where a model norms each branch before it joins the stream.""",
    finds=find_sandwich,
    marks=tuple(sorted(forms.add_norm.kinds)),
    builds=_sandwich,
    reads=tuple(sorted(forms.norm.kinds | forms.add_norm.kinds)),
)


def _cuts_into_heads(m: Match) -> bool:
    """Whether the reshape cuts the last axis into heads as wide as the norm, and does nothing else."""
    inner, outer = m.graph.dims(m["wide"]), m.graph.dims(m["norm"].x)
    if inner is None or outer is None or len(outer) != len(inner) + 1:
        return False
    heads, width = outer[-2:]
    return isinstance(heads, int) and isinstance(width, int) and heads * width == inner[-1]


def _one_fault_beside_heads(m: Match, fault: Fault) -> bool:
    """A norm of heads that are cut out for it is telling by itself."""
    return fault.code in READERS | {"attribute"} or (fault.code == "op" and fault.got in STRAY)


def _qk(m: Match) -> Built | None:
    norm, dims = m["norm"], m.graph.dims(m["norm"].x)
    if dims is None or not _cuts_into_heads(m):
        return None
    return Built("qk_norm", (m["wide"], norm.weight, norm.bias), norm_attrs(norm) | {"heads": dims[-2]})


qk_norm = Rule(
    "qk_norm",
    """a norm of each head's width of a wider product

    Heads are read as units of the product, without a reshape between.""",
    finds=form(forms.norm, "norm", x=Reshape(anything("wide"))),
    marks=tuple(sorted(forms.norm.kinds)),
    place=_cuts_into_heads,
    almost=_one_fault_beside_heads,
    builds=_qk,
    reads=tuple(sorted(forms.norm.kinds)),
)


@form_of(*(forms.norm.kinds | {"qk_norm"}))
def _qk_norm_form(graph: Graph, op: Op) -> Any:
    norm = forms.norm(graph, op) if op.kind in forms.norm.kinds else None
    if op.kind == "qk_norm":
        fields = op.attrs
        return forms.Norm(
            fields.get("norm", "rms"), op.inputs[0], op.inputs[1], op.inputs[2], fields["eps"],
            fields.get("offset", 0.0), fields.get("compute", ""), op.outputs[0], op,
        )  # fmt: skip
    return norm


normed = star("between", {"transpose": Transpose(HOLE)}, form(_qk_norm_form, "norm"), ["transpose"], reach=1)


def transpose_keeps_width(m: Match) -> Wrong | None:
    """what stands between norm and rotation leaves the head's width last"""
    for step in m.taken("between"):
        op = m.graph.producer(step.value)
        perm = op.attrs.get("perm", ()) if op is not None else ()
        if not perm or perm[-1] != len(perm) - 1:
            return Wrong(step.value, f"perm {perm}")
    return None


def _normed_rope(m: Match) -> Built | None:
    rotation, norm = m["rope"], m["norm"]
    steps = m.taken("between")
    if len(steps) > 1:
        return None
    attrs = norm_attrs(norm) | rotation.attrs
    if steps:
        op = m.graph.producer(steps[0].value)
        assert op is not None
        attrs["perm"] = tuple(op.attrs["perm"])
    if norm.op.kind == "qk_norm":
        attrs["heads"] = norm.op.attrs["heads"]
    operands = (norm.x, norm.weight, norm.bias, rotation.cos, rotation.sin, rotation.position_ids)
    return Built("qk_norm_rope", operands, attrs)


qk_norm_rope = Rule(
    "qk_norm_rope",
    """a norm of each head, then its rotation

    Norm and rotation read and write the same rows: two kernels and a transpose become one.""",
    finds=form(forms.rope, "rope", x=normed),
    marks=tuple(sorted(forms.rope.kinds)),
    needs=(guard(transpose_keeps_width),),
    almost=lambda m, fault: fault.code == "op" and fault.got in STRAY,
    builds=_normed_rope,
    reads=tuple(sorted(forms.norm.kinds | forms.rope.kinds | {"qk_norm"})),
)
