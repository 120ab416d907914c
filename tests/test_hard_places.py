"""Hard places of real exports, an entry a test: each decided how a rule is made."""

from __future__ import annotations

from pathlib import Path

import export_shapes as shapes
import numpy as np
import onnx
import pytest
from building import Building
from export_shapes import HEADS, HIDDEN, INNER, KEY_HEADS, WIDTH
from holding import built, counts, held, missed, nothing
from onnx import TensorProto

import fuse
from fuse.engine.compiler import Optimized
from fuse.ir import Op


def standing(found: Optimized, kind: str) -> list[Op]:
    """Every op of a class that stands, or is a member of one that does."""
    todo, ops = list(found.graph.ops), []
    while todo:
        op = todo.pop()
        ops.append(op)
        todo += op.parts
    return sorted((op for op in ops if op.kind == kind), key=lambda op: op.slot)


def test_merged_qkv_of_which_k_has_no_bias() -> None:
    """Whisper, BEiT, DINOv3: q and v have a bias, k has none; q is scaled after its bias."""
    g = Building(opset=17)
    x = g.input("x", 1, 5, HIDDEN)
    q, k, v = (shapes.linear(g, x, HIDDEN, HIDDEN, bias=bias) for bias in (True, False, True))
    q = g.op("Mul", q, g.constant(WIDTH**-0.5))
    q, k, v = (shapes.split_heads(g, value, HEADS) for value in (q, k, v))
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    rows = shapes.join_heads(g, g.op("MatMul", g.op("Softmax", scores, axis=-1), v))
    found = held(g.model(shapes.linear(g, rows, HIDDEN, HIDDEN, bias=True)))
    op = built(found, "merged_qkv")
    assert op.attrs["biases"] == (1, 0, 1)
    assert counts(found)["matmul_bias"] == 3
    assert counts(found)["attention"] == 1


@pytest.mark.parametrize("act", ["Relu", "HardSwish"])
def test_a_batch_norm_is_folded_before_the_activation_is_taken(act: str) -> None:
    """Conv, BatchNormalization, activation: one conv_act that holds all three."""
    g = Building(opset=17)
    x = g.input("x", 1, 3, 8, 8)
    y = g.op("Conv", x, g.weight(4, 3, 3, 3), g.weight(4), pads=[1, 1, 1, 1])
    positive = g.constant(g.draw.uniform(0.5, 1.5, 4).astype(np.float32))
    y = g.op("BatchNormalization", y, g.weight(4), g.weight(4), g.weight(4), positive, epsilon=1e-3)
    found = held(g.model(g.op(act, y)))
    assert counts(found)["conv_act"] == 1
    kinds = [leaf.kind for leaf in fuse.leaves(built(found, "conv_act"))]
    assert kinds == ["Conv", "BatchNormalization", act]


def test_a_norm_over_the_channels_is_no_layer_norm() -> None:
    """wav2vec2-like: axis 1 is reduced and gamma is [1,C,1]."""
    g = Building(opset=17)
    x = g.input("x", 1, 6, 10)
    centred = g.op("Sub", x, g.op("ReduceMean", x, axes=[1], keepdims=1))
    variance = g.op("ReduceMean", g.op("Pow", centred, g.constant(2.0)), axes=[1], keepdims=1)
    normed = g.op("Div", centred, g.op("Sqrt", g.op("Add", variance, g.constant(1e-5))))
    found = held(g.model(g.op("Add", g.op("Mul", normed, g.weight(1, 6, 1)), g.weight(1, 6, 1))))
    nothing(found, "layer_norm", "rms_norm")


def test_a_length_without_a_division_is_no_norm() -> None:
    """A spectrogram's magnitude: the root of a sum of squares that divides nothing."""
    g = Building(opset=17)
    x = g.input("x", 1, 6, 2)
    total = g.op("ReduceSum", g.op("Mul", x, x), g.ints(-1), keepdims=1)
    found = held(g.model(g.op("Sqrt", total)))
    nothing(found, "l2_norm", "rms_norm")


def test_a_response_norm_times_a_gelu_is_no_gate() -> None:
    """ConvNeXt V2: the gelu is scaled by its own norm over space, weighed and added to itself."""
    g = Building(opset=17)
    x = g.input("x", 1, 4, 4, HIDDEN)
    inner = shapes.gelu(g, shapes.linear(g, x, HIDDEN, INNER, bias=True))
    length = g.op("ReduceL2", inner, axes=[1, 2], keepdims=1)
    mean = g.op("Add", g.op("ReduceMean", length, axes=[-1], keepdims=1), g.constant(1e-6))
    response = g.op("Mul", inner, g.op("Div", length, mean))
    y = g.op("Add", g.op("Add", g.op("Mul", g.weight(INNER), response), g.weight(INNER)), inner)
    found = held(g.model(shapes.linear(g, y, INNER, HIDDEN, bias=True)))
    nothing(found, "gated_act", "swiglu", "geglu", "reglu")


