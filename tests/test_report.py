"""The report: rows, ids, groups, savings, totals and the queries that explain themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_reports import READ, WIDE, Maker, by_root, graph, mixed, symbolic
from pydantic import ValidationError

from fuse.engine.record import Record
from fuse.report import Decision, Report
from fuse.report.absorbed import absorbers
from fuse.report.bytes import add_sizes, known_bytes, read_size, size_text
from fuse.report.place import Places
from fuse.types import Dim, add, mul, symbol

SCHEMA = Path(__file__).parent.parent / "reports" / "report.schema.json"


# ---- the file -----------------------------------------------------------------------------------
def test_two_runs_are_byte_equal() -> None:
    assert mixed().report().model_dump_json() == mixed().report().model_dump_json()


def test_round_trip() -> None:
    report = mixed().report(held=("gelu",))
    text = report.model_dump_json()
    again = Report.model_validate_json(text)
    assert again == report
    assert again.model_dump_json() == text
    assert again.held_rules == ("gelu",)
    assert json.loads(text)["held"] == ["gelu"]


@given(st.from_type(Decision))
def test_any_decision_round_trips(row: Decision) -> None:
    assert Decision.model_validate_json(row.model_dump_json()) == row


def test_what_is_built_holds_as_if_read() -> None:
    report = symbolic().report()
    assert Report.model_validate(report.model_dump()) == report


def test_schema_file_is_current(request: pytest.FixtureRequest) -> None:
    text = json.dumps(Report.model_json_schema(), indent=1) + "\n"
    if request.config.getoption("--bless"):
        SCHEMA.write_text(text)
    assert SCHEMA.read_text() == text, "run pytest with --bless to write reports/report.schema.json"


def test_unknown_fields_are_refused() -> None:
    data = mixed().report().model_dump()
    with pytest.raises(ValidationError, match="surprise"):
        Report.model_validate(data | {"surprise": 1})


def test_rows_are_frozen() -> None:
    report = mixed().report()
    with pytest.raises(ValidationError, match="frozen"):
        report.made_by = "me"


def test_no_folder_of_the_machine() -> None:
    made = Maker(graph(name="/home/someone/models/m.onnx"))
    assert made.report().model.name == "m.onnx"


def test_model_says_what_lifting_did() -> None:
    model = mixed().report().model
    assert [(row.name, row.count) for row in model.lifting] == [("Identity", 2)]
    assert (model.opset, model.ops, model.sha256) == (17, 20, "ab" * 32)


# ---- ids ----------------------------------------------------------------------------------------
def test_ids_are_unique_and_stable() -> None:
    ids = [row.id for row in mixed().report().decisions]
    assert len(set(ids)) == len(ids) == 5
    assert ids == [row.id for row in symbolic().report(chip_name="h200").decisions]
    assert all(len(id) == 16 and int(id, 16) >= 0 for id in ids)


def test_the_same_place_twice_has_two_ids() -> None:
    made = Maker(graph())
    for _ in range(2):
        record = made.fuse("rms_norm", made.norm(0), ("norm0",), outcome="refused", limits=(WIDE,))
        assert record.op is not None
        made.graph.dissolve(record.op)
    first, second = made.report().decisions
    assert first.id != second.id


def test_id_of_a_near_miss_is_of_rule_and_root_only() -> None:
    few, many = Maker(graph()), Maker(graph())
    few.miss("rms_norm", few.norm(3)[1:], "norm3", READ)
    many.miss("rms_norm", many.norm(3), "norm3", READ._replace(code="op"))
    assert few.report().decisions[0].id == many.report().decisions[0].id


# ---- rows ---------------------------------------------------------------------------------------
def test_a_decision_names_its_ops() -> None:
    row = by_root(mixed().report(), "add_norm", "norm0")
    assert row.ops == ("sum0", "square0", "mean0", "root0", "norm0")
    assert row.kinds == ("Add", "Pow", "ReduceMean", "Sqrt", "Div")
    assert row.names[0] == "/model/layers.0/Add"
    assert row.group == "/model/layers.*"


def test_groups_star_digits_and_keep_causes_apart() -> None:
    groups = {(g.rule, g.kind, g.place): g.places for g in mixed().report().groups()}
    assert groups == {
        ("add_norm", "fired", "/model/layers.*"): 1,
        ("rms_norm", "fired", "/model/layers.*/norm"): 1,
        ("rms_norm", "refused", "/model/layers.*/norm"): 1,
        ("rms_norm", "near_miss", "/model/layers.*/norm"): 1,
    }


def test_groups_add_up_their_savings() -> None:
    made = Maker(graph())
    for n in range(3):
        made.fuse("rms_norm", made.norm(n), (f"norm{n}",))
    (group,) = made.report().groups()
    assert (group.places, group.launches) == (3, 9)
    assert group.bytes == 3 * by_root(made.report(), "rms_norm", "norm0").saves.bytes  # type: ignore[operator]


@pytest.mark.parametrize(
    ("names", "root", "group"),
    [
        (["/m/layers.3/norm/Pow", "/m/layers.3/norm/Sqrt"], "r", "/m/layers.*/norm"),
        (["/m/layers.1/Pow", "/m/layers.10/Sqrt"], "r", "/m"),
        (["/m/layers.3/Pow"], "r", "/m/layers.*/Pow"),
        (["node_pow_1", "node_sqrt_2"], "node_mul_15", "node_mul_*"),
        ([], "val_7", "val_*"),
        (["/a/b", "/a/bc"], "r", "/a"),
    ],
)
def test_places(names: list[str], root: str, group: str) -> None:
    assert Places().group(names, root) == group


# ---- who took whom in ---------------------------------------------------------------------------
def test_absorbed_by_names_what_took_it_in() -> None:
    report = mixed().report()
    taker = by_root(report, "add_norm", "norm0")
    assert by_root(report, "rms_norm", "norm0").absorbed_by == taker.id
    assert by_root(report, "rms_norm", "norm1").absorbed_by is None
    assert by_root(report, "rms_norm", "norm2").absorbed_by is None
    assert taker.absorbed_by is None


def test_a_refused_stone_under_a_firing_names_it() -> None:
    made = Maker(graph())
    made.fuse("rms_norm", made.norm(0), ("norm0",), outcome="refused", limits=(WIDE,))
    made.fuse("add_norm", [made.op("sum0"), made.op("norm0")], ("norm0", "sum0"))
    report = made.report()
    assert by_root(report, "rms_norm", "norm0").absorbed_by == by_root(report, "add_norm", "norm0").id


def test_a_stone_that_dissolved_took_nothing_in() -> None:
    made = Maker(graph())
    made.fuse("rms_norm", made.norm(0), ("norm0",))
    stone = made.fuse(
        "add_norm", [made.op("sum0"), made.op("norm0")], ("norm0", "sum0"), outcome="refused", limits=(WIDE,)
    )
    assert stone.op is not None
    made.graph.dissolve(stone.op)
    assert by_root(made.report(), "rms_norm", "norm0").absorbed_by is None


def test_a_member_of_a_dissolved_stone_can_be_taken_in_again() -> None:
    made = Maker(graph())
    made.fuse("rms_norm", made.norm(0), ("norm0",))
    stone = made.fuse(
        "add_norm", [made.op("sum0"), made.op("norm0")], ("norm0", "sum0"), outcome="refused", limits=(WIDE,)
    )
    assert stone.op is not None
    made.graph.dissolve(stone.op)
    made.fuse("norm_add", [made.op("norm0"), made.op("sum1")], ("sum1", "norm0"))
    report = made.report()
    assert by_root(report, "rms_norm", "norm0").absorbed_by == by_root(report, "norm_add", "sum1").id
    assert by_root(report, "add_norm", "norm0").absorbed_by is None


def test_absorbers_are_linear() -> None:
    """A chain in which each decision takes in the last: the work is the leaves', not their square."""
    made = Maker(graph(layers=1))
    ops = made.norm(0)
    rows = [
        Record("fired", "r", "r", "norm0", tuple(ops[: i + 1]), "", i, op=ops[0]) for i in range(len(ops))
    ]
    assert absorbers(rows) == [1, 2, 3, None]


