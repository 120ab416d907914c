"""Public bug reports of other optimizers about activations and gates.

Each is a small model of its own, and what a right one does; a docstring says what goes wrong elsewhere, and
where it was reported."""

from __future__ import annotations

import numpy as np
import pytest
from building import Building
from holding import built, counts, held, missed, nothing
from reported import erf_of


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


@pytest.mark.parametrize("spelling", ["negated", "constant", "outside"])
def test_gelu_by_the_complement_of_erf(spelling: str) -> None:
    """JAX's exact form is x / 2 times 1 - erf(-x / sqrt(2)).

    tenstorrent/tt-xla#618, kasper0406/stablehlo-coreml#90
    """
    g = Building(opset=17)
    x = g.input("x", 2, 5)
    if spelling == "negated":
        inner = g.op("Mul", g.op("Neg", x), g.constant(0.5**0.5))
    elif spelling == "constant":
        inner = g.op("Mul", x, g.constant(-(0.5**0.5)))
    else:
        inner = g.op("Neg", g.op("Div", x, g.constant(2**0.5)))
    rest = g.op("Sub", g.constant(1.0), g.op("Erf", inner))
    assert counts(held(g.model(g.op("Mul", rest, g.op("Mul", x, g.constant(0.5))))))["gelu"] == 1


def test_less_erf_is_another_function() -> None:
    """1 - erf where 1 + erf is meant, and erf - 1 where 1 - erf is.

    tenstorrent/tt-xla#618
    """
    for first, sign, code in ((True, 1, "op"), (False, -1, "operand")):
        g = Building(opset=17)
        x = g.input("x", 2, 5)
        erf, one = g.op("Erf", g.op("Mul", x, g.constant(sign * 0.5**0.5))), g.constant(1.0)
        rest = g.op("Sub", *((one, erf) if first else (erf, one)))
        found = held(g.model(g.op("Mul", rest, g.op("Mul", x, g.constant(0.5)))))
        nothing(found, "gelu")
        assert missed(found, "gelu") == {code}


def tanh_gelu(g: Building, x: str, cube: str) -> str:
    inner = g.op("Add", x, g.op("Mul", g.constant(0.044715), cube))
    return g.op("Tanh", g.op("Mul", g.constant((2 / np.pi) ** 0.5), inner))


@pytest.mark.parametrize("power", ["product", "power", "whole power"])
@pytest.mark.parametrize("half_last", [True, False])
def test_gelu_by_tanh_however_it_is_factored(power: str, half_last: bool) -> None:
    """The cube as x x x or as a power of whole type, the half multiplied in first or last.

    kasper0406/stablehlo-coreml#90, openvinotoolkit/openvino#20428, microsoft/onnxscript#2132
    """
    g = Building(opset=17)
    x = g.input("x", 2, 5)
    if power == "product":
        cube = g.op("Mul", g.op("Mul", x, x), x)
    else:
        cube = g.op("Pow", x, g.ints(3) if power == "whole power" else g.constant(3.0))
    rest = g.op("Add", tanh_gelu(g, x, cube), g.constant(1.0))
    if half_last:
        y = g.op("Mul", g.constant(0.5), g.op("Mul", x, rest))
    else:
        y = g.op("Mul", g.op("Mul", x, g.constant(0.5)), rest)
    assert counts(held(g.model(y)))["fast_gelu"] == 1


def test_gelu_in_half_precision() -> None:
    """The root of two is 1.414 there.

    openvinotoolkit/openvino#17042
    """
    g = Building(np.float16, opset=17)
    x = g.input("x", 2, 5)
    rest = g.op("Add", g.op("Erf", g.op("Div", x, g.constant(2**0.5))), g.constant(1.0))
    y = g.op("Mul", g.op("Mul", x, rest), g.constant(0.5))
    assert counts(held(g.model(y)))["gelu"] == 1


@pytest.mark.parametrize("dims", [(), (2, 5)])
def test_a_number_with_more_axes_than_the_activated_value(dims: tuple[int, ...]) -> None:
    """Of a number x the sum with a vector of one element is a vector.

    inisis/OnnxSlim#323
    """
    g = Building(opset=17)
    x = g.input("x", *dims)
    one = g.constant(np.ones((1,) * (len(dims) + 1), np.float32))
    y = g.op("Mul", g.op("Mul", x, g.op("Add", erf_of(g, x), one)), g.constant(0.5))
    found = held(g.model(y))
    nothing(found, "gelu")
    (row,) = found.report.near("gelu")
    assert (row.reasons[0].code, getattr(row.reasons[0], "at", "")) == ("operand", one)


@pytest.mark.parametrize("bounds", ["low", "high"])
def test_a_clip_with_one_bound_is_no_hard_swish(bounds: str) -> None:
    """Kept above 0 only, or below 6 only: an absent bound is none.

    microsoft/onnxscript#2836, microsoft/onnxruntime#26878
    """
    g = Building(opset=17)
    x = g.input("x", 2, 5)
    limits = (g.constant(0.0),) if bounds == "low" else ("", g.constant(6.0))
    y = g.op("Div", g.op("Mul", x, g.op("Clip", g.op("Add", x, g.constant(3.0)), *limits)), g.constant(6.0))
    found = held(g.model(y))
    nothing(found, "hard_swish")
    assert "hard_swish" in {row.rule for row in found.report.near()}


def test_a_clip_of_a_relu_in_double() -> None:
    """Bounds of another type than a fuser reads; -1 is no bound after the relu.

    microsoft/onnxruntime#11836, #23116, #24158, #10936, #9753
    """
    g = Building(np.float64, opset=14)
    relu = g.op("Relu", g.input("x", 2, 5))
    held(g.model(g.op("Clip", relu, g.constant(-1.0), g.constant(1.0))))


@pytest.mark.parametrize("act", ["silu", "gelu", "mish"])
def test_infinities_and_nan_pass_as_they_are(act: str) -> None:
    """Minus infinity times zero is no number, by its parts and by its form.

    uxlfoundation/oneDNN#5370, microsoft/onnxruntime#11010
    """
    g = Building(opset=17)
    x = g.input("x", 6)
    if act == "silu":
        y = g.op("Mul", x, g.op("Sigmoid", x))
    elif act == "mish":
        y = g.op("Mul", x, g.op("Tanh", g.op("Softplus", x)))
    else:
        y = g.op("Mul", g.op("Mul", x, g.op("Add", erf_of(g, x), g.constant(1.0))), g.constant(0.5))
    fed = {"x": np.array([np.inf, -np.inf, np.nan, -0.0, 1000, -1000], np.float32)}
    assert counts(held(g.model(y), feeds=fed))[act] == 1


def test_a_gate_that_broadcasts() -> None:
    """One number for each row: gate and up are not of one width.

    openvinotoolkit/openvino#30416
    """
    g = Building(opset=17)
    x = g.input("x", 3, 8)
    gate, up = g.op("MatMul", x, g.weight(8, 10)), g.op("MatMul", x, g.weight(8, 1))
    found = held(g.model(g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up)))
    nothing(found, "swiglu")
    assert missed(found, "gated_act") == {"guard:halves_are_one_width"}
