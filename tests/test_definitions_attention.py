"""The definition of attention against products and a softmax written plainly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from defined import close, fused, normal, softmax, wide
from hypothesis import given, settings
from hypothesis import strategies as st

from fuse.types import FuseError

SEED = st.integers(0, 2**16)
DTYPE = st.sampled_from([np.float32, np.float16])


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
    *(st.sampled_from(LAYOUTS) for _ in range(3)),
    st.sampled_from(["b h s d", "b s hd", "b s h d", "bh s d", "s b hd"]),
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


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"q_layout": "b s h"}, "has 3 axes, its operand has 4"),
        ({"q_layout": "b h s x"}, "has an axis 'x'"),
        ({"mask": ("cover",)}, "a mask entry is add, hide, keep, drop, cap, divide or multiply"),
        ({"empty_rows": "one"}, "empty_rows is nan, zero or average"),
        ({"groups": 3}, "do not make 4 query heads"),
    ],
)
def test_what_attention_cannot_be_is_named(attrs: dict[str, Any], message: str) -> None:
    q, k, v = heads(1)
    with pytest.raises(FuseError, match=message):
        attend(q, k, v, *([normal(2, 3, 5)] if "mask" in attrs else []), **attrs)