# ---- savings and totals -------------------------------------------------------------------------
def test_savings_add_up_to_before_less_after() -> None:
    made = mixed()
    report = made.report()
    fired = [row for row in report.decisions if row.kind == "fired"]
    assert sum(row.saves.launches or 0 for row in fired) == report.before.launches - report.after.launches
    saved = add_sizes(row.saves.bytes for row in fired)
    assert isinstance(report.before.bytes, int)
    assert saved == report.before.bytes - int(report.after.bytes)


def test_savings_over_a_refused_stone_add_up() -> None:
    made = Maker(graph())
    made.fuse("rms_norm", made.norm(0), ("norm0",), outcome="refused", limits=(WIDE,))
    made.fuse("add_norm", [made.op("sum0"), made.op("norm0")], ("norm0", "sum0"))
    report = made.report()
    assert by_root(report, "add_norm", "norm0").saves.launches == 4
    assert report.before.launches - report.after.launches == 4


def test_savings_in_symbols() -> None:
    report = symbolic().report()
    wide, narrow = 64 * 4, 4
    moved = 3 * wide + 4 * narrow  # the square is written and read, x read once less than twice; mean, root
    assert by_root(report, "rms_norm", "norm1").saves.bytes == f"{moved}*batch"


def test_unknown_shapes_save_unknown_bytes() -> None:
    made = Maker(graph())
    del made.before.base.types["square0"]  # type: ignore[attr-defined]
    made.fuse("rms_norm", made.norm(0), ("norm0",))
    report = made.report()
    assert report.decisions[0].saves.bytes is None
    assert (report.before.unknown, report.after.unknown) == (2, 0)


