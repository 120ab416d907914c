"""Public bug reports of other optimizers, each by a small model of its own: what a right one does.

Each test has the name of its report's case; its docstring says what goes wrong elsewhere.
"""

from __future__ import annotations

import time
from typing import Any

import lowering_models
import numpy as np
import onnx
import pytest
from building import Building
from holding import built, counts, held, missed, nothing
from onnx import ModelProto, TensorProto, helper, numpy_helper

import chips
import fuse
import reference
from fuse.types import FuseError


def layer_norm_of(
    g: Building, x: str, gamma: str, beta: str, keepdims: int = 1, first: bool = True
) -> tuple[str, str]:
    """A layer norm from primitives: the scaled value and the result. first: gamma and beta come second."""
    axes: dict[str, Any] = {"axes": [-1], "keepdims": keepdims}
    centred = g.op("Sub", x, g.op("ReduceMean", x, **axes))
    square = g.op("Pow", centred, g.constant(np.float32(2), f"two_{len(g.nodes)}"))
    eps = g.constant(np.float32(1e-5), f"eps_{len(g.nodes)}")
    root = g.op("Sqrt", g.op("Add", g.op("ReduceMean", square, **axes), eps))
    normed = g.op("Div", centred, root)
    scaled = g.op("Mul", *((normed, gamma) if first else (gamma, normed)))
    return scaled, g.op("Add", *((scaled, beta) if first else (beta, scaled)))


def test_ln_gamma_not_last_axis() -> None:
    """Gamma scales rows; its length is also the width.

    microsoft/onnxruntime#25855, apple/coremltools#2807
    """
    g = Building(opset=17)
    x = g.input("x", 3, 6, 6)
    scaled, y = layer_norm_of(g, x, g.weight(6, 1), g.weight(6))
    found = held(g.model(y))
    for row in [
        *found.report.fired("layer_norm"),
        *found.report.fired("rms_norm"),
        *found.report.fired("add_norm"),
    ]:
        assert not {scaled, y} & set(row.ops)
    assert missed(found, "layer_norm") == {"guard:weight_spans_last_axis"}


def test_ln_keepdims_zero() -> None:
    """Of a square x the mean of row j is taken off column j.

    microsoft/onnxruntime#30513, #31144
    """
    g = Building(opset=13)
    _, y = layer_norm_of(g, g.input("x", 5, 5), g.weight(5), g.weight(5), keepdims=0)
    found = held(g.model(y))
    nothing(found, "layer_norm", "rms_norm")
    assert missed(found, "layer_norm") == {"attribute"}


def test_quick_gelu_inner_output() -> None:
    """The sigmoid inside is an output of the graph.

    microsoft/onnxruntime#15109, #4110
    """
    g = Building(opset=17)
    x = g.input("x", 3, 4)
    inner = g.op("Sigmoid", g.op("Mul", x, g.constant(1.702)))
    found = held(g.model(inner, g.op("Mul", x, inner)))
    nothing(found, "quick_gelu", "silu")
    (row,) = found.report.near("quick_gelu")
    assert row.reasons[0].code == "graph_output"
    assert getattr(row.reasons[0], "at", "") == inner


def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    """The body of a branch; the last node makes its only result."""
    info = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    return helper.make_graph(list(nodes), name, [], [info])


def rms_of(g: Building, x: str, weight: str, square: str = "") -> tuple[str, str]:
    """An RMS norm from primitives: the root and the result."""
    square = square or g.op("Pow", x, g.constant(2.0))
    mean = g.op("ReduceMean", square, axes=[-1], keepdims=1)
    root = g.op("Sqrt", g.op("Add", mean, g.constant(1e-5)))
    return root, g.op("Mul", g.op("Div", x, root), weight)


