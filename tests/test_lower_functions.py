"""Lowering fused ops: the functions of a saved model, and bodies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import pytest
from lowering_models import BODY, NORM, NORMS, X, fused, parse, run, same, two_norms
from onnx import inliner

from fuse.lift import load
from fuse.lower import to_proto


def test_two_places_of_one_structure_share_a_function():
    model, graph = two_norms()
    lowered = to_proto(graph)
    onnx.checker.check_model(lowered, full_check=True)
    (function,) = lowered.functions
    assert [node.op_type for node in lowered.graph.node] == [function.name] * 2
    assert function.name.startswith("rms_norm_")
    assert (function.domain, function.overload) == ("fuse", "")
    assert list(function.input)[:2] == ["x", "weight"]
    assert [list(node.input) for node in lowered.graph.node] == [
        ["x", "w1", "two", "e1"],
        ["y1", "w2", "two", "e2"],
    ]
    assert [node.op_type for node in function.node] == ["Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul"]
    assert {o.domain: o.version for o in function.opset_import} == {"": 17}
    assert {o.domain: o.version for o in lowered.opset_import} == {"": 17, "fuse": 1}
    same(run(lowered, X), run(model, X))
    flat = inliner.inline_local_functions(lowered)
    assert not flat.functions
    same(run(flat, X), run(model, X))


def test_a_function_imports_a_domain_that_the_file_does_not():
    """onnxruntime's optimizer writes its own operators and imports no such domain."""
    model = onnx.parser.parse_model(
        """
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[2,3] x) => (float[2,3] y) {
          a = Neg(x)
          y = com.microsoft.Gelu(a)
        }
        """
    )
    graph = load(model)
    fused(graph, "act", "a y", "x")
    lowered = to_proto(graph)
    assert {o.domain: o.version for o in lowered.functions[0].opset_import} == {"": 17, "com.microsoft": 1}
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.zeros((2, 3), np.float32)})
    assert not y.any()


def test_another_attribute_is_another_function():
    model = parse(
        NORMS.replace(
            "axes: ints = [-1], keepdims: int = 1> (p2)", "axes: ints = [1], keepdims: int = 1> (p2)"
        )
    )
    graph = load(model)
    fused(graph, "rms_norm", NORM.format(1, "y1"), "x w1")
    fused(graph, "rms_norm", NORM.format(2, "y"), "y1 w2")
    lowered = to_proto(graph)
    first, second = lowered.functions
    assert first.name != second.name
    same(run(lowered, X), run(model, X))


def test_the_name_of_a_function_does_not_depend_on_its_place():
    _, graph = two_norms()
    alone = load(parse(NORMS))
    fused(alone, "rms_norm", NORM.format(2, "y"), "y1 w2")
    assert to_proto(graph).functions[0] == to_proto(alone).functions[0]


def test_a_fusion_of_fusions_is_one_flat_function():
    model, graph = two_norms()
    fused(graph, "pair", "y1 y")
    lowered = to_proto(graph)
    (function,) = lowered.functions
    assert len(function.node) == 12
    assert {node.domain for node in function.node} == {""}
    same(run(lowered, X), run(model, X))


def test_all_results_and_an_absent_operand():
    model = parse(NORMS)
    graph = load(model)
    op = fused(graph, "add_norm", "p1 m1 a1 s1 d1 y1", "x")
    rest = [value for value in op.inputs if value != "x"]
    graph.slots[op.slot] = op._replace(inputs=("x", "", "w1", *rest, ""), outputs=("y1", "", ""))
    lowered = to_proto(graph)
    onnx.checker.check_model(lowered)
    call = lowered.graph.node[0]
    assert list(call.input) == ["x", "", "w1", "two", "e1"]
    assert list(call.output) == ["y1"]
    same(run(lowered, X), run(model, X))


def both_ways() -> list[dict[str, np.ndarray]]:
    return [X | {"c": np.array(choice)} for choice in (True, False)]


def test_bodies_keep_their_constants_and_what_they_capture():
    model = parse(BODY)
    graph = load(model)
    then_branch, else_branch = graph.producer("z").bodies.values()
    fused(then_branch, "pair", "z/then_branch:t z/then_branch:u")
    fused(else_branch, "pair", "z/else_branch:t z/else_branch:z")
    lowered = to_proto(graph)
    onnx.checker.check_model(lowered, full_check=True)
    owner = next(node for node in lowered.graph.node if node.op_type == "If")
    first, second = (attribute.g for attribute in owner.attribute)
    assert [t.name for t in first.initializer] == ["own"]
    assert list(first.node[0].input) == ["twice", "k", "own"]
    assert [t.name for t in second.initializer] == ["five"]
    assert [t.name for t in lowered.graph.initializer] == ["k"]
    for feeds in both_ways():
        same(run(lowered, feeds), run(model, feeds))


def test_an_op_with_a_body_in_a_fusion_stands_by_itself():
    model = parse(BODY)
    graph = load(model)
    fused(graph, "pair", "twice z y")
    lowered = to_proto(graph)
    assert [node.op_type for node in lowered.graph.node] == ["Mul", "If", "Relu"]
    assert not lowered.functions
    for feeds in both_ways():
        same(run(lowered, feeds), run(model, feeds))


def test_a_body_that_returns_a_value_from_outside_gets_an_identity():
    text = BODY.replace("five = Constant <value: tensor = float[1] {5}> ()", "").replace(
        "t = Sub (twice, five)\n            z = Abs (t)", "z = Identity (twice)"
    )
    model = parse(text)
    graph = load(model)
    body = graph.producer("z").bodies["else_branch"]
    body.base = replace(body.base, outputs=("twice",), lifted=())
    body.slots, body.into = [], []
    lowered = to_proto(graph)
    onnx.checker.check_model(lowered, full_check=True)
    for feeds in both_ways():
        same(run(lowered, feeds), run(model, feeds))


def test_a_name_inside_never_hides_one_outside():
    """A fusion can bring a value before a body that has a value of the same name."""
    text = """
    <ir_version: 9, opset_import: ["" : 17]>
    shadow (float[B, 8] x, bool c) => (float[B, 8] y, float[B, 8] w)
    {
        a = Neg (x)
        z = If (c) <
            then_branch = then_graph () => (float[B, 8] r) { b = Abs (a)  r = Neg (b) },
            else_branch = else_graph () => (float[B, 8] r) { r = Identity (a) }
        >
        b = Exp (a)
        w = Relu (b)
        y = Relu (z)
    }
    """
    model = onnx.parser.parse_model(text)
    graph = load(model)
    parts = graph.producer("a"), graph.producer("b")
    op = parts[0]._replace(kind="pair", outputs=("a", "b"), parts=parts, name="")
    graph.replace(op, parts[0].slot)
    lowered = to_proto(graph)
    onnx.checker.check_model(lowered, full_check=True)
    for feeds in both_ways():
        same(run(lowered, feeds), run(model, feeds))
