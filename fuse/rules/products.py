"""Products with a constant weight: with a bias, an activation or a residual, and products of one x as one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fuse import forms
from fuse.forms.mixtures import sums_experts
from fuse.guards import agree, branches_off, dims_text, regroups_rows, squeezed
from fuse.ir import Graph, Op
from fuse.match import Fault, Match
from fuse.pattern import HOLE, Add, Reshape, Transpose, anything, constant, form, kind, star
from fuse.rule import Built, Rule, Wrong, guard
from fuse.types import Dim, Dims, mul

Squeeze = kind("Squeeze")
bias = constant("bias", scalar=False)
plain_product = form(forms.product, "product", where=lambda p: not p.bias and p.plain)
any_product = form(forms.product, "product", where=lambda p: p.plain)
LAYOUT_STEPS = {"reshape": Reshape(HOLE) | Squeeze(HOLE), "transpose": Transpose(HOLE)}


def row_length(graph: Graph, product: forms.Product) -> Any:
    """The width of a product's rows."""
    dims = graph.dims(product.weight)
    return None if dims is None or len(dims) != 2 else dims[0 if product.trans_weight else 1]


def bias_has_one_axis(m: Match) -> Wrong | None:
    """bias: one row, wider than one number where the product is"""
    dims, width = m.graph.dims(m["bias"]), row_length(m.graph, m["product"])
    if dims is None or width == 1 or sum(dim != 1 for dim in dims) == 1 or _is_cut_row(m):
        return None
    return Wrong(m["bias"], dims_text(dims))


def _is_cut_row(m: Match) -> bool:
    """Whether the bias is a row cut into heads as a reshape cuts each of the product's rows."""
    graph, width = m.graph, row_length(m.graph, m["product"])
    steps, dims = m.taken("layout"), graph.dims(m["bias"])
    if dims is None or len(dims) < 2 or not steps or any(step.step == "transpose" for step in steps):
        return False
    whole, cut = math.prod(dim for dim in dims if isinstance(dim, int)), graph.dims(steps[0].value)
    return cut is not None and len(cut) > len(dims) and cut[-len(dims) :] == dims and whole == width


def bias_is_a_row(m: Match) -> Wrong | None:
    """bias: one row of exactly the product's width, that raises no rank"""
    dims, out = m.graph.dims(m["bias"]), m.graph.dims(m.root)
    width = row_length(m.graph, m["product"])
    inner = m.graph.dims(m["product"].out)
    if dims is not None and ((len(dims) == 1 and dims[0] == width) or _is_cut_row(m)):
        return None
    if dims is None or inner is None:
        return Wrong(m["bias"], "unknown dims")
    if squeezed(dims) == (width,) and len(dims) <= len(out or dims) and len(dims) <= _rank_below(m):
        return None
    return Wrong(m["bias"], f"{dims_text(dims)} for a width of {width}")


def _rank_below(m: Match) -> int:
    """The rank of the value that the bias is added to."""
    add = m.graph.producer(m.root)
    assert add is not None
    other = next((v for v in add.inputs if v != m["bias"]), add.inputs[0])
    return len(m.graph.dims(other) or ())


def layout_leaves_rows(m: Match) -> Wrong | None:
    """what stands between product and bias leaves the last axis alone"""
    width = row_length(m.graph, m["product"])
    steps = m.taken("layout")
    for outer, step in zip((None, *steps), () if _is_cut_row(m) else steps, strict=False):
        if outer is not None and outer.step == "reshape" == step.step:
            continue  # of reshapes behind one another only the last result counts
        op = m.graph.producer(step.value)
        dims = m.graph.dims(step.value)
        moved = (
            op is not None
            and op.kind == "Transpose"
            and (op.attrs.get("perm") or (0,))[-1] != len(op.attrs.get("perm", ())) - 1
        )
        if dims is None or not dims or dims[-1] != width or moved:
            return Wrong(step.value, dims_text(dims))
    return None


def product_attrs(product: forms.Product) -> dict[str, Any]:
    """The attributes that a class over a product carries: those that are not their defaults."""
    pairs = (("trans_x", 0), ("trans_weight", 0), ("alpha", 1.0), ("beta", 1.0))
    return {name: getattr(product, name) for name, default in pairs if getattr(product, name) != default}


