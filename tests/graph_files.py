"""The small graphs of tests/graphs: ONNX text, one idea a graph, which its first comment line says.

A value that a file declares and no node makes is a weight; its numbers are drawn here, by its name.
"""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

import fuse
from fuse.ir import Graph

FOLDER = Path(__file__).parent / "graphs"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.onnxtxt")))
#: Graphs with an If, whose bodies are graphs of their own.
WITH_BODIES = tuple(name for name in NAMES if "= If (" in (FOLDER / f"{name}.onnxtxt").read_text())


def idea(name: str) -> str:
    """What a graph is for: its first comment line."""
    first = (FOLDER / f"{name}.onnxtxt").read_text().splitlines()[0]
    if not first.startswith("# "):
        raise ValueError(f"{name}.onnxtxt: the first line is a comment that says the idea")
    return first.removeprefix("# ")


@cache
def read(name: str) -> bytes:
    """A graph as a serialized model, its weights drawn."""
    model = parser.parse_model((FOLDER / f"{name}.onnxtxt").read_text())
    made = {value for node in model.graph.node for value in node.output}
    made.update(value.name for value in model.graph.input)
    for value in [value for value in model.graph.value_info if value.name not in made]:
        model.graph.initializer.append(_weight(value))
        model.graph.value_info.remove(value)
    model.graph.name = name
    return bytes(model.SerializeToString())


def graph(name: str) -> Graph:
    """A graph, lifted afresh."""
    return fuse.load(onnx.ModelProto.FromString(read(name)))


def _weight(value: onnx.ValueInfoProto) -> onnx.TensorProto:
    tensor = value.type.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim]
    draw = np.random.default_rng(zlib.crc32(value.name.encode()))
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    drawn = draw.integers(0, 8, dims) if np.issubdtype(dtype, np.integer) else draw.normal(0.5, 0.25, dims)
    return numpy_helper.from_array(np.abs(drawn).astype(dtype), value.name)
