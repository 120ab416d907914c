"""Products of one x that run as one: those an attention reads, the two of a gate, any others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fuse import forms
from fuse.guards import squeezed
from fuse.ir import Graph, Op
from fuse.match import Fault, Match
from fuse.rule import Built, Rule
from fuse.rules.gates import squaring
from fuse.types import Dim, Dims, mul


def rows_of(graph: Graph, x: str) -> str:
    """The value that x is with its leading axes joined, or x itself."""
    op = graph.producer(x)
    if op is None or op.kind not in ("Reshape", "Flatten") or graph.is_output(x):
        return x
    inner, outer = graph.dims(op.inputs[0]), graph.dims(x)
    flattens = (
        inner is not None and outer is not None and len(outer) == 2 < len(inner) and inner[-1] == outer[-1]
    )
    return op.inputs[0] if flattens else x


def _readers(graph: Graph, x: str) -> list[Op]:
    return [op for slot in graph.readers(x) if (op := graph.slots[slot]) is not None]


def _reading(graph: Graph, x: str) -> Iterator[tuple[Op, str]]:
    """The products that read x, or the same rows of it flattened by several reshapes; and what each reads."""
    rows = rows_of(graph, x)
    flat = [op for op in _readers(graph, rows) if op.outputs and rows_of(graph, op.outputs[0]) == rows]
    flat = [op for op in flat if op.outputs[0] != rows]
    for value in [x, *(op.outputs[0] for op in flat if op.outputs[0] != x)] if len(flat) > 1 else [x]:
        for op in _readers(graph, value):
            if op.kind in forms.product.kinds:
                yield op, value


def _members(graph: Graph, x: str) -> list[forms.Product]:
    """The plain products of x that may run as one, in slot order: same K, same storage, x not transposed."""
    found: list[forms.Product] = []
    for op, value in _reading(graph, x):
        product = forms.product(graph, op)
        if product is None or not product.plain or product.x != value or product.trans_x:
            continue
        if (
            product.alpha != 1.0
            or product.beta != 1.0
            or (op.kind == "matmul_bias" and graph.dims(value) is None)
        ):
            continue
        found.append(product)
    found.sort(key=lambda p: p.op.slot)
    if not found:
        return found
    first = graph.dtype(found[0].weight)
    return [p for p in found if graph.dtype(p.weight) == first and _leaves_shape(graph, p)]


def _leaves_shape(graph: Graph, product: forms.Product) -> bool:
    """A product whose result has as many rows as x, whole or cut into heads with its bias."""
    inner, outer, bias = graph.dims(product.x), graph.dims(product.out), graph.dims(product.bias)
    if inner is None or outer is None:
        return False
    cut = 1 if bias is None or product.op.kind != "matmul_bias" else max(1, len(squeezed(bias)))
    return _count(inner[:-1]) == _count(outer[:-cut])


def _count(dims: Dims) -> Dim:
    total: Dim = 1
    for dim in dims:
        total = mul(total, dim)
    return total


def _merged(m: Match) -> Built | None:
    members: list[forms.Product] = m["members"]
    also = _flattening(m.graph, members)
    operands = (
        members[0].x if also is None else rows_of(m.graph, members[0].x),
        *(p.weight for p in members),
        *(p.bias for p in members if p.bias),
    )
    attrs = {
        "biases": tuple(int(bool(p.bias)) for p in members),
        "trans_weights": tuple(p.trans_weight for p in members),
    }
    return Built(m["class"], operands, attrs, outputs=tuple(p.out for p in members), also=also or [])


def _flattening(graph: Graph, members: list[forms.Product]) -> list[Op] | None:
    """The reshapes that flatten x for one member each; None where all read one value."""
    values = {p.x for p in members}
    return None if len(values) == 1 else [op for v in sorted(values) if (op := graph.producer(v)) is not None]


def _group(graph: Graph, name: str, members: list[forms.Product]) -> Match:
    match = Match(graph)
    match.ops = [p.op for p in members]
    match.bound = {"members": members, "class": name}
    match.root = members[0].out
    return match


_PASSES = (
    forms.rope.kinds
    | forms.norm.kinds
    | frozenset(
        (
            "Transpose Reshape Squeeze Unsqueeze Expand Slice Split Cast Mul Div Add "
            "kv_append Concat rope qk_norm l2_norm"
        ).split()
    )
)


def _read_by_attention(graph: Graph, op: Op) -> dict[str, str]:
    """The products that an attention's operands come from: x of each product -> nothing else between."""
    found: dict[str, str] = {}
    for operand in op.inputs[:3]:
        value, seen = operand, 0
        while seen < 16:
            seen += 1
            made = graph.producer(value) if value else None
            if made is None:
                break
            if made.kind in forms.product.kinds and (forms.product(graph, made) or _almost(graph, made)):
                found[made.outputs[0]] = rows_of(graph, made.inputs[0])
                break
            if made.kind not in _PASSES:
                break
            value = _data_operand(graph, made)
    return found


