"""Quantization: rounding to integers and back, integer products, and the packed formats of com.microsoft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fuse.types import INTEGERS, FuseError
from reference.ops.call import Array, Call, Implementation, from_front, numpy_dtype, short_dtype, wide
from reference.ops.elementwise import cast_to
from reference.ops.products import conv_product


def integer_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Least and greatest value of an integer type, the 2 and 4 bit ones too."""
    import ml_dtypes

    limits = ml_dtypes.iinfo(dtype) if dtype.kind not in "iu" else np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def spread(v: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """A scale or zero point (one for all, one an index of the axis, or one a block) over x's shape."""
    if v.size == 1 and v.ndim <= 1:
        return v.reshape(())
    if block:
        whole = np.repeat(v, block, axis=axis)
        return whole[tuple(slice(n) for n in shape)]
    if v.ndim != 1:
        raise FuseError(f"a scale of rank {v.ndim} needs a block size")
    return v.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])


def quantize(x: Array, scale: Array, zero: Array | None, dtype: np.dtype[Any]) -> Array:
    """x / scale rounded half to even, plus the zero point, kept in range; a float8 target is cast."""
    shift = 0 if zero is None else zero.astype(np.float32)
    ratio = wide(x) / wide(scale)
    if short_dtype(np.empty(0, dtype)) not in INTEGERS:
        return cast_to(ratio + shift, dtype)
    low, high = integer_range(dtype)
    if high > 1 << 24:
        ratio = ratio.astype(np.float64)  # f32 does not hold the ends of the range
    return np.asarray(
        np.clip(np.rint(ratio) + shift, low, high)
        .astype(np.int64 if high > 1 << 24 else np.int32)
        .astype(dtype)
    )


def quantize_linear(call: Call, x: Array, scale: Array, zero: Array | None = None) -> Array:
    axis, block = int(call.get("axis", 1)), int(call.get("block_size", 0))
    asked = int(call.get("output_dtype", 0))
    dtype = zero.dtype if zero is not None else numpy_dtype(asked or 2)
    return quantize(
        x,
        spread(scale, x.shape, axis, block),
        None if zero is None else spread(zero, x.shape, axis, block),
        dtype,
    )


def dequantize_linear(call: Call, x: Array, scale: Array, zero: Array | None = None) -> Array:
    """(x - zero point) scale, in the scale's type."""
    axis, block = int(call.get("axis", 1)), int(call.get("block_size", 0))
    if short_dtype(x) in INTEGERS:
        value = x.astype(np.int32)  # a zero point of 32 bits is always 0
        if zero is not None:
            value = value - spread(zero, x.shape, axis, block).astype(np.int32)
        number = value.astype(np.float32)
    else:
        number = x.astype(np.float32)
    asked = int(call.get("output_dtype", 0))
    result = number * wide(spread(scale, x.shape, axis, block)).astype(np.float32)
    return np.asarray(result, numpy_dtype(asked) if asked else scale.dtype)


def dynamic_quantize(x: Array) -> tuple[Array, Array, Array]:
    """x as u8 over its own range, widened to hold zero; its scale; its zero point."""
    low, high = np.minimum(x.min(initial=0), 0), np.maximum(x.max(initial=0), 0)
    scale = np.float32((high - low) / np.float32(255)) if high != low else np.float32(1)
    zero = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
    return (
        quantize(x, np.asarray(scale), np.asarray(zero), np.dtype(np.uint8)),
        np.asarray(scale),
        np.asarray(zero),
    )


def whole_numbers(x: Array, zero: Array | None, column: bool = True) -> Array:
    """Integers less their zero point as exact numbers; one zero point a row (column) or a column of x."""
    value = x.astype(np.float64)
    if zero is None:
        return value
    point = zero.astype(np.float64)
    if point.ndim == 1 and point.size > 1:
        point = point[:, None] if column else point
    elif point.ndim <= 1:
        point = point.reshape(())
    return np.asarray(value - point)


def matmul_integer(call: Call, a: Array, b: Array, za: Array | None = None, zb: Array | None = None) -> Array:
    """Exact in f64 (products of 8-bit integers stay under 2^53), wrapped to i32."""
    return np.asarray(
        np.matmul(whole_numbers(a, za), whole_numbers(b, zb, False)).astype(np.int64).astype(np.int32)
    )


def conv_integer(call: Call, x: Array, w: Array, zx: Array | None = None, zw: Array | None = None) -> Array:
    weight = w.astype(np.float64)
    if zw is not None:
        weight = weight - zw.astype(np.float64).reshape([-1] + [1] * (w.ndim - 1) if zw.size > 1 else [])
    return np.asarray(np.rint(conv_product(call, whole_numbers(x, zx), weight)).astype(np.int32))


def requantized(whole: Array, scale: Array, zero: Array) -> Array:
    """Sums of products of integers as codes. Runtimes scale in f32, and a tie may hang on that."""
    low, high = integer_range(zero.dtype)
    codes = np.rint(whole.astype(np.float32) * scale.astype(np.float32)) + zero.astype(np.float32)
    return np.asarray(np.clip(codes, low, high).astype(zero.dtype))


def qlinear_matmul(
    call: Call, a: Array, sa: Array, za: Array, b: Array, sb: Array, zb: Array, sy: Array, zy: Array
) -> Array:
    return requantized(np.matmul(whole_numbers(a, za), whole_numbers(b, zb, False)), sa * sb / sy, zy)


