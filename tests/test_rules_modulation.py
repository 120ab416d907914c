"""Adaptive norms, gated residuals and norms, flattened norms, norms of lookups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from building import Building, codes, drawn, each_interior_as_an_output, fired, near, optimized
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto

import reference

DTYPE = st.sampled_from([np.float32, np.float16])
B, S, W = 2, 3, 8


def layer_norm(g: Building, x: str, weight: str = "ones") -> str:
    """A layer norm without a weight of its own, as exporters write one: ones (and zeros)."""
    ones = g.constant(np.full(W, 1 if weight == "ones" else 2, g.dtype))
    parts = [x, ones] if weight != "zeros too" else [x, g.constant(np.ones(W, g.dtype))]
    if weight == "zeros too":
        parts.append(g.constant(np.zeros(W, g.dtype)))
    return g.op("LayerNormalization", *parts, axis=-1, epsilon=1e-6)


def rms(g: Building, x: str) -> str:
    square = g.op("ReduceMean", g.op("Mul", x, x), g.ints(-1))
    return g.op("Div", x, g.op("Sqrt", g.op("Add", square, g.constant(1e-3))))


# ---- adaptive norms ------------------------------------------------------------------------------
def modulated(
    dtype: Any = np.float32,
    factored: bool = True,
    norm: str = "ones",
    residual: bool = False,
    dims: tuple[int, ...] = (B, 1, W),
    seed: int = 0,
    turned: bool = False,
    shifted: bool = True,
) -> ModelProto:
    """turned: one is added to the scale before it is put under the axes of x. shifted: there is a shift."""
    g = Building(dtype, seed=seed)
    x, scale = g.input("x", B, S, W), g.input("scale", *((B, W) if turned else dims))
    if residual:
        x = g.op("Add", x, g.input("residual", B, S, W))
    y = rms(g, x) if norm == "rms" else layer_norm(g, x, norm)
    if turned:
        y = g.op("Mul", y, g.op("Unsqueeze", g.op("Add", scale, g.constant(1.0)), g.ints(1)))
    elif factored:
        y = g.op("Mul", y, g.op("Add", scale, g.constant(1.0)))
    else:
        y = g.op("Add", y, g.op("Mul", y, scale))
    if shifted:
        y = g.op("Add", g.input("shift", *dims), y)
    return g.model(y, g.op("Neg", x)) if residual else g.model(y)


@drawn(st.integers(0, 99), DTYPE, st.booleans(), st.sampled_from(["ones", "zeros too", "rms"]), st.booleans())
def test_ada_norm_agrees_with_its_definition(
    seed: int, dtype: Any, factored: bool, norm: str, residual: bool
) -> None:
    op = fired(modulated(dtype, factored, norm, residual, seed=seed), "ada_norm", seed)
    assert op.attrs.get("norm", "rms") == ("rms" if norm == "rms" else "layer")
    assert bool(op.inputs[3]) == residual
    assert len(op.outputs) == 1 + residual


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"dims": (B, S, W)}, "guard:scale_and_shift_are_rows_of_each_batch"),
        ({"dims": (S, 1)}, "guard:scale_and_shift_are_rows_of_each_batch"),
    ],
)
def test_what_is_no_ada_norm(changed: dict[str, Any], code: str) -> None:
    assert codes(modulated(**changed), "ada_norm") == {code}


@drawn(
    st.integers(0, 99),
    DTYPE,
    st.booleans(),
    st.booleans(),
    st.sampled_from(["ones", "twos", "rms"]),
    st.booleans(),
)
def test_other_spellings_of_an_ada_norm(
    seed: int, dtype: Any, turned: bool, shifted: bool, norm: str, residual: bool
) -> None:
    """Without a shift, over a norm with a weight of its own, one added to the scale before it is turned."""
    model = modulated(dtype, True, norm, residual, turned=turned, shifted=shifted, seed=seed)
    op = fired(model, "ada_norm", seed)
    assert (bool(op.inputs[2]), bool(op.inputs[4])) == (shifted, norm == "twos")
    assert op.attrs.get("scale_offset", 1.0) == (0.0 if turned else 1.0)


def test_a_weight_at_run_time_is_no_scale() -> None:
    """One plus a row that all batches share is the weight of the norm itself."""
    assert not optimized(modulated(norm="rms", dims=(W,), shifted=False)).report.fired("ada_norm")


@pytest.mark.parametrize("again", [False, True])
def test_a_norm_that_is_added_twice_is_not_modulated(again: bool) -> None:
    """Each branch is normed before it joins the stream (Swin 2): nothing stands for a scale."""
    g = Building(np.float32)
    first = layer_norm(g, g.input("x", B, S, W), "twos")
    other = first if again else layer_norm(g, g.op("Add", first, g.input("z", B, S, W)), "twos")
    assert codes(g.model(g.op("Add", g.op("Add", first, other), g.input("s", B, S, W))), "ada_norm") == set()


def test_a_gated_branch_before_a_weighted_adaptive_norm() -> None:
    g = Building(np.float32)
    rows = g.op("Gemm", g.input("condition", B, W), g.weight(3 * W, W, about=0), g.weight(3 * W), transB=1)
    shift, scale, gate = (
        g.op("Unsqueeze", row, g.ints(1)) for row in g.op("Split", rows, outputs=3, axis=1, num_outputs=3)
    )
    x = g.op("Add", g.input("x", B, S, W), g.op("Mul", gate, g.op("Neg", g.input("y", B, S, W))))
    y = g.op("Mul", layer_norm(g, x, "twos"), g.op("Add", scale, g.constant(1.0)))
    report = optimized(g.model(g.op("Add", y, shift), g.op("Neg", x))).report
    assert (len(report.fired("gated_residual")), len(report.fired("ada_norm"))) == (1, 1), report


def block(dtype: Any = np.float32, seed: int = 0) -> ModelProto:
    """A diffusion transformer's block: one product makes six rows of a condition, of which each branch
    takes a shift, a scale and a gate; another layer's norm follows."""
    g = Building(dtype, seed=seed)
    x, condition = g.input("x", B, S, W), g.input("condition", B, W)
    silu = g.op("Mul", condition, g.op("Sigmoid", condition))
    rows = g.op("Gemm", silu, g.weight(6 * W, W, about=0), g.weight(6 * W), transB=1)
    parts = [
        g.op("Unsqueeze", row, g.ints(1)) for row in g.op("Split", rows, outputs=6, axis=1, num_outputs=6)
    ]

    def branch(x: str, shift: str, scale: str, gate: str) -> str:
        y = g.op("Mul", layer_norm(g, x), g.op("Add", scale, g.constant(1.0)))
        y = g.op("Add", y, shift)
        y = g.op("Add", g.op("MatMul", y, g.weight(W, W, about=0)), g.weight(W))
        return g.op("Add", x, g.op("Mul", gate, y))

    x = branch(x, *parts[:3])
    x = branch(x, *parts[3:])
    last = g.op("Add", g.op("Mul", layer_norm(g, x), g.op("Add", parts[1], g.constant(1.0))), parts[0])
    return g.model(last)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_block_of_a_diffusion_transformer(dtype: Any) -> None:
    model = block(dtype)
    report = optimized(model).report
    assert (len(report.fired("ada_norm")), len(report.fired("gated_residual"))) == (3, 2), report
    fired(model, "ada_norm")


