"""Refused ops stand for later rules to build on: every firing that a chip's lacks prevent is told, and a
chip that runs a larger class gets it whether or not it runs the members alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import graph_files
import pytest
import rule_examples
from onnx import parser
from standing import first_steps, standing

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


def own_chip(folder: Path, classes: str, in_place: str = "") -> Shim:
    """A chip with these classes, and these that read rows and transposes in place."""
    entry = "kernel: k, evidence: docs, source: [a page]"
    lines = ["name: own-chip", "about: a chip of this test", "runtime: {name: own}", "classes:"]
    lines += [f"  {name}: {{{entry}}}" for name in classes.split()]
    lines += ["in_place:"] * bool(in_place)
    lines += [
        f"  {name}: {{reads: [rows, transpose], evidence: docs, source: [a page]}}"
        for name in in_place.split()
    ]
    path = folder / "own-chip.yaml"
    path.write_text("\n".join(lines) + "\n")
    return chips.load(path)


def test_no_name_stands_for_what_a_refused_op_would_read(tmp_path: Path) -> None:
    """Rows of the embedding that the first norm and the residual read: a chip that would read them in
    place in norms that it does not run still copies them."""
    shim = own_chip(tmp_path, "attention", "rms_norm add_norm")
    found = fuse.optimize(graph("llama"), shim=shim)
    assert not found.report.fired("read_in_place")
    assert {row.reasons[0].code for row in found.report.refused("read_in_place")} == {
        "chip:not_linked",
        "chip:read_in_place",
    }


def test_a_name_is_read_by_the_members_of_a_block(tmp_path: Path) -> None:
    """A layer reads in place what its norms read so, and what reads a name beside it must do so too."""
    shim = own_chip(tmp_path, "rms_norm add_norm transformer_layer", "rms_norm add_norm")
    found = fuse.optimize(graph("llama"), shim=shim)
    assert len(found.report.fired("transformer_layer")) == 2
    (named,) = found.report.fired("read_in_place")
    assert named.kinds == ("Gather",)


def test_what_a_held_step_needs_stands_all_the_same(tmp_path: Path) -> None:
    """The products that a later step quantizes together are not left to a region where it is held."""
    shim = own_chip(tmp_path, "elementwise_region quant_shared")
    name = "quantized_matmul_shared"
    free = fuse.optimize(graph(name), shim=shim)
    held = fuse.optimize(graph(name), shim=shim, held=["quant_shared"])
    assert free.report.fired("quant_shared")
    assert held.report.held("quant_shared")
    assert held.report.fired("elementwise_region") == free.report.fired("elementwise_region")
    assert standing(held.graph) == standing(
        first_steps(graph(name), shim, free.steps.index("quant_shared")).graph
    )


def test_a_held_block_is_not_taken_for_what_comes_apart(tmp_path: Path) -> None:
    """What is read in place of a refused op's parts is found when they come apart, whether the steps
    after it are held or not there."""
    name = "example of attention_block"
    shim = own_chip(tmp_path, "attention_block", "MatMul")
    at = fuse.rule_names().index("attention_block")
    held = fuse.optimize(graph(name), shim=shim, held=fuse.rule_names()[at:])
    assert standing(held.graph) == standing(first_steps(graph(name), shim, at).graph)


FIRST_ROW = """<ir_version: 10, opset_import: ["" : 18]>
graph (float[B,9,8] x) => (float[B,1,8] y)
<int64[1] zero = {0}, int64[1] one = {1}, float wq, float wk, float wv, float wo, float root = {2.8284271}>
{
  first = Slice (x, zero, one, one)
  q = MatMul (first, wq)
  k = MatMul (x, wk)
  v = MatMul (x, wv)
  turned = Transpose <perm = [0, 2, 1]> (k)
  products = MatMul (q, turned)
  scores = Div (products, root)
  shares = Softmax <axis = -1> (scores)
  mixed = MatMul (shares, v)
  y = MatMul (mixed, wo)
}"""


def first_row() -> fuse.Graph:
    """An attention of the first row over all rows, as a class token's."""
    names = ("wq", "wk", "wv", "wo")
    text = FIRST_ROW
    for name in names:
        numbers = ", ".join(f"{((3 * n + len(name)) % 7) / 8}" for n in range(64))
        text = text.replace(f"float {name}", f"float[8,8] {name} = {{{numbers}}}")
    return fuse.load(parser.parse_model(text))


def test_a_block_that_needs_a_placement_is_told() -> None:
    """The first row is read in place by q's product: only so do q, k and v read one x."""
    (fired,) = fuse.optimize(first_row(), shim=chips.load("any")).report.fired("attention_block")
    found = fuse.optimize(first_row(), shim=chips.load("none"))
    (row,) = found.report.refused("attention_block")
    assert row.root == fired.root
    assert standing(found.graph) == standing(found.before)
