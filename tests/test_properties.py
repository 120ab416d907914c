"""What holds of every compile: on random graphs, the small graphs, and the exports that come with fuse."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import graph_files
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from random_graphs import RECIPES, Recipe
from standing import first_steps, standing

import chips
import fuse
import reference
from fuse.commands.examples import EXAMPLES, find
from fuse.engine.compiling import Step
from fuse.ir import Graph, Op, leaves, unfuse
from fuse.report import Decision, Report
from fuse.types import INTEGERS

SHIM = chips.load("any")
NAMES = fuse.rule_names()
CASES = [*graph_files.NAMES, *EXAMPLES]
random_graphs = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@cache
def lifted(case: str) -> Graph:
    return fuse.load(find(case)) if case in EXAMPLES else graph_files.graph(case)


@cache
def optimized(case: str, chip: str = "any", *, held: tuple[str, ...] = ()) -> fuse.Optimized:
    return fuse.optimize(lifted(case), shim=chips.load(chip), held=held)


def all_graphs(graph: Graph) -> list[Graph]:
    return [*graph.bodies(), graph]


def placed(graph: Graph) -> list[tuple[str, int]]:
    """Every lifted op that stands or lies in an op that stands, by graph and slot."""
    return sorted(
        (one.base.prefix, leaf.slot) for one in all_graphs(graph) for op in one.ops for leaf in leaves(op)
    )


def settled(rows: Iterable[Decision], plan: Sequence[Step], at: int) -> list[tuple[Any, ...]]:
    """The fired and refused decisions of the steps before one: what was decided and why. Who took a
    place in later, and whether a later firing explains a near miss, is no part of it."""
    earlier = {step.name for step in plan[:at]}
    return [
        (row.id, row.kind, row.kernel, row.saves, row.reasons)
        for row in rows
        if row.rule in earlier and row.kind in ("fired", "refused")
    ]


# ---- on random graphs ----------------------------------------------------------------------------
@random_graphs
@given(RECIPES)
def test_values_are_kept(recipe: Recipe) -> None:
    """Bit for bit by parts; each class's definition within the tolerance of its type."""
    graph = fuse.load(recipe.model())
    found = fuse.optimize(graph, shim=SHIM)
    assert reference.check(graph, found.graph).bit_equal


@random_graphs
@given(RECIPES)
def test_structure_is_kept(recipe: Recipe) -> None:
    graph = fuse.load(recipe.model())
    found = fuse.optimize(graph, shim=SHIM)
    found.graph.verify()
    assert placed(found.graph) == placed(graph)
    assert standing(unfuse(found.graph)) == standing(graph)
    assert (found.graph.inputs, found.graph.outputs) == (graph.inputs, graph.outputs)
    assert standing(fuse.optimize(graph, shim=SHIM, held=NAMES).graph) == standing(graph)


@random_graphs
@given(RECIPES)
def test_a_report_survives_json(recipe: Recipe) -> None:
    report = fuse.optimize(fuse.load(recipe.model()), shim=SHIM).report
    text = report.model_dump_json()
    assert Report.model_validate_json(text) == report
    assert Report.model_validate_json(text).model_dump_json() == text
    assert fuse.optimize(fuse.load(recipe.model()), shim=SHIM).report.model_dump_json() == text


@random_graphs
@given(RECIPES)
def test_saved_and_loaded_is_the_same_function(recipe: Recipe) -> None:
    graph = fuse.load(recipe.model())
    again = fuse.load(fuse.to_proto(fuse.optimize(graph, shim=SHIM)))
    assert computed_by(again) == computed_by(graph)


def computed_by(graph: Graph) -> list[Any]:
    """What each output is computed by, down to inputs and constants, whatever inner names and order.
    Of sizes that are read from shapes only the dims count: there are many ways to spell them."""
    known: dict[str, int] = {}
    numbers: dict[Any, int] = {}
    sizes: set[str] = set()
    for op in graph.ops:
        if op.kind in ("Shape", "fuse.Dims") or not sizes.isdisjoint(op.inputs):
            sizes.update(value for value in op.outputs if graph.dtype(value) in INTEGERS)

    def number(value: str) -> int:
        if value not in known:
            known[value] = numbers.setdefault(described(value), len(numbers))
        return known[value]

    def described(value: str) -> Any:
        op = graph.producer(value) if value else None
        if value in sizes:
            return "sizes", str(graph.dims(value))
        if op is not None:
            attrs = sorted((key, repr(one)) for key, one in op.attrs.items())
            return op.kind, op.outputs.index(value), str(attrs), tuple(map(number, op.inputs))
        constant = graph.constant(value) if value else None
        return value if constant is None else (constant.dtype, constant.dims, constant.array().tobytes())

    return [number(value) for value in graph.outputs] + list(numbers)


