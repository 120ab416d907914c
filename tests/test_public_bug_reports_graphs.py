"""Public bug reports of other optimizers about the graph around the operators.

Each is a small model of its own, and what a right one does; a docstring says what goes wrong elsewhere, and
where it was reported."""

from __future__ import annotations

import time
from typing import Any

import lowering_models
import numpy as np
import onnx
import pytest
from building import Building
from holding import built, counts, held, nothing
from onnx import ModelProto, TensorProto, helper, numpy_helper
from reported import erf_of, layer_norm_of, rms_of

import chips
import fuse
import reference
from fuse.types import FuseError


def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    """The body of a branch; the last node makes its only result."""
    info = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    return helper.make_graph(list(nodes), name, [], [info])


def test_norm_inner_read_by_if() -> None:
    """Both branches of an If read the root.

    microsoft/onnxruntime#8825, #7701, robertknight/rten#708
    """
    g = Building(opset=17)
    x, flag = g.input("x", 2, 6), g.input("flag", dtype=TensorProto.BOOL)
    root, y = rms_of(g, x, g.weight(6))
    read = g.op(
        "If",
        flag,
        then_branch=branch("then_body", helper.make_node("Neg", [root], ["minus"])),
        else_branch=branch("else_body", helper.make_node("Identity", [root], ["as_it_is"])),
    )
    model = g.model(y, read)
    for flagged in (True, False):
        feeds = {"x": np.arange(12, dtype=np.float32).reshape(2, 6), "flag": np.array(flagged)}
        found = held(model, feeds=feeds)
    nothing(found, "rms_norm")
    (row,) = found.report.near("rms_norm")
    assert row.reasons[0].code == "captured"
    assert getattr(row.reasons[0], "at", "") == root


def test_deep_chain() -> None:
    """Thousands of elementwise nodes in a row.

    onnx/onnx#6423, PINTO0309/onnx2tf#130
    """
    g = Building(opset=17)
    value = g.input("x", 4)
    one = g.constant(1.0)
    for step in range(3000):
        value = g.op("Neg", value) if step % 2 else g.op("Add", value, one)
    model = g.model(value)
    started = time.process_time()
    found = fuse.optimize(fuse.load(model), shim=chips.load("any"))
    assert time.process_time() - started < 20
    fed = {"x": np.arange(4, dtype=np.float32)}
    assert set(counts(found)) <= {"elementwise_region"}
    lowering_models.same(reference.eval(found.graph, fed), lowering_models.run(model, fed))
    lowering_models.same(lowering_models.run(fuse.to_proto(found), fed), lowering_models.run(model, fed))


def test_local_function() -> None:
    """A norm that is a function of the model, called twice.

    onnxsim/onnxsim#320, onnx/optimizer#136
    """
    inner = Building(opset=17)
    inner.op("Constant", value=numpy_helper.from_array(np.float32(2)))
    inner.op("Constant", value=numpy_helper.from_array(np.float32(1e-5)))
    mean = inner.op("ReduceMean", inner.op("Pow", "v", "Constant_0"), axes=[-1], keepdims=1)
    root = inner.op("Sqrt", inner.op("Add", mean, "Constant_1"))
    result = inner.op("Mul", inner.op("Div", "v", root), "w")
    opsets = [helper.make_opsetid("", 17)]
    body = helper.make_function("of.tests", "Norm", ["v", "w"], [result], inner.nodes, opsets)
    g = Building(opset=17)
    first = g.op("of.tests.Norm", g.input("x", 2, 6), g.weight(6))
    second = g.op("of.tests.Norm", g.op("MatMul", first, g.weight(6, 6)), g.weight(6))
    model = g.model(second)
    model.functions.append(body)
    model.opset_import.append(helper.make_opsetid("of.tests", 1))
    assert counts(held(model))["rms_norm"] == 2


