"""Masks of attention by how they are built: those that hide nothing, and the lower triangle."""

from __future__ import annotations

import numpy as np

from fuse.ir import Graph, Op

#: A score this low or lower takes no part in a softmax.
HIDDEN = -1e4


def always_true(graph: Graph, value: str) -> bool:
    """Whether a boolean mask is a small constant of ones, spread or reshaped."""
    for _ in range(8):
        tensor = graph.constant(value)
        if tensor is not None:
            array = tensor.small()
            return array is not None and array.dtype == np.bool_ and bool(array.all())
        op = graph.producer(value)
        if op is None or op.kind not in ("Expand", "Reshape", "Unsqueeze", "Squeeze", "Transpose"):
            return False
        value = op.inputs[0]
    return False


def adds_nothing(graph: Graph, value: str) -> bool:
    """Whether an added mask is zero everywhere: chosen by a condition that is always true."""
    op = graph.producer(value)
    return (
        op is not None
        and op.kind == "Where"
        and always_true(graph, op.inputs[0])
        and graph.scalar(op.inputs[1]) == 0
    )


_SPREADS = frozenset({"Expand", "Unsqueeze", "Reshape", "Squeeze", "Cast"})
#: comparison -> (the operand that counts columns, whether it is true on and below the diagonal)
_COMPARISONS = {
    "LessOrEqual": (0, True),
    "GreaterOrEqual": (1, True),
    "Greater": (0, False),
    "Less": (1, False),
}
_DEPTH = 16


def lower_triangle(graph: Graph, what: str, mask: str) -> bool:
    """Whether a mask hides exactly the keys behind each row, of as many keys as rows, and nothing else.

    what: add, keep or drop. Only what is sure counts: an `And` with another mask is another mask.
    """
    dims = graph.dims(mask)
    if dims is None or len(dims) < 2 or dims[-1] != dims[-2]:
        return False
    return _hides_later(graph, mask) if what == "add" else _triangle(graph, mask, what == "keep")


def _hides_later(graph: Graph, value: str) -> bool:
    """Whether a value is zero up to the diagonal and very negative behind it."""
    value = _unspread(graph, value)
    op = graph.producer(value)
    if op is None:
        array = _matrix(graph, value)
        if array is None or array.dtype.kind != "f":
            return False
        behind = np.triu(np.ones(array.shape[-2:], bool), 1)
        return bool((array[..., ~behind] == 0).all() and (array[..., behind] <= HIDDEN).all())
    if op.kind == "Where":
        yes, no = (graph.scalar(v) for v in op.inputs[1:])
        if yes == 0 and no is not None and no <= HIDDEN:
            return _triangle(graph, op.inputs[0], True)
        return no == 0 and yes is not None and yes <= HIDDEN and _triangle(graph, op.inputs[0], False)
    if op.kind == "Trilu" and _trilu(graph, op) == (True, 1):
        inner = graph.producer(op.inputs[0])
        fill = graph.scalar(inner.inputs[0]) if inner is not None and inner.kind == "Expand" else None
        return fill is not None and fill <= HIDDEN
    return False


def _triangle(graph: Graph, value: str, keep: bool, depth: int = 0) -> bool:
    """Whether a condition is true exactly up to the diagonal (keep), or exactly behind it."""
    value = _unspread(graph, value)
    op = graph.producer(value)
    if op is None or depth > _DEPTH:
        array = _matrix(graph, value)
        if array is None or array.dtype != np.bool_:
            return False
        lower = np.tril(np.ones(array.shape[-2:], bool))
        return bool((array == (lower if keep else ~lower)).all())
    if op.kind == "Not":
        return _triangle(graph, op.inputs[0], not keep, depth + 1)
    if op.kind == "And":
        for at in (0, 1):
            if always_true(graph, op.inputs[at]):
                return _triangle(graph, op.inputs[1 - at], keep, depth + 1)
        return False
    if op.kind == "Trilu":
        return _trilu(graph, op) == ((False, 0) if keep else (True, 1)) and always_true(graph, op.inputs[0])
    if op.kind in _COMPARISONS:
        columns, keeps = _COMPARISONS[op.kind]
        counted = _counts_along(graph, op.inputs[columns]), _counts_along(graph, op.inputs[1 - columns])
        return keeps == keep and counted == (-1, -2)
    return False


def _unspread(graph: Graph, value: str) -> str:
    """Below what only repeats a matrix or adds axes of one before it, or casts from one of its kind."""
    for _ in range(_DEPTH):
        op, dims = graph.producer(value), graph.dims(value)
        inner = graph.dims(op.inputs[0]) if op is not None and op.inputs else None
        if op is None or op.kind not in _SPREADS or dims is None or inner is None:
            return value
        if dims[-2:] != inner[-2:] or graph.dtype(value) != graph.dtype(op.inputs[0]):
            return value
        value = op.inputs[0]
    return value


def _matrix(graph: Graph, value: str) -> np.ndarray | None:
    tensor = graph.constant(value)
    array = None if tensor is None else tensor.small()
    return array if array is not None and array.ndim >= 2 and array.shape[-1] == array.shape[-2] else None


def _trilu(graph: Graph, op: Op) -> tuple[bool, int] | None:
    """Whether the upper part is kept, and from which diagonal on."""
    shift = graph.scalar(op.inputs[1]) if len(op.inputs) > 1 and op.inputs[1] else 0
    return (bool(op.attrs.get("upper", 1)), shift) if isinstance(shift, int) else None


def _counts_along(graph: Graph, value: str) -> int | None:
    """The axis, from the end, along which a value counts 0, 1, 2 ...; None where it does not."""
    dims = graph.dims(value)
    wide = [at - len(dims) for at, dim in enumerate(dims) if dim != 1] if dims is not None else []
    if len(wide) != 1 or dims is None:
        return None
    for _ in range(_DEPTH):
        op = graph.producer(value)
        if op is None:
            tensor = graph.constant(value)
            array = None if tensor is None else tensor.small()
            if array is None or array.size != dims[wide[0]]:
                return None
            return wide[0] if np.array_equal(array.reshape(-1), np.arange(array.size)) else None
        if op.kind == "Range":
            begin, step = graph.scalar(op.inputs[0]), graph.scalar(op.inputs[2])
            return wide[0] if begin == 0 and step == 1 else None
        if op.kind not in ("Unsqueeze", "Reshape", "Squeeze", "Cast"):
            return None
        value = op.inputs[0]
    return None


def one_condition(graph: Graph, a: str, b: str) -> bool:
    """Whether two conditions are one value, cast or not, or constants alike."""
    a, b = _below_casts(graph, a), _below_casts(graph, b)
    one, two = graph.constant(a), graph.constant(b)
    if a == b or one is None or two is None:
        return a == b
    first, second = one.small(), two.small()
    return first is not None and second is not None and np.array_equal(first != 0, second != 0)


def _below_casts(graph: Graph, value: str) -> str:
    op = graph.producer(value)
    while op is not None and op.kind == "Cast":
        value = op.inputs[0]
        op = graph.producer(value)
    return value


def first_lanes(graph: Graph, value: str) -> bool:
    """Whether a value is the first lanes of another: a Slice of the last axis from 0 on."""
    op = graph.producer(value)
    dims = graph.dims(value)
    if op is None or op.kind != "Slice" or len(op.inputs) < 4 or dims is None:
        return False
    begin, axes = graph.content(op.inputs[1]), graph.content(op.inputs[3])
    step = graph.content(op.inputs[4]) if len(op.inputs) > 4 else (1,)
    return begin == (0,) and axes in ((-1,), (len(dims) - 1,)) and step == (1,)