def _with_bias(m: Match) -> Built | None:
    """One transpose at most, above every reshape: the class records its axes."""
    product, attrs = m["product"], product_attrs(m["product"])
    steps = m.taken("layout")
    if any(step.step == "transpose" for step in steps[1:]):
        return None
    if steps and steps[0].step == "transpose":
        op = m.graph.producer(steps[0].value)
        assert op is not None
        attrs["perm"] = tuple(op.attrs["perm"])
    return Built("matmul_bias", (product.x, product.weight, m["bias"]), attrs)


matmul_bias = Rule(
    "matmul_bias",
    """x times weight, plus a row of bias

    Two kernels become one, and the product is not written twice.""",
    finds=Add(star("layout", LAYOUT_STEPS, plain_product, resizes=["reshape", "transpose"], reach=3), bias),
    marks=tuple(sorted(forms.product.kinds - {"matmul_bias", "com.microsoft.MatMulNBits"})),
    needs=(guard(bias_has_one_axis, code="operand"), guard(bias_is_a_row), guard(layout_leaves_rows)),
    almost=lambda m, fault: fault.code == "op" and fault.got in ("Sub", "Mul"),
    builds=_with_bias,
    reads=tuple(sorted(forms.product.kinds)),
)


# ---- products of one x ---------------------------------------------------------------------------
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
            if made.kind in forms.product.kinds and forms.product(graph, made) is not None:
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
    if budget or op.kind not in forms.attention.kinds:
        return
    sources = _read_by_attention(graph, op)
    by_x: dict[str, list[str]] = {}
    for out, x in sources.items():
        by_x.setdefault(x, []).append(out)
    for outs in by_x.values():
        made = graph.producer(outs[0])
        members = [p for p in _members(graph, made.inputs[0] if made else "") if p.out in outs]
        if len(members) > 1:
            yield _group(graph, "merged_qkv", members)


_GATE_PASSES = frozenset(["Reshape", "Cast", "Split", "Slice", "Clip"])


