"""Spellings of the converters of TensorFlow, Keras and JAX, and of what simplifiers leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from building import Building, codes, drawn, fired, near, optimized
from hypothesis import strategies as st
from onnx import ModelProto

import fuse

B, S, K = 2, 5, 12


# ---- norms -------------------------------------------------------------------------------------------
def mean(g: Building, x: str, way: str) -> Any:
    return g.op("GlobalAveragePool", x) if way == "pool" else g.op("ReduceMean", x, g.ints(-1), keepdims=1)


def norm(
    form: str,
    way: str = "reduce",
    seed: int = 0,
    variance: str = "centred",
    axis: int = -1,
    dims: Any = (B, S, K),
) -> ModelProto:
    g = Building(seed=seed)
    x = g.input("x", *dims)
    if axis != -1:
        middle = g.op("ReduceMean", x, g.ints(axis), keepdims=1)
        square = g.op("Mul", g.op("Sub", x, middle), g.op("Sub", x, middle))
        spread = g.op("ReduceMean", square, g.ints(axis), keepdims=1)
    else:
        middle = mean(g, x, way)
        if variance == "centred":
            far = g.op("Sub", x, middle)
            spread = mean(g, g.op("Mul", far, far), way)
        else:
            spread = g.op("Sub", mean(g, g.op("Mul", x, x), way), g.op("Mul", middle, middle))
            spread = g.op("Max", spread, g.constant(0.0)) if variance == "clamped" else spread
    inverse = g.op("Reciprocal", g.op("Sqrt", g.op("Add", spread, g.constant(1e-3))))
    weight, bias = g.weight(K, about=1), g.weight(K)
    if form == "centred":
        y = g.op("Mul", g.op("Mul", g.op("Sub", x, middle), inverse), weight)
        return g.model(g.op("Add", y, bias))
    scale = g.op("Mul", inverse, weight)
    if form == "weighted":
        return g.model(g.op("Add", g.op("Mul", scale, g.op("Sub", x, middle)), bias))
    left = g.op("Mul", x, scale)
    if form == "taken off":
        return g.model(g.op("Add", left, g.op("Sub", bias, g.op("Mul", middle, scale))))
    if form == "no bias":
        return g.model(g.op("Sub", left, g.op("Mul", middle, scale)))
    shift = g.op("Add", g.op("Mul", g.op("Neg", middle), scale), bias)
    return g.model(g.op("Add", left, shift))


@drawn(
    st.integers(0, 99),
    st.sampled_from(["centred", "weighted", "taken off", "no bias", "negated"]),
    st.sampled_from(["reduce", "pool"]),
    st.sampled_from(["centred", "moments", "clamped"]),
)
def test_layer_norm_as_batch_normalization_writes_it(seed: int, form: str, way: str, variance: str) -> None:
    op = fired(norm(form, way, seed, variance), "layer_norm", seed)
    assert (op.inputs[0], bool(op.inputs[1])) == ("x", True)
    assert bool(op.inputs[2]) == (form != "no bias")


@pytest.mark.parametrize("form", ["taken off", "negated"])
def test_a_batch_normalization_over_rows_is_no_layer_norm(form: str) -> None:
    model = norm(form, axis=1, dims=(B, S, K))
    assert not optimized(model).report.fired("layer_norm")


def test_a_mean_pooled_over_an_image_is_none_of_rows() -> None:
    assert not optimized(norm("negated", "pool", dims=(B, S, K, K))).report.fired("layer_norm")


@drawn(st.integers(0, 99), st.sampled_from(["reduce", "pool"]))
def test_rms_norm_whose_weight_meets_the_root_first(seed: int, way: str) -> None:
    g = Building(seed=seed)
    x = g.input("x", B, S, K)
    shifted = g.op("Add", mean(g, g.op("Mul", x, x), way), g.constant(1e-3))
    scale = g.op("Mul", g.op("Reciprocal", g.op("Sqrt", shifted)), g.weight(K))
    assert fired(g.model(g.op("Mul", x, scale)), "rms_norm", seed).inputs[0] == "x"


# ---- attention ---------------------------------------------------------------------------------------
H, D, T = 3, 4, 7


def attention(
    way: str, mask: str = "", seed: int = 0, opset: int = 21, perm: Any = (0, 1, 3, 2)
) -> ModelProto:
    """Scores with a row for each key: turned before the softmax, or the softmax over them and turned then."""
    g = Building(seed=seed, opset=opset)
    q, k, v = g.input("q", B, S, H, D), g.input("k", B, T, H, D), g.input("v", B, T, H, D)
    scaled = g.op("Mul", q, g.constant(0.5))
    keys = g.op("Transpose", k, perm=[0, 2, 1, 3])
    scores = g.op("MatMul", keys, g.op("Transpose", scaled, perm=[0, 2, 3, 1]))
    turned = way == "turned"
    scores = g.op("Transpose", scores, perm=list(perm)) if turned else scores
    keep = (
        g.constant(np.random.default_rng(seed).integers(0, 2, (B, 1, S, T)).astype(np.bool_)) if mask else ""
    )
    if mask:
        given = g.op("Cast", keep, to=1)
        hidden = g.op("Cast", g.op("Not", keep), to=1)
        scores = g.op("Add", g.op("Mul", given, scores), g.op("Mul", g.constant(-1e30), hidden))
    y = g.op("Softmax", scores, axis=-1 if turned else 2)
    if mask == "again":
        y = g.op("Add", g.op("Mul", given, y), g.op("Mul", g.constant(0.0), hidden))
    elif mask == "selected":
        y = g.op("Where", keep, y, g.constant(0.0))
    y = y if turned else g.op("Transpose", y, perm=list(perm))
    return g.model(g.op("MatMul", y, g.op("Transpose", v, perm=[0, 2, 1, 3])))


@drawn(st.integers(0, 99), st.sampled_from(["turned", "columns"]))
def test_scores_with_a_row_for_each_key(seed: int, way: str) -> None:
    op = fired(attention(way, seed=seed), "attention", seed)
    assert op.inputs[:3] == ("q", "k", "v")
    assert op.attrs["scale"] == 0.5


@drawn(st.integers(0, 99), st.sampled_from(["once", "again", "selected"]))
def test_a_mask_multiplied_in_and_filled_up(seed: int, mask: str) -> None:
    op = fired(attention("turned", mask, seed), "attention", seed)
    assert op.attrs["mask"] == ("keep",)
    assert op.attrs.get("empty_rows", "nan") == ("nan" if mask == "once" else "zero")


def test_a_softmax_that_flattens_its_last_axes_is_no_attentions() -> None:
    assert not optimized(attention("columns", opset=12)).report.fired("attention")


def test_scores_whose_heads_are_turned_too() -> None:
    g = Building()
    q, k, v = g.input("q", S, S, S, S), g.input("k", S, S, S, S), g.input("v", S, S, S, S)
    scores = g.op("Transpose", g.op("MatMul", k, q), perm=[0, 3, 1, 2])
    assert codes(g.model(g.op("MatMul", g.op("Softmax", scores, axis=-1), v)), "attention") == set()


def test_key_heads_repeated_by_a_tile() -> None:
    g = Building()
    q, k, v = g.input("q", B, 4, S, D), g.input("k", B, 2, T, D), g.input("v", B, 2, T, D)

    def repeated(x: str) -> str:
        tiled = g.op("Tile", g.op("Unsqueeze", x, g.ints(2)), g.ints(1, 1, 2, 1, 1))
        return str(g.op("Reshape", tiled, g.ints(B, 4, T, D)))

    scores = g.op("MatMul", q, g.op("Transpose", repeated(k), perm=[0, 1, 3, 2]))
    y = g.op("MatMul", g.op("Softmax", g.op("Mul", scores, g.constant(0.5)), axis=-1), repeated(v))
    op = fired(g.model(y), "attention")
    assert (op.inputs[1:3], op.attrs["groups"]) == (("k", "v"), 2)


# ---- products ----------------------------------------------------------------------------------------
@drawn(st.integers(0, 99), st.sampled_from(["MatMul", "Gemm"]), st.booleans())
def test_a_bias_cut_into_heads(seed: int, kind: str, squeezed: bool) -> None:
    """Gemm's beta, of no C, says nothing of a bias added later."""
    g = Building(seed=seed)
    x = g.input("x", B * S, K)
    attrs = {"beta": 0.0} if kind == "Gemm" else {}
    y = g.op(kind, x, g.weight(K, H * D), **attrs)
    y = g.op("Reshape", y, g.ints(B, S, H, D, *([1] if squeezed else [])))
    y = g.op("Squeeze", y, g.ints(4)) if squeezed else y
    op = fired(g.model(g.op("Add", y, g.weight(H, D))), "matmul_bias", seed)
    assert op.attrs.get("beta", 1.0) == 1.0


