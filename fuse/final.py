"""Which near misses stay in the report: one place, one near miss, and none where something else fired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuse.classes import CLASSES
from fuse.record import Record

_READERS = frozenset({"read_elsewhere", "graph_output", "captured"})


def final(records: Sequence[Record]) -> tuple[Record, ...]:
    """The records less the near misses whose place fired after all, and doubles.

    A near miss inside one op that fired, or whose faulty op another rule took, is none. Where only
    smaller forms fired inside it, it stays: it says why the larger one did not. Of near misses that
    speak of one place, the one whose pattern holds most stays.
    """
    fused = [r for r in records if r.outcome in ("fired", "refused") and not _gathers(r.builds)]
    taken = {(r.graph, v) for r in fused for op in r.ops for v in op.outputs}
    holders: dict[tuple[str, int], list[frozenset[int]]] = {}
    for record in fused:
        slots = frozenset(op.slot for op in record.ops)
        for slot in slots:
            holders.setdefault((record.graph, slot), []).append(slots)
    left = [
        r
        for r in records
        if r.miss is not None and not _inside(r, holders) and not _fused_after_all(r, taken)
    ]
    left.sort(key=_weight, reverse=True)
    kept: set[int] = set()
    told: list[Record] = []
    for record in left:
        if not any(_one_place(record, other) for other in told):
            told.append(record)
            kept.add(record.number)
    return tuple(r for r in records if r.miss is None or r.number in kept)


def _weight(record: Record) -> tuple[int, int, int]:
    miss: Any = record.miss
    return miss.matched, miss.of, -record.number


def _gathers(name: str) -> bool:
    """A class that only gathers what stands (a region, a block): no other reading of a place."""
    return name in CLASSES and CLASSES[name].composite


def _inside(record: Record, holders: dict[tuple[str, int], list[frozenset[int]]]) -> bool:
    """Whether one op that fired holds the whole place."""
    slots = frozenset(op.slot for op in record.ops)
    first = next(iter(slots), -1)
    return any(slots <= holder for holder in holders.get((record.graph, first), ()))


def _fused_after_all(record: Record, taken: set[tuple[str, str]]) -> bool:
    """Whether the op that carries the fault is inside a fused op now."""
    miss: Any = record.miss
    if miss.code in _READERS:
        return False
    if (record.graph, miss.at) in taken or miss.code == "attribute":
        return (record.graph, miss.at) in taken
    takers = [op for op in record.ops if miss.at in op.inputs]
    return bool(takers) and all((record.graph, v) in taken for op in takers for v in op.outputs[:1])


def _one_place(a: Record, b: Record) -> bool:
    """Whether two near misses name one fault, or share most of the smaller one's ops."""
    one: Any = a.miss
    two: Any = b.miss
    if a.graph != b.graph:
        return False
    if (one.code, one.at) == (two.code, two.at):
        return True
    first, second = {op.slot for op in a.ops}, {op.slot for op in b.ops}
    return 2 * len(first & second) >= min(len(first), len(second))