# ---- gated residuals -----------------------------------------------------------------------------
def gated(
    dtype: Any = np.float32,
    gate: tuple[int, ...] = (B, 1, W),
    x: tuple[int, ...] = (B, S, W),
    known: bool = False,
    seed: int = 0,
) -> ModelProto:
    g = Building(dtype, seed=seed)
    if known:
        row = g.weight(*gate)
    else:
        both = g.op("Gemm", g.input("condition", gate[0], W), g.weight(W, 2 * W))
        row = g.op("Split", both, outputs=2, axis=1, num_outputs=2)[1]
        row = g.op("Reshape", row, g.ints(gate[0], 1, W)) if len(gate) == 3 else row
        row = g.op("Expand", row, g.ints(*gate)) if gate[1:] == (S, W) else row
    y = g.op("Neg", g.input("y", B, S, W))
    return g.model(g.op("Add", g.op("Mul", row, y), g.input("x", *x)))


@drawn(st.integers(0, 99), DTYPE, st.sampled_from([(B, 1, W), (1, 1, W), (W,)]))
def test_gated_residual_agrees_with_its_definition(seed: int, dtype: Any, gate: tuple[int, ...]) -> None:
    op = fired(gated(dtype, gate, known=gate == (W,), seed=seed), "gated_residual", seed)
    assert op.inputs[0] == "x"


def full_gate() -> ModelProto:
    g = Building()
    both = g.op("MatMul", g.input("condition", B, S, W), g.weight(W, 2 * W))
    row = g.op("Split", both, outputs=2, axis=2, num_outputs=2)[1]
    y = g.op("Neg", g.input("y", B, S, W))
    return g.model(g.op("Add", g.op("Mul", row, y), g.input("x", B, S, W)))


def test_a_gate_as_large_as_its_branch() -> None:
    assert codes(full_gate(), "gated_residual") == {"guard:gate_is_narrower"}


def test_a_residual_that_is_spread() -> None:
    assert codes(gated(x=(1, S, W)), "gated_residual") == {"guard:residual_has_the_dims_of_the_sum"}


