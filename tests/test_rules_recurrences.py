"""The gated delta rule in every spelling, and short convolutions with a state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from building import Building, codes, drawn, fired, near, optimized
from holding import held
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper
from recurrence_models import B, C, Chunked, H, K, S, V, repeated, row

import chips
import fuse
import reference
from fuse import forms
from fuse.ir import leaves

DTYPE = st.sampled_from([np.float32, np.float16])


# ---- the gated delta rule --------------------------------------------------------------------------
@drawn(st.integers(0, 99), DTYPE, st.integers(2, 4), st.integers(1, 2), st.integers(1, 2))
def test_chunks_agree_with_the_recurrence(seed: int, dtype: Any, chunk: int, chunks: int, less: int) -> None:
    model = Chunked(chunk, chunks, chunk * chunks - less + 1, dtype=dtype, seed=seed).build()
    op = fired(model, "gated_delta", seed)
    assert op.attrs["chunks"] == chunks
    assert op.attrs["chunk"] == chunk
    assert op.attrs["scale"] == 0.5
    assert (op.inputs[0], op.inputs[2], op.inputs[5]) == ("q", "v", "")


def test_the_state_left_is_a_result() -> None:
    op = fired(Chunked(changed="state out").build(), "gated_delta")
    assert len(op.outputs) == 2


def test_rows_padded_with_ones_are_rows() -> None:
    op = fired(Chunked(changed="pads with ones").build(), "gated_delta")
    assert "Pad" in op.inputs[0]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ("pads before", "attribute"),
        ("sum axis", "attribute"),
        ("later", "operand"),
        ("diagonal", "operand"),
        ("two", "operand"),
        ("a row less", "guard:every_row_is_solved"),
        ("another block", "guard:every_row_is_solved"),
        ("same place", "guard:chunks_follow_each_other"),
        ("state forgotten", "guard:chunks_follow_each_other"),
        ("last row", "guard:chunks_follow_each_other"),
    ],
)
def test_what_is_no_gated_delta_rule(changed: str, code: str) -> None:
    assert codes(Chunked(changed=changed).build(), "gated_delta") == {code}


@pytest.mark.parametrize(
    ("kind", "which", "to", "attrs", "code"),
    [
        ("CumSum", 0, "CumSum", {"reverse": 1}, "attribute"),
        ("CumSum", 0, "CumSum", {"exclusive": 1}, "attribute"),
        ("Trilu", 0, "Trilu", {"upper": 1}, "attribute"),
        ("Exp", 0, "Tanh", {}, "op"),
        ("Neg", -1, "Abs", {}, "op"),
        ("Sub", 0, "Add", {}, "op"),
        ("ReduceSum", 0, "ReduceMax", {}, "guard:every_row_is_solved"),
    ],
)
def test_one_operator_of_the_chunks_is_another(
    kind: str, which: int, to: str, attrs: dict[str, int], code: str
) -> None:
    model = Chunked().build()
    node = [node for node in model.graph.node if node.op_type == kind][which]
    node.op_type = to
    kept = [attr for attr in node.attribute if attr.name not in attrs]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in attrs.items())])
    assert codes(model, "gated_delta") == {code}


@pytest.mark.parametrize("model", [Chunked(changed="q scaled once").build(), row("decayed twice")])
def test_one_q_and_one_state_throughout(model: ModelProto) -> None:
    assert not optimized(model).report.fired("gated_delta")


def test_each_interior_as_an_output_in_turn() -> None:
    model = Chunked(chunk=2, chunks=2, rows=3).build()
    op = fired(model, "gated_delta")
    inside = [v for leaf in leaves(op) for v in leaf.outputs if v and v not in op.outputs]
    assert len(inside) > 40
    graph = fuse.load(model)
    for value in (v for v in inside if graph.dtype(v) == "f32"):
        twin = ModelProto.FromString(model.SerializeToString())
        twin.graph.output.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, None))
        found = optimized(twin)
        assert reference.check(found.before, found.graph).bit_equal


@drawn(st.integers(0, 99), DTYPE, st.sampled_from(["sums", "products"]))
def test_one_row_agrees_with_the_recurrence(seed: int, dtype: Any, style: str) -> None:
    op = fired(row(style, dtype=dtype, seed=seed), "gated_delta", seed)
    assert len(op.outputs) == 2
    assert (*op.inputs[:3], op.inputs[5]) == ("q", "k", "v", "state")
    assert op.attrs["scale"] == 0.5


@drawn(st.sampled_from(["Scan", "Loop"]), st.integers(0, 2), st.integers(1, 6))
def test_a_scan_or_a_loop_of_rows(kind: str, axis: int, rows: int) -> None:
    found = optimized(repeated(kind, axis, rows))
    whole = [op for op in found.graph.ops if op.kind == "gated_delta"]
    assert [op.outputs for op in whole] == [("y", "after")]
    assert whole[0].attrs["q_layout"].split()[axis] == "s"
    assert reference.check(found.before, found.graph).bit_equal


@pytest.mark.parametrize("kind", ["Scan", "Loop"])
def test_a_repeated_row_runs_as_it_was(kind: str) -> None:
    held(repeated(kind))


def test_holding_the_rule_leaves_a_repeated_row_as_it_is() -> None:
    plain = fuse.load(repeated())
    kept = fuse.optimize(plain, shim=chips.load("any"), held=["gated_delta", "elementwise_region"])
    assert [op.kind for body in kept.graph.bodies() for op in body.ops] == [
        op.kind for body in plain.bodies() for op in body.ops
    ]


def test_holding_a_later_step_leaves_bodies_of_fused_ops_alone() -> None:
    plain = fuse.load(repeated())
    steps = optimized(repeated()).steps
    later = steps[steps.index("gated_delta") + 1 :]
    kept = fuse.optimize(plain, shim=chips.load("any"), held=later)
    assert [op.kind for body in kept.graph.bodies() for op in body.ops] == ["gated_delta"]


def test_a_loop_of_other_length_is_left() -> None:
    model = repeated("Loop", rows=4)
    trips = next(t for t in model.graph.initializer if t.dims == [] and t.data_type == TensorProto.INT64)
    trips.CopyFrom(helper.make_tensor(trips.name, TensorProto.INT64, [], [3]))
    found = optimized(model)
    assert not [op for op in found.graph.ops if op.kind == "gated_delta"]
    assert reference.check(found.before, found.graph).bit_equal


# ---- native recurrences ------------------------------------------------------------------------------
def native(kind: str, **attrs: Any) -> Any:
    """The form of a native operator over packed rows (or rows and heads apart)."""
    g = Building(opset=27)
    if kind == "com.microsoft.GatedDeltaNet":
        q, k, v = g.input("q", B, S, 2, K), g.input("k", B, S, 2, K), g.input("v", B, S, 4, V)
        decay, beta, state = g.input("g", B, S, 4), g.input("beta", B, S, 4), g.input("state", B, 4, V, K)
        inputs = [q, k, v, "", decay, beta, state]
    else:
        q, k, v = g.input("q", B, S, H * K), g.input("k", B, S, H * K), g.input("v", B, S, H * V)
        decay, beta, state = g.input("g", B, S, H), g.input("beta", B, S, H), g.input("state", B, H, K, V)
        inputs = [q, k, v, state, decay, beta]
        attrs = {"q_num_heads": H, "kv_num_heads": H, **attrs}
    y, last = g.op(kind, *inputs, outputs=2, **attrs)
    graph = fuse.load(g.model(y, last))
    return graph, forms.delta(graph, graph.ops[0])


@pytest.mark.parametrize("kind", ["LinearAttention", "com.microsoft.LinearAttention"])
def test_native_linear_attention_reads_as_the_class(kind: str) -> None:
    graph, found = native(kind)
    assert (found.q, found.k, found.v, found.decay, found.beta, found.state) == (
        "q",
        "k",
        "v",
        "g",
        "beta",
        "state",
    )
    assert found.attrs["scale"] == K**-0.5
    assert found.attrs["q_layout"] == "b s hd"
    assert found.attrs["decay_layout"] == "b s h"
    assert found.last_state == graph.outputs[1]
    assert native(kind, update_rule="delta", scale=2.0)[1].attrs["update"] == "delta"


def test_contrib_gated_delta_net_keeps_its_state_values_first() -> None:
    found = native("com.microsoft.GatedDeltaNet")[1]
    assert found.attrs["state_layout"] == "b h v k"
    assert (found.attrs["heads"], found.attrs["key_heads"]) == (4, 2)
    assert native("com.microsoft.GatedDeltaNet", qk_l2_norm=1)[1] is None
    assert native("com.microsoft.GatedDeltaNet", gate_activation="softplus")[1] is None


# ---- short convolutions --------------------------------------------------------------------------------
def short(
    dtype: Any = np.float32,
    zeros: str = "both",
    silu: bool = True,
    bias: bool = True,
    gates: str = "",
    dilation: int = 1,
    state: int = 0,
    begin: int = 0,
    group: int = C,
    gate_dims: tuple[int, ...] = (B, C, S),
    seed: int = 0,
) -> ModelProto:
    """zeros: both, before, pad (an operator of its own), none; state: its columns; begin: the first column
    that is kept."""
    g = Building(dtype, seed=seed)
    reach = 3 * dilation
    x = g.input("x", B, C, S)
    if "x" in gates:
        x = g.op("Mul", g.input("x_gate", B, C, S), x)
    if zeros == "pad":
        x = g.op("Pad", x, g.ints(0, 0, reach, 0, 0, 0))
    if state:
        x = g.op("Concat", g.input("state", B, C, state), x, axis=2)
    pads = {"both": [reach, reach], "before": [reach, 0]}.get(zeros, [0, 0])
    operands = [x, g.weight(C, C // group, 4)] + ([g.weight(C)] if bias else [])
    y = g.op("Conv", *operands, group=group, pads=pads, dilations=[dilation], kernel_shape=[4])
    if zeros == "both" or (state and state != reach):
        y = g.op("Slice", y, *(g.ints(n) for n in (begin, begin + S, 2, 1)))
    y = g.op("Mul", y, g.op("Sigmoid", y)) if silu else y
    y = g.op("Mul", g.input("gate", *gate_dims), y) if "y" in gates else y
    if not state:
        return g.model(g.op("Neg", y))
    return g.model(g.op("Neg", y), g.op("Slice", x, *(g.ints(n) for n in (-state, 2**63 - 1, 2))))


@drawn(
    st.integers(0, 99), DTYPE, st.sampled_from(["both", "before", "pad"]), st.booleans(), st.booleans(),
    st.sampled_from(["", "x", "y", "xy"]), st.integers(1, 2),
)  # fmt: skip
def test_short_convolutions(
    seed: int, dtype: Any, zeros: str, silu: bool, bias: bool, gates: str, dilation: int
) -> None:
    op = fired(
        short(dtype, zeros, silu, bias, gates, dilation, seed=seed), "conv_silu" if silu else "conv_state"
    )
    assert op.inputs[0] == "x" or op.inputs[4] == "x"
    assert bool(op.inputs[2]) == bias
    assert (bool(op.inputs[4]), bool(op.inputs[5])) == ("x" in gates, "y" in gates)
    assert op.attrs.get("dilation", 1) == dilation


@drawn(DTYPE, st.sampled_from([3, 4]), st.booleans())
def test_a_state_of_past_columns(dtype: Any, columns: int, silu: bool) -> None:
    op = fired(
        short(dtype, "none", silu, state=columns, begin=columns - 3), "conv_silu" if silu else "conv_state"
    )
    assert op.inputs[3] == "state"
    assert len(op.outputs) == 2


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"group": 1}, "guard:each_channel_has_its_own_taps"),
        ({"begin": 1}, "guard:no_column_looks_ahead"),
        ({"zeros": "none", "state": 4, "begin": 0}, "guard:no_column_looks_ahead"),
    ],
)
def test_what_is_no_short_convolution(changed: dict[str, Any], code: str) -> None:
    assert codes(short(silu=False, **changed), "conv_state") == {code}


def test_a_gate_of_other_dims_stays_outside() -> None:
    model = short(gates="y", gate_dims=(B, 1, S))
    assert not fired(model, "conv_silu").inputs[5]
    assert near(model, "conv_state") == {"guard:gate_has_the_dims_of_the_result"}


def unit_heads(dtype: Any = np.float32, silu: bool = True, order: str = "bshd", seed: int = 0) -> ModelProto:
    """q or k of a linear attention: the convolution, in heads, each lane over its head's length."""
    g = Building(dtype, seed=seed)
    y = g.op("Conv", g.input("x", B, C, S), g.weight(C, 1, 4), group=C, pads=[3, 0])
    y = g.op("Mul", y, g.op("Sigmoid", y)) if silu else y
    y = g.op("Transpose", y, perm=[0, 2, 1])
    if "h" in order:
        y = g.op("Reshape", y, g.ints(B, S, 2, C // 2))
    y = g.op("Transpose", y, perm=[0, 2, 1, 3]) if order == "bhsd" else y
    square = g.op("ReduceSum", g.op("Mul", y, y), g.ints(-1))
    root = g.op("Sqrt", g.op("Add", square, g.constant(1e-3)))
    return g.model(g.op("Neg", g.op("Mul", y, g.op("Reciprocal", root))))


@drawn(st.integers(0, 99), DTYPE, st.booleans(), st.sampled_from(["bshd", "bhsd", "bsd"]))
def test_heads_of_unit_length(seed: int, dtype: Any, silu: bool, order: str) -> None:
    op = fired(unit_heads(dtype, silu, order, seed), "conv_silu" if silu else "conv_state", seed)
    assert op.attrs["heads"] == (2 if "h" in order else 1)
    assert op.attrs["out_layout"].replace(" ", "") == order
    assert op.attrs["length_eps_at"] == "inside"


def test_a_native_operator_takes_the_silu_behind_it() -> None:
    g = Building(opset=27)
    y, last = g.op("CausalConvWithState", g.input("x", B, C, S), g.weight(C, 1, 4), outputs=2)
    model = g.model(g.op("Mul", y, g.op("Sigmoid", y)), last)
    found = [r.op for r in optimized(model).records if r.builds == "conv_silu" and r.op is not None]
    assert [op.outputs[1] for op in found] == [last]


@pytest.mark.parametrize("zeros", ["both", "before", "pad"])
def test_a_short_convolution_runs_as_it_was(zeros: str) -> None:
    held(short(zeros=zeros, gates="xy"))
