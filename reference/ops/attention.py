"""Attention and rotation: the operators of ONNX and those of com.microsoft.

Arrays of heads are [batch, heads, rows, width]. A mask is a list of biases that are added to the
scores [batch, heads, rows, keys].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fuse.types import FuseError
from reference.ops.call import Array, Call, Implementation, numpy_dtype, wide
from reference.ops.products import product
from reference.ops.reducing import softmax_last


def split_heads(x: Array, heads: int) -> Array:
    """[batch, rows, heads * width] as [batch, heads, rows, width]."""
    batch, rows, size = x.shape
    return x.reshape(batch, rows, heads, size // heads).transpose(0, 2, 1, 3)


def join_heads(x: Array) -> Array:
    """[batch, heads, rows, width] as [batch, rows, heads * width]."""
    batch, heads, rows, width = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, rows, heads * width)


def repeat_heads(x: Array, heads: int) -> Array:
    """Each key head repeated for the query heads that share it."""
    return x if x.shape[1] == heads else np.repeat(x, heads // x.shape[1], axis=1)


def bias_of(mask: Array, dtype: Any) -> Array:
    """A boolean mask (true keeps) as a bias; any other mask is one."""
    if mask.dtype == np.bool_:
        return np.asarray(np.where(mask, dtype.type(0), dtype.type(-np.inf)))
    return mask.astype(dtype)


def causal_bias(rows: int, keys: int, offset: Any, dtype: Any, window: int = -1, right: int = 0) -> Array:
    """-inf where key j is out of sight of row i: j > i + offset + right, or j < i + offset - window.

    offset: one number, or one a batch (then the bias is [batch, 1, rows, keys]). A negative bound is none.
    """
    where = np.arange(rows)[:, None] + np.asarray(offset).reshape(-1, 1, 1, 1)
    behind = where - np.arange(keys)
    keep = np.ones(behind.shape, np.bool_)
    if right >= 0:
        keep &= behind >= -right
    if window >= 0:
        keep &= behind <= window
    return bias_of(keep if np.ndim(offset) else keep[0, 0], dtype)


def attend(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    biases: list[Array],
    softcap: float = 0.0,
    precision: Any = None,
) -> tuple[Array, list[Array]]:
    """softmax(scale q k^T, capped, plus the biases) v; a row whose every bias is -inf gives zero.

    Also gives the scores raw, capped, with bias, and the probabilities.
    """
    root = q.dtype.type(math.sqrt(scale)) if scale >= 0 else q.dtype.type(scale)
    left, right = (q * root, k * root) if scale >= 0 else (q * root, k)
    raw = product(left, right.transpose(0, 1, 3, 2))
    capped = raw
    if softcap > 0:
        cap = wide(raw).dtype.type(softcap)
        capped = np.asarray(np.tanh(wide(raw) / cap) * cap, raw.dtype)
    scores = capped
    total: Any = 0
    for bias in biases:
        scores = scores + bias
        total = total + bias
    computed = wide(scores) if precision is None else scores.astype(precision)
    shares = softmax_last(computed)
    if biases:
        blind = np.isneginf(np.max(np.asarray(total), axis=-1, keepdims=True))
        shares = np.where(blind, shares.dtype.type(0), shares)
    shares = shares.astype(q.dtype)
    return product(shares, v), [raw, capped, scores.astype(q.dtype), shares]


def _biases(
    call: Call, q: Array, keys: int, mask: Array | None, past: int, lengths: Array | None
) -> list[Array]:
    """What ai.onnx Attention adds to its scores: the mask, causality, the window, the unused rows."""
    rows, biases = q.shape[2], []
    if mask is not None:
        bias = bias_of(mask, q.dtype)
        short = keys - bias.shape[-1]
        if short > 0:
            bias = np.pad(bias, [(0, 0)] * (bias.ndim - 1) + [(0, short)], constant_values=-np.inf)
        biases.append(bias)
    offset = past if past or lengths is None else lengths.reshape(-1) - rows
    left, right = int(call.get("left_window_size", -1)), int(call.get("right_window_size", -1))
    if call.get("is_causal", 0):
        biases.append(causal_bias(rows, keys, offset, q.dtype))
    if left >= 0 or right >= 0:
        biases.append(causal_bias(rows, keys, offset, q.dtype, left, right))
    if lengths is not None:
        biases.append(bias_of(np.arange(keys) < lengths.reshape(-1, 1, 1, 1), q.dtype))
    return biases


def attention(
    call: Call,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    past_k: Array | None = None,
    past_v: Array | None = None,
    lengths: Array | None = None,
) -> tuple[Array, ...]:
    """ai.onnx Attention: y, present key, present value, the scores that `qk_matmul_output_mode` names."""
    flat = q.ndim == 3
    if flat:
        heads, key_heads = int(call.attrs["q_num_heads"]), int(call.attrs["kv_num_heads"])
        q, k, v = split_heads(q, heads), split_heads(k, key_heads), split_heads(v, key_heads)
    if past_k is not None and past_v is not None:
        k, v = np.concatenate([past_k, k], axis=2), np.concatenate([past_v, v], axis=2)
    past = 0 if past_k is None else past_k.shape[2]
    biases = _biases(call, q, k.shape[2], mask, past, lengths)
    scale = call.get("scale")
    precision = call.get("softmax_precision")
    y, scores = attend(
        q,
        repeat_heads(k, q.shape[1]),
        repeat_heads(v, q.shape[1]),
        1 / math.sqrt(q.shape[-1]) if scale is None else float(scale),
        biases,
        float(call.get("softcap", 0.0)),
        None if precision is None else numpy_dtype(int(precision)),
    )
    return (join_heads(y) if flat else y), k, v, scores[int(call.get("qk_matmul_output_mode", 0))]


# ---- rotation ----------------------------------------------------------------------------------
def rotate(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Pairs of leading lanes turned. x [batch, rows, heads, width]; cos, sin [batch, rows, 1, pairs]."""
    lanes = 2 * cos.shape[-1]
    turned, rest = x[..., :lanes], x[..., lanes:]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else np.split(turned, 2, axis=-1)
    real, imaginary = cos * a - sin * b, sin * a + cos * b
    if interleaved:
        turned = np.stack([real, imaginary], axis=-1).reshape(turned.shape)
    else:
        turned = np.concatenate([real, imaginary], axis=-1)
    return np.concatenate([turned, rest], axis=-1).astype(x.dtype)


