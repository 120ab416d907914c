"""The forms of a report as text, held to golden files at a fixed width."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from made_reports import LAYERS, READ, WIDE, Maker, graph, mixed, symbolic

from fuse.engine.record import Miss
from fuse.report import Check, Report
from reports import FORMS, View, render
from reports.text import PAGE
from reports.why import block
from reports.why import render as explain
from reports.words import clean, clip, count, size

Golden = Callable[[str, str], None]
MORE = ("fuse why r.json RULE|OP|ID", "fuse report r.json --every")


def checked(report: Report, **more: object) -> Report:
    fields = {"ok": True, "seed": 0, "dtype": "f32", "bit_equal": True, "max_error": "0", "differs": None}
    return report.model_copy(update={"check": Check.model_validate(fields | more)})


# ---- golden -------------------------------------------------------------------------------------
def test_page(golden: Golden) -> None:
    golden("report_mixed.txt", render(checked(mixed().report()), "text", View(width=100, more=MORE)))


def test_page_with_symbols_and_held_rules(golden: Golden) -> None:
    made = symbolic()
    made.fuse("gelu", made.norm(3), ("norm3",), outcome="held", fires=True)
    report = made.report(held=("gelu",))
    golden("report_symbolic.txt", render(report, "text", View(width=100, more=MORE)))


def test_every_place(golden: Golden) -> None:
    golden("report_every.txt", render(mixed().report(), "text", View(every=True)))


def test_concise(golden: Golden) -> None:
    golden("report_concise.txt", render(mixed().report(), "concise"))


def test_concise_every(golden: Golden) -> None:
    golden("report_concise_every.txt", render(mixed().report(), "concise", View(every=True)))


def test_why(golden: Golden) -> None:
    report = mixed().report()
    golden("report_why.txt", explain(report, list(report.decisions)))


# ---- the page -----------------------------------------------------------------------------------
def many_rules(rules: int, layers: int = 32) -> Report:
    made = Maker(graph(layers))
    for n in range(layers):
        made.fuse(f"rule_{n % rules:02d}", made.norm(n), (f"norm{n}",), outcome="refused", limits=(WIDE,))
    for n in range(layers):
        made.miss(f"other_{n % rules:02d}", made.norm(0), f"sum{n}", READ)
    return made.report()


@pytest.mark.parametrize("rules", [1, 3, 16, 32])
def test_page_is_short(rules: int) -> None:
    text = render(many_rules(rules), "text", View(width=100, more=MORE))
    assert len(text.splitlines()) <= PAGE
    assert all(len(line) <= 100 for line in text.splitlines())
    assert ("more" in text.split("costliest")[0]) == (rules > 8)


def test_no_decisions_say_so() -> None:
    text = render(Maker(graph()).report(), "text")
    assert "no decisions" in text
    assert "nothing was refused" in text


def test_top_lists_more_groups() -> None:
    report = many_rules(16)
    assert len(render(report, "text", View(top=20)).splitlines()) > PAGE
    assert "(20 of 32 groups)" in render(report, "text", View(top=20))


def test_places_that_differ_in_structure_alone_are_one_line() -> None:
    """The first layer may have an op more than the others: the same refusal is not said twice."""
    made = Maker(graph())
    for n in range(3):
        made.fuse("rms_norm", made.norm(n)[n == 0 :], (f"norm{n}",), outcome="refused", limits=(WIDE,))
    report = made.report()
    assert sorted(group.places for group in report.groups()) == [1, 2]
    (line,) = [row for row in render(report, "text").splitlines() if "refused  " in row and "3x" in row]
    assert "/model/layers.*/norm" in line
    assert "8 launches" in line


def test_where_a_terminal_is_narrow_the_reasons_have_lines_of_their_own() -> None:
    report = mixed().report()
    wide, narrow = (render(report, "text", View(width=width)) for width in (400, 60))
    (told,) = [line for line in wide.splitlines() if "refused" in line and "x is f32" in line]
    assert told.startswith("1  rms_norm")
    lines = narrow.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("1  rms_norm"))
    assert lines[at].endswith("  3 launches")
    assert lines[at + 1].startswith("   width: want last axis at most 32, got 64")
    assert max(map(len, lines)) <= 60


def test_rule_and_outcome_narrow_the_page() -> None:
    report = mixed().report()
    text = render(report, "text", View(outcomes=("fired",)))
    assert "refused" not in text.split("costliest")[1]
    assert "add_norm" not in render(report, "text", View(rule="rms_norm")).split("\n\n")[1]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "values checked, bit-equal (seed 0, definitions within 0)"),
        ({"bit_equal": False}, "values checked, not bit-equal"),
        ({"ok": False, "differs": "norm0"}, "values differ (seed 0), first at norm0"),
    ],
)
def test_page_says_how_values_were_checked(fields: dict[str, object], said: str) -> None:
    assert said in render(checked(mixed().report(), **fields))


def test_page_without_check_says_so() -> None:
    assert "values not checked" in render(mixed().report())


# ---- the other forms ----------------------------------------------------------------------------
def test_json_reads_back_and_narrows() -> None:
    report = mixed().report()
    assert Report.model_validate_json(render(report, "json")) == report
    narrow = Report.model_validate_json(render(report, "json", View(outcomes=("refused",))))
    assert [row.kind for row in narrow.decisions] == ["refused"]


def test_jsonl_is_a_decision_a_line() -> None:
    report = mixed().report()
    rows = [json.loads(line) for line in render(report, "jsonl").splitlines()]
    assert [row["id"] for row in rows] == [row.id for row in report.decisions]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_ends_in_a_newline(form: str) -> None:
    text = render(mixed().report(), form)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


# ---- one decision -------------------------------------------------------------------------------
def test_a_place_says_how_many_are_like_it() -> None:
    made = Maker(graph())
    for n in range(LAYERS):
        made.fuse("rms_norm", made.norm(n), (f"norm{n}",), outcome="refused", limits=(WIDE,))
    report = made.report()
    text = block(report, report.groups()[0])
    assert "same in 4 places (/model/layers.*/norm)" in text
    assert "try      split the hidden axis" in text


def test_a_caret_stands_under_the_cause() -> None:
    made = Maker(graph())
    made.miss("rms_norm", made.norm(3), "norm3", Miss("op", "mean3", "ReduceMean", "ReduceMax", 3, 4, "1.0"))
    report = made.report()
    lines = block(report, report.groups()[0]).splitlines()
    caret = next(line for line in lines if line.endswith("^ here"))
    above = lines[lines.index(caret) - 1]
    assert above[caret.index("^") :].startswith("mean3 = ReduceMean")


def test_long_matches_are_cut_and_wrapped() -> None:
    made = Maker(graph(8))
    ops = [op for n in range(8) for op in made.norm(n)]
    made.miss("rms_norm", ops, "norm7", READ)
    report = made.report()
    lines = block(report, report.groups()[0], 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("and 20 ops more" in line for line in lines)


def test_what_was_taken_in_names_the_taker() -> None:
    report = mixed().report()
    (row,) = (r for r in report.fired("rms_norm") if r.absorbed_by)
    assert f"[{row.absorbed_by}]" in explain(report, [row])


# ---- words --------------------------------------------------------------------------------------
def test_names_cannot_move_the_cursor() -> None:
    assert clean("a\x1b[31mb\n") == "a\\u001b[31mb\\u000a"
    assert clean("a\u202eb") == "a\\u202eb"
    assert clean("/m/Größe") == "/m/Größe"
    made = Maker(graph())
    made.miss("rms_norm", made.norm(3), "norm3", READ._replace(got="\x1b]0;x\x07 also"))
    for form in ("text", "concise"):
        assert "\x1b" not in render(made.report(), form)


def test_words() -> None:
    assert (count(1, "launch"), count(1234, "launch"), count(2, "op")) == (
        "1 launch",
        "1,234 launches",
        "2 ops",
    )
    assert [size(n) for n in (0, 999, 1000, 812_000_000)] == ["0 B", "999 B", "1.0 kB", "812 MB"]
    assert size("4*batch") == "4*batch B"
    assert (clip("abcdef", 5), clip("abcde", 5), clip("abc", None)) == ("ab...", "abcde", "abc")


# ---- what it needs ------------------------------------------------------------------------------
def test_reports_need_no_onnx() -> None:
    code = "import sys, reports, reports.why; sys.exit('onnx' in sys.modules or 'chips' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_many_decisions_render_in_two_seconds() -> None:
    """20,000 decisions of 2,000 layers, in processor time."""
    made = Maker(graph(2000))
    for n in range(2000):
        ops = made.norm(n)
        for at in range(10):
            made.miss(f"rule_{at}", ops, f"norm{n}", READ._replace(at=f"root{n}"))
    report = made.report()
    started = time.process_time()
    render(report, "text", View(width=100))
    assert time.process_time() - started < 2
