"""Questions to a report, answered by a tuple whose repr explains why it is empty."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fuse.report.bytes import Size, add_sizes, known_bytes

if TYPE_CHECKING:
    from fuse.report.rows import Decision, Limit, Miss, Report

#: Outcome kind -> the word that tables and messages use.
WORDS = {"fired": "fired", "held": "held", "refused": "refused", "near_miss": "near"}
#: How many places an explanation quotes.
_QUOTED = 3


def of(row: Decision, name: str) -> bool:
    """Whether a decision is of the rule or class of that name."""
    return name in (row.rule, row.builds)


def holds(row: Decision, op: str) -> bool:
    """Whether an op, by node name or path, is among the ops of a decision."""
    return op in row.ops or op in row.names


def answering(rows: Sequence[Decision], name: str) -> list[Decision]:
    """The firings of a rule or class, and those that realize it where no member answers already.

    A member is a firing that the decision took in, however deep. Members come before what took
    them in, so one pass in order decides each place once.
    """
    parents = {row.id: row.absorbed_by for row in rows}
    answered: set[str] = set()
    found: list[Decision] = []
    for row in rows:
        if row.kind != "fired":
            continue
        if row.rule != name and (row.id in answered or name not in (row.builds, *row.realizes)):
            continue
        found.append(row)
        above = row.absorbed_by
        while above is not None and above not in answered:
            answered.add(above)
            above = parents.get(above)
    return found


def counts(steps: Iterable[str], rows: Iterable[Decision]) -> dict[str, dict[str, int]]:
    """Rule -> outcome -> decisions, rules in the order of the steps."""
    table: dict[str, dict[str, int]] = {}
    for (rule, kind), number in Counter((row.rule, row.kind) for row in rows).items():
        table.setdefault(rule, dict.fromkeys(WORDS, 0))[kind] = number
    order = {step: n for n, step in enumerate(steps)}
    return dict(sorted(table.items(), key=lambda item: (order.get(item[0], len(order)), item[0])))


class Group(NamedTuple):
    """Decisions of one rule, class, outcome, cause and structure, over the layers of a model, all
    taken in by another decision or none.

    launches, bytes: what all of them save together; None where no place's is known.
    """

    rule: str
    builds: str
    kind: str
    codes: tuple[str, ...]
    place: str
    rows: tuple[Decision, ...]
    launches: int | None
    bytes: Size

    @property
    def places(self) -> int:
        return len(self.rows)


def grouped(
    rows: Iterable[Decision], apart: Callable[[Decision], object] = lambda row: row.kinds
) -> tuple[Group, ...]:
    """Groups by launches saved, then bytes, then the order of their first place.

    apart: what else two decisions of a group have in common, their structure where nothing is said.
    """
    table: dict[tuple[object, ...], list[Decision]] = {}
    for row in rows:
        codes = tuple(reason.code for reason in row.reasons)
        key = (row.rule, row.builds, row.kind, codes, row.group, apart(row), row.absorbed_by is None)
        table.setdefault(key, []).append(row)
    groups = []
    for members in table.values():
        first = members[0]
        launches = [row.saves.launches for row in members if row.saves.launches is not None]
        groups.append(
            Group(
                first.rule,
                first.builds,
                first.kind,
                tuple(reason.code for reason in first.reasons),
                first.group,
                tuple(members),
                sum(launches) if launches else None,
                add_sizes(row.saves.bytes for row in members),
            )
        )
    groups.sort(key=lambda g: (-(g.launches or 0), -known_bytes(g.bytes), g.rows[0].n))
    return tuple(groups)


class Found(tuple["Decision", ...]):
    """Decisions that answer a query. The repr of an empty one says what came nearest and why."""

    _report: Report
    _asked: str
    _name: str | None

    def __new__(cls, rows: Iterable[Decision], report: Report, asked: str, name: str | None) -> Found:
        found = super().__new__(cls, rows)
        found._report, found._asked, found._name = report, asked, name
        return found

    def __repr__(self) -> str:
        what = self._name or "every rule"
        if self._asked == "decisions":
            return f"<{what}: {_named(self) or explain_op(self._report, what)}>"
        said = f"{what}: {WORDS[self._asked]} {len(self)}"
        if self:
            return f"<{said}: {_named(self)}>"
        return f"<{said}; {'; '.join(explain(self._report, self._asked, self._name))}>"


def _named(rows: Sequence[Decision]) -> str:
    shown = ", ".join(f"{row.rule} {row.group}" if row.group else row.rule for row in rows[:_QUOTED])
    return shown + (f", and {len(rows) - _QUOTED} more" if len(rows) > _QUOTED else "")


def sentence(reason: Limit | Miss) -> str:
    """`code at place: want ..., got ...`."""
    at = getattr(reason, "at", "")
    return f"{reason.code}{' at ' + at if at else ''}: want {reason.want}, got {reason.got}"


def explain(report: Report, asked: str, name: str | None) -> list[str]:
    """Why a query found nothing, nearest cause first, as sentences."""
    if name is not None and name not in known_names(report):
        near = nearest(name, known_names(report))
        return ["no such rule or class" + (f"; nearest: {', '.join(near)}" if near else "")]
    rows = [row for row in report.decisions if name is None or of(row, name) or name in row.realizes]
    said = []
    misses = [row for row in rows if row.kind == "near_miss"] if asked != "near_miss" else []
    if misses:
        misses.sort(key=lambda row: -_share(row))
        said.append("near misses: " + _quoted(misses))
    refused = [row for row in rows if row.kind == "refused"] if asked != "refused" else []
    if refused:
        said.append(f"refused by {report.chip.name}: " + _quoted(refused))
    held = [row for row in rows if row.kind == "held"] if asked != "held" else []
    if held:
        said.append(f"held; would have fired in {sum(map(_fires, held))} of {len(held)} places")
    elif name in report.held_rules and asked != "held":
        said.append("held; would have found nothing")
    fired = sum(row.kind == "fired" for row in rows) if asked != "fired" else 0
    if fired:
        said.append(f"fired {fired}")
    if not said and name is not None and name in report.absent:
        said.append("no operator of its marks in the model")
    return said or ["no place of the model nearly matches"]


def explain_op(report: Report, op: str) -> str:
    """Why no decision has an op."""
    ops = {name for row in report.decisions for name in (*row.ops, *row.names)}
    near = nearest(op, ops)
    return "in no decision" + (f"; nearest with one: {', '.join(near)}" if near else "")


def _fires(row: Decision) -> bool:
    return bool(getattr(row.outcome, "fires", False))


def _share(row: Decision) -> float:
    miss = getattr(row.outcome, "miss", None)
    return miss.matched / miss.of if miss and miss.of else 0.0


def _quoted(rows: Sequence[Decision]) -> str:
    """The distinct reasons of rows, most first met, with how many places share each."""
    table: dict[str, list[str]] = {}
    for row in rows:
        said = ", ".join(f"{r.code}: want {r.want}, got {r.got}" for r in row.reasons)
        first = "; ".join(map(sentence, row.reasons))
        table.setdefault(said, []).append(first)
    shown = [first[0] + (f" ({len(first)}x)" if len(first) > 1 else "") for first in table.values()]
    more = f"; and {len(shown) - _QUOTED} more causes" if len(shown) > _QUOTED else ""
    return "; ".join(shown[:_QUOTED]) + more


def known_names(report: Report) -> set[str]:
    """Every rule and class a query may name."""
    from fuse.classes import CLASSES

    names = set(report.steps) | set(report.held_rules) | CLASSES.keys()
    for row in report.decisions:
        names.update((row.rule, row.builds), row.realizes)
    return names - {""}


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The names closest to a misspelt one, at most three, best first."""
    return difflib.get_close_matches(str(name), sorted(names), n=3, cutoff=0.55)
