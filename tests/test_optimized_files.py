"""What onnxruntime's own optimizers leave in a file: contrib operators that took a part of a pattern in."""

from __future__ import annotations

import numpy as np
import pytest
from building import Building, codes, fired, near, optimized
from onnx import ModelProto

MS = "com.microsoft"
K, N = 8, 6


# ---- an activation with the bias of the product before it ------------------------------------------
def biased(kind: str, width: int = N, own: bool = False, rows: bool = False) -> ModelProto:
    g = Building()
    if own:
        y = g.op("Gemm", g.input("x", 6, K), g.weight(K, N), g.weight(N))
    else:
        y = g.op("MatMul", g.input("x", 6, K), g.weight(K, N))
    y = g.op("Reshape", y, g.ints(2, 3, N)) if rows else y
    return g.model(g.op(f"{MS}.{kind}", y, g.weight(width)))


@pytest.mark.parametrize("kind", ["BiasGelu", "FastGelu"])
@pytest.mark.parametrize("rows", [False, True])
def test_the_bias_of_an_activation_is_its_products(kind: str, rows: bool) -> None:
    op = fired(biased(kind, rows=rows), "matmul_bias_act")
    assert op.attrs["act"] == ("gelu" if kind == "BiasGelu" else "fast_gelu")
    assert all(op.inputs)


def test_a_product_with_a_bias_of_its_own_keeps_it() -> None:
    assert not optimized(biased("BiasGelu", own=True)).report.fired("matmul_bias_act")


@pytest.mark.parametrize("quantized", [False, True])
def test_a_feed_forward_block_around_a_biased_activation(quantized: bool) -> None:
    g = Building()
    x = g.input("x", 2, 3, K)
    if quantized:
        code = g.constant(g.draw.integers(-99, 99, (K, N)).astype(np.int8))
        scale = g.constant(g.draw.uniform(0.01, 0.1, N).astype(np.float32))
        y = g.op("MatMul", x, g.op("DequantizeLinear", code, scale, axis=1))
    else:
        y = g.op("MatMul", x, g.weight(K, N))
    y = g.op(f"{MS}.BiasGelu", y, g.weight(N))
    fired(g.model(g.op("MatMul", y, g.weight(N, K))), "mlp_block")


# ---- a cap whose inverse went into the product before it -------------------------------------------
def capped(alpha: float = 0.02, cap: float = 5.0, kind: str = f"{MS}.FusedMatMul") -> ModelProto:
    g = Building()
    q, k, v = (g.input(name, 2, 3, 5, 8) for name in "qkv")
    if kind == "MatMul":
        scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    else:
        scores = g.op(kind, q, k, transB=1, alpha=alpha)
    scores = g.op("Mul", g.op("Tanh", scores), g.constant(cap))
    scores = g.op("Add", scores, g.constant(g.draw.normal(0, 1, (5, 5)).astype(np.float32)))
    return g.model(g.op("MatMul", g.op("Softmax", scores, axis=-1), v))


def test_a_cap_whose_inverse_is_the_products_scale() -> None:
    op = fired(capped(), "attention")
    assert op.attrs["softcap"] == pytest.approx(5.0)
    assert op.attrs["scale"] == pytest.approx(0.1)


def test_a_tanh_of_plain_scores_is_no_cap() -> None:
    assert codes(capped(kind="MatMul"), "attention") == {"op"}


# ---- a sum and its norm as one operator ------------------------------------------------------------
def test_a_sandwich_around_an_operator_that_gives_its_sum_fourth() -> None:
    g = Building()
    x, y = g.input("x", 2, 3, K), g.input("y", 2, 3, K)
    inner = g.op("RMSNormalization", y, g.weight(K))
    attrs = {"epsilon": 1e-6}
    normed, _, _, total = g.op(
        f"{MS}.SkipSimplifiedLayerNormalization", x, inner, g.weight(K), outputs=4, **attrs
    )
    g.nodes[-1].output[1], g.nodes[-1].output[2] = "", ""
    g.opset = 23
    model = g.model(normed, g.op("Add", total, y))
    op = fired(model, "norm_add_norm")
    assert op.outputs == (normed, total)


# ---- an activation of a product of two values ------------------------------------------------------
def test_an_activation_whose_x_is_a_product_cubed_by_a_power() -> None:
    """The scales of a quantized product are multiplied in just before."""
    g = Building()
    x = g.op("Mul", g.input("whole", 2, 3, K), g.op("Mul", g.input("step", 1), g.weight(K)))
    cube = g.op("Mul", g.op("Pow", x, g.constant(3.0)), g.constant(0.044715))
    inner = g.op("Tanh", g.op("Mul", g.op("Add", x, cube), g.constant(0.7978846)))
    y = g.op("Mul", g.op("Mul", x, g.constant(0.5)), g.op("Add", inner, g.constant(1.0)))
    model = g.model(y)
    assert fired(model, "fast_gelu").inputs[0] == x
    assert not near(model, "quantized_matmul")


# ---- an attention with its packed products ---------------------------------------------------------
@pytest.mark.parametrize("codes", [False, True])
def test_a_block_of_an_attention_that_multiplies_x_itself(codes: bool) -> None:
    g = Building()
    x, packed, bias = g.input("x", 2, 3, K), g.weight(K, 3 * K), g.weight(3 * K)
    if codes:
        whole, scale, point = g.op("DynamicQuantizeLinear", x, outputs=3)
        weight = g.constant(g.draw.integers(-99, 99, (K, 3 * K)).astype(np.int8))
        step, zero = g.constant(np.asarray(0.01, np.float32)), g.constant(np.asarray(0, np.int8))
        y = g.op(f"{MS}.QAttention", whole, weight, bias, scale, step, "", point, zero, num_heads=2)
    else:
        y = g.op(f"{MS}.Attention", x, packed, bias, num_heads=2)
    op = fired(g.model(g.op("MatMul", y, g.weight(K, K))), "attention_block")
    assert op.inputs[0] == ("DynamicQuantizeLinear_0" if codes else "x")