def test_norm_inner_read_by_if() -> None:
    """Both branches of an If read the root.

    microsoft/onnxruntime#8825, #7701, robertknight/rten#708
    """
    g = Building(opset=17)
    x, flag = g.input("x", 2, 6), g.input("flag", dtype=TensorProto.BOOL)
    root, y = rms_of(g, x, g.weight(6))
    read = g.op(
        "If",
        flag,
        then_branch=branch("then_body", helper.make_node("Neg", [root], ["minus"])),
        else_branch=branch("else_body", helper.make_node("Identity", [root], ["as_it_is"])),
    )
    model = g.model(y, read)
    for flagged in (True, False):
        feeds = {"x": np.arange(12, dtype=np.float32).reshape(2, 6), "flag": np.array(flagged)}
        found = held(model, feeds=feeds)
    nothing(found, "rms_norm")
    (row,) = found.report.near("rms_norm")
    assert row.reasons[0].code == "captured"
    assert getattr(row.reasons[0], "at", "") == root


def test_matmul_bias_rank5() -> None:
    """The constant has rank 5, and so has the sum.

    inisis/OnnxSlim#323, #210
    """
    g = Building(opset=17)
    product = g.op("MatMul", g.input("x", 2, 6), g.weight(6, 4))
    found = held(g.model(g.op("Add", product, g.weight(1, 1, 1, 2, 4))))
    nothing(found, "matmul_bias", "matmul_bias_act")
    assert missed(found, "matmul_bias") == {"operand"}


def test_sdpa_custom_scale() -> None:
    """The scores are divided by less than one; the form carries the scale.

    pytorch/pytorch#174049, #174361
    """
    g = Building(opset=17)
    q, k, v = (g.input(name, 2, 2, 5, 4) for name in "qkv")
    mask = g.input("mask", 1, 1, 5, 5)
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.op("Add", g.op("Div", scores, g.constant(0.5)), mask)
    found = held(g.model(g.op("MatMul", g.op("Softmax", scores, axis=-1), v)))
    assert built(found, "attention").attrs["scale"] == pytest.approx(2.0)


def test_softmax12_flattens() -> None:
    """In opset 12 a softmax without axis is over all but the batch.

    apache/tvm#19420, microsoft/onnxruntime#17833
    """
    g = Building(opset=12)
    q, k, v = (g.input(name, 2, 2, 5, 4) for name in "qkv")
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    weights = g.op("Softmax", g.op("Mul", scores, g.constant(0.5)))
    found = held(g.model(g.op("MatMul", weights, v)))
    nothing(found, "attention", "attention_block")
    (row,) = found.report.near("attention")
    assert row.reasons[0].code == "attribute"
    assert getattr(row.reasons[0], "at", "") == weights


def test_overridable_exponent() -> None:
    """An initializer that is an input too is only a default.

    microsoft/onnxscript#1944, onnx/optimizer#83
    """
    g = Building(opset=17)
    x = g.input("x", 2, 6)
    exponent = g.overridable(g.constant(2.0, "exponent"))
    _, y = rms_of(g, x, g.weight(6), square=g.op("Pow", x, exponent))
    model = g.model(y)
    x_fed = np.linspace(-2, 2, 12, dtype=np.float32).reshape(2, 6)
    found = held(model, feeds={"x": x_fed, "exponent": np.array(4, np.float32)})
    nothing(found, "rms_norm")
    assert missed(found, "rms_norm") == {"operand"}
    saved = fuse.to_proto(found)
    assert "exponent" in {value.name for value in saved.graph.input}
    assert {t.name: float(numpy_helper.to_array(t)) for t in saved.graph.initializer if not t.dims}[
        "exponent"
    ] == 2
    by_default = lowering_models.run(saved, {"x": x_fed})
    lowering_models.same(by_default, lowering_models.run(model, {"x": x_fed}))


def test_gated_alpha_not_swiglu() -> None:
    """A gate of sigmoid(1.702 x), and up has 1 added.

    onnxruntime/mobius#326, microsoft/onnxruntime-genai#2062
    """
    g = Building(opset=17)
    gate, up = g.input("gate", 3, 4), g.input("up", 3, 4)
    opened = g.op("Mul", gate, g.op("Sigmoid", g.op("Mul", gate, g.constant(1.702))))
    found = held(g.model(g.op("Mul", opened, g.op("Add", up, g.constant(1.0)))))
    nothing(found, "silu", "swiglu")
    assert built(found, "quick_gelu").attrs["alpha"] == pytest.approx(1.702)