def test_custom_domain_op() -> None:
    """An unknown operator stays, and is a wall; the rest is optimized.

    onnx/optimizer#61, microsoft/onnxruntime#12074
    """
    g = Building(opset=17)
    x = g.input("x", 2, 6)
    gelu = g.op("Mul", g.op("Mul", x, g.op("Add", erf_of(g, x), g.constant(1.0))), g.constant(0.5))
    unknown = g.op("maker.own.Puzzle", gelu, level=3)
    y = g.op("Add", g.op("MatMul", unknown, g.weight(6, 4)), g.weight(4))
    model = g.model(y)
    model.opset_import.append(helper.make_opsetid("maker.own", 1))
    found = fuse.optimize(fuse.load(model), shim=chips.load("any"))
    found.graph.verify()
    assert counts(found)["gelu"] == 1
    assert built(found, "matmul_bias").inputs[0] == unknown
    (node,) = [node for node in fuse.to_proto(found).graph.node if node.domain == "maker.own"]
    assert (node.op_type, list(node.input), list(node.output)) == ("Puzzle", [gelu], [unknown])
    assert helper.get_attribute_value(node.attribute[0]) == 3
    with pytest.raises(FuseError, match=r"maker\.own"):
        reference.eval(found.graph, {"x": np.ones((2, 6), np.float32)})


def test_duplicate_initializer() -> None:
    """Two initializers of one name are an error that says so.

    onnx/optimizer#174, onnx/onnx#2401
    """
    g = Building(opset=17)
    model = g.model(g.op("MatMul", g.input("x", 2, 4), g.constant(np.eye(4, dtype=np.float32), "twice")))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4), np.float32), "twice"))
    with pytest.raises(FuseError, match="twice"):
        fuse.load(model)


def test_unsorted_nodes() -> None:
    """Nodes in reverse; the lift sorts, then all is as usual.

    onnx/tensorflow-onnx#716, onnxsim/onnxsim#352
    """
    g = Building(opset=17)
    x = g.input("x", 2, 5)
    total = g.op("Add", erf_of(g, x), g.constant(1.0))
    y = g.op("Mul", g.op("Mul", x, total), g.constant(0.5))
    g.nodes.reverse()
    assert counts(held(g.model(y)))["gelu"] == 1


def test_name_collision_two_norms() -> None:
    """The names a fuser would make up are taken already.

    microsoft/onnxscript#2680, microsoft/onnxruntime#7865
    """
    g = Building(opset=17)
    x, other = g.input("x", 2, 6), g.input("layer_norm", 2, 6)
    taken = ("layer_norm_0", "layer_norm_1", "fused_0", "x_fused")
    weights = [g.constant(g.draw.normal(size=6).astype(np.float32), name) for name in taken]
    _, first = layer_norm_of(g, x, *weights[:2])
    _, second = layer_norm_of(g, x, *weights[2:])
    model = _named(g.model(g.op("Add", g.op("Mul", first, second), other)), "fuse_layer_norm")
    found = held(model)
    assert counts(found)["layer_norm"] == 2
    assert len({op.inputs[1] for op in found.graph.ops if op.kind == "layer_norm"}) == 2


def _named(model: ModelProto, name: str) -> ModelProto:
    """Every node with a name that is numbered as a fuser might."""
    for number, node in enumerate(model.graph.node):
        node.name = f"{name}_{number}"
    return model


OPSETS = [helper.make_opsetid("", 17)]


def called(g: Building, function: onnx.FunctionProto, *outputs: str) -> ModelProto:
    """A model that has a function of its own."""
    model = g.model(*outputs)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid(function.domain, 1))
    return model


def test_an_attribute_that_a_call_leaves_to_its_default() -> None:
    """A function's default is not the operator's own; a call that gives the attribute has that.

    onnx/onnx#4153, onnx/onnx-mlir#2400
    """
    leaky = helper.make_node("LeakyRelu", ["v"], ["t"])
    leaky.attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    nodes = [leaky, helper.make_node("Neg", ["t"], ["w"])]
    body = helper.make_function(
        "of.tests", "Steep", ["v"], ["w"], nodes, OPSETS, [], [helper.make_attribute("alpha", 0.7)]
    )
    g = Building(opset=17)
    x = g.input("x", 4)
    model = called(g, body, g.op("of.tests.Steep", x), g.op("of.tests.Steep", x, alpha=0.3))
    held(model, feeds={"x": np.array([1, -1, -2, 3], np.float32)})