def test_a_gate_that_is_squashed() -> None:
    g = Building()
    both = g.op("Gemm", g.input("condition", B, W), g.weight(W, 2 * W))
    row = g.op("Split", both, outputs=2, axis=1, num_outputs=2)[1]
    row = g.op("Tanh", g.op("Reshape", row, g.ints(B, 1, W)))
    y = g.op("Neg", g.input("y", B, S, W))
    fired(g.model(g.op("Add", g.input("x", B, S, W), g.op("Mul", row, y))), "gated_residual")


@pytest.mark.parametrize("known", [True, False])
def test_a_scale_and_a_shift_are_no_gate_and_residual(known: bool) -> None:
    """As a final layer without a norm has them, or a response norm over channels."""
    g = Building()
    both = g.op("Gemm", g.input("condition", B, W), g.weight(W, 2 * W))
    parts = g.op("Split", both, outputs=2, axis=1, num_outputs=2)
    scale, shift = (g.op("Reshape", part, g.ints(B, 1, W)) for part in parts)
    y = g.op("Mul", scale, g.op("Neg", g.input("y", B, S, W)))
    assert codes(g.model(g.op("Add", y, g.weight(1, 1, W) if known else shift)), "gated_residual") == set()


def test_a_branch_times_a_number_is_not_gated() -> None:
    g = Building()
    y = g.op("Mul", g.op("Neg", g.input("y", B, S, W)), g.constant(0.5))
    assert codes(g.model(g.op("Add", g.input("x", B, S, W), y)), "gated_residual") == set()


# ---- gated norms ---------------------------------------------------------------------------------
def gated_norm(
    dtype: Any = np.float32,
    act: str = "silu",
    z: tuple[int, ...] = (S, W),
    cast: bool = False,
    seed: int = 0,
    through: int = 0,
) -> ModelProto:
    """through: a type that the normed rows go through on their way, 0 for none."""
    g = Building(dtype, seed=seed)
    y = g.op("Mul", rms(g, g.input("x", S, W)), g.weight(W))
    y = g.op("Cast", g.op("Cast", y, to=through), to=1) if through else y
    gate = g.input("z", *z)
    if cast:
        y, gate = g.op("Cast", y, to=1), g.op("Cast", gate, to=1)
    sigmoid = g.op("Sigmoid", gate)
    y = g.op("Mul", y, g.op("Mul", gate, sigmoid) if act == "silu" else sigmoid)
    return g.model(g.op("Cast", y, to=10) if cast else y)


@drawn(st.integers(0, 99), DTYPE, st.sampled_from(["silu", "sigmoid"]))
def test_gated_norm_agrees_with_its_definition(seed: int, dtype: Any, act: str) -> None:
    op = fired(gated_norm(dtype, act, seed=seed), "gated_norm", seed)
    assert op.attrs.get("act", "silu") == act


def test_a_gated_norm_in_half_gates_in_single() -> None:
    fired(gated_norm(np.float16, cast=True), "gated_norm")


@pytest.mark.parametrize("through", [TensorProto.INT32, TensorProto.FLOAT16])
def test_a_norm_rounded_before_its_gate(through: int) -> None:
    found = optimized(gated_norm(through=through))
    assert not found.report.fired("gated_norm")
    assert [row.reasons[0].code for row in found.report.near()] == ["attribute"]
    assert reference.check(found.before, found.graph).bit_equal


def test_a_gate_of_other_dims() -> None:
    assert codes(gated_norm(z=(1, W)), "gated_norm") == {"guard:z_has_the_dims_of_the_norm"}


# ---- flattened norms -----------------------------------------------------------------------------
def flattened(
    dtype: Any = np.float32, residual: bool = False, to: tuple[int, ...] = (-1, W), seed: int = 0
) -> ModelProto:
    g = Building(dtype, seed=seed)
    x = g.input("x", B, S, W)
    if residual:
        x = g.op("Add", x, g.input("residual", B, S, W))
    y = g.op("LayerNormalization", x, g.weight(W), g.weight(W), epsilon=1e-3)
    y = g.op("MatMul", g.op("Reshape", y, g.ints(*to)), g.weight(to[-1] if to[-1] > 0 else S * W, 4))
    return g.model(y, g.op("Neg", x)) if residual else g.model(y)


@drawn(st.integers(0, 99), DTYPE, st.booleans())
def test_norm_reshape_agrees_with_its_definition(seed: int, dtype: Any, residual: bool) -> None:
    op = fired(flattened(dtype, residual, seed=seed), "norm_reshape", seed)
    assert op.attrs["joins"] == (2, 1)
    assert bool(op.inputs[1]) == residual
    assert len(op.outputs) == 1 + residual


def test_a_reshape_that_joins_the_last_axis() -> None:
    assert codes(flattened(to=(B, S * W)), "norm_reshape") == {"guard:last_axis_is_kept"}


