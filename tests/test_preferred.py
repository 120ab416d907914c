"""A kernel that exists and loses by measure: refused with the figures, and later rules may build on it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import graph_files
import pytest
from onnx import parser

import chips
import fuse
import reference

BENCH = Path(__file__).parent / "bench" / "skip_layer_norm.py"
NORM = """<ir_version: 10, opset_import: ["" : 23]>
g (float[1, rows, {width}] x, float[1, rows, {width}] r, float[{width}] w, float[{width}] b)
  => (float[1, rows, {width}] y)
{{
  sum = Add (x, r)
  y = {norm} <axis = -1> ({operands})
}}"""


def norm(width: int, rms: bool = False) -> fuse.Graph:
    operands = "sum, w" if rms else "sum, w, b"
    kind = "RMSNormalization" if rms else "LayerNormalization"
    return fuse.load(parser.parse_model(NORM.format(width=width, norm=kind, operands=operands)))


@pytest.mark.parametrize("width", [256, 768, 4096])
def test_skip_layer_normalization_is_not_preferred(width: int) -> None:
    found = fuse.optimize(norm(width), shim=chips.load("ort-cpu"))
    assert [op.kind for op in found.graph.ops] == ["Add", "LayerNormalization"]
    (row,) = found.report.refused("add_norm")
    (limit,) = row.reasons
    assert limit.code == "chip:not_preferred"
    assert limit.want == "at most the processor time of Add and LayerNormalization"
    assert limit.got.startswith("1.6 to 6.3 times theirs")


@pytest.mark.parametrize(("width", "rms"), [(64, False), (768, True), (4096, True)])
def test_it_is_where_nothing_was_measured_against_it(width: int, rms: bool) -> None:
    assert fuse.optimize(norm(width, rms), shim=chips.load("ort-cpu")).report.fired("add_norm")


def test_the_refusal_leaves_a_stone(tmp_path: Path) -> None:
    """A chip that prefers no add_norm, but runs the sandwich around it, gets its norm_add_norm."""
    path = tmp_path / "sandwich.yaml"
    path.write_text(
        """name: sandwich
about: norms around a residual as one kernel
extends: ort-cpu
classes:
  norm_add_norm: {kernel: sandwich, lacks: null, evidence: docs, source: [this test]}
prefer:
  add_norm: {when: {norm: null, width: null}, want: a gain, got: a loss, source: [this test]}
"""
    )
    found = fuse.optimize(graph_files.graph("norm_add_norm"), shim=chips.load(path))
    (fired,) = found.report.fired("norm_add_norm")
    (refused,) = found.report.refused("add_norm")
    assert [limit.code for limit in refused.reasons] == ["chip:not_preferred"]
    assert refused.absorbed_by == fired.id
    assert [op.kind for op in found.graph.ops] == ["norm_add_norm"]
    assert reference.check(found.before, found.graph).bit_equal


def test_the_measurement_runs_and_still_says_so() -> None:
    """Far below what was measured: the fused kernel takes more processor time than its parts."""
    ort = pytest.importorskip("onnxruntime")
    if ort.__version__ != "1.32.0":
        pytest.skip(f"measured with onnxruntime 1.32.0, this is {ort.__version__}")
    spec = importlib.util.spec_from_file_location("skip_layer_norm", BENCH)
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    assert bench.ratio(128, 768, pairs=7).median > 1.2
