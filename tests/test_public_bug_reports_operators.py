"""Public bug reports of other optimizers about single operators.

Each is a small model of its own, and what a right one does; a docstring says what goes wrong elsewhere, and
where it was reported."""

from __future__ import annotations

from typing import Any

import lowering_models
import numpy as np
import pytest
from building import Building
from holding import held
from onnx import ModelProto, TensorProto, helper

import reference


def alone(kind: str, inputs: dict[str, Any], outputs: int = 1, opset: int = 17, **attrs: Any) -> None:
    """One operator over these arrays, held against onnxruntime; constants and inputs alike."""
    for known in (False, True):
        g = Building(opset=opset)
        names, fed = [], {}
        for name, value in inputs.items():
            if value is None:
                names.append("")
            elif known and name != "x":
                names.append(g.constant(np.asarray(value)))
            else:
                fed[name] = np.asarray(value)
                element = helper.np_dtype_to_tensor_dtype(fed[name].dtype)
                names.append(g.input(name, *fed[name].shape, dtype=element))
        made = g.op(kind, *names, outputs=outputs, **attrs)
        made = (made,) if outputs == 1 else made
        model = g.model(*made)
        for info, name in zip(model.graph.output, made, strict=True):
            info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(
                lowering_models.run(_untyped(model), fed)[name].dtype
            )
        held(model, feeds=fed)


def _untyped(model: ModelProto) -> ModelProto:
    """The model with outputs whose types the runtime infers."""
    twin = ModelProto.FromString(model.SerializeToString())
    for info in twin.graph.output:
        info.ClearField("type")
    return twin


def normal(*dims: int) -> np.ndarray:
    return np.random.default_rng(len(dims)).normal(size=dims).astype(np.float32)


SPACINGS: tuple[dict[str, Any], ...] = (
    {},
    {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
    {"strides": [3, 3], "dilations": [2, 2], "pads": [1, 1, 2, 2]},
    {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
    {"strides": [3, 3], "output_shape": [14, 14]},
)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("spacing", SPACINGS)
def test_a_transposed_convolution(groups: int, spacing: dict[str, Any]) -> None:
    """In groups, spread, padded, or of a wanted size.

    microsoft/onnxscript#2867, onnxsim/onnxsim#228
    """
    inputs = {"x": normal(2, 4, 4, 4), "w": normal(4, 3, 3, 3), "b": normal(3 * groups)}
    alone("ConvTranspose", inputs, group=groups, **spacing)


@pytest.mark.parametrize("axes", [None, []])
@pytest.mark.parametrize(
    "kind",
    ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum"],
)
def test_a_reduction_over_no_axes(kind: str, axes: list[int] | None) -> None:
    """Nothing is summed, but squares and logarithms are taken.

    microsoft/onnxruntime#14542
    """
    x = abs(normal(2, 3)) if "Log" in kind else normal(2, 3)
    alone(kind, {"x": x, "axes": None if axes is None else np.int64(axes)}, opset=18, noop_with_empty_axes=1)


@pytest.mark.parametrize(
    "bounds",
    [
        np.float32([0, 0.3, 0.1]),
        np.float32([1, 0, -0.25]),
        np.int64([5, -1, -2]),
        np.int64([0, 0, 1]),
        np.int32([3, 1, 1]),
    ],
)
def test_a_range(bounds: np.ndarray) -> None:
    """How many numbers there are is counted in double precision.

    onnxsim/onnxsim#525
    """
    alone("Range", dict(zip(("x", "limit", "delta"), bounds, strict=True)))


BACKWARDS = {"starts": [-1], "ends": [-(2**63) + 1], "axes": [-1], "steps": [-2]}


@pytest.mark.parametrize(
    ("kind", "inputs", "attrs"),
    [
        ("Slice", {name: np.int64(value) for name, value in BACKWARDS.items()}, {}),
        ("Reshape", {"shape": np.int64([0, -1])}, {}),
        ("Expand", {"shape": np.int64([1])}, {}),
        ("Expand", {"shape": np.int64([2, 1, 1])}, {}),
        ("Gather", {"indices": np.int64(-1)}, {"axis": 0}),
        ("Gather", {"indices": np.int64([-4, 3])}, {"axis": -1}),
        ("Unsqueeze", {"axes": np.int64([-1, 0])}, {}),
        ("Concat", {}, {"axis": 0}),
        ("Concat", {"none": np.zeros((0, 4), np.float32)}, {"axis": 0}),
        ("Split", {}, {"axis": 0}),
        ("CumSum", {"axis": np.int64(-1)}, {"exclusive": 1, "reverse": 1}),
        ("Trilu", {"k": np.int64(-5)}, {"upper": 0}),
        ("Clip", {"low": None, "high": np.float32(0)}, {}),
        ("Pow", {"y": np.float32(0)}, {}),
        ("Max", {"one": np.float32(np.nan)}, {}),
    ],
)
def test_what_an_eliminating_pass_takes_for_nothing(
    kind: str, inputs: dict[str, Any], attrs: dict[str, Any]
) -> None:
    """Bounds from the end, axes from the end, one operand, none of a batch: each is what it says.

    onnx/optimizer#252, #253, #275, #282, #283, inisis/OnnxSlim#277,
    alibaba/heterogeneity-aware-lowering-and-optimization#275, llvm/llvm-project#179077
    """
    alone(kind, {"x": normal(3, 4), **inputs}, **attrs)


@pytest.mark.parametrize("allow", [0, 1])
def test_a_shape_with_a_zero(allow: int) -> None:
    """Copied from x, or none of that axis.

    onnx/optimizer#282
    """
    shape = np.int64([3, 0]) if allow else np.int64([0, 3])
    alone("Reshape", {"x": np.zeros((0, 3), np.float32), "shape": shape}, allowzero=allow)


def test_whole_numbers_wrap_and_divide_towards_zero() -> None:
    """As the operators do when the model runs, so where constants are folded.

    microsoft/onnxruntime#31140
    """
    alone("Mul", {"x": np.int32([7, -7]), "y": np.int32(2**31 - 1)})
    alone("Div", {"x": np.int64([7, -7]), "y": np.int64(2)})
    alone("Mod", {"x": np.int64([7, -7]), "y": np.int64(-3)})
    alone("Cast", {"x": np.float32([-1.7, 2.9, 0])}, to=TensorProto.INT32)


def test_nothing_changes_minus_zero() -> None:
    """Minus nought plus nought is nought: an Add of zeros is not nothing.

    onnx/optimizer#285
    """
    g = Building(opset=17)
    x, zero = g.input("x", 3), g.constant(0.0)
    results = g.op("Add", x, zero), g.op("Sub", x, zero), g.op("Mul", x, g.constant(1.0))
    fed = {"x": np.float32([-0.0, 0.0, 1.0])}
    found = held(g.model(*results), feeds=fed)
    signs = [np.signbit(value).tolist() for value in reference.eval(found.graph, fed).values()]
    assert signs == [[False] * 3, [True, False, False], [True, False, False]]
