"""Small models for the tests of lowering, fusions made by hand, and a way to run both."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime

from fuse.ir import Graph, Op
from fuse.lift import load

#: Two norms of one structure, with weights and eps of their own; a body that reads what is around it.
NORMS = """
<ir_version: 9, opset_import: ["" : 17], producer_name: "maker", doc_string: "two norms",
 metadata_props: ["author": "somebody"]>
norms (float[B, 8] x) => (float[B, 8] y)
<float[8] w1 = {1, 2, 3, 4, 5, 6, 7, 8}, float[8] w2 = {8, 7, 6, 5, 4, 3, 2, 1},
 float[8] unread = {0, 0, 0, 0, 0, 0, 0, 0},
 float e1 = {0.001}, float e2 = {0.1}, float two = {2}>
{
    [n1_pow] p1 = Pow (x, two)
    [n1_mean] m1 = ReduceMean <axes: ints = [-1], keepdims: int = 1> (p1)
    [n1_add] a1 = Add (m1, e1)
    [n1_sqrt] s1 = Sqrt (a1)
    [n1_div] d1 = Div (x, s1)
    [n1_mul] y1 = Mul (d1, w1)
    [n2_pow] p2 = Pow (y1, two)
    [n2_mean] m2 = ReduceMean <axes: ints = [-1], keepdims: int = 1> (p2)
    [n2_add] a2 = Add (m2, e2)
    [n2_sqrt] s2 = Sqrt (a2)
    [n2_div] d2 = Div (y1, s2)
    [n2_mul] y = Mul (d2, w2)
}
"""


def parse(text: str) -> onnx.ModelProto:
    """A model of ONNX text, checked."""
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model, full_check=True)
    return model


def fused(graph: Graph, kind: str, paths: str, operands: str = "", outputs: str = "") -> Op:
    """Fuse the ops that make the given values (names apart by blanks) and put the result in place.

    operands: the values that stand first in its inputs; the others its parts read follow. outputs:
    its results; where none are given, what is read outside.
    """
    parts = tuple(sorted((_maker(graph, path) for path in paths.split()), key=lambda op: op.slot))
    made = {value for part in parts for value in part.outputs}
    inputs = dict.fromkeys(operands.split())
    for part in parts:
        inputs.update((v, None) for v in part.inputs if v and v not in made and v not in graph.base.constants)
    results = tuple(outputs.split()) or tuple(
        value for part in parts for value in part.outputs if _read_outside(graph, value, parts)
    )
    op = Op(kind, tuple(inputs), results, {}, parts)
    return graph.replace(op, graph.window(parts, op.inputs, op.outputs)[-1])


def _maker(graph: Graph, value: str) -> Op:
    op = graph.producer(value)
    assert op is not None, value
    return op


def _read_outside(graph: Graph, value: str, parts: tuple[Op, ...]) -> bool:
    slots = {part.slot for part in parts}
    return graph.is_output(value) or any(slot not in slots for slot in graph.readers(value))


def run(model: onnx.ModelProto | str, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs on onnxruntime with its own optimizations off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    given = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def same(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    """Assert bit-equal outputs, in order."""
    assert list(got) == list(want)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name, strict=True)


def metadata(node: onnx.NodeProto | onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}


NORM = "p{0} m{0} a{0} s{0} d{0} {1}"
X = {"x": np.random.default_rng(0).standard_normal((3, 8), np.float32)}
BODY = """
<ir_version: 9, opset_import: ["" : 17]>
branches (float[B, 8] x, bool c) => (float[B, 8] y)
<float[1] k = {3}>
{
    [double] twice = Mul (x, k)
    [choose] z = If (c) <
        then_branch = then_graph () => (float[B, 8] z) <float[1] own = {5}> {
            t = Add (twice, k)
            u = Mul (t, own)
            z = Neg (u)
        },
        else_branch = else_graph () => (float[B, 8] z) {
            five = Constant <value: tensor = float[1] {5}> ()
            t = Sub (twice, five)
            z = Abs (t)
        }
    >
    [last] y = Relu (z)
}
"""


def two_norms() -> tuple[onnx.ModelProto, Graph]:
    model = parse(NORMS)
    graph = load(model)
    fused(graph, "rms_norm", NORM.format(1, "y1"), "x w1")
    fused(graph, "rms_norm", NORM.format(2, "y"), "y1 w2")
    return model, graph


def wiring(graph: Graph) -> list[tuple[Any, ...]]:
    """What two graphs are compared by; bodies included."""
    return [
        (graph.base.prefix, op.kind, op.inputs, op.outputs, op.name)
        for one in (graph, *graph.bodies())
        for op in one.ops
    ]
