"""Attention as few write it: packed heads, sinks, latent keys, causal masks, gates of its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from building import Building, codes, drawn, each_interior_as_an_output, fired, near, optimized
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto

B, H, S, T, D, V = 2, 3, 5, 5, 8, 6
DTYPE = st.sampled_from([np.float32, np.float16])


def operands(g: Building, keys: int = T, width: int = V) -> tuple[str, str, str]:
    """q, k and v with heads before rows; k as it is read, transposed."""
    q, k, v = g.input("q", B, H, S, D), g.input("k", B, H, keys, D), g.input("v", B, H, keys, width)
    return q, g.op("Transpose", k, perm=[0, 1, 3, 2]), v


def weighed(g: Building, scores: str, v: str) -> str:
    return str(g.op("MatMul", g.op("Softmax", scores, axis=-1), v))


# ---- packed heads ------------------------------------------------------------------------------------
def packed(dtype: Any = np.float32, seed: int = 0) -> ModelProto:
    """As torch's MultiheadAttention: one product gives q, k and v, picked by a Gather of an axis of three;
    rows come first, batch and heads are one axis."""
    g = Building(dtype, seed=seed)
    x = g.input("x", S, B, H * D)
    every = g.op("Add", g.op("MatMul", x, g.weight(H * D, 3 * H * D, about=0)), g.weight(3 * H * D))
    parts = g.op("Unsqueeze", g.op("Reshape", every, g.ints(S, B, 3, H * D)), g.ints(0))
    parts = g.op("Squeeze", g.op("Transpose", parts, perm=[3, 1, 2, 0, 4]), g.ints(3))
    q, k, v = (
        g.op("Reshape", g.op("Gather", parts, g.constant(np.array(i, np.int64)), axis=0), g.ints(S, B * H, D))
        for i in range(3)
    )
    q = g.op("Mul", g.op("Transpose", q, perm=[1, 0, 2]), g.constant(D**-0.5))
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[1, 2, 0]))
    y = weighed(g, scores, g.op("Transpose", v, perm=[1, 0, 2]))
    y = g.op("Reshape", g.op("Transpose", y, perm=[1, 0, 2]), g.ints(S * B, H * D))
    return g.model(g.op("Gemm", y, g.weight(H * D, H * D, about=0), g.weight(H * D)))


@drawn(st.integers(0, 99), DTYPE)
def test_packed_heads(seed: int, dtype: Any) -> None:
    op = fired(packed(dtype, seed), "attention", seed)
    assert op.attrs["scale"] == pytest.approx(D**-0.5, rel=1e-3)


# ---- sinks -------------------------------------------------------------------------------------------
def sinks(
    dtype: Any = np.float32,
    cut: bool = True,
    shift: bool = True,
    dims: tuple[int, ...] = (1, H, 1, 1),
    seed: int = 0,
) -> ModelProto:
    """gpt_oss: one more column of scores, a number a head, joined before the softmax and cut off after."""
    g = Building(dtype, seed=seed)
    q, k, v = operands(g, T if cut else T - 1)
    scores = g.op("Mul", g.op("MatMul", q, k), g.constant(0.25))
    scores = g.op("Add", scores, g.input("mask", B, 1, S, T if cut else T - 1))
    sink = g.op("Expand", g.constant(g.draw.normal(0, 1, dims).astype(dtype)), g.ints(B, H, S, 1))
    scores = g.op("Concat", scores, sink, axis=-1)
    if shift:
        scores = g.op("Sub", scores, g.op("ReduceMax", scores, g.ints(-1)))
    shares = g.op("Softmax", scores, axis=-1)
    begin = 0 if cut else 1
    shares = g.op("Slice", shares, *(g.ints(n) for n in (begin, begin + (T if cut else T - 1), 3, 1)))
    return g.model(g.op("MatMul", shares, v))


@drawn(st.integers(0, 99), DTYPE, st.booleans())
def test_attention_with_sinks(seed: int, dtype: Any, shift: bool) -> None:
    op = fired(sinks(dtype, shift=shift, seed=seed), "attention", seed)
    assert op.attrs["mask"] == ("sink", "add")
    assert op.attrs["scale"] == 0.25


def test_another_cut_than_that_of_the_sinks() -> None:
    assert codes(sinks(cut=False), "attention") == {"guard:sink_is_cut_off"}


def test_each_interior_of_sinks_as_an_output() -> None:
    assert each_interior_as_an_output(sinks(), "attention") > 4


def test_a_chip_says_whether_it_has_sinks() -> None:
    refused = optimized(sinks(), "ort-cpu").report.refused("attention")
    assert any("sinks" in reason.got for row in refused for reason in row.reasons)


# ---- latent attention --------------------------------------------------------------------------------
def latent(dtype: Any = np.float32, seed: int = 0) -> ModelProto:
    """q and k are lanes without a rotation and rotated lanes, those of k shared by all heads."""
    g = Building(dtype, seed=seed)
    q = g.op("Concat", g.input("q", B, H, S, D), g.input("q_turned", B, H, S, 4), axis=-1)
    shared = g.op("Expand", g.input("k_turned", B, 1, S, 4), g.ints(B, H, S, 4))
    k = g.op("Concat", g.input("k", B, H, S, D), shared, axis=-1)
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.op("Mul", scores, g.constant(0.3))
    return g.model(weighed(g, scores, g.input("v", B, H, S, V)))


@drawn(st.integers(0, 99), DTYPE)
def test_latent_attention_has_values_of_another_width(seed: int, dtype: Any) -> None:
    fired(latent(dtype, seed), "attention", seed)


# ---- causal masks ------------------------------------------------------------------------------------
def ranges(g: Building, ends: tuple[int, int] = (S, T), begin: int = 0) -> tuple[str, str]:
    """Rows and keys counted, along the axes of scores."""

    def count(number: int, first: int, axis: int) -> str:
        ends = (g.constant(np.array(x, np.int64)) for x in (first, first + number, 1))
        return str(g.op("Unsqueeze", g.op("Range", *ends), g.ints(axis)))

    return count(ends[0], begin, 1), count(ends[1], 0, 0)


def chosen(g: Building, keeps: str) -> str:
    return str(g.op("Where", keeps, g.constant(0.0), g.constant(-np.inf)))


def ones(g: Building) -> str:
    return g.constant(np.ones((S, T), bool))


def by_comparison(g: Building) -> str:
    rows, keys = ranges(g)
    return chosen(g, g.op("LessOrEqual", keys, rows))


def by_another_comparison(g: Building) -> str:
    rows, keys = ranges(g)
    later = g.op("Greater", keys, rows)
    return str(g.op("Where", later, g.constant(-1e5 if g.dtype == np.float32 else -6e4), g.constant(0.0)))


def by_constant(g: Building) -> str:
    return g.constant(np.where(np.tri(S, T, dtype=bool), 0, -np.inf).astype(g.dtype))


def by_condition(g: Building) -> str:
    true = g.constant(np.ones((1, 1), bool))
    lower = g.constant(np.tri(S, T, dtype=bool)[None, None])
    return chosen(g, g.op("Expand", g.op("And", true, lower), g.ints(B, 1, S, T)))


def by_trilu(g: Building) -> str:
    return chosen(g, g.op("Trilu", g.op("Expand", g.constant(np.array(True)), g.ints(S, T)), upper=0))


def by_not(g: Building) -> str:
    rows, keys = ranges(g)
    return chosen(g, g.op("Not", g.op("Less", rows, keys)))


def shifted(g: Building) -> str:
    rows, keys = ranges(g, begin=1)
    return chosen(g, g.op("LessOrEqual", keys, rows))


def strict(g: Building) -> str:
    rows, keys = ranges(g)
    return chosen(g, g.op("Less", keys, g.op("Add", rows, g.constant(np.array(1, np.int64)))))


def and_padding(g: Building) -> str:
    rows, keys = ranges(g)
    seen = g.op("Cast", g.input("seen", B, 1, 1, T, dtype=TensorProto.INT64), to=TensorProto.BOOL)
    return chosen(g, g.op("And", g.op("LessOrEqual", keys, rows), seen))


def window(g: Building) -> str:
    near_ = np.tri(S, T, dtype=bool) & ~np.tri(S, T, -2, dtype=bool)
    return g.constant(np.where(near_, 0, -np.inf).astype(g.dtype))


def masked(mask: Callable[[Building], str], dtype: Any = np.float32, seed: int = 0) -> ModelProto:
    g = Building(dtype, seed=seed)
    q, k, v = operands(g)
    return g.model(weighed(g, g.op("Add", g.op("MatMul", q, k), mask(g)), v))


CAUSAL = [by_comparison, by_another_comparison, by_constant, by_condition, by_trilu, by_not]


@pytest.mark.parametrize("mask", CAUSAL)
def test_a_causal_mask_is_known_by_how_it_is_built(mask: Callable[[Building], str]) -> None:
    op = fired(masked(mask), "attention")
    assert op.attrs["causal"]
    assert op.attrs["mask"] == ("add",)


@pytest.mark.parametrize("mask", [shifted, strict, and_padding, window])
def test_another_mask_is_not_called_causal(mask: Callable[[Building], str]) -> None:
    assert not fired(masked(mask), "attention").attrs.get("causal")


# ---- masks that are taken off ------------------------------------------------------------------------
def taken_off(dtype: Any = np.float32, much: float = 3e4, seed: int = 0) -> ModelProto:
    """As XLNet: a number that is one where a key is hidden, times a large one, is taken off the scores."""
    g = Building(dtype, seed=seed)
    q, k, v = operands(g)
    scores = g.op("Mul", g.op("MatMul", q, k), g.constant(D**-0.5))
    hidden = g.op("Cast", g.input("hidden", B, 1, S, T, dtype=TensorProto.BOOL), to=TensorProto.FLOAT)
    hidden = hidden if dtype == np.float32 else g.op("Cast", hidden, to=TensorProto.FLOAT16)
    return g.model(weighed(g, g.op("Sub", scores, g.op("Mul", hidden, g.constant(much))), v))


@drawn(st.integers(0, 99), DTYPE)
def test_a_mask_that_is_taken_off(seed: int, dtype: Any) -> None:
    op = fired(taken_off(dtype, seed=seed), "attention", seed)
    assert op.attrs["mask"] == ("hide",)
    assert op.attrs["fill"] == (pytest.approx(3e4, rel=1e-3),)


def test_a_bias_that_is_taken_off_is_no_mask() -> None:
    assert codes(taken_off(much=3.0), "attention") == {"operand"}
    assert optimized(taken_off(), "ort-cpu").report.refused("attention")


# ---- a gate of the result ------------------------------------------------------------------------------
def gated(
    dtype: Any = np.float32,
    joined: bool = True,
    dims: tuple[int, ...] = (),
    act: str = "Sigmoid",
    seed: int = 0,
) -> ModelProto:
    g = Building(dtype, seed=seed)
    q, k, v = operands(g)
    y = weighed(g, g.op("Mul", g.op("MatMul", q, k), g.constant(0.5)), v)
    if joined:
        y = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), g.ints(B, S, H * V))
    gate = g.op(act, g.input("gate", *(dims or ((B, S, H * V) if joined else (B, H, S, V)))))
    y = g.op("Mul", y, gate)
    return g.model(g.op("MatMul", y, g.weight(H * V if joined else V, 4, about=0)))


@drawn(st.integers(0, 99), DTYPE, st.booleans())
def test_a_gate_of_the_result(seed: int, dtype: Any, joined: bool) -> None:
    op = fired(gated(dtype, joined, seed=seed), "attn_output_gate", seed)
    assert op.inputs[3] == "gate"
    assert op.attrs["out_layout"] == ("b s hd" if joined else "b h s d")
    assert "attention" in [part.kind for part in op.parts]


def test_one_gate_a_row_of_a_head() -> None:
    fired(gated(joined=False, dims=(B, H, S, 1)), "attn_output_gate")


def test_a_gate_of_other_rows() -> None:
    assert codes(gated(dims=(B, 1, H * V)), "attn_output_gate") == {"guard:gate_has_the_rows_of_the_result"}
    assert codes(gated(act="Tanh"), "attn_output_gate") <= {"op"}


def test_each_interior_of_a_gated_attention_as_an_output() -> None:
    assert each_interior_as_an_output(gated(), "attn_output_gate") > 4


# ---- values in keys ------------------------------------------------------------------------------------
def shared(dtype: Any = np.float32, how: str = "slice", seed: int = 0) -> ModelProto:
    """Latent attention with its products taken in: values are lanes of the rows that keys are."""
    g = Building(dtype, seed=seed)
    q = g.input("q", B, H, S, D)
    rows = g.input("rows", B, 1, T, D) if how != "joined" else ""
    if how == "joined":
        v = g.input("latent", B, 1, T, V)
        rows = g.op("Concat", v, g.input("turned", B, 1, T, D - V), axis=-1)
    elif how == "whole":
        v = rows
    else:
        begin, axis = (0, 3) if how == "slice" else (2, 3)
        v = g.op("Slice", rows, *(g.ints(n) for n in (begin, begin + V, axis, 1)))
    if how == "other rows":
        v = g.op("Slice", g.input("others", B, 1, T, D), *(g.ints(n) for n in (0, V, 3, 1)))
    scores = g.op("MatMul", q, g.op("Transpose", rows, perm=[0, 1, 3, 2]))
    return g.model(weighed(g, g.op("Mul", scores, g.constant(0.25)), v))


@drawn(st.integers(0, 99), DTYPE, st.sampled_from(["slice", "lanes", "joined", "whole"]))
def test_values_read_in_key_rows(seed: int, dtype: Any, how: str) -> None:
    op = fired(shared(dtype, how, seed), "values_in_keys", seed)
    assert op.attrs.get("v_from", 0) == (2 if how == "lanes" else 0)
    assert op.attrs["v_width"] == (D if how == "whole" else V)


def test_values_of_other_rows_are_read_apart() -> None:
    found = optimized(shared(how="other rows"))
    assert found.report.fired("attention")
    assert not found.report.fired("values_in_keys")
    assert not near(shared(how="other rows"), "values_in_keys")


# ---- native attention ----------------------------------------------------------------------------------
def native(
    mask: str = "", dtype: Any = np.float32, shared: int = 1, seed: int = 0, **attrs: Any
) -> ModelProto:
    """ai.onnx.Attention between the transposes and the gate that an export writes around it."""
    g = Building(dtype, opset=23, seed=seed)
    operands = [g.input("q", B, H, S, D), *(g.input(n, B, H // shared, T, D) for n in "kv")]
    if mask:
        element = TensorProto.BOOL if mask == "bool" else None
        operands.append(g.input("mask", B, 1, S, T, dtype=element))
    y = g.op("Attention", *operands, **attrs)
    y = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), g.ints(B, S, H * D))
    return g.model(g.op("Neg", g.op("Mul", y, g.op("Sigmoid", g.input("gate", B, S, H * D)))))


@drawn(
    st.integers(0, 99), DTYPE, st.sampled_from(["", "bool", "float"]), st.sampled_from([1, H]), st.booleans()
)
def test_a_gate_of_a_native_attention(seed: int, dtype: Any, mask: str, shared: int, cap: bool) -> None:
    attrs = {"softcap": 2.0} if cap else {}
    op = fired(native(mask, dtype, shared, seed, **attrs), "attn_output_gate", seed)
    assert op.attrs["out_layout"] == "b s hd"
    assert op.attrs["scale"] == D**-0.5


def test_a_native_attention_that_is_causal_by_itself_is_left() -> None:
    assert not optimized(native(is_causal=1)).report.fired("attn_output_gate")
