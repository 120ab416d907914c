"""Convolutions, folded and with what runs on their result."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from fuse.types import BITS
from reference.definitions.activations import activate
from reference.definitions.case import Array, Case, Definition, exact


def _padding(case: Case, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> list[tuple[int, int]]:
    """Zeros before and after each axis of space."""
    axes = len(kernel)
    strides, spread = _strides(case, axes), _dilations(case, axes)
    if case["auto_pad"] in ("NOTSET", ""):
        pads = case["pads"] or (0,) * (2 * axes)
        return [(pads[i], pads[axes + i]) for i in range(axes)]
    if case["auto_pad"] == "VALID":
        return [(0, 0)] * axes
    found = []
    for size, reach, stride, gap in zip(sizes, kernel, strides, spread, strict=True):
        need = max(0, (-(-size // stride) - 1) * stride + (reach - 1) * gap + 1 - size)
        halves = (need // 2, need - need // 2)
        found.append(halves if case["auto_pad"] == "SAME_UPPER" else halves[::-1])
    return found


def _strides(case: Case, axes: int) -> tuple[int, ...]:
    return tuple(case["strides"]) or (1,) * axes


def _dilations(case: Case, axes: int) -> tuple[int, ...]:
    return tuple(case["dilations"]) or (1,) * axes


def convolve(case: Case, x: Array, weight: Array) -> Array:
    """The convolution in f64, the sum over the places of the kernel of x shifted there times the weight."""
    kernel, groups = weight.shape[2:], case["group"]
    strides, spread = _strides(case, len(kernel)), _dilations(case, len(kernel))
    padded = np.pad(exact(x), [(0, 0), (0, 0), *_padding(case, x.shape[2:], kernel)])
    reach = zip(padded.shape[2:], kernel, strides, spread, strict=True)
    space = tuple((size - (k - 1) * gap - 1) // stride + 1 for size, k, stride, gap in reach)
    batch, outputs = x.shape[0], weight.shape[0]
    places = [tuple(place) for place in product(*map(range, kernel))]
    filters = exact(weight).reshape(groups, outputs // groups, weight.shape[1], len(places))
    total = np.zeros((batch, groups, outputs // groups, int(np.prod(space))))
    for number, place in enumerate(places):
        steps = zip(place, strides, spread, space, strict=True)
        where = tuple(
            slice(at * gap, at * gap + (n - 1) * stride + 1, stride) for at, stride, gap, n in steps
        )
        part = padded[(slice(None), slice(None), *where)]
        part = part.reshape(batch, groups, weight.shape[1], total.shape[-1])
        total += np.matmul(filters[..., number], part)
    return total.reshape(batch, outputs, *space)


def _channel(value: Array, rank: int) -> Array:
    return exact(value).reshape(1, -1, *(1,) * (rank - 2))


def conv_affine(
    case: Case,
    x: Array,
    weight: Array,
    bias: Array | None,
    scale: Array | None,
    shift: Array | None,
    mean: Array | None,
    variance: Array | None,
) -> Array:
    """The convolution plus bias, normalized by mean and variance where given, times scale, plus shift."""
    y = convolve(case, x, weight)
    if bias is not None:
        y = y + _channel(bias, x.ndim)
    if mean is not None and variance is not None:
        y = (y - _channel(mean, x.ndim)) / np.sqrt(_channel(variance, x.ndim) + case["eps"])
    if scale is not None:
        y = y * _channel(scale, x.ndim)
    return y if shift is None else np.asarray(y + _channel(shift, x.ndim))


def _rounded(case: Case, y: Array, dtype: np.dtype[Any], scale: Array, zero: Array | None) -> Array:
    """y, stored in its type, in whole steps of scale as far as the codes reach."""
    name = case["codes"]
    low = -(1 << (BITS[name] - 1)) if name.startswith("i") else 0
    point = 0.0 if zero is None else float(zero.reshape(()))
    step = scale.reshape(()).astype(np.float32)
    whole = np.rint(y.astype(dtype).astype(np.float32) / step).astype(np.float64) + point
    return np.asarray((np.clip(whole, low, low + (1 << BITS[name]) - 1) - point) * exact(step))


def conv_act(
    case: Case,
    x: Array,
    weight: Array,
    bias: Array | None,
    scale: Array | None,
    shift: Array | None,
    mean: Array | None,
    variance: Array | None,
    code_scale: Array | None,
    code_zero_point: Array | None,
    residual: Array | None,
) -> Array:
    """The activation of conv_affine (rounded to codes where the case says so) plus a residual."""
    y = conv_affine(case, x, weight, bias, scale, shift, mean, variance)
    if code_scale is not None:
        y = _rounded(case, y, x.dtype, code_scale, code_zero_point)
    if residual is not None:
        y = y + exact(residual)
    if case["act"] == "clip":
        return np.asarray(np.clip(y, case["act_low"], case["act_high"]))
    if case["act"] == "hard_sigmoid":
        return np.asarray(np.clip(case["act_alpha"] * y + case["act_beta"], 0, 1))
    return activate(case["act"], y, float(case["act_alpha"]))


CONVOLUTIONS: Mapping[str, Definition] = {"conv_affine": conv_affine, "conv_act": conv_act}
