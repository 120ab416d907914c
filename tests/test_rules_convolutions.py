"""Convolutions folded and with an epilogue: spellings, guards, inner outputs, definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from building import Building, codes, drawn, each_interior_as_an_output, fired, near, optimized
from hypothesis import strategies as st
from onnx import ModelProto

import fuse

DTYPE = st.sampled_from([np.float32, np.float16])
#: Channels out; space wide enough for every kernel below.
C = 4
SHAPES = {
    "plain": ((6,), {}),
    "padded": ((5, 4), {"pads": [1, 0, 1, 2]}),
    "strided": ((7, 6), {"strides": [2, 3], "dilations": [2, 1]}),
    "grouped": ((6,), {"group": 2, "pads": [1, 1]}),
    "same": ((7, 5), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "same_lower": ((6, 6), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    "valid": ((3, 4, 5), {"auto_pad": "VALID"}),
}


def conv(g: Building, shape: str = "plain", bias: bool = False, x: str = "") -> tuple[str, int]:
    """A convolution of 2 channels; its result, and how many axes of space it has."""
    space, attrs = SHAPES[shape]
    x = x or g.input("x", 2, 2, *space)
    weight = g.weight(C, 2 // attrs.get("group", 1), *(2 for _ in space), about=0.0)
    return g.op("Conv", x, weight, *([g.weight(C)] if bias else []), **attrs), len(space)


def rows(g: Building, axes: int) -> str:
    """One number a channel, as exporters write it beside a batch."""
    return g.weight(*((1, C) if axes % 2 else (C,)), *(1,) * axes)


def folded(
    dtype: Any = np.float32, shape: str = "plain", way: str = "norm", bias: bool = False, seed: int = 0
) -> ModelProto:
    g = Building(dtype, opset=14, seed=seed)
    y, axes = conv(g, shape, bias)
    if way == "norm":
        variance = g.constant(np.abs(g.draw.normal(1, 0.2, C)).astype(dtype))
        y = g.op("BatchNormalization", y, g.weight(C), g.weight(C), g.weight(C), variance, epsilon=1e-3)
    else:
        y = g.op("Mul", y, rows(g, axes))
        y = g.op("Add", rows(g, axes), y) if way == "both" else y
    return g.model(y)


@drawn(
    st.integers(0, 99),
    DTYPE,
    st.sampled_from(list(SHAPES)),
    st.sampled_from(["norm", "scale", "both"]),
    st.booleans(),
)
def test_conv_affine_agrees_with_its_definition(
    seed: int, dtype: Any, shape: str, way: str, bias: bool
) -> None:
    op = fired(folded(dtype, shape, way, bias, seed), "conv_affine", seed)
    assert [bool(v) for v in op.inputs[2:]] == [bias, True, way != "scale", way == "norm", way == "norm"]


ACTIVATIONS: dict[str, Any] = {
    "Relu": {}, "Sigmoid": {}, "Tanh": {}, "LeakyRelu": {"alpha": 0.2}, "HardSigmoid": {"alpha": 0.25},
    "HardSwish": {}, "Elu": {"alpha": 0.5}, "Softplus": {},
}  # fmt: skip


def act(g: Building, x: str, kind: str) -> str:
    if kind == "Clip":
        return g.op("Clip", x, g.constant(-0.5), g.constant(1.5))
    if kind == "silu":
        return g.op("Mul", x, g.op("Sigmoid", x))
    return g.op(kind, x, **ACTIVATIONS[kind])


def epilogue(
    dtype: Any = np.float32,
    shape: str = "plain",
    kind: str = "Relu",
    bias: bool = False,
    added: bool = False,
    residual: bool = False,
    affine: bool = False,
    rounded: bool = False,
    seed: int = 0,
) -> ModelProto:
    g = Building(dtype, opset=19, seed=seed)
    y, axes = conv(g, shape, bias)
    if affine:
        y = g.op("Mul", y, rows(g, axes))
    if added:
        y = g.op("Add", y, rows(g, axes))
    if rounded:
        scale, zero = g.constant(0.05), g.constant(np.array(120, np.uint8))
        y = g.op("DequantizeLinear", g.op("QuantizeLinear", y, scale, zero), scale, zero)
    if residual:
        y = g.op("Add", g.input("residual", *_dims(g, y)), y)
    return g.model(act(g, y, kind))


def _dims(g: Building, value: str) -> tuple[int, ...]:
    dims = fuse.load(g.model(value)).dims(value)
    assert dims is not None
    return tuple(dim for dim in dims if isinstance(dim, int))


@drawn(
    st.integers(0, 99),
    DTYPE,
    st.sampled_from(list(SHAPES)),
    st.sampled_from([*ACTIVATIONS, "Clip", "silu"]),
    st.tuples(*(st.booleans(),) * 3),
)
def test_conv_act_agrees_with_its_definition(
    seed: int, dtype: Any, shape: str, kind: str, parts: tuple[bool, ...]
) -> None:
    bias, added, residual = parts
    op = fired(epilogue(dtype, shape, kind, bias, added, residual, seed=seed), "conv_act", seed)
    assert bool(op.inputs[2]) == (bias or added)
    assert bool(op.inputs[4]) == (bias and added)
    assert bool(op.inputs[9]) == residual


@drawn(st.integers(0, 99), st.booleans(), st.booleans())
def test_the_fold_comes_before_the_activation(seed: int, added: bool, bias: bool) -> None:
    model = epilogue(affine=True, added=added, bias=bias, seed=seed)
    op = fired(model, "conv_act", seed)
    assert [part.kind for part in op.parts] == ["conv_affine", "Relu"]
    assert op.inputs[3]
    assert bool(op.inputs[4]) == added


@drawn(st.integers(0, 99), st.booleans())
def test_a_result_rounded_to_codes(seed: int, residual: bool) -> None:
    op = fired(epilogue(rounded=True, residual=residual, seed=seed), "conv_act", seed)
    assert op.attrs["codes"] == "u8"
    assert all(op.inputs[7:9])


# ---- guards --------------------------------------------------------------------------------------
def weight_at_run_time() -> ModelProto:
    g = Building()
    weight = g.overridable(g.weight(C, 2, 3))
    return g.model(g.op("Relu", g.op("Conv", g.input("x", 2, 2, 6), weight)))


def bare_bias() -> ModelProto:
    """A bias of rank 1 broadcasts along the width, which here is as wide as there are channels."""
    g = Building()
    y = g.op("Conv", g.input("x", 2, 2, 5, 5), g.weight(C, 2, 2, 2))
    return g.model(g.op("Relu", g.op("Add", y, g.weight(C))))


def narrow_residual() -> ModelProto:
    g = Building()
    y, _ = conv(g)
    return g.model(g.op("Relu", g.op("Add", y, g.input("residual", 2, C, 1))))


def bound_at_run_time() -> ModelProto:
    g = Building()
    y, _ = conv(g)
    y = g.op("Add", y, g.weight(C, 1))
    return g.model(g.op("Clip", y, g.constant(0.0), g.input("high")))


ACT_GUARDS = {
    weight_at_run_time: "operand",
    bare_bias: "guard:bias_lies_along_the_channels",
    narrow_residual: "guard:residual_has_the_dims_of_the_result",
    bound_at_run_time: "operand",
}


@pytest.mark.parametrize("build", ACT_GUARDS, ids=lambda build: build.__name__)
def test_what_is_no_conv_act(build: Any) -> None:
    assert codes(build(), "conv_act") == {ACT_GUARDS[build]}


def training() -> ModelProto:
    g = Building(opset=14)
    y, _ = conv(g)
    stats = [g.weight(C) for _ in range(3)]
    out = g.op(
        "BatchNormalization", y, *stats, g.constant(np.ones(C, np.float32)), outputs=3, training_mode=1
    )
    return g.model(out[0])


def scaled_along_the_width() -> ModelProto:
    g = Building()
    y, _ = conv(g)
    return g.model(g.op("Add", g.op("Mul", y, g.weight(5)), g.weight(C, 1)))


def folded_weight_at_run_time() -> ModelProto:
    g = Building()
    weight = g.overridable(g.weight(C, 2, 3))
    return g.model(g.op("Mul", g.op("Conv", g.input("x", 2, 2, 6), weight), g.weight(C, 1)))


AFFINE_GUARDS = {
    scaled_along_the_width: "guard:scale_and_shift_lie_along_the_channels",
    folded_weight_at_run_time: "operand",
}


@pytest.mark.parametrize("build", AFFINE_GUARDS, ids=lambda build: build.__name__)
def test_what_is_not_folded(build: Any) -> None:
    assert codes(build(), "conv_affine") == {AFFINE_GUARDS[build]}


def test_a_batch_norm_in_training_is_not_folded() -> None:
    found = optimized(training())
    assert not found.report.fired("conv_affine")
    assert near(training(), "conv_affine") == {"attribute"}


def test_one_number_for_all_channels_is_left() -> None:
    g = Building()
    y, _ = conv(g)
    assert codes(g.model(g.op("Mul", y, g.constant(0.5))), "conv_affine") == set()


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (folded(way="both"), "conv_affine"),
        (epilogue(added=True, residual=True, kind="silu"), "conv_act"),
        (epilogue(rounded=True), "conv_act"),
    ],
)
def test_outputs_inside_a_convolution(model: ModelProto, kind: str) -> None:
    assert each_interior_as_an_output(model, kind) > 1


def test_a_block_that_activates_first_has_no_epilogue() -> None:
    """DPT, ResNet v2: what the activation reads is the stream, and the block's result is added to it."""
    g = Building(opset=17)
    y, _ = conv(g, "padded", bias=True)
    inner = g.op("Conv", g.op("Relu", y), g.weight(C, C, 1, 1, about=0.0))
    assert codes(g.model(g.op("Add", inner, y)), "conv_act") == set()