def test_squeeze_and_excite_is_no_gate() -> None:
    """MobileNetV3: relu(conv(x)) times a hard sigmoid of what was pooled from it, one number a channel."""
    g = Building(opset=17)
    x = g.input("x", 1, 4, 6, 6)
    rows = g.op("Relu", g.op("Conv", x, g.weight(4, 4, 3, 3), g.weight(4), pads=[1, 1, 1, 1]))
    pooled = g.op("GlobalAveragePool", rows)
    inner = g.op("Relu", g.op("Conv", pooled, g.weight(2, 4, 1, 1), g.weight(2)))
    gate = g.op("HardSigmoid", g.op("Conv", inner, g.weight(4, 2, 1, 1), g.weight(4)), alpha=1 / 6)
    found = held(g.model(g.op("Mul", rows, gate)))
    nothing(found, "gated_act", "swiglu", "geglu", "reglu", "hard_swish")


def test_norm_weights_of_each_head() -> None:
    """A norm whose weight is [heads, width]: recorded by its weight, over the last axis only."""
    g = Building(opset=17)
    x = g.input("x", 1, 5, HIDDEN)
    q = g.op("Reshape", shapes.linear(g, x, HIDDEN, HIDDEN), g.ints(0, 0, HEADS, WIDTH))
    mean = g.op("ReduceMean", g.op("Pow", q, g.constant(2.0)), axes=[-1], keepdims=1)
    root = g.op("Sqrt", g.op("Add", mean, g.constant(1e-6)))
    weight = g.weight(HEADS, WIDTH)
    found = held(g.model(g.op("Transpose", g.op("Mul", weight, g.op("Div", q, root)), perm=[0, 2, 1, 3])))
    assert built(found, "rms_norm").inputs[:2] == (q, weight)


def test_an_rms_norm_of_what_is_centred_is_a_layer_norm() -> None:
    """RMSNormalization(x - mean), as an optimizer that knows only one of the two writes it."""
    g = Building(opset=23)
    x = g.input("x", 2, 5, HIDDEN)
    centred = g.op("Sub", x, g.op("ReduceMean", x, g.ints(-1), keepdims=1))
    y = g.op("Add", g.op("RMSNormalization", centred, g.weight(HIDDEN), axis=-1), g.weight(HIDDEN))
    found = held(g.model(y))
    assert counts(found)["layer_norm"] == 1
    assert built(found, "layer_norm").inputs[0] == x


def parallel_block(g: Building, x: str) -> list[str]:
    """The five products of one norm that a parallel block (Cohere) has: q, k, v, gate and up."""
    normed = shapes.layer_norm(g, x)
    q, k, v = (
        shapes.split_heads(g, shapes.linear(g, normed, HIDDEN, heads * WIDTH), heads)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )
    k, v = (shapes.repeat_heads(g, value, 5) for value in (k, v))
    rows = shapes.linear(g, shapes.join_heads(g, shapes.attend(g, q, k, v)), HIDDEN, HIDDEN)
    return [rows, shapes.gated_mlp(g, normed)]


def test_products_of_one_activation_are_not_always_three_or_two() -> None:
    """Five of a parallel block are a qkv and a gate with its up; sixteen of one x are as many as they are."""
    g = Building(opset=17)
    x = g.input("x", 1, 5, HIDDEN)
    rows, mlp = parallel_block(g, x)
    found = held(g.model(g.op("Add", g.op("Add", rows, mlp), x)))
    assert [len(op.outputs) for op in standing(found, "merged_qkv")] == [3]
    assert [len(op.outputs) for op in standing(found, "merged_gate_up")] == [2]
    for count in (4, 16, 58):
        g = Building(opset=17)
        x = g.input("x", 1, 3, HIDDEN)
        found = held(
            g.model(*(shapes.linear(g, x, HIDDEN, 4 + n % 3, bias=n % 4 == 0) for n in range(count)))
        )
        assert len(built(found, "merged_products").outputs) == count


