"""Which decision took which in, from the leaves alone, in time linear in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fuse.engine.record import Record

Leaf = tuple[str, int]


class _Owners:
    """Who holds each lifted slot now, as decisions come in order."""

    def __init__(self) -> None:
        self.owner: dict[Leaf, int] = {}
        self.leaves: dict[int, tuple[Leaf, ...]] = {}
        self.parent: dict[int, int] = {}
        self.children: dict[int, list[int]] = {}

    def take(self, n: int, leaves: tuple[Leaf, ...]) -> None:
        """Decision n stands on these leaves: whole owners go into it, torn ones are dissolved."""
        pending = Counter(self.owner[leaf] for leaf in leaves if leaf in self.owner)
        while pending:
            below, number = pending.popitem()
            if number == len(self.leaves[below]):
                self.parent[below] = n
                self.children.setdefault(n, []).append(below)
                continue
            taken = set(leaves)
            pending.update(self.owner[leaf] for leaf in self._dissolve(below) if leaf in taken)
        self.leaves[n] = leaves
        for leaf in leaves:
            self.owner[leaf] = n

    def _dissolve(self, n: int) -> list[Leaf]:
        """Give the leaves of a decision back to its members; those that have an owner again."""
        for leaf in self.leaves[n]:
            self.owner.pop(leaf, None)
        back = []
        for child in self.children.pop(n, ()):
            del self.parent[child]
            for leaf in self.leaves[child]:
                self.owner[leaf] = child
                back.append(leaf)
        return back


def absorbers(rows: Sequence[Record]) -> list[int | None]:
    """For each decision, the index of the next one that took it in and stands in what fired.

    A refused decision that nothing fired upon dissolved, so it took nothing in. Held decisions and
    near misses stand in no graph.
    """
    owners = _Owners()
    for n, row in enumerate(rows):
        if row.outcome in ("fired", "refused"):
            owners.take(n, tuple([(row.graph, op.slot) for op in row.ops]))
    above: list[int | None] = [owners.parent.get(n) for n in range(len(rows))]
    for n in range(len(rows) - 1, -1, -1):
        parent = above[n]
        if parent is not None and rows[parent].outcome == "refused" and above[parent] is None:
            above[n] = None
    return above
