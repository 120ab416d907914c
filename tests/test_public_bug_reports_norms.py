"""Public bug reports of other optimizers about norms.

Each is a small model of its own, and what a right one does; a docstring says what goes wrong elsewhere, and
where it was reported."""

from __future__ import annotations

import lowering_models
import numpy as np
import pytest
from building import Building
from holding import built, counts, held, missed, nothing
from onnx import TensorProto, helper, numpy_helper
from reported import layer_norm_of, rms_of

import fuse
import reference


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


def test_ln_rank1() -> None:
    """X has the rank of gamma and beta, and they come first.

    microsoft/onnxruntime#31147
    """
    g = Building(opset=17)
    x, gamma, beta = g.input("x", 6), g.weight(6), g.weight(6)
    _, y = layer_norm_of(g, x, gamma, beta, first=False)
    assert built(held(g.model(y)), "layer_norm").inputs[:3] == (x, gamma, beta)


def test_a_weight_that_widens_x() -> None:
    """The last axis of x is one, the scale has two numbers: the result is wider than x.

    microsoft/onnxruntime#31980, onnx/onnx#8203
    """
    g = Building(opset=17)
    scaled, y = layer_norm_of(g, g.input("x", 3, 1), g.weight(2), g.weight(2))
    found = held(g.model(y))
    assert not any({scaled, y} & set(row.ops) for row in found.report.fired("layer_norm"))
    assert missed(found, "layer_norm") == {"guard:weight_spans_last_axis"}


def test_a_weight_with_leading_ones_lies_along_lanes() -> None:
    """Gamma and beta of [1,1,N] after a residual sum: a kernel that wants vectors fails, the form does not.

    microsoft/onnxruntime#27455
    """
    g = Building(opset=17)
    total = g.op("Add", g.input("x", 2, 3, 4), g.input("r", 2, 3, 4))
    _, y = layer_norm_of(g, total, g.weight(1, 1, 4), g.weight(1, 1, 4))
    assert counts(held(g.model(y)))["add_norm"] == 1


@pytest.mark.parametrize("place", ["two", "eps"])
def test_a_number_with_more_axes_than_x(place: str) -> None:
    """A constant of one element is a tensor too: of rank 4 it gives the result four axes.

    inisis/OnnxSlim#323
    """
    g = Building(opset=17)
    _, y = layer_norm_of(g, g.input("x", 3, 6), g.weight(6), g.weight(6))
    name = next(name for name in g.constants if name.startswith(place))
    g.constants[name] = np.asarray(g.constants[name]).reshape(1, 1, 1, 1)
    found = held(g.model(y))
    nothing(found, "layer_norm", "rms_norm")
    (row,) = found.report.near("layer_norm")
    assert (row.reasons[0].code, getattr(row.reasons[0], "at", "")) == ("operand", name)


def test_all_axes_of_a_vector_are_its_last() -> None:
    """Means without axes: of a vector they are those of its only axis, of more axes another function.

    microsoft/onnxruntime#31147
    """
    for dims, fires in (((6,), 1), ((3, 6), 0)):
        g = Building(opset=17)
        _, y = layer_norm_of(g, g.input("x", *dims), g.weight(6), g.weight(6))
        for node in g.nodes:
            if node.op_type == "ReduceMean":
                del node.attribute[:]
        found = held(g.model(y))
        assert counts(found)["layer_norm"] == fires
        assert missed(found, "layer_norm") == (set() if fires else {"attribute"})


def test_a_mean_over_no_axes() -> None:
    """Empty axes that say nothing is to be reduced are not all axes.

    microsoft/onnxruntime#14542
    """
    g = Building(opset=18)
    x = g.input("x", 6)
    mean = g.op("ReduceMean", g.op("Mul", x, x), noop_with_empty_axes=1)
    root = g.op("Sqrt", g.op("Add", mean, g.constant(0.1)))
    found = held(g.model(g.op("Mul", g.op("Div", x, root), g.weight(6))))
    nothing(found, "rms_norm")
    assert missed(found, "rms_norm") == {"attribute"}


@pytest.mark.parametrize("axis", [-1, 1])
def test_a_mean_whose_axis_is_put_back(axis: int) -> None:
    """Dropped and put back by an Unsqueeze: at the end it is the same norm, elsewhere the mean of row j
    is taken off column j.

    microsoft/onnxruntime#30513, #31144
    """
    g = Building(opset=17)
    x = g.input("x", 2, 5, 5)

    def mean(value: str) -> str:
        dropped = g.op("ReduceMean", value, axes=[-1], keepdims=0)
        return g.op("Unsqueeze", dropped, g.ints(axis))

    centred = g.op("Sub", x, mean(x))
    variance = mean(g.op("Mul", centred, centred))
    normed = g.op("Div", centred, g.op("Sqrt", g.op("Add", variance, g.constant(1e-5))))
    found = held(g.model(g.op("Add", g.op("Mul", normed, g.weight(5)), g.weight(5))))
    assert counts(found)["layer_norm"] == (axis == -1)
    assert missed(found, "layer_norm") == (set() if axis == -1 else {"attribute"})


def test_a_norm_without_a_weight() -> None:
    """The norm of a diffusion transformer has no gamma and stays in float.

    openvinotoolkit/openvino#36718
    """
    g = Building(opset=17)
    x = g.op("Cast", g.input("x", 3, 8, dtype=TensorProto.FLOAT16), to=TensorProto.FLOAT)
    mean = g.op("ReduceMean", g.op("Pow", x, g.constant(2.0)), axes=[-1], keepdims=1)
    y = g.op("Div", x, g.op("Sqrt", g.op("Add", mean, g.constant(1e-5))))
    half = g.op("Cast", y, to=TensorProto.FLOAT16)
    assert built(held(g.model(half, elements=(TensorProto.FLOAT16,))), "rms_norm").attrs["compute"] == "f32"


def test_the_sum_before_a_norm_is_an_output() -> None:
    """The last hidden state is handed out as well.

    microsoft/onnxruntime#17320
    """
    g = Building(opset=17)
    total = g.op("Add", g.input("x", 2, 3, 4), g.input("r", 2, 3, 4))
    y = g.op("LayerNormalization", total, g.weight(4), g.weight(4))
    found = held(g.model(total, y))
    assert built(found, "add_norm").outputs == (y, total)


def test_a_sum_wider_than_either_addend() -> None:
    """Both addends broadcast: neither is the residual of the other.

    microsoft/onnxruntime#27489, openvinotoolkit/openvino#30416
    """
    g = Building(opset=17)
    total = g.op("Add", g.input("x", 2, 1, 4), g.input("r", 1, 3, 4))
    found = held(g.model(g.op("LayerNormalization", total, g.weight(4))))
    nothing(found, "add_norm")
    assert missed(found, "add_norm") == {"guard:one_addend_is_the_sum"}


def test_a_native_norm_that_gives_its_mean() -> None:
    """The optional results are read, or only the last of them.

    pytorch/pytorch#94434
    """
    for names in (("mean", "deviation"), ("", "deviation")):
        g = Building(opset=17)
        total = g.op("Add", g.input("x", 2, 3, 4), g.input("r", 2, 3, 4))
        wanted = [name for name in names if name]
        g.nodes.append(helper.make_node("LayerNormalization", [total, g.weight(4)], ["y", *names], axis=-1))
        found = held(g.model("y", *wanted))
        nothing(found, "add_norm")
        assert missed(found, "add_norm") == {"arity"}
