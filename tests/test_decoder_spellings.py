"""Spellings of decoders that exporters write and no smaller graph shows."""

from __future__ import annotations

from typing import Any

import export_shapes as shapes
import numpy as np
import pytest
from building import Building, codes, near
from holding import built, held, nothing
from onnx import ModelProto, TensorProto

import chips
import fuse
from fuse.operators import leaves

B, S, H, W = 2, 3, 4, 8
ROTATED, PASSED = 4, 6


# ---- lanes that pass before the rotated ones (latent attention) ------------------------------------
def latent_rotation(joined: str = "one", cut: int = PASSED, swapped: bool = False) -> ModelProto:
    """The last lanes of a head turn. joined: halves joined with what passes at once, or before; pairs."""
    g = Building()
    x = g.input("x", B, H, S, PASSED + ROTATED)
    passes, turns = g.op("Split", x, g.ints(cut, PASSED + ROTATED - cut), outputs=2, axis=-1)
    half = (PASSED + ROTATED - cut) // 2
    if joined == "pairs":
        bounds = [(at, 1 << 40, 3, 2) for at in (0, 1)]
        one, two = (g.op("Slice", turns, *(g.ints(n) for n in cut)) for cut in bounds)
    else:
        one, two = g.op("Split", turns, g.ints(half, half), outputs=2, axis=-1)
    cos, sin = g.input("cos", S, half), g.input("sin", S, half)
    less = g.op("Sub", g.op("Mul", one, cos), g.op("Mul", two, sin))
    more = g.op("Add", g.op("Mul", two, cos), g.op("Mul", one, sin))
    parts = [passes, less, more]
    if joined == "two":
        parts = [passes, g.op("Concat", less, more, axis=-1)]
    if swapped:
        parts = [*parts[1:], parts[0]]
    return g.model(g.op("Concat", *parts, axis=-1))


@pytest.mark.parametrize("joined", ["one", "two", "pairs"])
def test_the_last_lanes_of_a_head_turn(joined: str) -> None:
    op = built(held(latent_rotation(joined)), "rope")
    assert (op.attrs["rotary_from"], op.attrs["rotary_dim"]) == (PASSED, ROTATED)
    assert op.attrs.get("form", "half") == ("pairs_to_halves" if joined == "pairs" else "half")
    assert op.inputs[0] == "x"


@pytest.mark.parametrize("joined", ["one", "two"])
def test_lanes_joined_in_another_order_than_they_were_cut(joined: str) -> None:
    found = held(latent_rotation(joined, swapped=True))
    assert all(not op.attrs.get("rotary_dim") for op in found.graph.ops if op.kind == "rope")


def test_the_first_lanes_in_one_join() -> None:
    g = Building()
    x = g.input("x", B, H, S, W)
    turned = g.op("Split", x, g.ints(4, 4), outputs=2, axis=-1)
    one, two = g.op("Split", turned[0], g.ints(2, 2), outputs=2, axis=-1)
    cos, sin = g.input("cos", S, 2), g.input("sin", S, 2)
    less = g.op("Sub", g.op("Mul", one, cos), g.op("Mul", two, sin))
    more = g.op("Add", g.op("Mul", two, cos), g.op("Mul", one, sin))
    op = built(held(g.model(g.op("Concat", less, more, turned[1], axis=-1))), "rope")
    assert op.attrs["rotary_dim"] == 4
    assert "rotary_from" not in op.attrs


def test_kernels_that_turn_the_first_lanes_refuse_the_last() -> None:
    found = held(latent_rotation("two"), chip="ort-cpu")
    assert not any(op.attrs.get("rotary_from") for op in found.graph.ops)


