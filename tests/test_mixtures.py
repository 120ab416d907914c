"""Mixtures of experts: each exporter's spelling is found, its values kept, and what nearly is one is told."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixture_models import EXPERTS, INNER, WIDTH, Draft, K, mixture, shared_expert
from onnx import helper
from standing import standing

import chips
import fuse
import reference
from fuse.ir import Op, leaves, unfuse
from fuse.rules.mixture_blocks import moe_block, moe_gather_in_operand, router_shared_gate_merge
from fuse.rules.mixtures import moe, moe_shared

GPT_OSS: dict[str, Any] = {"form": "gpt_oss", "routing": "softmax_chosen", "renormalize": False}
#: What exports write, by what is told of it (attributes of moe that are not the defaults).
SPELLINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mixtral, dynamo": ({}, {"renormalize": True, "trans_first": 1, "trans_down": 1}),
    "qwen3_moe, older": ({"form": "older"}, {"renormalize": True, "trans_first": 1, "trans_down": 1}),
    "qwen3_moe, a loop": ({"form": "looped"}, {"renormalize": True, "stacked": False, "gating": "two"}),
    "a loop of scatters": ({"form": "adding"}, {"renormalize": True, "stacked": False, "gating": "two"}),
    "gpt_oss": (
        GPT_OSS,
        {
            "scoring": "softmax_chosen", "gating": "lanes", "act": "quick_gelu", "act_alpha": 1.702,
            "limit": 7.0, "up_offset": 1.0, "expert_biases": (1, 0, 1),
        },
    ),
    "gpt_oss, bounds of one side": (
        GPT_OSS,
        {
            "scoring": "softmax_chosen", "gating": "lanes", "act": "quick_gelu", "act_alpha": 1.702,
            "limit": 7.0, "up_offset": 1.0, "expert_biases": (1, 0, 1),
        },
    ),
    "deepseek_v3": (
        {"routing": "grouped", "scale": 2.5},
        {
            "scoring": "sigmoid", "selection": "grouped", "groups": 2, "kept_groups": 1, "renormalize": True,
            "route_scale": 2.5, "trans_first": 1, "trans_down": 1,
        },
    ),
    "deepseek_v3, a loop": (
        {"form": "looped", "routing": "grouped"},
        {
            "scoring": "sigmoid", "selection": "grouped", "groups": 2, "kept_groups": 1, "renormalize": True,
            "stacked": False, "gating": "two",
        },
    ),
    "a bias for the choice": (
        {"routing": "biased"},
        {"scoring": "sigmoid", "selection": "biased", "renormalize": True, "trans_first": 1, "trans_down": 1},
    ),
    "sigmoid scores": (
        {"routing": "sigmoid", "renormalize": False},
        {"scoring": "sigmoid", "trans_first": 1, "trans_down": 1},
    ),
    "nemotron_h, a squared relu": (
        {"routing": "grouped", "squared": "Mul"},
        {
            "scoring": "sigmoid", "selection": "grouped", "groups": 2, "kept_groups": 1, "renormalize": True,
            "trans_first": 1, "trans_down": 1, "gating": "none", "act": "squared_relu",
        },
    ),
    "a squared relu by a power": (
        {"squared": "Pow"},
        {
            "renormalize": True, "trans_first": 1, "trans_down": 1, "gating": "none", "act": "squared_relu",
        },
    ),
    "by the sum of their sizes": (
        {"renormalize": "sizes"},
        {"renormalize": True, "trans_first": 1, "trans_down": 1},
    ),
    "mixtral, a loop over those that were hit": (
        {"form": "traced", "rows": 9},
        {"renormalize": True, "trans_first": 1, "trans_down": 1},
    ),
    "gpt_oss, a loop over those that were hit": (
        GPT_OSS | {"form": "traced_gpt_oss", "rows": 9},
        {
            "scoring": "softmax_chosen", "gating": "lanes", "act": "quick_gelu", "act_alpha": 1.702,
            "limit": 7.0, "up_offset": 1.0, "expert_biases": (1, 0, 1),
        },
    ),
    "gate and up apart": (
        {"form": "two", "renormalize": False},
        {"gating": "two", "trans_first": 1, "trans_second": 1, "trans_down": 1},
    ),
}  # fmt: skip


def optimized(model: onnx.ModelProto, chip: str = "any", held: tuple[str, ...] = ()) -> fuse.Optimized:
    return fuse.optimize(fuse.load(model), shim=chips.load(chip), held=held)


def built(found: fuse.Optimized, kind: str) -> Op:
    """The only op of a class that was built, whatever took it in since."""
    (op,) = [record.op for record in found.records if record.builds == kind and record.outcome == "fired"]
    assert op is not None
    return op


def misses(found: fuse.Optimized, rule: str) -> list[str]:
    return [row.reasons[0].code for row in found.report.near() if row.rule == rule]


# ---- spellings -------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", SPELLINGS)
def test_each_spelling_is_one_mixture(name: str) -> None:
    ways, want = SPELLINGS[name]
    found = optimized(mixture(**ways))
    attrs = dict(built(found, "moe").attrs)
    assert attrs.pop("act_alpha", 1.702) == pytest.approx(1.702)
    assert attrs == {"experts": EXPERTS, "k": K} | {k: v for k, v in want.items() if k != "act_alpha"}
    assert [op.kind for op in found.graph.ops if op.parts] == ["moe_block"]
    assert not found.report.near()
    assert reference.check(found.before, found.graph).bit_equal
    assert standing(unfuse(found.graph)) == standing(found.before)


@pytest.mark.parametrize("name", SPELLINGS)
def test_nothing_fires_on_none_and_values_are_kept_on_chips(name: str) -> None:
    model = mixture(**SPELLINGS[name][0])
    none = optimized(model, "none")
    assert not none.fired
    assert standing(none.graph) == standing(none.before)
    assert none.report.refused("moe")
    for chip in ("m3", "ort-cpu"):
        found = optimized(model, chip)
        found.graph.verify()
        assert reference.check(found.before, found.graph).bit_equal


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(SPELLINGS)),
    st.sampled_from([np.float32, np.float16]),
    st.sampled_from(["", "plain", "gated"]),
    st.integers(0, 2**16),
)
def test_definitions_are_their_parts(name: str, dtype: Any, shared: str, seed: int) -> None:
    """Each fused op's definition on the operands it has, and the outputs by definition."""
    ways = SPELLINGS[name][0] | {"dtype": dtype, "shared": shared, "seed": seed, "own_view": bool(seed % 2)}
    found = optimized(mixture(**ways))
    assert found.report.fired("moe_block")
    assert reference.check(found.before, found.graph, seed=seed).bit_equal


