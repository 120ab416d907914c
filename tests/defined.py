"""A class's definition on given operands, and plain forms to hold it against."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fuse.ir import Op
from fuse.types import Type
from reference import definitions
from reference.compare import TOLERANCE
from reference.ops.call import short_dtype


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
    "squared_relu": lambda x: np.maximum(x, 0) ** 2,
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