@random_graphs
@given(RECIPES, st.sampled_from(["any", "ort-cpu", "m3"]), st.integers(0, 60))
def test_a_step_held_and_all_from_it_on(recipe: Recipe, chip: str, at: int) -> None:
    """One step held changes no decision before it; all from it on give the graph of the steps before."""
    graph, shim = fuse.load(recipe.model()), chips.load(chip)
    plan = fuse.steps(shim)
    at %= len(plan)
    free = fuse.optimize(graph, shim=shim)
    one = fuse.optimize(graph, shim=shim, held=[plan[at].name])
    assert settled(one.report.decisions, plan, at) == settled(free.report.decisions, plan, at)
    rest = fuse.optimize(graph, shim=shim, held=[step.name for step in plan[at:]])
    assert standing(first_steps(graph, shim, at).graph) == standing(rest.graph)


@random_graphs
@given(RECIPES, st.sampled_from(chips.names()), st.integers(1, 3))
def test_what_firings_save_adds_up(recipe: Recipe, chip: str, batch: int) -> None:
    """Launches and bytes of the graph before, less those of the graph after, with every size known."""
    graph = fuse.load(recipe.model())
    report = fuse.optimize(graph, shim=chips.load(chip), dims={"batch": batch}).report
    saved = [row.saves for row in report.fired()]
    assert sum(one.launches or 0 for one in saved) == report.before.launches - report.after.launches
    assert sum(int(one.bytes or 0) for one in saved) == int(report.before.bytes) - int(report.after.bytes)
    ids = [row.id for row in report.decisions]
    assert len(set(ids)) == len(ids)


@random_graphs
@given(RECIPES)
@example(
    Recipe(
        moves=(
            *(("rows", 3, 14, 1), ("rows", 3, 23, 1), ("rows", 1, 14, 5), ("add", 6, 6, 3)),
            *(("gate", 1, 9, 5), ("parts", 0, 30, 5), ("heads", 0, 23, 7)),
        ),
        outputs=(),
        half=False,
    )
)
def test_a_compile_leaves_nothing_to_another(recipe: Recipe) -> None:
    """A landing may leave one reader alone with a copy, which it then reads in place."""
    once = fuse.optimize(fuse.load(recipe.model()), shim=SHIM).graph
    again = fuse.optimize(once, shim=SHIM)
    assert not again.fired
    assert standing(again.graph) == standing(once)


