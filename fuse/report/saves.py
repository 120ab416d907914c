"""What a fusion saves: launches not made, and bytes not written and read again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fuse.engine.record import Record, state
from fuse.ir import Graph, Op
from fuse.placing import aliases
from fuse.report.bytes import size_text
from fuse.report.rows import Saves
from fuse.types import UNKNOWN, Dim, Type, add, mul, nbytes

#: Operators that no runtime launches a kernel for: they only say how bytes are read.
FREE_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})


def launched(op: Op) -> bool:
    """Whether an op is a kernel, and not only a way to read bytes."""
    return op.kind not in FREE_VIEWS and not aliases(op)


def sum_bytes(types: Iterable[tuple[Type, int]]) -> tuple[Dim, int]:
    """Bytes of values given as types with how many of each, and how many have no known size."""
    total: Dim = 0
    unknown = 0
    for type, number in types:
        size = nbytes(type)
        if size is None:
            unknown += abs(number)
        else:
            total = add(total, mul(number, size))
    return total, unknown


class Ledger:
    """The savings of decisions over one graph; those of equal types are summed once.

    A firing is measured against its members as they run: one that the chip refused counts as its
    parts. So the savings of the firings that stand add up to the graph before less the graph after.
    """

    def __init__(self, graph: Graph, rows: Sequence[Record]) -> None:
        self._types, self._constants = graph.base.types, graph.base.constants
        self._refused = {state(row.op) for row in rows if row.outcome == "refused" and row.op is not None}
        self._numbers: dict[Type, int] = {}
        self._made: dict[tuple[int, frozenset[tuple[int, int]]], Saves] = {}

    def of(self, row: Record) -> Saves:
        """What a decision saves or would save; bytes is None where a shape that counts is unknown."""
        fused = row.op if row.op is not None else _as_one(row)
        count: dict[int, int] = {}
        launches = 0
        for part in self._members(fused):
            if launched(part):
                launches += 1
                self._moves(part, 1, count)
        if launched(fused):
            launches -= 1
            self._moves(fused, -1, count)
        key = max(launches, 0), frozenset(count.items())
        found = self._made.get(key)
        if found is None:
            types = list(self._numbers)
            total, unknown = sum_bytes((types[n], times) for n, times in count.items() if times)
            found = Saves(launches=key[0], bytes=None if unknown else size_text(total))
            self._made[key] = found
        return found

    def _moves(self, op: Op, sign: int, count: dict[int, int]) -> None:
        """Count the values that an op reads or writes, constants left out, by the number of their type."""
        for value in {*op.inputs, *op.outputs}:
            if value and value not in self._constants:
                type = self._types.get(value, UNKNOWN)
                number = self._numbers.setdefault(type, len(self._numbers))
                count[number] = count.get(number, 0) + sign

    def _members(self, op: Op) -> Iterator[Op]:
        for part in op.parts:
            if part.parts and state(part) in self._refused:
                yield from self._members(part)
            else:
                yield part


def _as_one(row: Record) -> Op:
    """The ops of a near miss as the one op they would have become: their root alone is written."""
    made = {value for op in row.ops for value in op.outputs}
    reads = dict.fromkeys(value for op in row.ops for value in op.inputs if value not in made)
    return Op(row.builds, tuple(reads), (row.root,), {}, row.ops)
