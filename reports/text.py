"""The report as a page of text: the totals, a row a rule, and what it cost not to fire."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fuse.report import Decision, Group, Report, counts, grouped
from reports.view import View, chosen, open_ones
from reports.words import (
    WORDS,
    cause,
    clean,
    clip,
    count,
    place,
    saves,
    scaled,
    short_code,
    size,
    unit_name,
    unit_of,
)

#: The default page has no more lines than this.
PAGE = 25
_DIGITS = re.compile(r"\d+")
#: What stands before a reason on a line of its own.
_UNDER = "   "
#: A symbolic sum longer than this says only what it depends on.
_LONGEST_SUM = 40

Cells = tuple[str, ...]


def render(report: Report, view: View) -> str:
    """At most 25 lines, unless the view asks for more groups or for every place."""
    rows = chosen(report, view)
    head = _head(report)
    costs = _costs(open_ones(rows, view), view)
    tail = ["", f"more: {', '.join(view.more)}"] if view.more else []
    room = None if view.every else PAGE - len(head) - len(costs) - len(tail) - 2
    lines = [*head, "", *_rules(report, rows, room), *costs, *tail]
    return "".join(clip(line.rstrip(), view.width) + "\n" for line in lines)


# ---- totals -------------------------------------------------------------------------------------
def _head(report: Report) -> list[str]:
    before, after = report.before, report.after
    launches = (
        f"launches {before.launches:,} -> {after.launches:,}{_percent(before.launches, after.launches)}"
    )
    first = [
        f"{clean(report.model.name)} on {clean(report.chip.name)}",
        count(before.ops, "op"),
        launches,
        _traffic(before.bytes, after.bytes),
    ]
    share = f" ({100 * after.covered / before.ops:.0f} %)" if before.ops else ""
    second = [f"{after.covered:,} of {count(before.ops, 'op')}{share} in fused operators"]
    if after.unknown:
        second.append(f"{count(after.unknown, 'value')} of unknown size")
    second.append(_checked(report))
    if report.held_rules:
        second.append(f"held: {clean(', '.join(report.held_rules))}")
    return ["   ".join(first), "   ".join(second)]


def _percent(before: int, after: int) -> str:
    return f" ({100 * (after - before) / before:+.0f} %)" if before else ""


def _traffic(before: int | str, after: int | str) -> str:
    """Both sides in one unit; sums too long to read name only their symbols."""
    if isinstance(before, int) and isinstance(after, int):
        unit = max(unit_of(before), unit_of(after))
        return f"traffic {scaled(before, unit)} -> {scaled(after, unit)} {unit_name(unit)}"
    if max(len(str(before)), len(str(after))) <= _LONGEST_SUM:
        return f"traffic {size(before)} -> {size(after)}"
    return "traffic depends on symbolic dims: bind them with --dim"


def _checked(report: Report) -> str:
    check = report.check
    if check is None:
        return "values not checked"
    if not check.ok:
        first = f", first at {clean(check.differs)}" if check.differs else ""
        return f"values differ (seed {check.seed}){first}"
    parts = "bit-equal" if check.bit_equal else "not bit-equal"
    return f"values checked, {parts} (seed {check.seed}, definitions within {check.max_error})"


# ---- a row a rule -------------------------------------------------------------------------------
def _rules(report: Report, rows: Sequence[Decision], room: int | None) -> list[str]:
    table = counts(report.steps, rows)
    saved = dict.fromkeys(table, 0)
    missed = dict.fromkeys(table, 0)
    codes: dict[str, dict[str, dict[str, None]]] = {rule: {} for rule in table}
    for row in rows:
        if row.kind == "fired":
            saved[row.rule] += row.saves.launches or 0
        elif row.absorbed_by is None:
            missed[row.rule] += row.saves.launches or 0
            of_kind = codes[row.rule].setdefault(WORDS[row.kind], {})
            of_kind.update((short_code(reason.code), None) for reason in row.reasons)
    shown = list(table)
    if room is not None and len(shown) > room:
        weight = {rule: (-(saved[rule] + missed[rule]), n) for n, rule in enumerate(shown)}
        kept = set(sorted(shown, key=weight.__getitem__)[: room - 1])
        shown = [rule for rule in shown if rule in kept]
    cells: list[Cells] = [("rule", *WORDS.values(), "launches saved", "not saved", "")]
    for rule in shown:
        numbers = [f"{n:,}" if n else "-" for n in table[rule].values()]
        said = [f"{word}: {', '.join(names)}" for word, names in codes[rule].items() if names]
        why = f"<- {'; '.join(said)}" if said else ""
        cells.append((clean(rule), *numbers, _dash(saved[rule]), _dash(missed[rule]), why))
    lines = align(cells, "<>>>>>><")
    if len(shown) < len(table):
        lines.append(f"and {count(len(table) - len(shown), 'rule')} more")
    return lines if table else ["no decisions"]


def _dash(number: int) -> str:
    return f"{number:,}" if number else "-"


def align(rows: Sequence[Cells], sides: str) -> list[str]:
    """Rows as columns two spaces apart; sides: < or > for each column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True))
        for row in rows
    ]


