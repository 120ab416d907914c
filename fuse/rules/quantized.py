"""Products whose weight is stored in few bits and decoded where it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fuse.guards import dims_text, squeezed
from fuse.ir import Graph, Op
from fuse.match import Match
from fuse.match.plausible import PASSING
from fuse.pattern import HOLE, Add, Cast, Mul, Sub, Transpose, anything, constant, form, form_of, star
from fuse.rule import Built, Rule, Wrong, guard
from fuse.types import BITS, FLOATS, INTEGERS

bias = constant("bias", scalar=False)
codes = constant("codes", scalar=False)
scales, zeros = constant("scales", scalar=False), constant("zeros", scalar=False)
x_scale = anything("x_scale")

_DECODERS = ("DequantizeLinear", "com.microsoft.DequantizeLinear")
_ENCODERS = ("QuantizeLinear", "com.microsoft.QuantizeLinear")


class Roles(NamedTuple):
    """An operator of a quantized product, its operands by role ("" where absent)."""

    x: str
    weight: str
    codes: str
    scales: str
    zeros: str
    bias: str
    x_scale: str
    x_zero: str
    order: str
    y_scale: str
    y_zero: str
    out: str
    op: Op


_DECODED = dict.fromkeys(_DECODERS, ("codes", "scales", "zeros"))
_MULTIPLIED = dict.fromkeys(("MatMul", "Gemm", "com.microsoft.FusedMatMul"), ("x", "weight", "bias"))
_WHOLE = {"MatMulInteger": ("x", "codes", "x_zero", "zeros")}
_CONTRIB = {
    "com.microsoft.MatMulNBits": ("x", "codes", "scales", "zeros", "order", "bias"),
    "com.microsoft.MatMulIntegerToFloat": ("x", "codes", "x_scale", "scales", "x_zero", "zeros", "bias"),
    "com.microsoft.DynamicQuantizeMatMul": ("x", "codes", "scales", "zeros", "bias"),
    "com.microsoft.MatMulBnb4": ("x", "codes", "scales"),
    "QLinearMatMul": ("x", "x_scale", "x_zero", "codes", "scales", "zeros", "y_scale", "y_zero"),
    "com.microsoft.QGemm": (
        "x", "x_scale", "x_zero", "codes", "scales", "zeros", "bias", "y_scale", "y_zero",
    ),
}  # fmt: skip


def _roles(kinds: Mapping[str, tuple[str, ...]]) -> Callable[[Graph, Op], Roles | None]:
    """A form of operators whose operands have these roles, in order."""

    @form_of(*kinds)
    def read(graph: Graph, op: Op) -> Roles | None:
        given = dict(zip(kinds[op.kind], op.inputs, strict=False))
        found = Roles(**{name: given.get(name, "") for name in Roles._fields[:-2]}, out=op.outputs[0], op=op)
        # What is decoded from a value of the run is an activation: no weight, nor nearly one.
        activation = op.kind in _DECODED and not _known(graph, found.codes)
        gemm = op.kind == "Gemm" and found.bias and not graph.is_constant(found.bias)
        return None if activation or gemm else found

    return read


def _known(graph: Graph, value: str) -> bool:
    return graph.is_constant(value) or value in graph.base.overridable


# A weight in floats, decoded from codes: by the operator, or a cast and a scale.
cast = Cast(codes)
decoded = form(_roles(_DECODED), "decoded", codes=codes, scales=scales) | Mul(Sub(cast, zeros) | cast, scales)
weight = star("turned", {"transpose": Transpose(HOLE)}, decoded, resizes=["transpose"], reach=2)
floating = form(_roles(_MULTIPLIED), "multiplied", weight=weight)

# A product of integers, scaled back to floats.
whole = Cast(form(_roles(_WHOLE), "whole", codes=codes))
integer = (
    Mul(whole, Mul(x_scale, scales)) | Mul(Mul(whole, x_scale), scales) | Mul(Mul(whole, scales), x_scale)
)
contrib = form(_roles(_CONTRIB), "contrib")
any_product = floating | integer | contrib


@dataclass(frozen=True)
class Stored:
    """A product with a quantized weight as read off a match.

    axis: of the codes, along which the scales run; None for one scale. block: codes of one scale along
    it, 0: each index has its own. parts: operators taken in beside the match.
    """

    x: str
    codes: str
    scales: str
    zeros: str = ""
    bias: str = ""
    x_scale: str = ""
    x_zero: str = ""
    order: str = ""
    bits: int = 0
    storage: str = "values"
    axis: int | None = None
    block: int = 0
    turned: int = 0
    activation: str = "none"
    x_codes: str = ""
    y_scale: str = ""
    y_zero: str = ""
    y_codes: str = ""
    attrs: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Op, ...] = ()


_BOUND = ("codes", "scales", "zeros", "bias", "x_scale")


def read(m: Match) -> Stored:
    """What a match of any spelling holds; x as the product reads it."""
    graph = m.graph
    if m.get("contrib"):
        return _read_contrib(graph, m["contrib"], m.get("bias"))
    product: Roles = m.get("whole") or m["multiplied"]
    names = {name: m.get(name) for name in _BOUND}
    decoder = m.get("decoded") or product
    names["zeros"] = names["zeros"] or decoder.zeros
    names["bias"] = names["bias"] or product.bias
    bits = BITS.get(graph.dtype(m["codes"]), 0)
    stored = Stored(**names, x=product.x, x_zero=product.x_zero, bits=bits)
    op = product.op
    if op.kind == "MatMulInteger":
        axis = 1 if _size(graph, stored.scales) != 1 else None
        return replace(stored, axis=axis, activation="static")
    turned = int(op.attrs.get("transB", 0)) + len(m.taken("turned"))
    attrs = {
        "trans_x": int(op.attrs.get("transA", 0)),
        "alpha": float(op.attrs.get("alpha", 1.0)),
        "beta": float(op.attrs.get("beta", 1.0)) if op.kind == "Gemm" and product.bias else 1.0,
    }
    axis, block = _scale_axis(m)
    return replace(stored, axis=axis, block=block, turned=turned % 2, attrs=attrs)


def _scale_axis(m: Match) -> tuple[int | None, int]:
    """The axis of the codes along which the scales run, and the length of a block."""
    graph, dims = m.graph, m.graph.dims(m["codes"])
    decoder = m["decoded"].op if m.get("decoded") else None
    own = graph.dims(m["scales"])
    if own is None or not dims or (decoder is not None and _size(graph, m["scales"]) == 1):
        return None, 0
    if decoder is not None:
        axis = int(decoder.attrs.get("axis", 1))
        return axis % len(dims), int(decoder.attrs.get("block_size", 0))
    wide = [len(dims) - len(own) + at for at, dim in enumerate(own) if dim != 1]
    return (wide[0] if len(wide) == 1 else -1, 0) if wide else (None, 0)


def _size(graph: Graph, value: str) -> object:
    """The number of elements of a small constant, as far as it is known to be one."""
    dims = graph.dims(value)
    return 1 if dims is not None and all(dim == 1 for dim in dims) else dims


def _read_contrib(graph: Graph, found: Roles, bias: str) -> Stored:
    op, a = found.op, found.op.attrs
    names = {name: getattr(found, name) for name in _CONTRIB_ROLES}
    stored = Stored(**names, bias=found.bias or bias)
    if op.kind == "com.microsoft.MatMulNBits":
        bits, block = int(a.get("bits", 4)), int(a["block_size"])
        return replace(stored, bits=bits, storage="blocks", axis=1, block=block, turned=1)
    if op.kind == "com.microsoft.MatMulBnb4":
        table, block = "nf4" if a.get("quant_type") else "fp4", int(a["block_size"])
        turned = int(a.get("transB", 1))
        return replace(stored, bits=4, storage=table, axis=turned, block=block, turned=turned)
    activation = "dynamic" if op.kind == "com.microsoft.DynamicQuantizeMatMul" else "static"
    axis = None if _size(graph, stored.scales) == 1 else 1
    if op.kind == "com.microsoft.QGemm":
        turned = int(a.get("transB", 0))
        attrs = {"trans_x": int(a.get("transA", 0)), "alpha": float(a.get("alpha", 1.0))}
        stored = replace(stored, turned=turned, attrs=attrs)
        axis = None if axis is None else 1 - turned
    if stored.y_scale:
        stored = replace(stored, y_codes=graph.dtype(found.out))
    return replace(stored, bits=BITS.get(graph.dtype(stored.codes), 0), axis=axis, activation=activation)


_CONTRIB_ROLES = ("x", "codes", "scales", "zeros", "x_scale", "x_zero", "order", "y_scale", "y_zero")
#: How a weight of packed bytes is stored.
_PACKED = ("blocks", "fp4", "nf4")


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
    packed = stored.storage in _PACKED
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
    if not stored.zeros or _size(graph, stored.zeros) == 1 or stored.storage in _PACKED:
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
        if value and _size(m.graph, value) != 1:
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
        if op is not None and op.kind in _ENCODERS and _read_within(m, stored.x):
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
    if back is None or back.kind not in _DECODERS or not _read_within(m, stored.x):
        return
    inner, scale, zero = (*back.inputs, "")[:3]
    if not _one_constant(graph, scale) or (zero and not _one_constant(graph, zero)):
        return
    coded = replace(stored, x=inner, x_scale=scale, x_zero=zero, activation="static", parts=(back,))
    to = graph.producer(inner)
    alone = not graph.is_output(inner) and graph.readers(inner) == [back.slot]
    if to is not None and to.kind in _ENCODERS and alone:
        yield from _with_encoder(graph, coded, to)
    yield coded


def _read_within(m: Match, value: str) -> bool:
    own = {op.slot for op in m.ops}
    return not m.graph.is_output(value) and all(slot in own for slot in m.graph.readers(value))


def _one_constant(graph: Graph, value: str) -> bool:
    return graph.is_constant(value) and _size(graph, value) == 1


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

quantized_matmul = Rule(
    "quantized_matmul",
    """x times a weight that is stored in few bits and decoded where it is read

    The weight is never written in floats, and a chip that computes in integers or in blocks reads an
    eighth to a half of the bytes. What quantizes x is taken in where only this product reads it.""",
    finds=Add(any_product, bias) | any_product,
    marks=(*_DECODERS, "Cast", "MatMulInteger", *sorted(_CONTRIB)),
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
    almost=lambda m, fault: fault.code == "op" and (fault.got in PASSING or bool(m.get("whole"))),
    builds=_quantized,
    reads=("DynamicQuantizeLinear", *_DECODERS, *_ENCODERS),
)
