"""Landings: a result is written into rows or units of a wider tensor instead of copied there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fuse import forms
from fuse.classes import CLASSES
from fuse.ir import Graph, Op
from fuse.match import Fault, Match
from fuse.placement import Land, Read
from fuse.placing import seen
from fuse.rule import Built, Rule, Wrong, guard
from fuse.rules.placements import COPY_IS_NEEDED, layout_below
from fuse.types import FLOATS, Dim, Dims, add
from fuse.units import NORMS, ROTATIONS, unit_output
from fuse.views import FREE, Views, strided

JOINS = frozenset({"Concat"}) | forms.append.kinds
_SCATTERS = frozenset({"ScatterND", "TensorScatter"})
_PRODUCTS = forms.product.kinds | frozenset(
    name for name in CLASSES if name.startswith(("matmul_", "merged_")) or name == "quantized_matmul"
)
_MIXTURES = frozenset(name for name in CLASSES if name.startswith("moe"))
_SUMS = forms.add_norm.kinds | frozenset("norm_add_norm ada_norm gated_norm norm_reshape embed_norm".split())
#: What writes rows: products, rotations, mixtures, norms, joins.
ROW_WRITERS = _PRODUCTS | _MIXTURES | _SUMS | NORMS | ROTATIONS | JOINS


class Place(NamedTuple):
    """Where an operand of a join goes. Of a scatter, `ids` gives the rows; into: the memory, "" if new."""

    value: str
    views: Views
    axis: int
    of: Dim
    spans: tuple[tuple[Dim, Dim], ...]
    into: str = ""
    ids: str = ""


def places(graph: Graph, join: Op) -> Iterator[Place]:
    """The operands of a join that a result may be written for, that last made first."""
    dims = graph.dims(join.outputs[0])
    if dims is None or graph.dtype(join.outputs[0]) not in FLOATS:
        return
    if join.kind in _SCATTERS:
        yield from _scattered(graph, join, dims)
        return
    append = forms.append(graph, join) if join.kind in forms.append.kinds else None
    operands = (append.past, append.new) if append is not None else seen(join).inputs
    axis = append.axis if append is not None else _axis(join, dims)
    if not -len(dims) <= axis < 0:
        return
    reads = {placement.value: placement for placement in join.placements if isinstance(placement, Read)}
    spans = _spans(graph, join, operands, axis)
    if spans is None:
        return
    for value in sorted(spans, key=lambda v: -graph.base.producer.get(v, -1)):
        if append is not None and value != append.new:
            continue
        read = reads.get(value)
        base, how = (value, ()) if read is None else (read.base, read.views)
        yield Place(base, how, axis, dims[axis], spans[value], append.past if append is not None else "")


def _scattered(graph: Graph, join: Op, dims: Dims) -> Iterator[Place]:
    """New rows over old ones, at the places that integers give."""
    if join.attrs.get("reduction", "none") != "none" or join.attrs.get("mode", "linear") != "linear":
        return
    into, second, third = (*join.inputs, "")[:3]
    if join.kind == "ScatterND":
        yield Place(third, (), -len(dims), dims[0], (), into, second)
    else:
        axis = _axis(join, dims, -2)
        if not -len(dims) <= axis < 0:
            return
        yield Place(second, (), axis, dims[axis], ((0, dims[axis]),) if not third else (), into, third)


def _axis(join: Op, dims: Dims, absent: int = 0) -> int:
    axis: int = join.attrs.get("axis", absent)
    return axis if axis < 0 else axis - len(dims)


def _spans(
    graph: Graph, join: Op, operands: tuple[str, ...], axis: int
) -> dict[str, tuple[tuple[Dim, Dim], ...]] | None:
    """Value -> the places it has along the axis of the joined tensor."""
    found: dict[str, tuple[tuple[Dim, Dim], ...]] = {}
    start: Dim = 0
    for value in operands:
        dims = graph.dims(value)
        if dims is None or len(dims) < -axis:
            return None
        stop = add(start, dims[axis])
        found[value] = (*found.get(value, ()), (start, stop))
        start = stop
    joined = graph.dims(join.outputs[0])
    return found if joined is not None and joined[axis] == start else None


# ---- the rules -----------------------------------------------------------------------------------
def _found(graph: Graph, join: Op, place: Place, budget: int) -> Match | None:
    """The op whose result goes to a place, through layout operators that give it other axes; None
    where a part of it is dropped on the way, or others read it and that is not asked after."""
    steps = [step for step in layout_below(graph, place.value) if step[0].kind in FREE | {"Transpose"}]
    value = steps[-1][0].inputs[0] if steps else place.value
    how = (*(view for _, some in reversed(steps) for view in some), *place.views)
    maker, dims = graph.producer(value), graph.dims(value)
    if maker is None or dims is None or not strided(dims, how):
        return None
    match = Match(graph)
    match.ops = [maker, *(op for op, _ in steps), join]
    match.root = join.outputs[0]
    match.bound = {"writer": maker, "value": value, "views": how, "place": place, "join": join}
    inside = {op.slot for op in match.ops}
    passed = [value, *(out for op, _ in steps for out in op.outputs)]
    alone = all(not graph.is_output(v) and inside.issuperset(graph.readers(v)) for v in passed)
    return match if alone or budget else None


def find_rows(graph: Graph, join: Op, budget: int) -> Iterator[Match]:
    """A result that a join copies into rows of its own."""
    for place in places(graph, join):
        match = _found(graph, join, place, budget) if place.axis != -1 else None
        if match is not None and match["writer"].kind in ROW_WRITERS and _own_memory(graph, place.into):
            yield match


def find_units(graph: Graph, join: Op, budget: int) -> Iterator[Match]:
    """A result that a join copies into units of the last axis."""
    for place in places(graph, join):
        match = _found(graph, join, place, budget) if place.axis == -1 else None
        if match is not None and match["value"] == unit_output(graph, match["writer"]):
            yield match


def _own_memory(graph: Graph, value: str) -> bool:
    """Whether memory may be written over: new, made here, or passed in by the caller for this graph."""
    base = graph.base
    made = value in base.producer or (value in base.inputs and value not in base.overridable)
    return not value or (made and not graph.is_constant(value))


def cache_is_no_output(m: Match) -> Wrong | None:
    """the cache that is written over is not itself an output"""
    into = m["place"].into
    return Wrong(into, f"also the graph output {into}") if into and m.graph.is_output(into) else None


def _landing(m: Match) -> Built:
    writer, value, place, join = m["writer"], m["value"], m["place"], m["join"]
    wide = join.outputs[0]
    unit = "units" if place.axis == -1 else "rows"
    land = Land(
        writer.outputs.index(value), value, wide, place.into, unit,
        place.axis, place.of, place.spans, place.ids, m["views"],
    )  # fmt: skip
    outputs = tuple(wide if out == value else out for out in writer.outputs)
    return Built(writer.kind, seen(writer).inputs, dict(writer.attrs), outputs, placements=(land,))


def lands_but_for_one_thing(m: Match, fault: Fault) -> bool:
    """Whether a place is almost one: all of it is there, and no other need of the joined value stands in
    the way. A cache that stays an output is in the way of this alone."""
    return m.fault is None and fault.code not in COPY_IS_NEEDED - {"graph_output"}


land_in_rows = Rule(
    "land_in_rows",
    """a result written into rows of a wider tensor, a cache say, instead of copied there

    The launch of the join goes, and the copy of the rows; what else is joined lies beside them.""",
    finds=find_rows,
    marks=tuple(sorted(JOINS | _SCATTERS)),
    needs=(guard(cache_is_no_output, code="graph_output"),),
    builds=_landing,
    almost=lands_but_for_one_thing,
    reads=tuple(sorted(ROW_WRITERS)),
    again=True,
    places=True,
)

land_in_units = Rule(
    "land_in_units",
    """a result written unit by unit into a wider tensor instead of copied there

    A norm, a rotation or a product of heads works unit by unit and can write its units where they go.""",
    finds=find_units,
    marks=("Concat",),
    builds=_landing,
    almost=lands_but_for_one_thing,
    reads=tuple(sorted(NORMS | ROTATIONS)),
    again=True,
    places=True,
)
