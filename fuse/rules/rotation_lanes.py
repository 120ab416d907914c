"""Which lanes of the last axis a value holds, however they were taken."""

from __future__ import annotations

from typing import Any

from fuse.ir import Graph, Op
from fuse.types import Dims, mul

#: A value, and the first lane, the end and the stride of what is taken of its last axis.
Lanes = tuple[str, int, int, int]


def lanes(graph: Graph, value: str) -> Lanes | None:
    """What of a last axis is taken: by a Slice or a Split, or as one of the two rows or columns that a
    reshape cuts the axis into. None if unknown."""
    found = _along_last(graph, value)
    return found if found is not None else _one_of_two(graph, value)


def lane_ops(graph: Graph, value: str) -> list[Op]:
    """The ops between a value and the one whose lanes it holds."""
    op = graph.producer(value)
    if op is None:
        return []
    if _along_last(graph, value) is not None:
        return [op]
    cut = graph.producer(op.inputs[0]) if op.kind == "Squeeze" else op
    reshape = graph.producer(cut.inputs[0]) if cut is not None else None
    return list({found.slot: found for found in (op, cut, reshape) if found is not None}.values())


def along_another_axis(graph: Graph, value: str) -> bool:
    """Whether a Slice or Split takes a part of an axis that is not the last."""
    op = graph.producer(value)
    dims = graph.dims(op.inputs[0]) if op is not None and op.inputs else None
    if op is None or not dims or op.kind not in ("Slice", "Split"):
        return False
    axes = op.attrs.get("axes") or (graph.content(op.inputs[3]) if len(op.inputs) > 3 else None)
    chosen = (op.attrs.get("axis", 0),) if op.kind == "Split" else axes or (0,)
    return all(isinstance(axis, int) and _axis(axis, len(dims)) != len(dims) - 1 for axis in chosen)


def _along_last(graph: Graph, value: str) -> Lanes | None:
    op = graph.producer(value)
    dims = graph.dims(op.inputs[0]) if op is not None and op.inputs else None
    if op is None or not dims or not isinstance(dims[-1], int):
        return None
    taken = _taken(graph, op, value, dims)
    if taken is None or taken[0] != len(dims) - 1 or op.kind == "Gather":
        return None
    return op.inputs[0], *taken[1:]


def _one_of_two(graph: Graph, value: str) -> Lanes | None:
    """One of the two rows or columns of a last axis that a reshape cut in two: [.., n, 2] or [.., 2, n]."""
    op = graph.producer(value)
    cut = graph.producer(op.inputs[0]) if op is not None and op.kind == "Squeeze" else op
    if op is None or cut is None or (cut is op) != (op.kind == "Gather"):
        return None
    reshape = graph.producer(cut.inputs[0]) if cut.inputs else None
    if reshape is None or reshape.kind != "Reshape":
        return None
    wide, grid, own = graph.dims(reshape.inputs[0]), graph.dims(reshape.outputs[0]), graph.dims(value)
    if not wide or not grid or own is None or grid[:-2] != wide[:-1]:
        return None
    taken = _taken(graph, cut, cut.outputs[0] if op.kind != "Squeeze" else op.inputs[0], grid)
    full = wide[-1]
    if taken is None or not isinstance(full, int) or mul(grid[-1], grid[-2]) != full:
        return None
    axis, start, stop, _ = taken
    if stop != start + 1 or grid[axis] != 2 or own != (*grid[:axis], *grid[axis + 1 :]):
        return None
    if axis == len(grid) - 1:
        return reshape.inputs[0], start, full, 2
    half = full // 2
    return (reshape.inputs[0], start * half, stop * half, 1) if axis == len(grid) - 2 else None


def _taken(graph: Graph, op: Op, value: str, dims: Dims) -> tuple[int, int, int, int] | None:
    """Axis, start, stop and step of what a Slice, Split or single-row Gather takes."""
    if op.kind == "Split":
        return _split(graph, op, value, dims)
    if op.kind == "Gather":
        rank, index = graph.dims(op.inputs[1]), graph.content(op.inputs[1])
        axis = _axis(op.attrs.get("axis", 0), len(dims))
        of = dims[axis] if 0 <= axis < len(dims) else 0
        if rank != () or not index or not isinstance(index[0], int) or not isinstance(of, int) or not of:
            return None
        at = index[0] % of
        return axis, at, at + 1, 1
    if op.kind != "Slice":
        return None
    bounds = _slice_bounds(graph, op, len(dims))
    if bounds is None:
        return None
    axis, start, stop, step = bounds
    size = dims[axis] if 0 <= axis < len(dims) else None
    if not isinstance(size, int):
        return None
    begin, end, stride = slice(start, stop, step).indices(size)
    return (axis, begin, end, stride) if stride > 0 else None


def _split(graph: Graph, op: Op, value: str, dims: Dims) -> tuple[int, int, int, int] | None:
    axis = _axis(op.attrs.get("axis", 0), len(dims))
    start = 0
    for out in op.outputs:
        part = graph.dims(out) if out else None
        size = part[axis] if part is not None and 0 <= axis < len(part) else None
        if not isinstance(size, int):
            return None
        if out == value:
            return axis, start, start + size, 1
        start += size
    return None


def _axis(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


def _slice_bounds(graph: Graph, op: Op, rank: int) -> tuple[int, int, int, int] | None:
    """Axis, start, stop and step of a slice of one axis only."""

    def read(name: str, at: int) -> tuple[Any, ...] | None:
        if name in op.attrs:
            return tuple(op.attrs[name])
        value = op.inputs[at] if at < len(op.inputs) else ""
        return graph.content(value) if value else None

    starts, stops = read("starts", 1), read("ends", 2)
    axes, steps = read("axes", 3), read("steps", 4)
    if (
        starts is None
        or stops is None
        or len(starts) != 1
        or not isinstance(starts[0], int)
        or not isinstance(stops[0], int)
    ):
        return None
    axis = axes[0] if axes else 0
    step = steps[0] if steps else 1
    if not isinstance(axis, int) or not isinstance(step, int) or step == 0:
        return None
    return _axis(axis, rank), starts[0], stops[0], step