@pytest.mark.parametrize("form", ["newer", "older", "gpt_oss", "looped"])
@pytest.mark.parametrize("shared", ["", "gated"])
def test_every_interior_value_may_be_an_output(form: str, shared: str) -> None:
    """A value that the caller wants is never taken in, and every value stays what it was."""
    model = mixture(form=form, shared=shared)
    plain = fuse.load(model)
    fused = [op for op in optimized(model).graph.ops if op.parts]
    inside = [v for op in fused for leaf in leaves(op) for v in leaf.outputs if v not in plain.outputs]
    # experts are alike: of a loop, the routing and the first two
    for value in inside[:60]:
        wanted = onnx.ModelProto.FromString(model.SerializeToString())
        wanted.graph.output.append(onnx.ValueInfoProto(name=value))
        found = optimized(wanted)
        made = {v for op in found.graph.ops for v in op.outputs}
        assert value in made or value not in found.before.base.producer
        assert reference.check(found.before, found.graph).bit_equal


def test_scores_that_others_read_stay_outside() -> None:
    """Where the softmax is an output, the mixture takes its probabilities."""
    model = mixture()
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax").output[0]
    model.graph.output.append(onnx.ValueInfoProto(name=softmax))
    found = optimized(model)
    op = built(found, "moe")
    assert op.attrs["scoring"] == "none"
    assert op.inputs[1] == softmax
    assert not found.report.fired("moe_block")


def test_a_choice_by_other_scores_is_a_form() -> None:
    """What the experts are chosen by may be computed in a way that no form knows."""
    model = mixture(routing="biased")
    for node in model.graph.node:
        if node.op_type == "Add":
            node.op_type = "Mul"
    op = built(optimized(model), "moe")
    assert (op.attrs["selection"], op.attrs["scoring"]) == ("separate", "none")
    assert op.inputs[2]


