"""A chip's own rules: from its file into the order of steps, the judge, the graph and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser

import chips
import fuse
import reference
from fuse.ir import unfuse
from fuse.types import FuseError

ATTENTION = """<ir_version: 10, opset_import: ["" : 20]>
g (float[1, 4, rows, {width}] q, float[1, 4, rows, {width}] k, float[1, 4, rows, {width}] v)
  => (float[1, 4, rows, {width}] y)
<float scale = {{0.1}}>
{{
  turned = Transpose <perm = [0, 1, 3, 2]> (k)
  scores = MatMul (q, turned)
  scaled = Mul (scores, scale)
  shares = Softmax <axis = -1> (scaled)
  y = MatMul (shares, v)
}}"""


def attention(width: int) -> fuse.Graph:
    return fuse.load(parser.parse_model(ATTENTION.format(width=width)))


def blocks() -> fuse.Graph:
    """A product of a weight in blocks of 4 bits."""
    draw = np.random.default_rng(0)
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]> g (float[M, 64] x) => (float[M, 8] y)'
        "{ y = com.microsoft.MatMulNBits <K = 64, N = 8, bits = 4, block_size = 32> (x, codes, scales) }"
    )
    codes = draw.integers(0, 256, (8, 2, 16), np.uint8)
    for name, values in (("codes", codes), ("scales", draw.uniform(0.1, 0.2, 16).astype(np.float32))):
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        tensor = helper.make_tensor(name, kind, values.shape, values.tobytes(), raw=True)
        model.graph.initializer.append(tensor)
    return fuse.load(model)


# ---- what they do -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("width", "padded"), [(48, 64), (56, 64), (88, 96), (72, 96), (112, 128), (120, 128)]
)
def test_a_head_width_without_a_kernel_takes_the_next_wider(width: int, padded: int) -> None:
    found = fuse.optimize(attention(width), shim=chips.load("m3"))
    (op,) = found.graph.ops
    assert (op.kind, op.attrs["pad_head_to"]) == ("attention", padded)
    assert found.rules == {"y": f"pad_head_{padded}"}
    assert reference.check(found.before, found.graph).bit_equal
    found.graph.verify()


@pytest.mark.parametrize("width", [64, 96, 128])
def test_a_head_width_with_a_kernel_is_left_alone(width: int) -> None:
    found = fuse.optimize(attention(width), shim=chips.load("m3"))
    (op,) = found.graph.ops
    assert "pad_head_to" not in op.attrs
    assert found.fired == ("attention",)


@pytest.mark.parametrize("width", [16, 40, 136, 160])
def test_a_head_width_far_from_any_kernel_is_not_padded(width: int) -> None:
    found = fuse.optimize(attention(width), shim=chips.load("m3"))
    assert not found.report.fired("attention")
    assert [limit.code for limit in found.report.refused("attention")[0].reasons] == ["chip:head_dim"]


def test_the_refused_place_is_in_the_report_with_what_took_it() -> None:
    report = fuse.optimize(attention(88), shim=chips.load("m3")).report
    (refused,), (fired,) = report.refused(), report.fired()
    assert (refused.rule, refused.absorbed_by) == ("attention", fired.id)
    assert [limit.got for limit in refused.reasons] == ["88"]
    assert (fired.rule, fired.builds, fired.ops) == ("pad_head_96", "attention", refused.ops)
    assert fired.kernel == "mx.fast.scaled_dot_product_attention"
    assert fired.saves == refused.saves
    assert fired.saves.launches == report.before.launches - report.after.launches == 4
    assert list(report.fired("attention")) == list(report.fired("pad_head_96")) == [fired]


def test_a_held_chip_rule_shows_where_it_would_have_fired() -> None:
    found = fuse.optimize(attention(88), shim=chips.load("m3"), held=["pad_head_96"])
    assert "attention" not in [op.kind for op in found.graph.ops]
    (held,) = found.report.held("pad_head_96")
    assert held.outcome.model_dump() == {"kind": "held", "fires": True}
    whole = fuse.optimize(attention(88), shim=chips.load("m3")).report
    assert held.id == whole.fired("pad_head_96")[0].id
    assert found.report.refused("attention")[0].id == whole.refused("attention")[0].id


def test_a_rule_may_set_what_a_whole_kernel_runs_with() -> None:
    """One firing of the class, whichever of the two is asked for."""
    found = fuse.optimize(blocks(), shim=chips.load("ort-cpu"))
    (op,) = found.graph.ops
    assert (op.kind, op.attrs["accuracy_level"]) == ("quantized_matmul", 1)
    assert found.fired == ("quantized_matmul", "full_precision_blocks")
    (member,) = found.report.fired("quantized_matmul")
    (own,) = found.report.fired("full_precision_blocks")
    assert member.absorbed_by == own.id
    assert own.saves.launches == 0
    assert reference.check(found.before, found.graph).bit_equal


def test_undone_it_is_the_lifted_graph() -> None:
    for graph, chip in ((attention(88), "m3"), (blocks(), "ort-cpu")):
        found = fuse.optimize(graph, shim=chips.load(chip))
        assert unfuse(found.graph).ops == found.before.ops


def test_the_model_that_is_saved_is_the_same_function(tmp_path: Path) -> None:
    found = fuse.optimize(attention(88), shim=chips.load("m3"))
    fuse.save(found, tmp_path / "m.onnx")
    (node,) = onnx.load(tmp_path / "m.onnx").graph.node
    said = {prop.key: prop.value for prop in node.metadata_props}
    assert (said["fuse.rule"], said["fuse.class"]) == ("pad_head_96", "attention")
    assert said["fuse.kernel"] == "pad_head_to=96"
    again = fuse.load(tmp_path / "m.onnx")
    feeds = reference.feeds(found.before)
    want, got = reference.eval(found.before, feeds), reference.eval(again, feeds)
    assert np.array_equal(got["y"], want["y"])


def test_steps_stand_beside_their_rule() -> None:
    names = [step.name for step in fuse.steps(chips.load("m5"))]
    at = names.index("attention")
    assert names[at : at + 4] == ["attention", "pad_head_64", "pad_head_96", "pad_head_128"]
    names = [step.name for step in fuse.steps(chips.load("ort-cpu"))]
    assert names[names.index("quantized_matmul") + 1] == "full_precision_blocks"
    assert [name for name in names if name in fuse.rule_names()] == list(fuse.rule_names())


# ---- what a file may say ------------------------------------------------------------------------
FILE = """name: mine
about: a chip of this test
runtime: {name: own}
rules:
  - name: padded
    place: after
    beside: attention
    class: attention
    when: {head_dim: {at_most: 95}}
    set: {pad_head_to: 96}
    reason: because
    source: [a page]