def test_a_function_that_hands_its_operand_back() -> None:
    """One of its results is its operand, as it came.

    onnx/onnx#5105
    """
    nodes = [helper.make_node("Neg", ["v"], ["w"])]
    body = helper.make_function("of.tests", "Both", ["v"], ["v", "w"], nodes, OPSETS)
    g = Building(opset=17)
    model = called(g, body, *g.op("of.tests.Both", g.input("x", 4), outputs=2))
    found = held(model, runtime=False)  # onnxruntime refuses such a function
    x = np.arange(4, dtype=np.float32)
    lowering_models.same(lowering_models.run(fuse.to_proto(found), {"x": x}), {"Both_0": x, "Both_0_1": -x})


def test_a_function_that_calls_itself() -> None:
    """Is refused by name.

    onnx/optimizer#136
    """
    nodes = [helper.make_node("Again", ["v"], ["w"], domain="of.tests")]
    opsets = [*OPSETS, helper.make_opsetid("of.tests", 1)]
    body = helper.make_function("of.tests", "Again", ["v"], ["w"], nodes, opsets)
    g = Building(opset=17)
    with pytest.raises(FuseError, match=r"of\.tests\.Again"):
        fuse.load(called(g, body, g.op("of.tests.Again", g.input("x", 4))))


def test_attributes_of_nested_calls() -> None:
    """A function hands its attribute on to another, which calls it by another name.

    microsoft/onnxruntime#12506, #12445
    """
    inner = helper.make_node("LeakyRelu", ["v"], ["w"])
    inner.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    outer = helper.make_node("Inner", ["v"], ["w"], domain="of.tests")
    outer.attribute.add(name="slope", ref_attr_name="steep", type=onnx.AttributeProto.FLOAT)
    opsets = [*OPSETS, helper.make_opsetid("of.tests", 1)]
    g = Building(opset=17)
    model = called(
        g,
        helper.make_function("of.tests", "Outer", ["v"], ["w"], [outer], opsets, ["steep"]),
        g.op("of.tests.Outer", g.input("x", 4), steep=0.3),
    )
    model.functions.append(
        helper.make_function("of.tests", "Inner", ["v"], ["w"], [inner], OPSETS, ["slope"])
    )
    held(model, feeds={"x": np.array([1, -1, -2, 3], np.float32)})


def test_a_sparse_constant() -> None:
    """It persists, and saved it is a tensor to whoever checks the file.

    onnx/optimizer#5, onnxsim/onnxsim#965
    """
    values, places = numpy_helper.from_array(np.float32([3, 4])), numpy_helper.from_array(np.int64([1, 5]))
    g = Building(opset=17)
    g.op("Constant", sparse_value=helper.make_sparse_tensor(values, places, [2, 3]))
    model = g.model(g.op("Add", g.input("x", 2, 3), "Constant_0"))
    del model.graph.output[:]
    model.graph.output.append(info("Add_1", 2, 3))
    onnx.checker.check_model(fuse.to_proto(held(model)), full_check=True)


def loop(g: Building, trips: str, condition: str, body: onnx.GraphProto, *carried: str, outputs: int) -> Any:
    return g.op("Loop", trips, condition, *carried, outputs=outputs, body=body)


def info(name: str, *dims: int, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, dims)


def turns(*nodes: onnx.NodeProto, carried: dict[str, int], gathered: tuple[str, ...] = ()) -> onnx.GraphProto:
    """The body of a loop over rows; what it carries is made as NAME_next."""
    again = helper.make_node("Identity", ["going"], ["still"])
    inputs = [info("turn", dtype=TensorProto.INT64), info("going", dtype=TensorProto.BOOL)]
    inputs += [info(name, *([size] if size else [])) for name, size in carried.items()]
    outputs = [info("still", dtype=TensorProto.BOOL)]
    outputs += [info(f"{name}_next", *([size] if size else [])) for name, size in carried.items()]
    return helper.make_graph([again, *nodes], "body", inputs, [*outputs, *(info(v, 4) for v in gathered)])


@pytest.mark.parametrize("trips", [0, 2])
def test_a_loop_that_never_turns(trips: int) -> None:
    """Of no rows it is still known how wide each would be.

    onnx/optimizer#36
    """
    g = Building(opset=17)
    count, x = g.input("count", dtype=TensorProto.INT64), g.input("x", 4)
    body = turns(
        helper.make_node("Add", ["row", x], ["row_next"]),
        helper.make_node("Relu", ["row_next"], ["kept"]),
        carried={"row": 4},
        gathered=("kept",),
    )
    last, rows = loop(g, count, "", body, x, outputs=2)
    fed = {"count": np.array(trips), "x": np.arange(4, dtype=np.float32)}
    found = held(g.model(last, rows), feeds=fed)
    assert reference.eval(found.graph, fed)[rows].shape == (trips, 4)


