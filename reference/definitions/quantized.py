"""Products whose weight is stored in codes of few bits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fuse.types import BITS, FuseError
from reference.definitions.case import Array, Case, Definition, exact
from reference.ops.call import short_dtype
from reference.ops.quantized_contrib import FP4, NF4


def _unpacked(packed: Array, bits: int) -> Array:
    """The codes of each row of bytes, the lowest bits of a byte first."""
    shifts = range(0, 8, bits)
    parts = [(packed >> shift) & ((1 << bits) - 1) for shift in shifts]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], -1)


def _from_blocks(case: Case, codes: Array, scales: Array, zeros: Array | None, depth: int) -> Array:
    """The weight [in, out] of packed rows [out, blocks, bytes]; the middle code is zero if no point says."""
    outputs, blocks = codes.shape[0], codes.shape[1]
    whole = exact(_unpacked(codes, case["bits"]))[..., : case["block_size"]]
    if zeros is None:
        points = np.full((outputs, blocks), 2.0 ** (case["bits"] - 1))
    elif zeros.dtype == np.uint8:
        points = exact(_unpacked(zeros.reshape(outputs, -1), case["bits"]))[:, :blocks]
    else:
        points = exact(zeros).reshape(outputs, blocks)
    weight = (whole - points[..., None]) * exact(scales).reshape(outputs, blocks, 1)
    return np.asarray(weight.reshape(outputs, -1)[:, :depth].T)


def _from_table(case: Case, codes: Array, scales: Array, depth: int) -> Array:
    """The weight [in, out] of indices, two a byte, the high one first; one scale a block of the whole."""
    table = NF4 if case["storage"] == "nf4" else FP4
    indices = np.stack([codes.reshape(-1) >> 4, codes.reshape(-1) & 15], axis=-1).reshape(-1)
    flat = exact(table)[indices] * np.repeat(exact(scales).reshape(-1), case["block_size"])[: indices.size]
    outputs = flat.size // depth
    return np.asarray(
        flat.reshape(outputs, depth).T if case["trans_weight"] else flat.reshape(depth, outputs)
    )


def _laid_out(case: Case, value: Array | None, depth: int) -> Array:
    """Scales or zero points beside a weight [in, out]."""
    if value is None:
        return np.zeros(())
    if case["granularity"] == "tensor" or value.size == 1:
        return exact(value).reshape(())
    if case["granularity"] == "output":
        return exact(value).reshape(1, -1)
    turned = exact(value).T if case["trans_weight"] else exact(value)
    return np.repeat(turned, case["block_size"], axis=0)[:depth]


def _weight(case: Case, codes: Array, scales: Array, zeros: Array | None, depth: int) -> Array:
    if case["storage"] == "blocks":
        return _from_blocks(case, codes, scales, zeros, depth)
    if case["storage"] in ("fp4", "nf4"):
        return _from_table(case, codes, scales, depth)
    whole = exact(codes).T if case["trans_weight"] else exact(codes)
    return np.asarray((whole - _laid_out(case, zeros, depth)) * _laid_out(case, scales, depth))


def _steps(x: Array, scale: Array, zero: Array, bits: int, signed: bool) -> Array:
    """x in whole steps of scale from zero, as far as the codes reach. Rounding to codes is defined in f32,
    halves to the even code."""
    low = -(1 << (bits - 1)) if signed else 0
    ratio = np.rint(x.astype(np.float32) / scale.astype(np.float32)).astype(np.float64)
    return np.asarray(np.clip(ratio + zero, low, low + (1 << bits) - 1) - zero)


def _activation(case: Case, x: Array, scale: Array | None, zero: Array | None) -> Array:
    """x as the product sees it, rounded where the case says so."""
    if case["activation"] == "none":
        return exact(x)
    if case["activation"] == "dynamic" and scale is None:
        low, high = np.float32(min(x.min(initial=0), 0)), np.float32(max(x.max(initial=0), 0))
        own = np.asarray((high - low) / np.float32(255) if high != low else 1, np.float32)
        nothing = np.clip(np.rint(-low / own), 0, 255).astype(np.float64)
        return np.asarray(_steps(x, own, nothing, 8, False) * exact(own))
    if scale is None:
        raise FuseError("a product of a static activation needs x_scale")
    point = np.zeros(()) if zero is None else exact(zero).reshape(())
    step = exact(scale).reshape(())
    if x.dtype.kind in "iu":
        return np.asarray((exact(x) - point) * step)
    name = case["x_codes"] or short_dtype(x)
    return np.asarray(_steps(x, scale.reshape(()), point, BITS[name], name.startswith("i")) * step)


def quantized_matmul(
    case: Case,
    x: Array,
    codes: Array,
    scales: Array,
    zero_points: Array | None,
    bias: Array | None,
    x_scale: Array | None,
    x_zero_point: Array | None,
    code_scale: Array | None = None,
    code_zero_point: Array | None = None,
) -> Array:
    """alpha x (codes - zero points) scales + beta bias; in codes again where there is a code_scale.

    A bias of integers counts steps of both scales.
    """
    if code_scale is not None:
        return _codes_of_codes(
            case, x, codes, scales, zero_points, bias, x_scale, x_zero_point, code_scale, code_zero_point
        )
    left = _activation(case, x, x_scale, x_zero_point)
    if case["trans_x"]:
        left = np.swapaxes(left, -1, -2)
    y = case["alpha"] * np.matmul(left, _weight(case, codes, scales, zero_points, left.shape[-1]))
    if bias is None:
        return np.asarray(y)
    whole = bias.dtype.kind in "iu"
    step = case["alpha"] * exact(x_scale) * exact(scales) if whole and x_scale is not None else case["beta"]
    return np.asarray(y + step * exact(bias))


def _codes_of_codes(
    case: Case,
    x: Array,
    codes: Array,
    scales: Array,
    zero_points: Array | None,
    bias: Array | None,
    x_scale: Array | None,
    x_zero_point: Array | None,
    code_scale: Array,
    code_zero_point: Array | None,
) -> Array:
    """The sum of products of whole steps, in steps of the result. All three scales are one, in f32."""
    if x_scale is None:
        raise FuseError("a product whose result is rounded to codes needs x_scale")
    one = np.ones((), np.float32)
    steps = _activation(case, x, x_scale, x_zero_point) / exact(x_scale).reshape(())
    steps = np.rint(np.swapaxes(steps, -1, -2) if case["trans_x"] else steps)
    whole = steps @ _weight(case, codes, one, zero_points, steps.shape[-1])
    whole = whole if bias is None else whole + exact(bias)
    scale = np.float32(case["alpha"]) * x_scale * scales / code_scale
    ratio = np.rint(whole.astype(np.float32) * scale.astype(np.float32)).astype(np.float64)
    bits, signed = BITS[case["y_codes"]], case["y_codes"].startswith("i")
    low = -(1 << (bits - 1)) if signed else 0
    point = 0 if code_zero_point is None else exact(code_zero_point).reshape(())
    return np.asarray(np.clip(ratio + point, low, low + (1 << bits) - 1))


QUANTIZED: Mapping[str, Definition] = {"quantized_matmul": quantized_matmul}
