"""Chip files: what they say, how they are read, and how a chip answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from candidates import candidate

import chips
from chips import cost
from chips.load import HERE
from chips.schema import Evidence
from fuse.classes import CLASSES
from fuse.shim import Limit, Refused, Shim, Whole
from fuse.types import FuseError

HEADS = {
    "q_layout": "b h s d", "k_layout": "b h s d", "v_layout": "b h s d", "out_layout": "b h s d",
    "heads": 8, "scale": 0.125,
}  # fmt: skip
GOOD = """
name: mine
about: a chip of this test
runtime: {name: own}
classes:
  rms_norm:
    kernel: k
    dtypes: [f32]
    limits: {width: {at_most: 8}}
    evidence: docs
    source: [a page]
"""


def attention(width: int = 64, rows: object = "S", groups: int = 1, dtype: str = "f16", **attrs: Any):
    """Attention of 8 heads over a cache of P rows and the new ones."""
    keys = f"{dtype}[B,{8 // groups},P + {rows},{width}]"
    q = f"{dtype}[B,8,{rows},{width}]"
    return candidate("attention", {"q": q, "k": keys, "v": keys}, HEADS | {"groups": groups} | attrs)


def rms(x: str = "f32[2,3,8]", weight: str = "= f32[8]"):
    return candidate("rms_norm", {"x": x, "weight": weight}, {"eps": 1e-5})


def codes(answer: Whole | Refused) -> list[str]:
    assert isinstance(answer, Refused), answer
    return [limit.code for limit in answer.limits]


def write(folder: Path, text: str, name: str = "mine") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


# ---- the shipped files ---------------------------------------------------------------------------
def test_the_chips_that_are_shipped() -> None:
    assert chips.names() == (
        "ane-coreml", "any", "hexagon-qnn", "m1", "m2", "m3", "m4", "m5", "mlx-cpu", "none", "openvino-cpu",
        "ort-cpu", "ort-cuda-a100", "ort-cuda-h100", "ort-webgpu",
    )  # fmt: skip
    with pytest.raises(FuseError, match="apple-mlx is a base of other chips"):
        chips.load(HERE / "apple-mlx.yaml")


@pytest.mark.parametrize("name", chips.names())
def test_every_shipped_chip_loads_and_names_only_classes_that_exist(name: str) -> None:
    chip: Shim = chips.load(name)
    assert chip.name == name
    assert len(chip.sha256) == 64
    spec = chips.load(name).spec
    assert spec.classes.keys() | spec.prefer.keys() <= CLASSES.keys()


def numbers_without_source(data: Any, sourced: bool = False) -> list[str]:
    """The keys of numbers that stand under no mapping with a source."""
    if isinstance(data, dict):
        sourced = sourced or bool(data.get("source"))
        found = []
        for key, value in data.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and not sourced:
                found.append(key)
            found += numbers_without_source(value, sourced)
        return found
    if isinstance(data, list):
        found = ["in a list"] if not sourced and any(type(item) in (int, float) for item in data) else []
        return found + [key for item in data for key in numbers_without_source(item, sourced)]
    return []


@pytest.mark.parametrize("path", sorted(HERE.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_number_has_a_source(path: Path) -> None:
    assert numbers_without_source(yaml.safe_load(path.read_text())) == []


def test_a_number_without_a_source_is_seen() -> None:
    assert numbers_without_source({"memory": {"gbs": 3, "sizes": [1]}}) == ["gbs", "in a list"]


def test_any_links_everything_and_none_nothing() -> None:
    everything, nothing = chips.load("any"), chips.load("none")
    for name in CLASSES:
        assert everything.links(name)
        assert not nothing.links(name)
    assert isinstance(everything.judge(attention(width=7)), Whole)
    assert nothing.judge(rms()) == Refused(
        (Limit("chip:not_linked", "one kernel for rms_norm", "none known on none"),)
    )


@pytest.mark.parametrize("name", chips.names())
def test_the_support_table_has_every_class_with_its_evidence(name: str) -> None:
    rows = chips.support_table(chips.load(name))
    assert list(dict.fromkeys(row.name for row in rows)) == list(CLASSES)
    for row in rows:
        assert row.kernel or row.note
        assert bool(row.evidence) == bool(row.source)
        assert row.evidence in ("", *Evidence.__args__)
        assert all(len(sentence) < 100 for sentence in (*row.when, *row.limits)), row
    if name == "ort-cpu":
        two = [row for row in rows if row.name == "add_norm"]
        assert [row.when for row in two] == [("norm rms",), ("norm layer",)]


# ---- answers of the shipped chips ----------------------------------------------------------------
def test_a_head_width_that_the_chip_has_not() -> None:
    m3 = chips.load("m3")
    assert isinstance(m3.judge(attention()), Whole)
    answer = m3.judge(attention(width=88, rows=100))
    assert answer == Refused(
        (Limit("chip:head_dim", "head width one of 64, 72, 80, 96, 128, or 96 with v 64", "88"),)
    )
    assert codes(m3.judge(attention(width=88))) == ["chip:head_dim"]
    assert codes(m3.judge(attention(width=512, rows=100))) == ["chip:head_dim"]
    assert isinstance(chips.load("m5").judge(attention(width=512, rows=100)), Whole)


def test_every_limit_that_fails_is_listed() -> None:
    answer = chips.load("m3").judge(attention(width=88, rows=100, dtype="f64", softcap=30.0, mask=("cap",)))
    assert codes(answer) == ["chip:dtypes", "chip:softcap", "chip:head_dim"]
    ort = chips.load("ort-cpu")
    one = candidate("matmul_bias", {"x": "f16[2,3,8]", "weight": "f16[8,4]", "bias": "f16[4]"})
    assert codes(ort.judge(one)) == ["chip:dtypes", "chip:rank"]


def test_rows_of_q_decide_which_kernel_runs() -> None:
    m3 = chips.load("m3")
    assert isinstance(m3.judge(attention(width=72, rows=100)), Whole)
    assert codes(m3.judge(attention(width=72, rows=1))) == ["chip:head_dim"]
    unsure = m3.judge(attention(width=72))
    assert unsure == Refused(
        (
            Limit(
                "unknown_shape",
                "rows of q at least 9",
                "rows of q unknown (S): try --dim S=1",
                "bind S with --dim",
            ),
        )
    )
    shared = attention(width=64, groups=8)
    assert codes(m3.judge(shared)) == ["unknown_shape"]
    assert isinstance(m3.judge(attention(width=64, groups=4, rows=8)), Whole)
    assert codes(m3.judge(attention(width=64, groups=8, rows=8))) == ["chip:q_len_groups"]


def test_the_reason_stands_where_a_class_is_not_linked() -> None:
    m3 = chips.load("m3")
    add = candidate("add_norm", {"x": "f32[8]", "residual": "f32[8]", "weight": "f32[8]"}, {"eps": 1e-5})
    assert not m3.links("add_norm")
    assert m3.judge(add) == Refused(
        (
            Limit(
                "chip:not_linked",
                "one kernel for add_norm",
                "no residual-add+norm primitive in MLX; add and norm are two kernels",
            ),
        )
    )


def test_mlx_takes_no_tables_of_angles() -> None:
    tables = {"x": "f32[1,4,S,8]", "cos": "f32[S,4]", "sin": "f32[S,4]"}
    answer = chips.load("m3").judge(candidate("rope", tables, {"tables": "half"}))
    assert answer == Refused(
        (
            Limit(
                "chip:tables",
                "angles given as a base or divisors and an offset",
                "tables of cos and sin (cos)",
            ),
        )
    )
    found = chips.load("ort-cpu").judge(candidate("rope", tables, {"tables": "half"}))
    assert isinstance(found, Whole)
    assert found.kernel == "com.microsoft.RotaryEmbedding (position_ids = [0])"


def test_onnxruntime_chooses_its_kernel_by_type_and_layout() -> None:
    ort = chips.load("ort-cpu")
    for dtype, kernel in (("f32", "RMSNormalization (23)"), ("bf16", "SimplifiedLayerNormalization")):
        found = ort.judge(rms(f"{dtype}[2,3,8]", f"= {dtype}[8]"))
        assert isinstance(found, Whole)
        assert found.kernel == f"ai.onnx.{kernel}"
        assert found.evidence == "ran"
    rows_first = {"q_layout": "b s h d", "out_layout": "b s h d"}
    mixed = ort.judge(attention(dtype="f32", **rows_first))
    assert isinstance(mixed, Whole)
    assert mixed.kernel == "com.microsoft.MultiHeadAttention"
    assert codes(ort.judge(attention(dtype="f32", out_layout="b s h d"))) == ["chip:layouts"]
    joined = {f"{n}_layout": "b s hd" for n in ("q", "k", "v", "out")}
    one = candidate("attention", dict.fromkeys("qkv", "f32[B,S,512]"), HEADS | joined)
    three = ort.judge(one)
    assert isinstance(three, Whole)
    assert three.kernel == "ai.onnx.Attention (23 or 24, 3-D)"


def test_notes_say_what_lies_beside_the_kernel_and_what_an_empty_row_gives() -> None:
    operands = {"q": "f32[B,8,S,64]", "k": "f32[B,8,S,64]", "v": "f32[B,8,S,64]", "mask.1": "bool[B,1,1,S]"}
    found = chips.load("ort-cpu").judge(candidate("attention", operands, HEADS | {"mask": ("drop",)}))
    assert isinstance(found, Whole)
    for text in ("expanded once", "negated once", "gives zero here, nan in the graph"):
        assert text in found.note
    guarded = chips.load("ort-cpu").judge(
        candidate("attention", operands, HEADS | {"mask": ("keep",), "empty_rows": "zero"})
    )
    assert isinstance(guarded, Whole)
    assert "in the graph" not in guarded.note


def test_add_norm_on_onnxruntime() -> None:
    ort = chips.load("ort-cpu")
    operands = {"x": "f32[B,S,8]", "residual": "f32[B,S,8]", "weight": "= f32[8]", "bias": "= f32[8]"}
    layer = ort.judge(candidate("add_norm", operands, {"eps": 1e-5, "norm": "layer"}))
    assert isinstance(layer, Whole)
    assert layer.kernel == "com.microsoft.SkipLayerNormalization"
    assert codes(ort.judge(candidate("add_norm", operands, {"eps": 1e-5}))) == ["chip:bias"]
    wide = operands | {"x": "f32[1,B,S,8]", "residual": "f32[1,B,S,8]"}
    assert codes(ort.judge(candidate("add_norm", wide, {"eps": 1e-5, "norm": "layer"}))) == ["chip:rank"]


def test_merged_products_on_onnxruntime() -> None:
    ort = chips.load("ort-cpu")
    operands = {"x": "f32[B,S,8]", "weight.1": "= f32[8,6]", "weight.2": "= f32[8,2]"}
    attrs = {"biases": (0, 0), "trans_weights": (0, 0)}
    found = ort.judge(candidate("merged_gate_up", operands, attrs))
    assert isinstance(found, Whole)
    assert found.kernel == "ai.onnx.MatMul of the joined weights"
    biased = operands | {"bias.1": "= f32[6]"}
    assert codes(ort.judge(candidate("merged_gate_up", biased, attrs | {"biases": (1, 0)}))) == ["chip:bias"]
    flat = ort.judge(candidate("merged_gate_up", biased | {"x": "f32[B,8]"}, attrs | {"biases": (1, 0)}))
    assert isinstance(flat, Whole)
    assert flat.kernel == "ai.onnx.Gemm of the joined weights"


# ---- preferences, families, errors ---------------------------------------------------------------
def test_a_kernel_that_loses_is_refused_with_its_measurement(tmp_path: Path) -> None:
    prefer = (
        "prefer: {rms_norm: {when: {rank: {one_of: [2]}}, want: 1.2x or more, got: 0.9x, source: [a run]}}"
    )
    chip = chips.load(write(tmp_path, GOOD + prefer))
    assert chip.judge(rms("f32[2,8]")) == Refused((Limit("chip:not_preferred", "1.2x or more", "0.9x"),))
    assert isinstance(chip.judge(rms()), Whole)
    assert codes(chip.judge(rms("f64[2,8]", "= f64[8]"))) == ["chip:dtypes"]


def test_a_base_is_merged_key_by_key_and_counts_in_the_hash(tmp_path: Path) -> None:
    write(tmp_path, GOOD.replace("name: mine", "name: base\nabstract: true"), "base")
    changed = "{dtypes: [f16], limits: {width: null, rank: {at_most: 3}}}"
    text = f"name: mine\nextends: base\nclasses: {{rms_norm: {changed}}}"
    path = write(tmp_path, text)
    chip = chips.load(path)
    assert codes(chip.judge(rms())) == ["chip:dtypes"]
    assert isinstance(chip.judge(rms("f16[2,99]", "= f16[8]")), Whole)
    write(tmp_path, GOOD.replace("name: mine", "name: base\nabstract: true") + "# more\n", "base")
    assert chips.load(path).sha256 != chip.sha256


def test_cost_figures_come_from_the_file() -> None:
    m3 = chips.load("m3")
    assert cost.rates(m3).bandwidth_gbs == 100
    assert cost.rates(m3, "ultra").bandwidth_gbs == 819
    assert cost.predicted_us(cost.rates(m3), launches=3, nbytes=100_000) == 1.0
    assert cost.predicted_us(cost.rates(chips.load("none")), 3, 100) is None
    with pytest.raises(FuseError, match="m3 has no variant maxx; nearest: max"):
        cost.rates(m3, "maxx")