# ---- sums of branches ----------------------------------------------------------------------------
def branches(g: Building, count: int, zero: bool) -> str:
    """A sum of convolutions, which a loop may start from zero (RepVGG, MobileOne)."""
    x = g.input("x", 2, 2, 6)
    parts = [conv(g, x=x)[0] for _ in range(count)]
    total = g.op("Add", parts[0], g.constant(0.0)) if zero else parts[0]
    for part in parts[1:]:
        total = g.op("Add", total, part)
    return total


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_sum_of_branches_is_a_residual_of_the_last(count: int, zero: bool) -> None:
    g = Building()
    op = fired(g.model(g.op("Relu", branches(g, count, zero))), "conv_act")
    assert op.inputs[9]


def test_a_sum_that_ends_in_zero() -> None:
    g = Building()
    y = g.op("Relu", g.op("Add", branches(g, 4, False), g.constant(0.0)))
    op = fired(g.model(y), "conv_act")
    assert [part.kind for part in op.parts] == ["Conv", "Add", "Add", "Relu"]
    assert near(g.model(y), "conv_act") == set()


def test_an_activation_that_others_read_is_not_one_too_many() -> None:
    """A residual block's result goes to the next block's sum, whose other addend is no convolution."""
    g = Building()
    stream = g.op("Relu", g.op("Add", conv(g)[0], g.input("z", 2, C, 5)))
    pooled = g.op("Sigmoid", g.op("GlobalAveragePool", stream))
    y = g.op("Relu", g.op("Add", g.op("Mul", stream, pooled), stream))
    model = g.model(y)
    assert fired(model, "conv_act").attrs["act"] == "relu"
    assert near(model, "conv_act") == set()