def test_rope_interleaved() -> None:
    """Even and odd lanes are the pairs, not halves.

    microsoft/onnxruntime#29261, microsoft/onnxscript#2450
    """
    g = Building(opset=17)
    x = g.input("x", 1, 3, 5, 4)
    end, axis, step = g.ints(2**62), g.ints(3), g.ints(2)
    even, odd = (g.op("Slice", x, g.ints(start), end, axis, step) for start in (0, 1))
    pairs = [g.op("Unsqueeze", lanes, g.ints(4)) for lanes in (g.op("Neg", odd), even)]
    turned = g.op("Reshape", g.op("Concat", *pairs, axis=4), g.ints(1, 3, 5, 4))
    angles = np.repeat(np.outer(np.arange(5), [1.0, 0.1]), 2, axis=1)[None, None]
    cos, sin = (g.constant(table.astype(np.float32)) for table in (np.cos(angles), np.sin(angles)))
    found = held(g.model(g.op("Add", g.op("Mul", x, cos), g.op("Mul", turned, sin))))
    assert built(found, "rope").attrs["form"] == "interleaved"
    nothing(found, "qk_norm_rope")


def test_int4_block_axis0() -> None:
    """4-bit codes in blocks along axis 0, each with a zero point.

    onnxsim/onnxsim#749, microsoft/onnxruntime#31678
    """
    g = Building(opset=21)
    draw = np.random.default_rng(3)
    codes = helper.make_tensor("codes", TensorProto.INT4, [32, 6], draw.integers(-8, 8, 192).tolist())
    zeros = helper.make_tensor("zeros", TensorProto.INT4, [2, 6], draw.integers(-8, 8, 12).tolist())
    scales = g.constant(draw.uniform(0.1, 0.2, (2, 6)).astype(np.float32))
    decoded = g.op(
        "DequantizeLinear",
        g.constant(codes, "codes"),
        scales,
        g.constant(zeros, "zeros"),
        axis=0,
        block_size=16,
    )
    found = held(g.model(g.op("MatMul", g.input("x", 3, 32), decoded)))
    op = built(found, "quantized_matmul")
    assert (op.attrs["bits"], op.attrs["granularity"], op.attrs["block_size"]) == (4, "block", 16)
    assert "zeros" in op.inputs


def test_kv_concat_is_output() -> None:
    """The joined rows go to the caller as well.

    microsoft/onnxscript#2634, #2632
    """
    g = Building(opset=17)
    pasts = [g.input(name, 1, 2, "past", 4) for name in ("past_k", "past_v")]
    q, *new = (g.input(name, 1, 2, 1, 4) for name in ("q", "k_new", "v_new"))
    k, v = (g.op("Concat", past, rows, axis=2) for past, rows in zip(pasts, new, strict=True))
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    weights = g.op("Softmax", g.op("Mul", scores, g.constant(0.5)), axis=-1)
    found = held(g.model(k, v, g.op("MatMul", weights, v)), dims={"past": 3})
    assert counts(found)["kv_append"] == 2
    assert counts(found)["attention"] == 1
    assert found.graph.outputs[:2] == (k, v)


def test_ln_fp16_casts() -> None:
    """Half precision in and out, the norm in float between two casts.

    microsoft/onnxruntime#15021, #15075, #12975
    """
    g = Building(opset=17)
    x = g.op("Cast", g.input("x", 3, 8, dtype=TensorProto.FLOAT16), to=TensorProto.FLOAT)
    _, y = layer_norm_of(g, x, g.weight(8), g.weight(8))
    model = g.model(g.op("Cast", y, to=TensorProto.FLOAT16), elements=(TensorProto.FLOAT16,))
    large = np.random.default_rng(1).uniform(-400, 400, (3, 8)).astype(np.float16)
    found = held(model, feeds={"x": large})
    op = built(found, "layer_norm")
    assert op.attrs["compute"] == "f32"
    (value,) = reference.eval(found.graph, {"x": large}, fused="definition").values()
    assert value.dtype == np.float16
    assert np.isfinite(value).all()