# ---- guards ----------------------------------------------------------------------------------------
GUARDS: dict[str, dict[str, Any]] = {
    "the_largest_are_chosen": {"wrong": "smallest"},
    "k_is_known": {"wrong": "k at run time"},
    "weights_are_of_the_choice": {"wrong": "other choice"},
    "weights_sum_over_the_chosen": {"wrong": "scaled before the sum"},
    "each_row_meets_one_expert": GPT_OSS | {"wrong": "each row meets all", "rows": 4},
    "each_row_stands_k_times": {"wrong": "copies in blocks"},
    "gate_and_up_are_parts": {"form": "older", "wrong": "other part"},
    "limits_agree": GPT_OSS | {"wrong": "other limit"},
    "experts_are_alike": {"form": "looped", "wrong": "another width"},
    "one_weight_a_row": {"wrong": "a row of weights", "rows": 4},
    "one_axis_is_summed": {"wrong": "sum over rows", "rows": 2},
    "the_chosen_of_a_row_are_summed": {"wrong": "rows before the chosen", "rows": 3},
    "places_are_marked_by_one": {"form": "looped", "wrong": "marked by two"},
    "table_is_turned": {"form": "looped", "wrong": "other places"},
    "places_are_choice_and_row": {"form": "looped", "wrong": "three choices"},
    "results_are_written_by_row": {"form": "adding", "wrong": "multiplied"},
    "every_expert_is_added": {"form": "looped", "wrong": "twice"},
    "the_sum_begins_at_zero": {"form": "looped", "wrong": "from ones"},
    "casts_keep_the_kind": {"wrong": "rounded weights"},
}


@pytest.mark.parametrize("name", GUARDS)
def test_each_guard_broken_alone_gives_its_code(name: str) -> None:
    found = optimized(mixture(**GUARDS[name]))
    assert not found.report.fired("moe_block")
    (wanted,) = (guard for guard in moe.needs if guard.name == name)
    (row,) = found.report.near("moe")
    assert [(reason.code, reason.want) for reason in row.reasons] == [(wanted.code, wanted.want)]


def test_every_guard_is_broken() -> None:
    assert {guard.name for guard in moe.needs} == set(GUARDS)
    assert {guard.name for guard in moe_shared.needs} == set(SHARED_GUARDS)
    assert {guard.name for guard in moe_gather_in_operand.needs} == set(GATHER_GUARDS)
    assert not moe_block.needs
    assert not router_shared_gate_merge.needs


def test_a_loop_over_the_experts_that_were_hit_takes_all_of_them() -> None:
    found = optimized(mixture(form="traced", rows=9, wrong="not the last"))
    assert not found.report.fired("moe")
    assert misses(found, "moe") == ["guard:every_expert_is_added"]


@pytest.mark.parametrize("wrong", ["each choice", "other stacks"])
def test_the_experts_that_were_hit_are_of_any_choice_and_of_one_stack(wrong: str) -> None:
    assert not optimized(mixture(form="traced", rows=9, wrong=wrong)).report.fired("moe")


def test_a_hit_runs_on_its_own_weights() -> None:
    """Weights by the place among the hits are another function where an expert is not hit."""
    assert not optimized(mixture(form="traced", rows=9, wrong="weights by place")).report.fired("moe")


def test_sizes_of_scores_with_a_sign_are_no_sum() -> None:
    assert not optimized(mixture(routing="none", renormalize="sizes")).report.fired("moe")


def test_stacks_that_do_not_fit_are_told() -> None:
    assert misses(optimized(mixture(wrong="fewer experts")), "moe") == ["guard:experts_are_alike"]


@pytest.mark.parametrize(
    ("wrong", "code", "want", "got"),
    [
        ("mean", "op", "ReduceSum", "ReduceMean"),
        ("weights over rows", "attribute", "axes=-1", "axes=0"),
        ("places of two", "operand", "expert: 1", "0"),
    ],
)
def test_one_thing_changed_is_a_near_miss(wrong: str, code: str, want: str, got: str) -> None:
    form = "looped" if wrong == "places of two" else "newer"
    (row,) = optimized(mixture(form=form, wrong=wrong)).report.near("moe")
    assert [(reason.code, reason.want, reason.got) for reason in row.reasons] == [(code, want, got)]


# ---- a shared expert -------------------------------------------------------------------------------
SHARED_GUARDS = {
    "shared_has_the_rows": {"shared": "gated", "wrong": "narrow"},
    "shared_gate_is_one_score": {"shared": "gated", "wrong": "wide gate"},
}


