"""Random feeds that a real model accepts: ids in range, masks of ones, sizes that fit each other.

The sizes of symbolic dims follow from what an input is, told by its name, element type and rank; the
values of integer inputs follow from what reads them. What cannot be told (an image size that only a
position table knows) is given by `dims`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

from fuse.ir import Graph, Op
from fuse.types import FLOATS, INTEGERS, UNKNOWN, Expr, FuseError, Type, roots, substitute
from reference.ops.call import NUMPY

BATCH, ROWS, PAST, SOURCE, SAMPLES, CHANNELS, PIXELS, OTHER = 2, 5, 3, 4, 512, 3, 32, 3
#: No input of more elements is drawn.
MOST_ELEMENTS = 1 << 32
#: What the name of a symbol says of its size; the first that is found counts.
_BY_SYMBOL: tuple[tuple[str, int], ...] = (
    (r"batch", BATCH),
    (r"past", PAST),
    (r"channel", CHANNELS),
    (r"height|width|image", PIXELS),
    (r"encoder|src|source", SOURCE),
    (r"seq|length|token|tgt|target|row", ROWS),
)
_PAST = re.compile(r"past|cache", re.IGNORECASE)
_MASK = re.compile(r"mask", re.IGNORECASE)
_PADDING = re.compile(r"pad", re.IGNORECASE)
_POSITION = re.compile(r"position|cache_pos", re.IGNORECASE)
_TOTAL = re.compile(r"total", re.IGNORECASE)
_LAST = re.compile(r"seqlens", re.IGNORECASE)
#: Operators through which a value is still the index that is looked up.
_SAME_VALUES = frozenset(
    {"Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Flatten", "Expand", "Transpose"}
)
#: Ids below this are often padding or other marks.
_FIRST_PLAIN_ID = 3


def feeds(graph: Graph, seed: int = 0, dims: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
    """An array for each input that has no default, the same for the same seed.

    dims: sizes of symbols. Errors: an input whose element type or rank is not known; a symbol that no
    input has.
    """
    sizes = symbol_sizes(graph, dims)
    rng = generator(seed)
    readers = _Readers(graph)
    found = {}
    for name in graph.inputs:
        if name in graph.base.overridable:
            continue
        type = graph.type(name)
        if type.dims is None or type.dtype not in NUMPY:
            raise FuseError(f"input {name} has no known type ({type}), so no random feed; give one")
        shape = _shape(type, sizes)
        if math.prod(shape) > MOST_ELEMENTS:
            raise FuseError(f"input {name} has {math.prod(shape):,} elements, too many to draw; give a feed")
        found[name] = _values(name, type, shape, rng, readers, _past(graph, sizes))
    return found


def generator(seed: int) -> np.random.Generator:
    """Random numbers of a seed. Raises FuseError where it is no whole number of at least 0."""
    if not isinstance(seed, int) or seed < 0:
        raise FuseError(f"seed {seed!r} is no whole number of at least 0")
    return np.random.default_rng(seed)


def symbol_sizes(graph: Graph, dims: Mapping[str, int] | None = None) -> dict[str, int]:
    """A small size for each symbol of the graph's inputs; `dims` come first."""
    given = dict(dims or {})
    symbols = {
        name: None for value in graph.inputs for dim in graph.dims(value) or () for name in sorted(roots(dim))
    }
    for name in given:
        if name not in symbols:
            raise FuseError(f"no input has a dim {name}; there are {', '.join(symbols) or 'none'}")
    sizes: dict[str, int] = dict(given)
    waiting: list[str] = []
    for value in graph.inputs:
        for axis, dim in enumerate(graph.dims(value) or ()):
            for name in sorted(roots(dim)):
                if name in sizes:
                    continue
                if _is_total(name, value, axis, graph):
                    waiting.append(name)
                else:
                    sizes[name] = _size(name, value, axis, graph)
    rows = next((s for value in graph.inputs if (s := _rows_of(graph, value, sizes)) is not None), ROWS)
    for name in waiting:
        sizes.setdefault(name, rows + _past(graph, sizes))
    return sizes


def _is_total(symbol: str, value: str, axis: int, graph: Graph) -> bool:
    """A mask over past and new rows together, whose size no other input tells."""
    if not _MASK.search(value) or axis == 0 or re.search(r"encoder", value):
        return bool(_TOTAL.search(symbol))
    others = (o for o in graph.inputs if o != value and not _MASK.search(o))
    return not any(symbol in roots(dim) for other in others for dim in graph.dims(other) or ())


def _rows_of(graph: Graph, value: str, sizes: Mapping[str, int]) -> int | None:
    """The new rows, from an input of ids [batch, rows]."""
    dims = graph.dims(value)
    if dims is None or len(dims) != 2 or _MASK.search(value) or graph.dtype(value) not in INTEGERS:
        return None
    size = substitute(dims[1], sizes)
    return size if isinstance(size, int) else None


