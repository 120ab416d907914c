"""The report as JSON, whole or narrowed, and its decisions one a line."""

from __future__ import annotations

from fuse.report import Report
from reports.view import View, chosen


def render(report: Report, view: View) -> str:
    """The report, with only the decisions the view leaves; reads back as a Report."""
    if view.narrowed:
        report = report.model_copy(update={"decisions": tuple(chosen(report, view))})
    return report.model_dump_json() + "\n"


def render_lines(report: Report, view: View) -> str:
    """Each decision as one line of JSON."""
    return "".join(row.model_dump_json() + "\n" for row in chosen(report, view))
