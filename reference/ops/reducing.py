"""Operators that reduce or order along axes: sums, means, extremes, softmax, top-k."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference.ops.call import Array, Call, Implementation, from_front, wide
from reference.ops.shaping import axes_of


def _reduce(function: Callable[..., Any]) -> Implementation:
    """Axes are an attribute in older versions and an operand in newer; sums are carried in f32."""

    def run(call: Call, x: Array, axes: Array | None = None) -> Array:
        which = axes_of(call, axes)
        over = tuple(from_front(axis, x.ndim) for axis in which) if which and x.ndim else None
        if not which and call.get("noop_with_empty_axes", 0):
            over = ()  # nothing is summed, but squares and logarithms are taken
        return np.asarray(function(wide(x), axis=over, keepdims=bool(call.get("keepdims", 1))), x.dtype)

    return run


def mean(x: Array, axis: Any, keepdims: bool) -> Array:
    """The sum over the count: NaN of nothing, without numpy's warning."""
    total = np.sum(x, axis=axis, keepdims=keepdims)
    count = x.size if axis is None else math.prod(x.shape[one] for one in axis)
    if x.dtype.kind in "iu":
        return np.asarray(np.trunc(total / max(count, 1)))
    return np.asarray(total / x.dtype.type(count))


def log_sum_exp(x: Array, axis: Any, keepdims: bool) -> Array:
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, x.dtype.type(0))
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return np.asarray(total if keepdims else np.squeeze(total, axis))


def _extreme(function: Any, low: bool) -> Callable[..., Any]:
    def run(x: Array, axis: Any, keepdims: bool) -> Array:
        if x.size:
            return np.asarray(function(x, axis=axis, keepdims=keepdims))
        worst: Any = (-np.inf if low else np.inf) if x.dtype.kind == "f" else not low
        if x.dtype.kind in "iu":
            limits = np.iinfo(x.dtype)
            worst = limits.min if low else limits.max
        return np.asarray(function(x, axis=axis, keepdims=keepdims, initial=worst))

    return run


def softmax_last(x: Array, axis: int = -1) -> Array:
    """Softmax along one axis in x's own type; a row of only -inf gives NaN."""
    top = np.max(x, axis=axis, keepdims=True) if x.size else x
    with np.errstate(invalid="ignore"):
        powers = np.exp(x - top)
        return np.asarray(powers / np.sum(powers, axis=axis, keepdims=True))


def log_softmax_last(x: Array) -> Array:
    top = np.max(x, axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        shifted = x - top
        return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True)))


def hardmax_last(x: Array) -> Array:
    hot = np.zeros(x.shape, x.dtype)
    np.put_along_axis(hot, np.argmax(x, axis=-1, keepdims=True), 1, axis=-1)
    return hot


def _along(function: Callable[[Array], Array]) -> Implementation:
    """Before opset 13 the operand is flattened to two axes at `axis` (default 1), not reduced along it."""

    def run(call: Call, x: Array) -> Array:
        if not x.size:
            return x
        if call.opset < 13:
            axis = from_front(int(call.get("axis", 1)), max(x.ndim, 1))
            rows = int(np.prod(x.shape[:axis], dtype=np.int64))
            return np.asarray(function(wide(x).reshape(rows, -1)).reshape(x.shape), x.dtype)
        axis = int(call.get("axis", -1))
        moved = np.moveaxis(wide(x), axis, -1)
        return np.asarray(np.moveaxis(function(moved), -1, axis), x.dtype)

    return run


def _position(function: Any) -> Implementation:
    def run(call: Call, x: Array) -> Array:
        axis, keep = int(call.get("axis", 0)), bool(call.get("keepdims", 1))
        if call.get("select_last_index", 0):
            found = x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis, keepdims=keep)
        else:
            found = function(x, axis=axis, keepdims=keep)
        return np.asarray(found, np.int64)

    return run


def top_k(call: Call, x: Array, k: Array | None = None) -> tuple[Array, Array]:
    """The k first along an axis, of equal ones the lower index first."""
    axis = int(call.get("axis", -1))
    count = int(call.attrs["k"]) if k is None else int(k.reshape(-1)[0])
    if call.get("largest", 1):
        flipped = np.flip(x, axis)
        order = np.flip(np.argsort(flipped, axis=axis, kind="stable"), axis)
        order = x.shape[axis] - 1 - order
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    picked = np.take(order, np.arange(count), axis=axis)
    return np.take_along_axis(x, picked, axis), picked.astype(np.int64)


def cumulative_sum(call: Call, x: Array, axis: Array) -> Array:
    along = int(axis.reshape(-1)[0])
    y = np.flip(x, along) if call.get("reverse", 0) else x
    total = np.cumsum(wide(y), axis=along, dtype=wide(y).dtype)
    if call.get("exclusive", 0):
        total = total - y
    return np.asarray(np.flip(total, along) if call.get("reverse", 0) else total, x.dtype)


def lp_normalization(call: Call, x: Array) -> Array:
    """x over its norm of order p along an axis; a row of zeros stays zero."""
    axis, order = int(call.get("axis", -1)), int(call.get("p", 2))
    size = np.linalg.norm(wide(x), ord=order, axis=axis, keepdims=True)
    return np.asarray(np.where(size == 0, 0, x / np.where(size == 0, 1, size)), x.dtype)


REDUCING: Mapping[str, Implementation] = {
    "ReduceSum": _reduce(np.sum), "ReduceMean": _reduce(mean), "ReduceProd": _reduce(np.prod),
    "ReduceMax": _reduce(_extreme(np.max, True)), "ReduceMin": _reduce(_extreme(np.min, False)),
    "ReduceSumSquare": _reduce(lambda x, **k: np.sum(x * x, **k)),
    "ReduceL2": _reduce(lambda x, **k: np.sqrt(np.sum(x * x, **k))),
    "ReduceL1": _reduce(lambda x, **k: np.sum(np.abs(x), **k)),
    "ReduceLogSum": _reduce(lambda x, **k: np.log(np.sum(x, **k))), "ReduceLogSumExp": _reduce(log_sum_exp),
    "Softmax": _along(softmax_last), "LogSoftmax": _along(log_softmax_last), "Hardmax": _along(hardmax_last),
    "ArgMax": _position(np.argmax), "ArgMin": _position(np.argmin), "TopK": top_k, "CumSum": cumulative_sum,
    "LpNormalization": lp_normalization,
}  # fmt: skip
