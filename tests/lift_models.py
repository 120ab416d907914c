"""Small models in ONNX text, for the tests of the lift."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from fuse.ir import Graph, Op


def model(body: str, opset: int = 17, ir: int = 8, domains: str = "") -> onnx.ModelProto:
    """A model of one graph in ONNX text: `(f32[2] x) => (f32[2] y) { ... }` with f32 for float."""
    body = body.replace("f32", "float").replace("i64", "int64").replace("f16", "float16")
    return onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}{domains}]> g {body}')


def of_nodes(
    nodes: Iterable[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: Iterable[str],
    initializers: Iterable[onnx.TensorProto] = (),
    opset: int = 17,
    **more: object,
) -> onnx.ModelProto:
    """A model of nodes over f32 inputs; outputs are f32 of unknown shape."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        list(initializers),
        **more,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def external(name: str, array: np.ndarray, location: str, **entries: object) -> onnx.TensorProto:
    """An initializer whose data lies in a file beside the model."""
    tensor = onnx.numpy_helper.from_array(array, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def save(proto: onnx.ModelProto, folder: Path, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


def the(graph: Graph, kind: str) -> Op:
    """The only op of a kind."""
    (op,) = graph.of_kind(kind)
    return op
