"""Products with a constant weight: with a bias, an activation or a residual."""

from __future__ import annotations

import math
from typing import Any

from fuse import forms
from fuse.forms.mixtures import sums_experts
from fuse.guards import agree, branches_off, dims_text, regroups_rows, squeezed
from fuse.ir import Graph
from fuse.match import Fault, Match
from fuse.match.plausible import NO_SUM, STRAY
from fuse.pattern import HOLE, Add, Reshape, Transpose, anything, constant, form, kind, star
from fuse.rule import Built, Rule, Wrong, guard

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


def _is_biased(m: Match) -> bool:
    """Whether the constant may be a bias at all: one is added to make a factor of a product."""
    return m.graph.scalar(m["bias"]) != 1


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
    place=_is_biased,
    almost=lambda m, fault: fault.code == "op" and fault.got in NO_SUM | STRAY | {"Mul", "Div"},
    builds=_with_bias,
    reads=tuple(sorted(forms.product.kinds)),
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


def _with_act(m: Match) -> Built | None:
    """A reshape between regroups rows only: heads cut out of them are no axes that the class has."""
    product, activation = m["product"], m["act"]
    made = (m.graph.producer(step.value) for step in m.taken("layout"))
    if not all(op is not None and regroups_rows(m.graph, op) for op in made):
        return None
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
    almost=lambda m, fault: fault.code == "op" and fault.got in STRAY,
    builds=_with_act,
    reads=("matmul_bias", "Gemm"),
)

residual = anything("residual")


def residual_has_the_shape(m: Match) -> Wrong | None:
    """residual has exactly the dims of the product"""
    own, out = m.graph.dims(m["residual"]), m.graph.dims(m.root)
    product = m.graph.dims(m["product"].out)
    if own is None or out is None:
        return Wrong(m["residual"], "unknown dims")
    if agree(own, out) and (product is None or agree(product, out)):
        return None
    return Wrong(m["residual"], f"{dims_text(own)} beside {dims_text(product or out)}")


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
    """Whether a residual of the product's dims is taken off, not added, or the product has a sign."""
    return fault.code == "op" and fault.got in NO_SUM | STRAY


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
    marks=tuple(sorted(forms.product.kinds)),
    needs=(guard(residual_has_the_shape),),
    place=_is_residual,
    almost=_subtracted,
    builds=_with_residual,
    reads=tuple(sorted(forms.product.kinds | forms.norm.kinds)),
)
