"""Each definition against a composition of primitives written here, on shapes that hypothesis draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuse.classes import CLASSES
from fuse.ir import Op
from fuse.types import FuseError, Type
from reference import definitions
from reference.compare import TOLERANCE
from reference.ops.call import short_dtype

FLOATS = [np.float32, np.float16]
SMALL = st.integers(1, 4)
SEED = st.integers(0, 2**16)
DTYPE = st.sampled_from(FLOATS)


def normal(seed: int, *shape: int, dtype: Any = np.float32, about: float = 0.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) + about).astype(dtype)


def fused(
    kind: str,
    *operands: np.ndarray | None,
    shape: tuple[int, ...] | None = None,
    outputs: int = 1,
    **attrs: Any,
) -> Any:
    """A class's definition on these operands; one array, or one for each of several outputs."""
    names = tuple("" if value is None else f"x{i}" for i, value in enumerate(operands))
    op = Op(kind, names, tuple(f"y{i}" for i in range(outputs)), attrs)
    first = next(value for value in operands if value is not None)
    types = tuple(Type(short_dtype(first), shape if i == 0 else None) for i in range(outputs))
    listed = definitions.operand_names(op)
    assert len(listed) >= len(operands), "the class takes fewer operands"
    padded = [*operands, *(None,) * (len(listed) - len(operands))]
    found = definitions.define(op, padded, types)
    assert all(array.dtype == first.dtype for array in found)
    return found[0] if outputs == 1 else found


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    limit = TOLERANCE[short_dtype(got)] * 0.5
    scale = max(1.0, float(np.nanmax(np.abs(want), initial=0.0)))
    np.testing.assert_allclose(
        got.astype(np.float64) / scale, want.astype(np.float64) / scale, rtol=0, atol=limit
    )


def wide(*arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(np.float32) for array in arrays]


# ---- primitives, written plainly ------------------------------------------------------------------
def softmax(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        powers = np.exp(x - x.max(-1, keepdims=True))
        return np.asarray(powers / powers.sum(-1, keepdims=True))


def plain_norm(x: np.ndarray, kind: str, eps: float, weight: Any = 1.0, bias: Any = 0.0) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True) if kind == "layer" else x
    mean_square = np.square(centred).mean(-1, keepdims=True)
    return np.asarray(centred * (1 / np.sqrt(mean_square + eps)) * weight + bias)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


PLAIN = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "fast_gelu": lambda x: 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x))),
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
}


def plain_rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool = False) -> np.ndarray:
    """cos and sin: one entry a pair."""
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else np.split(x, 2, -1)
    real, imaginary = a * cos - b * sin, b * cos + a * sin
    if interleaved:
        y = np.empty_like(x)
        y[..., 0::2], y[..., 1::2] = real, imaginary
        return y
    return np.concatenate([real, imaginary], -1)


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
    st.sampled_from([("swiglu", "silu"), ("geglu", "fast_gelu"), ("geglu", "gelu"), ("reglu", "relu")]),
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


# ---- attention -----------------------------------------------------------------------------------
SIZES = {"b": 2, "h": 4, "s": 3, "d": 8}


def laid(x: np.ndarray, layout: str) -> np.ndarray:
    """[b, h, s, d] in a layout, by numpy alone."""
    letters = layout.replace(" ", "")
    sizes = dict(zip("bhsd", x.shape, strict=True))
    y = x.transpose(["bhsd".index(letter) for letter in letters])
    return y.reshape([int(np.prod([sizes[letter] for letter in axis])) for axis in layout.split()])


def plain_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, bias: Any = 0.0, zero: bool = False
) -> np.ndarray:
    groups = q.shape[1] // k.shape[1]
    k, v = (np.repeat(part, groups, 1) for part in (k, v))
    shares = softmax(q @ k.swapaxes(-1, -2) * scale + bias)
    return np.asarray((np.nan_to_num(shares, nan=0.0) if zero else shares) @ v)


