"""Parts of models in the shape that exporters write them: norms, heads, rotations, whole layers."""

from __future__ import annotations

import numpy as np
from building import Building

#: Of the small layers: rows of the stream, query and key heads, the width of a head and of the inner rows.
HIDDEN, HEADS, KEY_HEADS, WIDTH, INNER = 16, 4, 2, 4, 24


def rms(g: Building, x: str, width: int = HIDDEN, eps: float = 1e-5) -> str:
    """As Llama's norm is exported: square, mean, eps, root, one over it, x times that, the weight first."""
    mean = g.op("ReduceMean", g.op("Pow", x, g.constant(2.0)), axes=[-1], keepdims=1)
    root = g.op("Sqrt", g.op("Add", mean, g.constant(eps)))
    return str(g.op("Mul", g.weight(width), g.op("Mul", x, g.op("Div", g.constant(1.0), root))))


def layer_norm(g: Building, x: str, width: int = HIDDEN, eps: float = 1e-5, axis: int = -1) -> str:
    """As opset 14 decomposes it; the weights are rows of the last axis, whatever axis is reduced."""
    centred = g.op("Sub", x, g.op("ReduceMean", x, axes=[axis], keepdims=1))
    variance = g.op("ReduceMean", g.op("Pow", centred, g.constant(2.0)), axes=[axis], keepdims=1)
    normed = g.op("Div", centred, g.op("Sqrt", g.op("Add", variance, g.constant(eps))))
    return str(g.op("Add", g.op("Mul", normed, g.weight(width)), g.weight(width)))


def linear(g: Building, x: str, inputs: int, outputs: int, bias: bool = False) -> str:
    """A product, and a bias as the first addend where there is one."""
    product = g.op("MatMul", x, g.constant(_small(g, inputs, outputs)))
    return str(g.op("Add", g.weight(outputs), product) if bias else product)


def _small(g: Building, *dims: int) -> np.ndarray:
    return (g.draw.normal(0, 1, dims) / np.sqrt(dims[0])).astype(g.dtype)


def split_heads(g: Building, x: str, heads: int, width: int = WIDTH) -> str:
    return str(g.op("Transpose", g.op("Reshape", x, g.ints(0, 0, heads, width)), perm=[0, 2, 1, 3]))


def join_heads(g: Building, x: str, hidden: int = HIDDEN) -> str:
    return str(g.op("Reshape", g.op("Transpose", x, perm=[0, 2, 1, 3]), g.ints(0, 0, hidden)))


def rotate(g: Building, x: str, cos: str, sin: str, width: int = WIDTH) -> str:
    """rotate_half: the upper half, negated, before the lower."""
    half, end, axis, start = g.ints(width // 2), g.ints(2**62), g.ints(3), g.ints(0)
    upper, lower = g.op("Slice", x, half, end, axis), g.op("Slice", x, start, half, axis)
    turned = g.op("Concat", g.op("Neg", upper), lower, axis=-1)
    return str(g.op("Add", g.op("Mul", x, cos), g.op("Mul", turned, sin)))


def cos_sin(g: Building, rows: int, width: int = WIDTH) -> tuple[str, str]:
    """Tables of angles, one row a position, whose halves repeat; they broadcast over batch and heads."""
    angles = np.outer(np.arange(rows), 10.0 ** -np.arange(width // 2))
    both = np.concatenate([angles, angles], -1)[None, None]
    return g.constant(np.cos(both).astype(g.dtype)), g.constant(np.sin(both).astype(g.dtype))


def attend(g: Building, q: str, k: str, v: str, mask: str = "", width: int = WIDTH) -> str:
    """softmax(q k^T / root of the width, plus a mask) v, of heads before rows."""
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.op("Div", scores, g.constant(float(np.sqrt(width))))
    scores = g.op("Add", scores, mask) if mask else scores
    return str(g.op("MatMul", g.op("Softmax", scores, axis=-1), v))


def repeat_heads(g: Building, x: str, rows: int) -> str:
    """Each key head for its group of query heads: unsqueeze, expand, reshape."""
    wide = g.op("Unsqueeze", x, g.ints(2))
    wide = g.op("Expand", wide, g.ints(1, KEY_HEADS, HEADS // KEY_HEADS, rows, WIDTH))
    return str(g.op("Reshape", wide, g.ints(1, HEADS, rows, WIDTH)))


def gated_mlp(g: Building, x: str) -> str:
    gate, up = (linear(g, x, HIDDEN, INNER) for _ in range(2))
    return linear(g, g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up), INNER, HIDDEN)


def decoder_layer(g: Building, x: str, rows: int, mask: str = "") -> str:
    """A pre-norm layer with grouped heads, a rotation and a gated feed-forward block (Llama), batch 1."""
    normed = rms(g, x)
    q, k, v = (
        split_heads(g, linear(g, normed, HIDDEN, heads * WIDTH), heads)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )
    cos, sin = cos_sin(g, rows)
    q, k = rotate(g, q, cos, sin), rotate(g, k, cos, sin)
    k, v = repeat_heads(g, k, rows), repeat_heads(g, v, rows)
    x = g.op("Add", x, linear(g, join_heads(g, attend(g, q, k, v, mask)), HIDDEN, HIDDEN))
    return str(g.op("Add", x, gated_mlp(g, rms(g, x))))


def gelu(g: Building, x: str) -> str:
    erf = g.op("Erf", g.op("Div", x, g.constant(2**0.5)))
    return str(g.op("Mul", g.op("Mul", x, g.op("Add", erf, g.constant(1.0))), g.constant(0.5)))


def encoder_layer(g: Building, x: str) -> str:
    """A post-norm layer with biases and a gelu (BERT), batch and rows as they come."""
    q, k, v = (split_heads(g, linear(g, x, HIDDEN, HIDDEN, bias=True), HEADS) for _ in range(3))
    branch = linear(g, join_heads(g, attend(g, q, k, v)), HIDDEN, HIDDEN, bias=True)
    x = layer_norm(g, g.op("Add", branch, x))
    inner = gelu(g, linear(g, x, HIDDEN, INNER, bias=True))
    return layer_norm(g, g.op("Add", linear(g, inner, INNER, HIDDEN, bias=True), x))