def _data_operand(graph: Graph, op: Op) -> str:
    """The operand that an op passes on: not a constant, and of a Concat with a cache the new rows."""
    if op.kind in ("kv_append", "Concat"):
        return op.inputs[-1]
    return next((v for v in op.inputs if v and not graph.is_constant(v)), "")


def find_qkv(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """Products of one x that one attention reads."""
    if op.kind not in forms.attention.kinds:
        return
    sources = _read_by_attention(graph, op)
    by_x: dict[str, list[str]] = {}
    for out, x in sources.items():
        by_x.setdefault(x, []).append(out)
    for outs in by_x.values():
        made = graph.producer(outs[0])
        members = [p for p in _members(graph, made.inputs[0] if made else "") if p.out in outs]
        if budget:
            yield from _but_for_a_weight(graph, "merged_qkv", members, outs)
        elif len(members) > 1:
            yield _group(graph, "merged_qkv", members)


def _almost(graph: Graph, op: Op) -> forms.Almost | None:
    """A product whose weight changes at run time."""
    found: forms.Almost | None = forms.product.almost(graph, op)
    return found


def _but_for_a_weight(
    graph: Graph, name: str, members: list[forms.Product], outs: Iterable[str]
) -> Iterator[Match]:
    """Products that would run as one, but that the weight of one of them changes at run time."""
    left = [graph.producer(out) for out in outs if all(out != p.out for p in members)]
    odd = [found for op in left if op is not None and (found := _almost(graph, op)) is not None]
    if members and len(odd) == len(left) == 1:
        m = _group(graph, name, [*members, odd[0].form])
        m.fault = Fault(*odd[0][1:])
        yield m


def _weight_at_run_time(m: Match, fault: Fault) -> bool:
    return fault.code == "operand"


_GATE_PASSES = frozenset(["Reshape", "Cast", "Split", "Slice", "Clip"])


def find_gate_up(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """The two products of one x that meet in a gate: act(gate) times up."""
    if (act := forms.activation(graph, op)) is None:
        return
    gate = _product_below(graph, act.x)
    square = squaring(graph, act.out) if act.name == "relu" else None
    out = act.out if square is None else square.outputs[0]
    for slot in graph.readers(out):
        mul = graph.slots[slot]
        if mul is None or mul.kind != "Mul" or gate is None:
            continue
        up = _product_below(graph, next((v for v in mul.inputs if v != out), out))
        if up is None or up.out == gate.out or rows_of(graph, up.x) != rows_of(graph, gate.x):
            continue
        members = [p for p in _members(graph, gate.x) if p.out in (gate.out, up.out)]
        if budget:
            yield from _but_for_a_weight(graph, "merged_gate_up", members, (gate.out, up.out))
        elif len(members) == 2:
            yield _group(graph, "merged_gate_up", members)


def _product_below(graph: Graph, value: str) -> forms.Product | None:
    for _ in range(4):
        op = graph.producer(value)
        if op is None:
            return None
        if op.kind in forms.product.kinds:
            found: forms.Product | None = forms.product(graph, op)
            odd = _almost(graph, op) if found is None else None
            return found if odd is None else odd.form
        if op.kind not in _GATE_PASSES:
            return None
        value = op.inputs[0]
    return None


def find_products(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """All products of one x, found from the first of them."""
    product = None if budget else forms.product(graph, op)
    if product is None:
        return
    members = _members(graph, product.x)
    if len(members) > 1 and members[0].op is op:
        yield _group(graph, "merged_products", members)


_PRODUCT_KINDS = tuple(sorted(forms.product.kinds))

merged_qkv = Rule(
    "merged_qkv",
    """the products of one x that an attention reads, run as one

    Two or three launches become one and x is read once; members may have a bias or not.""",
    finds=find_qkv,
    marks=tuple(sorted(forms.attention.kinds)),
    almost=_weight_at_run_time,
    builds=_merged,
    reads=_PRODUCT_KINDS,
)
merged_gate_up = Rule(
    "merged_gate_up",
    """the two products of one x that meet in a gate, run as one

    Two launches become one and x is read once.""",
    finds=find_gate_up,
    marks=tuple(sorted(forms.activation.kinds)),
    almost=_weight_at_run_time,
    builds=_merged,
    reads=_PRODUCT_KINDS,
)
merged_products = Rule(
    "merged_products",
    """products of one x, run as one

    One launch and one read of x; how many, and how large in all, is the chip's cap.""",
    finds=find_products,
    marks=_PRODUCT_KINDS,
    builds=_merged,
    reads=_PRODUCT_KINDS,
)