# ---- on the small graphs and the exports ---------------------------------------------------------
@pytest.mark.parametrize("case", CASES)
def test_every_firing_leaves_a_whole_graph(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topological order, one producer a value, no dangling reader, outputs kept: after each firing."""
    fired: list[Op] = []
    plain = Graph.replace

    def watched(self: Graph, op: Op, slot: int) -> Op:
        made = plain(self, op, slot)
        fired.append(made)
        self.verify()
        return made

    monkeypatch.setattr(Graph, "replace", watched)
    found = fuse.optimize(lifted(case), shim=SHIM)
    assert len(fired) >= len(found.report.fired())


@pytest.mark.parametrize("chip", ["any", "ort-cpu", "m3"])
@pytest.mark.parametrize("case", EXAMPLES)
def test_values_of_an_export_are_kept(case: str, chip: str) -> None:
    found = optimized(case, chip)
    assert reference.check(found.before, found.graph).bit_equal


@pytest.mark.parametrize("case", CASES)
def test_leaves_are_preserved(case: str) -> None:
    assert placed(optimized(case).graph) == placed(lifted(case))
    assert standing(unfuse(optimized(case).graph)) == standing(lifted(case))


@pytest.mark.parametrize("case", CASES)
def test_optimized_again_nothing_changes(case: str) -> None:
    once = optimized(case).graph
    again = fuse.optimize(once, shim=SHIM)
    assert standing(again.graph) == standing(once)
    assert not again.fired


@pytest.mark.parametrize("case", CASES)
def test_all_held_leaves_the_graph(case: str) -> None:
    found = optimized(case, held=NAMES)
    assert standing(found.graph) == standing(lifted(case))
    assert not found.report.fired()


@pytest.mark.parametrize("case", EXAMPLES)
@pytest.mark.parametrize("rule", NAMES)
def test_holding_a_rule_leaves_earlier_decisions(case: str, rule: str) -> None:
    free, held = optimized(case), optimized(case, held=(rule,))
    plan, at = fuse.steps(SHIM), NAMES.index(rule)
    assert settled(held.report.decisions, plan, at) == settled(free.report.decisions, plan, at)
    assert all(row.rule != rule for row in held.report.fired())


@pytest.mark.parametrize(
    ("case", "chip"),
    [(name, "any") for name in (*graph_files.NAMES, "bert")]
    + [(name, "ort-cpu") for name in ("llama", "add_norm", "gated_act", "attention", "norm_in_a_branch")],
)
def test_steps_are_a_prefix(case: str, chip: str) -> None:
    """Holding every step from k on gives the graph that the steps before k make and close, for each k."""
    shim = chips.load(chip)
    plan = fuse.steps(shim)
    made = [
        standing(fuse.optimize(lifted(case), shim=shim, held=[s.name for s in plan[k:]]).graph)
        for k in range(len(plan) + 1)
    ]
    for k, graph in enumerate(made):
        assert standing(first_steps(lifted(case), shim, k).graph) == graph, f"{k} steps"
    assert made[0] == standing(lifted(case))
    assert made[-1] == standing(optimized(case, chip).graph)


@pytest.mark.parametrize("case", graph_files.NAMES)
def test_an_interior_marked_as_an_output_keeps_its_values(case: str) -> None:
    """Each value inside a fused op, in turn: it is never lost, and nothing else changes value."""
    proto = onnx.ModelProto.FromString(graph_files.read(case))
    for value in inner_values(optimized(case).graph):
        marked = onnx.ModelProto()
        marked.CopyFrom(proto)
        marked.graph.output.add().name = value
        graph = fuse.load(marked)
        found = fuse.optimize(graph, shim=SHIM)
        assert reference.check(graph, found.graph).bit_equal
        assert value in found.graph.outputs


def inner_values(graph: Graph) -> list[str]:
    """Values made inside a fused op of the main graph that are no output of it."""
    return [
        v
        for op in graph.ops
        if op.parts
        for leaf in leaves(op)
        for v in leaf.outputs
        if v and v not in op.outputs
    ]


@pytest.mark.parametrize("case", [case for case in CASES if case not in graph_files.WITH_BODIES])
def test_lowered_and_inlined_is_what_was_lifted(case: str) -> None:
    """The portable form, its functions inlined by onnx's own tool and by the lift, beside the lifted
    graph saved as it is (which writes sizes of inputs with operators of ONNX)."""
    proto = fuse.to_proto(optimized(case))
    wanted = computed_by(fuse.load(fuse.to_proto(lifted(case))))
    assert computed_by(fuse.load(onnx.inliner.inline_local_functions(proto))) == wanted
    assert computed_by(fuse.load(proto)) == wanted


@pytest.mark.parametrize("case", CASES)
def test_saved_loaded_and_optimized_again_fires_the_same(case: str) -> None:
    """A saved model names no class that a second compile would not find again."""
    once = optimized(case)
    again = fuse.optimize(fuse.load(fuse.to_proto(once)), shim=SHIM)
    assert again.report.by_rule() == once.report.by_rule()


def test_reports_are_byte_equal_in_other_processes() -> None:
    """Whatever order sets have there."""
    code = (
        "import chips, fuse, sys; from fuse.commands.examples import find\n"
        "for name in ('llama', 'bert'):\n"
        "    for chip in ('any', 'm3'):\n"
        "        opt = fuse.optimize(fuse.load(find(name)), shim=chips.load(chip), held=['add_norm'])\n"
        "        print(opt.report.model_dump_json()); print(opt.graph)\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


def test_a_copy_costs_no_more_than_two_lists() -> None:
    """A copy of 20,000 slots, as a ratio to copying its two lists alone."""
    from timeit import repeat

    nodes = [onnx.helper.make_node("Tanh", [f"v{n}"], [f"v{n + 1}"]) for n in range(20_000)]
    value = onnx.helper.make_tensor_value_info
    info = [value(name, onnx.TensorProto.FLOAT, ["n"]) for name in ("v0", "v20000")]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "chain", info[:1], info[1:]))
    graph = fuse.load(model)
    assert len(graph.slots) == 20_000
    lists = min(repeat(lambda: (list(graph.slots), list(graph.into)), number=5, repeat=7))
    copies = min(repeat(graph.copy, number=5, repeat=7))
    assert copies < 4 * lists


def test_text_is_the_same_for_the_same_graph() -> None:
    for case in EXAMPLES:
        again = fuse.optimize(fuse.load(find(case)), shim=SHIM)
        assert str(again.graph) == str(optimized(case).graph)


def test_decisions_come_in_the_order_of_the_steps() -> None:
    for case in CASES:
        report = optimized(case).report
        order = [report.steps.index(row.rule) for row in report.decisions]
        assert all(a <= b for a, b in pairwise(order))
        assert [row.n for row in report.decisions] == sorted(row.n for row in report.decisions)


def test_every_feed_is_a_value_of_its_type() -> None:
    """The random graphs are evaluated on numbers, not on nothing."""
    feeds = reference.feeds(lifted("rms_norm"), 0)
    assert all(isinstance(value, np.ndarray) and value.size for value in feeds.values())