@pytest.mark.parametrize("what", ["nothing", "weight", "eps"])
def test_what_a_loop_carries_is_no_constant(what: str) -> None:
    """A norm inside a loop; its weight or its eps is doubled at each turn.

    microsoft/onnxruntime#8825
    """
    g = Building(opset=17)
    names = {"weight": g.weight(4), "eps": g.constant(1e-3)}
    inner = {**names, **({what: "kept"} if what != "nothing" else {})}
    kinds = [("Mul", "row", "row"), ("ReduceMean", "a"), ("Add", "b", inner["eps"]), ("Sqrt", "c")]
    kinds += [("Div", "row", "d"), ("Mul", "e", inner["weight"])]
    nodes = [
        helper.make_node(kind, list(reads), ["abcdef"[at] if at < 5 else "row_next"])
        for at, (kind, *reads) in enumerate(kinds)
    ]
    carried, start = {"row": 4}, [g.input("x", 4)]
    if what != "nothing":
        nodes.append(helper.make_node("Add", ["kept", "kept"], ["kept_next"]))
        carried["kept"] = 4 if what == "weight" else 0
        start.append(names[what])
    results = loop(g, g.ints(3), "", turns(*nodes, carried=carried), *start, outputs=len(start))
    found = held(g.model(*([results] if what == "nothing" else results)))
    (rows,) = (found.report.fired("rms_norm") or found.report.near("rms_norm"),)
    assert len(rows) == 1
    weights = [op.inputs[1] for body in found.graph.bodies() for op in body.ops if op.kind == "rms_norm"]
    assert weights == {"nothing": [names["weight"]], "weight": [""], "eps": []}[what]


def test_a_branch_whose_condition_is_known() -> None:
    """Both branches stay whole, with constants of their own.

    onnxsim/onnxsim#479, #452, #290
    """
    bodies = [
        helper.make_graph(
            [helper.make_node("Constant", [], [name], value_floats=[1.0, number])], name, [], [info(name, 2)]
        )
        for name, number in (("one", 2.0), ("other", 3.0))
    ]
    g = Building(opset=17)
    chosen = g.op("If", g.constant(np.array(True)), then_branch=bodies[0], else_branch=bodies[1])
    held(g.model(g.op("Add", chosen, g.input("x", 2))))


def test_a_shape_that_is_reshaped() -> None:
    """The result of one Reshape is the shape of another, and no data.

    microsoft/onnxruntime#32105
    """
    g = Building(opset=21)
    shape = g.op("Reshape", g.input("shape", 1, 2, dtype=TensorProto.INT64), g.ints(-1))
    y = g.op("Reshape", g.input("x", 4), shape)
    held(g.model(y), feeds={"shape": np.array([[2, 2]]), "x": np.arange(4, dtype=np.float32)})


def test_values_that_pass_through() -> None:
    """An input, an initializer and copies of one value as outputs, a default that nobody reads.

    onnx/onnx#2198, onnx/optimizer#18
    """
    g = Building(opset=17)
    x, weight = g.input("x", 2), g.weight(2)
    made = g.op("Relu", x)
    copies = [g.op("Identity", value) for value in (made, made, x, weight)]
    chained = g.op("Identity", copies[0])
    g.input("unread", 7)
    held(g.model(x, weight, *copies, chained, g.op("Neg", chained)))


def test_old_files_list_their_initializers_as_inputs() -> None:
    """Before IR version 4 every initializer is an input too, and none the less a weight.

    microsoft/winml-cli#1301, inisis/OnnxSlim#321
    """
    g = Building(opset=9)
    product = g.op("MatMul", g.input("x", 2, 6), g.overridable(g.weight(6, 4)))
    model = g.model(g.op("Add", product, g.overridable(g.weight(4))))
    model.ir_version = 3
    assert counts(held(model))["matmul_bias"] == 1
