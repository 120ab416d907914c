"""Questions to a report, and how an empty answer explains itself."""

from __future__ import annotations

import pytest
from made_reports import READ, WIDE, Maker, by_root, graph, mixed

from fuse.engine.record import Miss, Record


# ---- queries ------------------------------------------------------------------------------------
def test_fired_counts_each_place_once() -> None:
    report = mixed().report()
    assert [row.root for row in report.fired("add_norm")] == ["norm0"]
    assert [row.root for row in report.fired("rms_norm")] == ["norm0", "norm1"]
    assert len(report.fired()) == 3


def test_fired_accepts_what_a_decision_realizes() -> None:
    made = Maker(graph())
    made.fuse("rms_norm", made.norm(0), ("norm0",), outcome="refused", limits=(WIDE,))
    made.fuse(
        "add_norm", [made.op("sum0"), made.op("norm0")], ("norm0", "sum0"), realizes=("add_norm", "rms_norm")
    )
    assert [row.rule for row in made.report().fired("rms_norm")] == ["add_norm"]


def test_fired_by_class() -> None:
    made = Maker(graph())
    made.fuse("gated_act", made.norm(0), ("norm0",), builds="swiglu")
    assert made.report().fired("swiglu")
    assert made.report().fired("gated_act")


def test_nested_realizers_answer_once() -> None:
    made = Maker(graph())
    made.fuse("qk_norm", made.norm(0), ("norm0",), realizes=("rms_norm",))
    made.fuse("block", [made.op("sum0"), made.op("norm0")], ("norm0", "sum0"), realizes=("rms_norm",))
    assert [row.rule for row in made.report().fired("rms_norm")] == ["qk_norm"]


def test_at_takes_paths_and_names() -> None:
    report = mixed().report()
    assert [row.rule for row in report.at("square0")] == ["rms_norm", "add_norm"]
    assert report.at("/model/layers.0/norm/Pow") == report.at("square0")
    assert report.fired("rms_norm", at="square1") == (by_root(report, "rms_norm", "norm1"),)


def test_by_rule_follows_the_steps() -> None:
    table = mixed().report().by_rule()
    assert list(table) == ["rms_norm", "add_norm"]
    assert table["rms_norm"] == {"fired": 2, "held": 0, "refused": 1, "near_miss": 1}


def test_truth_and_length_are_those_of_a_tuple() -> None:
    report = mixed().report()
    assert report.fired("rms_norm")
    assert not report.fired("gelu")
    assert report.fired("gelu") == ()


# ---- explanations -------------------------------------------------------------------------------
def empty(made: Maker, name: str, **more: object) -> str:
    return repr(made.report(**more).fired(name))


def test_explains_by_the_near_miss() -> None:
    made = Maker(graph())
    made.miss("rms_norm", made.norm(3), "norm3", READ)
    assert empty(made, "rms_norm") == (
        "<rms_norm: fired 0; near misses: read_elsewhere at root3: "
        "want read only inside the match, got also read by /l/Add_7>"
    )


def test_explains_by_every_limit_once_for_all_layers() -> None:
    made = Maker(graph())
    for n in range(2):
        made.fuse("rms_norm", made.norm(n), (f"norm{n}",), outcome="refused", limits=(WIDE,))
    assert empty(made, "rms_norm") == (
        "<rms_norm: fired 0; refused by m3: chip:width: want last axis at most 32, got 64 (2x)>"
    )


def test_explains_by_what_was_held() -> None:
    made = Maker(graph())
    held = made.fuse("rms_norm", made.norm(0), ("norm0",), outcome="held", fires=True)
    assert held.fires
    assert empty(made, "rms_norm", held=("rms_norm",)) == (
        "<rms_norm: fired 0; held; would have fired in 1 of 1 places>"
    )
    assert "would have found nothing" in empty(made, "gelu", held=("gelu",))


def test_explains_a_misspelt_name() -> None:
    assert empty(mixed(), "add_nrom").startswith(
        "<add_nrom: fired 0; no such rule or class; nearest: add_norm"
    )


def test_explains_that_nothing_is_like_it() -> None:
    assert empty(mixed(), "gelu") == "<gelu: fired 0; no place of the model nearly matches>"
    said = empty(mixed(), "gelu", marks={"gelu": ("Erf",), "rms_norm": ("Sqrt",)})
    assert said == "<gelu: fired 0; no operator of its marks in the model>"


def test_explains_an_op_without_decision() -> None:
    said = repr(mixed().report().at("square9"))
    assert said.startswith("<square9: in no decision; nearest with one: square")


def test_explains_no_refusal_by_what_fired() -> None:
    made = Maker(graph())
    made.fuse("rms_norm", made.norm(0), ("norm0",))
    assert repr(made.report().refused("rms_norm")) == "<rms_norm: refused 0; fired 1>"


def test_a_full_answer_says_where() -> None:
    assert repr(mixed().report().fired("add_norm")) == "<add_norm: fired 1: add_norm /model/layers.*>"


def test_pytest_shows_the_explanation() -> None:
    made = Maker(graph())
    made.miss("rms_norm", made.norm(3), "norm3", READ)
    report = made.report()
    with pytest.raises(AssertionError, match="read_elsewhere at root3"):
        assert report.fired("rms_norm")


def test_a_near_miss_without_cause_is_a_bug() -> None:
    made = Maker(graph())
    made.records.append(Record("near_miss", "r", "r", "norm0", tuple(made.norm(0)), "", 0))
    with pytest.raises(ValueError, match="has no cause"):
        made.report()


def test_miss_keeps_its_path() -> None:
    made = Maker(graph())
    made.miss("rms_norm", made.norm(3), "norm3", Miss("op", "root3", "Sqrt", "Exp", 3, 4, "1.0"))
    outcome = made.report().decisions[0].outcome
    assert outcome.kind == "near_miss"
    assert (outcome.miss.matched, outcome.miss.of, outcome.miss.path) == (3, 4, "1.0")
