"""What is nearly a place and what is none, one thing wrong in each: a stray operator, one missing, a value
rounded on the way, two values where one is meant, and what models mean as they write it."""

from __future__ import annotations

import numpy as np
import pytest
from building import Building, codes, fired, near, optimized
from onnx import ModelProto, TensorProto

B, S, H, W = 2, 3, 4, 8


def rounded(g: Building, value: str) -> str:
    """A value as f16, and back."""
    return str(g.op("Cast", g.op("Cast", value, to=TensorProto.FLOAT16), to=TensorProto.FLOAT))


def told(model: ModelProto, rule: str) -> set[tuple[str, str, str]]:
    """(code, want, got) of a rule's near misses."""
    return {
        (d.outcome.miss.code, d.outcome.miss.want, d.outcome.miss.got)
        for d in optimized(model).report.near(rule)
    }


# ---- activations ---------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["Tanh", "Erf", "Exp", "Cos", "Softsign", "Relu", "Elu"])
def test_another_function_for_the_sigmoid_of_a_silu(kind: str) -> None:
    g = Building()
    x = g.op("MatMul", g.input("x", B, S, W), g.weight(W, W))
    model = g.model(g.op("Mul", x, g.op(kind, x)))
    assert told(model, "silu") == {("op", "Sigmoid", kind)}
    assert codes(model, "gated_act") == set()  # a value times an activation of itself is no gate


def test_gate_and_up_of_two_activations() -> None:
    g = Building()
    gate = g.op("Relu", g.op("MatMul", g.input("x", B, S, W), g.weight(W, W)))
    up = g.op("MatMul", g.input("other", B, S, W), g.weight(W, W))
    assert codes(g.model(g.op("Mul", gate, up)), "gated_act") == {"guard:halves_are_of_one_activation"}


