"""Renderers of a decision report, one a file; none needs a model or onnx."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fuse.report import Report
from reports import concise, json_form, text
from reports.view import View

__all__ = ["FORMS", "View", "render"]

#: Form -> the function that writes it.
FORMS: Mapping[str, Callable[[Report, View], str]] = {
    "text": text.render,
    "concise": concise.render,
    "json": json_form.render,
    "jsonl": json_form.render_lines,
}


def render(report: Report, form: str = "text", view: View | None = None) -> str:
    """The report in a form of FORMS, ending in a newline."""
    return FORMS[form](report, view or View())
