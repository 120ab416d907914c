"""com.microsoft.MoE and QMoE, a row at a time, as onnxruntime 1.32 computes them on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fuse.types import FuseError
from reference.ops.call import Array, Call, Implementation
from reference.ops.elementwise import gelu

_PLAIN: Mapping[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0), "identity": lambda x: x, "gelu": lambda x: gelu(x, "tanh"),
}  # fmt: skip


def _silu(x: Array, slope: float = 1.0) -> Array:
    return np.asarray(x / (1 + np.exp(-x.dtype.type(slope) * x)))


def _act(call: Call, first: Array, third: Array | None) -> Array:
    name = call.get("activation_type", "relu")
    if name == "swiglu":
        return _swiglu(call, first)
    if name not in _PLAIN and name != "silu":
        raise FuseError(f"no implementation for the activation {name} of {call.kind}")
    made = _silu(first) if name == "silu" else np.asarray(_PLAIN[name](first))
    return made if third is None else made * third


def _swiglu(call: Call, first: Array) -> Array:
    """Gate and linear part in turn (swiglu_fusion 1) or in halves (2)."""
    middle = len(first) // 2
    gate, linear = (
        (first[:middle], first[middle:]) if call.get("swiglu_fusion") == 2 else (first[0::2], first[1::2])
    )
    limit = call.get("swiglu_limit")
    if limit:
        gate, linear = np.minimum(gate, limit), np.clip(linear, -limit, limit)
    shifted = linear + linear.dtype.type(call.get("activation_beta", 0.0))
    return np.asarray(_silu(gate, call.get("activation_alpha", 1.0)) * shifted)


def _linear(x: Array, weight: Array | None, bias: Array | None, expert: int) -> Array | None:
    if weight is None:
        return None
    y = np.asarray(weight[expert] @ x)
    return y if bias is None else np.asarray(y + bias[expert])


def _mixed(
    call: Call, x: Array, logits: Array, products: Sequence[tuple[Array | None, Array | None]]
) -> Array:
    """products: weight [experts, out, in] and bias of the first, second and third product."""
    rows = x.reshape(-1, x.shape[-1]).astype(np.float32)
    y = np.zeros((len(rows), x.shape[-1]), np.float32)
    for number, (row, scores) in enumerate(zip(rows, logits.reshape(len(rows), -1), strict=True)):
        powers = np.exp((scores - scores.max()).astype(np.float32))
        weights = powers / powers.sum()
        places = np.argsort(-scores, kind="stable")[: call.get("k", 1)]
        total = weights[places].sum() if call.get("normalize_routing_weights") else np.float32(1)
        for expert in places:
            first, third = (_linear(row, *products[i], int(expert)) for i in (0, 2))
            assert first is not None
            made = _linear(_act(call, first, third), *products[1], int(expert))
            assert made is not None
            y[number] += weights[expert] / total * made
    return y.reshape(x.shape).astype(x.dtype)


def moe(
    call: Call,
    x: Array,
    logits: Array,
    w1: Array,
    b1: Array | None,
    w2: Array,
    b2: Array | None = None,
    w3: Array | None = None,
    b3: Array | None = None,
) -> Array:
    return _mixed(call, x, logits, [(w1, b1), (w2, b2), (w3, b3)])


def _numbers(packed: Array, bits: int) -> Array:
    if bits == 8:
        return packed.astype(np.float32)
    low, high = packed & 15, packed >> 4
    return np.stack([low, high], -1).reshape(*packed.shape[:-1], -1).astype(np.float32)


def _decoded(call: Call, weight: Array | None, scale: Array | None, zero: Array | None) -> Array | None:
    if weight is None or scale is None:
        return None
    bits, block = call.get("expert_weight_bits", 4), call.get("block_size", 0)
    least = np.float32(2 ** (bits - 1)) if zero is None else _numbers(zero, bits)[..., : scale.shape[-1]]
    if block:
        scale = np.repeat(scale, block, -1)
        least = least if zero is None else np.repeat(least, block, -1)
        return np.asarray((_numbers(weight, bits) - least) * scale)
    least = least if zero is None else np.asarray(least)[..., None]
    return np.asarray((_numbers(weight, bits) - least) * scale[..., None])


def qmoe(call: Call, x: Array, logits: Array, *given: Array | None) -> Array:
    """Integers of 4 or 8 bits, a scale a row or a block; zero points 8 or 128 where none are given."""
    if call.get("quant_type", "int") != "int" or any(value is not None for value in given[12:]):
        raise FuseError("no implementation for this form of com.microsoft.QMoE")
    w1, s1, b1, w2, s2, b2, w3, s3, b3, z1, z2, z3 = (*given, *(None,) * 12)[:12]
    stored = ((w1, s1, z1, b1), (w2, s2, z2, b2), (w3, s3, z3, b3))
    return _mixed(call, x, logits, [(_decoded(call, *one[:3]), one[3]) for one in stored])


MIXTURES: Mapping[str, Implementation] = {"com.microsoft.MoE": moe, "com.microsoft.QMoE": qmoe}
