"""Operators that move elements without computing with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fuse.types import FuseError
from reference.ops.call import Array, Call, Implementation, from_front, ints


def reshape(call: Call, x: Array, shape: Array | None = None) -> Array:
    """0 keeps the axis of x (unless allowzero), -1 is what is left."""
    want = list(ints(call.get("shape") if shape is None else shape))
    if not call.get("allowzero", 0):
        want = [x.shape[axis] if dim == 0 else dim for axis, dim in enumerate(want)]
    return x.reshape(want)


def transpose(call: Call, x: Array) -> Array:
    perm = ints(call.get("perm"))
    return x.transpose(perm if perm else None)


def axes_of(call: Call, axes: Array | None) -> tuple[int, ...]:
    """The axes, an attribute in older versions and an operand in newer."""
    return ints(call.get("axes") if axes is None else axes)


def squeeze(call: Call, x: Array, axes: Array | None = None) -> Array:
    which = axes_of(call, axes)
    return np.squeeze(x, which if which else None)


def unsqueeze(call: Call, x: Array, axes: Array | None = None) -> Array:
    return np.expand_dims(x, axes_of(call, axes))


def flatten(call: Call, x: Array) -> Array:
    axis = int(call.get("axis", 1))
    lead = int(np.prod(x.shape[:axis], dtype=np.int64)) if axis else 1
    return x.reshape(lead, -1) if x.size else x.reshape(lead, int(np.prod(x.shape[axis:], dtype=np.int64)))


def concat(call: Call, *operands: Array) -> Array:
    return np.concatenate(operands, axis=int(call.get("axis", 1)))


def split(call: Call, x: Array, sizes: Array | None = None) -> tuple[Array, ...]:
    """Sizes are an attribute, an operand, or even parts (the last one smaller)."""
    axis = int(call.get("axis", 0))
    parts = list(ints(call.get("split") if sizes is None else sizes))
    if not parts:
        count = int(call.get("num_outputs", len(call.outputs)))
        each = -(-x.shape[axis] // count)
        parts = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    return tuple(np.split(x, np.cumsum(parts)[:-1], axis=axis))


def slice_(
    call: Call,
    x: Array,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    first = ints(call.get("starts") if starts is None else starts)
    last = ints(call.get("ends") if ends is None else ends)
    which = axes_of(call, axes) or tuple(range(len(first)))
    stride = ints(call.get("steps") if steps is None else steps) or (1,) * len(first)
    index: list[Any] = [slice(None)] * x.ndim
    for axis, start, end, step in zip(which, first, last, stride, strict=True):
        size = x.shape[axis]
        if step < 0 and end < -size:
            index[axis] = slice(start, None, step)
        else:
            index[axis] = slice(start, end, step)
    return np.asarray(x[tuple(index)])


def _wrapped(indices: Array, size: int, op: str) -> Array:
    found = np.where(indices < 0, indices + size, indices)
    if found.size and (found.min() < 0 or found.max() >= size):
        outside = indices[(found < 0) | (found >= size)]
        raise FuseError(f"{op} reads row {int(outside.flat[0])} of {size}")
    return found


def gather(call: Call, data: Array, indices: Array) -> Array:
    axis = int(call.get("axis", 0))
    return np.asarray(np.take(data, _wrapped(indices, data.shape[axis], "Gather"), axis=axis))


def gather_elements(call: Call, data: Array, indices: Array) -> Array:
    axis = from_front(int(call.get("axis", 0)), data.ndim)
    index = _wrapped(indices, data.shape[axis], "GatherElements")
    grid: list[Any] = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    grid[axis] = index
    return np.asarray(data[tuple(grid)])


def _nd_index(data: Array, indices: Array, batch: int, op: str) -> tuple[Any, ...]:
    grid: list[Any] = [
        np.arange(data.shape[axis]).reshape([-1 if i == axis else 1 for i in range(indices.ndim - 1)])
        for axis in range(batch)
    ]
    for place in range(indices.shape[-1]):
        grid.append(_wrapped(indices[..., place], data.shape[batch + place], op))
    return tuple(grid)


def gather_nd(call: Call, data: Array, indices: Array) -> Array:
    return np.asarray(data[_nd_index(data, indices, int(call.get("batch_dims", 0)), "GatherND")])


_UPDATES: Mapping[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def scatter_nd(call: Call, data: Array, indices: Array, updates: Array) -> Array:
    result = data.copy()
    index = _nd_index(data, indices, 0, "ScatterND")
    how = call.get("reduction", "none")
    if how == "none":
        result[index] = updates
    else:
        _UPDATES[how].at(result, index, updates)
    return result


def scatter_elements(call: Call, data: Array, indices: Array, updates: Array) -> Array:
    axis = from_front(int(call.get("axis", 0)), data.ndim)
    grid: list[Any] = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    grid[axis] = _wrapped(indices, data.shape[axis], "ScatterElements")
    result = data.copy()
    how = call.get("reduction", "none")
    if how == "none":
        result[tuple(grid)] = updates
    else:
        _UPDATES[how].at(result, tuple(np.broadcast_arrays(*grid)), updates)
    return result


def expand(call: Call, x: Array, shape: Array) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, ints(shape)))


def tile(call: Call, x: Array, repeats: Array) -> Array:
    return np.tile(x, ints(repeats))


def shape(call: Call, x: Array) -> Array:
    dims = np.asarray(x.shape, np.int64)
    end = call.get("end")
    return dims[int(call.get("start", 0)) : None if end is None else int(end)]


def pad(
    call: Call, x: Array, pads: Array | None = None, value: Array | None = None, axes: Array | None = None
) -> Array:
    """Negative pads cut; modes constant, reflect, edge and wrap."""
    amounts = ints(call.get("pads") if pads is None else pads)
    which = [from_front(axis, x.ndim) for axis in ints(axes)] or list(range(x.ndim))
    before = [0] * x.ndim
    after = [0] * x.ndim
    for place, axis in enumerate(which):
        before[axis], after[axis] = amounts[place], amounts[place + len(which)]
    cut = tuple(slice(max(0, -b), n - max(0, -a)) for b, a, n in zip(before, after, x.shape, strict=True))
    widths = [(max(0, b), max(0, a)) for b, a in zip(before, after, strict=True)]
    mode = call.get("mode", "constant")
    if mode == "constant":
        fill = call.get("value", 0.0) if value is None or not value.size else value.reshape(-1)[0]
        if x.dtype.kind == "O":
            fill = fill or ""
        return np.pad(x[cut], widths, constant_values=fill)
    return np.pad(x[cut], widths, mode=mode)


def range_(call: Call, start: Array, limit: Array, delta: Array) -> Array:
    first, last, step = (one.reshape(-1)[0] for one in (start, limit, delta))
    if start.dtype.kind in "iu":
        return np.arange(first, last, step, dtype=start.dtype)
    # How many there are is counted in f64, as runtimes do: in a narrower type the last may be lost.
    count = max(math.ceil((float(last) - float(first)) / float(step)), 0)
    return np.asarray(first + np.arange(count).astype(start.dtype) * step, start.dtype)


def trilu(call: Call, x: Array, k: Array | None = None) -> Array:
    diagonal = 0 if k is None else int(k.reshape(-1)[0])
    return np.triu(x, diagonal) if call.get("upper", 1) else np.tril(x, diagonal)


def one_hot(call: Call, indices: Array, depth: Array, values: Array) -> Array:
    axis, size = int(call.get("axis", -1)), int(depth.reshape(-1)[0])
    index = indices.astype(np.int64)
    index = np.where(index < 0, index + size, index)
    along = from_front(axis, indices.ndim + 1)
    hot = np.expand_dims(index, along) == np.arange(size).reshape(
        [-1 if i == along else 1 for i in range(indices.ndim + 1)]
    )
    return np.asarray(np.where(hot, values[1], values[0]), values.dtype)


def depth_to_space(call: Call, x: Array) -> Array:
    n, c, h, w = x.shape
    b = int(call.attrs["blocksize"])
    if call.get("mode", "DCR") == "DCR":
        return (
            x.reshape(n, b, b, c // b**2, h, w)
            .transpose(0, 3, 4, 1, 5, 2)
            .reshape(n, c // b**2, h * b, w * b)
        )
    return x.reshape(n, c // b**2, b, b, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // b**2, h * b, w * b)


def dropout(call: Call, x: Array, *_: Array | None) -> tuple[Array, Array]:
    """The operator outside training: x, and a mask of all true."""
    return x, np.ones(x.shape, np.bool_)


# An optional is held as what it holds, or None.
OPTIONAL: Mapping[str, Implementation] = {
    "Optional": lambda call, held=None: held, "OptionalGetElement": lambda call, held: held,
    "OptionalHasElement": lambda call, held=None: np.asarray(held is not None),
}  # fmt: skip

SHAPING: Mapping[str, Implementation] = {
    **OPTIONAL,
    "Reshape": reshape, "Transpose": transpose, "Squeeze": squeeze, "Unsqueeze": unsqueeze,
    "Flatten": flatten,
    "Concat": concat, "Split": split, "Slice": slice_, "Gather": gather, "GatherElements": gather_elements,
    "GatherND": gather_nd, "ScatterND": scatter_nd, "ScatterElements": scatter_elements,
    "Scatter": scatter_elements, "Expand": expand, "Tile": tile, "Shape": shape,
    "Size": lambda call, x: np.asarray(x.size, np.int64), "Pad": pad, "Range": range_, "Trilu": trilu,
    "OneHot": one_hot, "DepthToSpace": depth_to_space, "Dropout": dropout,
    "NonZero": lambda call, x: np.asarray(np.nonzero(np.atleast_1d(x)), np.int64),
}  # fmt: skip