def find_gate_up(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """The two products of one x that meet in a gate: act(gate) times up."""
    if budget or (act := forms.activation(graph, op)) is None:
        return
    gate = _product_below(graph, act.x)
    for slot in graph.readers(act.out):
        mul = graph.slots[slot]
        if mul is None or mul.kind != "Mul" or gate is None:
            continue
        up = _product_below(graph, next((v for v in mul.inputs if v != act.out), act.out))
        if up is None or up.out == gate.out or rows_of(graph, up.x) != rows_of(graph, gate.x):
            continue
        members = [p for p in _members(graph, gate.x) if p.out in (gate.out, up.out)]
        if len(members) == 2:
            yield _group(graph, "merged_gate_up", members)


def _product_below(graph: Graph, value: str) -> forms.Product | None:
    for _ in range(4):
        op = graph.producer(value)
        if op is None:
            return None
        if op.kind in forms.product.kinds:
            found: forms.Product | None = forms.product(graph, op)
            return found
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
    builds=_merged,
    reads=_PRODUCT_KINDS,
)
merged_gate_up = Rule(
    "merged_gate_up",
    """the two products of one x that meet in a gate, run as one

    Two launches become one and x is read once.""",
    finds=find_gate_up,
    marks=tuple(sorted(forms.activation.kinds)),
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

# ---- a product's epilogue ------------------------------------------------------------------------
biased_product = form(forms.product, "product", where=lambda p: p.plain and bool(p.bias))
act = form(
    forms.activation,
    "act",
    x=star("layout", {"reshape": Reshape(HOLE)}, biased_product, ["reshape"], reach=2),
) | form(
    forms.biased_activation,
    "act",
    x=star("layout", {"reshape": Reshape(HOLE)}, plain_product, ["reshape"], reach=2),
    bias=bias,
)


def _with_act(m: Match) -> Built:
    product, activation = m["product"], m["act"]
    attrs = product_attrs(product) | {"act": activation.name}
    if activation.alpha != 1.0:
        attrs["act_alpha"] = activation.alpha
    return Built("matmul_bias_act", (product.x, product.weight, product.bias or m["bias"]), attrs)


def bias_is_of_the_products_width(m: Match) -> Wrong | None:
    """bias: one row of exactly the product's width"""
    if not m.get("bias"):
        return None
    dims, width = m.graph.dims(m["bias"]), row_length(m.graph, m["product"])
    return None if dims == (width,) else Wrong(m["bias"], f"{dims_text(dims)} for a width of {width}")


matmul_bias_act = Rule(
    "matmul_bias_act",
    """an activation of x times weight plus bias

    The activation runs on the product's rows before they are written; the chip says which it has.""",
    finds=act,
    marks=tuple(sorted(forms.activation.kinds | forms.biased_activation.kinds)),
    needs=(guard(bias_is_of_the_products_width),),
    place=lambda m: not branches_off(m.graph, m["act"].x, m["act"].op),
    builds=_with_act,
    reads=("matmul_bias", "Gemm"),
)

residual = anything("residual")


def residual_has_the_shape(m: Match) -> Wrong | None:
    """residual has exactly the dims of the product"""
    own, out = m.graph.dims(m["residual"]), m.graph.dims(m.root)
    if own is None or out is None:
        return Wrong(m["residual"], "unknown dims")
    return None if agree(own, out) else Wrong(m["residual"], f"{dims_text(own)} beside {dims_text(out)}")


def _is_residual(m: Match) -> bool:
    """Whether the other addend is a residual that this product takes: of the sum's rank, no constant, and
    neither a norm nor a later product takes the sum."""
    graph, product = m.graph, m["product"]
    own, out = graph.dims(m["residual"]), graph.dims(m.root)
    if graph.is_constant(m["residual"]) or (own is not None and out is not None and len(own) != len(out)):
        return False
    if _feeds_a_norm(graph, m.root) or product.alpha != 1.0:
        return False
    return not (_is_stream(graph, m) or _later_product(graph, m) or sums_experts(graph, m["residual"]))


def _is_stream(graph: Graph, m: Match) -> bool:
    """Whether the product is no branch: it begins the stream (others read it, and the other addend is made
    later), or it is added in several places, as positions are."""
    other, product = graph.producer(m["residual"]), m["product"]
    readers = [graph.slots[slot] for slot in graph.readers(product.out)]
    later = other is not None and other.slot > product.op.slot
    return len(readers) > 1 and (later or all(op is not None and op.kind == "Add" for op in readers))


def _subtracted(m: Match, fault: Fault) -> bool:
    """Whether a residual of the product's dims is taken off, not added."""
    return fault.code == "op" and fault.got == "Sub"


def _with_residual(m: Match) -> Built | None:
    product = m["product"]
    if not _is_residual(m):
        return None
    operands = (product.x, product.weight, product.bias, m["residual"])
    return Built("matmul_residual", operands, product_attrs(product))


def _feeds_a_norm(graph: Graph, value: str) -> bool:
    """Whether a norm reads the sum, perhaps through a reshape: the place is add_norm's."""
    readers = graph.readers(value)
    for slot in readers:
        op = graph.slots[slot]
        if op is None or op.inputs[:1] != (value,):
            continue
        if op.kind in forms.norm.kinds:
            return True
        if op.kind == "Reshape" and regroups_rows(graph, op):
            rows = op.outputs[0]
            alone = len(graph.readers(rows)) == 1 or len(readers) == 1
            above = (graph.slots[reader] for reader in graph.readers(rows))
            if alone and any(
                norm and norm.kind in forms.norm.kinds and norm.inputs[0] == rows for norm in above
            ):
                return True
    return False


def _later_product(graph: Graph, m: Match) -> bool:
    """Whether the other addend is a product made later: then that one takes the residual."""
    other = graph.producer(m["residual"])
    if (
        other is None
        or other.kind not in forms.product.kinds
        or graph.readers(m["residual"]) != graph.readers(m["product"].out)
    ):
        return False
    return other.slot > m["product"].op.slot and forms.product(graph, other) is not None


matmul_residual = Rule(
    "matmul_residual",
    """x times weight, plus bias, plus a residual of the result's dims

    The sum is made where the product's rows are; where a norm reads it, add_norm takes it.""",
    finds=Add(any_product, residual),
    marks=_PRODUCT_KINDS,
    needs=(guard(residual_has_the_shape),),
    place=_is_residual,
    almost=_subtracted,
    builds=_with_residual,
    reads=tuple(sorted(forms.product.kinds | forms.norm.kinds)),
)
