"""com.microsoft operators beside norms, attention and quantization: activations and fused products."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fuse.types import FuseError
from reference.ops.call import Array, Call, Implementation, wide
from reference.ops.elementwise import ELEMENTWISE, gelu, quick_gelu
from reference.ops.products import conv_product, gemm_product


def bias_gelu(call: Call, x: Array, bias: Array) -> Array:
    return gelu(x + bias)


def fast_gelu(call: Call, x: Array, bias: Array | None = None) -> Array:
    return gelu(x if bias is None else x + bias, "tanh")


def fused_matmul(call: Call, a: Array, b: Array) -> Array:
    """alpha a b, each perhaps transposed: its last two axes, or its first with its others (transBatch)."""
    left = _turned(a, int(call.get("transA", 0)), int(call.get("transBatchA", 0)))
    right = _turned(b, int(call.get("transB", 0)), int(call.get("transBatchB", 0)))
    y = np.matmul(wide(left), wide(right))
    return np.asarray(y * y.dtype.type(call.get("alpha", 1.0)), a.dtype)


def _turned(x: Array, last: int, batch: int) -> Array:
    if batch and x.ndim > 2:
        x = np.moveaxis(x, 0, -2)
    return np.swapaxes(x, -1, -2) if last and x.ndim > 1 else x


def _activated(call: Call, y: Array, names: tuple[str, ...], values: tuple[float, ...]) -> Array:
    """The activation that a fused operator names; its parameters by the names its operator gives them."""
    kind = call.get("activation", "")
    if not kind:
        return y
    if kind not in ELEMENTWISE:
        raise FuseError(f"no implementation for the activation {kind} of {call.kind}")
    if kind == "Clip":
        return np.asarray(np.clip(y, *(y.dtype.type(v) for v in values[:2])))
    attrs = dict(zip(names, values, strict=False))
    return np.asarray(ELEMENTWISE[kind](Call(kind, attrs, 99, (True,)), y))


def fused_gemm(call: Call, a: Array, b: Array, c: Array | None = None) -> Array:
    given = [(n, call.get(f"activation_{n}")) for n in ("alpha", "beta", "gamma")]
    named = [(name, float(value)) for name, value in given if value is not None]
    y = gemm_product(call, a, b, c)
    names, values = tuple(n for n, _ in named), tuple(v for _, v in named)
    return np.asarray(_activated(call, y, names, values), a.dtype)


def fused_conv(call: Call, x: Array, w: Array, b: Array | None = None, z: Array | None = None) -> Array:
    """Convolution, plus z, then the activation."""
    y = conv_product(call, x, w, b)
    if z is not None:
        y = y + wide(z)
    values = tuple(float(v) for v in call.get("activation_params") or ())
    return np.asarray(_activated(call, y, ("alpha", "beta"), values), x.dtype)


def split_gelu(call: Call, x: Array, bias: Array) -> Array:
    """BiasSplitGelu: the first half of x + bias times gelu of the second."""
    left, right = np.split(x + bias, 2, axis=-1)
    return np.asarray(left * gelu(right))


CONTRIB: Mapping[str, Implementation] = {
    "com.microsoft.Gelu": lambda call, x: gelu(x), "com.microsoft.BiasGelu": bias_gelu,
    "com.microsoft.FastGelu": fast_gelu,
    "com.microsoft.QuickGelu": lambda call, x: quick_gelu(x, float(call.get("alpha", 1.702))),
    "com.microsoft.FusedMatMul": fused_matmul, "com.microsoft.TransposeMatMul": fused_matmul,
    "com.microsoft.FusedGemm": fused_gemm, "com.microsoft.FusedConv": fused_conv,
    "com.microsoft.BiasAdd": lambda call, x, bias, skip: np.asarray(x + bias + skip),
    "com.microsoft.BiasSplitGelu": split_gelu,
}  # fmt: skip