def folded(rows: Sequence[Cells], sides: str, under: Sequence[str], width: int | None) -> list[str]:
    """Rows as `align` has them where that fits the width; else the last cells, which say why, stand on lines
    of their own under their row, each behind its word of `under` ("-" and empty ones left out)."""
    lines = align(rows, sides)
    if width is None or max(len(line.rstrip()) for line in lines) <= width:
        return lines
    kept = len(sides) - len(under)
    heads = align([row[:kept] for row in rows], sides[:kept])
    found = [heads[0]]
    for head, row in zip(heads[1:], rows[1:], strict=True):
        found.append(head)
        found += [
            f"{_UNDER}{word}{cell}"
            for word, cell in zip(under, row[kept:], strict=True)
            if cell not in ("", "-")
        ]
    return found


# ---- what did not fire --------------------------------------------------------------------------
def _costs(rows: list[Decision], view: View) -> list[str]:
    if not rows:
        return ["", "nothing was refused, held or nearly matched"] if not view.narrowed else []
    heads = ("", "rule", "place", "outcome", "saves", "why")
    if view.every:
        cells = [heads, *(_place_cells(n, row) for n, row in enumerate(rows, 1))]
        lines = folded(cells, "><<<<<", ("",), view.width)
        return ["", "every place", *lines]
    groups = grouped(rows, apart=_told)
    shown = groups[: view.top]
    title = "costliest" if view.outcomes else "costliest not fired"
    if len(groups) > len(shown):
        title += f" ({len(shown)} of {count(len(groups), 'group')})"
    cells = [heads, *(_group_cells(n, group) for n, group in enumerate(shown, 1))]
    return ["", title, *folded(cells, "><<<<<", ("",), view.width)]


def _told(row: Decision) -> object:
    """What a line tells beside rule and place, over the layers: another structure alone would be the same
    line again."""
    return _outcome(row), _DIGITS.sub("*", cause(row.reasons))


def _outcome(row: Decision) -> str:
    outcome = row.outcome
    if outcome.kind == "near_miss":
        return f"near {outcome.miss.matched}/{outcome.miss.of}"
    return outcome.kind


def _group_cells(n: int, group: Group) -> Cells:
    first = group.rows[0]
    return (
        f"{n}",
        clean(group.rule),
        f"{group.places}x {clean(group.place)}",
        _outcome(first),
        count(group.launches, "launch") if group.launches else saves(None, None, group.bytes),
        cause(first.reasons),
    )


def _place_cells(n: int, row: Decision) -> Cells:
    cost = saves(row.saves, None, None)
    return (
        f"{n}",
        clean(row.rule),
        place(row),
        _outcome(row),
        cost,
        f"{cause(row.reasons)} [{row.id}]".strip(),
    )
