"""`fuse why` and `fuse report`: a report read back, told in full or in another form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fuse.commands import inputs
from fuse.commands.optimize import compiled, more_of, source
from fuse.commands.output import check_target, say, width, written
from fuse.types import FuseError

if TYPE_CHECKING:
    from fuse.report import Report

#: How many groups `why` tells in full.
_BLOCKS = 5


def why(
    subject: Path | None,
    name: str,
    example: str | None,
    chip: str | None,
    held: Sequence[str],
    dims: Sequence[str],
) -> int:
    """One decision in full, the groups of a rule that did not fire, or what an op is part of."""
    from fuse.report import grouped
    from reports.why import block

    report = _report_of(subject, example, chip, held, dims)
    rows = inputs.told(report, name)
    groups = grouped(rows)
    columns = width() or 100
    parts = [block(report, group, columns) for group in groups[:_BLOCKS]]
    if len(groups) > _BLOCKS:
        parts.append(f"and {len(groups) - _BLOCKS} more groups\n")
    if not rows or all(row.kind != "fired" for row in rows):
        parts.insert(0, f"{_short(report, name)}\n")
    say("\n".join(parts))
    return 0


def _short(report: Report, name: str) -> str:
    """How often a rule fired, or why it did not; an op or an id has no such line."""
    found = report.fired(name)
    if not found:
        return repr(found)[1:-1]
    return f"{name} fired {len(found)} times"


def _report_of(
    subject: Path | None, example: str | None, chip: str | None, held: Sequence[str], dims: Sequence[str]
) -> Report:
    """The report in a file, or of a model compiled now."""
    report = inputs.report_in(subject) if example is None and subject is not None else None
    if report is not None:
        for option, given in (("--chip", chip), ("--hold", held), ("--dim", dims)):
            if given:
                raise FuseError(f"{subject} is a report, so {option} has nothing to do")
        return report
    return compiled(source(subject, example), chip, held, dims).report


def show(
    path: Path,
    form: str,
    rule: str | None,
    outcome: str,
    at: str | None,
    top: int,
    every: bool,
    out: Path | None,
) -> int:
    """A report in one of the forms, to standard output or a file."""
    from reports import FORMS, View, render

    if form not in FORMS:
        raise FuseError(f"--form {form}: want one of {', '.join(FORMS)}")
    kinds = inputs.outcomes(outcome)
    if out is not None:
        check_target(out, (path,))
    report = inputs.report(path)
    if rule is not None:
        inputs.check_rule(report, rule)
    if at is not None and not report.at(at):
        raise FuseError(f"no decision has an op {at}")
    columns = width() if out is None else None
    view = View(rule, kinds, at, top, every, columns, more_of(path))
    text = render(report, form, view)
    if out is None:
        say(text) if form == "text" else print(text, end="")
    else:
        with written(out, text):
            pass
    return 0