def _rotated(x: Array, cos: Array, sin: Array, heads: int, interleaved: bool) -> Array:
    """x [batch, rows, heads * width] or [batch, heads, rows, width]; cos, sin [batch, rows, pairs]."""
    cos, sin = cos[:, :, None], sin[:, :, None]
    if x.ndim == 4:
        return rotate(x.transpose(0, 2, 1, 3), cos, sin, interleaved).transpose(0, 2, 1, 3)
    batch, rows, size = x.shape
    return rotate(x.reshape(batch, rows, heads, size // heads), cos, sin, interleaved).reshape(x.shape)


def rotary_embedding(call: Call, x: Array, cos: Array, sin: Array, ids: Array | None = None) -> Array:
    """ai.onnx RotaryEmbedding."""
    if ids is not None:
        cos, sin = cos[ids], sin[ids]
    lanes = int(call.get("rotary_embedding_dim", 0))
    if lanes and cos.shape[-1] != lanes // 2:
        raise FuseError(f"RotaryEmbedding rotates {lanes} lanes, its tables have {cos.shape[-1]} columns")
    return _rotated(x, cos, sin, int(call.get("num_heads", 0)) or 1, bool(call.get("interleaved", 0)))


def rotary_embedding_contrib(call: Call, x: Array, ids: Array, cos: Array, sin: Array) -> Array:
    """com.microsoft RotaryEmbedding: ids are one offset, or one position a row."""
    rows = x.shape[1] if x.ndim == 3 else x.shape[2]
    if ids.size == 1 and ids.ndim < 2:
        ids = np.broadcast_to(ids.reshape(-1)[0] + np.arange(rows), (x.shape[0], rows))
    heads = int(call.get("num_heads", 0))
    if x.ndim == 3 and not heads:
        heads = x.shape[-1] // (2 * cos.shape[-1])
    return _rotated(x, cos[ids], sin[ids], heads, bool(call.get("interleaved", 0)))


# ---- com.microsoft attention -------------------------------------------------------------------
def _padding_bias(mask: Array, batch: int, keys: int, fill: float, dtype: Any) -> Array:
    """The bias of a mask of ones and zeros, or of the number of leading keys that are real."""
    if mask.ndim == 1:
        place = np.arange(keys)
        keep = place < mask[:batch, None]
        if mask.shape[0] == 2 * batch:
            keep &= place >= mask[batch:, None]
        keep = keep[:, None, None, :]
    elif mask.ndim == 2:
        keep = (mask != 0)[:, None, None, :]
    elif mask.ndim == 3:
        keep = (mask != 0)[:, None]
    else:
        raise FuseError(f"an attention mask of rank {mask.ndim} has no implementation")
    return np.asarray(np.where(keep, dtype.type(0), dtype.type(fill)))


def contrib_attention(
    call: Call,
    x: Array,
    weights: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    past_length: Array | None = None,
) -> tuple[Array, Array]:
    """com.microsoft Attention: one product makes q, k, v; past and present [2, batch, heads, rows, width]."""
    qkv = product(x, weights)
    return packed_attention(call, qkv if bias is None else qkv + bias, mask, past, attention_bias)


def packed_attention(
    call: Call, qkv: Array, mask: Array | None, past: Array | None, attention_bias: Array | None = None
) -> tuple[Array, Array]:
    """The attention of rows of q, k and v side by side, and its caches."""
    if call.get("do_rotary", 0) or call.get("past_present_share_buffer", 0):
        raise FuseError(f"{call.kind} with do_rotary or a shared buffer has no implementation")
    heads = int(call.attrs["num_heads"])
    sizes = call.get("qkv_hidden_sizes") or (qkv.shape[-1] // 3,) * 3
    q, k, v = (split_heads(part, heads) for part in np.split(qkv, np.cumsum(sizes)[:-1], axis=-1))
    if past is not None:
        k, v = np.concatenate([past[0], k], axis=2), np.concatenate([past[1], v], axis=2)
    y = _contrib_core(call, q, k, v, mask, attention_bias)
    return join_heads(y), np.stack([k, v]) if k.shape == v.shape else k


def _contrib_core(call: Call, q: Array, k: Array, v: Array, mask: Array | None, added: Array | None) -> Array:
    rows, keys = q.shape[2], k.shape[2]
    fill = float(call.get("mask_filter_value", -10000.0))
    biases = [] if mask is None else [_padding_bias(mask, q.shape[0], keys, fill, q.dtype)]
    if call.get("unidirectional", 0):
        biases.append(np.maximum(causal_bias(rows, keys, keys - rows, q.dtype), np.finfo(q.dtype).min))
    if added is not None:
        biases.append(added)
    scale = float(call.get("scale", 0.0)) or 1 / math.sqrt(q.shape[-1])
    return attend(q, k, v, scale, biases)[0]


def multi_head_attention(
    call: Call,
    q: Array,
    k: Array | None = None,
    v: Array | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    attention_bias: Array | None = None,
    past_k: Array | None = None,
    past_v: Array | None = None,
    *rest: Array | None,
) -> tuple[Array, ...]:
    """com.microsoft MultiHeadAttention: y, present key, present value."""
    if any(value is not None for value in rest):
        raise FuseError("com.microsoft.MultiHeadAttention with a shared buffer has no implementation")
    heads = int(call.attrs["num_heads"])
    if k is None:  # [batch, rows, heads, 3, width]
        q, k, v = (q[:, :, :, i].reshape(*q.shape[:2], -1) for i in range(3))
    elif v is None:  # [batch, keys, heads, 2, width]
        k, v = (k[:, :, :, i].reshape(*k.shape[:2], -1) for i in range(2))
    if bias is not None:
        ends = np.cumsum([q.shape[-1], k.shape[-1]]) if k.ndim == 3 else [q.shape[-1], 2 * q.shape[-1]]
        parts = np.split(bias, ends)
        q = q + parts[0]
        if k.ndim == 3 and v is not None:
            k, v = k + parts[1], v + parts[2]
    assert v is not None
    query = split_heads(q, heads)
    key, value = (part if part.ndim == 4 else split_heads(part, heads) for part in (k, v))
    if past_k is not None and past_v is not None:
        key, value = np.concatenate([past_k, key], axis=2), np.concatenate([past_v, value], axis=2)
    return join_heads(_contrib_core(call, query, key, value, mask, attention_bias)), key, value


#: Attributes of GroupQueryAttention that change the result in ways that are not implemented.
_UNREAD = ("smooth_softmax", "qk_output", "kv_cache_bit_width", "sliding_window_cache")


def _refuse_unread(call: Call, *operands: Array | None) -> None:
    unread = [name for name in _UNREAD if call.get(name, 0)]
    if unread or any(value is not None for value in operands) or not call.get("causal", 1):
        what = " ".join(unread) or "these operands"
        raise FuseError(f"com.microsoft.GroupQueryAttention with {what} has no implementation")


def group_query_attention(
    call: Call,
    q: Array,
    k: Array | None,
    v: Array | None,
    past_k: Array | None,
    past_v: Array | None,
    last: Array,
    total: Array,
    cos: Array | None = None,
    sin: Array | None = None,
    ids: Array | None = None,
    bias: Array | None = None,
    sink: Array | None = None,
    *rest: Array | None,
) -> tuple[Array, Array, Array]:
    """com.microsoft GroupQueryAttention: y, present key, present value.

    last: for each batch, the number of real keys after this step, less one. Rows land in the cache
    behind the keys that each batch has.
    """
    _refuse_unread(call, sink, *rest)
    heads, key_heads = int(call.attrs["num_heads"]), int(call.attrs["kv_num_heads"])
    if k is None or v is None:
        width = q.shape[-1] // (heads + 2 * key_heads)
        q, k, v = np.split(q, [heads * width, (heads + key_heads) * width], axis=-1)
    batch, rows, _ = q.shape
    lengths = last.reshape(-1).astype(np.int64) + 1
    full, first = int(total.reshape(-1)[0]), int(total.reshape(-1)[0]) == rows
    before = np.zeros(batch, np.int64) if first else lengths - rows
    if call.get("do_rotary", 0):
        if cos is None or sin is None:
            raise FuseError("com.microsoft.GroupQueryAttention rotates and has no cos_cache")
        where = before[:, None] + np.arange(rows) if ids is None else ids
        turn = bool(call.get("rotary_interleaved", 0))
        q = _rotated(q, cos[where], sin[where], heads, turn)
        k = _rotated(k, cos[where], sin[where], key_heads, turn)
    query, key, value = split_heads(q, heads), split_heads(k, key_heads), split_heads(v, key_heads)
    key, value = _landed(past_k, key, before, full), _landed(past_v, value, before, full)
    window = int(call.get("local_window_size", -1))
    biases = [causal_bias(rows, full, before, q.dtype, window - 1 if window > 0 else -1)]
    if bias is not None:
        biases.append(bias[..., :full])
    scale = float(call.get("scale", 0.0)) or 1 / math.sqrt(query.shape[-1])
    keys, values = (repeat_heads(part[:, :, :full], heads) for part in (key, value))
    y, _scores = attend(query, keys, values, scale, biases, float(call.get("softcap", 0.0)))
    return join_heads(y), key, value


def _landed(past: Array | None, new: Array, before: Array, full: int) -> Array:
    """The cache with new rows behind the `before[b]` rows that batch b has."""
    held = 0 if past is None else past.shape[2]
    cache = np.zeros((*new.shape[:2], max(full, held), new.shape[3]), new.dtype)
    for b, at in enumerate(before):
        if past is not None:
            cache[b, :, :held] = past[b]
        room = cache.shape[2] - at
        cache[b, :, at : at + new.shape[2]] = new[b, :, :room]
    return cache


ATTENTION: Mapping[str, Implementation] = {
    "Attention": attention, "RotaryEmbedding": rotary_embedding,
    "com.microsoft.RotaryEmbedding": rotary_embedding_contrib,
    "com.microsoft.Attention": contrib_attention,
    "com.microsoft.MultiHeadAttention": multi_head_attention,
    "com.microsoft.GroupQueryAttention": group_query_attention,
}  # fmt: skip
