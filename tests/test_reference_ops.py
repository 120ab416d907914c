"""Primitive operators: own implementations against onnxruntime without its optimizations, and against
the expected values of ONNX's own node tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from fuse.types import FuseError
from reference import ops
from reference.ops.call import Call

ort = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(7)
MS = "com.microsoft"


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def whole(low: int, high: int, *shape: int, dtype: Any = np.int64) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def positive(*shape: int) -> np.ndarray:
    return (np.abs(normal(*shape)) + 0.5).astype(np.float32)


def run_ort(
    kind: str, opset: int, attrs: dict[str, Any], operands: list[np.ndarray | None], outputs: int
) -> list[np.ndarray]:
    """One operator on onnxruntime's CPU with all optimizations off."""
    domain, _, op_type = kind.rpartition(".")
    names = [f"x{i}" if value is not None else "" for i, value in enumerate(operands)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, results, domain=domain, **attrs)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in zip(names, operands, strict=True)
        if value is not None
    ]
    graph = helper.make_graph(
        [node], "one", inputs, [helper.make_empty_tensor_value_info(name) for name in results]
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(
        None, {n: v for n, v in zip(names, operands, strict=True) if v is not None}
    )
    return found


def run_own(
    kind: str, opset: int, attrs: dict[str, Any], operands: list[np.ndarray | None], outputs: int
) -> tuple[np.ndarray, ...]:
    call = Call(kind, attrs, 1 if "." in kind else opset, (True,) * outputs)
    assert ops.implementation(call) is not None, f"{kind} has no own implementation"
    with np.errstate(all="ignore"):
        return ops.run(call, operands)


def close(got: np.ndarray, want: np.ndarray, limit: float = 2e-5) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    scale = max(1.0, float(np.max(np.abs(want[np.isfinite(want)]), initial=0)))
    np.testing.assert_allclose(got / scale, want / scale, rtol=0, atol=limit)


# ---- kind, opset, attributes, operands, outputs ---------------------------------------------------
X = normal(2, 3, 4)
IDS = whole(0, 7, 2, 5, dtype=np.int32)
CASES: list[tuple[str, int, dict[str, Any], list[np.ndarray | None], int]] = [
    # softmax: before 13 the operand is flattened to two axes, from 13 on one axis is reduced
    *((kind, opset, {"axis": axis}, [X], 1)
      for kind in ("Softmax", "LogSoftmax", "Hardmax") for opset in (11, 12, 13) for axis in (0, 1, 2)),
    *((kind, opset, {}, [X], 1) for kind in ("Softmax", "LogSoftmax", "Hardmax") for opset in (11, 13)),
    # reductions: axes as attribute and as operand
    *((kind, 11, {"axes": [0, 2], "keepdims": keep}, [X], 1)
      for kind in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2", "ReduceProd") for keep in (0, 1)),
    *((kind, 18, {"keepdims": 0}, [X, np.asarray([-1])], 1)
      for kind in ("ReduceMean", "ReduceMin", "ReduceL1", "ReduceSumSquare", "ReduceLogSumExp")),
    ("ReduceMean", 18, {"noop_with_empty_axes": 1}, [X, np.asarray([], np.int64)], 1),
    ("ReduceSum", 13, {}, [whole(-9, 9, 3, 4)], 1),
    ("ReduceMean", 13, {"axes": [1]}, [whole(-9, 9, 3, 4, dtype=np.int32)], 1),
    ("CumSum", 14, {"exclusive": 1, "reverse": 1}, [X, np.asarray(2)], 1),
    ("TopK", 11, {"axis": 1, "largest": 1}, [whole(0, 3, 3, 6).astype(np.float32), np.asarray([4])], 2),
    ("TopK", 11, {"axis": -1, "largest": 0}, [X, np.asarray([2])], 2),
    ("ArgMax", 13, {"axis": 1, "select_last_index": 1}, [whole(0, 2, 3, 6).astype(np.float32)], 1),
    # elementwise
    *((kind, 20, {}, [X], 1) for kind in (
        "Erf", "Sigmoid", "Tanh", "Softplus", "Softsign", "Exp", "Abs", "Neg", "Sign", "Round", "HardSwish",
        "Mish", "Sin", "Cos", "Reciprocal", "Gelu", "HardSigmoid", "Elu", "LeakyRelu")),
    *((kind, 20, {}, [positive(2, 3)], 1) for kind in ("Log", "Sqrt")),
    ("Gelu", 20, {"approximate": "tanh"}, [X], 1),
    ("PRelu", 16, {}, [X, normal(4)], 1),
    ("Div", 14, {}, [whole(-20, 20, 30), np.where((d := whole(-4, 4, 30)) == 0, 3, d)], 1),
    ("Mod", 13, {}, [whole(-9, 9, 20), np.full(20, 4)], 1),
    ("Mod", 13, {"fmod": 1}, [normal(20), np.full(20, 0.7, np.float32)], 1),
    ("Pow", 13, {}, [positive(3, 4), np.asarray(2)], 1),
    ("Pow", 13, {}, [whole(1, 5, 6), np.asarray(3)], 1),
    ("Clip", 6, {"min": -0.5, "max": 0.25}, [X], 1),
    ("Clip", 13, {}, [X, None, np.asarray(0.1, np.float32)], 1),
    *(("Cast", 13, {"to": to}, [normal(3, 4) * 3], 1) for to in (6, 7, 9, 10, 11, 2)),
    ("Where", 16, {}, [X > 0, X, normal(4)], 1),
    ("Equal", 13, {}, [whole(0, 2, 6), whole(0, 2, 6)], 1),
    ("IsNaN", 13, {}, [np.asarray([1, np.nan, np.inf], np.float32)], 1),
    # moving elements
    ("Slice", 13, {}, [X, np.asarray([-1, 0]), np.asarray([-100, 2]), np.asarray([2, 1]),
     np.asarray([-2, 1])], 1),
    ("Slice", 9, {"starts": [1], "ends": [1000], "axes": [1]}, [X], 1),
    ("Split", 11, {"axis": 1, "split": [1, 2]}, [X], 2),
    ("Split", 18, {"axis": 2, "num_outputs": 3}, [X], 3),
    ("Gather", 13, {"axis": 1}, [X, np.asarray([[2, -1], [0, 1]])], 1),
    ("GatherElements", 13, {"axis": 1}, [X, whole(-3, 3, 2, 2, 4)], 1),
    ("GatherND", 13, {"batch_dims": 1}, [X, whole(0, 3, 2, 5, 1)], 1),
    ("ScatterND", 18, {"reduction": "add"}, [X, np.asarray([[0], [1]]), normal(2, 3, 4)], 1),
    ("ScatterElements", 18, {"axis": 2, "reduction": "add"}, [X, whole(0, 4, 2, 3, 2), normal(2, 3, 2)], 1),
    ("ScatterElements", 18, {"axis": 1}, [X, np.asarray([[[0], [2]]]), normal(1, 2, 1)], 1),
    ("Pad", 18, {}, [X, np.asarray([1, -1, 0, 2]), np.asarray(5, np.float32), np.asarray([1, 2])], 1),
    *(("Pad", 18, {"mode": mode}, [X, np.asarray([0, 1, 2, 0, 1, 1])], 1) for mode in ("reflect", "edge")),
    ("OneHot", 11, {"axis": 1}, [np.asarray([[1, -1]]), np.asarray(3), normal(2)], 1),
    ("Trilu", 14, {"upper": 0}, [X, np.asarray(-1)], 1),
    ("Expand", 13, {}, [normal(3, 1), np.asarray([2, 1, 4])], 1),
    ("Tile", 13, {}, [X, np.asarray([1, 2, 1])], 1),
    ("Reshape", 14, {}, [X, np.asarray([0, -1, 2])], 1),
    ("Flatten", 13, {"axis": 2}, [X], 1),
    ("DepthToSpace", 13, {"blocksize": 2, "mode": "CRD"}, [normal(1, 8, 2, 3)], 1),
    ("Range", 11, {}, [np.asarray(2), np.asarray(11), np.asarray(3)], 1),
    # products
    ("MatMul", 13, {}, [normal(2, 1, 3, 4), normal(5, 4, 6)], 1),
    ("MatMul", 13, {}, [normal(4), normal(2, 4, 3)], 1),
    ("Gemm", 13, {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}, [normal(4, 3), normal(5, 4),
     normal(5)], 1),
    ("Conv", 11, {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2], "group": 2},
     [normal(2, 4, 7, 8), normal(6, 2, 3, 2), normal(6)], 1),
    ("Conv", 11, {"auto_pad": "SAME_LOWER", "strides": [2]}, [normal(1, 3, 9), normal(4, 3, 4)], 1),
    ("MaxPool", 12, {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 0, 1], "ceil_mode": 1},
     [normal(1, 2, 6, 7)], 1),
    ("MaxPool", 12, {"kernel_shape": [2, 2], "strides": [2, 2]}, [normal(1, 2, 1, 6)], 1),
    ("AveragePool", 11, {"kernel_shape": [3], "strides": [2], "pads": [1, 1], "count_include_pad": 1},
     [normal(1, 2, 7)], 1),
    ("AveragePool", 11, {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}, [normal(1, 2, 7)], 1),
    ("GlobalAveragePool", 1, {}, [normal(2, 3, 4, 5)], 1),
    ("Einsum", 12, {"equation": "bhid,bhjd->bhij"}, [normal(2, 2, 3, 4), normal(2, 2, 5, 4)], 1),
    # norms
    ("LayerNormalization", 17, {"axis": -2, "epsilon": 1e-3}, [X, normal(3, 4), normal(3, 4)], 3),
    ("LayerNormalization", 17, {}, [X, normal(4)], 1),
    ("RMSNormalization", 23, {"epsilon": 1e-3}, [X, normal(4)], 1),
    ("SimplifiedLayerNormalization", 14, {"epsilon": 1e-3, "axis": -1}, [X, normal(4)], 1),
    (f"{MS}.SkipLayerNormalization", 17, {"epsilon": 1e-3}, [X, normal(2, 3, 4), normal(4), normal(4),
     normal(4)], 4),
    (f"{MS}.SkipSimplifiedLayerNormalization", 17, {"epsilon": 1e-3}, [X, normal(2, 3, 4), normal(4)], 1),
    ("BatchNormalization", 15, {}, [normal(2, 3, 4), normal(3), normal(3), normal(3), positive(3)], 1),
    ("InstanceNormalization", 6, {}, [normal(2, 3, 4, 2), normal(3), normal(3)], 1),
    ("GroupNormalization", 21, {"num_groups": 2}, [normal(2, 4, 5), normal(4), normal(4)], 1),
    (f"{MS}.EmbedLayerNormalization", 17, {"epsilon": 1e-6},
     [IDS, whole(0, 2, 2, 5, dtype=np.int32), normal(7, 8), normal(9, 8), normal(2, 8), normal(8), normal(8),
      np.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)], 3),
    ("LpNormalization", 22, {"axis": 1}, [X], 1),
    # activations and products of com.microsoft
    (f"{MS}.Gelu", 17, {}, [X], 1), (f"{MS}.BiasGelu", 17, {}, [X, normal(4)], 1),
    (f"{MS}.FastGelu", 17, {}, [X, normal(4)], 1), (f"{MS}.QuickGelu", 17, {"alpha": 1.3}, [X], 1),
    (f"{MS}.FusedMatMul", 17, {"alpha": 0.3, "transA": 1, "transB": 1}, [normal(2, 4, 3), normal(2, 5, 4)],
     1),
    (f"{MS}.FusedMatMul", 17, {"transBatchA": 1}, [normal(3, 2, 4), normal(2, 4, 5)], 1),
    (f"{MS}.FusedGemm", 17, {"activation": "LeakyRelu", "activation_alpha": 0.3, "transB": 1},
     [normal(3, 4), normal(5, 4), normal(5)], 1),
    (f"{MS}.FusedConv", 17, {"activation": "Relu"}, [normal(1, 2, 5, 5), normal(3, 2, 3, 3), normal(3)], 1),
    # quantization
    ("QuantizeLinear", 13, {"axis": 1}, [X * 9, positive(3), whole(0, 9, 3, dtype=np.uint8)], 1),
    ("DequantizeLinear", 13, {"axis": 0}, [whole(-99, 99, 3, 4, dtype=np.int8), positive(3),
     np.zeros(3, np.int8)], 1),
    ("DequantizeLinear", 21, {"axis": 1, "block_size": 2},
     [whole(0, 255, 3, 4, dtype=np.uint8), positive(3, 2), whole(0, 9, 3, 2, dtype=np.uint8)], 1),
    ("DynamicQuantizeLinear", 11, {}, [X], 3),
    ("MatMulInteger", 10, {}, [whole(0, 255, 2, 3, 4, dtype=np.uint8), whole(-99, 99, 4, 5, dtype=np.int8),
                               np.asarray(7, np.uint8), whole(-5, 5, 5, dtype=np.int8)], 1),
    ("ConvInteger", 10, {"pads": [1, 1, 1, 1]}, [whole(0, 255, 1, 2, 5, 5, dtype=np.uint8),
                                                 whole(0, 255, 3, 2, 3, 3, dtype=np.uint8),
                                                 np.asarray(9, np.uint8)], 1),
    ("QLinearMatMul", 10, {}, [whole(0, 255, 3, 4, dtype=np.uint8), np.asarray(0.02, np.float32),
     np.asarray(9, np.uint8),
                               whole(0, 255, 4, 5, dtype=np.uint8), np.asarray(0.01, np.float32),
                               np.asarray(3, np.uint8),
                               np.asarray(0.05, np.float32), np.asarray(100, np.uint8)], 1),
    (f"{MS}.MatMulNBits", 17, {"K": 20, "N": 3, "bits": 4, "block_size": 16},
     [normal(2, 20), whole(0, 255, 3, 2, 8, dtype=np.uint8), positive(6),
     whole(0, 255, 3, dtype=np.uint8)], 1),
    (f"{MS}.MatMulNBits", 17, {"K": 32, "N": 3, "bits": 8, "block_size": 16},
     [normal(2, 32), whole(0, 255, 3, 2, 16, dtype=np.uint8), positive(6)], 1),
    (f"{MS}.MatMulIntegerToFloat", 17, {},
     [whole(0, 255, 2, 4, dtype=np.uint8), whole(-99, 99, 4, 5, dtype=np.int8), np.asarray(0.1, np.float32),
      positive(5), np.asarray(7, np.uint8), np.zeros(5, np.int8), normal(5)], 1),
    (f"{MS}.DynamicQuantizeMatMul", 17, {},
     [normal(2, 4), whole(-99, 99, 4, 5, dtype=np.int8), np.asarray(0.1, np.float32), None, normal(5)], 1),
    (f"{MS}.GatherBlockQuantized", 17, {"block_size": 16, "gather_axis": 0, "quantize_axis": 1, "bits": 4},
     [whole(0, 255, 6, 16, dtype=np.uint8), np.asarray([4, 0, 5]), positive(6, 2)], 1),
    # recurrent
    *((kind, 14, {"hidden_size": 3, "direction": direction}, [
        normal(4, 2, 5), normal(d, g * 3, 5), normal(d, g * 3, 3), normal(d, 2 * g * 3),
        np.asarray([4, 2], np.int32), normal(d, 2, 3)], 2)
      for kind, g in (("RNN", 1), ("GRU", 3), ("LSTM", 4))
      for direction, d in (("forward", 1), ("reverse", 1), ("bidirectional", 2))),
    ("GRU", 14, {"hidden_size": 3, "linear_before_reset": 1},
     [normal(4, 2, 5), normal(1, 9, 5), normal(1, 9, 3), normal(1, 18)], 2),
    # attention
    ("Attention", 23, {}, [normal(2, 4, 3, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 6),
     whole(0, 2, 3, 5) > 0], 1),
    ("Attention", 23, {"q_num_heads": 4, "kv_num_heads": 2, "is_causal": 1, "scale": 0.3},
     [normal(2, 3, 32), normal(2, 3, 16), normal(2, 3, 16), normal(2, 1, 3, 5), normal(2, 2, 2, 8),
     normal(2, 2, 2, 8)], 3),
    *(("RotaryEmbedding", 23, {"interleaved": turn}, [normal(2, 4, 3, 8), normal(9, 4), normal(9, 4),
     whole(0, 9, 2, 3)], 1)
      for turn in (0, 1)),
    ("RotaryEmbedding", 23, {"num_heads": 2, "rotary_embedding_dim": 4},
     [normal(2, 3, 16), normal(2, 3, 2), normal(2, 3, 2)], 1),
    (f"{MS}.RotaryEmbedding", 17, {"interleaved": 1}, [normal(2, 3, 16), np.asarray([4]), normal(9, 4),
     normal(9, 4)], 1),
    (f"{MS}.Attention", 17, {"num_heads": 2, "unidirectional": 1},
     [normal(2, 3, 8), normal(8, 24), normal(24), np.asarray([[1, 1, 0], [1, 1, 1]], np.int32)], 1),
    (f"{MS}.Attention", 17, {"num_heads": 2, "scale": 0.2, "mask_filter_value": -50.0},
     [normal(2, 3, 8), normal(8, 24), normal(24), np.asarray([2, 3], np.int32)], 1),
    (f"{MS}.MultiHeadAttention", 17, {"num_heads": 2},
     [normal(2, 3, 8), normal(2, 5, 8), normal(2, 5, 8), normal(24), None, normal(1, 2, 3, 5)], 1),
    (f"{MS}.MultiHeadAttention", 17, {"num_heads": 2},
     [normal(2, 3, 8), normal(2, 1, 8), normal(2, 1, 8), None, None, None, normal(2, 2, 4, 4),
     normal(2, 2, 4, 4)], 3),
    (f"{MS}.GroupQueryAttention", 17, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1},
     [normal(2, 3, 64), normal(2, 3, 32), normal(2, 3, 32), None, None, np.asarray([2, 2], np.int32),
      np.asarray(3, np.int32), normal(9, 8), normal(9, 8)], 3),
    (f"{MS}.GroupQueryAttention", 17, {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 3},
     [normal(2, 1, 64), normal(2, 1, 32), normal(2, 1, 32), normal(2, 2, 4, 16), normal(2, 2, 4, 16),
      np.asarray([4, 4], np.int32), np.asarray(5, np.int32)], 3),
]  # fmt: skip


