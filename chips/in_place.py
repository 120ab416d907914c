"""What a chip reads and writes in place: a candidate with placements, beyond what its class wants.

A kernel is written for packed operands unless its chip file says otherwise: `in_place` lists, by class
or operator, the views that it reads operands through and the units that it writes results in.
"""

from __future__ import annotations

from collections.abc import Iterator

from chips.schema import ChipFile, InPlace
from fuse.classes import CLASSES
from fuse.ir import Op
from fuse.placement import Alias, Axes, Item, Land, Part, Placement, Read, Rows, Shape, View
from fuse.placing import seen
from fuse.shim import Candidate, Limit

#: A view as chip files write it. A shape alone moves nothing, so it needs no word.
_WORDS: tuple[tuple[type, str], ...] = ((Part, "slice"), (Item, "item"), (Rows, "rows"), (Axes, "transpose"))


def beneath(candidate: Candidate) -> Candidate:
    """The candidate as what computes sees it, for the limits of its class."""
    return candidate._replace(op=seen(candidate.op))


def row_of(spec: ChipFile, kind: str) -> InPlace | None:
    """What the chip's file says of a kind; a chip that links every class places every kind."""
    row = spec.in_place.get(kind)
    return EVERYTHING if row is None and spec.every_class is not None else row


def refusals(spec: ChipFile, candidate: Candidate) -> tuple[Limit, ...]:
    """Every placement that the chip does not make, each once."""
    found: dict[Limit, None] = {}
    for op, read in (*_of_names(candidate), *_by_name(candidate)):
        found.update(dict.fromkeys(_read_limits(spec, candidate, op, read)))
    for placement in candidate.op.placements:
        found.update(dict.fromkeys(_limits(spec, candidate, placement)))
    return tuple(found)


def _of_names(candidate: Candidate) -> Iterator[tuple[Op, Read]]:
    """Who reads what the candidate only names, with the read that it makes of it."""
    graph, op = candidate.graph, candidate.op
    for alias in _aliases(op):
        for slot in graph.readers(op.outputs[alias.output]):
            reader = graph.slots[slot]
            if reader is not None:
                yield from _reads(reader, op.outputs[alias.output], alias)


def _by_name(candidate: Candidate) -> Iterator[tuple[Op, Read]]:
    """What the candidate reads that is only a name for parts of another value."""
    for value in dict.fromkeys(candidate.op.inputs):
        named = candidate.graph.producer(value) if value else None
        if named is not None and named.placements:
            for alias in _aliases(named):
                if named.outputs[alias.output] == value:
                    yield from _reads(candidate.op, value, alias)


def _aliases(op: Op) -> list[Alias]:
    return [placement for placement in op.placements if isinstance(placement, Alias)]


def _reads(op: Op, value: str, alias: Alias) -> Iterator[tuple[Op, Read]]:
    """Who reads a name: the op, or those of its members that do where it only gathers them."""
    if op.kind in CLASSES and CLASSES[op.kind].composite:
        for part in op.parts:
            if value in part.inputs:
                yield from _reads(part, value, alias)
    else:
        yield op, Read(op.inputs.index(value), value, alias.base, alias.views)


def _limits(spec: ChipFile, candidate: Candidate, placement: Placement) -> Iterator[Limit]:
    if isinstance(placement, Read):
        yield from _read_limits(spec, candidate, candidate.op, placement)
    elif isinstance(placement, Land):
        row = row_of(spec, candidate.op.kind)
        if row is None or placement.unit not in row.lands:
            want = f"{candidate.op.kind} writes its result into {placement.unit} of a wider tensor"
            got = f"on {spec.name} it writes a packed one"
            yield Limit(f"chip:land_in_{placement.unit}", want, got)


def _read_limits(spec: ChipFile, candidate: Candidate, op: Op, read: Read) -> Iterator[Limit]:
    row = row_of(spec, op.kind)
    want = f"{op.kind} reads {read.shown(str)} where it lies"
    if row is None:
        yield Limit("chip:read_in_place", want, f"on {spec.name} it takes packed operands")
        return
    for view in read.views:
        word = _word(view)
        if word and word not in row.reads:
            yield Limit("chip:read_in_place", want, f"it reads through {', '.join(row.reads) or 'no view'}")
        elif isinstance(view, Axes) and row.orders and view.order not in row.orders:
            yield Limit("chip:read_in_place", want, f"it reads axes {_orders(row)}")
    dtype = candidate.graph.dtype(read.value)
    if row.dtypes and dtype not in row.dtypes:
        want = f"element type {', '.join(row.dtypes)} of what {op.kind} reads in place"
        yield Limit("chip:dtypes", want, dtype or "unknown")


def _word(view: View) -> str:
    return "" if isinstance(view, Shape) else next(word for kind, word in _WORDS if isinstance(view, kind))


def _orders(row: InPlace) -> str:
    return " or ".join(",".join(map(str, order)) for order in row.orders)


EVERYTHING = InPlace(
    reads=("slice", "item", "rows", "transpose"),
    lands=("rows", "units"),
    kernel="definition",
    evidence="docs",
    source=("the definition of each class in reference/definitions, over views",),
)
