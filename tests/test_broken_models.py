"""A model with a few things broken, whatever they are, is refused by name or optimized like any other."""

from __future__ import annotations

import random
from collections.abc import Callable

import graph_files
import onnx
import pytest

import chips
import fuse
from fuse.commands.examples import EXAMPLES, find
from fuse.types import FuseError

CHIPS = [chips.load(name) for name in ("any", "none", "ort-cpu", "m3")]
MODELS = {name: find(name).read_bytes() for name in EXAMPLES}
MODELS |= {name: graph_files.read(name) for name in graph_files.NAMES}
NUMBERS = (-9, -1, 0, 1, 2, 3, 7, 1 << 40, -(1 << 63))


def operands(draw: random.Random, graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """One more, one fewer, none or another one."""
    value = draw.choice([name for one in graph.node for name in (*one.input, *one.output) if name])
    if not node.input or draw.random() < 0.2:
        node.input.append(value)
    elif draw.random() < 0.3:
        del node.input[draw.randrange(len(node.input))]
    else:
        node.input[draw.randrange(len(node.input))] = draw.choice(("", value))


def operator(draw: random.Random, graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    node.op_type = draw.choice(graph.node).op_type


def attribute(draw: random.Random, graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """A number, the kind or the name."""
    if not node.attribute:
        return
    one = draw.choice(node.attribute)
    way = draw.randrange(4)
    if way == 0:
        node.attribute.remove(one)
    elif way == 1:
        one.type = draw.randrange(15)
    elif one.ints:
        one.ints[draw.randrange(len(one.ints))] = draw.choice(NUMBERS)
    else:
        one.i = draw.choice(NUMBERS)


def constant(draw: random.Random, graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """Other numbers, dims or element type, or none at all."""
    if not graph.initializer:
        return
    one = draw.choice(graph.initializer)
    way = draw.randrange(4)
    if way == 0:
        graph.initializer.remove(one)
    elif way == 1:
        one.data_type = draw.randrange(30)
    elif way == 2 and one.dims:
        one.dims[draw.randrange(len(one.dims))] = draw.choice(NUMBERS)
    elif one.data_type == onnx.TensorProto.INT64:
        array = onnx.numpy_helper.to_array(one).copy()
        array.flat[: 1 + draw.randrange(3)] = draw.choice(NUMBERS)
        one.CopyFrom(onnx.numpy_helper.from_array(array, one.name))


def declared(draw: random.Random, graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """What an input, an output or an inner value is said to be."""
    one = draw.choice([*graph.input, *graph.output, *graph.value_info])
    shape = one.type.tensor_type.shape
    way = draw.randrange(4)
    if way == 0:
        one.type.tensor_type.elem_type = draw.randrange(25)
    elif way == 1 and shape.dim:
        del shape.dim[draw.randrange(len(shape.dim))]
    elif way == 2:
        shape.dim.add().dim_value = draw.choice(NUMBERS)
    elif shape.dim:
        draw.choice(shape.dim).dim_param = draw.choice(("batch*2", "a+b", "N-1", "a b", "é", "a//b"))


BREAKS: tuple[Callable[[random.Random, onnx.GraphProto, onnx.NodeProto], None], ...] = (
    operands,
    operator,
    attribute,
    constant,
    declared,
)


@pytest.mark.parametrize("seed", range(20))
def test_a_broken_model(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(12):
        name = draw.choice((*EXAMPLES, *MODELS))
        model = onnx.ModelProto.FromString(MODELS[name])
        for _ in range(draw.choice((1, 1, 3))):
            draw.choice(BREAKS)(draw, model.graph, draw.choice(model.graph.node))
        refusal = ""
        try:
            found = fuse.optimize(fuse.load(model), shim=draw.choice(CHIPS))
            found.graph.verify()
            assert found.report.model_dump_json()
            assert fuse.to_proto(found)
        except FuseError as error:
            refusal = str(error)
        assert "\n" not in refusal


@pytest.mark.parametrize("order", [(), (0,), (0, 2, 9, 1), (0, 0, 1, 2), (0, 2, 1, 3, 4)])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_transpose_in_no_order(name: str, order: tuple[int, ...]) -> None:
    """Each in turn, on models that are declared to have the shapes they had."""
    plain = onnx.ModelProto.FromString(MODELS[name])
    for number in [n for n, node in enumerate(plain.graph.node) if node.op_type == "Transpose"]:
        model = onnx.ModelProto()
        model.CopyFrom(plain)
        model.graph.node[number].ClearField("attribute")
        model.graph.node[number].attribute.append(onnx.helper.make_attribute("perm", order, attr_type=7))
        graph = fuse.load(model)
        for shim in CHIPS[:2]:
            fuse.optimize(graph, shim=shim).graph.verify()
