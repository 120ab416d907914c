"""Placements on ops: what an op computes beneath them, and how they pass on when it is fused again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fuse.ir import Graph, Op, lands_in, leaves
from fuse.placement import Alias, Land, Placement, Read


def core(op: Op) -> Op | None:
    """The part of a placed op that computes its result: what the op is without its placements."""
    if not op.placements:
        return None
    results = _results(op)
    return next((part for part in op.parts if part.kind == op.kind and part.outputs == results), None)


def seen(op: Op) -> Op:
    """The op as what computes sees it: operands and results in place of the wider values.

    Those values lie inside the op: they tell what is computed, and stand nowhere else.
    """
    if not op.placements:
        return op
    part = core(op)
    if part is not None:
        return seen(part)._replace(slot=op.slot)
    inputs = list(op.inputs)
    for placement in op.placements:
        if isinstance(placement, Read):
            inputs[placement.operand] = placement.value
    return op._replace(inputs=tuple(inputs), outputs=_results(op), placements=())


def _results(op: Op) -> tuple[str, ...]:
    """The results before they land."""
    landed = {p.output: p.value for p in op.placements if isinstance(p, Land)}
    return tuple(landed.get(number, value) for number, value in enumerate(op.outputs))


def aliases(op: Op) -> bool:
    """Whether the op is only a name for parts of what it reads, which others read in place."""
    return any(isinstance(placement, Alias) for placement in op.placements)


#: A kind that lands in the rows of a cache -> the class that is.
_CACHED = {
    **dict.fromkeys(("rope", "RotaryEmbedding", "com.microsoft.RotaryEmbedding"), "rope_kv_append"),
    "qk_norm_rope": "qk_norm_rope_kv_append",
}


def realized(op: Op, placement: Placement) -> tuple[str, ...]:
    """What a placement of an op answers for: its rule, and a class that is this op landing in a cache."""
    if not isinstance(placement, Land):
        return ("read_in_place",)
    cached = _CACHED.get(op.kind, "") if placement.into and placement.unit == "rows" else ""
    return (f"land_in_{placement.unit}", *((cached,) if cached else ()))


def carried(
    parts: Sequence[Op], own: Iterable[Placement], operands: Sequence[str], outputs: Sequence[str]
) -> tuple[tuple[str, ...], tuple[Placement, ...]]:
    """The operands and placements of an op over parts that may be placed.

    own: placements that the op itself adds. An operand that lies inside the parts is read from its
    wider value, and so is one that only one part reads, in place; results of parts that land and are
    results of the op keep landing.
    """
    added = list(own)
    held = [placement for part in parts for placement in part.placements] + added
    reads: dict[str, Read] = {p.value: p for p in held if isinstance(p, Read)}
    found: list[Placement] = []
    inputs: list[str] = []
    for number, operand in enumerate(operands):
        read = _through(operand, reads) or _only_read(operand, held, parts)
        inputs.append(operand if read is None else read.base)
        if read is not None:
            found.append(read._replace(operand=number))
    places = {value: number for number, value in enumerate(outputs) if value}
    for placement in held:
        if isinstance(placement, Land) and placement.wide in places:
            found.append(placement._replace(output=places[placement.wide]))
    found += [placement for placement in added if isinstance(placement, Alias)]
    return tuple(inputs), tuple(found)


def _only_read(operand: str, held: Iterable[Placement], parts: Sequence[Op]) -> Read | None:
    """The read in place that is all there is of a value inside the parts."""
    found = [p for p in held if isinstance(p, Read) and p.base == operand]
    if len(found) != 1 or sum(part.inputs.count(operand) for part in parts) != 1:
        return None
    return found[0]


def _through(operand: str, reads: Mapping[str, Read]) -> Read | None:
    """Reads of reads as one."""
    first = reads.get(operand)
    found = first
    while found is not None and found.base in reads:
        below = reads[found.base]
        found = found._replace(base=below.base, views=(*below.views, *found.views))
    return found


class Clash(NamedTuple):
    """A writer that would stand between a read of a value and where that was made."""

    writer: str
    value: str
    reader: str


def apart(
    graph: Graph, op: Op, reads: Iterable[str], window: Sequence[int]
) -> tuple[list[int], Clash | None]:
    """The slots of a window where nothing between writes what is read, and what clashes in the others.

    op: about to be put there. Where it lands in the memory of a value, it stands behind every other
    read of that; where it reads one, before whatever lands in its memory.
    """
    own = {leaf.slot for leaf in leaves(op)}
    low, high = -1, len(graph.slots)
    clash: Clash | None = None
    for value in lands_in(op):
        for slot in graph.lookers(value):
            reader = graph.slots[graph.into[slot]]
            if slot not in own and reader is not None and max(slot, reader.slot) > low:
                low = max(slot, reader.slot)
                clash = Clash(op.path, value, reader.path)
    for value in reads if graph.landed else ():
        writer = graph.writer(graph.memory(value))
        if writer is not None and not own.issuperset(leaf.slot for leaf in leaves(writer)):
            high = min(high, *_landings(writer))
            clash = Clash(writer.path, value, op.path)
    return [slot for slot in window if low < slot < high], clash


def _landings(op: Op) -> list[int]:
    """The slots where an op lands in something, now or where it is undone."""
    inner = [slot for part in op.parts if part.parts and lands_in(part) for slot in _landings(part)]
    return [op.slot, *inner]
