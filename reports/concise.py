"""One line a decision, for grep: `model.onnx:place: outcome rule code want ... got ...`."""

from __future__ import annotations

from fuse.report import Decision, Report
from reports.view import View, chosen, open_ones
from reports.words import WORDS, clean, place, saves


def render(report: Report, view: View) -> str:
    """What did not fire, or what the view asks for; a line for each limit of a refusal."""
    model = clean(report.model.name)
    return "".join(
        f"{model}:{line}\n" for row in open_ones(chosen(report, view), view) for line in _lines(row)
    )


def _lines(row: Decision) -> list[str]:
    head = f"{WORDS[row.kind]} {row.rule}"
    if not row.reasons:
        return [f"{place(row)}: {head} saves {saves(row.saves, None, None) or 'unknown'}"]
    return [
        f"{clean(getattr(reason, 'at', '') or place(row))}: {head} {reason.code} "
        f"want {clean(reason.want)} got {clean(reason.got)}"
        for reason in row.reasons
    ]
