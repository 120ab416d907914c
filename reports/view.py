"""Which decisions of a report to show, and how wide."""

from __future__ import annotations

from typing import NamedTuple

from fuse.report import Decision, Report


class View(NamedTuple):
    """rule: a rule or class. outcomes: outcome kinds; empty is the form's own choice. at: an op by
    name or path. top: how many groups. every: each place, and what fired or was built on too.
    width: columns, None does not clip. more: commands that tell more, for the last line.
    """

    rule: str | None = None
    outcomes: tuple[str, ...] = ()
    at: str | None = None
    top: int = 5
    every: bool = False
    width: int | None = None
    more: tuple[str, ...] = ()

    @property
    def narrowed(self) -> bool:
        """Whether it leaves decisions out by what they are."""
        return bool(self.rule or self.outcomes or self.at)


def chosen(report: Report, view: View) -> list[Decision]:
    """The decisions that a view's rule, outcomes and op leave, in order."""
    return [
        row
        for row in report.decisions
        if (view.rule is None or view.rule in (row.rule, row.builds))
        and (not view.outcomes or row.kind in view.outcomes)
        and (view.at is None or view.at in row.ops or view.at in row.names)
    ]


def open_ones(rows: list[Decision], view: View) -> list[Decision]:
    """Of rows, those that did not fire and on which nothing was built; all if the view asks so."""
    if view.every or view.outcomes:
        return rows
    return [row for row in rows if row.kind != "fired" and row.absorbed_by is None]
