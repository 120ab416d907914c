"""Lowering: what a graph becomes in ONNX, node by node."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering_models import BODY, NORM, NORMS, X, fused, metadata, parse, run, same, two_norms, wiring
from onnx import inliner

from fuse.ir import unfuse
from fuse.lift import load
from fuse.lower import to_proto
from fuse.types import FuseError
from fuse.version import VERSION


# ---- what stays ------------------------------------------------------------------------------------
def test_interface_and_what_the_file_says_of_itself_stay():
    model, graph = two_norms()
    lowered = to_proto(graph)
    assert list(lowered.graph.input) == list(model.graph.input)
    assert list(lowered.graph.output) == list(model.graph.output)
    assert (lowered.producer_name, lowered.doc_string, lowered.ir_version) == ("maker", "two norms", 9)
    assert metadata(lowered) == {"author": "somebody", "fuse.version": VERSION}
    assert [t.name for t in lowered.graph.initializer] == ["w1", "two", "e1", "w2", "e2"]


def test_saving_twice_names_the_version_once():
    again = to_proto(load(to_proto(load(parse(NORMS)))))
    assert [entry.key for entry in again.metadata_props] == ["author", "fuse.version"]


def test_an_untouched_node_is_the_node_of_the_file():
    model = parse(NORMS)
    node = model.graph.node[3]
    node.doc_string = "the root"
    node.metadata_props.add(key="pkg.torch.onnx.name", value="norm")
    assert to_proto(load(model)).graph.node[3] == node


def test_the_ir_version_rises_only_for_functions():
    model = parse(NORMS.replace("ir_version: 9", "ir_version: 7"))
    graph = load(model)
    assert to_proto(graph).ir_version == 7
    fused(graph, "rms_norm", NORM.format(1, "y1"), "x w1")
    assert to_proto(graph).ir_version == 8


def test_the_other_name_of_the_standard_domain():
    model, graph = two_norms()
    for node in model.graph.node:
        node.domain = "ai.onnx"
    model.opset_import[0].domain = "ai.onnx"
    graph = load(model)
    fused(graph, "rms_norm", NORM.format(1, "y1"), "x w1")
    same(run(to_proto(graph), X), run(model, X))


def test_a_file_from_before_free_initializers_keeps_its_values():
    text = NORMS.replace("ir_version: 9", "ir_version: 3").replace(
        "(float[B, 8] x) =>", "(float[B, 8] x, float[8] w1) =>"
    )
    model = onnx.parser.parse_model(text)
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in model.graph.initializer
        if t.name != "w1"
    )
    onnx.checker.check_model(model)
    lowered = to_proto(load(model))
    onnx.checker.check_model(lowered)
    assert [value.name for value in lowered.graph.input] == ["x"]
    same(run(lowered, X), run(model, X))


def test_an_overridable_initializer_stays_an_input_with_its_default():
    model = parse(NORMS.replace("(float[B, 8] x) =>", "(float[B, 8] x, float[8] w1) =>"))
    graph = load(model)
    fused(graph, "rms_norm", NORM.format(1, "y1"), "x w1")
    lowered = to_proto(graph)
    assert [value.name for value in lowered.graph.input] == ["x", "w1"]
    assert lowered.graph.initializer[0].name == "w1"
    for feeds in (X, X | {"w1": np.full(8, 0.5, np.float32)}):
        same(run(lowered, feeds), run(model, feeds))


def test_value_info_stays_where_its_value_does():
    model = onnx.shape_inference.infer_shapes(parse(NORMS))
    assert {value.name for value in model.graph.value_info} >= {"p1", "y1"}
    graph = load(model)
    fused(graph, "rms_norm", NORM.format(1, "y1"), "x w1")
    kept = [value.name for value in to_proto(graph).graph.value_info]
    assert "y1" in kept
    assert "p2" in kept
    assert "p1" not in kept


def test_aliases_are_read_at_their_source():
    text = NORMS.replace("[n1_pow] p1 = Pow (x, two)", "i = Identity (x)\n    [n1_pow] p1 = Pow (i, two)")
    model = parse(text.replace("Div (x, s1)", "Div (i, s1)"))
    lowered = to_proto(load(model))
    assert list(lowered.graph.node[0].input) == ["x", "two"]
    assert "Identity" not in {node.op_type for node in lowered.graph.node}
    same(run(lowered, X), run(model, X))


def test_outputs_that_are_inputs_constants_or_aliases():
    text = """
    <ir_version: 9, opset_import: ["" : 17]>
    plain (float[B, 8] x) => (float[B, 8] x, float[1] k, float[B, 8] i, float[2] c, int64[2] s, float[B, 8] y)
    <float[1] k = {3}>
    {
        i = Identity (x)
        c = Constant <value_floats: floats = [1.0, 2.0]> ()
        s = Shape (x)
        y = Neg (i)
    }
    """
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    lowered = to_proto(load(model))
    onnx.checker.check_model(lowered, full_check=True)
    same(run(lowered, X), run(model, X))


def test_no_trailing_empty_input():
    text = """
    <ir_version: 9, opset_import: ["" : 17]>
    clip (float[B, 8] x, float low) => (float[B, 8] z)
    { y = Clip (x, low)  z = Clip (y, low) }
    """
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.input.append("")
    graph = load(model)
    assert [list(node.input) for node in to_proto(graph).graph.node] == [["x", "low"], ["y", "low"]]
    fused(graph, "pair", "y z")
    lowered = to_proto(graph)
    assert [list(node.input) for node in lowered.functions[0].node] == [["c0", "c1"], ["t0", "c1"]]
    feeds = X | {"low": np.array(0.1, np.float32)}
    same(run(lowered, feeds), run(model, feeds))


def test_a_sparse_constant_stays_sparse():
    values = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [1.5, 2.5])
    indices = onnx.helper.make_tensor("at", onnx.TensorProto.INT64, [2], [1, 6])
    model = parse("""
    <ir_version: 9, opset_import: ["" : 17]>
    sparse (float[B, 8] x, float[8] w) => (float[B, 8] y) { y = Add (x, w) }
    """)
    del model.graph.input[1]
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [8]))
    lowered = to_proto(load(model))
    assert lowered.graph.sparse_initializer == model.graph.sparse_initializer
    same(run(lowered, X), run(model, X))


def test_a_folded_constant_is_an_initializer_of_its_own_name():
    model = parse("""
    <ir_version: 9, opset_import: ["" : 17]>
    fold (float[4, 8] x) => (float[4, 8] y)
    <int64[1] last = {1}>
    { s = Shape (x)  w = Gather (s, last)  f = Cast <to: int = 1> (w)  r = Sqrt (f)  y = Div (x, r) }
    """)
    lowered = to_proto(load(model))
    assert [node.op_type for node in lowered.graph.node] == ["Div"]
    (folded,) = lowered.graph.initializer
    assert folded.name == "r"
    feeds = {"x": np.ones((4, 8), np.float32)}
    same(run(lowered, feeds), run(model, feeds))


def test_a_graph_of_no_model_cannot_be_lowered():
    _, graph = two_norms()
    graph.base = replace(graph.base, model=replace(graph.base.model, proto=None))
    with pytest.raises(FuseError, match="was not loaded from onnx"):
        to_proto(graph)


# ---- shapes ----------------------------------------------------------------------------------------
SHAPES = """
<ir_version: 9, opset_import: ["" : 17]>
shapes (float[B, S, 8] x, float[B, T, 8] past) => (float[B, U, 8] y, int64[3] z, float[B, V] w)
<int64[2] flat = {0, -1}>
{
    [join] j = Concat <axis: int = 1> (past, x)
    [neg] n = Neg (j)
    [size] s = Shape (n)
    [wide] f = Reshape (n, flat)
    [size2] s2 = Shape (f)
    [again] w = Reshape (f, s2)
    [ones] o = ConstantOfShape (s)
    [add] y = Add (n, o)
    [size3] z = Shape (y)
}
"""


def shapes_feeds() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        "x": random.standard_normal((2, 3, 8), np.float32),
        "past": random.standard_normal((2, 5, 8), np.float32),
    }


def test_a_shape_whose_value_stands_is_the_node_of_the_file():
    model = parse(SHAPES)
    graph = load(model)
    assert "fuse.Dims" in {op.kind for op in graph.ops}
    lowered = to_proto(graph)
    assert list(lowered.graph.node) == list(model.graph.node)
    assert wiring(load(lowered)) == wiring(graph)


def test_a_shape_whose_value_is_gone_is_arithmetic_over_the_graph_inputs():
    model = parse(SHAPES)
    graph = load(model)
    assert graph.producer("s").kind == "fuse.Dims"
    fused(graph, "pair", "j n", outputs="n")
    fused(graph, "pair", "f w", outputs="w")
    lowered = to_proto(graph)
    onnx.checker.check_model(lowered, full_check=True)
    names = [node.op_type for node in lowered.graph.node if "fuse_" in node.output[0]]
    assert names.count("Shape") == 2
    assert names.count("Gather") == 3
    same(run(lowered, shapes_feeds()), run(model, shapes_feeds()))


def test_a_shape_inside_a_fusion_is_arithmetic_in_its_function():
    model = parse(SHAPES)
    graph = load(model)
    fused(graph, "filled", "s o y", outputs="y")
    fused(graph, "reshaped", "s2 w", outputs="w")
    lowered = to_proto(graph)
    onnx.checker.check_model(lowered, full_check=True)
    assert {"Shape", "Concat"} <= {node.op_type for f in lowered.functions for node in f.node}
    same(run(lowered, shapes_feeds()), run(model, shapes_feeds()))


# ---- metadata --------------------------------------------------------------------------------------
def test_a_fused_node_says_what_it_stands_for():
    _, graph = two_norms()
    first, second = to_proto(graph, {"y1": "norms"}).graph.node
    assert metadata(first) == {
        "fuse.fused": "Mul n1_mul, Pow n1_pow, ReduceMean n1_mean, Add n1_add, Sqrt n1_sqrt, Div n1_div",
        "fuse.rule": "norms",
        "fuse.class": "rms_norm",
    }
    assert first.name == "n1_mul"
    assert "fuse.rule" not in metadata(second)


def test_the_rule_comes_from_what_optimize_gave():
    _, graph = two_norms()
    first, second = to_proto(SimpleNamespace(graph=graph, rules={"y1": "norms"})).graph.node
    assert metadata(first)["fuse.rule"] == "norms"
    assert "fuse.rule" not in metadata(second)


# ---- round trips -----------------------------------------------------------------------------------
@pytest.mark.parametrize("text", [NORMS, BODY, SHAPES])
def test_an_unfused_graph_comes_back_as_it_was(text: str):
    graph = load(parse(text))
    assert wiring(load(to_proto(graph))) == wiring(graph)


def test_fusing_and_unfusing_leaves_the_file_as_it_was():
    _, graph = two_norms()
    assert to_proto(unfuse(graph)) == to_proto(load(parse(NORMS)))


def test_lowering_is_deterministic():
    proto = to_proto(two_norms()[1]).SerializeToString(deterministic=True)
    assert to_proto(two_norms()[1]).SerializeToString(deterministic=True) == proto


UNARY = ("Neg", "Abs", "Relu", "Identity", "Sqrt")
BINARY = ("Add", "Mul", "Sub")


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """A random graph of small operators over one input and two constants."""
    values = ["x", "k", "m"]
    nodes = []
    for number in range(draw(st.integers(2, 12))):
        binary = draw(st.booleans())
        kind = draw(st.sampled_from(BINARY if binary else UNARY))
        reads = [draw(st.sampled_from(values)) for _ in range(2 if binary else 1)]
        nodes.append(onnx.helper.make_node(kind, reads, [f"v{number}"], f"node{number}"))
        values.append(f"v{number}")
    outputs = draw(st.lists(st.sampled_from(values[3:]), min_size=1, max_size=3, unique=True))
    info = onnx.helper.make_tensor_value_info
    constants = [
        onnx.numpy_helper.from_array(np.array([2.5], np.float32), "k"),
        onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32), "m"),
    ]
    graph = onnx.helper.make_graph(
        nodes, "random", [info("x", 1, ["B", 4])], [info(name, 1, None) for name in outputs], constants
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)


@settings(max_examples=60, deadline=None)
@given(models(), st.data())
def test_lowered_and_inlined_is_what_was_lifted(model: onnx.ModelProto, data: st.DataObject):
    graph = load(model)
    for _ in range(data.draw(st.integers(0, 4))):
        standing = graph.ops
        if len(standing) < 2:
            break
        chosen = data.draw(
            st.lists(st.sampled_from(standing), min_size=2, max_size=4, unique_by=lambda op: op.slot)
        )
        parts = tuple(sorted(chosen, key=lambda op: op.slot))
        made = {value for part in parts for value in part.outputs}
        inputs = dict.fromkeys(v for part in parts for v in part.inputs if v not in made)
        op = parts[-1]._replace(
            kind="some", inputs=tuple(inputs), outputs=tuple(sorted(made)), parts=parts, attrs={}
        )
        window = graph.window(parts, op.inputs, op.outputs)
        if window:
            graph.replace(op, data.draw(st.sampled_from(window)))
    lowered = to_proto(graph)
    flat = inliner.inline_local_functions(lowered)
    feeds = {"x": np.array([[1.5, -2, 0, 7], [0.25, 3, -1, 2]], np.float32)}
    same(run(lowered, feeds), run(model, feeds))
    same(run(flat, feeds), run(model, feeds))
    assert sorted(n.op_type for n in flat.graph.node) == sorted(
        n.op_type for n in to_proto(unfuse(graph)).graph.node
    )