@pytest.mark.parametrize("first", [False, True])
def test_a_native_rotation_of_some_lanes(first: bool) -> None:
    """Opset 23: the rotated lanes are cut out, turned by the operator, and joined with the rest again."""
    g = Building(opset=23)
    x = g.input("x", B, H, S, W)
    parts = g.op("Split", x, g.ints(4, 4), outputs=2, axis=-1)
    turns, passes = parts if first else parts[::-1]
    tables = (g.input(name, B, S, 2) for name in ("cos", "sin"))
    turned = g.op("RotaryEmbedding", turns, *tables)
    joined = (turned, passes) if first else (passes, turned)
    op = built(held(g.model(g.op("Concat", *joined, axis=-1))), "rope")
    assert (op.attrs["rotary_dim"], op.attrs.get("rotary_from", 0)) == (4, 0 if first else 4)
    assert op.inputs[0] == "x"


def test_a_native_rotation_joined_with_other_lanes() -> None:
    g = Building(opset=23)
    x, other = g.input("x", B, H, S, W), g.input("other", B, H, S, W)
    turns = g.op("Split", x, g.ints(4, 4), outputs=2, axis=-1)[0]
    passes = g.op("Split", other, g.ints(4, 4), outputs=2, axis=-1)[1]
    turned = g.op("RotaryEmbedding", turns, g.input("cos", B, S, 2), g.input("sin", B, S, 2))
    nothing(held(g.model(g.op("Concat", turned, passes, axis=-1))), "rope")


