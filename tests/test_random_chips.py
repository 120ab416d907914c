"""What holds of every compile on whatever chip: random subsets of the classes and of what is read and
written in place, over the small graphs, the example exports and the examples of the rules."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import graph_files
import pytest
import rule_examples
from standing import first_steps, standing

import chips
import fuse
import reference
from chips.load import PLACEABLE
from fuse.classes import CLASSES
from fuse.commands.examples import EXAMPLES, find
from fuse.engine.compiling import Compile
from fuse.engine.record import state
from fuse.ir import Graph, Op, unfuse
from fuse.shim import Candidate, Shim, Whole

MODELS = (*graph_files.NAMES, *EXAMPLES, *(f"example of {rule}" for rule in fuse.rule_names()))
READS, LANDS = ("slice", "item", "rows", "transpose"), ("rows", "units")


@cache
def graph(name: str) -> Graph:
    if name in EXAMPLES:
        return fuse.load(find(name))
    if name.startswith("example of "):
        return rule_examples.source(name.removeprefix("example of "))
    return graph_files.graph(name)


def chip(folder: Path, draw: random.Random) -> Shim:
    """A chip with some classes, some of what may be placed, and half the time regions."""
    share, placing = draw.choice((0.05, 0.3, 0.6, 0.9)), draw.choice((0, 0.3, 1))
    classes = [name for name in CLASSES if draw.random() < share]
    if draw.random() < 0.5:
        classes = sorted({*classes, "elementwise_region"})
    lines = ["name: random-chip", "about: a chip of this test", "runtime: {name: own}", "classes:"]
    lines += [f"  {name}: {{kernel: k, evidence: docs, source: [a page]}}" for name in classes or ("rope",)]
    lines.append("in_place:")
    for name in ("rope", *(one for one in sorted(PLACEABLE - {"rope"}) if draw.random() < placing)):
        reads = ", ".join(view for view in READS if draw.random() < 0.6)
        lands = ", ".join(unit for unit in LANDS if draw.random() < 0.6)
        lines.append(f"  {name}: {{reads: [{reads}], lands: [{lands}], evidence: docs, source: [a page]}}")
    path = folder / "random-chip.yaml"
    path.write_text("\n".join(lines) + "\n")
    return chips.load(path)


def fused(op: Op) -> list[Op]:
    """A fused op and those in it."""
    return [op, *(inner for part in op.parts if part.parts for inner in fused(part))]


def key(prefix: str, op: Op) -> tuple[str, ...]:
    return (prefix, *map(repr, state(op)))


@pytest.mark.parametrize("seed", range(12))
def test_on_any_chip(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    for name in draw.sample(MODELS, 10):
        shim = chip(tmp_path, draw)
        found = fuse.optimize(graph(name), shim=shim)
        what_stands_is_whole_and_told(found, shim)
        the_report_adds_up(found)
        assert standing(unfuse(found.graph)) == standing(graph(name))
        assert reference.check(found.before, found.graph).bit_equal
        a_held_step_leaves_no_trace(found, shim, draw)


def what_stands_is_whole_and_told(found: fuse.Optimized, shim: Shim) -> None:
    """Nothing stands that the chip refuses, and each fused op, inner ones too, was told as fired."""
    told = {key(r.graph, r.op) for r in found.records if r.outcome == "fired" and r.op is not None}
    inner: set[tuple[str, ...]] = set()
    for one in (*found.graph.bodies(), found.graph):
        one.verify()
        for op in (op for op in one.ops if op.parts):
            assert isinstance(shim.judge(Candidate(op.kind, op, one)), Whole), op
            assert key(one.base.prefix, op) in told, op
            inner.update(key(one.base.prefix, each) for each in fused(op))
    assert told <= inner


def the_report_adds_up(found: fuse.Optimized) -> None:
    report = found.report
    rows = {row.id: row for row in report.decisions}
    assert len(rows) == len(report.decisions)
    saved = sum(row.saves.launches or 0 for row in report.fired())
    assert saved == report.before.launches - report.after.launches
    for row in report.decisions:
        if row.absorbed_by is not None:
            above = rows[row.absorbed_by]
            assert set(row.ops) <= set(above.ops)
            assert above.kind == "fired" or (above.kind == "refused" and above.absorbed_by)


def a_held_step_leaves_no_trace(found: fuse.Optimized, shim: Shim, draw: random.Random) -> None:
    """Every decision made before a held step is the same without it, and all steps from it on held
    give what the steps before make."""
    fires = [number for number, name in enumerate(found.steps) if name in found.fired]
    at = draw.choice(fires or range(len(found.steps)))
    work = Compile(found.before.copy(), shim)
    for index in range(at):
        work.run(found.plan, (), index)
    without = fuse.optimize(found.before, shim=shim, held=[found.steps[at]])
    decided = [
        [(r.outcome, r.rule, r.root, r.limits) for r in one.records if r.number < len(work.records)]
        for one in (found, without)
    ]
    for rows in decided:
        rows[:] = [row for row in rows if row[0] in ("fired", "refused")]
    assert decided[0] == decided[1]
    assert all(r.outcome == "held" or r.miss for r in without.records if r.rule == found.steps[at])
    rest = fuse.optimize(found.before, shim=shim, held=found.steps[at:])
    assert standing(first_steps(found.before, shim, at).graph) == standing(rest.graph)
