"""What a fusion saves: launches not made, and bytes not written and read again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from fuse.ir import Graph, Op
from fuse.record import Record
from fuse.report_bytes import size_text
from fuse.report_rows import Saves
from fuse.types import UNKNOWN, Dim, Type, add, mul, nbytes

#: Operators that no runtime launches a kernel for: they only say how bytes are read.
FREE_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})


def moved(graph: Graph, op: Op) -> Iterator[Type]:
    """The type of each value that an op reads or writes, constants left out."""
    types, constants = graph.base.types, graph.base.constants
    for value in {*op.inputs, *op.outputs}:
        if value and value not in constants:
            yield types.get(value, UNKNOWN)


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
        self._graph = graph
        self._refused = {(row.root, row.builds) for row in rows if row.outcome == "refused"}
        self._made: dict[tuple[int, frozenset[tuple[Type, int]]], Saves] = {}

    def of(self, row: Record) -> Saves:
        """What a decision saves or would save; bytes is None where a shape that counts is unknown."""
        fused = row.op if row.op is not None else _as_one(row)
        count: Counter[Type] = Counter()
        launches = -1
        for part in self._members(fused):
            if part.kind not in FREE_VIEWS:
                launches += 1
                count.update(moved(self._graph, part))
        count.subtract(moved(self._graph, fused))
        key = max(launches, 0), frozenset(item for item in count.items() if item[1])
        found = self._made.get(key)
        if found is None:
            total, unknown = sum_bytes(key[1])
            found = Saves(launches=key[0], bytes=None if unknown else size_text(total))
            self._made[key] = found
        return found

    def _members(self, op: Op) -> Iterator[Op]:
        for part in op.parts:
            if part.parts and (part.path, part.kind) in self._refused:
                yield from self._members(part)
            else:
                yield part


def _as_one(row: Record) -> Op:
    """The ops of a near miss as the one op they would have become: their root alone is written."""
    made = {value for op in row.ops for value in op.outputs}
    reads = dict.fromkeys(value for op in row.ops for value in op.inputs if value not in made)
    return Op(row.builds, tuple(reads), (row.root,), {}, row.ops)
