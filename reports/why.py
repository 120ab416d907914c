"""One decision in full: where, what was wanted, what is there, what it would save, what to do."""

from __future__ import annotations

from fuse.codes import hint
from fuse.report import Decision, Group, Limit, Miss, Report, grouped
from reports.words import clean, count, place, saves, short_code

#: How many ops a picture shows; the ones left out are counted.
_PICTURED = 12
_LABEL = 11
_TITLES = {"fired": "fired", "held": "held", "refused": "refused", "near_miss": "near miss"}


def render(report: Report, rows: list[Decision], width: int = 100) -> str:
    """A block for each group of rows, the largest saving first."""
    return "\n".join(block(report, group, width) for group in grouped(rows))


def block(report: Report, group: Group, width: int = 100) -> str:
    """The first place of a group, told in full, and how many places are like it."""
    row = group.rows[0]
    lines = [_title(row, width), _place(row, group)]
    if row.kind == "fired":
        lines += _fired(row)
    if row.kind == "held":
        runs = "would run it as one kernel" if getattr(row.outcome, "fires", False) else "would refuse it"
        lines.append(_line("held", f"{clean(report.chip.name)} {runs}"))
    for reason in row.reasons:
        lines += _reason(row, reason)
    if row.absorbed_by:
        lines.append(_line("taken in", _absorber(report, row.absorbed_by)))
    lines += _picture(row, width)
    lines.append(_line("id", row.id))
    return "".join(line.rstrip() + "\n" for line in lines)


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL - 2}}{text}"


def _title(row: Decision, width: int) -> str:
    builds = f" -> {row.builds}" if row.builds not in ("", row.rule) else ""
    left = f"{_TITLES[row.kind]}  {clean(row.rule)}{clean(builds)}"
    miss = getattr(row.outcome, "miss", None)
    left += f"   {miss.matched} of {miss.of} ops matched" if miss else f"   {count(len(row.ops), 'op')}"
    codes = ", ".join(dict.fromkeys(reason.code for reason in row.reasons))
    right = f"[{codes}]" if codes else ""
    return f"{left}{right:>{max(width - len(left), len(right) + 2)}}" if right else left


def _place(row: Decision, group: Group) -> str:
    word = "saves" if row.kind == "fired" else "would save"
    cost = saves(row.saves, None, None)
    parts = [place(row)]
    if group.places > 1:
        parts.append(f"same in {count(group.places, 'place')} ({clean(group.place)})")
    if cost:
        parts.append(f"{word} {cost}")
    return _line("place", "   ".join(parts))


def _fired(row: Decision) -> list[str]:
    lines = []
    if row.kernel:
        known = f" ({clean(row.evidence)})" if row.evidence else ""
        lines.append(_line("kernel", clean(row.kernel) + known))
    if row.note:
        lines.append(_line("note", clean(row.note)))
    others = [clean(name) for name in row.realizes if name not in (row.rule, row.builds)]
    if others:
        lines.append(_line("also", f"answers for {', '.join(others)}"))
    return lines


def _reason(row: Decision, reason: Limit | Miss) -> list[str]:
    lines = []
    if isinstance(reason, Miss):
        lines.append(_line("at", _at(row, reason.at)))
        help = hint(reason.code)
    else:
        lines.append(_line("limit", short_code(reason.code)))
        help = reason.help or hint(reason.code)
    lines += [_line("want", clean(reason.want)), _line("got", clean(reason.got))]
    return [*lines, _line("try", clean(help))] if help else lines


def _at(row: Decision, at: str) -> str:
    """Node and value where the cause sits."""
    if at in row.ops and len(row.names) == len(row.ops):
        return f"{clean(row.names[row.ops.index(at)])}  (value {clean(at)})"
    return clean(at)


def _absorber(report: Report, id: str) -> str:
    above = next((row for row in report.decisions if row.id == id), None)
    return f"by {clean(above.rule)} at {place(above)}  [{id}]" if above else f"by [{id}]"


def _picture(row: Decision, width: int) -> list[str]:
    """The ops from the result up, with a caret under the one where the cause sits."""
    miss = getattr(row.outcome, "miss", None)
    at = miss.at if miss else None
    chain = list(zip(row.kinds, row.ops, strict=True))[::-1]
    words = [f"{clean(op)} = {clean(kind)}" for kind, op in chain[:_PICTURED]]
    if len(chain) > _PICTURED:
        words.append(f"and {count(len(chain) - _PICTURED, 'op')} more")
    marked = next((n for n, (_, op) in enumerate(chain[:_PICTURED]) if op == at), None)
    lines, start = [], 0
    while start < len(words):
        end, length = start, 0
        while end < len(words) and (end == start or length + 4 + len(words[end]) <= width - _LABEL - 3):
            length += (4 if end > start else 0) + len(words[end])
            end += 1
        lead = "<- " if start else ""
        lines.append(_line("" if start else "matched", lead + " <- ".join(words[start:end])))
        if marked is not None and start <= marked < end:
            before = len(lead) + sum(len(word) + 4 for word in words[start:marked])
            lines.append(" " * (_LABEL + before) + "^ here")
        start = end
    return lines
