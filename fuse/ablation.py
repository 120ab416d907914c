"""What each step of a compile is worth: it is held alone, and what is lost is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from fuse.engine.compiler import Progress, optimize
from fuse.ir import Graph
from fuse.report import Report
from fuse.report.bytes import Size, subtract_sizes
from fuse.shim import Shim


class Lost(NamedTuple):
    """A step held alone, beside the whole compile.

    fired: its own firings. launches, bytes: what the graph has more of without it (a negative number:
    it costs). later: rule -> firings of other steps that are gone; instead: rule -> firings that are
    there only without it. Both in the order of the steps.
    """

    step: str
    fired: int
    launches: int
    bytes: Size
    later: dict[str, int]
    instead: dict[str, int]


class Ablation(NamedTuple):
    """Every step that fires, or that a firing was built on, held alone; in the order of the steps."""

    report: Report
    rows: tuple[Lost, ...]


def ablate(
    graph: Graph,
    shim: Shim,
    dims: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> Ablation:
    """Hold each step alone and compare with the whole compile, decision by decision, by their ids.

    A step that neither fires nor leaves what a firing was built on changes nothing, and is not held.
    dims: as for `fuse.optimize`. progress: called before each run.
    """
    whole = optimize(graph, shim, dims=dims)
    matters = {
        row.rule
        for row in whole.report.decisions
        if row.kind == "fired" or (row.kind == "refused" and row.absorbed_by is not None)
    }
    names = [name for name in whole.steps if name in matters]
    rows = []
    for done, name in enumerate(names):
        if progress is not None:
            progress(done, len(names), name)
        rows.append(_lost(name, whole.report, optimize(graph, shim, (name,), dims).report))
    if progress is not None:
        progress(len(names), len(names), "done")
    return Ablation(whole.report, tuple(rows))


def _lost(name: str, whole: Report, without: Report) -> Lost:
    """What one report has and the other has not."""
    here = {row.id: row.rule for row in whole.fired()}
    there = {row.id: row.rule for row in without.fired()}
    return Lost(
        step=name,
        fired=sum(rule == name for rule in here.values()),
        launches=without.after.launches - whole.after.launches,
        bytes=subtract_sizes(without.after.bytes, whole.after.bytes),
        later=_in_order(whole, [rule for id, rule in here.items() if id not in there and rule != name]),
        instead=_in_order(whole, [rule for id, rule in there.items() if id not in here]),
    )


def _in_order(report: Report, rules: list[str]) -> dict[str, int]:
    number = Counter(rules)
    return {step: number[step] for step in report.steps if step in number}
