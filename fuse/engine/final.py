"""Which near misses stay in the report: one place, one near miss, and none where something else fired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fuse.classes import CLASSES
from fuse.engine.record import Record
from fuse.ir import Op


class _Holder(NamedTuple):
    """An op that fired: its rule, the number of its record, its slots."""

    rule: str
    number: int
    slots: frozenset[int]


#: (graph, slot) -> the ops that fired there.
Holders = dict[tuple[str, int], list[_Holder]]
_READERS = frozenset({"read_elsewhere", "graph_output", "captured"})


def final(records: Sequence[Record]) -> tuple[Record, ...]:
    """The records less the near misses whose place fired after all, and doubles.

    A near miss inside one op that fired, or whose faulty op is part of another place that fired, is
    none. Where only smaller forms fired inside it, it stays: it says why the larger one did not. Of
    near misses that speak of one place, the one whose pattern holds most stays.
    """
    fused = [r for r in records if r.outcome in ("fired", "refused") and not _gathers(r.builds)]
    holders: Holders = {}
    for record in fused:
        slots = frozenset(op.slot for op in record.ops)
        for slot in slots:
            holders.setdefault((record.graph, slot), []).append(_Holder(record.rule, record.number, slots))
    left = [r for r in records if r.miss is not None and not _taken(r, holders)]
    left.sort(key=_weight, reverse=True)
    told = _Told()
    kept = {record.number for record in left if told.tell(record)}
    return tuple(r for r in records if r.miss is None or r.number in kept)


class _Told:
    """The near misses told so far, by where they lie, so that each new one meets only its neighbours."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, str], list[Record]] = {}

    def tell(self, record: Record) -> bool:
        """Note a near miss; False where its place is told already."""
        miss: Any = record.miss
        places = {op.path for op in record.ops} | {miss.at, record.root}
        near = {other.number: other for place in places for other in self._at.get((record.graph, place), ())}
        if any(_one_place(record, other) for other in near.values()):
            return False
        for place in places:
            self._at.setdefault((record.graph, place), []).append(record)
        return True


def _weight(record: Record) -> tuple[bool, int, int, int]:
    """What only gathers what stands tells less than what it gathers."""
    miss: Any = record.miss
    return not _gathers(record.builds), miss.matched, miss.of, -record.number


def _gathers(name: str) -> bool:
    """What only gathers what stands (a region, a block) or places it is no other reading of a place."""
    return name not in CLASSES or CLASSES[name].composite


def _taken(record: Record, holders: Holders) -> bool:
    """Whether one op that fired holds the whole place, or the faulty op and more than the place.

    Where a smaller form of the rule itself holds the faulty op, what was built on that is no other
    reading of the place.
    """
    miss: Any = record.miss
    own = frozenset(op.slot for op in record.ops)

    def reach(op: Op) -> list[_Holder]:
        return holders.get((record.graph, op.slot), [])

    def elsewhere(op: Op) -> bool:
        found = reach(op)
        smaller = any(holder.rule == record.rule and holder.slots <= own for holder in found)
        return not smaller and any(not holder.slots <= own for holder in found)

    if record.ops and any(own <= holder.slots for holder in reach(record.ops[0])):
        return True
    if miss.code in _READERS:
        return False
    at_fault = [op for op in record.ops if miss.at in op.outputs]
    faulty = at_fault or [op for op in record.ops if miss.at in op.inputs]
    rest = own.difference(op.slot for op in at_fault)
    root = next((op for op in record.ops if record.root in op.outputs), None)
    # All but the faulty op became another op: what that op reads is its own affair.
    others = () if root is None or root in at_fault or len(rest) < 2 else reach(root)
    if any(holder.number > record.number and rest <= holder.slots for holder in others):
        return True
    return bool(faulty) and all(map(elsewhere, faulty))


def _one_place(a: Record, b: Record) -> bool:
    """Whether two near misses name one fault of ops they share, or share most of the smaller one's ops;
    or the first ends inside the second, which is told already.

    A constant that several places read is a fault of each of them.
    """
    one: Any = a.miss
    two: Any = b.miss
    if any(a.root in op.outputs for op in b.ops):
        return True
    first, second = {op.slot for op in a.ops}, {op.slot for op in b.ops}
    both = len(first & second)
    same = (one.code, one.at) == (two.code, two.at)
    return (same and (both > 0 or not first)) or 2 * both >= min(len(first), len(second))
