"""What changed between two reports: transitions of places, aligned by id.

Same model on two chips: what porting does. Same chip, one rule held: what that rule enables. Two versions
of fuse: what is new. Places are never aligned by wording or by dims.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from fuse.report.rows import Decision, Report

#: gained: it fires now. lost: it fired. changed: another reason or outcome, fired neither time. moved: it
#: fires both times, as another class or over more or fewer ops. new, gone: a place of one report alone.
Kind = Literal["gained", "lost", "changed", "moved", "new", "gone"]
KINDS: tuple[Kind, ...] = ("lost", "gone", "gained", "new", "moved", "changed")


class Change(NamedTuple):
    """One place in both reports; None where a report does not have it."""

    kind: Kind
    before: Decision | None
    after: Decision | None

    @property
    def row(self) -> Decision:
        """The decision to name the place by: the later one where there is one."""
        row = self.after or self.before
        assert row is not None
        return row


class ChangeGroup(NamedTuple):
    """Changes that repeat over the layers of a model."""

    kind: Kind
    rule: str
    place: str
    changes: tuple[Change, ...]


class Diff(NamedTuple):
    """The changes from one report to another, in the order of the steps."""

    before: Report
    after: Report
    changes: tuple[Change, ...]

    def of(self, *kinds: Kind) -> tuple[Change, ...]:
        """The changes of some kinds."""
        return tuple(change for change in self.changes if change.kind in kinds)

    @property
    def lost(self) -> tuple[Change, ...]:
        """Firings that are no more, whether their place is refused now or gone."""
        return tuple(
            change
            for change in self.of("lost", "gone")
            if change.before is not None and change.before.kind == "fired"
        )

    @property
    def refused(self) -> tuple[Change, ...]:
        """Places that the chip refuses now and did not before."""
        return tuple(
            change
            for change in self.changes
            if change.after is not None
            and change.after.kind == "refused"
            and (change.before is None or change.before.kind != "refused")
        )

    def differences(self) -> tuple[str, ...]:
        """What differs between the compiles themselves: model, chip, held rules, version."""
        a, b = self.before, self.after
        pairs = (
            ("model", _named(a.model.name, a.model.sha256), _named(b.model.name, b.model.sha256)),
            ("chip", _named(a.chip.name, a.chip.sha256), _named(b.chip.name, b.chip.sha256)),
            ("held", ", ".join(a.held_rules) or "nothing", ", ".join(b.held_rules) or "nothing"),
            ("by", a.made_by, b.made_by),
        )
        return tuple(f"{what} {one} -> {two}" for what, one, two in pairs if one != two)

    def groups(self) -> tuple[ChangeGroup, ...]:
        """Changes alike, as one each: what is lost first, then in the order of the steps."""
        table: dict[tuple[Hashable, ...], list[Change]] = defaultdict(list)
        for change in self.changes:
            key = (change.kind, change.row.rule, change.row.group, state(change.before), state(change.after))
            table[key].append(change)
        groups = [
            ChangeGroup(members[0].kind, members[0].row.rule, members[0].row.group, tuple(members))
            for members in table.values()
        ]
        return tuple(sorted(groups, key=lambda group: KINDS.index(group.kind)))


def _named(name: str, digest: str) -> str:
    return f"{name} ({digest[:8]})" if digest else name


def state(row: Decision | None) -> tuple[str, ...]:
    """What a decision says of its place: its outcome, its class where it fired, else the codes."""
    if row is None:
        return ()
    return (row.kind, row.builds) if row.kind == "fired" else (row.kind, *(r.code for r in row.reasons))


def diff(before: Report, after: Report) -> Diff:
    """The changes from one report to the other.

    Places are aligned by id; then by rule and root, which an outcome of another kind keeps; then by rule
    and an op that both have; and where the model itself is another one, by rule, group and which of the
    group it is.
    """
    pairs: list[tuple[Decision, Decision]] = []
    left, right = list(before.decisions), list(after.decisions)
    left, right = _paired(left, right, lambda row: row.id, pairs)
    left, right = _paired(left, right, lambda row: (row.rule, row.root), pairs)
    left, right = _overlapping(left, right, pairs)
    if before.model.sha256 != after.model.sha256:
        left, right = _paired(left, right, lambda row: (row.rule, row.group), pairs)
    same_model = before.model.sha256 == after.model.sha256
    changes = [change for one, two in pairs if (change := _change(one, two, same_model)) is not None]
    changes += _unpaired(left, right)
    order = {name: number for number, name in enumerate(dict.fromkeys((*before.steps, *after.steps)))}
    changes.sort(key=lambda change: (order.get(change.row.rule, len(order)), change.row.n))
    return Diff(before, after, tuple(changes))


def _paired(
    left: list[Decision],
    right: list[Decision],
    key: Callable[[Decision], Hashable],
    pairs: list[tuple[Decision, Decision]],
) -> tuple[list[Decision], list[Decision]]:
    """Pair what has one key, the first with the first; what is left of both."""
    waiting: dict[Hashable, list[Decision]] = defaultdict(list)
    for row in reversed(right):
        waiting[key(row)].append(row)
    alone = []
    for row in left:
        others = waiting.get(key(row))
        if others:
            pairs.append((row, others.pop()))
        else:
            alone.append(row)
    rest = {id(row) for rows in waiting.values() for row in rows}
    return alone, [row for row in right if id(row) in rest]


def _overlapping(
    left: list[Decision], right: list[Decision], pairs: list[tuple[Decision, Decision]]
) -> tuple[list[Decision], list[Decision]]:
    """Pair what one rule made of overlapping ops; near misses have only the ops that stand."""
    owners = {(row.rule, op): row for row in right if row.kind != "near_miss" for op in row.ops}
    alone, taken = [], set()
    for row in left:
        found = (owners.get((row.rule, op)) for op in row.ops) if row.kind != "near_miss" else ()
        other = next((one for one in found if one is not None and id(one) not in taken), None)
        if other is None:
            alone.append(row)
        else:
            taken.add(id(other))
            pairs.append((row, other))
    return alone, [row for row in right if id(row) not in taken]


def _change(before: Decision, after: Decision, same_model: bool) -> Change | None:
    """The change of a place; none where it is the same. Ops of two models are not compared."""
    if state(before) == state(after) and (before.ops == after.ops or not same_model):
        return None
    fired = (before.kind == "fired", after.kind == "fired")
    kinds: dict[tuple[bool, bool], Kind] = {
        (False, True): "gained", (True, False): "lost", (True, True): "moved", (False, False): "changed",
    }  # fmt: skip
    return Change(kinds[fired], before, after)


def _unpaired(left: Iterable[Decision], right: Iterable[Decision]) -> list[Change]:
    """Places of one report alone; the same ops that fired as another class in the other moved."""
    fired = {row.ops: row for row in right if row.kind == "fired"}
    changes, moved = [], set()
    for row in left:
        other = fired.pop(row.ops, None) if row.kind == "fired" else None
        if other is not None:
            moved.add(id(other))
        changes.append(Change("gone" if other is None else "moved", row, other))
    return [*changes, *(Change("new", None, row) for row in right if id(row) not in moved)]