def _past(graph: Graph, sizes: Mapping[str, int]) -> int:
    """The rows that the caches among the inputs hold."""
    for value in graph.inputs:
        dims = graph.dims(value)
        if _PAST.search(value) and "encoder" not in value and dims is not None and len(dims) == 4:
            size = substitute(dims[2], sizes)
            return size if isinstance(size, int) else PAST
    return 0


def _size(symbol: str, value: str, axis: int, graph: Graph) -> int:
    """By what the input is, else by what the symbol is called."""
    type = graph.type(value)
    rank = len(type.dims or ())
    if axis == 0 and rank > 1:
        return BATCH
    if type.dtype in FLOATS and rank == 2 and axis == 1:
        return SAMPLES
    if type.dtype in FLOATS and rank == 4 and not _PAST.search(value):
        return _channels(graph, value) if axis == 1 else PIXELS
    if _PAST.search(value) and rank == 4:
        return SOURCE if "encoder" in value else PAST
    return next((size for pattern, size in _BY_SYMBOL if re.search(pattern, symbol, re.IGNORECASE)), ROWS)


def _channels(graph: Graph, value: str) -> int:
    """The channels that the first convolution reading an image wants."""
    for op in graph.base.lifted:
        if op.kind == "Conv" and op.inputs[0] == value:
            dims = graph.dims(op.inputs[1])
            if dims is not None and isinstance(dims[1], int):
                return dims[1] * int(op.attrs.get("group", 1))
    return CHANNELS


def _shape(type: Type, sizes: Mapping[str, int]) -> tuple[int, ...]:
    shape = []
    for dim in type.dims or ():
        size = substitute(dim, sizes)
        shape.append(OTHER if isinstance(size, Expr) else size)
    return tuple(shape)


class _Readers:
    """What reads a value, in the graph and the bodies in it, as lifted."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._by_value: dict[str, list[Op]] = {}
        for one in (graph, *graph.bodies()):
            for op in one.base.lifted:
                for value in op.inputs:
                    self._by_value.setdefault(value, []).append(op)

    def of(self, value: str) -> Iterator[tuple[str, Op]]:
        """(the value as it is read, the op that reads it), through ops that only move values."""
        waiting, seen = [value], {value}
        while waiting:
            name = waiting.pop()
            for op in self._by_value.get(name, ()):
                if op.kind in _SAME_VALUES and op.inputs[0] == name and op.outputs[0] not in seen:
                    seen.add(op.outputs[0])
                    waiting.append(op.outputs[0])
                yield name, op

    def rows(self, value: str) -> int | None:
        """The fewest rows of any table that a value selects from."""
        found = []
        for name, op in self.of(value):
            if op.kind in ("Gather", "GatherElements") and len(op.inputs) > 1 and op.inputs[1] == name:
                found.append(self._axis(op.inputs[0], int(op.attrs.get("axis", 0))))
            elif op.kind == "com.microsoft.EmbedLayerNormalization":
                table = {0: 2, 1: 4, 8: 3}.get(op.inputs.index(name))
                found.append(None if table is None else self._axis(op.inputs[table], 0))
            elif op.kind == "OneHot" and op.inputs[0] == name:
                depth = self.graph.scalar(op.inputs[1])
                found.append(int(depth) if depth is not None else None)
        return min((rows for rows in found if rows is not None), default=None)

    def compared(self, value: str) -> int | float | None:
        """A constant that a value is held against by `Equal`."""
        for name, op in self.of(value):
            if op.kind == "Equal":
                other = self.graph.scalar(op.inputs[1 - op.inputs.index(name)])
                if other is not None:
                    return other
        return None

    def _axis(self, value: str, axis: int) -> int | None:
        dims = self.graph.base.types.get(value, UNKNOWN).dims
        if dims is None or not -len(dims) <= axis < len(dims):
            return None
        size = dims[axis]
        return size if isinstance(size, int) else None


def _values(
    name: str, type: Type, shape: tuple[int, ...], rng: np.random.Generator, readers: _Readers, past: int
) -> np.ndarray:
    dtype = NUMPY[type.dtype]
    if type.dtype == "bool":
        # A padding mask marks what is hidden, every other mask what is seen: nothing is hidden.
        return np.full(shape, not _PADDING.search(name) or bool(_MASK.search(name)))
    if type.dtype == "str":
        return np.full(shape, "a", np.object_)
    if type.dtype not in INTEGERS:
        return rng.standard_normal(shape).astype(dtype)
    if _MASK.search(name):
        return np.ones(shape, dtype)
    if _LAST.search(name):
        return np.full(shape, past + ROWS - 1, dtype)
    if _TOTAL.search(name):
        return np.full(shape, past + ROWS, dtype)
    rows = readers.rows(name)
    if _POSITION.search(name):
        ids = past + np.arange(shape[-1] if shape else 1)
        return np.broadcast_to(ids if rows is None else np.minimum(ids, rows - 1), shape).astype(dtype)
    if rows is None:
        other = readers.compared(name)
        return np.full(shape, 1 if other is None else other).astype(dtype)
    return rng.integers(min(_FIRST_PLAIN_ID, rows - 1), rows, shape).astype(dtype)