classes:
  attention:
    kernel: k
    evidence: docs
    source: [a page]
"""


def load(folder: Path, text: str) -> chips.Chip:
    path = folder / "mine.yaml"
    path.write_text(text)
    return chips.load(path)


@pytest.mark.parametrize(
    ("place", "before", "after"),
    [
        ("place: before\n    beside: attention", "rope", "attention"),
        ("place: after\n    beside: attention", "attention", "quantized_matmul"),
        ("place: closing", None, None),
    ],
)
def test_place(tmp_path: Path, place: str, before: str | None, after: str | None) -> None:
    chip = load(tmp_path, FILE.replace("place: after\n    beside: attention", place))
    names = [step.name for step in fuse.steps(chip)]
    at = names.index("padded")
    if before is None:
        assert set(names[at + 1 :]) <= {"advance"}
        assert set(fuse.rule_names()) - {"advance"} <= set(names[:at])
    else:
        assert (names[at - 1], names[at + 1]) == (before, after)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: padded", "name: attention", r"mine\.yaml:5: attention is the name of another rule"),
        ("beside: attention", "beside: atention", r"mine\.yaml:7: no rule atention; nearest: attention"),
        ("class: attention", "class: atention", r"mine\.yaml:8: unknown class atention; nearest: attention"),
        (
            "pad_head_to: 96",
            "groups: 2",
            r"mine\.yaml:10: attention has no kernel attribute groups; it has pad_head_to",
        ),
        ("class: attention", "class: silu", r"mine\.yaml:10: silu has no kernel attribute .*; it has none"),
        ("pad_head_to: 96", "pad_head_to: wide", r"mine\.yaml:10: pad_head_to: want int, got wide"),
        ("head_dim: {at_most", "width: {at_mots", r"mine\.yaml:9: .*unknown key"),
        (
            "head_dim: {at_most: 95}",
            "bias: false",
            r"mine\.yaml:9: limit bias says nothing about attention",
        ),
        ("place: after", "place: closing", r"mine\.yaml:5: .*want beside with before and after"),
        ("    reason: because\n", "", r"mine\.yaml:\d+: rules\.0\.reason: missing"),
        ("    source: [a page]\nclasses", "classes", r"mine\.yaml:\d+: rules\.0\.source: missing"),
        ("set: {pad_head_to: 96}", "set: {}", r"mine\.yaml:10: .*at least 1"),
    ],
)
def test_bad_rules_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in FILE
    with pytest.raises(FuseError, match=message):
        load(tmp_path, FILE.replace(old, new, 1))


def test_two_rules_of_one_name(tmp_path: Path) -> None:
    start = FILE.index("  - name")
    one = FILE[start : FILE.index("classes:")]
    with pytest.raises(FuseError, match=r"mine\.yaml:13: padded is the name of another rule"):
        load(tmp_path, FILE.replace(one, one + one))


@pytest.mark.parametrize("name", chips.names())
def test_every_shipped_rule_says_why_and_whence(name: str) -> None:
    spec: Any = chips.load(name).spec
    for rule in spec.rules:
        assert len(rule.reason) > 20
        assert rule.source
