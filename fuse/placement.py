"""Placements: what an op reads or writes in place, as data.

A view is one step of a strided access: a part of an axis, one element of it, rows chosen by ids, axes
in another order, another shape over the same elements. A `Read` leads by views from the wider value
that an op reads to the operand it computes with; a `Land` from the result it computes to the rows or
units of the wider tensor that it writes. Nothing is computed anew by a placement; a copy is saved.

Values are paths. `shown` takes the function that shortens a path for people.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fuse.types import Dim, Dims

Shown = Callable[[str], str]


class Part(NamedTuple):
    """Elements start, start + step, ... before stop, of the `of` elements of an axis.

    axis: counted from the end, so -1 is the last.
    """

    axis: int
    start: Dim
    stop: Dim
    of: Dim
    step: int = 1

    def shown(self, short: Shown) -> str:
        step = "" if self.step == 1 else f":{self.step}"
        return f"[{self.start}:{self.stop}{step} of {self.of}{_behind(self.axis)}]"


class Item(NamedTuple):
    """One element of an axis (from the end); the axis goes, or stays as 1 where `kept`."""

    axis: int
    at: Dim
    of: Dim
    kept: bool = False

    def shown(self, short: Shown) -> str:
        return f"[{self.at} of {self.of}{_behind(self.axis)}]"


class Rows(NamedTuple):
    """Rows of the first axis, chosen by the integers of `ids`, whose axes (`dims`) replace it."""

    ids: str
    dims: Dims | None

    def shown(self, short: Shown) -> str:
        return f"[rows {short(self.ids)}]"


class Axes(NamedTuple):
    """The axes in another order."""

    order: tuple[int, ...]

    def shown(self, short: Shown) -> str:
        return f"[axes {','.join(map(str, self.order))}]"


class Shape(NamedTuple):
    """The same elements, in row-major order, under other dims."""

    dims: Dims

    def shown(self, short: Shown) -> str:
        return f"[as {','.join(map(str, self.dims))}]"


View = Part | Item | Rows | Axes | Shape


class Read(NamedTuple):
    """Operand number `operand`, `value`, is read from `base` through the views, first view first."""

    operand: int
    value: str
    base: str
    views: tuple[View, ...]

    def shown(self, short: Shown) -> str:
        return short(self.base) + "".join(view.shown(short) for view in self.views)

    def __str__(self) -> str:
        return self.shown(str)


class Land(NamedTuple):
    """The result `value`, seen through the views, is written as rows or units of a wider tensor.

    output: which result of the op holds it, -1 where none does any more. wide: the value of the wider
    tensor. into: the value whose memory that is, "" where it is new memory. axis: from the end. spans:
    (start, stop) of each place on the axis; none where `ids` gives the places. Units are lanes of the
    last axis, rows lie along any other.
    """

    output: int
    value: str
    wide: str
    into: str
    unit: str
    axis: int
    of: Dim
    spans: tuple[tuple[Dim, Dim], ...]
    ids: str = ""
    views: tuple[View, ...] = ()

    def shown(self, short: Shown) -> str:
        places = ", ".join(f"{start}:{stop}" for start, stop in self.spans)
        where = short(self.ids) if self.ids else f"{places} of {self.of}"
        return f"-> {short(self.into or self.wide)}[{self.unit} {where}]"

    def __str__(self) -> str:
        return self.shown(str)


class Alias(NamedTuple):
    """Result number `output` of a view that several ops read in place: no copy, a name for a part."""

    output: int
    base: str
    views: tuple[View, ...]

    def shown(self, short: Shown) -> str:
        return f"is {short(self.base)}" + "".join(view.shown(short) for view in self.views)

    def __str__(self) -> str:
        return self.shown(str)


Placement = Read | Land | Alias


def _behind(axis: int) -> str:
    """The whole axes behind one that is counted from the end."""
    return ", :" * (-axis - 1)