def test_one_number_behind_an_activation_is_no_scale_of_channels() -> None:
    """HGNet: an activation, then one scale and one shift for all channels."""
    g = Building()
    y = g.op("Mul", g.op("Relu", conv(g)[0]), g.constant(0.5))
    assert codes(g.model(g.op("Add", y, g.constant(0.1))), "conv_affine") == set()


def test_weights_computed_from_constants_are_known() -> None:
    """Weight standardization (NFNet): a mean and a deviation of each filter, taken where the model runs."""
    g = Building(opset=14)
    weight = g.weight(C, 2, 3)
    centred = g.op("Sub", weight, g.op("ReduceMean", weight, axes=[1, 2], keepdims=1))
    square = g.op("ReduceMean", g.op("Mul", centred, centred), axes=[1, 2], keepdims=1)
    standard = g.op("Div", centred, g.op("Sqrt", g.op("Add", square, g.constant(1e-5))))
    y = g.op("Relu", g.op("Conv", g.input("x", 2, 2, 6), standard))
    assert fired(g.model(y), "conv_act").inputs[1] == standard
    assert near(g.model(y), "conv_act") == set()


def test_a_random_weight_is_not_known() -> None:
    g = Building()
    weight = g.op("RandomNormalLike", g.weight(C, 2, 3))
    y = g.op("Relu", g.op("Conv", g.input("x", 2, 2, 6), weight))
    assert not optimized(g.model(y)).report.fired("conv_act")
