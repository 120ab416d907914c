"""Products whose weight is stored in codes of few bits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fuse.types import BITS, FuseError
from reference.definitions.case import Array, Case, Definition, exact
from reference.ops.call import short_dtype


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
) -> Array:
    """alpha x (codes - zero points) scales + beta bias."""
    left = _activation(case, x, x_scale, x_zero_point)
    if case["trans_x"]:
        left = np.swapaxes(left, -1, -2)
    y = case["alpha"] * np.matmul(left, _weight(case, codes, scales, zero_points, left.shape[-1]))
    return np.asarray(y if bias is None else y + case["beta"] * exact(bias))


QUANTIZED: Mapping[str, Definition] = {"quantized_matmul": quantized_matmul}