@pytest.mark.parametrize("some", [False, True])
def test_tables_wider_than_the_lanes(some: bool) -> None:
    """OLMo 2 in f16: tables of f32, to whose type x and its turned lanes are cast apart."""
    g = Building(dtype=np.float16)
    whole = g.input("x", B, H, S, W)
    x, rest = g.op("Split", whole, g.ints(4, 4), outputs=2, axis=-1) if some else (whole, "")
    width = 4 if some else W
    tables = [g.input(name, S, width, dtype=TensorProto.FLOAT) for name in ("cos", "sin")]
    one, two = g.op("Split", x, g.ints(width // 2, width // 2), outputs=2, axis=-1)
    turned = g.op("Concat", g.op("Neg", two), one, axis=-1)
    parts = [
        g.op("Mul", g.op("Cast", v, to=TensorProto.FLOAT), t)
        for v, t in zip((x, turned), tables, strict=True)
    ]
    made = g.op("Cast", g.op("Add", *parts), to=TensorProto.FLOAT16)
    op = built(held(g.model(g.op("Concat", made, rest, axis=-1) if some else made)), "rope")
    assert op.inputs[0] == "x"
    assert op.attrs["rope_compute"] == "f32"


# ---- keys repeated before their rotation, values after (Falcon) -------------------------------------
def test_heads_repeated_on_one_side_of_the_rotation() -> None:
    """Keys are read as they are repeated; values, repeated where they could be read grouped, as well."""
    g = Building()
    cos, sin = shapes.cos_sin(g, S, W)

    def repeated(name: str) -> str:
        groups = g.op("Expand", g.input(name, B, S, 2, 1, W), g.ints(B, S, 2, 2, W))
        heads = g.op("Reshape", groups, g.ints(B, S, H, W))
        return str(g.op("Transpose", heads, perm=[0, 2, 1, 3]))

    q = shapes.rotate(g, g.input("q", B, H, S, W), cos, sin, W)
    k = shapes.rotate(g, repeated("k"), cos, sin, W)
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    weights = g.op("Softmax", g.op("Mul", scores, g.constant(0.5)), axis=-1)
    op = built(held(g.model(g.op("MatMul", weights, repeated("v")))), "attention")
    assert "groups" not in op.attrs


# ---- joins of one, norms with several readers, decays -----------------------------------------------
def test_a_join_of_one_operand_is_its_operand() -> None:
    """What is left of a cache that starts with nothing: the append still sees the caller's rows."""
    g = Building()
    past = g.op("Concat", g.input("past", B, H, 5, W), axis=-2)
    rows = g.op("Mul", g.input("new", B, H, S, W), g.constant(2.0))
    found = held(g.model(g.op("Concat", past, rows, axis=-2)))
    assert built(found, "kv_append").inputs[:2] == ("past", rows)


def test_a_join_of_one_that_is_an_output_stays() -> None:
    g = Building()
    found = held(g.model(g.op("Concat", g.input("past", B, H, 5, W), axis=-2)))
    assert [op.kind for op in found.graph.ops] == ["Concat"]


def test_a_norm_read_as_rows_and_as_it_is_misses_nothing() -> None:
    """A mixture reads rows, its shared expert does not."""
    g = Building(opset=17)
    normed = shapes.rms(g, g.input("x", B, S, W), W)
    rows = g.op("MatMul", g.op("Reshape", normed, g.ints(-1, W)), g.weight(W, 5))
    model = g.model(rows, shapes.linear(g, normed, W, 5))
    nothing(held(model), "norm_reshape")
    assert near(model, "norm_reshape") == set()


def test_a_state_that_decays_is_no_gated_residual() -> None:
    """One step of a selective state space: decay and state have one shape, and always had."""
    g = Building()
    decays = g.op("Exp", g.input("logs", B, 6, S, W))
    steps: Any = g.input("drives", B, 6, S, W)
    state = g.input("state", B, 6, W)
    for at in range(2):
        index = g.constant(np.array(at, np.int64))
        decay, drive = (g.op("Gather", v, index, axis=2) for v in (decays, steps))
        state = g.op("Add", g.op("Mul", decay, state), drive)
    model = g.model(state)
    nothing(held(model), "gated_residual")
    assert near(model, "gated_residual") == set()


# ---- one key head (Falcon, GPT BigCode) ----------------------------------------------------------------
@pytest.mark.parametrize("form", ["broadcast", "repeated", "folded"])
def test_one_key_head_for_all_query_heads(form: str) -> None:
    """Broadcast by the product, repeated by an expand, or folded into the batch and out again on its way."""
    g = Building()
    q = g.input("q", B, H, S, W)
    k, v = g.input("k", B, 1, S, W), g.input("v", B, 1, S, W)
    turned = g.op("Transpose", k, perm=[0, 1, 3, 2])
    if form == "repeated":
        five = [g.op("Expand", g.op("Unsqueeze", x, g.ints(2)), g.ints(B, 1, H, S, W)) for x in (k, v)]
        k, v = (g.op("Reshape", x, g.ints(B, H, S, W)) for x in five)
        turned = g.op("Transpose", k, perm=[0, 1, 3, 2])
    if form == "folded":
        rows = g.op("Transpose", g.op("Reshape", k, g.ints(-1, S, W)), perm=[0, 2, 1])
        turned = g.op("Reshape", rows, g.ints(B, 1, W, S))
    weights = g.op("Softmax", g.op("Mul", g.op("MatMul", q, turned), g.constant(0.5)), axis=-1)
    op = built(held(g.model(g.op("MatMul", weights, v))), "attention")
    assert op.attrs["groups"] == H
    assert op.inputs[:3] == ("q", "k", "v")


def test_a_bias_whose_rows_have_another_name() -> None:
    """Heads folded in the batch, a bias of the mask's length before the scores get their four axes back
    (Bloom with a cache): the sum's rows of keys are open."""
    g = Building()
    q = g.op("Reshape", g.input("q", B, H, S, W), g.ints(B * H, S, W))
    k = g.op("Reshape", g.input("k", B, H, W, "past"), g.ints(B * H, W, -1))
    v = g.op("Reshape", g.input("v", B, H, "past", W), g.ints(B * H, -1, W))
    scores = g.op("Add", g.op("MatMul", q, k), g.input("bias", B * H, 1, "total"))
    four = g.op("Add", g.op("Reshape", scores, g.ints(B, H, S, -1)), g.input("mask", B, 1, S, "past"))
    weights = g.op("Reshape", g.op("Softmax", four, axis=-1), g.ints(B * H, S, -1))
    op = built(held(g.model(g.op("MatMul", weights, v)), dims={"past": 5, "total": 5}), "attention")
    assert op.attrs["mask"] == ("add", "add")


# ---- a floor under the scores (XGLM, OPT) ----------------------------------------------------------------
def floored(floor: float, kind: str = "Max", below: bool = False) -> ModelProto:
    g = Building()
    q, k, v = (g.input(name, B, H, S, W) for name in "qkv")
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    mask = g.input("mask", B, 1, S, S)
    if not below:
        scores = g.op("Add", scores, mask)
    scores = g.op(kind, scores, g.constant(floor))
    if below:
        scores = g.op("Add", scores, mask)
    return g.model(g.op("MatMul", g.op("Softmax", scores, axis=-1), v))


@pytest.mark.parametrize("kind", ["Max", "Clip"])
def test_a_floor_keeps_hidden_rows_from_nan(kind: str) -> None:
    lowest = float(np.finfo(np.float32).min)
    feeds = {name: np.random.default_rng(0).normal(size=(B, H, S, W)).astype(np.float32) for name in "qkv"}
    feeds["mask"] = np.zeros((B, 1, S, S), np.float32)
    feeds["mask"][0, :, 1] = -np.inf
    op = built(held(floored(lowest, kind), feeds=feeds), "attention")
    assert op.attrs["empty_rows"] == "average"


def test_a_floor_that_scores_may_reach() -> None:
    assert codes(floored(-5.0), "attention") == {"operand"}


def test_a_floor_below_a_mask() -> None:
    assert codes(floored(-1e30, below=True), "attention") == {"guard:floor_stands_above_masks"}


# ---- a gate's factor (Falcon H1) -------------------------------------------------------------------------
def test_a_gate_scaled_by_a_number() -> None:
    g = Building()
    x = g.input("x", B, S, W)
    gate = g.op("Mul", shapes.linear(g, x, W, 12), g.constant(0.7))
    silu = g.op("Mul", gate, g.op("Sigmoid", gate))
    model = g.model(g.op("Mul", shapes.linear(g, x, W, 12), silu))
    assert built(held(model), "swiglu").inputs[0] == gate
    assert near(model, "quick_gelu") == set()


# ---- a relu squared (Primer, Nemotron, Persimmon, BitNet) -------------------------------------------
def squared_relu(square: str, gated: bool = False, biased: bool = False, power: float = 2.0) -> Building:
    """relu(x W)^2, times x U (gated), and the product of that. square: Mul, Pow."""
    g = Building()
    x = g.input("x", B, S, W)
    made = g.op("MatMul", x, g.weight(W, 12))
    act = g.op("Relu", g.op("Add", made, g.weight(12)) if biased else made)
    act = g.op("Mul", act, act) if square == "Mul" else g.op("Pow", act, g.constant(power))
    if gated:
        act = g.op("Mul", act, g.op("MatMul", x, g.weight(W, 12)))
    g.op("MatMul", act, g.weight(12, W))
    return g


@pytest.mark.parametrize("square", ["Mul", "Pow"])
@pytest.mark.parametrize("biased", [False, True])
def test_a_squared_relu_stands_between_two_products(square: str, biased: bool) -> None:
    g = squared_relu(square, biased=biased)
    op = built(held(g.model(g.nodes[-1].output[0])), "mlp_block")
    assert sum(leaf.kind in (square, "Relu") for leaf in leaves(op)) == 2


@pytest.mark.parametrize("square", ["Mul", "Pow"])
def test_a_squared_relu_is_a_gate(square: str) -> None:
    g = squared_relu(square, gated=True)
    model = g.model(g.nodes[-1].output[0])
    found = held(model)
    assert found.report.fired("merged_gate_up")
    assert found.report.fired("mlp_block")
    (gate,) = fuse.optimize(found.before, chips.load("any"), ["mlp_block"]).report.fired("gated_act")
    assert gate.builds == "reglu"
    assert built(held(model, "mlx-cpu"), "reglu").attrs["act"] == "squared_relu"


def test_no_other_power_of_a_relu_is_an_activation() -> None:
    for gated in (False, True):
        g = squared_relu("Pow", gated, power=3.0)
        nothing(held(g.model(g.nodes[-1].output[0])), "mlp_block", "gated_act")


def test_a_relu_that_is_read_beside_its_square_is_written() -> None:
    g = squared_relu("Mul")
    model = g.model(g.nodes[-1].output[0], g.nodes[1].output[0])
    nothing(held(model), "mlp_block")
