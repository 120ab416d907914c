"""Normalizations: the operators of ONNX and those of com.microsoft that real files hold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reference.ops.call import Array, Call, Implementation, from_front, numpy_dtype, wide


def _stash(call: Call, x: Array) -> Array:
    """x in the type the statistics are computed in (`stash_type`, f32 where not said); never narrower."""
    stash = numpy_dtype(int(call.get("stash_type", 1)))
    return x if x.dtype.itemsize >= stash.itemsize else x.astype(stash)


def _over(call: Call, x: Array) -> tuple[int, ...]:
    return tuple(range(from_front(int(call.get("axis", -1)), x.ndim), x.ndim))


def layer_norm(call: Call, x: Array, scale: Array, bias: Array | None = None) -> tuple[Array, ...]:
    """The norm over the axes from `axis` on: y, mean and inverse deviation (both in the stash type).

    A scale of another type than x (which the standard forbids and exporters write) is applied in the
    stash type; the result has x's type.
    """
    wide_x, over = _stash(call, x), _over(call, x)
    mean = np.mean(wide_x, axis=over, keepdims=True)
    centred = wide_x - mean
    inverse = 1 / np.sqrt(
        np.mean(centred * centred, axis=over, keepdims=True) + wide_x.dtype.type(call.get("epsilon", 1e-5))
    )
    inverse = np.asarray(inverse, wide_x.dtype)
    return _scaled(x, centred * inverse, scale, bias), mean, inverse


def rms_norm(call: Call, x: Array, scale: Array) -> Array:
    """x over the root of its mean square over the axes from `axis` on, times the scale."""
    wide_x, over = _stash(call, x), _over(call, x)
    square = np.mean(wide_x * wide_x, axis=over, keepdims=True)
    return _scaled(x, wide_x / np.sqrt(square + wide_x.dtype.type(call.get("epsilon", 1e-5))), scale, None)


def _scaled(x: Array, normal: Array, scale: Array, bias: Array | None) -> Array:
    y = normal * scale.astype(normal.dtype)
    if bias is not None:
        y = y + bias.astype(normal.dtype)
    return np.asarray(y, x.dtype)


def simplified_layer_norm(call: Call, x: Array, scale: Array) -> tuple[Array, Array]:
    """onnxruntime's name for the rms norm: y and the inverse root of the mean square."""
    wide_x, over = _stash(call, x), _over(call, x)
    inverse = 1 / np.sqrt(
        np.mean(wide_x * wide_x, axis=over, keepdims=True) + wide_x.dtype.type(call.get("epsilon", 1e-5))
    )
    inverse = np.asarray(inverse, wide_x.dtype)
    return _scaled(x, wide_x * inverse, scale, None), inverse


def _skipped(x: Array, skip: Array, bias: Array | None) -> Array:
    total = wide(x) + wide(skip)
    return np.asarray(total if bias is None else total + wide(bias))


def skip_layer_norm(
    call: Call, x: Array, skip: Array, gamma: Array, beta: Array | None = None, bias: Array | None = None
) -> tuple[Array, ...]:
    """layer norm of x + skip (+ bias): y, mean, inverse deviation, the sum."""
    total = _skipped(x, skip, bias)
    inner = call._replace(attrs={"epsilon": call.get("epsilon", 1e-12)})
    y, mean, inverse = layer_norm(inner, total, gamma, beta)
    return y.astype(x.dtype), mean, inverse, total.astype(x.dtype)


def skip_rms_norm(
    call: Call, x: Array, skip: Array, gamma: Array, bias: Array | None = None
) -> tuple[Array, Array | None, Array, Array]:
    """rms norm of x + skip (+ bias): y, nothing, inverse root mean square, the sum."""
    total = _skipped(x, skip, bias)
    inner = call._replace(attrs={"epsilon": call.get("epsilon", 1e-12)})
    y, inverse = simplified_layer_norm(inner, total, gamma)
    return y.astype(x.dtype), None, inverse, total.astype(x.dtype)


def embed_layer_norm(
    call: Call,
    ids: Array,
    segments: Array | None,
    words: Array,
    positions: Array,
    segment_table: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None = None,
    position_ids: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Word, position and segment rows added and normed: y, number of leading true of the mask, the sum."""
    rows = np.arange(ids.shape[1])[None, :] if position_ids is None else position_ids
    total = wide(words)[ids] + wide(positions)[rows]
    if segment_table is not None:
        which = np.zeros_like(ids) if segments is None else segments
        total = total + wide(segment_table)[which]
    inner = call._replace(attrs={"epsilon": call.get("epsilon", 1e-12)})
    y, *_ = layer_norm(inner, total, gamma, beta)
    count = np.zeros(ids.shape[0], np.int32) if mask is None else mask.sum(axis=1).astype(np.int32)
    return y.astype(words.dtype), count, total.astype(words.dtype)


def _per_channel(v: Array, x: Array) -> Array:
    return v.reshape(1, -1, *(1,) * (x.ndim - 2))


def batch_norm(call: Call, x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Array:
    """The inference form."""
    w = wide(x)
    factor = wide(scale) / np.sqrt(wide(var) + w.dtype.type(call.get("epsilon", 1e-5)))
    shift = wide(bias) - wide(mean) * factor
    return np.asarray(w * _per_channel(factor, x) + _per_channel(shift, x), x.dtype)


def _grouped(x: Array, groups: int, eps: float) -> Array:
    """x [N, C, *space] less its mean, over its deviation, in each of the groups of channels."""
    flat = wide(x).reshape(x.shape[0], groups, -1)
    centred = flat - flat.mean(axis=-1, keepdims=True)
    var = np.mean(centred * centred, axis=-1, keepdims=True)
    return np.asarray((centred / np.sqrt(var + flat.dtype.type(eps))).reshape(x.shape), flat.dtype)


def instance_norm(call: Call, x: Array, scale: Array, bias: Array) -> Array:
    normal = _grouped(x, x.shape[1], call.get("epsilon", 1e-5))
    return np.asarray(normal * _per_channel(wide(scale), x) + _per_channel(wide(bias), x), x.dtype)


def group_norm(call: Call, x: Array, scale: Array, bias: Array) -> Array:
    """Scale and bias are one a group in version 18 and one a channel from 21 on."""
    groups = int(call.attrs["num_groups"])
    if call.opset < 21:
        scale, bias = (np.repeat(v, x.shape[1] // groups) for v in (scale, bias))
    normal = _grouped(x, groups, call.get("epsilon", 1e-5))
    return np.asarray(normal * _per_channel(wide(scale), x) + _per_channel(wide(bias), x), x.dtype)


NORMS: Mapping[str, Implementation] = {
    "LayerNormalization": layer_norm, "RMSNormalization": rms_norm,
    "SimplifiedLayerNormalization": simplified_layer_norm,
    "com.microsoft.SimplifiedLayerNormalization": simplified_layer_norm,
    "com.microsoft.LayerNormalization": layer_norm,
    "com.microsoft.SkipLayerNormalization": skip_layer_norm,
    "com.microsoft.SkipSimplifiedLayerNormalization": skip_rms_norm,
    "com.microsoft.EmbedLayerNormalization": embed_layer_norm,
    "BatchNormalization": batch_norm, "InstanceNormalization": instance_norm,
    "GroupNormalization": group_norm,
}  # fmt: skip
