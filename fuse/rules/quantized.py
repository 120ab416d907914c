"""Products whose weight is stored in few bits and decoded where it is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fuse.guards import dims_text, squeezed
from fuse.ir import Graph, Op
from fuse.match import Fault, Match
from fuse.match.plausible import PASSING
from fuse.pattern import HOLE, Add, Cast, Mul, Sub, Transpose, anything, constant, form, star
from fuse.rule import Built, Rule, Wrong, guard
from fuse.rules.quantized_storage import (
    CONTRIB,
    DECODED,
    DECODERS,
    ENCODERS,
    MULTIPLIED,
    PACKED,
    WHOLE,
    Stored,
    read,
    roles,
    size_of,
)
from fuse.types import BITS, FLOATS, INTEGERS

bias = constant("bias", scalar=False)
#: Known when the model loads: the forms that read it ask so, but of what the caller passes in.
codes = anything("codes")
scales, zeros = constant("scales", scalar=False), constant("zeros", scalar=False)
x_scale = anything("x_scale")


# A weight in floats, decoded from codes: by the operator, or a cast and a scale.
cast = Cast(codes)
decoded = form(roles(DECODED), "decoded", codes=codes, scales=scales) | Mul(Sub(cast, zeros) | cast, scales)
weight = star("turned", {"transpose": Transpose(HOLE)}, decoded, resizes=["transpose"], reach=2)
floating = form(roles(MULTIPLIED), "multiplied", weight=weight)

# A product of integers, scaled back to floats.
whole = Cast(form(roles(WHOLE), "whole", codes=codes))
integer = (
    Mul(whole, Mul(x_scale, scales)) | Mul(Mul(whole, x_scale), scales) | Mul(Mul(whole, scales), x_scale)
)
contrib = form(roles(CONTRIB), "contrib")
any_product = floating | integer | contrib


# ---- conditions ----------------------------------------------------------------------------------
def weight_is_known(m: Match) -> Wrong | None:
    """codes, scales and zero points: known when the model loads"""
    stored = read(m)
    for value in (stored.codes, stored.scales, stored.zeros):
        if value and not m.graph.is_constant(value):
            return Wrong(value, "a value that changes at run time")
    return None


def codes_are_few_bits(m: Match) -> Wrong | None:
    """codes: integers of 2 to 8 bits, as a matrix or as packed blocks"""
    stored, graph = read(m), m.graph
    dtype, dims = graph.dtype(stored.codes), graph.dims(stored.codes)
    packed = stored.storage in PACKED
    whole_bytes = packed and dtype == "u8" and stored.bits in (2, 4, 8)
    if dims is None or (dtype not in INTEGERS or BITS[dtype] > 8) or (packed and not whole_bytes):
        return Wrong(stored.codes, f"{graph.type(stored.codes)} of {stored.bits} bits")
    return None if packed or len(dims) == 2 else Wrong(stored.codes, str(graph.type(stored.codes)))


def scales_run_along_the_outputs(m: Match) -> Wrong | None:
    """there is one scale, or one for each output, or for each block of inputs of an output"""
    stored = read(m)
    if stored.block or stored.axis is None or stored.axis == _output_axis(stored):
        return None
    dims, own = m.graph.dims(stored.codes), m.graph.dims(stored.scales)
    return Wrong(stored.scales, f"{dims_text(own)} along axis {stored.axis} of {dims_text(dims)}")


def blocks_run_along_the_contraction(m: Match) -> Wrong | None:
    """a block of codes of one scale lies along the axis that is summed over"""
    stored = read(m)
    if not stored.block or stored.axis == 1 - _output_axis(stored):
        return None
    return Wrong(stored.scales, f"blocks of {stored.block} along axis {stored.axis}, the outputs")


def _output_axis(stored: Stored) -> int:
    return 0 if stored.turned else 1


def zero_points_stand_by_the_scales(m: Match) -> Wrong | None:
    """zero points are laid out as the scales are"""
    stored, graph = read(m), m.graph
    if not stored.zeros or size_of(graph, stored.zeros) == 1 or stored.storage in PACKED:
        return None
    one, two = graph.dims(stored.zeros), graph.dims(stored.scales)
    alike = one is not None and two is not None and squeezed(one) == squeezed(two)
    return None if alike else Wrong(stored.zeros, f"{dims_text(one)} beside {dims_text(two)}")


def inputs_are_in_order(m: Match) -> Wrong | None:
    """no order of the inputs of its own (g_idx)"""
    order = read(m).order
    return Wrong(order, f"an order of inputs {m.graph.type(order)}") if order else None


def x_has_one_scale(m: Match) -> Wrong | None:
    """x, and a result in codes, have one scale and one zero point for all their values"""
    stored = read(m)
    for value in (stored.x_scale, stored.x_zero, stored.y_scale, stored.y_zero):
        if value and size_of(m.graph, value) != 1:
            return Wrong(value, f"{m.graph.type(value)}")
    return None


def bias_is_a_row(m: Match) -> Wrong | None:
    """bias: one row of exactly the product's width, that raises no rank"""
    stored, graph = read(m), m.graph
    if not stored.bias:
        return None
    dims, out = graph.dims(stored.bias), graph.dims(m.root)
    add = graph.producer(m.root)
    if add is not None and add.kind == "Add":
        out = graph.dims(next((v for v in add.inputs if v != stored.bias), add.inputs[0]))
    if dims is None or not out:
        return Wrong(stored.bias, "unknown dims")
    if dims == (out[-1],) or (squeezed(dims) == (out[-1],) and len(dims) <= len(out)):
        return None
    return Wrong(stored.bias, f"{dims_text(dims)} for a width of {out[-1]}")