def test_free_views_are_no_launches() -> None:
    made = Maker(graph())
    slots = made.before.slots
    assert slots[0] is not None
    slots[0] = slots[0]._replace(kind="Reshape")
    assert made.report().before.launches == 19


def test_coverage_counts_lifted_ops_by_class() -> None:
    report = mixed().report()
    assert [(row.name, row.count, row.ops) for row in report.after.classes] == [
        ("add_norm", 1, 5),
        ("rms_norm", 1, 4),
    ]
    assert report.before.covered == 0
    assert report.after.covered == 9


def test_native_operators_count_as_covered() -> None:
    made = Maker(graph())
    for n, kind in enumerate(("LayerNormalization", "com.microsoft.SkipLayerNormalization", "Relu")):
        slot = made.before.slots[n]
        assert slot is not None
        made.before.slots[n] = slot._replace(kind=kind)
    names = [row.name for row in made.report().before.classes]
    assert names == ["LayerNormalization", "com.microsoft.SkipLayerNormalization"]


@pytest.mark.parametrize(
    "dim",
    [
        0,
        7,
        symbol("batch"),
        mul(3, symbol("batch")),
        add(mul(symbol("a"), symbol("b")), 4),
        add(mul(-2, symbol("a")), symbol("floor(a - 1 / 2*b)")),
        add(-5, symbol("n")),
    ],
)
def test_sizes_read_back(dim: Dim) -> None:
    assert read_size(str(size_text(dim))) == dim


def test_sizes_add_up() -> None:
    assert add_sizes(["2*batch", 5, None, "batch + 1"]) == "6 + 3*batch"
    assert add_sizes([None, None]) is None
    assert add_sizes([]) is None
    assert known_bytes("2*batch + 3") == 5
    assert known_bytes(None) == 0