def test_qkv_and_the_first_product_of_a_parallel_block() -> None:
    """GPT-J, Phi: four products of one norm, three of which an attention reads."""
    g = Building(opset=17)
    x = g.input("x", 1, 5, HIDDEN)
    normed = shapes.layer_norm(g, x)
    q, k, v = (shapes.split_heads(g, shapes.linear(g, normed, HIDDEN, HIDDEN), HEADS) for _ in range(3))
    rows = shapes.linear(g, shapes.join_heads(g, shapes.attend(g, q, k, v)), HIDDEN, HIDDEN)
    inner = shapes.gelu(g, shapes.linear(g, normed, HIDDEN, INNER, bias=True))
    mlp = shapes.linear(g, inner, INNER, HIDDEN, bias=True)
    found = held(g.model(g.op("Add", g.op("Add", rows, mlp), x)))
    assert [len(op.outputs) for op in standing(found, "merged_qkv")] == [3]
    assert counts(found)["matmul_bias_act"] == 1


def test_two_norms_of_one_sum() -> None:
    """GPT-NeoX: both norms of a layer read the stream; one takes the add, and the sum is written once."""
    g = Building(opset=17)
    x, branch = g.input("x", 1, 5, HIDDEN), g.input("branch", 1, 5, HIDDEN)
    stream = g.op("Add", x, branch)
    one = shapes.linear(g, shapes.layer_norm(g, stream), HIDDEN, HIDDEN, bias=True)
    two = shapes.linear(g, shapes.layer_norm(g, stream), HIDDEN, HIDDEN, bias=True)
    found = held(g.model(g.op("Add", stream, g.op("Add", one, two))))
    assert counts(found)["layer_norm"] == 2
    assert counts(found)["add_norm"] == 1
    (taken,) = standing(found, "add_norm")
    assert taken.outputs[1] == stream
    makers = [op for op in found.graph.ops if stream in op.outputs]
    assert len(makers) == 1


@pytest.mark.parametrize("rows", [6, "rows"])
def test_a_residual_sum_that_passes_a_reshape_before_its_norm(rows: int | str) -> None:
    """Flattened for the products after it, as GPT-2 of TensorFlow: the add is the norm's all the same, and
    the stream keeps its axes."""
    g = Building(opset=17)
    x, y = g.input("x", 2, rows, HIDDEN), g.input("y", 2, rows, HIDDEN)
    stream = g.op("Add", x, shapes.linear(g, y, HIDDEN, HIDDEN, bias=True))
    normed = shapes.layer_norm(g, g.op("Reshape", stream, g.ints(-1, HIDDEN)))
    branch = g.op("Reshape", shapes.linear(g, normed, HIDDEN, HIDDEN, bias=True), g.ints(2, -1, HIDDEN))
    found = held(g.model(g.op("Add", stream, branch)), dims={"rows": 6} if rows == "rows" else None)
    op = built(found, "add_norm")
    assert op.outputs == (normed, stream)
    assert op.attrs["regrouped"] is True


def test_a_reshaped_sum_is_written_on_as_others_read_it() -> None:
    """Windows put back and cut again, a decoder whose stream is rows (OPT): what follows reads the sum
    under the axes of the norm."""
    g = Building(opset=17)
    x, windows = g.input("x", 1, 16, HIDDEN), g.input("windows", 1, 16, HIDDEN)
    squares = g.op("Reshape", g.op("Add", x, windows), g.ints(1, 4, 4, HIDDEN))
    normed = shapes.layer_norm(g, squares)
    found = held(g.model(g.op("Add", squares, g.op("Tanh", normed))))
    op = built(found, "add_norm")
    assert op.outputs == (normed, squares)
    assert op.attrs["regrouped"] is True


def test_a_sum_that_is_read_under_both_axes_stays() -> None:
    g = Building(opset=17)
    stream = g.op("Add", g.input("x", 1, 16, HIDDEN), g.input("windows", 1, 16, HIDDEN))
    squares = g.op("Reshape", stream, g.ints(1, 4, 4, HIDDEN))
    normed = g.op("Add", squares, shapes.layer_norm(g, squares))
    found = held(g.model(g.op("Tanh", stream), normed))
    nothing(found, "add_norm")
    assert built(found, "layer_norm").inputs[0] == squares


def test_a_reshaped_sum_whose_weights_are_of_each_head() -> None:
    """The weight is laid over axes that the sum does not have."""
    g = Building(opset=17)
    x, y = g.input("x", 1, 8, WIDTH), g.input("y", 1, 8, WIDTH)
    cut = g.op("Reshape", g.op("Add", x, y), g.ints(1, 2, HEADS, WIDTH))
    mean = g.op("ReduceMean", g.op("Pow", cut, g.constant(2.0)), axes=[-1], keepdims=1)
    root = g.op("Sqrt", g.op("Add", mean, g.constant(1e-5)))
    found = held(g.model(g.op("Mul", g.weight(HEADS, WIDTH), g.op("Div", cut, root))))
    nothing(found, "add_norm")
    assert missed(found, "add_norm") == {"guard:weights_are_rows"}


