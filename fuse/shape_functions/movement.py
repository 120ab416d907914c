"""Operators that move elements: views, joins, parts, gathers, pads."""

from __future__ import annotations

from collections.abc import Sequence

from fuse.shape_functions import content_arithmetic as arithmetic
from fuse.shape_functions import content_movement as content
from fuse.shape_functions.call import (
    Call,
    Row,
    Sketch,
    Unclear,
    as_dim,
    blank,
    difference,
    element_size,
    join,
    kept,
    normal_axes,
    normal_axis,
    plus,
    quotient,
    same_size,
    with_axis,
)
from fuse.types import Dim, Dims, Expr, add, as_size, equal, mul, product, sub, within

#: An end of this size or more means "to the end".
FAR = 2**31 - 1


def transpose(call: Call) -> Sequence[Sketch | None]:
    dims = call.need(0)
    perm = call.integers("perm")
    if perm is None:
        return (dims[::-1],)
    if sorted(perm) != list(range(len(dims))):
        raise Unclear
    return (tuple([dims[axis] for axis in perm]),)


def reshape(call: Call) -> Sequence[Sketch | None]:
    """0 copies (unless allowzero); -1, or the one unknown size, is what the others leave."""
    dims = call.dims(0)
    target = call.partial("shape", 1)
    if target is None:
        rank = call.count(1)
        if rank is None:
            raise Unclear
        return (dims if dims is not None and rank == 1 == len(dims) else blank(rank),)
    copies = not call.attrs.get("allowzero", 0)
    sizes: list[Dim | None] = []
    for axis, element in enumerate(target):
        if element == 0 and copies:
            if dims is not None and axis >= len(dims):
                return (blank(len(target)),)
            sizes.append(None if dims is None else dims[axis])
        else:
            sizes.append(element_size(element))
    if dims is None:
        return (tuple([None if size == -1 else size for size in sizes]),)
    return (fitted(dims, sizes),)


def fitted(dims: Dims, sizes: list[Dim | None]) -> Sketch:
    """The target sizes with the open one (-1 or unknown) worked out from the number of elements."""
    open_axes = [axis for axis, size in enumerate(sizes) if size is None or size == -1]
    left = list(dims)
    rest: list[Dim] = []
    for size in sizes:
        if size is None or size == -1:
            continue
        same = size if size in left else _alike(size, left)
        if same is None:
            rest.append(size)
        else:
            left.remove(same)
    if not open_axes:
        total, wanted = product(left), product(rest)
        if isinstance(total, int) and isinstance(wanted, int) and total != wanted and 0 not in dims:
            return blank(len(sizes))
        return tuple(sizes)
    if len(open_axes) > 1:
        return tuple([None if size == -1 else size for size in sizes])
    wanted = product(rest)
    found = quotient(product(left), wanted)
    if (
        found is not None
        and isinstance(found, int)
        and isinstance(wanted, int)
        and found * wanted != product(left)
    ):
        return blank(len(sizes))
    sizes[open_axes[0]] = found
    return tuple(sizes)


def _alike(size: Dim, left: list[Dim]) -> Dim | None:
    """The size that is surely equal, though it is written in another way."""
    if isinstance(size, int):
        return None
    return next((dim for dim in left if isinstance(dim, Expr) and equal(dim, size)), None)


def unsqueeze(call: Call) -> Sequence[Sketch | None]:
    dims = call.dims(0)
    axes = call.vector("axes", 1)
    if axes is None or dims is None:
        count = call.count(1) if axes is None else len(axes)
        if count is None or dims is None:
            raise Unclear
        return (blank(len(dims) + count),)
    if len(axes) == 1:
        axis = normal_axis(axes[0], len(dims) + 1)
        return ((*dims[:axis], 1, *dims[axis:]),)
    rank = len(dims) + len(axes)
    ones = set(normal_axes(axes, rank))
    rest = iter(dims)
    return (tuple([1 if axis in ones else next(rest) for axis in range(rank)]),)


def squeeze(call: Call) -> Sequence[Sketch | None]:
    """Without axes every 1 goes; then a size that may be 1 leaves the rank unknown."""
    dims = call.need(0)
    axes = call.vector("axes", 1)
    if axes is None:
        if call.given(1):
            count = call.count(1)
            if count is None or count > len(dims):
                raise Unclear
            return (blank(len(dims) - count),)
        if any(isinstance(dim, Expr) for dim in dims):
            raise Unclear
        return (tuple([dim for dim in dims if dim != 1]),)
    gone = set(normal_axes(axes, len(dims)))
    if any(isinstance(dims[axis], int) and dims[axis] != 1 for axis in gone):
        raise Unclear
    return (tuple([dim for axis, dim in enumerate(dims) if axis not in gone]),)


