"""Group norm, layer norm by sums, mish and hard swish: spellings, guards, inner outputs, definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from building import Building, codes, drawn, each_interior_as_an_output, fired, near
from hypothesis import strategies as st
from onnx import ModelProto

import fuse
from fuse.forms.normalizations import group_norm as group_norm_form

DTYPE = st.sampled_from([np.float32, np.float16])


# ---- group norm ----------------------------------------------------------------------------------
def group_norm(
    dtype: Any = np.float32,
    groups: int = 2,
    space: tuple[int, ...] = (5,),
    affine: str = "both",
    seed: int = 0,
    **changed: Any,
) -> ModelProto:
    g = Building(dtype, seed=seed)
    dims = (2, 4, *space)
    x = g.input("x", *dims)
    cut = g.op("Reshape", x, g.ints(*changed.get("cut", (0, groups, -1))))
    ones = g.constant(np.full(groups, changed.get("inner", 1), dtype))
    zeros = g.constant(np.full(groups, changed.get("added", 0), dtype))
    y = g.op("InstanceNormalization", cut, ones, zeros, epsilon=1e-3)
    y = g.op("Reshape", y, g.ints(*changed.get("back", dims)))
    for kind in ("Mul", "Add")[: {"both": 2, "weight": 1, "none": 0}[affine]]:
        y = g.op(kind, y, g.weight(*changed.get("weight", (4, *(1,) * len(space)))))
    return g.model(y)


@drawn(st.integers(0, 99), DTYPE, st.sampled_from([1, 2, 4]), st.sampled_from([(5,), (3, 2)]))
def test_group_norm_agrees_with_its_definition(
    seed: int, dtype: Any, groups: int, space: tuple[int, ...]
) -> None:
    op = fired(group_norm(dtype, groups, space, seed=seed), "group_norm", seed)
    assert op.attrs["groups"] == groups
    assert op.attrs["eps"] == pytest.approx(1e-3)


@pytest.mark.parametrize("affine", ["weight", "none"])
def test_group_norm_without_all_of_its_affine(affine: str) -> None:
    op = fired(group_norm(affine=affine), "group_norm")
    assert [bool(v) for v in op.inputs] == [True, affine == "weight", False]


@pytest.mark.parametrize("number", [0.0, 1.0])
def test_a_group_norm_whose_weight_or_bias_does_nothing(number: float) -> None:
    """What torch writes where a group norm has none: one number for all channels."""
    g = Building()
    y = g.op("Reshape", g.input("x", 2, 4, 5), g.ints(0, 2, -1))
    y = g.op("InstanceNormalization", y, g.constant([1.0, 1.0]), g.constant([0.0, 0.0]))
    y = g.op("Reshape", y, g.ints(2, 4, 5))
    factor = g.constant(np.full((1, 1), 1.0, np.float32)) if number else g.weight(4, 1)
    y = g.op("Add", g.op("Mul", y, factor), g.constant(np.full((1, 1), number, np.float32)))
    model = g.model(y)
    op = fired(model, "group_norm")
    assert [bool(v) for v in op.inputs] == [True, not number, False]
    assert [part.kind for part in op.parts].count("Add") == (0 if number else 1)
    assert near(model, "group_norm") == ({"guard:lies_along_the_channels"} if number else set())


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"cut": (1, 4, -1)}, "guard:groups_divide_channels"),
        ({"back": (4, 2, 5)}, "guard:reshape_gives_the_shape_back"),
        ({"inner": 2}, "operand"),
        ({"added": 1}, "operand"),
        ({"weight": (5,), "affine": "weight"}, "guard:lies_along_the_channels"),
    ],
)
def test_what_is_no_group_norm(changed: dict[str, Any], code: str) -> None:
    changed = dict(changed)
    groups = 4 if "cut" in changed else 2
    affine = changed.pop("affine", "none")
    model = group_norm(groups=groups, affine=affine, **changed)
    if affine == "weight":
        # The norm without a weight still fires; the larger form says why it stopped.
        assert fired(model, "group_norm").inputs[1] == ""
        assert near(model, "group_norm") == {code}
        return
    assert codes(model, "group_norm") == {code}


def test_a_group_norm_in_double_is_left() -> None:
    assert codes(group_norm(np.float64), "group_norm") == {"operand"}


def test_outputs_inside_a_group_norm() -> None:
    assert each_interior_as_an_output(group_norm(), "group_norm") == 4


# ---- layer norm by sums --------------------------------------------------------------------------
def by_sums(
    dtype: Any = np.float32, seed: int = 0, keep: int = 0, clamp: bool = True, **changed: Any
) -> ModelProto:
    g = Building(dtype, seed=seed)
    rows, width = 3, 8
    x = g.input("x", rows, width)
    per = g.constant(changed.get("per", 1 / width))
    total = g.op("ReduceSum", x, g.ints(-1), keepdims=keep)
    squares = g.op("ReduceSum", g.op("Mul", x, x), g.ints(-1), keepdims=keep)
    mean, mean_square = g.op("Mul", total, per), g.op("Mul", squares, per)
    variance = g.op("Sub", mean_square, g.op("Mul", mean, mean))
    if clamp:
        variance = g.op("Max", variance, g.constant(0.0))
    if not keep and changed.get("put_back", True):
        shape = g.ints(rows, 1)
        mean, variance = (g.op("Reshape", value, shape) for value in (mean, variance))
        mean, variance = (g.op("Expand", value, shape) for value in (mean, variance))
    root = g.op("Reciprocal", g.op("Sqrt", g.op("Add", variance, g.constant(1e-3))))
    scaled = g.op("Mul", root, g.weight(1, width))
    y = g.op("Mul", g.op("Sub", x, mean), scaled)
    return g.model(g.op("Add", y, g.weight(1, width)))


@drawn(st.integers(0, 99), DTYPE, st.booleans(), st.booleans())
def test_layer_norm_by_sums_agrees_with_its_definition(
    seed: int, dtype: Any, keep: bool, clamp: bool
) -> None:
    op = fired(by_sums(dtype, seed, int(keep), clamp), "layer_norm", seed)
    assert all(op.inputs[:3])


def test_sums_of_another_count() -> None:
    assert codes(by_sums(per=1 / 7), "layer_norm") == {"guard:average_is_over_the_width"}


def test_sums_that_are_not_put_back() -> None:
    g = Building()
    x = g.input("x", 8, 8)
    mean = g.op("Mul", g.op("ReduceSum", x, g.ints(-1), keepdims=0), g.constant(1 / 8))
    squares = g.op("ReduceSum", g.op("Mul", x, x), g.ints(-1), keepdims=0)
    variance = g.op("Sub", g.op("Mul", squares, g.constant(1 / 8)), g.op("Mul", mean, mean))
    root = g.op("Reciprocal", g.op("Sqrt", g.op("Add", variance, g.constant(1.0))))
    y = g.op("Mul", g.op("Sub", x, mean), g.op("Mul", root, g.weight(8)))
    model = g.model(y)
    assert codes(model, "layer_norm") == {"guard:sums_are_put_back"}


def test_outputs_inside_a_layer_norm_by_sums() -> None:
    assert each_interior_as_an_output(by_sums(), "layer_norm") == 18


# ---- mish and hard swish -------------------------------------------------------------------------
def mish(g: Building, x: str, way: int) -> str:
    written_out = way and g.op("Log", g.op("Add", g.op("Exp", x), g.constant(1.0)))
    return g.op("Mul", g.op("Tanh", written_out or g.op("Softplus", x)), x)


def hard_swish(
    g: Building, x: str, way: int, low: float = 0.0, high: float = 6.0, slope: float = 1 / 6
) -> str:
    if way == 0:
        kept = g.op("Clip", g.op("Add", x, g.constant(3.0)), g.constant(low), g.constant(high))
        return g.op("Div", g.op("Mul", x, kept), g.constant(1 / slope))
    if way == 1:
        kept = g.op("Min", g.op("Relu", g.op("Add", g.constant(3.0), x)), g.constant(high))
        return g.op("Mul", g.op("Mul", kept, g.constant(slope)), x)
    return g.op("Mul", x, g.op("HardSigmoid", x, alpha=slope, beta=0.5))


@drawn(st.integers(0, 99), DTYPE, st.integers(0, 1))
def test_mish_agrees_with_its_definition(seed: int, dtype: Any, way: int) -> None:
    g = Building(dtype)
    fired(g.model(mish(g, g.input("x", 3, 5), way)), "mish", seed)


@drawn(st.integers(0, 99), DTYPE, st.integers(0, 2))
def test_hard_swish_agrees_with_its_definition(seed: int, dtype: Any, way: int) -> None:
    g = Building(dtype)
    fired(g.model(hard_swish(g, g.input("x", 3, 5), way)), "hard_swish", seed)


def test_hard_swish_with_bounds_as_attributes() -> None:
    g = Building(opset=9)
    x = g.input("x", 3, 5)
    kept = g.op("Clip", g.op("Add", x, g.constant(3.0)), min=0.0, max=6.0)
    fired(g.model(g.op("Div", g.op("Mul", x, kept), g.constant(6.0))), "hard_swish")


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"way": 0, "high": 5.0}, "operand"),
        ({"way": 0, "low": -1.0}, "operand"),
        ({"way": 0, "slope": 1 / 5}, "operand"),
        ({"way": 2, "slope": 0.2}, "attribute"),
    ],
)
def test_what_is_no_hard_swish(changed: dict[str, Any], code: str) -> None:
    g = Building()
    assert codes(g.model(hard_swish(g, g.input("x", 3, 5), **changed)), "hard_swish") == {code}


def test_a_silu_of_a_scaled_value_is_no_quick_gelu() -> None:
    g = Building()
    x = g.op("Mul", g.input("x", 3, 4), g.constant(1.702))
    model = g.model(g.op("Mul", x, g.op("Sigmoid", x)))
    assert codes(model, "quick_gelu") == set()
    fired(model, "silu")


def test_a_squeeze_and_excite_gate_is_no_hard_swish() -> None:
    g = Building()
    x, other = g.input("x", 2, 3, 4, 4), g.input("other", 2, 3, 1, 1)
    assert codes(g.model(g.op("Mul", x, g.op("HardSigmoid", other, alpha=1 / 6))), "hard_swish") == set()


def test_outputs_inside_mish_and_hard_swish() -> None:
    g = Building()
    assert each_interior_as_an_output(g.model(mish(g, g.input("x", 3, 5), 1)), "mish") == 4
    g = Building()
    assert each_interior_as_an_output(g.model(hard_swish(g, g.input("x", 3, 5), 0)), "hard_swish") == 3


# ---- the form ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("opset", "rows"), [(21, 4), (18, 4), (18, 2)])
def test_a_native_group_norm_is_read_alike(opset: int, rows: int) -> None:
    g = Building(opset=opset)
    x = g.input("x", 2, 4, 5)
    # Version 18 has a number a group: of two groups it is another function, of four the same.
    groups = 2 if rows == 2 or opset == 21 else 4
    y = g.op("GroupNormalization", x, g.weight(rows), g.weight(rows), num_groups=groups, epsilon=1e-3)
    graph = fuse.load(g.model(y))
    read = group_norm_form(graph, next(graph.of_kind("GroupNormalization")))
    if opset == 18 and rows == 2:
        assert read is None
    else:
        assert read is not None
        assert (read.x, read.groups, read.eps) == ("x", groups, pytest.approx(1e-3))
    built = fired(group_norm(), "group_norm")
    ours = group_norm_form(fuse.load(group_norm()), built)
    assert ours is not None
    assert (ours.x, ours.groups) == ("x", 2)