def test_a_reshape_to_heads_is_another_thing() -> None:
    g = Building()
    y = g.op("LayerNormalization", g.input("x", B, S, W), g.weight(W), g.weight(W))
    assert codes(g.model(g.op("Reshape", y, g.ints(B, S, 2, 4))), "norm_reshape") == set()


# ---- norms of lookups ----------------------------------------------------------------------------
def embedded(
    dtype: Any = np.float32,
    tables: tuple[str, ...] = ("word", "position", "type"),
    written: bool = False,
    scaled: bool = False,
    seed: int = 0,
    **changed: Any,
) -> ModelProto:
    g = Building(dtype, seed=seed)
    rows = {"word": 20, "position": 9, "type": 2}
    parts = []
    for name in tables:
        if name == "rows":
            parts.append(g.weight(1, S, W))
            continue
        table = g.weight(rows[name], W)
        if name == changed.get("input"):
            table = g.overridable(table)
        ids = g.input(f"{name}_ids", B if name != "position" else 1, S, dtype=TensorProto.INT64)
        parts.append(g.op("Gather", table, ids, axis=changed.get("axis", 0)))
    if scaled:
        parts[0] = g.op("Mul", parts[0], g.constant(8.0))
    total = parts[0]
    for part in parts[1:]:
        total = g.op("Add", part, total)
    y = g.op("LayerNormalization", total, g.weight(W), g.weight(W), epsilon=1e-3)
    return g.model(y, g.op("Neg", total)) if written else g.model(y)


WAYS = [
    ("word", "position", "type"),
    ("word", "position"),
    ("type", "word"),
    ("word", "rows"),
    ("word", "rows", "type"),
]


@drawn(st.integers(0, 99), DTYPE, st.sampled_from(WAYS), st.booleans(), st.booleans())
def test_embed_norm_agrees_with_its_definition(
    seed: int, dtype: Any, tables: tuple[str, ...], written: bool, scaled: bool
) -> None:
    scaled = scaled and tables[0] == "word"
    op = fired(embedded(dtype, tables, written, scaled, seed=seed), "embed_norm", seed)
    assert op.inputs[0] == "word_ids"
    assert op.attrs.get("word_scale", 1.0) == (8.0 if scaled else 1.0)
    assert bool(op.inputs[5]) == (len(tables) == 3)
    assert len(op.outputs) == 1 + written


@drawn(st.integers(0, 99), st.sampled_from([np.int8, np.uint8]), st.booleans())
def test_tables_of_codes(seed: int, codes_of: Any, centred: bool) -> None:
    """As onnxruntime quantizes a model: rows of codes are looked up, then decoded."""
    g = Building(np.float32, seed=seed)
    parts = []
    for name, rows in (("word", 20), ("position", 9)):
        table = g.constant(g.draw.integers(0, 99, (rows, W)).astype(codes_of))
        ids = g.input(f"{name}_ids", B, S, dtype=TensorProto.INT64)
        zero = [] if centred else [g.constant(np.array(7, codes_of))]
        parts.append(g.op("DequantizeLinear", g.op("Gather", table, ids), g.constant(0.03), *zero))
    y = g.op("LayerNormalization", g.op("Add", *parts), g.weight(W), g.weight(W), epsilon=1e-3)
    op = fired(g.model(y), "embed_norm", seed)
    assert op.attrs["word_scale"] == op.attrs["position_scale"] == pytest.approx(0.03)
    assert op.attrs.get("type_zero", 0.0) == 0.0
    assert op.attrs.get("position_zero", 0.0) == (0.0 if centred else 7.0)
    assert optimized(g.model(y), "ort-cpu").report.refused("embed_norm")


def test_a_table_at_run_time() -> None:
    assert codes(embedded(input="position"), "embed_norm") == {"operand"}


def test_columns_instead_of_rows() -> None:
    g = Building()
    ids = g.input("ids", W, dtype=TensorProto.INT64)
    parts = [g.op("Gather", g.weight(S, 20), ids, axis=1) for _ in range(2)]
    y = g.op("LayerNormalization", g.op("Add", *parts), g.weight(W), g.weight(W))
    assert codes(g.model(y), "embed_norm") == {"attribute"}


# ---- values inside -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (modulated(residual=True), "ada_norm"),
        (modulated(factored=False), "ada_norm"),
        (gated(), "gated_residual"),
        (gated_norm(), "gated_norm"),
        (flattened(residual=True), "norm_reshape"),
        (embedded(written=True), "embed_norm"),
    ],
)
def test_outputs_inside(model: ModelProto, kind: str) -> None:
    assert each_interior_as_an_output(model, kind) > 0


def test_near_misses_of_a_block_are_none() -> None:
    for rule in ("ada_norm", "gated_residual", "gated_norm", "add_norm"):
        assert near(block(), rule) == set()