def test_a_bias_of_heads_exchanged_is_no_row() -> None:
    g = Building()
    y = g.op("Reshape", g.op("MatMul", g.input("x", B * S, K), g.weight(K, 9)), g.ints(B, S, 3, 3))
    y = g.op("Add", g.op("Transpose", y, perm=[0, 1, 3, 2]), g.weight(3, 3))
    assert not optimized(g.model(y)).report.fired("matmul_bias")


@pytest.mark.parametrize("biased", [False, True])
def test_products_that_each_flatten_one_x_run_as_one(biased: bool) -> None:
    g = Building()
    x = g.input("x", B, S, K)
    sides = []
    for _ in range(2):
        rows = g.op("Reshape", x, g.ints(-1, K))
        side = g.op("Gemm", rows, g.weight(K, 8), *([g.weight(8)] if biased else []))
        sides.append(g.op("Reshape", side, g.ints(B, S, 8)))
    model = g.model(g.op("Mul", g.op("Mul", sides[0], g.op("Sigmoid", sides[0])), sides[1]))
    op = fired(model, "merged_gate_up")
    assert op.inputs[0] == "x"
    assert sum(leaf.kind == "Reshape" for leaf in fuse.leaves(op)) == 2


def test_a_flattened_x_that_others_read_stays() -> None:
    g = Building()
    x = g.input("x", B, S, K)
    first, second = (g.op("Reshape", x, g.ints(-1, K)) for _ in range(2))
    model = g.model(
        g.op("MatMul", first, g.weight(K, 8)), g.op("MatMul", second, g.weight(K, 8)), g.op("Neg", second)
    )
    found = optimized(model)
    assert not found.report.fired("merged_products")