def test_rms_reciprocal_axes_input() -> None:
    """Axes as an input, counted from the front; 1 / root; the weight first.

    robertknight/rten#788, microsoft/onnxruntime#14537
    """
    g = Building(opset=18)
    x = g.input("x", 2, 3, 4)
    mean = g.op("ReduceMean", g.op("Pow", x, g.constant(2.0)), g.ints(2), keepdims=1)
    root = g.op("Sqrt", g.op("Add", mean, g.constant(1e-6)))
    normed = g.op("Mul", x, g.op("Reciprocal", root))
    found = held(g.model(g.op("Mul", g.weight(4), normed)))
    assert counts(found)["rms_norm"] == 1
    assert built(found, "rms_norm").attrs["eps"] == pytest.approx(1e-6)


def erf_of(g: Building, x: str) -> str:
    return g.op("Erf", g.op("Div", x, g.constant(2**0.5)))


def test_gelu_erf_distributed() -> None:
    """The half is multiplied into the sum.

    onnxruntime/onnxruntime-qnn#236, microsoft/onnxruntime#3148
    """
    g = Building(opset=17)
    x = g.input("x", 2, 5)
    erf = g.op("Erf", g.op("Mul", x, g.constant(0.5**0.5)))
    half = g.op("Add", g.op("Mul", erf, g.constant(0.5)), g.constant(0.5))
    found = held(g.model(g.op("Mul", half, x)))
    assert counts(found)["gelu"] == 1


def test_add_norm_broadcast_skip() -> None:
    """The residual is a table of positions that broadcasts over the batch.

    microsoft/onnxruntime#27488, #27489
    """
    g = Building(opset=17)
    x, table = g.input("x", 3, 4, 6), g.weight(1, 4, 6)
    total = g.op("Add", table, x)
    y = g.op("LayerNormalization", total, g.weight(6), g.weight(6), axis=-1)
    op = built(held(g.model(y)), "add_norm")
    assert op.inputs[:2] == (x, table)


def test_swiglu_gate_up() -> None:
    """The gate is read twice; two products of one x.

    onnxsim/onnxsim#1147, robertknight/rten#246
    """
    g = Building(opset=17)
    x = g.input("x", 3, 8)
    gate, up = (g.op("MatMul", x, g.weight(8, 10)) for _ in range(2))
    opened = g.op("Mul", gate, g.op("Sigmoid", gate))
    found = held(g.model(g.op("MatMul", g.op("Mul", opened, up), g.weight(10, 8))))
    assert counts(found)["swiglu"] == counts(found)["merged_gate_up"] == 1


def test_ln_rank1() -> None:
    """X has the rank of gamma and beta, and they come first.

    microsoft/onnxruntime#31147
    """
    g = Building(opset=17)
    x, gamma, beta = g.input("x", 6), g.weight(6), g.weight(6)
    _, y = layer_norm_of(g, x, gamma, beta, first=False)
    assert built(held(g.model(y)), "layer_norm").inputs[:3] == (x, gamma, beta)


def test_deep_chain() -> None:
    """Thousands of elementwise nodes in a row.

    onnx/onnx#6423, PINTO0309/onnx2tf#130
    """
    g = Building(opset=17)
    value = g.input("x", 4)
    one = g.constant(1.0)
    for step in range(3000):
        value = g.op("Neg", value) if step % 2 else g.op("Add", value, one)
    model = g.model(value)
    started = time.process_time()
    found = fuse.optimize(fuse.load(model), shim=chips.load("any"))
    assert time.process_time() - started < 20
    fed = {"x": np.arange(4, dtype=np.float32)}
    assert set(counts(found)) <= {"elementwise_region"}
    lowering_models.same(reference.eval(found.graph, fed), lowering_models.run(model, fed))
    lowering_models.same(lowering_models.run(fuse.to_proto(found), fed), lowering_models.run(model, fed))