def test_a_product_that_begins_the_stream_is_no_branch() -> None:
    """LTX, Chroma: what the first product gives is normed, gated and added to itself."""
    g = Building(opset=17)
    stream = shapes.linear(g, g.input("x", 1, 5, HIDDEN), HIDDEN, HIDDEN, bias=True)
    branch = g.op(
        "Mul", shapes.linear(g, g.op("Tanh", stream), HIDDEN, HIDDEN, bias=True), g.input("gate", 1, 1, 1)
    )
    found = held(g.model(shapes.linear(g, g.op("Add", stream, branch), HIDDEN, HIDDEN, bias=True)))
    assert not found.report.near("matmul_residual"), found.report


def test_a_clip_between_a_half_precision_sum_and_its_norm() -> None:
    """T5 and Whisper in f16: the sum is kept from overflowing, so the norm is of another value."""
    g = Building(np.float16, opset=17)
    x, branch = g.input("x", 1, 5, HIDDEN), g.input("branch", 1, 5, HIDDEN)
    total = g.op("Add", x, branch)
    stream = g.op("Clip", total, g.constant(-64504.0), g.constant(64504.0))
    found = held(g.model(g.op("Add", stream, shapes.rms(g, stream))))
    assert counts(found)["rms_norm"] == 1
    nothing(found, "add_norm")
    assert built(found, "rms_norm").inputs[0] == stream


