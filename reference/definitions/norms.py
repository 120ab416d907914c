"""Norms, alone and behind a sum."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fuse.types import FuseError
from reference.definitions.case import Array, Case, Definition, exact


def norm(x: Array, kind: str, eps: float, weight: Array | None, bias: Array | None, offset: float) -> Array:
    """The rms or layer norm of the last axis in f64, scaled by weight + offset and shifted by bias.

    A weight or bias of rank 2 is one row a head: it lies over the last two axes.
    """
    if kind not in ("rms", "layer"):
        raise FuseError(f"a norm is rms or layer, got {kind!r}")
    y = exact(x)
    if kind == "layer":
        y = y - y.mean(axis=-1, keepdims=True)
    y = y / np.sqrt(np.mean(y**2, axis=-1, keepdims=True) + eps)
    if weight is not None:
        y = y * (exact(weight) + offset)
    return y if bias is None else np.asarray(y + exact(bias))


def _norm_of(case: Case, x: Array, weight: Array | None, bias: Array | None, prefix: str = "") -> Array:
    """The norm that the case's attributes describe; the parts of another norm have a prefix."""
    return norm(x, case[prefix + "norm"], case[prefix + "eps"], weight, bias, case[prefix + "offset"])


def rms_norm(case: Case, x: Array, weight: Array | None) -> Array:
    return norm(x, "rms", case["eps"], weight, None, case["offset"])


def layer_norm(case: Case, x: Array, weight: Array | None, bias: Array | None) -> Array:
    return norm(x, "layer", case["eps"], weight, bias, case["offset"])


def l2_norm(case: Case, x: Array) -> Array:
    """x over the root of the sum of its squares; `eps_at` says how eps keeps the divisor from zero."""
    total, eps = np.sum(exact(x) ** 2, axis=-1, keepdims=True), case["eps"]
    divisors = {
        "none": lambda: np.sqrt(total),
        "inside": lambda: np.sqrt(total + eps),
        "outside": lambda: np.sqrt(total) + eps,
        "clip": lambda: np.maximum(np.sqrt(total), eps),
    }
    if case["eps_at"] not in divisors:
        raise FuseError(f"eps_at is one of {', '.join(divisors)}, got {case['eps_at']!r}")
    return np.asarray(exact(x) / divisors[case["eps_at"]]())


def group_norm(case: Case, x: Array, weight: Array | None, bias: Array | None) -> Array:
    """The norm of each group of channels (the second axis) together with all that lies behind them."""
    groups = exact(x).reshape(x.shape[0], case["groups"], -1)
    apart = groups - groups.mean(axis=-1, keepdims=True)
    y = (apart / np.sqrt(np.mean(apart**2, axis=-1, keepdims=True) + case["eps"])).reshape(x.shape)
    channel = (1, -1, *(1,) * (x.ndim - 2))
    if weight is not None:
        y = y * exact(weight).reshape(channel)
    return y if bias is None else np.asarray(y + exact(bias).reshape(channel))


def add_norm(
    case: Case,
    x: Array,
    residual: Array,
    weight: Array | None,
    bias: Array | None,
    add_bias: Array | None,
) -> tuple[Array, Array]:
    """The norm of x + residual + add_bias, and that sum; rows may lie under other leading axes in both."""
    total = exact(x) + exact(residual)
    if add_bias is not None:
        total = total + exact(add_bias)
    y = _norm_of(case, total, weight, bias)
    if not case["regrouped"]:
        return y, total
    shape, sums = case.sizes(), case.sizes(1)
    return (y if shape is None else y.reshape(shape)), (total if sums is None else total.reshape(sums))


def norm_add_norm(
    case: Case,
    x: Array,
    y: Array,
    inner_weight: Array | None,
    inner_bias: Array | None,
    weight: Array | None,
    bias: Array | None,
) -> tuple[Array, Array]:
    """The norm of x + norm(y), and that sum."""
    total = exact(x) + _norm_of(case, y, inner_weight, inner_bias, "inner_")
    return _norm_of(case, total, weight, bias), total


def normed_heads(case: Case, x: Array, weight: Array | None, bias: Array | None, heads: int) -> Array:
    """The norm of each head's width. x holds its heads in the last axis, or in an axis of their own."""
    if weight is not None:
        width = weight.shape[-1]
    elif not heads or (x.ndim > 1 and x.shape[-2] == heads):
        width = x.shape[-1]
    else:
        width = x.shape[-1] // heads
    split = x.reshape(*x.shape[:-1], x.shape[-1] // width, width) if width != x.shape[-1] else x
    return _norm_of(case, split, weight, bias)


def qk_norm(case: Case, x: Array, weight: Array | None, bias: Array | None) -> Array:
    """The result keeps the heads as an axis where it has one more axis than x, else it is as wide as x."""
    heads = case["heads"]
    y = normed_heads(case, x, weight, bias, heads)
    if case.rank() == y.ndim:
        return y
    return y.reshape((*x.shape[:-1], heads, -1) if case.rank() == x.ndim + 1 else x.shape)


NORMS: Mapping[str, Definition] = {
    "rms_norm": rms_norm, "layer_norm": layer_norm, "l2_norm": l2_norm, "add_norm": add_norm,
    "norm_add_norm": norm_add_norm, "qk_norm": qk_norm, "group_norm": group_norm,
}  # fmt: skip
