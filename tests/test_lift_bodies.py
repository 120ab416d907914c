"""Lifting bodies: branches, loops, scans, their paths and what they read around them."""

from __future__ import annotations

from lift_models import kinds, model, the

from fuse.ir import Graph
from fuse.lift import load
from fuse.types import Type

BRANCHES = """(bool c, f32[N, 4] x) => (f32[N, 4] y) {
    r = Relu(x)
    two = Constant<value = f32 {2}>()
    y = If (c) <
        then_branch = a () => (f32[N, 4] t) { k = Identity(two) s = Shape(r) e = Expand(k, s) t = Mul(r, e) },
        else_branch = b () => (f32[N, 4] t) { k = Neg(r) u = Exp(k) t = Add(k, two) }
    >
}"""


def test_branches_are_graphs_with_paths() -> None:
    graph = load(model(BRANCHES))
    graph.verify()
    owner = the(graph, "If")
    then, other = owner.bodies["then_branch"], owner.bodies["else_branch"]
    assert isinstance(then, Graph)
    assert then.base.prefix == "y/then_branch:"
    assert other.outputs == ("y/else_branch:t",)
    assert kinds(then) == ["Shape", "Expand", "Mul"]
    assert the(then, "Shape").inputs == ("x",)
    assert the(then, "Expand").inputs == ("two", "y/then_branch:s")
    assert kinds(other) == ["Neg", "Add"]
    assert set(graph.base.captured) == {"r", "x"}
    assert graph.base.model is then.base.model
    assert graph.base.types is then.base.types
    assert graph.base.model.nodes == 10
    assert graph.base.model.lifting["unread"] == 1


def test_an_op_stays_while_a_body_reads_it() -> None:
    assert kinds(load(model(BRANCHES))) == ["Relu", "If"]


def test_nested_bodies_accumulate_their_paths() -> None:
    body = """(bool c, f32[2] x) => (f32[2] y) {
        y = If (c) <
            then_branch = a () => (f32[2] p) {
                p = If (c) <
                    then_branch = b () => (f32[2] q) { q = Neg(x) },
                    else_branch = d () => (f32[2] q) { q = Exp(x) }
                >
            },
            else_branch = e () => (f32[2] p) { p = Relu(x) }
        >
    }"""
    graph = load(model(body))
    assert [b.outputs[0] for b in graph.bodies()] == [
        "y/then_branch:p/then_branch:q",
        "y/then_branch:p/else_branch:q",
        "y/then_branch:p",
        "y/else_branch:p",
    ]
    assert graph.base.captured["x"] == (0,)


def test_a_branch_may_name_its_result_as_its_owner_does() -> None:
    body = """(bool c, f32[2] x) => (f32[2] y) {
        y = If (c) <
            then_branch = a () => (f32[2] y) { y = Neg(x) },
            else_branch = b () => (f32[2] y) { y = Exp(x) }
        >
    }"""
    assert the(load(model(body)), "If").bodies["then_branch"].outputs == ("y/then_branch:y",)


def test_a_node_that_a_body_reads_is_sorted_before_its_owner() -> None:
    body = """(bool c, f32[2] x) => (f32[2] y) {
        y = If (c) <
            then_branch = a () => (f32[2] t) { t = Neg(u) u = Exp(r) },
            else_branch = b () => (f32[2] t) { t = Exp(x) }
        >
        r = Relu(x)
    }"""
    graph = load(model(body))
    assert kinds(graph) == ["Relu", "If"]
    assert kinds(the(graph, "If").bodies["then_branch"]) == ["Exp", "Neg"]


def test_loop_inputs_get_the_types_their_owner_tells() -> None:
    body = """(i64 n, bool c, f32[2, 3] x) => (f32[P, Q] y, f32[A, B, C] all) {
        y, all = Loop (n, c, x) <
            body = b (i64 i, bool go, f32[P, Q] h) => (bool go2, f32[P, Q] h2, f32[P, Q] out) {
                go2 = Identity(go)
                h2 = Relu(h)
                out = Identity(h2)
            }
        >
    }"""
    proto = model(body)
    proto.graph.node[0].attribute[0].g.input[2].type.tensor_type.ClearField("shape")
    proto.graph.node[0].attribute[0].g.input[0].ClearField("type")
    graph = load(proto)
    assert graph.type("y/body:i") == Type("i64", ())
    assert graph.type("y/body:h") == Type("f32", None)
    assert load(model(body)).type("y/body:h").dtype == "f32"


def test_scan_inputs_lose_the_scanned_axis() -> None:
    body = """(f32[4] s, f32[2, N, 4] x) => (f32[4] y, f32[N, 2, 4] all) {
        y, all = Scan <
            num_scan_inputs = 1, scan_input_axes = [1],
            body = b (h, row) => (h2, out) { t = ReduceSum<keepdims = 0>(row) h2 = Add(h, t) out = Relu(row) }
        > (s, x)
    }"""
    graph = load(model(body))
    assert graph.type("y/body:h") == Type("f32", (4,))
    assert graph.type("y/body:row") == Type("f32", (2, 4))