def flatten(call: Call) -> Sequence[Sketch | None]:
    dims = call.need(0)
    axis = call.integer("axis", 1)
    if not -len(dims) <= axis <= len(dims):
        raise Unclear
    axis += len(dims) if axis < 0 else 0
    return ((product(dims[:axis]), product(dims[axis:])),)


def concat(call: Call) -> Sequence[Sketch | None]:
    """A sum on the axis; elsewhere the operands agree, so the best known size stands."""
    known = [dims for dims in map(call.dims, range(len(call.inputs))) if dims is not None]
    if not known or any(len(dims) != len(known[0]) for dims in known):
        raise Unclear
    axis = normal_axis(call.integer("axis", 1 if call.opset < 4 else -(2**40)), len(known[0]))
    whole: Sketch = known[0]
    total: Dim | None = known[0][axis]
    for dims in known[1:]:
        total = plus(total, dims[axis])
        if dims[:axis] != whole[:axis] or dims[axis + 1 :] != whole[axis + 1 :]:
            whole = tuple(map(same_size, whole, dims))
    return (with_axis(whole, axis, total if len(known) == len(call.inputs) else None),)


def split(call: Call) -> Sequence[Sketch | None]:
    """By sizes; else evenly, the last part smaller where the size does not divide."""
    dims = call.need(0)
    axis = normal_axis(call.integer("axis", 0), len(dims))
    parts = len(call.op.outputs)
    sizes = call.partial("split", 1)
    if sizes is not None:
        if len(sizes) != parts:
            raise Unclear
        return [with_axis(dims, axis, element_size(size)) for size in sizes]
    if call.given(1):
        return [with_axis(dims, axis, None)] * parts
    size = dims[axis]
    if isinstance(size, int):
        each = -(-size // parts)
        return [with_axis(dims, axis, min(each, max(size - each * i, 0))) for i in range(parts)]
    found = quotient(size, parts)
    even = found is not None and mul(found, parts) == size
    return [with_axis(dims, axis, found if even else None)] * parts


def slice_dims(call: Call) -> Sequence[Sketch | None]:
    dims = call.need(0)
    starts, ends = call.partial("starts", 1), call.partial("ends", 2)
    axes: tuple[int, ...] | None = None
    if "axes" in call.attrs or call.given(3):
        axes = call.vector("axes", 3)
        if axes is None:
            return (blank(len(dims)),)
    count = call.count(1) if starts is None else len(starts)
    if axes is None:
        if count is None:
            return (blank(len(dims)),)
        axes = tuple(range(count))
    axes = normal_axes(axes, len(dims))
    steps = call.content(4) if call.given(4) else (1,) * len(axes)
    result: Sketch = dims
    for i, axis in enumerate(axes):
        size = None
        if starts is not None and ends is not None and steps is not None:
            if not len(starts) == len(ends) == len(steps) == len(axes):
                raise Unclear
            size = cut(dims[axis], as_dim(starts[i]), as_dim(ends[i]), as_dim(steps[i]))
        result = with_axis(result, axis, size)
    return (result,)


def cut(size: Dim, start: Dim | None, end: Dim | None, step: Dim | None) -> Dim | None:
    """The length of `[start:end:step]` of an axis."""
    if start is None or end is None or not isinstance(step, int) or step == 0:
        return None
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        if step < 0 and end < -size:
            return len(range(*slice(start, None, step).indices(size)))
        return len(range(*slice(start, end, step).indices(size)))
    if step == -1 and isinstance(start, int) and isinstance(end, int) and start in (-1, FAR) and end < -FAR:
        return size
    if step < 0:
        return None
    length = size if start == 0 and end == size else _between(size, start, end)
    if step == 1 or length is None:
        return length
    return quotient(add(length, step - 1), step)


def _between(size: Dim, start: Dim, end: Dim) -> Dim | None:
    """How many elements of an axis lie from start up to end."""
    front = isinstance(start, int) and start >= 0
    if front and isinstance(end, int) and end < 0:
        return difference(size, sub(start, end))
    low, high = _placed(size, start), _placed(size, end)
    if low is None or high is None:
        return None
    if low == 0:
        return high
    if isinstance(start, int) and isinstance(end, int) and front == (end >= 0):
        # Bounds counted from the same side keep their order within the axis.
        return plus(high, mul(-1, low)) if end > start else 0
    # Both lie within the axis, so past the whole axis the start is never.
    return plus(size, mul(-1, low)) if high == size else difference(high, low)


def _placed(size: Dim, bound: Dim) -> Dim | None:
    """A slice's start or end counted from the front and kept within the axis."""
    return size if isinstance(bound, int) and bound >= FAR else kept(within(bound, size))


def gather(call: Call) -> Sequence[Sketch | None]:
    dims, at = call.need(0), call.dims(1)
    axis = normal_axis(call.integer("axis", 0), len(dims))
    if at is None:
        raise Unclear
    return (dims[:axis] + at + dims[axis + 1 :],)


def gather_elements(call: Call) -> Sequence[Sketch | None]:
    return (call.dims(1),)


def gather_nd(call: Call) -> Sequence[Sketch | None]:
    dims, at = call.need(0), call.need(1)
    if not at or not isinstance(at[-1], int):
        raise Unclear
    depth = call.integer("batch_dims", 0) + at[-1]
    if not 0 <= depth <= len(dims):
        raise Unclear
    return (at[:-1] + dims[depth:],)


def first(call: Call) -> Sequence[Sketch | None]:
    return (call.dims(0),)


def expand(call: Call) -> Sequence[Sketch | None]:
    dims, target = call.need(0), call.content(1)
    if target is None:
        rank = call.count(1)
        if rank is None:
            raise Unclear
        lead = blank(max(rank - len(dims), 0))
        # An axis that is not 1 keeps its size; 1 may become anything.
        return (lead + tuple([dim if isinstance(dim, int) and dim > 1 else None for dim in dims]),)
    sizes: Sketch = tuple([element_size(element) for element in target])
    return (tuple([None if d is None else d for d in _expanded(dims, sizes)]),)


def _expanded(dims: Dims, sizes: Sketch) -> Sketch:
    lead = len(sizes) - len(dims)
    if lead < 0:
        sizes, lead = (1,) * -lead + sizes, 0
    result: list[Dim | None] = list(sizes[:lead])
    for dim, size in zip(dims, sizes[lead:], strict=True):
        if size is None:
            result.append(dim if isinstance(dim, int) and dim > 1 else None)
        else:
            result.append(join(dim, size))
    return tuple(result)


def tile(call: Call) -> Sequence[Sketch | None]:
    dims, repeats = call.need(0), call.content(1)
    if repeats is None:
        return (blank(len(dims)),)
    if len(repeats) != len(dims):
        raise Unclear
    counts = map(as_dim, repeats)
    return (tuple([None if n is None else mul(dim, n) for dim, n in zip(dims, counts, strict=True)]),)


def pad(call: Call) -> Sequence[Sketch | None]:
    dims = call.need(0)
    pads = call.partial("paddings" if "paddings" in call.attrs else "pads", 1)
    if pads is None:
        return (blank(len(dims)),)
    axes: tuple[int, ...] = tuple(range(len(dims)))
    if call.given(3):
        given = call.vector("axes", 3)
        if given is None:
            return (blank(len(dims)),)
        axes = normal_axes(given, len(dims))
    if len(pads) != 2 * len(axes):
        raise Unclear
    result: Sketch = dims
    for i, axis in enumerate(axes):
        size = plus(plus(dims[axis], as_dim(pads[i])), as_dim(pads[i + len(axes)]))
        result = with_axis(result, axis, None if size is None else as_size(size))
    return (result,)


def center_crop_pad(call: Call) -> Sequence[Sketch | None]:
    dims, sizes = call.need(0), call.content(1)
    axes = normal_axes(call.integers("axes") or range(len(dims)), len(dims))
    result: Sketch = dims
    for i, axis in enumerate(axes):
        size = as_dim(sizes[i]) if sizes is not None and len(sizes) == len(axes) else None
        result = with_axis(result, axis, size)
    return (result,)


ROWS: dict[str, Row] = {
    "Transpose": Row((0,), transpose, content.transpose),
    "Reshape": Row((0,), reshape, arithmetic.keep),
    "Unsqueeze": Row((0,), unsqueeze, arithmetic.keep),
    "Squeeze": Row((0,), squeeze, arithmetic.keep),
    "Flatten": Row((0,), flatten, arithmetic.keep),
    "Concat": Row((0,), concat, content.concat),
    "Split": Row((0,), split, content.split),
    "Slice": Row((0,), slice_dims, content.slice_elements),
    "Gather": Row((0,), gather, content.gather),
    "GatherElements": Row((0,), gather_elements, content.gather_elements),
    "GatherND": Row((0,), gather_nd, content.gather_nd),
    "Scatter": Row((0,), first, content.scatter_elements),
    "ScatterElements": Row((0,), first, content.scatter_elements),
    "ScatterND": Row((0,), first, content.scatter_nd),
    "TensorScatter": Row((0,), first),
    "Expand": Row((0,), expand, content.expand),
    "Tile": Row((0,), tile, content.tile),
    "Pad": Row((0,), pad),
    "Trilu": Row((0,), first),
    "ReverseSequence": Row((0,), first),
    "CenterCropPad": Row((0,), center_crop_pad),
}
