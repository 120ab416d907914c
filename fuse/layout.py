"""Axes as letters: what transposes, reshapes and expands do to the axes of a value.

A layout is a tuple of axes; an axis is a tuple of atoms, each a letter with its size. Walking from a
value down through layout operators tells which axes the value below has: `b s hd` below
`b h s d`, say. Sizes are symbolic, so a reshape is followed where its products surely agree.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from fuse.ir import Graph, Op
from fuse.types import Dim, Dims, divide, mul

#: What one letter parts into.
_PARTS = {"h": ("h", "r"), "b": ("b", "w"), "s": ("s", "S"), "t": ("t", "T")}


class Atom(NamedTuple):
    """One letter and its size. Letter "1" is an axis of one element that has no name."""

    letter: str
    size: Dim


Axis = tuple[Atom, ...]
Layout = tuple[Axis, ...]


def layout_of(dims: Dims, letters: str) -> Layout:
    """A layout from dims and one letter (or joined letters) an axis, "b h s d" or "bh s d"."""
    return tuple((Atom(letter, dim),) for letter, dim in zip(letters.split(), dims, strict=True))


def text(layout: Layout) -> str:
    """The layout as attributes write it: axes separated by spaces, joined letters one axis."""
    return " ".join("".join(atom.letter for atom in axis) for axis in layout)


def size(axis: Axis) -> Dim:
    total: Dim = 1
    for atom in axis:
        total = mul(total, atom.size)
    return total


def regroup(atoms: list[Atom], dims: Dims) -> Layout | None:
    """The atoms, in order, as axes of these sizes; an atom may split where `_split` knows how.

    None where the sizes do not surely agree.
    """
    left = [atom for atom in atoms if atom.size != 1]
    # An axis of one element lies wherever the sizes have one: it has no place of its own in memory.
    ones = [atom for atom in atoms if atom.size == 1]
    axes: list[Axis] = []
    for index, dim in enumerate(dims):
        if dim == 1:
            axes.append((ones.pop(0) if ones else Atom("1", 1),))
            continue
        axis: list[Atom] = []
        have: Dim = 1
        while have != dim:
            if not left:
                return None
            atom = left.pop(0)
            reached = mul(have, atom.size)
            if reached != dim and divide(dim, reached) is None:
                need = divide(dim, have)
                pieces = None if need is None else _split(atom, need, dims[index + 1 :])
                if pieces is None:
                    return None
                left.insert(0, pieces[1])
                atom, reached = pieces[0], dim
            axis.append(atom)
            have = reached
        axes.append(_rejoined(axis))
    if ones and axes:
        axes[-1] = (*ones, *axes[-1])
    return None if left else tuple(axes)


def _rejoined(axis: list[Atom]) -> Axis:
    """An axis in which the two parts of rows, or of keys, stand beside one another is one of rows again."""
    for at, (one, two) in enumerate(pairwise(axis)):
        if (one.letter, two.letter) in (("s", "S"), ("t", "T")):
            return (*axis[:at], Atom(one.letter, mul(one.size, two.size)), *axis[at + 2 :])
    return tuple(axis)


def _split(atom: Atom, first: Dim, rest: Dims) -> tuple[Atom, Atom] | None:
    """An atom in two: folded letters apart (bh -> b, h), heads into groups (h -> h of keys, r), a
    batch of windows (b -> b, w), rows of pixels into rows and columns (s -> s, S; t -> t, T)."""
    second = divide(atom.size, first)
    if second is None or not rest or rest[0] != second:
        return None
    if len(atom.letter) == 2:
        return Atom(atom.letter[0], first), Atom(atom.letter[1], second)
    letters = _PARTS.get(atom.letter)
    return None if letters is None else (Atom(letters[0], first), Atom(letters[1], second))


class Step(NamedTuple):
    """The layout below one layout operator, and that operator."""

    layout: Layout
    value: str
    op: Op


def below(graph: Graph, value: str, layout: Layout) -> Step | None:
    """One step down through a layout operator; None where there is none or it cannot be followed."""
    op = graph.producer(value)
    if op is None or not op.inputs:
        return None
    inner, outer = graph.dims(op.inputs[0]), graph.dims(value)
    if inner is None or outer is None or len(outer) != len(layout):
        return None
    found: Layout | None = None
    if op.kind == "Transpose":
        perm = op.attrs.get("perm") or tuple(range(len(outer)))[::-1]
        if sorted(perm) != list(range(len(outer))):
            return None
        axes: list[Axis] = [()] * len(outer)
        for at, source in enumerate(perm):
            axes[source] = layout[at]
        found = tuple(axes)
    elif op.kind in ("Reshape", "Flatten", "Unsqueeze", "Squeeze"):
        atoms = [atom for axis in layout for atom in axis if atom.letter != "1"]
        found = regroup(atoms, inner)
    elif op.kind in ("Expand", "Tile"):
        found = _shrink(layout, inner, outer)
    return None if found is None else Step(found, op.inputs[0], op)


def _shrink(layout: Layout, inner: Dims, outer: Dims) -> Layout | None:
    """Below an expand: only the repeats of a key head (r), the only one (h), or nothing, may be spread."""
    if len(inner) != len(outer):
        return None
    axes: list[Axis] = []
    for axis, small, big in zip(layout, inner, outer, strict=True):
        if small == big:
            axes.append(axis)
        elif small == 1 and [atom.letter for atom in axis] == ["r"]:
            axes.append((Atom("1", 1),))
        elif small == 1 and [atom.letter for atom in axis] == ["h"]:
            axes.append((Atom("h", 1),))
        else:
            return None
    return tuple(axes)


def _spread(above: Layout, under: Layout) -> Dim:
    """How often an expand between two layouts repeats key heads; 0 where it repeats nothing."""
    wide = (axis[0].size for axis, small in zip(above, under, strict=True) if size(axis) != size(small))
    return next(wide, 0)


def walk(
    graph: Graph,
    value: str,
    layout: Layout,
    own: set[int],
    stops: Callable[[Layout], bool],
    spread: bool = True,
) -> tuple[str, Layout, Dim, list[Op]]:
    """Down through layout operators that only the match reads, as far as there is a layout to stop at.

    own: slots of the match. stops: whether a layout is one to stop at. spread: whether to go below
    an expand that repeats key heads. Returns the value to read, its layout, the repeats of each key
    head, and the operators passed. Stopping earlier is always right: the operators above are simply
    not taken in.
    """
    slots = set(own)
    best = (value, layout, 1, [])  # type: tuple[str, Layout, Dim, list[Op]]
    ops: list[Op] = []
    repeats: Dim = 1
    while True:
        op = graph.producer(value)
        if op is None or graph.is_output(value) or any(slot not in slots for slot in graph.readers(value)):
            return best
        step = below(graph, value, layout)
        if step is None or op.slot in slots or (op.kind in ("Expand", "Tile") and not spread):
            return best
        if step.op.kind in ("Expand", "Tile"):
            repeats = _spread(layout, step.layout) or repeats
        ops.append(op)
        slots.add(op.slot)
        value, layout = step.value, step.layout
        if stops(layout):
            best = (value, layout, repeats, list(ops))
