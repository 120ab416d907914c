"""The axes of an attention's products and of its result, as letters."""

from __future__ import annotations

from collections.abc import Callable

from fuse import layout as lay
from fuse.guards import agree
from fuse.ir import Graph, Op
from fuse.layout import Atom, Layout
from fuse.match import Match
from fuse.types import Dims

Stops = Callable[[Layout], bool]


def letters(graph: Graph, op: Op, left: str, right: str) -> tuple[str, str, str] | None:
    """The axes of a product's operands and result: b h s d, b h d t, b h s t (t: rows of k).

    Of three batch axes one is of windows: b w h s d (`windows_and_heads` says which). None where the
    product is none of these (other batch axes, an Einsum over something else).
    """
    first, second = graph.dims(op.inputs[0]), graph.dims(op.inputs[1])
    if first is None or second is None:
        return None
    rows, width, columns = ("s", "d", "t") if left == "q" else ("s", "t", "d")
    if op.kind == "Einsum":
        return _einsum_letters(str(op.attrs.get("equation", "")), rows, width, columns)
    rank = max(len(first), len(second))
    if len(first) != len(second) or rank not in (2, 3, 4, 5):
        return None
    batch = {2: (), 3: ("bh",), 4: ("b", "h"), 5: ("b", "w", "h")}[rank]
    if op.attrs.get("transBatchA") or op.attrs.get("transBatchB"):
        return None
    a = (width, rows) if op.attrs.get("transA") else (rows, width)
    b = (columns, width) if op.attrs.get("transB") else (width, columns)
    return " ".join((*batch, *a)), " ".join((*batch, *b)), " ".join((*batch, rows, columns))


def weighing(graph: Graph, op: Op, v: str) -> tuple[str, str, str] | None:
    """The axes of the probabilities, of v and of the result: p times v, or columns of v times p turned."""
    if op.kind == "Einsum" or op.inputs[0] != v:
        return letters(graph, op, "p", "v")
    turned = graph.producer(op.inputs[1])
    perm = tuple(turned.attrs.get("perm") or ()) if turned is not None and turned.kind == "Transpose" else ()
    rank = len(perm)
    found = letters(graph, op, "p", "v")
    if found is None or op.attrs or rank < 2 or perm != (*range(rank - 2), rank - 1, rank - 2):
        return None
    batch = found[2].split()[:-2]
    return " ".join((*batch, "s", "t")), " ".join((*batch, "d", "t")), " ".join((*batch, "d", "s"))


def _einsum_letters(equation: str, rows: str, width: str, columns: str) -> tuple[str, str, str] | None:
    terms, arrow, out = equation.replace(" ", "").partition("->")
    both = terms.split(",")
    if not arrow or len(both) != 2 or "." in equation:
        return None
    a, b = both
    shared = [x for x in out if x in a and x in b]
    inner = [x for x in a if x in b and x not in out]
    row, column = [x for x in out if x not in b], [x for x in out if x not in a]
    if len(inner) != 1 or len(row) != 1 or len(column) != 1 or len(shared) not in (0, 1, 2, 3):
        return None
    names = dict(
        zip(shared, {0: (), 1: ("bh",), 2: ("b", "h"), 3: ("b", "w", "h")}[len(shared)], strict=True)
    )
    names |= {inner[0]: width, row[0]: rows, column[0]: columns}
    if set(a) - names.keys() or set(b) - names.keys():
        return None
    left, right, result = (" ".join(names[x] for x in term) for term in (a, b, out))
    return left, right, result


def heads_first(layout: Layout) -> bool:
    """Axes as most kernels want them: heads before rows."""
    return lay.text(layout) in ("b h s d", "bh s d", "s d")


def any_order(axes: frozenset[str]) -> Stops:
    """Axes in any order, as long as each is one of these, and none twice."""

    def stops(layout: Layout) -> bool:
        names = ["".join(atom.letter for atom in axis) for axis in layout]
        letters = [letter for letter in "".join(names) if letter != "1"]
        return all(name in axes for name in names) and len(set(letters)) == len(letters)

    return stops


def windows_and_heads(layouts: tuple[Layout, ...], masked: bool) -> tuple[Layout, ...]:
    """The layouts of q, k, v and the result, windows and heads exchanged where the result has the windows
    beside the width: heads are what is joined to it. Masks lie over the axes as they stand."""
    letters = [atom.letter for axis in layouts[-1] for atom in axis if atom.letter != "1"]
    if masked or "w" not in letters or "h" not in letters or letters[letters.index("d") - 1] != "w":
        return layouts
    names = {"w": "h", "h": "w"}
    return tuple(
        tuple(
            tuple(atom._replace(letter=names.get(atom.letter, atom.letter)) for atom in axis)
            for axis in layout
        )
        for layout in layouts
    )


def result_layout(m: Match, layout: Layout) -> Layout | None:
    """The axes of the result, through the layout operators of the star `out`."""
    graph = m.graph
    for step in reversed(m.taken("out")):
        op = graph.producer(step.value)
        dims = graph.dims(step.value)
        if op is None or dims is None:
            return None
        if op.kind == "Transpose":
            perm = op.attrs.get("perm") or tuple(range(len(dims)))[::-1]
            if sorted(perm) != list(range(len(layout))):
                return None
            layout = tuple(layout[axis] for axis in perm)
        else:
            again = lay.regroup([atom for axis in layout for atom in axis if atom.letter != "1"], dims)
            if again is None:
                return None
            layout = again
    return layout


def mask_layout(layout: Layout) -> str:
    """Empty where the scores have their own four axes, else their axes, windows with their number."""
    names = ["".join(atom.letter for atom in axis) for axis in layout]
    if [name.replace("w", "") for name in names] == ["b", "h", "s", "t"]:
        return ""
    counted = "wsStT" if {"S", "T"} & set("".join(names)) else "w"
    return " ".join(
        "".join(f"{atom.letter}{atom.size}" if atom.letter in counted else atom.letter for atom in axis)
        for axis in layout
    )


def opened(layout: Layout, dims: Dims | None) -> Layout:
    """The axes of the scores after a mask whose sizes have other names: the sum's sizes are open."""
    if dims is None or not agree(tuple(map(lay.size, layout)), dims):
        return layout
    named = zip(layout, dims, strict=True)
    return tuple((axis[0]._replace(size=dim),) if len(axis) == 1 else axis for axis, dim in named)


def renamed(layout: Layout, names: dict[str, str]) -> Layout:
    """The axes with letters exchanged."""
    return tuple(tuple(Atom(names.get(a.letter, a.letter), a.size) for a in axis) for axis in layout)


def heads_of(*layouts: Layout) -> int:
    """How many heads the first layout that tells has; 0 where none does."""
    for layout in layouts:
        for axis in layout:
            for atom in axis:
                if atom.letter == "h" and isinstance(atom.size, int):
                    return atom.size
    return 0