# ---- what is built -------------------------------------------------------------------------------
def _forms(m: Match, stored: Stored) -> list[Stored]:
    """The product with what quantizes x taken in, where nothing else reads that, then with less of it."""
    if stored.x_scale:
        return list(_with_range(m, stored))
    return [*_with_codes(m, stored), stored] if stored.activation == "none" else [stored]


def _with_range(m: Match, stored: Stored) -> Iterator[Stored]:
    """x below the operator that quantizes it by its own range, then in the codes it gives."""
    op = m.graph.producer(stored.x)
    made = (stored.x, stored.x_scale, stored.x_zero)
    if op is None or op.kind != "DynamicQuantizeLinear" or op.outputs != made:
        if op is not None and op.kind in ENCODERS and _read_within(m, stored.x):
            yield from _with_encoder(m.graph, stored, op)
        yield stored
        return
    stored = replace(stored, activation="dynamic")
    if all(_read_within(m, value) for value in op.outputs):
        yield replace(stored, x=op.inputs[0], x_scale="", x_zero="", parts=(op,))
    yield stored


def _with_encoder(graph: Graph, stored: Stored, to: Op) -> Iterator[Stored]:
    """x below the operator that rounds it to the codes that the product reads."""
    source, scale, zero = (*to.inputs, "")[:3]
    alike = _same(graph, scale, stored.x_scale) and _same(graph, zero, stored.x_zero)
    if alike and graph.dtype(source) in FLOATS:
        codes = graph.dtype(stored.x)
        yield replace(stored, x=source, x_codes=codes, parts=(*stored.parts, to))


def _with_codes(m: Match, stored: Stored) -> Iterator[Stored]:
    """x below the operators that round it to codes and back, then in the codes."""
    graph = m.graph
    back = graph.producer(stored.x)
    if back is None or back.kind not in DECODERS or not _read_within(m, stored.x):
        return
    inner, scale, zero = (*back.inputs, "")[:3]
    if not _one_constant(graph, scale) or (zero and not _one_constant(graph, zero)):
        return
    coded = replace(stored, x=inner, x_scale=scale, x_zero=zero, activation="static", parts=(back,))
    to = graph.producer(inner)
    alone = not graph.is_output(inner) and graph.readers(inner) == [back.slot]
    if to is not None and to.kind in ENCODERS and alone:
        yield from _with_encoder(graph, coded, to)
    yield coded


