"""Operators that fold axes, sort them or pick from them."""

from __future__ import annotations

from collections.abc import Sequence

from fuse.shape_functions import content_arithmetic as arithmetic
from fuse.shape_functions.call import (
    Call,
    Row,
    Sketch,
    Unclear,
    as_dim,
    blank,
    kinds,
    normal_axes,
    normal_axis,
    with_axis,
)


def reduce(call: Call) -> Sequence[Sketch | None]:
    """Folded axes stay as 1 with keepdims, else go; no axes means all (or none, if the op says so)."""
    dims = call.need(0)
    kept = call.integer("keepdims", 1)
    axes = call.vector("axes", 1)
    if axes is None and call.given(1):
        count = call.count(1)
        if count != 0:
            if kept:
                return (blank(len(dims)),)
            if count is None or count > len(dims):
                raise Unclear
            return (blank(len(dims) - count),)
        axes = ()
    if not axes:
        if call.integer("noop_with_empty_axes", 0):
            return (dims,)
        return ((1,) * len(dims) if kept else (),)
    gone = set(normal_axes(axes, len(dims)))
    if kept:
        return (tuple([1 if axis in gone else dim for axis, dim in enumerate(dims)]),)
    return (tuple([dim for axis, dim in enumerate(dims) if axis not in gone]),)


def arg(call: Call) -> Sequence[Sketch | None]:
    dims = call.need(0)
    axis = normal_axis(call.integer("axis", 0), len(dims))
    return (with_axis(dims, axis, 1) if call.integer("keepdims", 1) else dims[:axis] + dims[axis + 1 :],)


def topk(call: Call) -> Sequence[Sketch | None]:
    dims = call.need(0)
    axis = normal_axis(call.integer("axis", -1), len(dims))
    count = call.partial("k", 1) if "k" not in call.attrs else (call.integer("k", 0),)
    size = as_dim(count[0]) if count is not None and len(count) == 1 else None
    found = with_axis(dims, axis, size)
    return found, found


def nonzero(call: Call) -> Sequence[Sketch | None]:
    rank = len(call.need(0))
    return ((rank or None, None),)


def compress(call: Call) -> Sequence[Sketch | None]:
    if "axis" not in call.attrs:
        return (blank(1),)
    dims = call.need(0)
    return (with_axis(dims, normal_axis(call.integer("axis", 0), len(dims)), None),)


def unique(call: Call) -> Sequence[Sketch | None]:
    return (*compress(call), blank(1), blank(1), blank(1))


def loss(call: Call) -> Sequence[Sketch | None]:
    """One number, or one for each target; the log probabilities keep the dims of the scores."""
    whole = call.text("reduction", "mean") == "none"
    return call.dims(1) if whole else (), call.dims(0)


_REDUCTIONS = kinds("ReduceMean ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare")
_FOLLOWED = kinds("ReduceSum ReduceProd ReduceMax ReduceMin")

ROWS: dict[str, Row] = {
    **{kind: Row((0,), reduce) for kind in _REDUCTIONS},
    **{kind: Row((0,), reduce, arithmetic.reduction) for kind in _FOLLOWED},
    "ArgMax": Row(("i64",), arg),
    "ArgMin": Row(("i64",), arg),
    "TopK": Row((0, "i64"), topk),
    "NonZero": Row(("i64",), nonzero),
    "Compress": Row((0,), compress),
    "Unique": Row((0, "i64"), unique),
    "NegativeLogLikelihoodLoss": Row((0,), loss),
    "SoftmaxCrossEntropyLoss": Row((0,), loss),
}
