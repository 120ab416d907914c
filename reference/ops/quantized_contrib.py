"""Operators of com.microsoft that read and write codes, as onnxruntime 1.32 computes them on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from reference.ops.attention import packed_attention
from reference.ops.call import Array, Call, Implementation, from_front, wide
from reference.ops.elementwise import ELEMENTWISE
from reference.ops.norms import embed_layer_norm
from reference.ops.products import average_pool
from reference.ops.quantized import dequantize_linear, integer_range, quantize, requantized, whole_numbers

#: The values of four bits of MatMulBnb4: a sign, two bits of exponent and one of mantissa; and the
#: quantiles of a normal distribution (https://arxiv.org/abs/2305.14314, appendix E).
_FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
FP4 = np.array((*_FP4, *(-value for value in _FP4)), np.float32)
NF4 = np.array(
    (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
        0.7229568362236023, 1.0,
    ),
    np.float32,
)  # fmt: skip


def _number(call: Call, codes: Array, scale: Array, zero: Array | None) -> Array:
    return dequantize_linear(call._replace(attrs={}), codes, scale, zero)


def _fused(a: Array, b: Array, c: Array | np.float32) -> Array:
    """a b + c, rounded once."""
    return np.asarray((a.astype(np.float64) * b + c).astype(np.float32))


def add(
    call: Call,
    a: Array,
    sa: Array,
    za: Array | None,
    b: Array,
    sb: Array,
    zb: Array | None,
    sy: Array,
    zy: Array | None = None,
) -> Array:
    """Both scales over the result's, and what the zero points add as one number."""
    left, right = (np.asarray(s / sy, np.float32).reshape(()) for s in (sa, sb))
    points = [np.float32(0 if zero is None else zero.reshape(())) for zero in (za, zb, zy)]
    rest = np.float32(points[2] - _fused(left, np.asarray(points[0]), right * points[1]))
    y = _fused(a.astype(np.float32), left, _fused(b.astype(np.float32), right, rest))
    return _rounded(y, a.dtype)


def multiply(
    call: Call,
    a: Array,
    sa: Array,
    za: Array | None,
    b: Array,
    sb: Array,
    zb: Array | None,
    sy: Array,
    zy: Array | None = None,
) -> Array:
    """The zero point is added before the one rounding."""
    scale = np.asarray(sa * sb / sy, np.float32).reshape(())
    shift = np.float32(0 if zy is None else zy.reshape(()))
    whole = (whole_numbers(a, za) * whole_numbers(b, zb)).astype(np.float32)
    return _rounded(whole * scale + shift, a.dtype)


def _rounded(y: Array, dtype: np.dtype[Any]) -> Array:
    low, high = integer_range(dtype)
    return np.asarray(np.clip(np.rint(y), low, high).astype(dtype))


def _unary(kind: str) -> Implementation:
    """What ONNX's operator of that kind makes of the numbers, with its attributes."""

    def run(call: Call, x: Array, sx: Array, zx: Array | None, sy: Array, zy: Array | None = None) -> Array:
        y = ELEMENTWISE[kind](call._replace(kind=kind, opset=99), _number(call, x, sx, zx))
        return quantize(np.asarray(y), sy, zy, x.dtype)

    return run


def softmax(call: Call, x: Array, sx: Array, zx: Array | None, sy: Array, zy: Array | None = None) -> Array:
    """Softmax over an axis, or over all from it on before version 13; steps of the result are whole in 1."""
    axis = from_front(int(call.get("axis", 1 if call.get("opset", 1) < 13 else -1)), x.ndim)
    if call.get("opset", 1) < 13:
        return _rows(x.reshape(*x.shape[:axis], -1), sx, sy, zy).reshape(x.shape)
    return np.moveaxis(_rows(np.moveaxis(x, axis, -1), sx, sy, zy), -1, axis)


def _rows(x: Array, sx: Array, sy: Array, zy: Array | None) -> Array:
    steps = x.astype(np.float64) - x.max(axis=-1, keepdims=True)
    e = np.exp(steps * float(sx.reshape(()))).astype(np.float32)
    most = np.floor(np.float32(1) / sy.astype(np.float32).reshape(()))
    low, high = integer_range(x.dtype)
    shift = 0 if zy is None else int(zy.reshape(()))
    y = np.rint(e * most / e.sum(axis=-1, keepdims=True)) + shift
    return np.asarray(np.clip(y, low, high).astype(x.dtype))


def concat(call: Call, sy: Array, zy: Array, *operands: Array) -> Array:
    """Each operand is a tensor, its scale and its zero point."""
    parts = [_number(call, *operands[at : at + 3]) for at in range(0, len(operands), 3)]
    return quantize(np.concatenate(parts, axis=int(call.attrs["axis"])), sy, zy, zy.dtype)