@pytest.mark.parametrize("name", SHARED_GUARDS)
def test_each_guard_of_a_shared_expert(name: str) -> None:
    found = optimized(mixture(**SHARED_GUARDS[name]))
    assert found.report.fired("moe")
    assert misses(found, "moe_shared") == [f"guard:{name}"]


@pytest.mark.parametrize("shared", ["plain", "gated"])
@pytest.mark.parametrize("form", ["newer", "looped"])
def test_a_shared_expert_joins(form: str, shared: str) -> None:
    found = optimized(mixture(form=form, shared=shared, own_view=True))
    op = built(found, "moe_shared")
    assert bool(op.inputs[4]) == (shared == "gated")
    assert bool(found.report.fired("router_shared_gate_merge")) == (shared == "gated")
    block = built(found, "moe_block")
    assert [bool(v) for v in block.inputs[4:6]] == [True, shared == "gated"]
    assert reference.check(found.before, found.graph).bit_equal


@pytest.mark.parametrize("shared", ["", "plain"])
def test_a_router_that_flattens_the_rows_itself(shared: str) -> None:
    found = optimized(mixture(own_view="of x", shared=shared))
    assert len(built(found, "moe_block").parts) > 1
    assert not found.report.near("moe_block")
    assert reference.check(found.before, found.graph).bit_equal


@pytest.mark.parametrize("shared", ["", "plain"])
def test_rows_of_f16_routed_and_weighted_in_f32(shared: str) -> None:
    """The mixture gives rows of f16 again, and its block reads them, whatever the router computes in."""
    found = optimized(mixture(dtype=np.float16, wide=True, shared=shared, routing="sigmoid"))
    out = built(found, "moe").outputs[0]
    assert found.graph.base.types[out].dtype == "f16"
    assert built(found, "moe_block").attrs["experts"] == EXPERTS
    assert bool(found.report.fired("moe_shared")) == bool(shared)
    assert reference.check(found.before, found.graph).bit_equal


def test_a_residual_is_no_shared_expert() -> None:
    model = mixture(rows=4)
    model.graph.node[-1].output[0] = "mixed"
    model.graph.node.append(helper.make_node("Add", ["x", "mixed"], ["y"]))
    found = optimized(model)
    assert found.report.fired("moe")
    assert not found.report.fired("moe_shared")
    assert not misses(found, "moe_shared")


# ---- products that gather --------------------------------------------------------------------------
def gathering(wrong: str = "") -> onnx.ModelProto:
    """Four rows by the square weights that four indices name."""
    d = Draft()
    axis = 1 if wrong == "axis" else 0
    weight = d.op("Gather", d.weight(4, 4, 4), "i", axis=axis)
    unit = d.op("Unsqueeze", "x", d.ints(0 if wrong == "rows" else 1))
    made = d.op("MatMul", unit, weight)
    d.op("Reshape", made, d.ints(-1, 4))
    d.nodes[-1].output[0] = "y"
    model = d.model({"x": [4, 4]}, {"y": None})
    model.graph.input.append(helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [4]))
    return model


GATHER_GUARDS = {"experts_are_the_first_axis": "axis", "each_row_meets_one_expert": "rows"}


@pytest.mark.parametrize("name", GATHER_GUARDS)
def test_each_guard_of_a_gathering_product(name: str) -> None:
    assert optimized(gathering()).report.fired("moe_gather_in_operand")
    found = optimized(gathering(GATHER_GUARDS[name]))
    assert not found.report.fired("moe_gather_in_operand")
    assert misses(found, "moe_gather_in_operand") == [f"guard:{name}"]


@pytest.mark.parametrize("form", ["newer", "older", "gpt_oss"])
def test_where_no_mixture_runs_its_products_gather_in_place(form: str) -> None:
    """The batched exports on a chip that has a gathering product and no mixture."""
    found = optimized(mixture(**(GPT_OSS if form == "gpt_oss" else {"form": form})), "m3")
    first, _ = found.report.fired("moe_gather_in_operand")
    assert first.kernel.startswith("mx.gather_mm")
    ops = [op for op in found.graph.ops if op.kind == "moe_gather_in_operand"]
    assert [op.attrs.get("repeats", 1) for op in ops] == [K, 1]
    assert {row.rule for row in found.report.refused()} >= {"moe"}
    assert reference.check(found.before, found.graph).bit_equal


def test_a_mixture_answers_for_its_gathering_products() -> None:
    assert len(optimized(mixture()).report.fired("moe_gather_in_operand")) == 1


