"""Views of layout operators beside numpy: what they read, and whether that is a strided access."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from building import Building
from hypothesis import given, settings
from hypothesis import strategies as st

import fuse
from fuse.placement import Axes, Item, Part, Rows, Shape, View
from fuse.types import Dim, mul, symbol
from fuse.views import strided, views


def number(dim: Dim) -> int:
    assert isinstance(dim, int)
    return dim


def seen(array: np.ndarray, view: View) -> np.ndarray:
    """The view taken by numpy, by basic indexing only."""
    if isinstance(view, Axes):
        return array.transpose(view.order)
    if isinstance(view, Shape):
        return array.reshape([number(dim) for dim in view.dims])
    assert isinstance(view, Part | Item)
    at: list[Any] = [slice(None)] * array.ndim
    if isinstance(view, Part):
        at[view.axis] = slice(view.start, view.stop, view.step)
    else:
        at[view.axis] = slice(view.at, number(view.at) + 1) if view.kept else view.at
    return array[(*at, ...)]


@st.composite
def chain(draw: st.DrawFn) -> tuple[tuple[int, ...], list[View]]:
    """Dims and up to four views of a tensor of them."""
    dims = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    array, found = np.zeros(dims), []
    for _ in range(draw(st.integers(1, 4))):
        view = draw(st.sampled_from([_axes, _part, _item, _shape]))(draw, array.shape)
        array = seen(array, view)
        found.append(view)
        if array.ndim == 0:
            break
    return dims, found


def _axes(draw: st.DrawFn, dims: tuple[int, ...]) -> View:
    return Axes(tuple(draw(st.permutations(range(len(dims))))))


def _part(draw: st.DrawFn, dims: tuple[int, ...]) -> View:
    axis = draw(st.integers(-len(dims), -1))
    start = draw(st.integers(0, dims[axis] - 1))
    return Part(axis, start, draw(st.integers(start + 1, dims[axis])), dims[axis], draw(st.integers(1, 2)))


def _item(draw: st.DrawFn, dims: tuple[int, ...]) -> View:
    axis = draw(st.integers(-len(dims), -1))
    return Item(axis, draw(st.integers(0, dims[axis] - 1)), dims[axis], draw(st.booleans()))


def _shape(draw: st.DrawFn, dims: tuple[int, ...]) -> View:
    left = int(np.prod(dims))
    made: list[int] = []
    while left > 1 and len(made) < 4:
        made.append(draw(st.sampled_from([n for n in range(2, left + 1) if left % n == 0])))
        left //= made[-1]
    made.append(left)
    return Shape(tuple(draw(st.permutations(made))))


def view_without_a_copy(dims: tuple[int, ...], found: list[View]) -> bool:
    """Whether numpy reads the chain from the same memory."""
    base = np.zeros(dims)
    array = base
    for view in found:
        array = seen(array, view)
    return np.shares_memory(base, array)


@settings(deadline=None, max_examples=300)
@given(chain())
def test_what_numpy_views_is_a_strided_access(drawn_chain: tuple[tuple[int, ...], list[View]]) -> None:
    dims, found = drawn_chain
    assert strided(dims, found) == view_without_a_copy(dims, found)


def test_heads_apart_and_together() -> None:
    b, s = symbol("b"), symbol("s")
    apart, moved = Shape((b, s, 4, 16)), Axes((0, 2, 1, 3))
    assert strided((b, s, 64), [apart, moved])
    assert not strided((b, s, 4, 16), [moved, Shape((b, 4, mul(s, 16)))])
    assert strided((b, s, 192), [Part(-1, 64, 128, 192), apart, moved])
    assert not strided((b, s, 4, 16), [moved, Axes((0, 2, 3, 1)), Shape((b, s, 64))])
    assert strided((b, 4, s, 16), [Item(-3, 0, 4), Shape((b, s, 4, 4))])


def test_rows_by_ids_stay_apart() -> None:
    rows = Rows("ids", (2, 3))
    assert strided((50, 8), [rows, Shape((2, 3, 2, 4))])
    assert not strided((50, 8), [rows, Shape((6, 8))])
    assert not strided((50, 8), [Rows("ids", None)])


CASES: dict[str, tuple[Any, list[View] | None]] = {
    "split": (lambda g, x: g.op("Split", x, g.ints(2, 4), outputs=2, axis=-1)[1], [Part(-1, 2, 6, 6)]),
    "slice": (lambda g, x: g.op("Slice", x, g.ints(1), g.ints(-1), g.ints(1)), [Part(-2, 1, 3, 4)]),
    "slice_by_two": (
        lambda g, x: g.op("Slice", x, g.ints(0), g.ints(1 << 40), g.ints(-1), g.ints(2)),
        [Part(-1, 0, 6, 6, 2)],
    ),
    "slice_two_axes": (
        lambda g, x: g.op("Slice", x, g.ints(0, -2), g.ints(2, 6), g.ints(1, 2)),
        [Part(-2, 0, 2, 4), Part(-1, 4, 6, 6)],
    ),
    "backwards": (lambda g, x: g.op("Slice", x, g.ints(5), g.ints(0), g.ints(2), g.ints(-1)), None),
    "item": (lambda g, x: g.op("Gather", x, g.constant(np.array(-1)), axis=1), [Item(-2, 3, 4)]),
    "item_kept": (lambda g, x: g.op("Gather", x, g.ints(1), axis=2), [Item(-1, 1, 6, True)]),
    "item_by_brackets": (
        lambda g, x: g.op("GatherND", x, g.constant(np.array([[-1]]))),
        [Item(-3, 1, 2, True)],
    ),
    "item_of_a_vector": (lambda g, x: g.op("GatherND", x, g.ints(1)), [Item(-3, 1, 2)]),
    "items_of_each_batch": (
        lambda g, x: g.op("GatherND", x, g.constant(np.array([[1], [0]])), batch_dims=1),
        None,
    ),
    "lanes_by_ids": (lambda g, x: g.op("Gather", x, g.ints(1, 0), axis=2), None),
    "axes": (lambda g, x: g.op("Transpose", x, perm=[1, 0, 2]), [Axes((1, 0, 2))]),
    "axes_reversed": (lambda g, x: g.op("Transpose", x), [Axes((2, 1, 0))]),
    "shape": (lambda g, x: g.op("Reshape", x, g.ints(2, 24)), [Shape((2, 24))]),
    "no_view": (lambda g, x: g.op("Neg", x), None),
}


@pytest.mark.parametrize("name", CASES)
def test_what_an_operator_is(name: str) -> None:
    make, want = CASES[name]
    g = Building()
    value = make(g, g.input("x", 2, 4, 6))
    graph = fuse.load(g.model(g.op("Relu", value)))
    op = graph.producer(value)
    assert op is not None
    found = views(graph, op, value)
    assert found == (None if want is None else tuple(want))
    if found is not None:
        array = np.arange(48.0).reshape(2, 4, 6)
        whole = array
        for view in found:
            whole = seen(whole, view)
        assert whole.shape == graph.dims(value)


def test_bounds_that_change_are_no_view() -> None:
    g = Building()
    x, start = g.input("x", 2, 4, 6), g.input("start", 1, dtype=7)
    value = g.op("Slice", x, start, g.ints(1 << 40), g.ints(2))
    graph = fuse.load(g.model(g.op("Relu", value)))
    op = graph.producer(value)
    assert op is not None
    assert views(graph, op, value) is None
