"""`fuse.bisect` and `fuse bisect`: the first step, and the first firing of it, that changes values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from command_line import Run
from standing import standing

import chips
import fuse
import reference
import reference.definitions as definitions
from fuse.bisecting import without
from fuse.commands.examples import HERE
from reference.compare import difference

LLAMA = HERE / "llama.onnx"


@pytest.fixture(scope="module")
def llama() -> fuse.Graph:
    return fuse.load(LLAMA)


def by_definition(graph: fuse.Graph) -> Callable[[fuse.Optimized], bool]:
    feeds = reference.feeds(graph)
    wanted = reference.eval(graph, feeds)

    def differs(optimized: fuse.Optimized) -> bool:
        got = reference.eval(optimized, feeds, fused="definition")
        return any(difference(got[name], want).reason for name, want in wanted.items())

    return differs


def plant(monkeypatch: pytest.MonkeyPatch, kind: str, **attrs: Any) -> None:
    """Other attributes in the definition of a class."""
    right = definitions.DEFINITIONS[kind]

    def wrong(case: definitions.Case, *operands: Any) -> Any:
        return right(replace(case, attrs={**case.attrs, **attrs}), *operands)

    monkeypatch.setitem(definitions.DEFINITIONS, kind, wrong)  # type: ignore[arg-type]


def test_nothing_differs(llama: fuse.Graph) -> None:
    found = fuse.bisect(llama, chips.load("any"), by_definition(llama))
    assert (found.step, found.decision) == ("", None)
    assert found.before is found.after
    assert [one.differed for one in found.tried] == [False]


@pytest.mark.parametrize(
    ("kind", "attrs", "step"),
    [
        ("rms_norm", {"eps": 0.5}, "rms_norm"),
        ("add_norm", {"eps": 0.5}, "add_norm"),
        ("attention", {"scale": 2.0}, "attention"),
        ("swiglu", {"act": "gelu"}, "gated_act"),
        ("kv_append", {"axis": -1}, "kv_append"),
        ("rope_kv_append", {"form": "interleaved"}, "rope_kv_append"),
    ],
)
def test_a_planted_fault_is_found_at_its_step(
    llama: fuse.Graph, monkeypatch: pytest.MonkeyPatch, kind: str, attrs: dict[str, Any], step: str
) -> None:
    plant(monkeypatch, kind, **attrs)

    def differs(optimized: fuse.Optimized) -> bool:
        try:
            return by_definition(llama)(optimized)
        except fuse.FuseError:
            return True

    found = fuse.bisect(llama, chips.load("any"), differs)
    assert found.step == step
    assert found.decision is not None
    assert (found.decision.rule, found.decision.builds) == (step, kind)
    assert not differs(found.before)
    assert differs(found.first)
    assert differs(found.after)
    assert len(found.tried) <= 10


def test_the_firing_within_the_step(llama: fuse.Graph) -> None:
    """An evaluation that only minds one place."""
    shim = chips.load("any")
    whole = fuse.optimize(llama, shim=shim)
    for wanted in whole.report.fired("add_norm"):

        def differs(optimized: fuse.Optimized, root: str = wanted.root) -> bool:
            op = optimized.graph.producer(root)
            return op is not None and "add_norm" in fuse.realizes(op)

        found = fuse.bisect(llama, shim, differs, held=["transformer_layer"])
        assert found.decision is not None
        assert (found.step, found.decision.root) == ("add_norm", wanted.root)


@pytest.mark.parametrize("chip", ["any", "ort-cpu", "m3"])
def test_undoing_every_firing_of_a_step_is_the_graph_before_it(llama: fuse.Graph, chip: str) -> None:
    shim = chips.load(chip)
    names = [step.name for step in fuse.steps(shim)]
    fired = fuse.optimize(llama, shim=shim).fired
    assert fired
    for name in fired:
        at = names.index(name)
        before = fuse.optimize(llama, shim=shim, held=names[at:])
        after = fuse.optimize(llama, shim=shim, held=names[at + 1 :])
        firings = [row for row in after.records if row.outcome == "fired" and row.rule == name]
        assert firings
        undone = without(after, firings).graph
        undone.verify()
        assert standing(undone) == standing(before.graph)


def test_held_steps_stay_held(llama: fuse.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "add_norm", eps=0.5)
    found = fuse.bisect(llama, chips.load("any"), by_definition(llama), held="add_norm")
    assert found.step == ""


def test_values_that_differ_with_every_step_held(llama: fuse.Graph) -> None:
    with pytest.raises(fuse.FuseError, match="llama: the values differ with every step held"):
        fuse.bisect(llama, chips.load("any"), lambda optimized: True)


# ---- the command --------------------------------------------------------------------------------
def test_the_command_names_step_and_firing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "add_norm", eps=0.5)
    said = run("bisect", "--example", "llama", "--chip", "any")
    assert said.code == 1
    lines = said.out.splitlines()
    assert lines[0].startswith("llama.onnx on any: add_norm, step ")
    assert lines[0].endswith(", is the first that changes values")
    assert lines[1].startswith("  firing    add_norm /m/model/layers.0/post_attention_layernorm/")
    assert "off by" in lines[3]
    alone = [line for line in lines if line.startswith("  alone     add_norm ")]
    assert len(alone) == 4
    assert lines[-1].endswith("fuse optimize --example llama --chip any --hold add_norm")


@pytest.mark.parametrize("evaluation", ["definition", "parts", "onnxruntime"])
def test_the_command_finds_nothing_in_a_right_compile(run: Run, evaluation: str) -> None:
    if evaluation == "onnxruntime":
        pytest.importorskip("onnxruntime")
    said = run("bisect", "--example", "llama", "--chip", "ort-cpu", "--eval", evaluation)
    assert said.code == 0
    assert f"changes its values   ({evaluation}, 1 evaluation)" in said.out


def test_a_tolerance(run: Run) -> None:
    said = run("bisect", "--example", "llama", "--chip", "any", "--tolerance", "0")
    assert said.code == 1
    assert "allowed 0" in said.out


def test_a_command_of_the_user(run: Run) -> None:
    """It minds the functions that stand for swiglu."""
    script = "import sys; sys.exit('swiglu: bad' if b'swiglu' in open(sys.argv[1], 'rb').read() else 0)"
    said = run(
        "bisect",
        "--example",
        "llama",
        "--chip",
        "any",
        "--command",
        f'{sys.executable} -c "{script}" {{model}}',
        "--hold",
        "mlp_block",
    )
    assert said.code == 1
    assert "gated_act, step" in said.out
    assert "exit 1: swiglu: bad" in said.out
    assert "every firing of gated_act agrees with the definition of its class" in said.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--eval", "tea"], "--eval tea: want one of definition, parts, onnxruntime"),
        (["--command", "true"], "--command true: want {model} where the model's file goes"),
        (["--command", "'true {model}"], "--command 'true {model}: no closing quotation"),
        (["--command", "/nowhere/at/all {model}"], "cannot run /nowhere/at/all: no such file or directory"),
        (["--command", "false {model}"], "llama: the values differ with every step held"),
    ],
)
def test_errors(run: Run, words: list[str], message: str) -> None:
    said = run("bisect", "--example", "llama", "--chip", "any", *words)
    assert (said.code, said.err) == (2, f"error: {message}\n")


def test_no_chip(run: Run) -> None:
    said = run("bisect", "--example", "llama")
    assert (said.code, said.err) == (2, "error: no chip: give --chip NAME; `fuse chips` lists them\n")


def test_onnxruntime_that_is_not_installed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    said = run("bisect", "--example", "llama", "--chip", "any", "--eval", "onnxruntime")
    assert (said.code, said.err) == (2, "error: --eval onnxruntime: onnxruntime is not installed\n")