@pytest.mark.parametrize("source", ["table", "computed", "gathered"])
def test_tables_of_angles_come_from_anywhere(source: str) -> None:
    """A constant or a slice of one, a product of frequencies and positions, rows gathered by position."""
    g = Building(opset=17)
    x = g.input("x", 1, HEADS, 5, WIDTH)
    frequencies = (10.0 ** -np.arange(WIDTH // 2)).astype(np.float32)
    angles = np.concatenate([np.outer(np.arange(9), frequencies)] * 2, -1)
    tables = [g.constant(table.astype(np.float32)) for table in (np.cos(angles), np.sin(angles))]
    if source == "table":
        cos, sin = (g.op("Slice", table, g.ints(0), g.ints(5), g.ints(0)) for table in tables)
    elif source == "gathered":
        positions = g.input("positions", 1, 5, dtype=TensorProto.INT64)
        cos, sin = (g.op("Unsqueeze", g.op("Gather", table, positions), g.ints(1)) for table in tables)
    else:
        positions = g.input("positions", 1, 5, dtype=TensorProto.INT64)
        rows = g.op("Cast", g.op("Unsqueeze", positions, g.ints(1)), to=TensorProto.FLOAT)
        turned = g.op("MatMul", g.constant(frequencies[None, :, None]), rows)
        both = g.op("Transpose", turned, perm=[0, 2, 1])
        both = g.op("Concat", both, both, axis=-1)
        cos, sin = (g.op("Unsqueeze", g.op(kind, both), g.ints(1)) for kind in ("Cos", "Sin"))
    feeds = {"x": np.random.default_rng(0).normal(size=(1, HEADS, 5, WIDTH)).astype(np.float32)}
    feeds |= {} if source == "table" else {"positions": np.array([[4, 1, 0, 3, 2]])}
    found = held(g.model(shapes.rotate(g, x, cos, sin)), feeds=feeds)
    op = built(found, "rope")
    assert op.inputs[0] == x
    assert op.attrs.get("tables_from", "computed") == source


def test_weights_that_are_parts_or_transposes_of_an_initializer(tmp_path: Path) -> None:
    """A Split of one qkv weight, a Slice of another, a shared embedding turned: constants, never copied."""
    g = Building(opset=17)
    ids = g.input("ids", 1, 5, dtype=TensorProto.INT64)
    table = g.weight(400, HIDDEN)
    x = g.op("Gather", table, ids)
    weights = g.op("Split", g.weight(HIDDEN, 3 * HIDDEN), g.ints(HIDDEN, HIDDEN, HIDDEN), outputs=3, axis=1)
    q, k, v = (shapes.split_heads(g, g.op("MatMul", x, weight), HEADS) for weight in weights)
    rows = shapes.join_heads(g, shapes.attend(g, q, k, v))
    cut = g.op("Slice", g.weight(2 * HIDDEN, HIDDEN), g.ints(HIDDEN), g.ints(2 * HIDDEN), g.ints(0))
    rows = g.op("Add", g.op("MatMul", rows, cut), g.weight(HIDDEN))
    logits = g.op("MatMul", rows, g.op("Transpose", table, perm=[1, 0]))
    model = g.model(logits)
    feeds = {"ids": np.array([[1, 399, 7, 0, 20]])}
    found = held(model, feeds=feeds)
    assert counts(found)["merged_qkv"] == 1
    assert counts(found)["matmul_bias"] == 1
    path = tmp_path / "saved.onnx"
    fuse.save(found, path)
    held_before = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    held_after = sum(len(tensor.raw_data) for tensor in onnx.load(path).graph.initializer)
    assert held_after <= held_before


def test_int8_weights_by_cast_and_scale() -> None:
    """Weight-only int8: Mul(Cast(codes), scale), one scale an output."""
    g = Building(opset=17)
    x = g.input("x", 1, 5, HIDDEN)
    codes = g.constant(g.draw.integers(-127, 128, (HIDDEN, 8)).astype(np.int8), "codes")
    scales = g.constant(g.draw.uniform(0.01, 0.02, (1, 8)).astype(np.float32), "scales")
    decoded = g.op("Mul", g.op("Cast", codes, to=TensorProto.FLOAT), scales)
    found = held(g.model(g.op("MatMul", x, decoded)))
    op = built(found, "quantized_matmul")
    assert op.inputs[:3] == (x, "codes", "scales")
    assert (op.attrs["bits"], op.attrs["granularity"]) == (8, "output")


def test_norm_weights_behind_a_dequantize() -> None:
    """A file whose quantizer took the norm's weight as well: known when it loads, so the norm is whole."""
    g = Building(opset=17)
    x = g.input("x", 1, 5, HIDDEN)
    codes = g.constant(g.draw.integers(1, 120, HIDDEN).astype(np.int8))
    weight = g.op("DequantizeLinear", codes, g.constant(0.01), g.constant(np.array(0, np.int8)))
    mean = g.op("ReduceMean", g.op("Pow", x, g.constant(2.0)), axes=[-1], keepdims=1)
    root = g.op("Sqrt", g.op("Add", mean, g.constant(1e-5)))
    found = held(g.model(g.op("Mul", weight, g.op("Div", x, root))))
    assert built(found, "rms_norm").inputs[1]


def test_a_whole_decoder_inside_an_if() -> None:
    """Merged decoders: both branches hold a decoder, and rules run inside them."""

    def body(name: str, seed: int) -> onnx.GraphProto:
        inner = Building(opset=17, seed=seed)
        y = shapes.decoder_layer(inner, "x", 5)
        made = inner.model(y).graph
        for node in made.node:
            for names in (node.input, node.output):
                names[:] = [n if n in ("x", "") else f"{name}_{n}" for n in names]
        for tensor in made.initializer:
            tensor.name = f"{name}_{tensor.name}"
        made.output[0].name = f"{name}_{made.output[0].name}"
        made.name = name
        return made

    g = Building(opset=17)
    g.input("x", 1, 5, HIDDEN)
    first = g.input("first", dtype=TensorProto.BOOL)
    y = g.op("If", first, then_branch=body("with_past", 0), else_branch=body("without_past", 1))
    model = g.model(y)
    x_fed = np.random.default_rng(0).normal(size=(1, 5, HIDDEN)).astype(np.float32)
    for flag in (True, False):
        found = held(model, feeds={"x": x_fed, "first": np.array(flag)})
    fired = counts(found)
    assert [fired[name] for name in ("rms_norm", "rope", "attention", "swiglu", "add_norm")] == [
        4,
        4,
        2,
        2,
        2,
    ]
    graphs = {record.graph for record in found.records if record.outcome == "fired"}
    assert len(graphs) == 2


def test_a_sandwich_answers_for_add_norm_too() -> None:
    """Gemma 2: each branch is normed before it joins the stream."""
    g = Building(opset=17)
    x, branch = g.input("x", 1, 5, HIDDEN), g.input("branch", 1, 5, HIDDEN)
    stream = g.op("Add", x, shapes.rms(g, branch))
    found = held(g.model(g.op("Add", stream, shapes.gated_mlp(g, shapes.rms(g, stream)))))
    (sandwich,) = found.report.fired("norm_add_norm")
    (answer,) = found.report.fired("add_norm")
    assert answer.ops <= sandwich.ops or set(answer.ops) <= set(sandwich.ops)
    assert "add_norm" in sandwich.realizes