def _read_within(m: Match, value: str) -> bool:
    own = {op.slot for op in m.ops}
    return not m.graph.is_output(value) and all(slot in own for slot in m.graph.readers(value))


def _one_constant(graph: Graph, value: str) -> bool:
    return graph.is_constant(value) and size_of(graph, value) == 1


def _same(graph: Graph, one: str, two: str) -> bool:
    """Whether two constants of one element are equal (an absent zero point is zero)."""
    if one == two:
        return True
    first = graph.scalar(one) if one else 0
    return first is not None and first == (graph.scalar(two) if two else 0)


def _quantized(m: Match) -> list[Built] | None:
    if any(op.attrs.get("transBatchA") or op.attrs.get("transBatchB") for op in m.ops):
        return None
    contrib = m.get("contrib")
    if contrib and m.get("bias") and (contrib.bias or contrib.y_scale):
        return None  # two biases are two operators, and codes are added to as codes
    return [_built(one) for one in _forms(m, read(m)) if one.activation != "static" or one.x_scale]


def _built(stored: Stored) -> Built:
    flat = stored.storage in ("fp4", "nf4")
    granularity = (
        "flat" if flat else "block" if stored.block else "tensor" if stored.axis is None else "output"
    )
    given = {
        "storage": stored.storage,
        "granularity": granularity,
        "block_size": stored.block,
        "trans_weight": 0 if stored.storage == "blocks" else stored.turned,
        "activation": stored.activation,
        "x_codes": stored.x_codes,
        "y_codes": stored.y_codes,
        **stored.attrs,
    }
    attrs = {"bits": stored.bits} | {k: value for k, value in given.items() if value != _DEFAULTS[k]}
    weight = (stored.codes, stored.scales, stored.zeros, stored.bias)
    operands = (stored.x, *weight, stored.x_scale, stored.x_zero, stored.y_scale, stored.y_zero)
    return Built("quantized_matmul", operands, attrs, also=list(stored.parts))


_DEFAULTS: dict[str, Any] = {
    "storage": "values", "granularity": "tensor", "block_size": 0, "trans_weight": 0, "activation": "none",
    "x_codes": "", "y_codes": "", "trans_x": 0, "alpha": 1.0, "beta": 1.0,
}  # fmt: skip


def _told(m: Match, fault: Fault) -> bool:
    """Whether little tells enough: an operator too many, a product of integers, or an operator that says
    by its name that its weight is in codes."""
    return bool(m.get("contrib")) or (fault.code == "op" and (fault.got in PASSING or bool(m.get("whole"))))


quantized_matmul = Rule(
    "quantized_matmul",
    """x times a weight that is stored in few bits and decoded where it is read

    The weight is never written in floats, and a chip that computes in integers or in blocks reads an
    eighth to a half of the bytes. What quantizes x is taken in where only this product reads it.""",
    finds=Add(any_product, bias) | any_product,
    marks=(*DECODERS, "Cast", "MatMulInteger", *sorted(CONTRIB)),
    needs=(
        guard(weight_is_known, code="operand"),
        guard(codes_are_few_bits, code="operand"),
        guard(scales_run_along_the_outputs),
        guard(blocks_run_along_the_contraction),
        guard(zero_points_stand_by_the_scales),
        guard(inputs_are_in_order, code="operand"),
        guard(x_has_one_scale, code="operand"),
        guard(bias_is_a_row),
    ),
    almost=_told,
    builds=_quantized,
    reads=("DynamicQuantizeLinear", *DECODERS, *ENCODERS),
)