def where(
    call: Call,
    condition: Array,
    a: Array,
    sa: Array,
    za: Array,
    b: Array,
    sb: Array,
    zb: Array,
    sy: Array,
    zy: Array,
) -> Array:
    chosen = np.where(condition, _number(call, a, sa, za), _number(call, b, sb, zb))
    return quantize(chosen, sy, zy, a.dtype)


def _pool(everything: bool) -> Implementation:
    """The mean of each window, or of all of a channel's."""

    def run(call: Call, x: Array, sx: Array, zx: Array | None, sy: Array, zy: Array | None = None) -> Array:
        last = bool(call.get("channels_last", 0))
        number = _number(call, x, sx, zx)
        number = np.moveaxis(number, -1, 1) if last else number
        if everything:
            y = number.mean(axis=tuple(range(2, number.ndim)), keepdims=True)
        else:
            y = np.asarray(average_pool(call._replace(kind="AveragePool", opset=19), number))
        return quantize(np.moveaxis(y, 1, -1) if last else y, sy, zy, x.dtype)

    return run


def qgemm(
    call: Call,
    a: Array,
    sa: Array,
    za: Array,
    b: Array,
    sb: Array,
    zb: Array,
    c: Array | None = None,
    sy: Array | None = None,
    zy: Array | None = None,
) -> Array:
    """alpha a b plus c (in steps of both scales), in floats, or in codes where there is a scale for them."""
    left, right = whole_numbers(a, za), whole_numbers(b, zb, bool(call.get("transB", 0)))
    whole = (left.T if call.get("transA", 0) else left) @ (right.T if call.get("transB", 0) else right)
    whole = whole if c is None else whole + c
    scale = np.float32(call.get("alpha", 1.0)) * sa * sb
    if sy is None:
        return np.asarray(whole.astype(np.float32) * scale)
    return requantized(whole, scale / sy, np.zeros((), a.dtype) if zy is None else zy)


def bnb4_weight(call: Call, packed: Array, largest: Array) -> Array:
    """The weight [N, K] of MatMulBnb4: two codes a byte, the high one first, one scale a block of all."""
    size, shape = int(call.attrs["block_size"]), (int(call.attrs["N"]), int(call.attrs["K"]))
    table = NF4 if int(call.attrs["quant_type"]) else FP4
    codes = np.stack([packed.reshape(-1) >> 4, packed.reshape(-1) & 15], axis=-1).reshape(-1)
    values = table[codes] * np.repeat(wide(largest), size)[: codes.size]
    return np.asarray(values[: shape[0] * shape[1]].reshape(shape))


def matmul_bnb4(call: Call, a: Array, packed: Array, largest: Array) -> Array:
    weight = bnb4_weight(call, packed, largest)
    return np.asarray(np.matmul(wide(a), weight.T if call.get("transB", 1) else weight), a.dtype)


def qattention(
    call: Call,
    x: Array,
    weights: Array,
    bias: Array,
    sx: Array,
    sw: Array,
    mask: Array | None = None,
    zx: Array | None = None,
    zw: Array | None = None,
    past: Array | None = None,
) -> tuple[Array, Array]:
    """com.microsoft Attention whose product of x and packed weights is one of integers."""
    whole = np.matmul(whole_numbers(x, zx), whole_numbers(weights, zw, False)).astype(np.float32)
    return packed_attention(call, whole * (sx * sw) + bias, mask, past)


def qembed_layer_norm(
    call: Call, ids: Array, segments: Array | None, *operands: Array | None
) -> tuple[Array, Array]:
    """EmbedLayerNormalization of tables, gamma and beta in codes; their scales and zero points lie behind."""
    tables, mask, rest = operands[:5], operands[5], (*operands[6:], *[None] * 10)
    numbers = [
        None if codes is None or scale is None else _number(call, codes, scale, zero)
        for codes, scale, zero in zip(tables, rest[:5], rest[5:10], strict=True)
    ]
    return embed_layer_norm(call, ids, segments, *numbers, mask)[:2]  # type: ignore[arg-type, call-arg]


_KINDS: Mapping[str, Implementation] = {
    "QLinearAdd": add, "QLinearMul": multiply,
    "QLinearSigmoid": _unary("Sigmoid"), "QLinearLeakyRelu": _unary("LeakyRelu"),
    "QLinearSoftmax": softmax, "QLinearConcat": concat, "QLinearWhere": where,
    "QLinearAveragePool": _pool(False), "QLinearGlobalAveragePool": _pool(True),
    "QGemm": qgemm, "MatMulBnb4": matmul_bnb4, "QAttention": qattention,
    "QEmbedLayerNormalization": qembed_layer_norm,
}  # fmt: skip
QUANTIZED_CONTRIB: Mapping[str, Implementation] = {
    f"com.microsoft.{kind}": implementation for kind, implementation in _KINDS.items()
}
