"""Results written in codes, quantized products that run as one, the choice of the next token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from building import ELEMENTS, Building, codes, drawn, each_interior_as_an_output, fired, optimized
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto

import chips
import fuse
import reference
from fuse.engine.compiler import Optimized

K, N = 8, 6
BLOCKS = ("attention_block", "mlp_block", "transformer_layer", "elementwise_region")


def held(model: ModelProto, *rules: str) -> Optimized:
    """Compiled with blocks and regions held, which would take in what stands late."""
    return fuse.optimize(fuse.load(model), shim=chips.load("any"), held=[*BLOCKS, *rules])


def made(model: ModelProto, rule: str) -> Any:
    """The one op that a rule built; values are the same."""
    found = held(model)
    (row,) = [one for one in found.records if one.outcome == "fired" and one.rule == rule]
    assert reference.check(found.before, found.graph).bit_equal
    found.graph.verify()
    assert fuse.unfuse(found.graph).ops == found.before.ops
    return row.op


# ---- fused_quant ---------------------------------------------------------------------------------
def quantize(g: Building, value: str, dynamic: bool) -> Any:
    if dynamic:
        return g.op("DynamicQuantizeLinear", value, outputs=3)[0]
    return g.op("QuantizeLinear", value, g.constant(0.1), g.constant(np.array(3, np.uint8)))


def produced(
    producer: str, dynamic: bool = True, read_on: bool = False, seed: int = 0, dtype: Any = np.float32
) -> ModelProto:
    g = Building(dtype, opset=23, seed=seed)
    x = g.input("x", 2, 3, K)
    if producer == "rms_norm":
        value = g.op("RMSNormalization", x, g.weight(K), axis=-1, epsilon=1e-5)
    elif producer == "layer_norm":
        value = g.op("LayerNormalization", x, g.weight(K), g.weight(K), axis=-1)
    elif producer == "add_norm":
        total = g.op("Add", x, g.input("r", 2, 3, K))
        value = g.op("LayerNormalization", total, g.weight(K), g.weight(K), axis=-1)
    elif producer == "swiglu":
        gate, up = (g.op("MatMul", x, g.weight(K, N)) for _ in range(2))
        value = g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up)
    else:
        value = g.op(producer, x)
    result = quantize(g, value, dynamic)
    outputs = [result] + ([g.op("Neg", value)] if read_on else [])
    return g.model(*outputs, elements=(TensorProto.UINT8, *[ELEMENTS[dtype]] * read_on))


PRODUCERS = ("rms_norm", "layer_norm", "add_norm", "swiglu", "Gelu", "Relu")


@drawn(st.integers(0, 99), st.sampled_from(PRODUCERS), st.booleans(), st.booleans())
def test_a_producer_takes_the_quantize_of_its_result(
    seed: int, producer: str, dynamic: bool, read_on: bool
) -> None:
    op = made(produced(producer, dynamic, read_on, seed), "fused_quant")
    assert [part.kind for part in op.parts][-1] == ("DynamicQuantizeLinear" if dynamic else "QuantizeLinear")
    assert len(op.parts) == 2
    written = [value for value in op.outputs if value]
    assert len(written) == 1 + read_on


@drawn(st.integers(0, 99), st.sampled_from(PRODUCERS))
def test_a_producer_in_f16(seed: int, producer: str) -> None:
    made(produced(producer, dynamic=False, seed=seed, dtype=np.float16), "fused_quant")


def test_what_is_no_producer_keeps_its_result() -> None:
    for kind in ("Neg", "Softmax"):
        assert "fused_quant" not in held(produced(kind)).fired


def test_a_quantized_result_that_is_an_output_too() -> None:
    assert each_interior_as_an_output(produced("rms_norm"), "fused_quant") == 3


# ---- quant_shared --------------------------------------------------------------------------------
def shared(
    products: int, dynamic: bool = True, normed: bool = False, codes_out: bool = False, seed: int = 0
) -> ModelProto:
    g = Building(opset=23, seed=seed)
    x = g.input("x", 2, 3, K)
    if normed:
        x = g.op("LayerNormalization", x, g.weight(K), g.weight(K), axis=-1)
    results = []
    if dynamic:
        rounded, scale, zero = g.op("DynamicQuantizeLinear", x, outputs=3)
    else:
        scale, zero = g.constant(0.1), g.constant(np.array(3, np.uint8))
        rounded = g.op("QuantizeLinear", x, scale, zero)
        decoded = g.op("DequantizeLinear", rounded, scale, zero)
    for _ in range(products):
        weight = g.constant(g.draw.integers(-128, 128, (K, N)).astype(np.int8))
        own = g.constant(g.draw.uniform(0.01, 0.1, ()).astype(np.float32))
        if dynamic:
            y = g.op("Cast", g.op("MatMulInteger", rounded, weight, zero), to=1)
            results.append(g.op("Mul", y, g.op("Mul", scale, own)))
        else:
            results.append(g.op("MatMul", decoded, g.op("DequantizeLinear", weight, own)))
    elements = (TensorProto.FLOAT,) * products
    if codes_out:
        return g.model(*results, rounded, elements=(*elements, TensorProto.UINT8))
    return g.model(*results, elements=elements)


@drawn(st.integers(0, 99), st.integers(2, 4), st.booleans(), st.booleans(), st.booleans())
def test_products_of_one_quantized_activation(
    seed: int, products: int, dynamic: bool, normed: bool, codes_out: bool
) -> None:
    op = made(shared(products, dynamic, normed, codes_out, seed), "quant_shared")
    kinds = [part.kind for part in op.parts]
    assert kinds.count("quantized_matmul") == products
    assert ("DequantizeLinear" in kinds) == (not dynamic)
    taken = "DynamicQuantizeLinear" in kinds or "QuantizeLinear" in kinds
    assert taken == (not normed and not codes_out)
    assert len(op.outputs) == products


def test_one_product_has_nothing_to_share() -> None:
    assert "quant_shared" not in held(shared(1)).fired


# ---- the gate of quantized products --------------------------------------------------------------
def gate(act: str = "silu", shared_x: bool = True, merged_read: bool = False, seed: int = 0) -> ModelProto:
    g = Building(opset=21, seed=seed)
    x = g.input("x", 2, 3, 32)
    other = x if shared_x else g.input("z", 2, 3, 32)

    def product(value: str) -> str:
        blocks = g.constant(g.draw.integers(0, 256, (N, 2, 8)).astype(np.uint8))
        scales = g.constant(g.draw.uniform(0.01, 0.1, N * 2).astype(np.float32))
        kind = "com.microsoft.MatMulNBits"
        return str(g.op(kind, value, blocks, scales, K=32, N=N, bits=4, block_size=16))

    left, right = product(x), product(other)
    first = g.op("Mul", left, g.op("Sigmoid", left)) if act == "silu" else g.op("Relu", left)
    result = g.op("Mul", first, right)
    return g.model(result, *([g.op("Neg", right)] if merged_read else []))


@drawn(st.integers(0, 99), st.sampled_from(["silu", "relu"]))
def test_gate_and_up_of_quantized_weights_run_as_one(seed: int, act: str) -> None:
    op = made(gate(act, seed=seed), "late_merged_gate_up")
    assert op.kind == "quantized_gate_up"
    whole = made(gate(act, seed=seed), "late_gated_act")
    assert [part.kind for part in whole.parts] == [
        "quantized_gate_up",
        "swiglu" if act == "silu" else "reglu",
    ]


def test_it_answers_for_the_merged_products() -> None:
    report = held(gate()).report
    assert len(report.fired("merged_gate_up")) == 1
    assert len(report.fired("swiglu")) == 1


def test_products_of_two_activations_stay_two() -> None:
    assert not {"late_merged_gate_up", "late_gated_act"} & set(held(gate(shared_x=False)).fired)


def test_a_product_that_others_read_stays_written() -> None:
    found = held(gate(merged_read=True))
    assert "late_merged_gate_up" in found.fired
    assert "late_gated_act" not in found.fired


def test_the_gate_where_the_merge_is_held() -> None:
    found = held(gate(), "late_merged_gate_up")
    assert "late_gated_act" not in found.fired
    assert len(found.report.held("late_merged_gate_up")) == 1


# ---- advance -------------------------------------------------------------------------------------
def greedy(
    spelling: str = "gather",
    row: int = -1,
    keepdims: int = 0,
    last: int = 0,
    axis: int = 1,
    seed: int = 0,
    dtype: Any = np.float32,
) -> ModelProto:
    """`logits[:, -1].argmax(-1)`, as exporters write it."""
    g = Building(dtype, opset=21, seed=seed)
    logits = g.op("MatMul", g.input("x", 2, 5, K), g.weight(K, 12))
    if spelling == "gather":
        value = g.op("Gather", logits, g.constant(np.array(row, np.int64)), axis=axis)
    else:
        ends = np.iinfo(np.int64).max if row == -1 else row + 1
        value = g.op("Slice", logits, g.ints(row), g.ints(ends), g.ints(axis), g.ints(1))
        if spelling == "slice, squeeze":
            value = g.op("Squeeze", value, g.ints(axis))
    token = g.op("ArgMax", value, axis=-1, keepdims=keepdims, select_last_index=last)
    return g.model(token, logits, elements=(TensorProto.INT64, ELEMENTS[dtype]))


SPELLINGS = ("gather", "slice", "slice, squeeze")


@drawn(
    st.integers(0, 99),
    st.sampled_from([np.float32, np.float16]),
    st.sampled_from(SPELLINGS),
    st.sampled_from([-1, 4]),
    st.booleans(),
    st.booleans(),
)
def test_the_choice_of_the_next_token(
    seed: int, dtype: Any, spelling: str, row: int, keep: bool, last: bool
) -> None:
    op = fired(greedy(spelling, row, int(keep), int(last), seed=seed, dtype=dtype), "advance", seed)
    assert op.attrs == ({"last": 1} if last else {})


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_another_row_is_no_step(spelling: str) -> None:
    assert codes(greedy(spelling, row=1), "advance") == {"operand"}


def test_rows_of_another_axis() -> None:
    assert codes(greedy(axis=0), "advance") == {"operand"}


def test_it_is_always_the_last_step() -> None:
    for name in chips.names():
        assert fuse.steps(chips.load(name))[-1].name == "advance"


def test_of_equal_logits_the_first_or_the_last() -> None:
    for last, want in ((0, 1), (1, 3)):
        found = optimized(greedy(last=last))
        logits = np.zeros((2, 5, 12), np.float32)
        logits[:, -1, [1, 3]] = 7.0
        (op,) = [op for op in found.graph.ops if op.kind == "advance"]
        from reference.definitions import define

        (token,) = define(op, [logits], (found.graph.type(op.outputs[0]),))
        assert token.tolist() == [want, want]


# ---- their place in the table --------------------------------------------------------------------
def test_order_of_the_close() -> None:
    names = list(fuse.rule_names())
    assert names[names.index("fused_quant") :] == [
        "fused_quant", "quant_shared", "late_merged_gate_up", "late_gated_act", "advance",
    ]  # fmt: skip


# ---- values inside that are read outside ---------------------------------------------------------
@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (lambda: produced("swiglu", dynamic=False), "fused_quant"),
        (lambda: shared(2), "quant_shared"),
        (lambda: shared(2, dynamic=False), "quant_shared"),
        (lambda: gate(), "quantized_gate"),
        (lambda: greedy("slice, squeeze"), "advance"),
    ],
)
def test_every_value_inside_as_an_output_in_turn(model: Any, kind: str) -> None:
    assert each_interior_as_an_output(model(), kind) > 0