def _name(case: tuple[Any, ...]) -> str:
    return f"{case[0].removeprefix(MS + '.')}-{case[1]}"


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_own_implementation_agrees_with_onnxruntime(case: tuple[Any, ...]) -> None:
    kind, opset, attrs, operands, outputs = case
    try:
        wanted = run_ort(kind, opset, attrs, operands, outputs)
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error):
            pytest.skip(f"onnxruntime has no kernel: {error}")
        raise
    for got, want in zip(run_own(kind, opset, attrs, operands, outputs), wanted, strict=True):
        close(got, want)


# ---- the expected values of ONNX's own node tests -------------------------------------------------
#: Node tests that ask for what evaluation does not do: draw a dropout mask.
NOT_EVALUATED = frozenset({
    "test_training_dropout_default", "test_training_dropout_default_mask", "test_training_dropout",
    "test_training_dropout_mask",
})  # fmt: skip
#: Largest difference by the size of an element in bytes, relative to the larger of 1 and the value.
NODE_LIMITS = {1: 0.0, 2: 2e-2, 4: 1e-3, 8: 1e-3}


def node_tests() -> Iterator[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in collect_testcases(None):
            if len(case.model.graph.node) == 1 and case.name not in NOT_EVALUATED:
                yield case


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if attribute.type == onnx.AttributeProto.TENSOR:
            value = numpy_helper.to_array(value)
        elif attribute.type == onnx.AttributeProto.STRINGS:
            value = tuple(text.decode() for text in value)
        found[attribute.name] = value.decode() if isinstance(value, bytes) else value
    return found


def array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def node_fault(case: Any) -> str:
    """What is wrong with the own implementation on a node test; empty where nothing is, or there is none."""
    graph = case.model.graph
    node = graph.node[0]
    kind = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    opset = next((o.version for o in case.model.opset_import if o.domain == node.domain), 1)
    call = Call(kind, attributes(node), opset, tuple(bool(name) for name in node.output))
    if ops.implementation(call) is None:
        return ""
    for inputs, outputs in case.data_sets:
        feeds = dict(zip((i.name for i in graph.input), map(array, inputs), strict=True))
        with np.errstate(all="ignore"):
            found = dict(zip(node.output, ops.run(call, [feeds.get(n) for n in node.input]), strict=False))
        for value, want in zip(graph.output, map(array, outputs), strict=True):
            if not isinstance(want, np.ndarray):
                continue  # a sequence passes as it is
            got = np.asarray(found[value.name])
            if got.shape != want.shape or (got.dtype != want.dtype and want.dtype.kind not in "UO"):
                return f"{case.name}: {got.dtype}{got.shape} for {want.dtype}{want.shape}"
            if want.dtype.kind not in "fV":
                same = np.array_equal(got, want)
            else:
                a, b = got.astype(np.float64), want.astype(np.float64)
                limit = NODE_LIMITS[want.dtype.itemsize]
                same = bool(np.isclose(a, b, rtol=limit, atol=limit, equal_nan=True).all())
            if not same:
                return f"{case.name}: values differ"
    return ""


def test_own_implementations_agree_with_the_node_tests_of_onnx() -> None:
    assert [fault for case in node_tests() if (fault := node_fault(case))] == []


# ---- the rest ------------------------------------------------------------------------------------
def test_what_has_no_own_implementation_runs_by_onnx() -> None:
    x = normal(1, 1, 3, 3)
    scales = np.asarray([1, 1, 2, 2], np.float32)
    attrs = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    call = Call("Resize", attrs, 13, (True,))
    assert ops.implementation(call) is None
    np.testing.assert_array_equal(ops.run(call, [x, None, scales])[0], x.repeat(2, 2).repeat(2, 3))


@pytest.mark.parametrize(("opset", "attrs"), [(16, {}), (16, {"mode": "bicubic"}), (20, {"mode": "linear"})])
def test_modes_of_a_grid_sample_in_old_words_and_new(opset: int, attrs: dict[str, Any]) -> None:
    operands = [normal(1, 2, 4, 5), normal(1, 3, 3, 2)]
    wanted = run_ort("GridSample", opset, attrs, operands, 1)
    close(ops.run(Call("GridSample", attrs, opset, (True,)), operands)[0], wanted[0])


def test_version_of_the_opset_decides() -> None:
    x = normal(2, 3, 4)
    old = ops.run(Call("Softmax", {}, 12, (True,)), [x])[0]
    new = ops.run(Call("Softmax", {}, 13, (True,)), [x])[0]
    np.testing.assert_allclose(old.reshape(2, -1).sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(new.sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("acme.ops.Mystery", "no implementation for acme.ops Mystery"),
        ("NoSuchOperator", "no implementation for ai.onnx NoSuchOperator"),
    ],
)
def test_unknown_operator_is_named(kind: str, message: str) -> None:
    with pytest.raises(FuseError, match=message):
        ops.run(Call(kind, {}, 1, (True,)), [normal(2)])


def test_operands_that_do_not_fit_are_named() -> None:
    with pytest.raises(FuseError, match=r"MatMul does not run on f32\[2, 3\], f32\[4, 5\]"):
        ops.run(Call("MatMul", {}, 13, (True,)), [normal(2, 3), normal(4, 5)])
    with pytest.raises(FuseError, match="Gather reads row 9 of 4"):
        ops.run(Call("Gather", {}, 13, (True,)), [normal(4, 2), np.asarray([1, 9])])


@pytest.mark.parametrize(
    ("kind", "attrs", "opset", "more"),
    [
        ("ReduceMean", {"axes": [5]}, 13, []),
        ("Softmax", {"axis": 5}, 11, []),
        ("LayerNormalization", {"axis": -3}, 17, [np.ones(3, np.float32)]),
        ("GatherElements", {"axis": 2}, 13, [np.zeros((2, 3), np.int64)]),
        ("ScatterElements", {"axis": 2}, 18, [np.zeros((2, 3), np.int64), np.ones((2, 3), np.float32)]),
        ("Pad", {}, 18, [np.asarray([1, 1]), None, np.asarray([7])]),
        ("Transpose", {"perm": [0, 1 << 40]}, 13, []),
    ],
)
def test_an_axis_that_is_none_is_no_other(kind: str, attrs: Any, opset: int, more: list[Any]) -> None:
    with pytest.raises(FuseError, match=rf"{kind} does not run on f32\[2, 3\]"):
        ops.run(Call(kind, attrs, opset, (True,)), [normal(2, 3), *more])


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_sums_of_narrow_types_are_carried_wide(name: str) -> None:
    ones = np.ones((1, 4096), ops.numpy_dtype(name))
    total = ops.run(Call("MatMul", {}, 13, (True,)), [ones, ones.T])[0]
    assert total.dtype == ones.dtype
    assert float(total[0, 0]) == 4096.0
