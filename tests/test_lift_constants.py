"""Lifting constants: nodes, sparse ones, contents, defaults of graph inputs."""

from __future__ import annotations

import numpy as np
import pytest
from lift_models import kinds, model, of_nodes
from onnx import TensorProto, helper, numpy_helper

from fuse.lift import load
from fuse.types import Type


@pytest.mark.parametrize(
    ("attributes", "dtype", "values"),
    [
        ({"value_int": 3}, "i64", 3),
        ({"value_ints": [3, 4]}, "i64", [3, 4]),
        ({"value_float": 0.5}, "f32", 0.5),
        ({"value_floats": [0.5, 1.5]}, "f32", [0.5, 1.5]),
        ({"value_string": "a"}, "str", b"a"),
        ({"value": numpy_helper.from_array(np.float16([[0.1]]))}, "f16", [[float(np.float16(0.1))]]),
    ],
)
def test_constant_nodes(attributes: dict[str, object], dtype: str, values: object) -> None:
    nodes = [
        helper.make_node("Constant", [], ["c"], **attributes),
        helper.make_node("Odd", ["x", "c"], ["y"], domain="acme"),
    ]
    graph = load(of_nodes(nodes, {"x": [2]}, ["y"]))
    tensor = graph.constant("c")
    assert tensor is not None
    array = tensor.array()
    assert graph.type("c") == Type(dtype, array.shape)
    assert (array.tolist() if dtype != "str" else array.item().encode()) == values
    assert graph.base.model.lifting["constants"] == 1
    assert kinds(graph) == ["acme.Odd"]


def test_sparse_constants_are_dense() -> None:
    values = numpy_helper.from_array(np.float32([5, 7]), "s")
    pairs = numpy_helper.from_array(np.int64([[0, 1], [2, 0]]))
    flat = numpy_helper.from_array(np.int64([1, 4]))
    nodes = [
        helper.make_node("Constant", [], ["c"], sparse_value=helper.make_sparse_tensor(values, flat, [3, 2])),
        helper.make_node("Add", ["s", "c"], ["t"]),
        helper.make_node("Add", ["x", "t"], ["y"]),
    ]
    proto = of_nodes(
        nodes, {"x": [3, 2]}, ["y"], sparse_initializer=[helper.make_sparse_tensor(values, pairs, [3, 2])]
    )
    graph = load(proto)
    sparse, constant = graph.constant("s"), graph.constant("c")
    assert sparse is not None
    assert constant is not None
    assert sparse.array().tolist() == [[0, 5], [0, 0], [7, 0]]
    assert constant.array().tolist() == [[0, 5], [0, 0], [7, 0]]
    assert graph.type("t") == Type("f32", (3, 2))


def test_contents_of_small_constants() -> None:
    tensors = {
        "i": np.arange(6, dtype=np.int32).reshape(2, 3),
        "b": np.array([True, False]),
        "many": np.arange(17),
        "h": np.float16([0.1]),
        "f": np.float32(0.1),
        "d": np.float64(0.1),
        "fs": np.float32([1, 2]),
        "none": np.zeros((0,), np.int64),
    }
    proto = of_nodes(
        [helper.make_node("Odd", ["x", *tensors], ["y"], domain="acme")],
        {"x": [1]},
        ["y"],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    graph = load(proto)
    assert graph.content("i") == (0, 1, 2, 3, 4, 5)
    assert graph.content("b") == (True, False)
    assert graph.content("none") == ()
    assert graph.content("h") == (float(np.float16(0.1)),)
    assert graph.content("f") == (float(np.float32(0.1)),)
    assert graph.content("d") == (0.1,)
    assert graph.content("many") is None
    assert graph.content("fs") == (1.0, 2.0)


@pytest.mark.parametrize("typed", [False, True])
def test_bfloat16_and_packed_types(typed: bool) -> None:
    one = helper.make_tensor("one", TensorProto.BFLOAT16, [], [1.5])
    four = helper.make_tensor("four", TensorProto.INT4, [3], [-8, 7, 1])
    if typed:
        one.ClearField("raw_data")
        one.int32_data[:] = [0x3FC0]
    proto = of_nodes(
        [helper.make_node("Odd", ["x", "one", "four"], ["y"], domain="a")], {"x": [1]}, ["y"], [one, four]
    )
    graph = load(proto)
    assert graph.content("one") == (1.5,)
    assert graph.content("four") == (-8, 7, 1)
    tensor = graph.constant("four")
    assert tensor is not None
    assert tensor.nbytes == 2


def test_a_default_is_no_constant_and_stays_an_input() -> None:
    body = "(f32[2] x, f32 p = {2}) => (f32[2] y) { q = Add(p, p) y = Pow(x, q) }"
    graph = load(model(body))
    assert graph.inputs == ("x", "p")
    assert graph.constant("p") is None
    assert graph.content("p") is None
    assert graph.base.overridable["p"].array().item() == 2
    assert kinds(graph) == ["Add", "Pow"]


def test_before_ir_version_4_a_default_is_the_only_way_to_write_a_constant() -> None:
    graph = load(model("(f32[2] x, f32 p = {2}) => (f32[2] y) { y = Pow(x, p) }", opset=8, ir=3))
    assert graph.inputs == ("x",)
    assert graph.scalar("p") == 2
