"""Public bug reports of other optimizers about products, convolutions and quantized weights.

Each is a small model of its own, and what a right one does; a docstring says what goes wrong elsewhere, and
where it was reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from building import Building
from holding import built, counts, held, missed, nothing
from onnx import TensorProto, helper


def test_matmul_bias_rank5() -> None:
    """The constant has rank 5, and so has the sum.

    inisis/OnnxSlim#323, #210
    """
    g = Building(opset=17)
    product = g.op("MatMul", g.input("x", 2, 6), g.weight(6, 4))
    found = held(g.model(g.op("Add", product, g.weight(1, 1, 1, 2, 4))))
    nothing(found, "matmul_bias", "matmul_bias_act")
    assert missed(found, "matmul_bias") == {"operand"}


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


GEMM_ADDS = {"column": (4, 1), "number": (1,), "matrix": (4, 4)}


@pytest.mark.parametrize("added", GEMM_ADDS)
@pytest.mark.parametrize("place", ["activation", "residual", "merged"])
def test_a_gemm_that_adds_no_row(added: str, place: str) -> None:
    """As many rows as columns: a column read as a row puts the numbers into wrong columns.

    inisis/OnnxSlim#210
    """
    g = Building(opset=17)
    x = g.input("x", 4, 3)
    gemm = g.op("Gemm", x, g.weight(3, 4), g.weight(*GEMM_ADDS[added]))
    if place == "activation":
        found = held(g.model(g.op("Relu", gemm)))
        assert missed(found, "matmul_bias_act") == {"operand"}
    elif place == "residual":
        found = held(g.model(g.op("Add", gemm, g.input("r", 4, 4))))
        assert missed(found, "matmul_residual") == {"operand"}
    else:
        found = held(g.model(gemm, *(g.op("Gemm", x, g.weight(3, 4), g.weight(4)) for _ in range(2))))
        assert len(built(found, "merged_products").outputs) == 2
    nothing(found, "matmul_bias_act", "matmul_residual")


def test_beta_scales_what_is_added() -> None:
    """A beta other than one is kept; at nought not even infinity is added.

    microsoft/onnxscript#3027
    """
    for beta, added in ((2.0, 0.5), (0.0, np.inf)):
        g = Building(opset=17)
        bias = g.constant(np.full(4, added, np.float32))
        y = g.op("Relu", g.op("Gemm", g.input("x", 2, 3), g.weight(3, 4), bias, beta=beta))
        assert built(held(g.model(y)), "matmul_bias_act").attrs["beta"] == beta


def test_a_residual_wider_than_the_product() -> None:
    """The product is broadcast over the residual's batch: their sum is not made where its rows are.

    openvinotoolkit/openvino#30416, stew675/llama-cpp-rdna-boosts#15
    """
    g = Building(opset=17)
    product = g.op("MatMul", g.input("x", 1, 5, 3), g.weight(3, 4))
    found = held(g.model(g.op("Add", product, g.input("r", 2, 5, 4))))
    nothing(found, "matmul_residual")
    assert missed(found, "matmul_residual") == {"guard:residual_has_the_shape"}


@pytest.mark.parametrize("turned", ["x", "weight"])
def test_a_transpose_that_changes_nothing_before_a_gemm(turned: str) -> None:
    """Its axes stay in order, so it is no transposed operand.

    microsoft/onnxruntime#32417, #32418
    """
    g = Building(opset=17)
    x, weight, bias = g.input("x", 3, 4), g.weight(4, 4), g.weight(4)
    if turned == "x":
        x = g.op("Transpose", x, perm=[0, 1])
    else:
        weight = g.op("Transpose", weight, perm=[0, 1])
    op = built(held(g.model(g.op("Relu", g.op("Gemm", x, weight, bias)))), "matmul_bias_act")
    assert not op.attrs.get("trans_x")
    assert not op.attrs.get("trans_weight")


def test_a_bias_of_a_product_with_a_vector() -> None:
    """x times a vector has one number a row: a vector added to it is no row of bias.

    microsoft/onnxruntime#3780
    """
    g = Building(opset=17)
    found = held(g.model(g.op("Add", g.op("MatMul", g.input("x", 4, 3), g.weight(3)), g.weight(4))))
    nothing(found, "matmul_bias")


def normalized(g: Building, value: str, channels: int) -> str:
    stats = (g.weight(channels), g.weight(channels), g.weight(channels))
    spread = g.constant(np.linspace(0.5, 2, channels).astype(np.float32))
    return g.op("BatchNormalization", value, *stats, spread)


@pytest.mark.parametrize(("groups", "outputs"), [(1, 3), (1, 4), (2, 3), (4, 1)])
def test_a_batch_norm_after_a_transposed_convolution(groups: int, outputs: int) -> None:
    """Its weight is [in, out / groups]: the scale of a channel lies along the second axis, group by group.

    microsoft/onnxscript#2867, pytorch/pytorch#180995, ultralytics/ultralytics#25364,
    pytorch/executorch#22517, onnx/optimizer#316, onnxsim/onnxsim#228, microsoft/onnxruntime#29542
    """
    g = Building(opset=17)
    x = g.input("x", 2, 4, 3, 3)
    turned = g.op(
        "ConvTranspose",
        x,
        g.weight(4, outputs, 3, 3),
        g.weight(groups * outputs),
        group=groups,
        strides=[2, 2],
    )
    held(g.model(normalized(g, turned, groups * outputs)))


@pytest.mark.parametrize("groups", [1, 4])
def test_a_batch_norm_after_a_convolution_with_a_bias(groups: int) -> None:
    """The bias is scaled too.

    Tencent/ncnn#1339, onnx/optimizer#255
    """
    g = Building(opset=17)
    conv = g.op("Conv", g.input("x", 1, 4, 5, 5), g.weight(4, 4 // groups, 3, 3), g.weight(4), group=groups)
    assert counts(held(g.model(normalized(g, conv, 4))))["conv_affine"] == 1


def test_a_batch_norm_in_training() -> None:
    """Statistics of the batch are no constants.

    onnxsim/onnxsim#175
    """
    g = Building(opset=17)
    conv = g.op("Conv", g.input("x", 2, 3, 5, 5), g.weight(4, 3, 3, 3))
    y = normalized(g, conv, 4)
    g.nodes[-1].attribute.append(helper.make_attribute("training_mode", 1))
    g.nodes[-1].output.extend(["mean", "variance"])
    found = held(g.model(y))
    nothing(found, "conv_affine")
    assert missed(found, "conv_affine") == {"attribute"}


def test_a_padding_that_two_convolutions_read() -> None:
    """It is padded with another number than 0, and stays for both.

    tsingmicro-toolchain/OnnxSlim#29
    """
    g = Building(opset=17)
    padded = g.op("Pad", g.input("x", 1, 3, 5, 5), g.ints(0, 0, 1, 1, 0, 0, 1, 1), g.constant(1.5))
    convs = [g.op("Conv", padded, g.weight(2, 3, 3, 3)) for _ in range(2)]
    held(g.model(convs[0], g.op("Relu", convs[1])))


def test_no_images_at_all() -> None:
    """A batch of none, as a detector without a proposal has it.

    microsoft/onnxruntime#26878
    """
    g = Building(opset=17)
    conv = g.op("Conv", g.input("x", 0, 3, 5, 5), g.weight(4, 3, 3, 3))
    assert counts(held(g.model(g.op("Relu", conv))))["conv_act"] == 1


def decoded(g: Building, codes: np.ndarray, scales: Any, zeros: Any = None, **attrs: int) -> str:
    given = [g.constant(codes), g.constant(np.asarray(scales, np.float32))]
    return g.op("DequantizeLinear", *given, *([] if zeros is None else [g.constant(zeros)]), **attrs)


CODES = np.random.default_rng(0).integers(-100, 100, (3, 3)).astype(np.int8)


def test_scales_along_the_axis_that_is_summed() -> None:
    """A square weight: one scale for each input is not one for each output.

    microsoft/onnxruntime#21712
    """
    for axis, fires in ((0, 0), (1, 1), (-1, 1)):
        g = Building(opset=17)
        weight = decoded(g, CODES, [0.1, 0.2, 0.3], np.array([1, 2, 3], np.int8), axis=axis)
        found = held(g.model(g.op("MatMul", g.input("x", 2, 3), weight)))
        assert counts(found)["quantized_matmul"] == fires
        wanted = set() if fires else {"guard:scales_run_along_the_outputs"}
        assert missed(found, "quantized_matmul") == wanted


def test_codes_without_a_zero_point_keep_their_type() -> None:
    """An absent zero point says nothing about the sign of the codes.

    microsoft/onnxruntime#29192
    """
    for codes in (CODES, (CODES.astype(np.int16) + 100).astype(np.uint8)):
        g = Building(opset=17)
        weight = decoded(g, codes, 0.1)
        assert counts(held(g.model(g.op("MatMul", g.input("x", 2, 3), weight))))["quantized_matmul"] == 1


def test_quantized_by_one_scale_and_decoded_by_another() -> None:
    """What looks like there and back scales the values.

    microsoft/onnxruntime#32132, #25001
    """
    g = Building(opset=17)
    zero = g.constant(np.array(128, np.uint8))
    codes = g.op("QuantizeLinear", g.input("x", 2, 3), g.constant(0.02), zero)
    held(g.model(g.op("MatMul", g.op("DequantizeLinear", codes, g.constant(0.04), zero), g.weight(3, 3))))