def heads(seed: int, groups: int = 1, dtype: Any = np.float32, keys: int = 5) -> tuple[np.ndarray, ...]:
    shapes = ((2, 4, 3, 8), (2, 4 // groups, keys, 8), (2, 4 // groups, keys, 6))
    return tuple(normal(seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes))


def attend(q: Any, k: Any, v: Any, *masks: Any, **attrs: Any) -> Any:
    plain = {"q_layout": "b h s d", "k_layout": "b h s d", "v_layout": "b h s d", "out_layout": "b h s d"}
    return fused("attention", q, k, v, *masks, **{**plain, "heads": 4, "scale": 0.3, **attrs})


LAYOUTS = ["b h s d", "b s h d", "b s hd", "bh s d", "b h d s", "s b h d", "s bh d"]


@settings(deadline=None)
@given(
    SEED, DTYPE, st.sampled_from([1, 2, 4]),
    *(st.sampled_from(LAYOUTS) for _ in range(3)), st.sampled_from(["b h s d", "b s hd", "b s h d", "bh s d", "s b hd"]),
)  # fmt: skip
def test_attention_in_every_layout(
    seed: int, dtype: Any, groups: int, q_layout: str, k_layout: str, v_layout: str, out_layout: str
) -> None:
    q, k, v = heads(seed, groups, dtype)
    got = attend(
        laid(q, q_layout), laid(k, k_layout), laid(v, v_layout), groups=groups,
        q_layout=q_layout, k_layout=k_layout, v_layout=v_layout, out_layout=out_layout,
    )  # fmt: skip
    close(got, laid(plain_attention(*wide(q, k, v), 0.3), out_layout))


def test_attention_without_heads() -> None:
    q, k, v = normal(1, 3, 8), normal(2, 5, 8), normal(3, 5, 6)
    flat = {"q_layout": "s d", "k_layout": "s d", "v_layout": "s d", "out_layout": "s d"}
    close(attend(q, k, v, heads=0, **flat), softmax(q @ k.T * 0.3) @ v)
    q, k, v = normal(1, 6, 3, 8), normal(2, 6, 5, 8), normal(3, 6, 5, 6)
    folded = {"q_layout": "bh s d", "k_layout": "bh s d", "v_layout": "bh s d", "out_layout": "bh s d"}
    close(attend(q, k, v, heads=0, **folded), softmax(q @ k.swapaxes(1, 2) * 0.3) @ v)


def test_key_heads_are_shared_where_heads_are_folded_in_the_batch() -> None:
    q, k, v = heads(1, 2)
    folded = {"q_layout": "bh s d", "k_layout": "bh s d", "v_layout": "bh s d", "out_layout": "bh s d"}
    operands = [laid(x, "bh s d") for x in (q, k, v)]
    close(attend(*operands, heads=0, groups=2, **folded), laid(plain_attention(q, k, v, 0.3), "bh s d"))


@given(SEED, st.sampled_from([(2, 4, 3, 5), (1, 1, 3, 5), (2, 1, 1, 5), (3, 5), (4, 3, 5)]))
def test_an_added_mask(seed: int, shape: tuple[int, ...]) -> None:
    q, k, v = heads(seed)
    mask = normal(seed + 9, *shape) * 3
    close(attend(q, k, v, mask, mask=("add",)), plain_attention(q, k, v, 0.3, mask))


@pytest.mark.parametrize(("entry", "flip"), [("keep", False), ("drop", True)])
@pytest.mark.parametrize("empty_rows", ["nan", "zero"])
def test_a_selecting_mask(entry: str, flip: bool, empty_rows: str) -> None:
    q, k, v = heads(4)
    seen = np.random.default_rng(1).random((2, 1, 3, 5)) < 0.6
    seen[1, 0, 2] = False
    bias = np.where(seen, 0.0, -np.inf)
    got = attend(q, k, v, seen ^ flip, mask=(entry,), fill=(-math.inf,), empty_rows=empty_rows)
    close(got, plain_attention(q, k, v, 0.3, bias, zero=empty_rows == "zero"))
    assert np.isnan(got).any() == (empty_rows == "nan")


def test_a_row_with_nothing_to_see_averages_where_its_scores_are_swallowed() -> None:
    q, k, v = heads(4)
    hidden = np.zeros((3, 5), bool)
    hidden[1] = True
    bias = np.where(hidden, np.finfo(np.float32).min, 0).astype(np.float32)
    mean = v.mean(2)
    for got in (
        attend(q, k, v, bias, mask=("add",)),
        attend(q, k, v, hidden, mask=("drop",), fill=(-1e9,)),
        attend(q, k, v, hidden, mask=("drop",), fill=(-math.inf,), empty_rows="average"),
    ):
        close(got[:, :, 1], mean)


def test_the_score_is_swallowed_in_the_type_of_the_mask() -> None:
    q, k, v = heads(4, dtype=np.float16)
    hidden = np.full((3, 5), np.finfo(np.float16).min)
    close(attend(q, k, v, hidden, mask=("add",))[:, :, 0], wide(v)[0].mean(2))


def test_the_innermost_entry_of_a_mask_comes_first() -> None:
    q, k, v = heads(5)
    added, seen, by = (
        normal(7, 3, 5),
        np.random.default_rng(2).random((3, 5)) < 0.7,
        np.asarray([2.0], np.float32),
    )
    seen[:, 0] = True
    scores = q @ k.swapaxes(-1, -2) * 0.3
    want = np.where(seen, 5.0 * np.tanh(scores / 5.0) + added, -1e9) / 2.0
    got = attend(q, k, v, by, seen, added, mask=("divide", "keep", "add", "cap"), fill=(-1e9,), softcap=5.0)
    close(got, softmax(want) @ v)


@pytest.mark.parametrize(("layout", "shape"), [("bh s t", (8, 3, 5)), ("bh s t", (1, 3, 5))])
def test_a_mask_over_folded_scores(layout: str, shape: tuple[int, ...]) -> None:
    q, k, v = heads(6)
    mask = normal(3, *shape)
    whole = np.broadcast_to(mask, (8, 3, 5)).reshape(2, 4, 3, 5)
    close(attend(q, k, v, mask, mask=("add",), mask_layouts=(layout,)), plain_attention(q, k, v, 0.3, whole))


def test_a_mask_a_window() -> None:
    q, k, v = (normal(i, 6, 4, 3, 8) for i in (1, 2, 3))
    mask = normal(4, 1, 3, 1, 3, 3)
    whole = np.broadcast_to(mask, (2, 3, 1, 3, 3)).reshape(6, 1, 3, 3)
    got = attend(q, k, v, mask, mask=("add",), mask_layouts=("b w h s t",), out_layout="bw s hd")
    close(got, laid(plain_attention(q, k, v, 0.3, whole), "b s hd"))


# ---- the table -----------------------------------------------------------------------------------
def test_every_class_has_one_definition_or_is_made_of_its_members() -> None:
    alone = {name for name, declared in CLASSES.items() if not getattr(declared, "composite", False)}
    assert alone == set(definitions.DEFINITIONS)


def test_a_missing_attribute_is_named() -> None:
    with pytest.raises(FuseError, match="rms_norm y0 has no attribute eps"):
        fused("rms_norm", normal(1, 3), normal(2, 3))


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"q_layout": "b s h"}, "has 3 axes, its operand has 4"),
        ({"q_layout": "b h s x"}, "has an axis 'x'"),
        ({"mask": ("cover",)}, "a mask entry is add, keep, drop, cap or divide"),
        ({"empty_rows": "one"}, "empty_rows is nan, zero or average"),
        ({"groups": 3}, "do not make 4 query heads"),
    ],
)
def test_what_attention_cannot_be_is_named(attrs: dict[str, Any], message: str) -> None:
    q, k, v = heads(1)
    with pytest.raises(FuseError, match=message):
        attend(q, k, v, *([normal(2, 3, 5)] if "mask" in attrs else []), **attrs)