def test_local_function() -> None:
    """A norm that is a function of the model, called twice.

    onnxsim/onnxsim#320, onnx/optimizer#136
    """
    inner = Building(opset=17)
    inner.op("Constant", value=numpy_helper.from_array(np.float32(2)))
    inner.op("Constant", value=numpy_helper.from_array(np.float32(1e-5)))
    mean = inner.op("ReduceMean", inner.op("Pow", "v", "Constant_0"), axes=[-1], keepdims=1)
    root = inner.op("Sqrt", inner.op("Add", mean, "Constant_1"))
    result = inner.op("Mul", inner.op("Div", "v", root), "w")
    opsets = [helper.make_opsetid("", 17)]
    body = helper.make_function("of.tests", "Norm", ["v", "w"], [result], inner.nodes, opsets)
    g = Building(opset=17)
    first = g.op("of.tests.Norm", g.input("x", 2, 6), g.weight(6))
    second = g.op("of.tests.Norm", g.op("MatMul", first, g.weight(6, 6)), g.weight(6))
    model = g.model(second)
    model.functions.append(body)
    model.opset_import.append(helper.make_opsetid("of.tests", 1))
    assert counts(held(model))["rms_norm"] == 2


def test_custom_domain_op() -> None:
    """An unknown operator stays, and is a wall; the rest is optimized.

    onnx/optimizer#61, microsoft/onnxruntime#12074
    """
    g = Building(opset=17)
    x = g.input("x", 2, 6)
    gelu = g.op("Mul", g.op("Mul", x, g.op("Add", erf_of(g, x), g.constant(1.0))), g.constant(0.5))
    unknown = g.op("maker.own.Puzzle", gelu, level=3)
    y = g.op("Add", g.op("MatMul", unknown, g.weight(6, 4)), g.weight(4))
    model = g.model(y)
    model.opset_import.append(helper.make_opsetid("maker.own", 1))
    found = fuse.optimize(fuse.load(model), shim=chips.load("any"))
    found.graph.verify()
    assert counts(found)["gelu"] == 1
    assert built(found, "matmul_bias").inputs[0] == unknown
    (node,) = [node for node in fuse.to_proto(found).graph.node if node.domain == "maker.own"]
    assert (node.op_type, list(node.input), list(node.output)) == ("Puzzle", [gelu], [unknown])
    assert helper.get_attribute_value(node.attribute[0]) == 3
    with pytest.raises(FuseError, match=r"maker\.own"):
        reference.eval(found.graph, {"x": np.ones((2, 6), np.float32)})


def test_duplicate_initializer() -> None:
    """Two initializers of one name are an error that says so.

    onnx/optimizer#174, onnx/onnx#2401
    """
    g = Building(opset=17)
    model = g.model(g.op("MatMul", g.input("x", 2, 4), g.constant(np.eye(4, dtype=np.float32), "twice")))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4), np.float32), "twice"))
    with pytest.raises(FuseError, match="twice"):
        fuse.load(model)


def test_unsorted_nodes() -> None:
    """Nodes in reverse; the lift sorts, then all is as usual.

    onnx/tensorflow-onnx#716, onnxsim/onnxsim#352
    """
    g = Building(opset=17)
    x = g.input("x", 2, 5)
    total = g.op("Add", erf_of(g, x), g.constant(1.0))
    y = g.op("Mul", g.op("Mul", x, total), g.constant(0.5))
    g.nodes.reverse()
    assert counts(held(g.model(y)))["gelu"] == 1


def test_name_collision_two_norms() -> None:
    """The names a fuser would make up are taken already.

    microsoft/onnxscript#2680, microsoft/onnxruntime#7865
    """
    g = Building(opset=17)
    x, other = g.input("x", 2, 6), g.input("layer_norm", 2, 6)
    taken = ("layer_norm_0", "layer_norm_1", "fused_0", "x_fused")
    weights = [g.constant(g.draw.normal(size=6).astype(np.float32), name) for name in taken]
    _, first = layer_norm_of(g, x, *weights[:2])
    _, second = layer_norm_of(g, x, *weights[2:])
    model = _named(g.model(g.op("Add", g.op("Mul", first, second), other)), "fuse_layer_norm")
    found = held(model)
    assert counts(found)["layer_norm"] == 2
    assert len({op.inputs[1] for op in found.graph.ops if op.kind == "layer_norm"}) == 2


def _named(model: ModelProto, name: str) -> ModelProto:
    """Every node with a name that is numbered as a fuser might."""
    for number, node in enumerate(model.graph.node):
        node.name = f"{name}_{number}"
    return model
