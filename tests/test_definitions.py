"""Each definition against a composition of primitives written here, on shapes that hypothesis draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from defined import PLAIN, close, fused, normal, plain_norm, plain_rope, wide
from hypothesis import given
from hypothesis import strategies as st

from fuse.classes import CLASSES
from fuse.types import FuseError
from reference import definitions

FLOATS = [np.float32, np.float16]
SMALL = st.integers(1, 4)
SEED = st.integers(0, 2**16)
DTYPE = st.sampled_from(FLOATS)


# ---- activations ---------------------------------------------------------------------------------
@given(SEED, DTYPE, st.sampled_from(["gelu", "fast_gelu", "quick_gelu", "silu"]))
def test_activations(seed: int, dtype: Any, kind: str) -> None:
    x = normal(seed, 3, 5, dtype=dtype) * dtype(3)
    attrs = {"alpha": 1.702} if kind == "quick_gelu" else {}
    close(fused(kind, x, **attrs), PLAIN[kind](x.astype(np.float32)))


def test_softcap() -> None:
    x = normal(1, 4, 6) * 30
    close(fused("softcap", x, cap=20.0), 20 * np.tanh(x / 20))


@given(
    SEED,
    DTYPE,
    st.sampled_from(
        [
            ("swiglu", "silu"),
            ("geglu", "fast_gelu"),
            ("geglu", "gelu"),
            ("reglu", "relu"),
            ("reglu", "squared_relu"),
        ]
    ),
)
def test_gates(seed: int, dtype: Any, which: tuple[str, str]) -> None:
    kind, act = which
    gate, up = normal(seed, 2, 6, dtype=dtype), normal(seed + 1, 2, 6, dtype=dtype)
    close(fused(kind, gate, up, act=act), PLAIN[act](gate.astype(np.float32)) * up)


# ---- norms ---------------------------------------------------------------------------------------
@given(SEED, DTYPE, st.lists(SMALL, max_size=2), st.integers(2, 9), st.sampled_from([0.0, 1.0]))
def test_rms_norm(seed: int, dtype: Any, lead: list[int], width: int, offset: float) -> None:
    x, weight = normal(seed, *lead, width, dtype=dtype), normal(seed + 1, width, dtype=dtype)
    got = fused("rms_norm", x, weight, eps=1e-3, offset=offset)
    close(got, plain_norm(x.astype(np.float32), "rms", 1e-3, weight + dtype(offset)))


@given(SEED, DTYPE, st.lists(SMALL, max_size=2), st.integers(2, 9), st.booleans(), st.booleans())
def test_layer_norm(seed: int, dtype: Any, lead: list[int], width: int, scaled: bool, shifted: bool) -> None:
    x = normal(seed, *lead, width, dtype=dtype, about=2.0)
    weight = normal(seed + 1, width, dtype=dtype) if scaled else None
    bias = normal(seed + 2, width, dtype=dtype) if shifted else None
    want = plain_norm(
        x.astype(np.float32), "layer", 1e-2, 1.0 if weight is None else weight, 0.0 if bias is None else bias
    )
    close(fused("layer_norm", x, weight, bias, eps=1e-2), want)


@pytest.mark.parametrize(
    ("eps_at", "divisor"),
    [
        ("none", lambda total, eps: np.sqrt(total)),
        ("inside", lambda total, eps: np.sqrt(total + eps)),
        ("outside", lambda total, eps: np.sqrt(total) + eps),
        ("clip", lambda total, eps: np.maximum(np.sqrt(total), eps)),
    ],
)
def test_l2_norm_keeps_eps_where_it_is(eps_at: str, divisor: Any) -> None:
    x = normal(3, 4, 5)
    want = x / divisor(np.square(x).sum(-1, keepdims=True), 2.0)
    close(fused("l2_norm", x, eps=2.0, eps_at=eps_at), want)


@given(SEED, DTYPE, st.sampled_from(["rms", "layer"]), st.booleans())
def test_add_norm_writes_the_sum(seed: int, dtype: Any, norm: str, biased: bool) -> None:
    x, residual = normal(seed, 2, 3, 6, dtype=dtype), normal(seed + 1, 3, 6, dtype=dtype)
    weight, bias = normal(seed + 2, 6, dtype=dtype), normal(seed + 3, 6, dtype=dtype)
    extra = normal(seed + 4, 6, dtype=dtype) if biased else None
    y, total = fused("add_norm", x, residual, weight, bias, extra, outputs=2, eps=1e-3, norm=norm)
    want = sum(wide(x, residual)) + (0 if extra is None else extra.astype(np.float32))
    close(total, want)
    close(y, plain_norm(want, norm, 1e-3, *wide(weight, bias)))


def test_norm_add_norm() -> None:
    x, y = normal(1, 2, 6), normal(2, 2, 6)
    inner, weight = normal(3, 6), normal(4, 6)
    got, total = fused(
        "norm_add_norm", x, y, inner, None, weight, None, outputs=2,
        eps=1e-3, norm="rms", inner_eps=1e-2, inner_norm="layer", inner_offset=1.0,
    )  # fmt: skip
    want = x + plain_norm(y, "layer", 1e-2, inner + 1)
    close(total, want)
    close(got, plain_norm(want, "rms", 1e-3, weight))


@pytest.mark.parametrize("split", [True, False])
def test_qk_norm_of_a_wide_product(split: bool) -> None:
    x, weight = normal(1, 2, 3, 4 * 8), normal(2, 8)
    want = plain_norm(x.reshape(2, 3, 4, 8), "rms", 1e-3, weight)
    shape = want.shape if split else x.shape
    close(fused("qk_norm", x, weight, None, heads=4, eps=1e-3, shape=shape), want.reshape(shape))


def test_qk_norm_with_a_weight_a_head() -> None:
    x, weight = normal(1, 2, 3, 4, 8), normal(2, 4, 8)
    close(
        fused("qk_norm", x, weight, None, heads=4, eps=1e-3, norm="layer"),
        plain_norm(x, "layer", 1e-3, weight),
    )


# ---- rotation ------------------------------------------------------------------------------------
def angles(seed: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    turn = normal(seed, *shape)
    return np.cos(turn), np.sin(turn)


@given(SEED, DTYPE, st.sampled_from(["half", "interleaved"]), st.booleans(), st.sampled_from([0, 4]))
def test_rope(seed: int, dtype: Any, form: str, full: bool, rotary: int) -> None:
    x = normal(seed, 2, 3, 4, 8, dtype=dtype)
    lanes = rotary or 8
    cos, sin = (table.astype(dtype) for table in angles(seed, 4, lanes // 2))
    turned = plain_rope(x[..., :lanes].astype(np.float32), *wide(cos, sin), form == "interleaved")
    want = np.concatenate([turned, x[..., lanes:].astype(np.float32)], -1)
    if full:
        spread = (
            (lambda t: np.repeat(t, 2, -1)) if form == "interleaved" else lambda t: np.concatenate([t, t], -1)
        )
        cos, sin = spread(cos), spread(sin)
    tables = "full" if full else "half"
    close(fused("rope", x, cos, sin, None, form=form, tables=tables, rotary_dim=rotary), want)


def test_rope_selects_rows_and_gives_them_a_head_axis() -> None:
    x, ids = normal(1, 2, 3, 5, 8), np.random.default_rng(2).integers(0, 9, (2, 5))
    cos, sin = angles(3, 9, 4)
    want = plain_rope(x, cos[ids][:, None], sin[ids][:, None])
    got = fused("rope", x, cos, sin, ids, tables="half", position_ids=True, rope_unsqueeze=1)
    close(got, want)


def test_rope_of_heads_in_the_last_axis() -> None:
    x = normal(1, 2, 5, 3 * 8)
    cos, sin = angles(3, 2, 5, 4)
    want = plain_rope(x.reshape(2, 5, 3, 8), cos[:, :, None], sin[:, :, None]).reshape(x.shape)
    close(fused("rope", x, cos, sin, None, tables="half", rope_heads=3, rope_unsqueeze=2), want)


def test_rope_from_one_order_of_lanes_to_the_other() -> None:
    x, (cos, sin) = normal(1, 3, 8), angles(2, 3, 4)
    pairs = plain_rope(x, cos, sin, interleaved=True)
    halves = np.concatenate([pairs[..., 0::2], pairs[..., 1::2]], -1)
    close(fused("rope", x, cos, sin, None, tables="half", form="pairs_to_halves"), halves)
    y = plain_rope(x, cos, sin)
    crossed = np.stack(np.split(y, 2, -1), -1).reshape(y.shape)
    close(fused("rope", x, cos, sin, None, tables="half", form="halves_to_pairs"), crossed)


def test_qk_norm_rope_turns_after_the_transpose() -> None:
    x, weight = normal(1, 2, 5, 3, 8), normal(2, 8)
    cos, sin = angles(3, 5, 4)
    want = plain_rope(plain_norm(x, "rms", 1e-3, weight).transpose(0, 2, 1, 3), cos, sin)
    got = fused("qk_norm_rope", x, weight, None, cos, sin, None, eps=1e-3, tables="half", perm=(0, 2, 1, 3))
    close(got, want)


# ---- caches --------------------------------------------------------------------------------------
def test_rows_land_behind_the_cache() -> None:
    past, x = normal(1, 2, 3, 4, 8), normal(2, 2, 3, 5, 8)
    weight, (cos, sin) = normal(3, 8), angles(4, 5, 4)
    np.testing.assert_array_equal(fused("kv_append", past, x, axis=-2), np.concatenate([past, x], 2))
    turned = plain_rope(x, cos, sin)
    close(
        fused("rope_kv_append", past, x, cos, sin, None, axis=-2, tables="half"),
        np.concatenate([past, turned], 2),
    )
    turned = plain_rope(plain_norm(x, "rms", 1e-3, weight), cos, sin)
    got = fused(
        "qk_norm_rope_kv_append", past, x, weight, None, cos, sin, None, axis=-2, eps=1e-3, tables="half"
    )
    close(got, np.concatenate([past, turned], 2))


# ---- products ------------------------------------------------------------------------------------
@given(SEED, DTYPE, st.booleans(), st.booleans(), st.booleans())
def test_matmul_bias(seed: int, dtype: Any, turned_x: bool, turned: bool, biased: bool) -> None:
    x, weight = normal(seed, 2, 3, 4, dtype=dtype), normal(seed + 1, 4, 5, dtype=dtype)
    bias = normal(seed + 2, 5, dtype=dtype) if biased else None
    want = 0.5 * np.matmul(*wide(x, weight)) + (0 if bias is None else 2.0 * bias.astype(np.float32))
    got = fused(
        "matmul_bias", x.swapaxes(1, 2) if turned_x else x, weight.T if turned else weight, bias,
        trans_x=int(turned_x), trans_weight=int(turned), alpha=0.5, beta=2.0,
    )  # fmt: skip
    close(got, want)


@pytest.mark.parametrize("act", ["gelu", "relu", "tanh", "sigmoid", "silu"])
def test_matmul_bias_act_lays_its_rows_out_as_the_result(act: str) -> None:
    x, weight, bias = normal(1, 6, 4), normal(2, 4, 5), normal(3, 5)
    want = PLAIN[act](x @ weight + bias)
    close(fused("matmul_bias_act", x, weight, bias, act=act), want)
    close(fused("matmul_bias_act", x, weight, bias, act=act, shape=(2, 3, 5)), want.reshape(2, 3, 5))


def test_matmul_residual() -> None:
    x, weight, bias, residual = normal(1, 6, 4), normal(2, 4, 5), normal(3, 5), normal(4, 2, 3, 5)
    want = (x @ weight + bias).reshape(2, 3, 5) + residual
    close(fused("matmul_residual", x, weight, bias, residual, shape=(2, 3, 5)), want)


@pytest.mark.parametrize("kind", ["merged_qkv", "merged_gate_up", "merged_products"])
def test_merged_members_need_not_be_alike(kind: str) -> None:
    x, (a, b, c), (p, q) = (
        normal(1, 3, 4),
        (normal(i, 4, 5) for i in (2, 3, 4)),
        (normal(i, 5) for i in (5, 6)),
    )
    got = fused(kind, x, a, b.T, c, p, q, outputs=3, biases=(1, 0, 1), trans_weights=(0, 1, 0))
    for found, want in zip(got, (x @ a + p, x @ b, x @ c + q), strict=True):
        close(found, want)


# ---- the table -----------------------------------------------------------------------------------
def test_every_class_has_one_definition_or_is_made_of_its_members() -> None:
    alone = {name for name, declared in CLASSES.items() if not declared.composite}
    assert alone == set(definitions.DEFINITIONS)


def test_a_missing_attribute_is_named() -> None:
    with pytest.raises(FuseError, match="rms_norm y0 has no attribute eps"):
        fused("rms_norm", normal(1, 3), normal(2, 3))
