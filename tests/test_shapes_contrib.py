"""Contrib operators: what is inferred is what onnxruntime's own kernels make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fuse.ir import Content, Op
from fuse.shapes import infer
from fuse.types import DTYPE_NUMBERS, DTYPES, Type

onnxruntime = pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(3)


def f32(*dims: int) -> np.ndarray:
    return RANDOM.standard_normal(dims).astype(np.float32)


def u8(*dims: int) -> np.ndarray:
    return RANDOM.integers(0, 9, dims).astype(np.uint8)


def i32(*elements: int) -> np.ndarray:
    return np.array(elements, np.int32)


ZERO, ONE, THIRD = np.array(0, np.uint8), np.array(1, np.float32), np.array(0.3, np.float32)
X, ROW, Q = f32(2, 5, 32), f32(32), f32(2, 5, 32)
IDS = np.zeros((2, 5), np.int32)
PAST = f32(2, 4, 3, 8)

#: What sets the case apart, kind, operands, outputs, attributes.
Case = tuple[str, str, list[np.ndarray | None], int, dict[str, Any]]
CASES: list[Case] = [
    ("", "SkipLayerNormalization", [X, X, ROW, ROW, ROW], 4, {}),
    ("", "SkipSimplifiedLayerNormalization", [X, X, ROW], 4, {}),
    ("", "BiasGelu", [X, ROW], 1, {}),
    ("", "FastGelu", [X, ROW], 1, {}),
    ("", "QuickGelu", [X], 1, {"alpha": 1.7}),
    ("transposed", "FusedMatMul", [f32(2, 5, 6), f32(2, 7, 6)], 1, {"transB": 1, "alpha": 2.0}),
    ("batch behind", "FusedMatMul", [f32(5, 2, 6), f32(2, 6, 7)], 1, {"transBatchA": 1}),
    ("", "FusedGemm", [f32(5, 6), f32(7, 6), f32(7)], 1, {"transB": 1, "activation": "Relu"}),
    (
        "",
        "FusedConv",
        [f32(1, 3, 8, 8), f32(4, 3, 3, 3), f32(4)],
        1,
        {"activation": "Relu"},
    ),
    ("", "Attention", [X, f32(32, 96), f32(96)], 1, {"num_heads": 4}),
    (
        "past",
        "Attention",
        [X, f32(32, 96), f32(96), None, f32(2, 2, 4, 3, 8)],
        2,
        {"num_heads": 4, "unidirectional": 1},
    ),
    ("sizes", "Attention", [X, f32(32, 80), f32(80)], 1, {"num_heads": 4, "qkv_hidden_sizes": (32, 32, 16)}),
    ("", "MultiHeadAttention", [Q, f32(2, 7, 32), f32(2, 7, 16)], 1, {"num_heads": 4}),
    ("present", "MultiHeadAttention", [Q, X, X, None, None, None, PAST, PAST], 3, {"num_heads": 4}),
    ("split heads", "MultiHeadAttention", [Q, f32(2, 4, 7, 8), f32(2, 4, 7, 8)], 1, {"num_heads": 4}),
    (
        "",
        "GroupQueryAttention",
        [Q, f32(2, 5, 16), f32(2, 5, 16), f32(2, 2, 0, 8), f32(2, 2, 0, 8), i32(4, 4), np.array(5, np.int32)],
        3,
        {"num_heads": 4, "kv_num_heads": 2},
    ),
    (
        "one more",
        "GroupQueryAttention",
        [
            f32(1, 1, 32),
            f32(1, 1, 16),
            f32(1, 1, 16),
            f32(1, 2, 6, 8),
            f32(1, 2, 6, 8),
            i32(6),
            np.array(7, np.int32),
        ],
        3,
        {"num_heads": 4, "kv_num_heads": 2},
    ),
    (
        "packed",
        "GroupQueryAttention",
        [f32(2, 5, 64), None, None, f32(2, 2, 0, 8), f32(2, 2, 0, 8), i32(4, 4), np.array(5, np.int32)],
        3,
        {"num_heads": 4, "kv_num_heads": 2},
    ),
    ("", "RotaryEmbedding", [f32(2, 4, 5, 8), np.zeros((2, 5), np.int64), f32(9, 4), f32(9, 4)], 1, {}),
    (
        "",
        "EmbedLayerNormalization",
        [
            np.zeros((2, 5), np.int32),
            np.zeros((2, 5), np.int32),
            f32(30, 32),
            f32(9, 32),
            f32(2, 32),
            ROW,
            ROW,
        ],
        3,
        {},
    ),
    ("", "MatMulNBits", [X, u8(7, 1, 16), f32(7)], 1, {"K": 32, "N": 7, "block_size": 32, "bits": 4}),
    ("", "MatMulIntegerToFloat", [u8(2, 5, 6), u8(6, 7), THIRD, THIRD], 1, {}),
    ("", "DynamicQuantizeMatMul", [f32(2, 5, 6), u8(6, 7), THIRD.reshape(1)], 1, {}),
    ("", "QLinearAdd", [u8(2, 1, 6), THIRD, ZERO, u8(5, 1), THIRD, ZERO, THIRD, ZERO], 1, {}),
    ("", "QLinearMul", [u8(2, 6), THIRD, ZERO, u8(6), THIRD, ZERO, THIRD, ZERO], 1, {}),
    ("", "QLinearConcat", [THIRD, ZERO, u8(2, 3), THIRD, ZERO, u8(2, 4), THIRD, ZERO], 1, {"axis": 1}),
    ("", "QLinearSigmoid", [u8(2, 6), THIRD, ZERO, THIRD, ZERO], 1, {}),
    ("", "QLinearGlobalAveragePool", [u8(1, 4, 3, 3), THIRD, ZERO, THIRD, ZERO], 1, {}),
    (
        "",
        "QAttention",
        [u8(2, 5, 32), u8(32, 96), f32(96), THIRD, THIRD, None, ZERO, ZERO],
        1,
        {"num_heads": 4},
    ),
    (
        "",
        "QLinearWhere",
        [np.ones((2, 1), bool), u8(2, 6), THIRD, ZERO, u8(6), THIRD, ZERO, THIRD, ZERO],
        1,
        {},
    ),
    ("codes", "QGemm", [u8(3, 6), THIRD, ZERO, u8(7, 6), THIRD, ZERO, None, THIRD, ZERO], 1, {"transB": 1}),
    ("floats", "QGemm", [u8(3, 6), THIRD, ZERO, u8(6, 7), THIRD, ZERO], 1, {}),
    ("", "QuantizeLinear", [X, THIRD, np.array(3, np.int8)], 1, {}),
    ("", "DequantizeLinear", [u8(2, 6), THIRD, ZERO], 1, {}),
    (
        "packed bytes",
        "GatherBlockQuantized",
        [u8(20, 16), np.zeros((2, 3), np.int64), f32(20, 2)],
        1,
        {"block_size": 16, "bits": 4, "quantize_axis": 1},
    ),
    (
        "",
        "DynamicQuantizeLSTM",
        [
            f32(5, 2, 6),
            u8(1, 6, 32),
            u8(1, 8, 32),
            f32(1, 64),
            None,
            None,
            None,
            None,
            f32(1),
            np.zeros(1, np.uint8),
            f32(1),
            np.zeros(1, np.uint8),
        ],
        3,
        {"hidden_size": 8},
    ),
    (
        "",
        "MoE",
        [f32(6, 32), f32(6, 4), f32(4, 16, 32), None, f32(4, 32, 16)],
        1,
        {"k": 1, "activation_type": "relu"},
    ),
    ("", "CausalConvWithState", [f32(2, 6, 5), f32(6, 1, 4)], 2, {}),
    (
        "",
        "LinearAttention",
        [X, X, X],
        2,
        {"q_num_heads": 4, "kv_num_heads": 4, "update_rule": "linear"},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{case[1]} {case[0]}".strip() for case in CASES])
def test_what_onnxruntime_makes_was_inferred(
    case: tuple[str, str, list[np.ndarray | None], int, dict[str, Any]],
) -> None:
    _, kind, operands, outputs, attrs = case
    types: dict[str, Type] = {}
    contents: dict[str, Content] = {}
    feeds: dict[str, np.ndarray] = {}
    inputs, constants = [], []
    names = [f"x{i}" if operand is not None else "" for i, operand in enumerate(operands)]
    for i, (name, operand) in enumerate(zip(names, operands, strict=True)):
        if operand is None:
            continue
        number = helper.np_dtype_to_tensor_dtype(operand.dtype)
        types[name] = Type(DTYPES[number], operand.shape)
        if operand.dtype.kind == "i" and operand.size == 1:
            contents[name] = (int(operand.reshape(-1)[0]),)
        if i == 0 or (operand.dtype == np.float32 and operand.ndim > 2):
            feeds[name] = operand
            inputs.append(helper.make_tensor_value_info(name, number, operand.shape))
        else:
            constants.append(numpy_helper.from_array(operand, name))
    made = tuple(f"y{i}" for i in range(outputs))
    infer(Op(f"com.microsoft.{kind}", tuple(names), made, attrs), types, contents, 1)

    node = helper.make_node(kind, names, made, domain="com.microsoft", **attrs)
    results = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in made]
    for result in results:
        result.ClearField("type")
    graph = helper.make_graph([node], "g", inputs, results, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString(), options
    )
    for name, value in zip(made, session.run(None, feeds), strict=True):
        if value is None or not value.size:
            continue
        assert DTYPE_NUMBERS[types[name].dtype] == helper.np_dtype_to_tensor_dtype(value.dtype)
        dims = types[name].dims
        assert dims is not None
        assert len(dims) == value.ndim
        assert [d for d in dims if isinstance(d, int)] == [
            size for size, d in zip(value.shape, dims, strict=True) if isinstance(d, int)
        ]


def test_an_image_in_blocks_of_channels_keeps_its_other_axes() -> None:
    """onnxruntime's own layout: how wide a block is, only the machine that wrote the file knows."""
    types = {
        "x": Type("f32", (2, 3, 16, 16)),
        "w": Type("f32", (16, 3, 3, 3)),
        "v": Type("f32", (16, 16, 1, 1)),
        "z": Type("f32", (2, 6, 8, 8)),
    }
    ops = [
        Op("com.microsoft.nchwc.Conv", ("x", "w"), ("c",), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
        Op("com.microsoft.nchwc.MaxPool", ("c",), ("p",), {"kernel_shape": (2, 2), "strides": (2, 2)}),
        Op("com.microsoft.nchwc.Conv", ("p", "v"), ("d",), {}),
        Op("com.microsoft.nchwc.Upsample", ("d",), ("u",), {"scales": (1, 1, 2, 2)}),
        Op("com.microsoft.nchwc.ReorderOutput", ("u",), ("y",), {"channels": 10}),
        Op("com.microsoft.nchwc.ReorderOutput", ("u",), ("last",), {"channels": 10, "channels_last": 1}),
        Op("com.microsoft.nchwc.GlobalAveragePool", ("u",), ("mean",), {}),
        Op("com.microsoft.nchwc.ReorderInput", ("z",), ("blocks",), {}),
    ]
    for op in ops:
        infer(op, types, {}, 1)
    assert types["y"] == Type("f32", (2, 10, 8, 8))
    assert types["last"] == Type("f32", (2, 8, 8, 10))
    assert types["mean"] == Type("f32", (2, 16, 1, 1))
    blocks = types["blocks"].dims
    assert blocks is not None
    assert (blocks[0], *blocks[2:]) == (2, 8, 8)
    assert not isinstance(blocks[1], int)
