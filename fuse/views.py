"""What a layout operator is as a view: a strided access of the value that it reads.

A chain of views can be read in place where each element lies at an offset plus a number of strides
along every axis. Slices, transposes and single rows keep that always; a reshape only where it splits
axes, or joins axes that lie behind one another in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from fuse.ir import Graph, Op
from fuse.operators import Content
from fuse.placement import Axes, Item, Part, Rows, Shape, View
from fuse.types import Dim, Dims, add, divide, mul, sub

#: Operators that copy a part of a value, or all of it in another order.
COPYING = frozenset({"Slice", "Split", "Gather", "GatherND", "Transpose"})
#: Operators that give the same elements other dims; no runtime copies for them.
FREE = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Flatten"})

Views = tuple[View, ...]


def views(graph: Graph, op: Op, value: str) -> Views | None:
    """How a result of a layout operator is read from its first operand; None where the operator is no
    view, or where that is not known before the model runs."""
    read = _VIEWS.get(op.kind)
    inner, outer = graph.dims(op.inputs[0]) if op.inputs else None, graph.dims(value)
    return None if read is None or inner is None or outer is None else read(graph, op, inner, outer, value)


def _shape(graph: Graph, op: Op, inner: Dims, outer: Dims, value: str) -> Views:
    return (Shape(outer),)


def _transpose(graph: Graph, op: Op, inner: Dims, outer: Dims, value: str) -> Views | None:
    order = tuple(op.attrs.get("perm") or range(len(inner))[::-1])
    return (Axes(order),) if sorted(order) == list(range(len(inner))) else None


def _split(graph: Graph, op: Op, inner: Dims, outer: Dims, value: str) -> Views | None:
    axis = _from_end(op.attrs.get("axis", 0), inner)
    if axis is None or len(outer) != len(inner):
        return None
    start: Dim = 0
    for out in op.outputs[: op.outputs.index(value)]:
        before = graph.dims(out) if out else None
        if before is None or len(before) != len(inner):
            return None
        start = add(start, before[axis])
    return (Part(axis, start, add(start, outer[axis]), inner[axis]),)


def _gather(graph: Graph, op: Op, inner: Dims, outer: Dims, value: str) -> Views | None:
    ids = op.inputs[1]
    axis, chosen, content = _from_end(op.attrs.get("axis", 0), inner), graph.dims(ids), graph.content(ids)
    if axis is None:
        return None
    if chosen is not None and len(chosen) <= 1 and content is not None and len(content) == 1:
        at, of = content[0], inner[axis]
        if isinstance(at, int):
            return (Item(axis, add(of, at) if at < 0 else at, of, kept=len(chosen) == 1),)
    return (Rows(ids, chosen),) if axis == -len(inner) and len(inner) > 1 else None


def _item(graph: Graph, op: Op, inner: Dims, outer: Dims, value: str) -> Views | None:
    """One index of the first axis, as exporters write a negative index in brackets."""
    chosen, content = graph.dims(op.inputs[1]), graph.content(op.inputs[1])
    if op.attrs.get("batch_dims", 0) or chosen not in ((1,), (1, 1)) or content is None:
        return None
    at, of = content[0], inner[0]
    if not isinstance(at, int):
        return None
    return (Item(-len(inner), add(of, at) if at < 0 else at, of, kept=len(chosen) == 2),)


def _slice(graph: Graph, op: Op, inner: Dims, outer: Dims, value: str) -> Views | None:
    starts, ends = _parameter(graph, op, "starts", 1), _parameter(graph, op, "ends", 2)
    if not starts or not ends:
        return None
    axes = _parameter(graph, op, "axes", 3, tuple(range(len(starts))))
    steps = _parameter(graph, op, "steps", 4, (1,) * len(starts))
    if axes is None or steps is None or not len(starts) == len(ends) == len(axes) == len(steps):
        return None
    found: list[View] = []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if start is None or isinstance(start, float) or not isinstance(axis, int):
            return None
        if not isinstance(step, int) or step < 1:
            return None
        at = _from_end(axis, inner)
        if at is None or len(outer) != len(inner):
            return None
        of = inner[at]
        if isinstance(start, int) and isinstance(end, int) and isinstance(of, int):
            first, last, _ = slice(start, end, step).indices(of)
            found.append(Part(at, first, max(first, last), of, step))
        elif step == 1:
            begin = add(of, start) if isinstance(start, int) and start < 0 else start
            found.append(Part(at, begin, add(begin, outer[at]), of))
        else:
            return None
    return tuple(found)


def _parameter(graph: Graph, op: Op, name: str, at: int, absent: Content | None = None) -> Content | None:
    """A parameter that is an attribute or an operand; None where it is known only at run time."""
    if name in op.attrs:
        return tuple(op.attrs[name])
    value = op.inputs[at] if at < len(op.inputs) else ""
    return graph.content(value) if value else absent


def _from_end(axis: int, dims: Dims) -> int | None:
    """The axis counted from the end; None where there is none."""
    found = axis if axis < 0 else axis - len(dims)
    return found if -len(dims) <= found < 0 else None


_VIEWS: Mapping[str, Callable[[Graph, Op, Dims, Dims, str], Views | None]] = {
    "Transpose": _transpose,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherND": _item,
    **dict.fromkeys(FREE, _shape),
}


# ---- strides -------------------------------------------------------------------------------------
class Axis(NamedTuple):
    """An axis as memory has it. stride: elements from one place to the next; None: irregular."""

    size: Dim
    stride: Dim | None


def strided(dims: Dims, chain: Iterable[View]) -> bool:
    """Whether a packed tensor of these dims, seen through the views, is a strided access of it."""
    axes: list[Axis] | None = _packed(dims, 1)
    for view in chain:
        if axes is None:
            return False
        axes = _seen(axes, view)
    return axes is not None


def _packed(dims: Dims, stride: Dim | None) -> list[Axis]:
    """Axes behind one another in memory, the last with this stride."""
    axes: list[Axis] = []
    for dim in reversed(dims):
        axes.append(Axis(dim, stride))
        stride = None if stride is None else mul(stride, dim)
    return axes[::-1]


def _seen(axes: list[Axis], view: View) -> list[Axis] | None:
    if isinstance(view, Axes):
        return [axes[at] for at in view.order] if len(view.order) == len(axes) else None
    if isinstance(view, Shape):
        return _reshaped(axes, view.dims)
    if isinstance(view, Rows):
        return None if view.dims is None else [*(Axis(dim, None) for dim in view.dims), *axes[1:]]
    kept = list(axes)
    at = view.axis + len(axes)
    if not 0 <= at < len(axes):
        return None
    if isinstance(view, Item):
        kept[at : at + 1] = [Axis(1, 0)] if view.kept else []
        return kept
    stride = axes[at].stride
    size = sub(view.stop, view.start)
    size = -(-size // view.step) if isinstance(size, int) else size
    kept[at] = Axis(size, None if stride is None else mul(stride, view.step))
    return kept


def _reshaped(axes: list[Axis], dims: Dims) -> list[Axis] | None:
    """The axes under other dims: groups of them that hold equally many elements, one by one."""
    old = [axis for axis in axes if axis.size != 1]
    new = [dim for dim in dims if dim != 1]
    made: list[Axis] = []
    while old and new:
        group, parts = [old.pop(0)], [new.pop(0)]
        have, want = group[0].size, parts[0]
        while have != want:
            fewer = _fewer(want, have)
            if fewer and new:
                parts.append(new.pop(0))
                want = mul(want, parts[-1])
            elif fewer is False and old:
                group.append(old.pop(0))
                have = mul(have, group[-1].size)
            else:
                return None
        if not _behind_one_another(group) or (len(parts) > 1 and group[-1].stride is None):
            return None
        made += _packed(tuple(parts), group[-1].stride)
    if old or new:
        return None
    rest = iter(made)
    return [Axis(1, 0) if dim == 1 else next(rest) for dim in dims]


def _fewer(a: Dim, b: Dim) -> bool | None:
    """Whether a is less than b, of two that differ; None where symbols leave it open."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return True if divide(b, a) is not None else False if divide(a, b) is not None else None


def _behind_one_another(group: list[Axis]) -> bool:
    return all(
        a.stride is not None and b.stride is not None and a.stride == mul(b.size, b.stride)
        for a, b in pairwise(group)
    )