def qlinear_conv(
    call: Call,
    x: Array,
    sx: Array,
    zx: Array,
    w: Array,
    sw: Array,
    zw: Array,
    sy: Array,
    zy: Array,
    bias: Array | None = None,
) -> Array:
    rest = (1,) * (w.ndim - 1)
    weight = w.astype(np.float64) - (
        zw.astype(np.float64).reshape(-1, *rest) if zw.size > 1 else float(zw.reshape(()))
    )
    whole = conv_product(call, whole_numbers(x, zx), weight)
    if bias is not None:
        whole = whole + bias.astype(np.float64).reshape(1, -1, *(1,) * (w.ndim - 2))
    return requantized(whole, (sx * sw / sy).reshape([1, -1] + [1] * (w.ndim - 2) if sw.size > 1 else []), zy)


def matmul_integer_to_float(
    call: Call,
    a: Array,
    b: Array,
    sa: Array,
    sb: Array,
    za: Array | None = None,
    zb: Array | None = None,
    bias: Array | None = None,
) -> Array:
    whole = np.matmul(whole_numbers(a, za), whole_numbers(b, zb, False)).astype(np.float32)
    y = whole * (wide(sa) * wide(sb))
    return np.asarray(y if bias is None else y + wide(bias), sa.dtype)


def dynamic_quantize_matmul(
    call: Call, a: Array, b: Array, sb: Array, zb: Array | None = None, bias: Array | None = None
) -> Array:
    quantized, scale, zero = dynamic_quantize(a)
    return matmul_integer_to_float(call, quantized, b, scale, sb, zero, zb, bias)


# ---- packed blocks -----------------------------------------------------------------------------
def unpacked(packed: Array, bits: int) -> Array:
    """Values of 2, 4 or 8 bits from bytes, the lowest bits first, along the last axis."""
    if bits == 8:
        return packed
    if bits not in (2, 4):
        raise FuseError(f"packed values of {bits} bits have no implementation")
    each = np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(((packed[..., None] >> each) & ((1 << bits) - 1)).reshape(*packed.shape[:-1], -1))


def block_weights(call: Call, packed: Array, scales: Array, zero: Array | None, order: Array | None) -> Array:
    """The weight [N, K] that MatMulNBits holds as [N, blocks, bytes] with one scale a block."""
    size, bits = int(call.attrs["block_size"]), int(call.get("bits", 4))
    columns, depth = int(call.attrs["N"]), int(call.attrs["K"])
    blocks = -(-depth // size)
    value = unpacked(packed.reshape(columns, blocks, -1), bits)[..., :size].reshape(columns, -1)[:, :depth]
    if zero is None:
        points = np.full((columns, blocks), 1 << (bits - 1), np.float32)
    elif zero.dtype == np.uint8:
        points = unpacked(zero.reshape(columns, -1), bits)[:, :blocks].astype(np.float32)
    else:
        points = wide(zero).reshape(columns, blocks)
    block = np.arange(depth) // size if order is None else order.astype(np.int64)
    factor = wide(scales).reshape(columns, blocks)
    return np.asarray((value.astype(np.float32) - points[:, block]) * factor[:, block])


def matmul_nbits(
    call: Call,
    a: Array,
    packed: Array,
    scales: Array,
    zero: Array | None = None,
    order: Array | None = None,
    bias: Array | None = None,
) -> Array:
    y = np.matmul(wide(a), block_weights(call, packed, scales, zero, order).T)
    return np.asarray(y if bias is None else y + wide(bias), a.dtype)


def gather_block_quantized(
    call: Call, data: Array, indices: Array, scales: Array, zero: Array | None = None
) -> Array:
    """Rows gathered from a table that is stored in blocks, dequantized."""
    bits, block = int(call.get("bits", 4)), int(call.get("block_size", 128))
    axis = from_front(int(call.get("quantize_axis", 1)), data.ndim)
    packed = data.dtype == np.uint8 and bits < 8
    table = unpacked(data, bits) if packed else data
    value = table.astype(np.float32)
    if zero is not None:
        points = (unpacked(zero, bits) if packed else zero).astype(np.float32)
        points = points[tuple(slice(n) for n in scales.shape)]
        value = value - spread(points, value.shape, axis, block)
    elif packed or data.dtype == np.uint8:
        value = value - np.float32(1 << (bits - 1))
    value = value * spread(wide(scales), value.shape, axis, block)
    return np.take(value, indices, axis=int(call.get("gather_axis", 0))).astype(scales.dtype)


QUANTIZED: Mapping[str, Implementation] = {
    "QuantizeLinear": quantize_linear, "DequantizeLinear": dequantize_linear,
    "com.microsoft.QuantizeLinear": quantize_linear, "com.microsoft.DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": lambda call, x: dynamic_quantize(x),
    "MatMulInteger": matmul_integer, "ConvInteger": conv_integer,
    "QLinearMatMul": qlinear_matmul, "QLinearConv": qlinear_conv,
    "com.microsoft.MatMulIntegerToFloat": matmul_integer_to_float,
    "com.microsoft.DynamicQuantizeMatMul": dynamic_quantize_matmul,
    "com.microsoft.MatMulNBits": matmul_nbits, "com.microsoft.GatherBlockQuantized": gather_block_quantized,
}  # fmt: skip
