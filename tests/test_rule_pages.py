"""Every rule has its page: what, why, guards, chips, since, and an example that is what it does now."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run
from rule_examples import example

import chips
import fuse
from fuse import rules
from fuse.rules.table import ADVANCE, LATE, RULES

FOLDER = Path(rules.__file__).parent / "examples"
EVERY = {rule.name: rule for rule in (*RULES, *LATE, *ADVANCE)}


@pytest.mark.parametrize("name", fuse.rule_names())
def test_the_example_is_what_the_rule_does(name: str, request: pytest.FixtureRequest) -> None:
    path, text = FOLDER / f"{name}.txt", example(name)
    if request.config.getoption("--bless"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"no {path.name}: run pytest with --bless"
    assert path.read_text() == text


def test_no_example_is_left_behind() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(fuse.rule_names())


@pytest.mark.parametrize("name", fuse.rule_names())
def test_the_page(run: Run, name: str) -> None:
    said = run("rules", name)
    rule = EVERY[name]
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0] == name
    flat = " ".join(said.out.split())
    why = rule.why.split("\n\n", 1)
    assert len(why) == 2, "what it finds, then why it pays"
    assert all(" ".join(text.split()) in flat for text in why)
    for built in () if rule.places else rule.builds_classes:
        assert f"{built}: " in said.out
    for guard in rule.guards:
        assert f"[{guard.code}]" in flat
    for label in ("starts at", "builds", "chips", "since", "before", "after"):
        assert any(line.split("  ")[0] == "" and line.strip().startswith(label) for line in lines), label


@pytest.mark.parametrize("name", ["rope", "conv_state", "elementwise_region"])
def test_the_text_of_a_page_fits_the_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("fuse.commands.listing.width", lambda: 60)
    above = run("rules", name).out.partition("\n  before\n")[0]
    assert max(map(len, above.splitlines())) <= 60


def test_the_list_has_every_rule(run: Run) -> None:
    said = run("rules")
    flat = " ".join(said.out.split())
    for name, rule in EVERY.items():
        assert f"{name} {' '.join(rule.why.partition(chr(10) * 2)[0].split())} " in f"{flat} "
    assert [line.split()[0] for line in said.out.splitlines() if line[0] != " "] == list(fuse.rule_names())


def test_chips_that_link_it(run: Run) -> None:
    said = run("rules", "add_norm").out
    (line,) = [line for line in said.splitlines() if line.strip().startswith("chips")]
    assert "ort-cpu (limits)" in line
    assert "m3" not in line


# ---- rules of chips ------------------------------------------------------------------------------
def test_the_page_of_a_chips_own_rule(run: Run) -> None:
    said = run("rules", "pad_head_96").out
    flat = " ".join(said.split())
    assert "of m1, m2, m3, m4, m5 place after attention sets pad_head_to 96 on attention" in flat
    assert "where head width at least 65 and at most 95" in flat
    assert "where the chip does not run it as it stands" in flat


def test_an_unknown_rule_names_the_nearest_of_both(run: Run) -> None:
    said = run("rules", "pad_head_95")
    assert said.code == 2
    assert said.err.startswith("error: no rule pad_head_95; nearest: pad_head_96")


def test_the_page_of_a_chip_has_its_rules_and_preferences(run: Run) -> None:
    said = " ".join(run("chips", "ort-cpu").out.split())
    assert "full_precision_blocks: sets accuracy_level 1 on quantized_matmul" in said
    assert "add_norm: not preferred want at most the processor time" in said
    for rule in chips.load("m3").spec.rules:
        assert rule.name in run("chips", "m3").out
