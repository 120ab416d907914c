"""Binding sizes: types, contents, what becomes constant, bodies, errors."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from lift_models import kinds, model, the

from fuse.binding import bind
from fuse.ir import Graph
from fuse.lift import load
from fuse.types import FuseError, Type, symbol

CACHE = """(f32[N, P, 4] past, f32[N, S, 4] new) => (f32[N, T, 4] y, i64[3] z) {
    a = Concat<axis = 1>(past, new)
    s = Shape(a)
    half = Slice(a, zero, middle, one)
    y = Reshape(a, s)
    u = Cast<to = 6>(s)
    z = Cast<to = 7>(w)
    w = Odd.Read(half, u)
    zero = Constant<value = i64[1] {0}>()
    middle = Constant<value = i64[1] {2}>()
    one = Constant<value = i64[1] {1}>()
}"""


@pytest.fixture
def cache() -> Graph:
    return load(model(CACHE, domains=', "Odd" : 1'))


def test_types_and_contents_get_the_sizes(cache: Graph) -> None:
    bound = bind(cache, {"N": 2, "P": 5})
    assert bound.type("a") == Type("f32", (2, bound.dims("y")[1], 4))  # type: ignore[index]
    assert str(bound.type("a")) == "f32[2,5 + S,4]"
    assert bound.content("s") == (2, bound.dims("a")[1], 4)  # type: ignore[index]
    assert bound.type("half") == Type("f32", (2, 2, 4))
    bound.verify()


def test_dims_read_only_the_inputs_they_still_need(cache: Graph) -> None:
    (op,) = bind(cache, {"N": 2, "P": 5}).of_kind("fuse.Dims")
    assert op.inputs == ("new",)
    assert op.attrs["homes"] == (("S", 0, 1),)
    assert op.slot == 1


def test_what_becomes_known_becomes_constant(cache: Graph) -> None:
    bound = bind(cache, {"N": 2, "P": 5, "S": 1})
    assert kinds(bound) == ["Concat", "Reshape", "Slice", "Odd.Read", "Cast"]
    tensor = bound.constant("u")
    assert tensor is not None
    assert (tensor.array().tolist(), tensor.array().dtype) == ([2, 6, 4], np.int32)
    assert bound.constant("s") is not None
    assert [node.op_type for node in bound.base.nodes] == ["Concat", "Reshape", "Slice", "Read", "Cast"]
    bound.verify()


def test_the_graph_it_came_from_is_as_it_was(cache: Graph) -> None:
    before = (cache.ops, dict(cache.base.types), dict(cache.base.contents), dict(cache.base.constants))
    bind(cache, {"N": 2, "P": 5, "S": 1})
    assert before == (cache.ops, cache.base.types, cache.base.contents, cache.base.constants)


def test_binding_nothing_changes_nothing(cache: Graph) -> None:
    bound = bind(cache, {})
    assert bound.ops == cache.ops
    assert {value: bound.type(value) for op in cache.ops for value in op.outputs} == {
        value: cache.type(value) for op in cache.ops for value in op.outputs
    }


def test_bodies_are_bound_too() -> None:
    graph = load(
        model(
            """(bool c, f32[N, 4] x) => (f32[N, 4] y) {
                r = Relu(x)
                y = If (c) <
                    then_branch = a () => (f32[N, 4] t) { s = Shape(r) e = Expand(k, s) t = Mul(r, e)
                        k = Constant<value = f32 {2}>() },
                    else_branch = b () => (f32[N, 4] t) { t = Neg(r) }
                >
            }"""
        )
    )
    bound = bind(graph, {"N": 3})
    body = the(bound, "If").bodies["then_branch"]
    assert kinds(body) == ["Expand", "Mul"]
    assert body.type("y/then_branch:t") == Type("f32", (3, 4))
    assert body.base.types is bound.base.types
    assert bound.type("y") == Type("f32", (3, 4))
    assert graph.type("y/then_branch:t") == Type("f32", (symbol("N"), 4))
    assert set(bound.base.captured) == {"r"}
    bound.verify()


def test_a_declared_type_is_bound() -> None:
    proto = model("(f32[N] x) => (f32[N] z) { y = Odd.Read(x) z = Relu(y) }", domains=', "Odd" : 1')
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("y", 1, ["N"]))
    assert bind(load(proto), {"N": 7}).type("z") == Type("f32", (7,))


def test_an_unnamed_dim_can_be_bound() -> None:
    proto = model("(f32[N] x) => (f32[N] y) { y = Relu(x) }")
    proto.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    assert bind(load(proto), {"?x.0": 2}).type("y") == Type("f32", (2,))


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        ({"batch": 1}, "no graph input has a dimension 'batch'; there are N, P, S"),
        ({"T": 1}, "no graph input has a dimension 'T'; there are N, P, S"),
        ({"N": -1}, "dimension 'N' cannot be -1; it is a number, 0 to 9223372036854775807"),
        ({"N": 1.5}, "dimension 'N' cannot be 1.5; it is a number, 0 to 9223372036854775807"),
        ({"N": True}, "dimension 'N' cannot be True; it is a number, 0 to 9223372036854775807"),
    ],
)
def test_bad_sizes(cache: Graph, dims: dict[str, int], says: str) -> None:
    with pytest.raises(FuseError) as error:
        bind(cache, dims)
    assert str(error.value) == says


def test_a_model_without_symbols() -> None:
    with pytest.raises(FuseError, match="there are none"):
        bind(load(model("(f32[2] x) => (f32[2] y) { y = Relu(x) }")), {"N": 1})


def test_a_size_may_be_a_number_of_numpy() -> None:
    graph = load(model("(f32[N] x) => (f32[N] y) { y = Relu(x) }"))
    assert bind(graph, {"N": np.int64(7)}).type("y") == Type("f32", (7,))
    assert repr(graph).endswith("1 ops, 1 in, 1 out>")
