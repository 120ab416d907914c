"""Known elements through operators that only move them.

The general way is one: the operator is run on an array of element numbers, and the numbers are looked
up. The shapes that exporters write thousands of times (vectors) go a shorter way.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fuse.ir import Content, Element, Tensor
from fuse.shape_functions.call import (
    MAX_ELEMENTS,
    Call,
    Sketch,
    known_integers,
    normal_axis,
)
from fuse.shape_functions.content_arithmetic import dims_of_elements, element_count
from fuse.types import FLOATS, INTEGERS


def _ints(dims: Sketch) -> tuple[int, ...]:
    """Dims that are known to be numbers."""
    return tuple(dim for dim in dims if isinstance(dim, int))


def places(call: Call, i: int) -> np.ndarray | None:
    """The element numbers of an operand in its own shape; None where its elements are unknown."""
    dims = dims_of_elements(call, i)
    if dims is None:
        return None
    count = element_count(dims)
    return None if count is None else np.arange(count).reshape(_ints(dims))


def indices(call: Call, i: int) -> np.ndarray | None:
    """A wholly known integer operand as an array."""
    dims, content = dims_of_elements(call, i), call.content(i)
    values = None if content is None else known_integers(content)
    return None if dims is None or values is None else np.array(values, np.int64).reshape(_ints(dims))


def looked_up(content: Content, found: np.ndarray) -> Content | None:
    return tuple([content[place] for place in found.ravel().tolist()]) if found.size <= MAX_ELEMENTS else None


def moved(call: Call, move: Callable[[np.ndarray], np.ndarray]) -> Content | None:
    """The elements of the first operand after a move of its array."""
    numbers, content = places(call, 0), call.content(0)
    if numbers is None or content is None:
        return None
    try:
        return looked_up(content, move(numbers))
    except (ValueError, IndexError):
        return None


def gather(call: Call, dims: Sketch) -> Content | None:
    content, chosen = call.content(0), call.content(1)
    if content is None or chosen is None:
        return None
    own = call.dims(0)
    if own is None or len(own) != 1:
        at = indices(call, 1)
        axis = call.integer("axis", 0)
        return None if at is None else moved(call, lambda x: np.take(x, at, axis))
    count = len(content)
    found: list[Element] = []
    for index in chosen:
        if isinstance(index, int) and -count <= index < count:
            found.append(content[index])
        elif index is None:
            found.append(None)
        else:
            return None
    return tuple(found) if len(found) <= MAX_ELEMENTS else None


def gather_elements(call: Call, dims: Sketch) -> Content | None:
    if call.content(0) is None:
        return None
    at, axis = indices(call, 1), call.integer("axis", 0)
    return None if at is None else moved(call, lambda x: np.take_along_axis(x, at, axis))


def gather_nd(call: Call, dims: Sketch) -> Content | None:
    if call.content(0) is None:
        return None
    at = indices(call, 1)
    if at is None or at.ndim == 0 or call.integer("batch_dims", 0):
        return None
    return moved(call, lambda x: x[tuple(np.moveaxis(at, -1, 0))])


def transpose(call: Call, dims: Sketch) -> Content | None:
    content, own = call.content(0), call.dims(0)
    if content is None or own is None or len(own) < 2:
        return content
    perm = call.integers("perm")
    return moved(call, lambda x: np.transpose(x, perm))


def expand(call: Call, dims: Sketch) -> Content | None:
    content = call.content(0)
    count = element_count(dims)
    if content is None or count is None:
        return None
    if len(content) == 1 and call.dtype(0) not in FLOATS:
        return content * count
    if len(content) == count:
        return content
    if call.dtype(0) in FLOATS:
        return None
    return moved(call, lambda x: np.broadcast_to(x, _ints(dims)))


def concat(call: Call, dims: Sketch) -> Content | None:
    """Vectors joined; a vector of known length and unknown elements leaves its places unknown."""
    contents, inputs = call.contents, call.inputs
    if call.dtype(0) in FLOATS:
        return call.content(0) if len(inputs) == 1 else None
    if len(dims) != 1:
        return _concat_arrays(call, dims)
    found: list[Element] = []
    for i, path in enumerate(inputs):
        content = contents.get(path)
        if content is None:
            count = call.count(i)
            if count is None or count > MAX_ELEMENTS:
                return None
            content = (None,) * count
        found.extend(content)
        if len(found) > MAX_ELEMENTS:
            return None
    return tuple(found) if any(x is not None for x in found) else None


def _concat_arrays(call: Call, dims: Sketch) -> Content | None:
    arrays: list[np.ndarray] = []
    content: Content = ()
    start = 0
    for i in range(len(call.inputs)):
        numbers, elements = places(call, i), call.content(i)
        if numbers is None or elements is None or start + len(elements) > MAX_ELEMENTS:
            return None
        arrays.append(numbers + start)
        content, start = content + elements, start + len(elements)
    try:
        return looked_up(content, np.concatenate(arrays, call.integer("axis", 1)))
    except ValueError:
        return None


def slice_bounds(call: Call) -> tuple[tuple[int, ...], ...] | None:
    """starts, ends, axes, steps where all are known."""
    starts, ends = call.vector("starts", 1), call.vector("ends", 2)
    if starts is None or ends is None:
        return None
    axes: tuple[int, ...] | None = tuple(range(len(starts)))
    steps: tuple[int, ...] | None = (1,) * len(starts)
    if "axes" in call.attrs or call.given(3):
        axes = call.vector("axes", 3)
    if call.given(4):
        steps = call.vector("steps", 4)
    if axes is None or steps is None or not len(starts) == len(ends) == len(axes) == len(steps):
        return None
    return starts, ends, axes, steps


def slice_elements(call: Call, dims: Sketch) -> Content | None:
    content = call.content(0)
    if content is None:
        return None
    bounds, own = slice_bounds(call), call.dims(0)
    if bounds is None or own is None or 0 in bounds[3]:
        return None
    index = [slice(None)] * len(own)
    for start, end, axis, step in zip(*bounds, strict=True):
        # An end before the front of a backward slice means "down to the first".
        last = None if step < 0 and end < -len(content) else end
        index[normal_axis(axis, len(own))] = slice(start, last, step)
    if len(own) == 1:
        return content[index[0]]
    return moved(call, lambda x: x[tuple(index)])


def split(call: Call, dims: Sketch) -> Content | None:
    """The part of a vector that output `call.output` is."""
    content, own = call.content(0), call.dims(0)
    if content is None or own is None or len(own) != 1 or not isinstance(dims[0], int):
        return None
    sizes = call.vector("split", 1)
    if sizes is None:
        sizes = (-(-len(content) // len(call.op.outputs)),) * len(call.op.outputs)
    start = sum(sizes[: call.output])
    return content[start : start + dims[0]]


def tile(call: Call, dims: Sketch) -> Content | None:
    repeats = call.content(1)
    known = None if repeats is None else known_integers(repeats)
    count = element_count(dims)
    if known is None or count is None or (call.dtype(0) in FLOATS and count != 1):
        return None
    return moved(call, lambda x: np.tile(x, known))


def fill_value(call: Call) -> tuple[str, Element]:
    """dtype and element of ConstantOfShape: zero of f32 where no value is given."""
    value = call.attrs.get("value")
    if value is None:
        return "f32", 0.0
    if not isinstance(value, Tensor):
        return "", None
    if math.prod(value.dims) != 1 or not (
        value.dtype in INTEGERS or value.dtype in FLOATS or value.dtype == "bool"
    ):
        return value.dtype, None
    array = value.array()
    return value.dtype, array.ravel()[0].item() if array.dtype.kind in "iufb" else None


def filled(call: Call, dims: Sketch) -> Content | None:
    count = element_count(dims)
    if count is None:
        return None
    dtype, value = fill_value(call)
    if value is None or (dtype in FLOATS and count != 1):
        return None
    return (value,) * count


def counting(call: Call, dims: Sketch) -> Content | None:
    """Range of known small integers."""
    count = element_count(dims)
    start, step = call.content(0), call.content(2)
    if count is None or start is None or step is None or call.dtype(0) not in INTEGERS:
        return None
    first, by = start[0] if start else None, step[0] if step else None
    if not isinstance(first, int) or not isinstance(by, int):
        return None
    return tuple(range(first, first + count * by, by)) if by else None


def scatter_elements(call: Call, dims: Sketch) -> Content | None:
    return _scattered(call, lambda x, at, new: np.put_along_axis(x, at, new, call.integer("axis", 0)))


def scatter_nd(call: Call, dims: Sketch) -> Content | None:
    def put(x: np.ndarray, at: np.ndarray, new: np.ndarray) -> None:
        x[tuple(np.moveaxis(at, -1, 0))] = new

    return _scattered(call, put)


def _scattered(call: Call, put: Callable[[np.ndarray, np.ndarray, np.ndarray], None]) -> Content | None:
    """The first operand with some places taken from the third (no reduction)."""
    content, updates = call.content(0), call.content(2)
    at = indices(call, 1)
    numbers, new = places(call, 0), places(call, 2)
    if content is None or updates is None or at is None or at.ndim == 0 or numbers is None or new is None:
        return None
    if call.text("reduction", "none") != "none":
        return None
    try:
        put(numbers, at, new + len(content))
    except (ValueError, IndexError):
        return None
    return looked_up(content + updates, numbers)


def one_hot(call: Call, dims: Sketch) -> Content | None:
    """A vector that is `values[1]` at the index and `values[0]` elsewhere."""
    at, values, count = call.content(0), call.content(2), element_count(dims)
    if at is None or values is None or count is None or len(at) != 1 or len(values) != 2:
        return None
    index = at[0]
    if not isinstance(index, int) or not -count <= index < count or call.dtype(2) in FLOATS:
        return None
    return tuple([values[1] if place == index % count else values[0] for place in range(count)])
