"""Placements on ops: what an op computes beneath them, and how they pass on when it is fused again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fuse.ir import Graph, Op, leaves, written
from fuse.placement import Alias, Land, Placement, Read

__all__ = ["aliases", "apart", "carried", "core", "seen", "written"]


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
    return op._replace(inputs=tuple(inputs), outputs=_results(op))


def _results(op: Op) -> tuple[str, ...]:
    """The results before they land."""
    landed = {p.output: p.value for p in op.placements if isinstance(p, Land)}
    return tuple(landed.get(number, value) for number, value in enumerate(op.outputs))


def aliases(op: Op) -> bool:
    """Whether the op is only a name for parts of what it reads, which others read in place."""
    return any(isinstance(placement, Alias) for placement in op.placements)


def carried(
    parts: Sequence[Op], own: Iterable[Placement], operands: Sequence[str], outputs: Sequence[str]
) -> tuple[tuple[str, ...], tuple[Placement, ...]]:
    """The operands and placements of an op over parts that may be placed.

    own: placements that the op itself adds. An operand that lies inside the parts is read from its
    wider value; results of parts that land and are results of the op keep landing.
    """
    added = list(own)
    held = [placement for part in parts for placement in part.placements] + added
    reads: dict[str, Read] = {p.value: p for p in held if isinstance(p, Read)}
    found: list[Placement] = []
    inputs: list[str] = []
    for number, operand in enumerate(operands):
        read = _through(operand, reads)
        inputs.append(operand if read is None else read.base)
        if read is not None:
            found.append(read._replace(operand=number))
    places = {value: number for number, value in enumerate(outputs) if value}
    for placement in held:
        if isinstance(placement, Land) and placement.wide in places:
            found.append(placement._replace(output=places[placement.wide]))
    found += [placement for placement in added if isinstance(placement, Alias)]
    return tuple(inputs), tuple(found)


def _through(operand: str, reads: Mapping[str, Read]) -> Read | None:
    """Reads of reads as one."""
    first = reads.get(operand)
    found = first
    while found is not None and found.base in reads:
        below = reads[found.base]
        found = found._replace(base=below.base, views=(*below.views, *found.views))
    return found


def apart(
    graph: Graph,
    parts: Sequence[Op],
    placements: Iterable[Placement],
    reads: Iterable[str],
    window: list[int],
) -> tuple[list[int], Op | None]:
    """The slots of a window where nothing between writes what is read, and a writer that stands in the way.

    A read of a value stands before the op that lands in its memory: where the new op lands, behind
    every other read of it; where the new op reads, before whatever lands there.
    """
    own = {leaf.slot for part in parts for leaf in leaves(part)}
    into = {p.into for p in placements if isinstance(p, Land) and p.into}
    into.update(value for part in parts for value in written(part))
    low, high = -1, len(graph.slots)
    for value in into:
        for slot in graph.lookers(value):
            if slot not in own:
                low = max(low, slot, graph.into[slot])
    blocked: Op | None = None
    for value in reads if graph.landed else ():
        writer = graph.writer(graph.memory(value))
        if writer is not None and not own.issuperset(leaf.slot for leaf in leaves(writer)):
            high = min(high, *_landings(writer))
            blocked = writer
    return [slot for slot in window if low < slot < high], blocked


def _landings(op: Op) -> list[int]:
    """The slots where an op lands in something, now or where it is undone."""
    inner = [slot for part in op.parts if part.parts and written(part) for slot in _landings(part)]
    return [op.slot, *inner]
