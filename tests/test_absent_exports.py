"""Rules for exports that are not at hand: each fires on that export's own shape of graph."""

from __future__ import annotations

from typing import Any

import export_shapes as shapes
import numpy as np
import pytest
from building import Building
from holding import built, counts, held
from onnx import TensorProto

import fuse


# ---- YOLOv4: convolutions with mish ---------------------------------------------------------------
def conv_mish(g: Building, x: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> str:
    """As the PyTorch model exports in inference mode, its batch norm folded into the convolution."""
    weight = g.constant(g.draw.normal(0, 0.3, (outputs, inputs, kernel, kernel)).astype(g.dtype))
    pad = kernel // 2
    y = g.op(
        "Conv", x, weight, g.weight(outputs), kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4
    )
    return str(g.op("Mul", y, g.op("Tanh", g.op("Softplus", y))))


def test_yolov4_stage() -> None:
    """A stage of its backbone: down, two ways, a residual in one of them, joined, and one more."""
    g = Building(opset=11)
    x = conv_mish(g, g.input("x", 1, 3, 8, 8), 3, 8, 3, stride=2)
    way, rest = conv_mish(g, x, 8, 4, 1), conv_mish(g, x, 8, 4, 1)
    inner = conv_mish(g, conv_mish(g, way, 4, 4, 1), 4, 4, 3)
    way = conv_mish(g, g.op("Add", way, inner), 4, 4, 1)
    found = held(g.model(conv_mish(g, g.op("Concat", way, rest, axis=1), 8, 8, 1)))
    assert counts(found)["mish"] == 7
    assert counts(found)["conv_act"] == 7


# ---- DiT: norms and residuals that a condition scales ----------------------------------------------
def modulated(g: Building, x: str, shift: str, scale: str, native: bool) -> str:
    """norm(x) (1 + scale) + shift, the norm without weights of its own."""
    if native:
        ones, zeros = (g.constant(np.full(shapes.HIDDEN, value, g.dtype)) for value in (1, 0))
        normed = g.op("LayerNormalization", x, ones, zeros, axis=-1, epsilon=1e-6)
    else:
        centred = g.op("Sub", x, g.op("ReduceMean", x, axes=[-1], keepdims=1))
        variance = g.op("ReduceMean", g.op("Pow", centred, g.constant(2.0)), axes=[-1], keepdims=1)
        normed = g.op("Div", centred, g.op("Sqrt", g.op("Add", variance, g.constant(1e-6))))
    factor = g.op("Add", g.op("Unsqueeze", scale, g.ints(1)), g.constant(1.0))
    return str(g.op("Add", g.op("Mul", normed, factor), g.op("Unsqueeze", shift, g.ints(1))))


def chunks(g: Building, condition: str, count: int) -> tuple[str, ...]:
    """What a block makes of its condition: silu, a product, and as many rows."""
    wide = shapes.linear(
        g, g.op("Mul", condition, g.op("Sigmoid", condition)), shapes.HIDDEN, count * shapes.HIDDEN, bias=True
    )
    parts: Any = g.op("Split", wide, g.ints(*[shapes.HIDDEN] * count), outputs=count, axis=1)
    return tuple(parts)


def self_attention(g: Building, x: str) -> str:
    """timm's: one product for q, k and v, cut by a transpose that brings the three to the front."""
    qkv = shapes.linear(g, x, shapes.HIDDEN, 3 * shapes.HIDDEN, bias=True)
    qkv = g.op("Reshape", qkv, g.ints(0, 0, 3, shapes.HEADS, shapes.WIDTH))
    qkv = g.op("Transpose", qkv, perm=[2, 0, 3, 1, 4])
    q, k, v = (g.op("Gather", qkv, g.constant(np.array(n, np.int64)), axis=0) for n in range(3))
    q = g.op("Mul", q, g.constant(shapes.WIDTH**-0.5))
    weights = g.op("Softmax", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
    rows = shapes.join_heads(g, g.op("MatMul", weights, v))
    return shapes.linear(g, rows, shapes.HIDDEN, shapes.HIDDEN, bias=True)


def gelu_by_tanh(g: Building, x: str) -> str:
    cubed = g.op("Mul", g.op("Pow", x, g.constant(3.0)), g.constant(0.044715))
    inner = g.op("Mul", g.op("Add", x, cubed), g.constant(float(np.sqrt(2 / np.pi))))
    return str(
        g.op("Mul", g.op("Mul", x, g.constant(0.5)), g.op("Add", g.op("Tanh", inner), g.constant(1.0)))
    )


@pytest.mark.parametrize("native", [False, True])
def test_dit_blocks(native: bool) -> None:
    """Two blocks and the last layer: every norm is adaptive, every residual gated."""
    g = Building(opset=17)
    x, condition = g.input("x", 2, 6, shapes.HIDDEN), g.input("c", 2, shapes.HIDDEN)
    for _ in range(2):
        shift, scale, gate, shift2, scale2, gate2 = chunks(g, condition, 6)
        branch = self_attention(g, modulated(g, x, shift, scale, native))
        x = g.op("Add", x, g.op("Mul", g.op("Unsqueeze", gate, g.ints(1)), branch))
        inner = shapes.linear(
            g, modulated(g, x, shift2, scale2, native), shapes.HIDDEN, shapes.INNER, bias=True
        )
        branch = shapes.linear(g, gelu_by_tanh(g, inner), shapes.INNER, shapes.HIDDEN, bias=True)
        x = g.op("Add", x, g.op("Mul", g.op("Unsqueeze", gate2, g.ints(1)), branch))
    shift, scale = chunks(g, condition, 2)
    y = shapes.linear(g, modulated(g, x, shift, scale, native), shapes.HIDDEN, 4, bias=True)
    fired = counts(held(g.model(y)))
    assert (fired["ada_norm"], fired["gated_residual"], fired["attention"]) == (5, 4, 2)
    assert fired["add_norm"] == 0


# ---- DeepSeek: attention over latent rows ----------------------------------------------------------
def test_deepseek_attention_over_latent_rows() -> None:
    """Its decode step with the key's up projection moved to the queries: the cache has one row a position,
    a latent that keys and values share and a rotated part; values are the row's first lanes."""
    heads, plain, turned, latent, rows = 4, 4, 4, 8, 3
    g = Building(opset=17)
    x = g.input("x", 1, rows, shapes.HIDDEN)
    past = g.input("past", 1, 1, "past", latent + turned)
    cos, sin = shapes.cos_sin(g, rows, turned)
    q = shapes.linear(g, shapes.rms(g, shapes.linear(g, x, shapes.HIDDEN, 8), 8), 8, heads * (plain + turned))
    q = shapes.split_heads(g, q, heads, plain + turned)
    q_plain, q_turned = g.op("Split", q, g.ints(plain, turned), outputs=2, axis=-1)
    up = g.constant(g.draw.normal(0, 0.5, (heads, plain, latent)).astype(np.float32))
    q = g.op("Concat", g.op("MatMul", q_plain, up), shapes.rotate(g, q_turned, cos, sin, turned), axis=-1)
    row = shapes.linear(g, x, shapes.HIDDEN, latent + turned)
    lanes, k_turned = g.op("Split", row, g.ints(latent, turned), outputs=2, axis=-1)
    lanes = g.op("Unsqueeze", shapes.rms(g, lanes, latent), g.ints(1))
    k_turned = shapes.rotate(g, g.op("Unsqueeze", k_turned, g.ints(1)), cos, sin, turned)
    new = g.op("Concat", lanes, k_turned, axis=-1)
    keys = g.op("Concat", past, new, axis=2)
    values = g.op("Slice", keys, g.ints(0), g.ints(latent), g.ints(3))
    scores = g.op("MatMul", q, g.op("Transpose", keys, perm=[0, 1, 3, 2]))
    weights = g.op("Softmax", g.op("Mul", scores, g.constant((plain + turned) ** -0.5)), axis=-1)
    mixed = g.op("MatMul", weights, values)
    down = g.constant(g.draw.normal(0, 0.5, (heads, latent, plain)).astype(np.float32))
    result = shapes.join_heads(g, g.op("MatMul", mixed, down), heads * plain)
    model = g.model(shapes.linear(g, result, heads * plain, shapes.HIDDEN), keys)
    found = held(model, dims={"past": 2})
    op = built(found, "values_in_keys")
    assert op.attrs["v_width"] == latent
    assert counts(found)["kv_append"] == 1
    assert {"Slice"} <= {leaf.kind for leaf in fuse.leaves(op)}


# ---- a decoder that picks its next token -----------------------------------------------------------
def test_decoder_with_its_greedy_choice() -> None:
    """A causal layer, the last norm, the product with the vocabulary, `logits[:, -1].argmax(-1)`."""
    rows, words = 5, 40
    g = Building(opset=17)
    ids = g.input("ids", 1, rows, dtype=TensorProto.INT64)
    x = g.op("Gather", g.weight(words, shapes.HIDDEN), ids)
    mask = g.constant(np.triu(np.full((1, 1, rows, rows), -1e9, np.float32), 1))
    x = shapes.rms(g, shapes.decoder_layer(g, x, rows, mask))
    last = g.op(
        "Gather", shapes.linear(g, x, shapes.HIDDEN, words), g.constant(np.array(-1, np.int64)), axis=1
    )
    token = g.op("ArgMax", last, axis=-1, keepdims=0)
    model = g.model(token, elements=(TensorProto.INT64,))
    found = held(model, feeds={"ids": np.array([[3, 17, 0, 39, 8]])})
    assert counts(found)["advance"] == 1
    assert counts(found)["attention"] == 1
