"""Refused ops stand for later rules to build on: every firing that a chip's lacks prevent is told, and a
chip that runs a larger class gets it whether or not it runs the members alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import graph_files
import pytest
import rule_examples
from standing import standing

import chips
import fuse
import reference
from fuse.classes import CLASSES
from fuse.commands.examples import EXAMPLES, find
from fuse.engine.record import Record
from fuse.shim import Shim

#: Small graphs, the example exports, and the example of each rule.
MODELS = (*graph_files.NAMES, *EXAMPLES, *(f"example of {rule}" for rule in fuse.rule_names()))

#: What the chip none refuses by: it has no kernel of a class, and so none that reads or writes in place.
NOT_ON_NONE = {"chip:not_linked", "chip:read_in_place", "chip:land_in_rows", "chip:land_in_units"}


@cache
def graph(name: str) -> fuse.Graph:
    if name in EXAMPLES:
        return fuse.load(find(name))
    if name.startswith("example of "):
        return rule_examples.source(name.removeprefix("example of "))
    return graph_files.graph(name)


@cache
def on_any(name: str) -> fuse.Optimized:
    return fuse.optimize(graph(name), shim=chips.load("any"))


def places(records: tuple[Record, ...], outcome: str) -> set[tuple[str, str, str]]:
    """(rule, class, value made) of every value that decisions of an outcome make. A placement takes
    copies in, so a place may be named by an inner value of the same place without it."""
    return {
        (record.rule, record.builds, value)
        for record in records
        if record.outcome == outcome
        for op in record.ops
        for value in op.outputs
    }


def roots(found: fuse.Optimized) -> set[tuple[str, str, str]]:
    return {(r.rule, r.builds, r.root) for r in found.records if r.outcome == "fired"}


@pytest.mark.parametrize("name", MODELS)
def test_what_would_fire_is_refused_on_none(name: str) -> None:
    found = fuse.optimize(graph(name), shim=chips.load("none"))
    assert not found.fired
    assert standing(found.graph) == standing(found.before)
    assert {reason.code for row in found.report.refused() for reason in row.reasons} <= NOT_ON_NONE
    assert roots(on_any(name)) <= places(found.records, "refused")


def linking(folder: Path, name: str) -> Shim:
    """A chip with one class."""
    path = folder / f"only-{name.replace('_', '-')}.yaml"
    entry = f"  {name}: {{kernel: k, evidence: docs, source: [a page]}}\n"
    path.write_text(
        f"name: {path.stem}\nabout: a chip of this test\nruntime: {{name: own}}\nclasses:\n{entry}"
    )
    return chips.load(path)


@pytest.mark.parametrize("name", MODELS)
def test_a_chip_with_one_class_gets_it(name: str, tmp_path: Path) -> None:
    """Wherever `any` has it, though no member is linked; and it has nothing else."""
    wanted = roots(on_any(name))
    for only in {builds for _, builds, _ in wanted} & CLASSES.keys():
        found = fuse.optimize(graph(name), shim=linking(tmp_path, only))
        assert {place for place in wanted if place[1] == only} <= places(found.records, "fired")
        standing_ops = [op for one in (*found.graph.bodies(), found.graph) for op in one.ops]
        assert {op.kind for op in standing_ops if op.parts} == {only}
        assert reference.check(found.before, found.graph).bit_equal


def test_every_rule_is_met() -> None:
    assert {rule for name in MODELS for rule, _, _ in roots(on_any(name))} >= set(fuse.rule_names())


def test_a_smaller_form_stays_where_the_larger_is_refused() -> None:
    """What a refused mixture is made of is shown again to the rule that takes its products."""
    found = fuse.optimize(graph("moe"), shim=chips.load("m3"))
    assert {"moe", "moe_shared", "moe_block"} <= {row.rule for row in found.report.refused()}
    assert len(found.report.fired("moe_gather_in_operand")) == 2


def test_what_is_placed_in_vain_takes_nothing_from_a_block(tmp_path: Path) -> None:
    """A chip that reads nothing in place gets its block all the same: of the gate, its Split and products."""
    found = fuse.optimize(graph("read_in_place"), shim=linking(tmp_path, "mlp_block"))
    assert found.report.refused("read_in_place")
    (row,) = found.report.fired("mlp_block")
    assert "Split" in row.kinds


def test_a_decision_is_told_once() -> None:
    for name in MODELS:
        found = fuse.optimize(graph(name), shim=chips.load("none"))
        told = [(r.rule, r.root, r.op.placements) for r in found.records if r.op is not None]
        assert len(told) == len(set(told)), name