def test_a_norm_flattened_that_a_residual_needs_whole_is_no_near_miss() -> None:
    g = Building()
    y = g.op("LayerNormalization", g.op("Add", g.input("x", B, S, K), g.input("r", B, S, K)), g.weight(K))
    rows = g.op("Gemm", g.op("Reshape", y, g.ints(-1, K)), g.weight(K, K), g.weight(K))
    total = g.op("Add", g.op("Reshape", rows, g.ints(B, S, K)), y)
    model = g.model(g.op("LayerNormalization", total, g.weight(K)))
    assert not near(model, "norm_reshape")


def test_a_group_of_each_channel_whose_first_reshape_was_dropped() -> None:
    g = Building()
    x, one, nothing = g.input("x", B, 4, 9), g.constant([1.0] * 4), g.constant([0.0] * 4)
    y = g.op("Reshape", g.op("InstanceNormalization", x, one, nothing), g.ints(B, 4, 9))
    y = g.op("Add", g.op("Mul", y, g.weight(4, 1)), g.weight(4, 1))
    assert fired(g.model(y), "group_norm").attrs["groups"] == 4


@pytest.mark.parametrize("equation", ["abc,cd->abd", "abc,dc->abd"])
def test_rows_times_a_matrix_as_an_einsum(equation: str) -> None:
    g = Building()
    turned = equation == "abc,dc->abd"
    y = g.op("Einsum", g.input("x", B, S, K), g.weight(*((8, K) if turned else (K, 8))), equation=equation)
    op = fired(g.model(g.op("Add", y, g.weight(8))), "matmul_bias")
    assert op.attrs.get("trans_weight", 0) == int(turned)


@pytest.mark.parametrize("equation", ["abc,cd->adb", "abc,bd->acd", "abc,cd->bad", "abc,cc->abc"])
def test_another_einsum_is_no_product_of_rows(equation: str) -> None:
    g = Building()
    y = g.op("Einsum", g.input("x", K, K, K), g.weight(K, K), equation=equation)
    assert not optimized(g.model(g.op("Add", y, g.weight(K)))).report.fired("matmul_bias")
