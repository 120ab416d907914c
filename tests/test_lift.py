"""Lifting: sources, normalizations, folding, shapes."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from lift_models import kinds, model, of_nodes, save, the
from onnx import TensorProto, helper, numpy_helper

from fuse.ir import Tensor
from fuse.lift import load
from fuse.types import UNKNOWN, Type, add, parse_dim, symbol

ADD = "(f32[N, 4] x) => (f32[N, 4] y) <f32[4] w = {1, 2, 3, 4}> { y = Add(x, w) }"


# ---- sources -----------------------------------------------------------------------------------
def test_a_file_a_proto_and_an_onnx_ir_model_lift_alike(tmp_path: Path) -> None:
    import onnx_ir

    proto = model(ADD)
    path = save(proto, tmp_path, "small.onnx")
    of_file, of_proto, of_ir = load(path), load(proto), load(onnx_ir.from_proto(proto))
    assert [g.ops for g in (of_file, of_proto, of_ir)] == [of_file.ops] * 3
    assert load(str(path)).ops == of_file.ops
    said = of_file.base.model
    assert said.name == "small"
    assert said.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (said.folder, said.ir_version, said.nodes) == (str(tmp_path), 8, 1)
    assert said.opsets == {"": 17}
    assert of_proto.base.model.name == "g"


def test_onnx_text_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.onnxtxt"
    path.write_text(onnx.printer.to_text(model(ADD)))
    assert kinds(load(path)) == ["Add"]


def test_what_an_op_keeps() -> None:
    graph = load(model(ADD))
    (op,) = graph.ops
    assert (op.kind, op.inputs, op.outputs, op.slot) == ("Add", ("x", "w"), ("y",), 0)
    assert graph.inputs == ("x",)
    assert graph.outputs == ("y",)
    assert graph.type("x") == Type("f32", (symbol("N"), 4))
    assert graph.base.nodes[0].op_type == "Add"
    graph.verify()


def test_attributes_are_python_values() -> None:
    node = helper.make_node(
        "Odd",
        ["x"],
        ["y"],
        domain="acme",
        i=3,
        f=0.5,
        s="tanh",
        ints=[1, 2],
        floats=[0.5],
        strings=["a", "b"],
        raw=b"\xff\xfe",
        t=numpy_helper.from_array(np.arange(3), "t"),
    )
    (op,) = load(of_nodes([node], {"x": [2]}, ["y"])).ops
    tensor = op.attrs["t"]
    assert isinstance(tensor, Tensor)
    assert tensor.array().tolist() == [0, 1, 2]
    assert {k: v for k, v in op.attrs.items() if k != "t"} == {
        "i": 3,
        "f": 0.5,
        "s": "tanh",
        "ints": (1, 2),
        "floats": (0.5,),
        "strings": ("a", "b"),
        "raw": b"\xff\xfe",
    }


def test_an_operator_of_an_unknown_domain_is_opaque() -> None:
    proto = model("(f32[2] x) => (f32[2] z) { y = acme.Odd(x) z = Relu(y) }", domains=', "acme" : 1')
    graph = load(proto)
    assert kinds(graph) == ["acme.Odd", "Relu"]
    assert graph.type("y") == UNKNOWN
    proto.graph.value_info.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2]))
    assert load(proto).type("y") == Type("f32", (2,))


def test_names_of_declared_output_dims_are_not_believed() -> None:
    proto = model("(f32[N] x) => (f32[N] y) { y = acme.Odd(x) }", domains=', "acme" : 1')
    assert load(proto).type("y") == Type("f32", (symbol("?y.0"),))


def test_optional_and_sequence_inputs_are_unknown() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        [helper.make_node("SequenceLength", ["s"], ["n"])],
        "g",
        [sequence],
        [helper.make_tensor_value_info("n", TensorProto.INT64, [])],
    )
    lifted = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert lifted.type("s") == UNKNOWN


def test_dims_of_graph_inputs() -> None:
    proto = model("(f32[N, 3] x, f32[M] p) => (f32[N, 3] y) { y = Identity(x) }")
    shape = proto.graph.input[1].type.tensor_type.shape
    shape.dim[0].dim_param = "past + 1"
    for text in ("", "?", "-1"):
        dim = shape.dim.add()
        if text:
            dim.dim_param = text
    shape.dim.add().dim_value = -1
    dims = load(proto).dims("p")
    assert dims == (parse_dim("past + 1"), *(symbol(f"?p.{axis}") for axis in (1, 2, 3, 4)))


# ---- normalization -----------------------------------------------------------------------------
def test_nodes_are_sorted_and_keep_their_order_otherwise() -> None:
    graph = load(model("(f32[2] x) => (f32[2] y) { y = Add(b, c) c = Neg(a) b = Exp(x) a = Relu(x) }"))
    assert kinds(graph) == ["Exp", "Relu", "Neg", "Add"]
    assert graph.base.model.lifting["sorted"] == 4
    assert load(model(ADD)).base.model.lifting["sorted"] == 0
    graph.verify()


def test_identity_dropout_and_casts_that_do_nothing_go() -> None:
    body = """(f32[2] x) => (f32[2] y, f32[2] z) {
        a = Identity(x)
        b = Cast<to = 1>(a)
        c, mask = Dropout(b)
        d = Relu(c)
        e = Cast<to = 10>(d)
        z = Identity(d)
        y = Cast<to = 1>(e)
    }"""
    graph = load(model(body))
    assert kinds(graph) == ["Relu", "Cast", "Identity", "Cast"]
    assert the(graph, "Relu").inputs == ("x",)
    lifting = graph.base.model.lifting
    assert [lifting[name] for name in ("identities", "dropouts", "casts")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("call", "stays"),
    [
        ("Dropout(x, r, yes)", True),
        ("Dropout(x, r, no)", False),
        ("Dropout(x, r)", False),
        ("Dropout(x, r, given)", True),
    ],
)
def test_dropout_goes_only_in_inference(call: str, stays: bool) -> None:
    body = f"""(f32[2] x, bool given) => (f32[2] y) <f32 r = {{0.5}}, bool yes = {{1}}, bool no = {{0}}> {{
        a = {call}
        y = Relu(a)
    }}"""
    assert ("Dropout" in kinds(load(model(body)))) is stays


def test_a_dropout_whose_mask_is_read_stays() -> None:
    body = "(f32[2] x) => (f32[2] y, bool[2] n) { a, mask = Dropout(x) y = Relu(a) n = Not(mask) }"
    assert "Dropout" in kinds(load(model(body)))


def test_local_functions_are_inlined() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[2] x) => (float[2] y) { a = local.twice(x) y = local.four(a) }
        <opset_import: ["" : 17, "local" : 1], domain: "local">
        four (v) => (w) { t = local.twice(v) w = local.twice(t) }
        <opset_import: ["" : 17], domain: "local">
        twice (v) => (w) { w = Add(v, v) }"""
    )
    graph = load(proto)
    assert kinds(graph) == ["Add", "Add", "Add"]
    assert graph.base.model.lifting["functions"] == 2
    graph.verify()