# ---- rounded on the way --------------------------------------------------------------------------
def attention(where: str, repeated: int = 1) -> ModelProto:
    """Attention in f32 with one value rounded to f16, or an operator on the keys."""
    g = Building()
    q, v = g.input("q", B, H, S, W), g.input("v", B, H // repeated, S, W)
    k = g.input("k", B, H // repeated, S, W)
    if repeated > 1:
        k, v = (repeat(g, value, repeated) for value in (k, v))
    k = g.op("Transpose", k, perm=[0, 1, 3, 2])
    k = g.op("Abs", k) if where == "keys" else k
    scores = g.op("Mul", g.op("MatMul", q, k), g.constant(W**-0.5))
    scores = rounded(g, scores) if where == "scores" else scores
    weights = g.op("Softmax", scores, axis=-1)
    weights = rounded(g, weights) if where == "probabilities" else weights
    return g.model(g.op("MatMul", weights, v))


def repeat(g: Building, value: str, times: int) -> str:
    spread = g.op("Expand", g.op("Unsqueeze", value, g.ints(2)), g.ints(B, H // times, times, S, W))
    return str(g.op("Reshape", spread, g.ints(B, H, S, W)))


@pytest.mark.parametrize("where", ["scores", "probabilities"])
def test_scores_that_are_rounded_are_no_attention(where: str) -> None:
    assert codes(attention(where), "attention") == {"attribute"}


def test_keys_changed_above_their_repeats_stand_as_they_are() -> None:
    """Keys are read above what was done to them; values alike, or keys and values had other heads."""
    op = fired(attention("keys", repeated=2), "attention")
    assert "groups" not in op.attrs


@pytest.mark.parametrize("which", ["square", "mean", "root"])
def test_a_norm_with_a_rounded_value(which: str) -> None:
    g = Building()
    x = g.input("x", S, W)
    square = g.op("Pow", x, g.constant(2.0))
    square = rounded(g, square) if which == "square" else square
    mean = g.op("ReduceMean", square, g.ints(-1))
    mean = rounded(g, mean) if which == "mean" else mean
    root = g.op("Sqrt", g.op("Add", mean, g.constant(1e-5)))
    root = rounded(g, root) if which == "root" else root
    want = {"square": "Pow", "mean": "ReduceMean", "root": "Sqrt"}[which]
    assert told(g.model(g.op("Mul", g.op("Div", x, root), g.weight(W))), "rms_norm") == {("op", want, "Cast")}


# ---- missing -------------------------------------------------------------------------------------
def rotation(without: str) -> ModelProto:
    g = Building()
    x = g.op("Transpose", g.input("x", B, S, H, W), perm=[0, 2, 1, 3])
    last, step = g.ints(3), g.ints(1)
    low = g.op("Slice", x, g.ints(0), g.ints(W // 2), last, step)
    high = g.op("Slice", x, g.ints(W // 2), g.ints(W), last, step)
    turned = g.op("Concat", high if without == "sign" else g.op("Neg", high), low, axis=-1)
    kept = x if without == "cos" else g.op("Mul", x, g.input("cos", B, 1, S, W))
    turned = turned if without == "sin" else g.op("Mul", turned, g.input("sin", B, 1, S, W))
    return g.model(g.op("Add", turned, kept))


@pytest.mark.parametrize(("without", "want"), [("sign", "Neg"), ("cos", "Mul"), ("sin", "Mul")])
def test_a_rotation_without_one_operator(without: str, want: str) -> None:
    assert {(code, wanted) for code, wanted, _ in told(rotation(without), "rope")} == {("op", want)}


def test_a_norm_without_eps() -> None:
    g = Building()
    x = g.input("x", S, W)
    root = g.op("Sqrt", g.op("ReduceMean", g.op("Pow", x, g.constant(2.0)), g.ints(-1)))
    model = g.model(g.op("Mul", g.op("Div", x, root), g.weight(W)))
    assert told(model, "rms_norm") == {("op", "Add", "ReduceMean")}


# ---- weights of one number -----------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["LayerNormalization", "RMSNormalization"])
def test_a_native_norm_whose_weight_is_one_number_is_no_norm_of_heads(kind: str) -> None:
    """ONNX lets it broadcast; a class has a number for each lane."""
    g = Building(opset=23)
    heads = g.op("Reshape", g.input("x", B, S, H * W), g.ints(B, S, H, W))
    model = g.model(g.op(kind, heads, g.weight(1)))
    assert codes(model, "qk_norm") in (set(), {"operand"})


def test_an_activation_of_heads_cut_out_of_a_product_is_none_of_its_rows() -> None:
    g = Building()
    rows = g.op("Add", g.op("MatMul", g.input("x", B, S, W), g.weight(W, H * W)), g.weight(H * W))
    heads = g.op("Relu", g.op("Reshape", rows, g.ints(B, S, H, W)))
    assert codes(g.model(g.op("Transpose", heads, perm=[0, 2, 1, 3])), "matmul_bias_act") == set()


# ---- what models mean ----------------------------------------------------------------------------
def test_rows_that_a_mixture_and_a_router_read_are_not_nearly_flattened() -> None:
    g = Building()
    x = g.op("LayerNormalization", g.input("x", B, S, W), g.weight(W))
    rows = g.op("Reshape", x, g.ints(B * S, W))
    router = g.op("MatMul", x, g.weight(W, H))
    assert codes(g.model(g.op("Abs", rows), router), "norm_reshape") == set()


def test_a_step_of_a_recurrence_is_no_gated_residual() -> None:
    g = Building()
    decay, change = (g.input(name, B, S, W, H) for name in ("decay", "change"))
    step = g.constant(np.array(1, np.int64))
    kept = g.op("Mul", g.op("Gather", decay, step, axis=3), g.op("Neg", g.input("state", B, S, W)))
    model = g.model(g.op("Add", kept, g.op("Gather", change, step, axis=3)))
    assert codes(model, "gated_residual") == set()


def test_a_norm_of_a_gate_is_not_nearly_an_add_norm() -> None:
    """relu squared times up, normed, as bitnet writes it."""
    g = Building()
    x = g.input("x", B, S, W)
    gate = g.op("Pow", g.op("Relu", g.op("MatMul", x, g.weight(W, W))), g.constant(2.0))
    both = g.op("Mul", gate, g.op("MatMul", x, g.weight(W, W)))
    assert near(g.model(g.op("LayerNormalization", both, g.weight(W))), "add_norm") == set()


def test_a_silu_of_a_scaled_value_is_not_nearly_a_quick_gelu() -> None:
    g = Building()
    x = g.op("Mul", g.op("MatMul", g.input("x", B, S, W), g.weight(W, W)), g.constant(0.7))
    model = g.model(g.op("Mul", x, g.op("Sigmoid", x)))
    assert fired(model, "silu")
    assert near(model, "quick_gelu") == set()


def test_a_norm_of_one_head_keeps_its_axis() -> None:
    g = Building()
    x = g.op("Reshape", g.op("Neg", g.input("x", B, S, W)), g.ints(B, S, 1, W))
    root = g.op("Sqrt", g.op("Add", g.op("ReduceMean", g.op("Mul", x, x), g.ints(-1)), g.constant(1e-5)))
    op = fired(g.model(g.op("Div", x, root)), "qk_norm")
    assert op.attrs["heads"] == 1
