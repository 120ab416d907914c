"""Evaluation: feeds, bodies, shapes, narrow types, and fused ops by parts and by definition."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from lift_models import model
from onnx import TensorProto, helper, numpy_helper

import fuse
import reference
from fuse.ir import Graph, Op
from fuse.types import FuseError
from reference.eval import Run


def lifted(body: str, **more: Any) -> Graph:
    return fuse.load(model(body, **more))


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def put(graph: Graph, kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...], **attrs: Any) -> Graph:
    """A copy of a graph whose ops all stand fused as one of a class."""
    copy = graph.copy()
    parts = tuple(copy.ops)
    copy.replace(Op(kind, inputs, outputs, attrs, parts), parts[-1].slot)
    return copy


NORM = """(f32[B, 4] x, f32[4] w) => (f32[B, 4] y) <f32 two = {2}, f32 eps = {0.001}, int64[1] axes = {-1}> {
    p = Pow(x, two) m = ReduceMean(p, axes) a = Add(m, eps) r = Sqrt(a) n = Div(x, r) y = Mul(n, w)
}"""


# ---- feeds ---------------------------------------------------------------------------------------
FEED = {"x": normal(3, 4), "w": normal(4)}


def test_no_feed_is_drawn_that_no_memory_holds() -> None:
    graph = lifted(f"(f32[3, {1 << 50}] x) => (f32[N] y) {{ y = Relu(x) }}")
    with pytest.raises(FuseError, match="input x has 3,377,699,720,527,872 elements, too many to draw"):
        reference.feeds(graph)


@pytest.mark.parametrize("seed", [-1, 0.5, "0", None])
def test_a_seed_that_is_none(seed: Any) -> None:
    with pytest.raises(FuseError, match="is no whole number of at least 0"):
        reference.feeds(lifted(NORM, opset=18), seed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": None}, "input w has no feed"),
        ({"q": normal(1)}, "the graph has no input q; its inputs are x, w"),
        ({"x": normal(3, 4, dtype=np.float64)}, r"input x wants f32\[B,4\], got f64\[3, 4\]"),
        ({"x": normal(3, 5)}, r"input x wants f32\[B,4\], got f32\[3, 5\]"),
        ({"x": normal(4)}, r"input x wants f32\[B,4\], got f32\[4\]"),
    ],
)
def test_a_feed_that_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    feeds = {name: value for name, value in {**FEED, **change}.items() if value is not None}
    with pytest.raises(FuseError, match=message):
        reference.eval(lifted(NORM, opset=18), feeds)


def test_a_symbol_has_one_size() -> None:
    graph = lifted("(f32[B] x, f32[B] y) => (f32[B] z) { z = Add(x, y) }")
    with pytest.raises(FuseError, match="dim B is 2 in input x and 3 in input y"):
        reference.eval(graph, {"x": normal(2), "y": normal(3)})


def test_an_input_with_a_default_may_be_left_out() -> None:
    graph = lifted("(f32[2] x, f32[2] s = {2, 3}) => (f32[2] y) { y = Mul(x, s) }")
    x = normal(2)
    np.testing.assert_array_equal(reference.eval(graph, {"x": x})["y"], x * np.asarray([2, 3], np.float32))
    np.testing.assert_array_equal(reference.eval(graph, {"x": x, "s": x})["y"], x * x)


def test_bf16_comes_from_numpy_files_as_bytes() -> None:
    graph = fuse.load(helper.make_model(helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [2])],
        [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, [2])],
    ), opset_imports=[helper.make_opsetid("", 17)], ir_version=8))  # fmt: skip
    x = np.asarray([1.5, -2.0], ml_dtypes.bfloat16)
    y = reference.eval(graph, {"x": x.view("V2")})["y"]
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(y.astype(np.float32), [-1.5, 2.0])


def test_fused_is_one_of_two_words() -> None:
    with pytest.raises(FuseError, match="fused is parts or definition, got 'both'"):
        reference.eval(lifted(NORM, opset=18), FEED, fused="both")  # type: ignore[arg-type]


# ---- operators -----------------------------------------------------------------------------------
def test_an_unknown_operator_is_an_error_only_where_it_is_reached() -> None:
    body = """(bool c, f32[2] x) => (f32[2] y) {
        y = If (c) <then_branch = t () => (f32[2] a) { a = Neg(x) },
                    else_branch = e () => (f32[2] b) { b = acme.ops.Mystery(x) }>
    }"""
    graph = lifted(body, domains=', "acme.ops" : 1')
    assert reference.eval(graph, {"c": np.asarray(True), "x": normal(2)})["y"].shape == (2,)
    with pytest.raises(FuseError, match=r"no implementation for acme\.ops Mystery at y/else_branch:b"):
        reference.eval(graph, {"c": np.asarray(False), "x": normal(2)})


def test_operands_that_do_not_fit_name_the_op() -> None:
    graph = lifted("(f32[a, b] x, f32[c, d] y) => (f32[e, f] z) { z = MatMul(x, y) }")
    with pytest.raises(FuseError, match=r"MatMul does not run on f32\[2, 3\], f32\[4, 5\].* at z"):
        reference.eval(graph, {"x": normal(2, 3), "y": normal(4, 5)})


def test_a_body_reads_outer_values_and_may_shadow_none() -> None:
    body = """(bool c, f32[2] x) => (f32[2] y) {
        d = Add(x, x)
        y = If (c) <then_branch = t () => (f32[2] a) { k = Neg(d) a = Mul(k, x) },
                    else_branch = e () => (f32[2] a) { k = Abs(d) a = Mul(k, x) }>
    }"""
    x = normal(2)
    for choice, want in ((True, -2 * x * x), (False, 2 * np.abs(x) * x)):
        got = reference.eval(lifted(body), {"c": np.asarray(choice), "x": x})["y"]
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_loop_carries_and_gathers_until_its_condition_fails() -> None:
    body = """(int64 n, f32[2] x) => (f32[2] last, f32[k, 2] rows) <bool go = {1}, f32 half = {0.5}> {
        last, rows = Loop (n, go, x) <body = b (int64 i, bool c, f32[2] s) => (bool d, f32[2] t, f32[2] r) {
            t = Mul(s, half) m = ReduceMax <keepdims = 0> (t) limit = Constant <value_float = 0.2> ()
            d = Greater(m, limit) r = Identity(t)
        }>
    }"""
    found = reference.eval(lifted(body), {"n": np.asarray(9), "x": np.asarray([1, 0.5], np.float32)})
    np.testing.assert_allclose(found["last"], [0.125, 0.0625])
    np.testing.assert_allclose(found["rows"][:, 0], [0.5, 0.25, 0.125])


def test_a_loop_without_an_iteration_gives_what_it_was_given() -> None:
    body = """(int64 n, f32[2] x) => (f32[2] last) <bool go = {1}> {
        last = Loop (n, go, x) <body = b (int64 i, bool c, f32[2] s) => (bool d, f32[2] t) {
            d = Identity(c) t = Neg(s)
        }>
    }"""
    x = normal(2)
    np.testing.assert_array_equal(reference.eval(lifted(body), {"n": np.asarray(0), "x": x})["last"], x)


def test_a_scan_walks_backward_and_stacks_on_any_axis() -> None:
    body = """(f32[2] s, f32[2, 3] x) => (f32[2] last, f32[2, 3] sums) {
        last, sums = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
                           scan_output_axes = [1],
                           body = b (f32[2] a, f32[2] r) => (f32[2] t, f32[2] o) {
            t = Add(a, r) o = Identity(t)
        }> (s, x)
    }"""
    s, x = normal(2), normal(2, 3, seed=1)
    found = reference.eval(lifted(body), {"s": s, "x": x})
    want = s[:, None] + np.cumsum(x[:, ::-1], 1)
    np.testing.assert_allclose(found["last"], want[:, -1], rtol=1e-5)
    np.testing.assert_allclose(found["sums"], want, rtol=1e-5)


def test_shapes_that_the_lift_reads_from_inputs() -> None:
    body = """(f32[B, S, 4] x) => (f32[B, 2, n] y) <int64[1] two = {2}, int64[1] rest = {-1}> {
        t = Transpose <perm = [0, 2, 1]> (x)
        s = Shape <start = 0, end = 1> (t) f = Concat <axis = 0> (s, two, rest) y = Reshape(t, f)
    }"""
    x = normal(3, 5, 4)
    want = x.transpose(0, 2, 1).reshape(3, 2, 10)
    np.testing.assert_array_equal(reference.eval(lifted(body), {"x": x})["y"], want)


def test_a_random_operator_draws_once_for_all() -> None:
    graph = lifted("(f32[4] x) => (f32[4] y) { r = RandomNormalLike(x) y = Add(x, r) }")
    first, second = (reference.eval(graph, {"x": normal(4)})["y"] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_sequences_pass_between_operators() -> None:
    body = """(f32[4] x) => (f32[4] y) <int64 first = {0}> {
        s = SplitToSequence <axis = 0> (x) e = SequenceAt(s, first) t = SequenceInsert(s, e)
        y4 = ConcatFromSequence <axis = 0> (t) y = Slice(y4, a, b)
    }""".replace("<int64 first = {0}>", "<int64 first = {0}, int64[1] a = {1}, int64[1] b = {5}>")
    x = normal(4)
    np.testing.assert_array_equal(reference.eval(lifted(body), {"x": x})["y"], [*x[1:], x[0]])


# ---- narrow types --------------------------------------------------------------------------------
def test_f16_is_carried_between_arithmetic_and_rounded_at_the_end() -> None:
    graph = lifted("(f16[1] x, f16[1] s) => (f16[1] y) { a = Add(x, s) y = Sub(a, x) }")
    feeds = {"x": np.asarray([1], np.float16), "s": np.asarray([1e-4], np.float16)}
    y = reference.eval(graph, feeds)["y"]
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, feeds["s"], rtol=1e-2)


def test_a_cast_sees_the_value_of_the_type() -> None:
    body = "(f16[1] x, f16[1] s) => (f32[1] y) { a = Add(x, s) y = Cast <to = 1> (a) }"
    feeds = {"x": np.asarray([1], np.float16), "s": np.asarray([1e-4], np.float16)}
    assert float(reference.eval(lifted(body), feeds)["y"][0]) == 1.0


def test_f16_overflows_and_swallows_as_the_type_does() -> None:
    graph = lifted(
        "(f16[2] x, f16[2] m) => (f16[2] p, f16[2] q) { p = Mul(x, x) a = Add(x, m) q = Sub(a, m) }"
    )
    x, mask = np.asarray([300, 3], np.float16), np.full(2, np.finfo(np.float16).min)
    found = reference.eval(graph, {"x": x, "m": mask})
    assert np.isinf(found["p"][0])
    assert float(found["q"][1]) == 0.0


def test_a_norm_of_two_types_gives_the_type_of_x() -> None:
    nodes = [helper.make_node("LayerNormalization", ["x", "w"], ["y"])]
    weight = numpy_helper.from_array(normal(4, seed=1), "w")
    graph = fuse.load(helper.make_model(helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [2, 4])], [weight],
    ), opset_imports=[helper.make_opsetid("", 17)], ir_version=8))  # fmt: skip
    x = normal(2, 4, dtype=np.float16)
    wide = x.astype(np.float32)
    want = (
        (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * normal(4, seed=1)
    )
    y = reference.eval(graph, {"x": x})["y"]
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, want, atol=2e-3)


# ---- fused ops -----------------------------------------------------------------------------------
def test_by_parts_is_equal_bit_for_bit_and_by_definition_close() -> None:
    graph = lifted(NORM, opset=18)
    fused = put(graph, "rms_norm", ("x", "w"), ("y",), eps=1e-3)
    before = reference.eval(graph, FEED)["y"]
    np.testing.assert_array_equal(reference.eval(fused, FEED)["y"], before)
    by_definition = reference.eval(fused, FEED, fused="definition")["y"]
    assert by_definition.dtype == before.dtype
    np.testing.assert_allclose(by_definition, before, rtol=1e-5)
    found = reference.check(graph, fused)
    assert found == reference.Check(True, 0, "f32", True, found.max_error)
    (each,) = reference.check_each(fused)
    assert (each.op, each.builds, each.reason) == ("y", "rms_norm", "")


def test_an_attribute_read_wrongly_is_found_and_the_op_named() -> None:
    graph = lifted(NORM, opset=18)
    wrong = put(graph, "rms_norm", ("x", "w"), ("y",), eps=0.5)
    with pytest.raises(reference.Mismatch, match="rms_norm y differs by definition: off by") as raised:
        reference.check(graph, wrong, seed=3)
    assert raised.value.check is not None
    assert (raised.value.check.differs, raised.value.check.bit_equal, raised.value.check.seed) == (
        "y",
        True,
        3,
    )
    with pytest.raises(reference.Mismatch, match="rms_norm y differs by definition"):
        reference.check_each(wrong)


def test_dataflow_that_broke_is_found_and_the_first_op_named() -> None:
    graph = lifted(NORM, opset=18)
    broken = graph.copy()
    slot = next(op.slot for op in broken.ops if op.kind == "Add")
    add = broken.slots[slot]
    assert add is not None
    broken.slots[slot] = add._replace(inputs=(add.inputs[0], add.inputs[0]))
    with pytest.raises(reference.Mismatch, match="Add a differs by parts") as raised:
        reference.check(graph, broken)
    assert raised.value.check is not None
    assert (raised.value.check.differs, raised.value.check.bit_equal) == ("a", False)


def test_a_class_without_a_definition_is_an_error() -> None:
    graph = put(lifted(NORM, opset=18), "no_such_class", ("x", "w"), ("y",))
    assert reference.eval(graph, FEED)["y"].shape == (3, 4)
    with pytest.raises(FuseError, match="no definition of class no_such_class at y"):
        reference.eval(graph, FEED, fused="definition")


def test_an_op_of_unknown_type_is_listed_with_the_reason() -> None:
    body = "(f32[2] x) => (f32[2] y) { z = acme.ops.Mystery(x) s = Sigmoid(z) y = Mul(z, s) }"
    graph = lifted(body, domains=', "acme.ops" : 1').copy()
    parts = tuple(op for op in graph.ops if op.kind != "acme.ops.Mystery")
    graph.replace(Op("silu", ("z",), ("y",), {}, parts), parts[-1].slot)
    (each,) = reference.check_each(graph)
    assert each.error is None
    assert "the type of operand z is not known" in each.reason


def test_dead_values_are_freed() -> None:
    steps = " ".join(f"v{i} = Neg(v{i - 1})" for i in range(1, 20))
    graph = lifted(f"(f32[8] v0) => (f32[8] y) {{ {steps} y = Neg(v19) }}")
    held: list[int] = []
    run = Run(graph, watch=lambda g, op, read, results: held.append(len(read.__self__.values)))  # type: ignore[attr-defined]
    run.outputs({"v0": normal(8)})
    assert max(held) <= 2


# ---- random feeds --------------------------------------------------------------------------------
DECODER = """(int64[batch, seq] input_ids, int64[batch, total] attention_mask,
              int64[batch, seq] position_ids, f32[batch, 2, past, 4] past_k, bool[batch, seq] key_padding)
    => (f32[batch, seq, 8] y) {
    a = Gather(table, input_ids) b = Gather(places, position_ids) y = Add(a, b)
}"""


def decoder(total: str = "past + seq") -> Graph:
    proto = model(DECODER)
    proto.graph.input[1].type.tensor_type.shape.dim[1].dim_param = total
    for name, rows in (("table", 50), ("places", 6)):
        proto.graph.initializer.append(numpy_helper.from_array(normal(rows, 8), name))
    return fuse.load(proto)


@pytest.mark.parametrize("total", ["past + seq", "total"])
def test_feeds_fit_each_other_and_what_reads_them(total: str) -> None:
    feeds = reference.feeds(decoder(total), seed=1)
    batch, rows = feeds["input_ids"].shape
    past = feeds["past_k"].shape[2]
    assert feeds["attention_mask"].shape == (batch, past + rows)
    assert (feeds["attention_mask"] == 1).all()
    assert feeds["input_ids"].min() >= 0
    assert feeds["input_ids"].max() < 50
    assert feeds["position_ids"].max() < 6
    assert list(feeds["position_ids"][0][:3]) == [past, past + 1, past + 2]
    assert not feeds["key_padding"].any()
    again = reference.feeds(decoder(total), seed=1)
    assert all(np.array_equal(feeds[name], again[name]) for name in feeds)


def test_sizes_may_be_given() -> None:
    feeds = reference.feeds(decoder(), dims={"batch": 1, "past": 0})
    assert feeds["past_k"].shape == (1, 2, 0, 4)
    with pytest.raises(FuseError, match="no input has a dim width; there are batch, seq, past"):
        reference.feeds(decoder(), dims={"width": 3})


def test_an_input_of_unknown_rank_needs_a_feed() -> None:
    proto = onnx.helper.make_model(onnx.helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    ), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)  # fmt: skip
    with pytest.raises(FuseError, match="input x has no known type"):
        reference.feeds(fuse.load(proto))
