"""Placements: operands read where they lie, results written where they go, and what stands in the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from building import Building, codes, drawn, each_interior_as_an_output, near
from hypothesis import strategies as st
from onnx import TensorProto, helper
from placement_models import (
    READS,
    compiled,
    joined,
    key_of_a_product,
    norm,
    placed,
    rows,
    shown,
    sliced,
    sound,
)
from standing import standing

import fuse
import reference
from fuse import forms
from fuse.engine.rewriter import Whole, fit
from fuse.match import Match
from fuse.placement import Alias, Read
from fuse.placing import seen
from fuse.rule import Built
from fuse.rules.placements import chains
from fuse.units import unit_input, unit_output, written

# ---- what reads in place -------------------------------------------------------------------------


@pytest.mark.parametrize("name", READS)
def test_an_operand_is_read_where_it_lies(name: str) -> None:
    make, kind, line = READS[name]
    g = Building()
    found = sound(g.model(make(g)), "read_in_place")
    assert shown(found, kind).endswith(f"= {line}" + (" {axis=-1}" if kind != "MatMul" else ""))
    (row,) = found.report.fired("read_in_place")
    assert row.saves.launches == 1


@drawn(st.sampled_from(sorted(READS)), st.integers(0, 99), st.sampled_from([np.float32, np.float16]))
def test_values_are_kept_whatever_the_operands(name: str, seed: int, dtype: Any) -> None:
    g = Building(dtype=dtype, seed=seed)
    found = compiled(g.model(READS[name][0](g)))
    assert found.fired == ("read_in_place",)
    assert reference.check(found.before, found.graph, seed=seed).bit_equal


@pytest.mark.parametrize("name", READS)
def test_inner_values_as_outputs(name: str) -> None:
    g = Building()
    make, kind, _ = READS[name]
    model = g.model(make(g))
    assert each_interior_as_an_output(model, "read_in_place") > 0
    assert kind in [op.kind for op in compiled(model).graph.ops]


def test_halves_of_one_product() -> None:
    g = Building()
    gate, up = g.op("Split", g.op("MatMul", rows(g), g.weight(12, 16)), outputs=2, axis=-1, num_outputs=2)
    model = g.model(g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up))
    found = sound(model, "read_in_place")
    assert shown(found, "swiglu").endswith("= swiglu(MatMul_0[0:8 of 16], MatMul_0[8:16 of 16])")
    assert "Split" not in [op.kind for op in found.graph.ops]


def several(g: Building, last: str = "norm") -> str:
    """A merged product whose parts three ops read; the last of them may be no one that reads in place."""
    q, k, v = g.op("Split", g.op("MatMul", rows(g), g.weight(12, 12)), outputs=3, axis=-1, num_outputs=3)
    third = norm(g, v, 4) if last == "norm" else g.op(last, v)
    return str(g.op("Concat", norm(g, q, 4), norm(g, k, 4), third, axis=-1))


def test_a_copy_that_several_read_in_place_is_a_name() -> None:
    g = Building()
    found = sound(g.model(several(g)), "read_in_place")
    op = placed(found, "Split")
    assert [type(placement) for placement in op.placements] == [Alias] * 3
    assert shown(found, "Split").endswith(
        "is MatMul_0[0:4 of 12] is MatMul_0[4:8 of 12] is MatMul_0[8:12 of 12]"
    )
    assert found.report.fired("read_in_place")[0].saves.launches == 1
    assert found.report.before.launches - found.report.after.launches == sum(
        row.saves.launches or 0 for row in found.report.fired()
    )


def test_a_copy_that_one_of_several_needs_is_none() -> None:
    g = Building()
    model = g.model(several(g, "Tanh"))
    assert "read_in_place" not in compiled(model).fired
    assert near(model, "read_in_place") == set()  # others need the copy: it is no place


def test_a_reshape_that_joins_axes_apart_is_copied_for() -> None:
    """Heads joined again behind a transpose lie nowhere in one stride."""
    g = Building()
    moved = g.op("Transpose", rows(g, 2, 2, 3, 4), perm=[0, 2, 1, 3])
    joined = g.op("Reshape", moved, g.ints(2, 3, 8))
    assert "read_in_place" not in compiled(g.model(g.op("MatMul", joined, g.weight(8, 8)))).fired


# ---- what stands in the way of a read ------------------------------------------------------------
def test_bounds_that_change() -> None:
    g = Building()
    start, stop = (g.input(name, 1, dtype=TensorProto.INT64) for name in ("start", "stop"))
    model = g.model(norm(g, g.op("Slice", rows(g, 2, 3, 4), start, stop, g.ints(1)), 4))
    assert "read_in_place" not in compiled(model).fired
    assert near(model, "read_in_place") == {"operand"}


def test_dims_that_are_not_known() -> None:
    g = Building()
    shape = g.input("shape", 3, dtype=TensorProto.INT64)
    value = g.op("Reshape", rows(g), shape)
    g.inputs.append(helper.make_tensor_value_info("free", TensorProto.FLOAT, None))
    model = g.model(norm(g, g.op("Transpose", "free", perm=[0, 2, 1]), 4), g.op("Neg", value))
    assert near(model, "read_in_place") == {"unknown_shape"}


def test_a_copy_that_is_an_output() -> None:
    g = Building()
    cut = g.op("Slice", rows(g), g.ints(4), g.ints(8), g.ints(2))
    model = g.model(norm(g, cut, 4), cut)
    assert "read_in_place" not in compiled(model).fired
    assert codes(model, "read_in_place") == set()  # the caller needs the copy: it is no place


def test_a_copy_that_a_subgraph_reads() -> None:
    g = Building()
    cut = g.op("Slice", rows(g), g.ints(4), g.ints(8), g.ints(2))
    branches = {}
    for name, kind in (("then_branch", "Neg"), ("else_branch", "Abs")):
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        branches[name] = helper.make_graph([helper.make_node(kind, [cut], [name])], name, [], [result])
    g.inputs.append(helper.make_tensor_value_info("which", TensorProto.BOOL, []))
    g.nodes.append(helper.make_node("If", ["which"], ["chosen"], **branches))
    model = g.model(norm(g, cut, 4), "chosen")
    assert "read_in_place" not in compiled(model).fired
    assert codes(model, "read_in_place") == set()  # the branches need the copy: it is no place


# ---- queries -------------------------------------------------------------------------------------
def test_units() -> None:
    g = Building()
    x = g.input("x", 2, 3, 4)
    normed = norm(g, x, 4)
    product = g.op("MatMul", x, g.op("Reshape", x, g.ints(2, 4, 3)))
    weighted = g.op("MatMul", x, g.weight(4, 4))
    graph = fuse.load(g.model(normed, product, weighted))
    found = {op.outputs[0]: (unit_input(graph, op), unit_output(graph, op)) for op in graph.ops}
    assert found[normed] == ("x", normed)
    assert found[product] == ("x", product)
    assert found[weighted] == ("", "")
    g = Building()
    fused = compiled(g.model(sliced(g)))
    op = placed(fused, "LayerNormalization")
    assert (unit_input(fused.graph, op), unit_output(fused.graph, op)) == ("", "")
    assert written(fused.graph, op) == ()


def test_forms_look_beneath() -> None:
    g = Building()
    found = compiled(g.model(sliced(g)))
    op = placed(found, "LayerNormalization")
    form = forms.norm(found.graph, op)
    (read,) = op.placements
    assert isinstance(read, Read)
    assert (form.x, form.out, form.op) == (read.value, op.outputs[0], op)
    assert op.inputs[0] == "x"
    assert seen(op).inputs[0] == read.value
    g = Building()
    landed = compiled(g.model(joined(g)))
    form = forms.product(landed.graph, placed(landed, "MatMul"))
    assert form.out == placed(landed, "MatMul").placements[0].value


def test_placements_survive_being_fused_again() -> None:
    """A result in codes, of a norm that reads in place: the read is the new op's too, and its part's."""
    g = Building()
    codes_of, scale, point = g.op("DynamicQuantizeLinear", sliced(g), outputs=3)
    model = g.model(codes_of, scale, point, elements=(2, 1, 2))
    found = compiled(model)
    (op,) = found.graph.ops
    assert op.kind == "fused_quant"
    (read,) = op.placements
    assert isinstance(read, Read)
    assert read.shown(str) == "x[4:8 of 12]"
    assert read in op.parts[0].placements
    assert "read_in_place" in fuse.realizes(op)
    assert reference.check(found.before, found.graph).bit_equal


def test_a_read_of_a_read_is_one_read() -> None:
    """A chip may take a part first and its heads later."""

    g = Building()
    cut = g.op("Slice", rows(g), g.ints(4), g.ints(12), g.ints(2))
    apart = g.op("Reshape", cut, g.ints(0, 0, 2, 4))
    normed = norm(g, g.op("Transpose", apart, perm=[0, 2, 1, 3]), 4)
    graph = fuse.load(g.model(normed))

    inner = graph.producer(normed)
    assert inner is not None
    whole = chains(graph, inner)[0]
    for taken, views in ((whole.ops[1:], whole.views[1:]), (whole.ops[:1], whole.views[:1])):
        reader = graph.producer(normed)
        assert reader is not None
        value, base = reader.inputs[0], taken[0].inputs[0]
        match = Match(graph)
        match.ops, match.root = [*taken, reader], normed
        read = Read(0, value, base, views)
        built = Built(reader.kind, seen(reader).inputs, dict(reader.attrs), placements=(read,))
        fitted = fit(graph, match, built)
        assert isinstance(fitted, Whole), fitted
        graph.replace(fitted.op, fitted.slot)
    op = graph.producer(normed)
    assert op is not None
    assert op.placements == (Read(0, whole.ops[-1].outputs[0], "x", whole.views),)
    assert [part.kind for part in op.parts] == ["Slice", "LayerNormalization"]


# ---- chips ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", READS)
def test_none_places_nothing(name: str) -> None:
    g = Building()
    found = compiled(g.model(READS[name][0](g)), "none")
    assert not found.fired
    assert standing(found.graph) == standing(found.before)
    (row,) = found.report.refused("read_in_place")
    assert {reason.code for reason in row.reasons} == {"chip:read_in_place"}


def test_onnxruntime_reads_a_transposed_operand_of_a_product() -> None:
    g = Building()
    model = g.model(key_of_a_product(g))
    (row,) = compiled(model, "ort-cpu").report.fired("read_in_place")
    assert row.kernel == "com.microsoft.FusedMatMul (transA, transB)"
    g = Building(dtype=np.float16)
    (row,) = compiled(g.model(key_of_a_product(g)), "ort-cpu").report.refused("read_in_place")
    assert [reason.code for reason in row.reasons] == ["chip:dtypes"]


def test_a_refused_placement_leaves_what_it_would_have_placed() -> None:
    """The class stays as it was: only the copy is not saved."""
    g = Building()
    gate, up = g.op("Split", g.op("MatMul", rows(g), g.weight(12, 16)), outputs=2, axis=-1, num_outputs=2)
    model = g.model(g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up))
    found = compiled(model, "m3")
    assert found.report.refused("read_in_place")
    assert "swiglu" in [op.kind for op in found.graph.ops]
    assert reference.check(found.before, found.graph).bit_equal


def test_landing_where_a_chip_writes_packed_results() -> None:
    g = Building()
    found = compiled(g.model(joined(g)), "m3")
    (row,) = found.report.refused("land_in_rows")
    assert [reason.code for reason in row.reasons] == ["chip:land_in_rows"]
    assert standing(found.graph) == standing(found.before)