# ---- chips and holding -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "only", ["moe", "moe_shared", "router_shared_gate_merge", "moe_gather_in_operand", "moe_block"]
)
def test_a_chip_with_one_class_gets_it(only: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    entry = f"  {only}: {{kernel: k, evidence: docs, source: [a page]}}\n"
    path.write_text(f"name: mine\nabout: a chip of this test\nruntime: {{name: own}}\nclasses:\n{entry}")
    graph = fuse.load(mixture(shared="gated", own_view=True))
    found = fuse.optimize(graph, shim=chips.load(path))
    assert found.fired == (only,)
    assert reference.check(graph, found.graph).bit_equal


@pytest.mark.parametrize("chip", ["ort-cpu", "ort-cuda-a100"])
def test_onnxruntime_takes_gate_and_up_in_turn_only(chip: str) -> None:
    for ways, code in (({}, "chip:gating"), (GPT_OSS, "chip:scoring"), ({"form": "looped"}, "chip:stacked")):
        (row,) = optimized(mixture(**ways), chip).report.refused("moe")
        assert code in {reason.code for reason in row.reasons}


def test_a_held_rule_leaves_the_graph() -> None:
    held = ("moe", "moe_shared", "router_shared_gate_merge", "moe_gather_in_operand", "moe_block")
    found = optimized(mixture(shared="gated"), held=held)
    assert found.report.held()
    assert not any(op.kind in held for op in found.graph.ops)


# ---- what a file has already -----------------------------------------------------------------------
@cache
def native(kind: str, act: str, shared: bool, bits: int = 0, block: int = 0) -> onnx.ModelProto:
    """x [rows, width] through com.microsoft.MoE or QMoE, a router's product before it."""
    d = Draft()
    lanes = 2 * INNER if act == "swiglu" else INNER
    logits = d.op("MatMul", "x", d.weight(WIDTH, EXPERTS))
    attrs: dict[str, Any] = {"k": K, "activation_type": act, "normalize_routing_weights": 1}
    attrs |= (
        {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0} if act == "swiglu" else {}
    )
    if kind == "MoE":
        weights = [
            d.weight(EXPERTS, lanes, WIDTH), d.weight(EXPERTS, lanes), d.weight(EXPERTS, WIDTH, INNER),
            d.weight(EXPERTS, WIDTH),
        ]  # fmt: skip
    else:
        attrs |= {"expert_weight_bits": bits} | ({"block_size": block} if block else {})
        weights = [*_integers(d, lanes, WIDTH, bits, block), "", *_integers(d, WIDTH, INNER, bits, block)]
    y = d.op(kind, "x", logits, *weights, domain="com.microsoft", **attrs)
    if shared:
        shared_expert(d, "x", y, gated=False)
    d.nodes[-1].output[0] = "y"
    return d.model({"x": ["rows", WIDTH]}, {"y": ["rows", WIDTH]})


def _integers(d: Draft, rows: int, width: int, bits: int, block: int) -> list[str]:
    packed = d.rng.integers(0, 256, (EXPERTS, rows, width * bits // 8)).astype(np.uint8)
    scales = (EXPERTS, rows, width // block) if block else (EXPERTS, rows)
    return [d.const(packed), d.const((d.rng.random(scales) * 0.05).astype(np.float32))]


NATIVE = [("MoE", act, 0, 0) for act in ("relu", "gelu", "silu", "identity", "swiglu")] + [
    ("QMoE", "relu", 4, 0), ("QMoE", "swiglu", 4, 2), ("QMoE", "relu", 8, 0),
]  # fmt: skip


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("kind", "act", "bits", "block"), NATIVE)
def test_operators_of_onnxruntime_are_mixtures(
    kind: str, act: str, bits: int, block: int, shared: bool
) -> None:
    found = optimized(native(kind, act, shared, bits, block))
    assert found.report.fired("moe_block")
    assert bool(found.report.fired("moe_shared")) == shared
    assert reference.check(found.before, found.graph).bit_equal


@pytest.mark.parametrize(("kind", "act", "bits", "block"), [n for n in NATIVE if n[3] == 0])
def test_the_reference_is_onnxruntime(kind: str, act: str, bits: int, block: int) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = native(kind, act, False, bits, block)
    x = np.random.default_rng(3).standard_normal((5, WIDTH)).astype(np.float32)
    (want,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    got = reference.eval(fuse.load(model), {"x": x})["y"]
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-3 if act == "gelu" else 2e-5)
