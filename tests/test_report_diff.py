"""`Report.diff` and `fuse diff`: what changed from one report to another."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from command_line import Run

import chips
import fuse
from fuse.commands.examples import find
from fuse.report import Report
from fuse.report.diff import state
from reports.diff import render

SIDES = (("any", ""), ("ort-cpu", ""), ("m3", ""), ("any", "rms_norm"), ("any", "attention"))


@cache
def report(chip: str = "any", held: str = "", example: str = "llama") -> Report:
    graph = fuse.load(find(example))
    return fuse.optimize(graph, shim=chips.load(chip), held=[held] if held else []).report


@pytest.mark.parametrize("side", SIDES)
def test_a_report_does_not_differ_from_itself(side: tuple[str, str]) -> None:
    found = report(*side).diff(Report.model_validate_json(report(*side).model_dump_json()))
    assert found.changes == ()
    assert found.differences() == ()


@pytest.mark.parametrize("one", SIDES)
@pytest.mark.parametrize("two", SIDES)
def test_transitions_are_the_symmetric_difference(one: tuple[str, str], two: tuple[str, str]) -> None:
    """Every decision that the other report does not have alike is in exactly one change, and no other."""
    a, b = report(*one), report(*two)
    found = a.diff(b)
    here = {(row.id, state(row)): row for row in a.decisions}
    there = {(row.id, state(row)): row for row in b.decisions}
    before = [change.before for change in found.changes if change.before is not None]
    after = [change.after for change in found.changes if change.after is not None]
    assert len({id(row) for row in before}) == len(before)
    assert len({id(row) for row in after}) == len(after)
    assert {(row.id, state(row)) for row in before} >= here.keys() - there.keys()
    assert {(row.id, state(row)) for row in after} >= there.keys() - here.keys()


@pytest.mark.parametrize("one", SIDES)
@pytest.mark.parametrize("two", SIDES)
def test_the_way_back_is_the_other_way_round(one: tuple[str, str], two: tuple[str, str]) -> None:
    there, back = report(*one).diff(report(*two)), report(*two).diff(report(*one))
    swapped = {"gained": "lost", "lost": "gained", "new": "gone", "gone": "new"}
    count = {kind: len(there.of(kind)) for kind in ("gained", "lost", "new", "gone", "moved", "changed")}
    assert count == {kind: len(back.of(swapped.get(kind, kind))) for kind in count}


def test_holding_a_rule_shows_what_it_enabled() -> None:
    found = report().diff(report(held="rms_norm"))
    lost = {change.row.rule for change in found.lost}
    assert {"rms_norm", "add_norm", "transformer_layer"} <= lost
    assert [
        change.after.kind for change in found.of("lost") if change.after and change.row.rule == "rms_norm"
    ] == (["held"] * 5)
    assert found.differences() == ("held nothing -> rms_norm",)


def test_another_chip_says_why_it_is_lost() -> None:
    found = report().diff(report("ort-cpu"))
    (group,) = [group for group in found.groups() if (group.kind, group.rule) == ("lost", "gated_act")]
    assert len(group.changes) == 2
    assert group.changes[0].after is not None
    assert [limit.code for limit in group.changes[0].after.reasons] == ["chip:not_linked"]
    assert {change.row.rule for change in found.refused} >= {"gated_act", "attention_block"}


def test_a_model_exported_again_is_aligned_by_group() -> None:
    """The same decisions under other ids: nothing changed."""
    old = report()
    renamed = old.model_copy(
        update={
            "model": old.model.model_copy(update={"sha256": "another"}),
            "decisions": tuple(
                row.model_copy(
                    update={
                        "id": f"{row.n:016x}",
                        "root": f"other/{row.root}",
                        "ops": tuple(f"other/{op}" for op in row.ops),
                    }
                )
                for row in old.decisions
            ),
        }
    )
    found = old.diff(renamed)
    assert found.changes == ()
    assert found.differences()[0].startswith("model llama (")


# ---- the command --------------------------------------------------------------------------------
@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    made = {"any": report(), "ort": report("ort-cpu"), "held": report(held="rms_norm")}
    for name, one in made.items():
        (tmp_path / f"{name}.json").write_text(one.model_dump_json())
    return {name: tmp_path / f"{name}.json" for name in made}


def test_the_command(run: Run, files: dict[str, Path]) -> None:
    said = run("diff", files["any"], files["ort"])
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("any -> ort-cpu   same model   ")
    assert "launches " in lines[0]
    assert any(
        line.startswith("lost") and "gated_act" in line and "not_linked: want" in line for line in lines
    )


def test_a_narrow_terminal_shows_both_sides() -> None:
    lines = render(report("any").diff(report("m3")), "text", 70).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("lost") and "add_norm" in line)
    assert lines[at + 1] == "   before  fired"
    assert lines[at + 2].startswith("   after   refused  not_linked: want one kernel for add_norm")
    assert max(map(len, lines)) <= 70


def test_markdown(run: Run, files: dict[str, Path]) -> None:
    said = run("diff", files["any"], files["ort"], "--form", "md")
    assert said.out.startswith("**any -> ort-cpu   same model")
    rows = [line for line in said.out.splitlines() if line.startswith("| ")]
    assert rows[0] == "| | places | rule | place | before | after |"
    assert all(row.replace("\\|", "").count("|") == 7 for row in rows)


def test_nothing_changed(run: Run, files: dict[str, Path]) -> None:
    said = run("diff", files["any"], files["any"], "--fail-on", "any")
    assert said.code == 0
    assert said.out.splitlines()[1] == "every place is the same"


@pytest.mark.parametrize(
    ("after", "fail_on", "code"),
    [
        ("held", "lost", 1),
        ("held", "refused", 0),
        ("ort", "refused", 1),
        ("ort", "any", 1),
        ("any", "lost", 0),
    ],
)
def test_fail_on(run: Run, files: dict[str, Path], after: str, fail_on: str, code: int) -> None:
    assert run("diff", files["any"], files[after], "--fail-on", fail_on).code == code


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--fail-on", "tea"], "--fail-on tea: want one of lost, refused, any"),
        (["--form", "tea"], "--form tea: want one of text, md"),
    ],
)
def test_errors(run: Run, files: dict[str, Path], words: list[str], message: str) -> None:
    said = run("diff", files["any"], files["ort"], *words)
    assert (said.code, said.err) == (2, f"error: {message}\n")


def test_a_file_that_is_no_report(run: Run, files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    said = run("diff", files["any"], tmp_path / "x.json")
    assert said.code == 2
    assert "x.json is no fuse report" in said.err
