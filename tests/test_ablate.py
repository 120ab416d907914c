"""`fuse.ablate` and `fuse ablate`: what each step is worth."""

from __future__ import annotations

import time

import pytest
from command_line import Run

import chips
import fuse
from fuse.ablation import Ablation
from fuse.commands.examples import HERE
from fuse.report.bytes import subtract_sizes

LLAMA = HERE / "llama.onnx"
SIZES = {"batch": 1, "seq": 8, "past": 16}


@pytest.fixture(scope="module")
def found() -> Ablation:
    return fuse.ablate(fuse.load(LLAMA), chips.load("any"), dims=SIZES)


def test_every_step_that_fires_is_held_alone(found: Ablation) -> None:
    fired = fuse.optimize(fuse.load(LLAMA), shim=chips.load("any"), dims=SIZES)
    assert [row.step for row in found.rows] == list(fired.fired)
    assert found.report == fired.report


def test_what_is_lost_is_the_difference_of_two_compiles(found: Ablation) -> None:
    graph, shim = fuse.load(LLAMA), chips.load("any")
    for row in found.rows:
        held = fuse.optimize(graph, shim=shim, held=[row.step], dims=SIZES).report
        assert held.after.launches - found.report.after.launches == row.launches
        assert subtract_sizes(held.after.bytes, found.report.after.bytes) == row.bytes
        whole_ids = {one.id for one in found.report.fired()}
        held_ids = {one.id for one in held.fired()}
        assert len(whole_ids - held_ids) == row.fired + sum(row.later.values())
        assert len(held_ids - whole_ids) == sum(row.instead.values())


def test_later_firings_lost(found: Ablation) -> None:
    rows = {row.step: row for row in found.rows}
    assert rows["rms_norm"].later["add_norm"] == 4
    assert rows["rope"].later["rope_kv_append"] == 2
    assert rows["merged_gate_up"].instead == {"merged_products": 2}
    assert rows["transformer_layer"].later == {}


def test_a_step_whose_refused_places_are_built_on_is_held_too() -> None:
    """The chip runs add_norm and no bare norm: without rms_norm there is no add_norm either."""
    chip = chips.load("ort-cpu")
    lacks = chip.spec.classes["add_norm"].model_copy(update={"lacks": "none", "kernel": None, "cases": ()})
    chip.spec.classes["rms_norm"] = lacks
    chip._ways.pop("rms_norm")
    rows = {row.step: row for row in fuse.ablate(fuse.load(LLAMA), chip).rows}
    assert rows["rms_norm"].fired == 0
    assert rows["rms_norm"].later["add_norm"] == 4


def test_progress() -> None:
    seen: list[tuple[int, int, str]] = []
    rows = fuse.ablate(fuse.load(LLAMA), chips.load("ort-cpu"), progress=lambda *now: seen.append(now)).rows
    assert [what for _, _, what in seen] == [*(row.step for row in rows), "done"]
    assert [done for done, _, _ in seen] == list(range(len(rows) + 1))


def test_the_command_prints_its_table_in_time(run: Run) -> None:
    start = time.perf_counter()
    said = run("ablate", "--example", "llama", "--chip", "any", *(f"--dim={k}={v}" for k, v in SIZES.items()))
    assert time.perf_counter() - start < 20
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("llama on any   ")
    assert lines[2].split()[:2] == ["step", "fired"]
    norm = next(line for line in lines if line.startswith("rms_norm"))
    assert "add_norm -4" in norm


def test_bytes_of_symbolic_dims(run: Run) -> None:
    said = run("ablate", "--example", "bert", "--chip", "ort-cpu")
    assert said.out.splitlines()[-1] == "bytes depend on symbolic dims: bind them with --dim"


def test_nothing_fires(run: Run) -> None:
    said = run("ablate", "--example", "bert", "--chip", "none")
    assert said.out.splitlines()[-1] == "no step fires"


def test_no_chip(run: Run) -> None:
    said = run("ablate", "--example", "llama")
    assert (said.code, said.err) == (2, "error: no chip: give --chip NAME; `fuse chips` lists them\n")
