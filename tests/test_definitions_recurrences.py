"""Definitions of recurrences against plain loops, and against the native operators of onnxruntime."""

from __future__ import annotations

from typing import Any

import lowering_models
import numpy as np
import pytest
from building import Building
from defined import close, fused, normal, sigmoid, softmax
from hypothesis import given, settings
from hypothesis import strategies as st
from recurrence_models import B, C, H, K, S, V

import fuse
from fuse import forms
from fuse.types import FuseError

SEED = st.integers(0, 2**16)
LAYOUT = {"q_layout": "b h s d", "k_layout": "b h s d", "v_layout": "b h s d", "out_layout": "b h s d"}


def drawn(seed: int, rows: int = S) -> dict[str, np.ndarray]:
    key = normal(seed + 1, B, H, rows, K)
    return {
        "q": normal(seed, B, H, rows, K),
        "k": key / np.linalg.norm(key, axis=-1, keepdims=True),
        "v": normal(seed + 2, B, H, rows, V),
        "decay": -np.abs(normal(seed + 3, B, H, rows)),
        "beta": sigmoid(normal(seed + 4, B, H, rows)),
        "state": normal(seed + 5, B, H, K, V),
    }


def plain(
    x: dict[str, np.ndarray], update: str = "gated_delta", scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """One matrix at a time, row by row."""
    y, last = np.zeros((B, H, x["q"].shape[2], V)), np.zeros((B, H, K, V))
    for b in range(B):
        for h in range(H):
            s = x["state"][b, h].astype(np.float64)
            for t in range(x["q"].shape[2]):
                k, v = x["k"][b, h, t], x["v"][b, h, t]
                s = s * (np.exp(x["decay"][b, h, t]) if "gated" in update else 1)
                fresh = x["beta"][b, h, t] * (v - s.T @ k) if "delta" in update else v
                s = s + np.outer(k, fresh)
                y[b, h, t] = scale * s.T @ x["q"][b, h, t]
            last[b, h] = s
    return y.astype(np.float32), last.astype(np.float32)


@settings(deadline=None, max_examples=20)
@given(SEED, st.sampled_from(["gated_delta", "delta", "gated", "linear"]), st.booleans(), st.booleans())
def test_the_recurrence_row_by_row(seed: int, update: str, linear: bool, values_first: bool) -> None:
    x = drawn(seed)
    want, last = plain(x, update, 0.5)
    state = x["state"].swapaxes(-1, -2) if values_first else x["state"]
    decay = np.exp(x["decay"]) if linear else x["decay"]
    got = fused(
        "gated_delta", x["q"], x["k"], x["v"], decay, x["beta"], state, outputs=2, shape=want.shape, **LAYOUT,
        decay_layout="b h s", beta_layout="b h s", heads=H, scale=0.5, update=update,
        decay_space="linear" if linear else "log", state_layout="b h v k" if values_first else "b h k v",
    )  # fmt: skip
    close(got[0], want)
    close(got[1], last.swapaxes(-1, -2) if values_first else last)


def test_a_result_in_chunks_ends_in_zeros() -> None:
    x = drawn(1) | {"state": np.zeros((B, H, K, V), np.float32)}
    want = plain(x)[0]
    options = LAYOUT | {
        "out_layout": "b h c s d",
        "decay_layout": "b h s",
        "beta_layout": "b h s",
        "heads": H,
    }
    operands = (x["q"], x["k"], x["v"], x["decay"], x["beta"], None)
    got = fused("gated_delta", *operands, **options, chunk=3)
    assert got.shape == (B, H, 2, 3, V)
    close(got.reshape(B, H, 6, V)[:, :, :S], want)
    assert not got[:, :, 1, 2].any()
    one = fused("gated_delta", *operands, **options, chunk=3, chunks=1)
    close(one[:, :, 0], got[:, :, 0])
    assert not one[:, :, 1].any()


def test_wrong_attributes_of_a_recurrence_are_named() -> None:
    x = drawn(1)
    operands = tuple(x.values())
    options = LAYOUT | {"decay_layout": "b h s", "beta_layout": "b h s", "heads": H}
    for name in ("update", "decay_space", "state_layout"):
        with pytest.raises(FuseError, match=name):
            fused("gated_delta", *operands, **{**options, name: "other"})
    with pytest.raises(FuseError, match="chunks"):
        fused("gated_delta", *operands, **{**options, "out_layout": "b c h s d", "chunk": 3})


# ---- short convolutions --------------------------------------------------------------------------------
@settings(deadline=None, max_examples=20)
@given(SEED, st.integers(1, 3), st.integers(0, 2), st.booleans())
def test_short_convolution_column_by_column(seed: int, dilation: int, more: int, silu: bool) -> None:
    x, weight, bias = normal(seed, B, C, S), normal(seed + 1, C, 1, 3), normal(seed + 2, C)
    state = normal(seed + 3, B, C, 2 * dilation + more)
    joined = np.concatenate([state, x], -1)
    want = np.zeros((B, C, S))
    for t in range(S):
        for tap in range(3):
            want[..., t] += weight[:, 0, tap] * joined[..., state.shape[-1] + t - (2 - tap) * dilation]
    want = want + bias[:, None]
    want = want * sigmoid(want) if silu else want
    kind = "conv_silu" if silu else "conv_state"
    got = fused(kind, x, weight, bias, state, outputs=2, shape=x.shape, dilation=dilation)
    close(got[0], want.astype(np.float32))
    np.testing.assert_array_equal(got[1], joined[..., S:])
    half = np.full_like(x, 0.5)
    gated = fused(kind, 2 * x, weight, bias, state, half, half, dilation=dilation)
    close(gated, (0.5 * want).astype(np.float32))


def test_a_state_must_reach_as_far_as_the_taps() -> None:
    x, weight, state = normal(1, B, C, S), normal(2, C, 1, 4), normal(3, B, C, 2)
    with pytest.raises(FuseError, match="2 columns does not reach"):
        fused("conv_state", x, weight, None, state)


# ---- gates and shared rows of attention ----------------------------------------------------------------
def test_gate_sinks_and_values_in_keys() -> None:
    q, k, v, gate = normal(1, 2, 3, 4, 8), normal(2, 2, 3, 5, 8), normal(3, 2, 3, 5, 6), normal(4, 2, 3, 4, 6)
    options = LAYOUT | {"heads": 3, "scale": 0.3}
    scores = q @ k.swapaxes(-1, -2) * 0.3
    close(fused("attn_output_gate", q, k, v, gate, **options), softmax(scores) @ v * sigmoid(gate))
    close(
        fused("values_in_keys", q, k, **options, v_from=2, v_width=5),
        softmax(scores) @ k[..., 2:7],
    )
    sink = normal(5, 1, 3, 1, 1)
    wide = np.concatenate([scores, np.broadcast_to(sink, (2, 3, 4, 1))], -1)
    got = fused("attention", q, k, v, sink, **options, mask=("sink",))
    close(got, softmax(wide)[..., :5] @ v)


# ---- onnxruntime's own operators -------------------------------------------------------------------------
def held(kind: str, feeds: dict[str, np.ndarray], inputs: list[str], form: Any, **attrs: Any) -> Any:
    """Run one native operator, and the definition of what its form says; both results must agree."""
    g = Building()
    for name, array in feeds.items():
        g.input(name, *array.shape)
    model = g.model(*g.op(kind, *inputs, outputs=2, **attrs))
    graph = fuse.load(model)
    found = form(graph, graph.ops[0])
    results = lowering_models.run(model, feeds)
    want = [results[name] for name in graph.outputs]
    if form is forms.delta:
        names = (found.q, found.k, found.v, found.decay, found.beta, found.state)
        cls = "gated_delta"
    else:
        names = (found.x, found.weight, found.bias, found.state, found.x_gate, found.gate)
        cls = "conv_silu" if found.silu else "conv_state"
    operands = [feeds[name] if name else None for name in names]
    got = fused(cls, *operands, outputs=2, shape=want[0].shape, **found.attrs)
    close(got[0], want[0])
    close(got[1], want[1])


def packed(x: np.ndarray) -> np.ndarray:
    """[b, h, s, ...] with rows before heads and heads joined to their width."""
    rows = x.swapaxes(1, 2)
    return np.ascontiguousarray(rows.reshape(B, rows.shape[1], -1))


@pytest.mark.parametrize("update", ["gated_delta", "delta", "gated", "linear"])
def test_linear_attention_of_onnxruntime(update: str) -> None:
    x = drawn(3)
    feeds = {name: packed(x[name]) for name in ("q", "k", "v")} | {"state": x["state"]}
    inputs = ["q", "k", "v", "state"]
    for name, word in (("decay", "gated"), ("beta", "delta")):
        present = word in update
        inputs.append(name if present else "")
        feeds |= {name: packed(x[name])} if present else {}
    while not inputs[-1]:
        inputs.pop()
    held(
        "com.microsoft.LinearAttention",
        feeds,
        inputs,
        forms.delta,
        q_num_heads=H,
        kv_num_heads=H,
        update_rule=update,
    )


def test_gated_delta_net_of_onnxruntime() -> None:
    x = drawn(4)
    feeds = {name: np.ascontiguousarray(x[name].swapaxes(1, 2)) for name in ("q", "k", "v", "decay", "beta")}
    feeds["state"] = np.ascontiguousarray(x["state"].swapaxes(-1, -2))
    inputs = ["q", "k", "v", "", "decay", "beta", "state"]
    held("com.microsoft.GatedDeltaNet", feeds, inputs, forms.delta, scale=0.25)


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("dilation", [1, 2])
def test_causal_convolution_of_onnxruntime(activation: str, dilation: int) -> None:
    feeds = {
        "x": normal(1, B, C, S), "weight": normal(2, C, 1, 3), "bias": normal(3, C),
        "state": normal(4, B, C, 2 * dilation),
    }  # fmt: skip
    held(
        "com.microsoft.CausalConvWithState", feeds, [*feeds], forms.causal_conv, activation=activation,
        dilation=dilation,
    )  # fmt: skip