def test_a_function_of_another_opset_is_converted() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[2,3] x) => (float[2,1] y) { y = local.total(x) }
        <opset_import: ["" : 12], domain: "local">
        total (v) => (w) { w = ReduceSum<axes = [1]>(v) }"""
    )
    graph = load(proto)
    assert the(graph, "ReduceSum").attrs.get("axes") is None
    assert graph.type("y") == Type("f32", (2, 1))


def test_known_results_become_constants_and_unread_ops_go() -> None:
    body = """(f32[2, 8] x) => (f32[] y) <i64[1] one = {1}> {
        shape = Shape(x)
        width = Slice(shape, one, big)
        as_float = Cast<to = 1>(width)
        y = Odd.Scale(x, as_float)
        unread = Relu(x)
        big = Constant<value = i64[1] {9}>()
    }"""
    graph = load(model(body, domains=', "Odd" : 1'))
    assert kinds(graph) == ["Odd.Scale"]
    folded = graph.constant("as_float")
    assert folded is not None
    assert (folded.array().dtype, folded.array().tolist()) == (np.float32, [8.0])
    lifting = graph.base.model.lifting
    assert (lifting["folded"], lifting["unread"], lifting["constants"]) == (3, 1, 1)


def test_a_known_graph_output_stays_an_op() -> None:
    graph = load(model("(f32[2, 8] x) => (i64[2] y) { y = Shape(x) }"))
    assert kinds(graph) == ["Shape"]


# ---- shapes read off the graph inputs ----------------------------------------------------------
def test_a_shape_reads_the_input_that_has_it() -> None:
    graph = load(model("(f32[N, M] x) => (i64[1] y) { a = Relu(x) y = Shape<start = 1>(a) }"))
    assert kinds(graph) == ["Shape"]
    assert the(graph, "Shape").inputs == ("x",)
    assert the(graph, "Shape").attrs == {"start": 1}
    assert graph.base.model.lifting["shapes"] == 1


def test_a_shape_of_several_inputs_becomes_dims() -> None:
    body = """(f32[N, P, 4] past, f32[N, S, 4] new) => (i64[3] y, i64[1] z) {
        a = Concat<axis = 1>(past, new)
        y = Shape(a)
        z = Shape<start = 1, end = 2>(a)
    }"""
    graph = load(model(body))
    assert kinds(graph) == ["fuse.Dims", "fuse.Dims"]
    whole, part = graph.ops
    n, rows = symbol("N"), add(symbol("P"), symbol("S"))
    assert whole.inputs == ("past", "new")
    assert whole.attrs == {"dims": (n, rows, 4), "homes": (("N", 0, 0), ("P", 0, 1), ("S", 1, 1))}
    assert part.inputs == ("past", "new")
    assert part.attrs == {"dims": (rows,), "homes": (("P", 0, 1), ("S", 1, 1))}
    assert graph.base.nodes[0].op_type == "Shape"


def test_a_shape_that_no_input_tells_stays() -> None:
    graph = load(model("(f32[N] x) => (i64[2] y) { a = NonZero(x) y = Shape(a) }"))
    assert kinds(graph) == ["NonZero", "Shape"]
    default = model("(f32[2] x = {1, 2}) => (i64[1] y) { a = Relu(x) y = Shape(a) }")
    default.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    assert kinds(load(default)) == ["Relu", "Shape"]


# ---- the whole ---------------------------------------------------------------------------------
def test_conflicting_types_are_named_and_the_model_loads() -> None:
    body = """(f16[2, 4] x) => (f16[2, 4] y) <f32[4] w = {1, 1, 1, 1}, f32[4] b = {0, 0, 0, 0}> {
        [norm] y = LayerNormalization(x, w, b)
    }"""
    assert load(model(body)).base.model.conflicts == ("LayerNormalization 'norm': 'x' is f16 and 'w' is f32",)
    mixed = "(f16[2] a, f16[2] b, i64[2] c) => (f16[6] y) { y = Concat<axis = 0>(a, b, c) }"
    assert load(model(mixed)).base.model.conflicts == ("Concat 'y': 'a' is f16 and 'c' is i64",)
    declared = "(f16[2] a) => (f32[2] y) { y = Relu(a) }"
    assert load(model(declared)).base.model.conflicts == (
        "graph output 'y' is declared f32 and its node makes f16",
    )
    assert load(model(ADD)).base.model.conflicts == ()


def test_an_op_without_its_first_result_has_a_path() -> None:
    node = helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=2)
    weights = [
        numpy_helper.from_array(np.zeros((1, 8, 3), np.float32), "w"),
        numpy_helper.from_array(np.zeros((1, 8, 2), np.float32), "r"),
    ]
    (op,) = load(of_nodes([node], {"x": [5, 1, 3]}, ["h"], weights)).ops
    assert op.path == "h"


@pytest.mark.parametrize("reverse", [False, True])
def test_a_long_chain_lifts_in_linear_time(reverse: bool) -> None:
    def seconds(length: int) -> float:
        nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(length)]
        proto = of_nodes(nodes[::-1] if reverse else nodes, {"v0": [2]}, [f"v{length}"])
        start = time.process_time()
        assert len(load(proto).ops) == length
        return time.process_time() - start

    short = min(seconds(1000) for _ in range(3))
    assert min(seconds(8000) for _ in range(2)) < 24 * short
