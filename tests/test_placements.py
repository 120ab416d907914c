"""Placements: operands read where they lie, results written where they go, and what stands in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from building import Building, codes, drawn, each_interior_as_an_output, near
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper
from standing import standing

import chips
import fuse
import reference
from fuse import forms
from fuse.engine.compiler import Optimized
from fuse.engine.rewriter import Whole, fit
from fuse.match import Fault, Match
from fuse.placement import Alias, Land, Read
from fuse.placing import seen
from fuse.rule import Built
from fuse.rules.placements import chains
from fuse.text import op_text
from fuse.types import FuseError
from fuse.units import unit_input, unit_output, written

BLOCKS = ("attention_block", "mlp_block", "transformer_layer", "elementwise_region")


def compiled(model: ModelProto, chip: str = "any", held: tuple[str, ...] = BLOCKS) -> Optimized:
    return fuse.optimize(fuse.load(model), shim=chips.load(chip), held=held)


def sound(model: ModelProto, rule: str, count: int = 1) -> Optimized:
    """Compiled, where the rule fired so often: values, provenance and the saved model are right."""
    found = compiled(model)
    assert len([r for r in found.records if r.outcome == "fired" and r.rule == rule]) == count, found.report
    found.graph.verify()
    assert reference.check(found.before, found.graph).bit_equal
    assert all(one.error is not None for one in reference.check_each(found.graph))
    assert standing(fuse.unfuse(found.graph)) == standing(found.before)
    runs(model, found)
    return found


def runs(model: ModelProto, found: Optimized) -> None:
    """The saved model gives on onnxruntime what the lifted graph gives here."""
    feeds = reference.feeds(found.before)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    saved = fuse.to_proto(found).SerializeToString()
    session = onnxruntime.InferenceSession(saved, options, providers=["CPUExecutionProvider"])
    wanted = reference.eval(found.before, feeds)
    for name, value in zip(wanted, session.run(list(wanted), dict(feeds)), strict=True):
        np.testing.assert_allclose(value, wanted[name], rtol=2e-3, atol=2e-3)


def placed(found: Optimized, kind: str) -> Any:
    (op,) = [op for op in found.graph.ops if op.kind == kind and op.placements]
    return op


def shown(found: Optimized, kind: str) -> str:
    return op_text(placed(found, kind), found.graph).splitlines()[0]


# ---- what reads in place -------------------------------------------------------------------------
def rows(g: Building, *dims: int | str) -> str:
    return g.input("x", *(dims or (2, 3, 12)))


def norm(g: Building, x: str, width: int) -> str:
    return str(g.op("LayerNormalization", x, g.weight(width), g.weight(width), axis=-1))


def sliced(g: Building) -> str:
    return norm(g, g.op("Slice", rows(g), g.ints(4), g.ints(8), g.ints(2)), 4)


def one_of_three(g: Building) -> str:
    return norm(g, g.op("Gather", rows(g, 2, 3, 3, 4), g.constant(np.array(1)), axis=2), 4)


def table(g: Building) -> str:
    ids = g.input("ids", 2, 5, dtype=TensorProto.INT64)
    return norm(g, g.op("Gather", g.weight(7, 4), ids, axis=0), 4)


def heads(g: Building) -> str:
    apart = g.op("Reshape", rows(g, 2, 3, 8), g.ints(0, 0, 2, 4))
    return norm(g, g.op("Transpose", apart, perm=[0, 2, 1, 3]), 4)


def key_of_a_product(g: Building) -> str:
    return str(g.op("MatMul", rows(g, 2, 3, 4), g.op("Transpose", g.input("k", 2, 3, 4), perm=[0, 2, 1])))


READS: dict[str, tuple[Callable[[Building], str], str, str]] = {
    "slice": (sliced, "LayerNormalization", "LayerNormalization(x[4:8 of 12], c3, c4)"),
    "item": (one_of_three, "LayerNormalization", "LayerNormalization(x[1 of 3, :], c1, c2)"),
    "rows": (table, "LayerNormalization", "LayerNormalization(c0[rows ids], c1, c2, ids)"),
    "heads": (heads, "LayerNormalization", "LayerNormalization(x[as 2,3,2,4][axes 0,2,1,3], c1, c2)"),
    "product": (key_of_a_product, "MatMul", "MatMul(x, k[axes 0,2,1])"),
}


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


# ---- landing -------------------------------------------------------------------------------------
def appended(g: Building, *, moved: bool = True) -> str:
    """The rows of a product behind those of a cache."""
    product = g.op("MatMul", rows(g, 1, 3, 8), g.weight(8, 8))
    apart = g.op("Reshape", product, g.ints(1, -1, 2, 4) if moved else g.ints(1, 2, -1, 4))
    new = g.op("Transpose", apart, perm=[0, 2, 1, 3]) if moved else apart
    return str(g.op("Concat", g.input("past", 1, 2, 5, 4), new, axis=2))


def joined(g: Building, axis: int = 1) -> str:
    """Two products side by side: the second writes where the Concat would have copied."""
    a, b = g.input("a", 2, 3, 4), g.input("b", 2, 3, 4)
    return str(
        g.op("Concat", g.op("MatMul", a, g.weight(4, 6)), g.op("MatMul", b, g.weight(4, 6)), axis=axis)
    )


def angles(g: Building) -> str:
    """The tables of a rotation: one product of positions and frequencies, twice along the lanes."""
    product = g.op("MatMul", g.input("f", 1, 4, 1), g.input("p", 1, 1, 3))
    moved = g.op("Transpose", product, perm=[0, 2, 1])
    return str(g.op("Cos", g.op("Concat", moved, moved, axis=-1)))


def scattered(g: Building) -> str:
    places = g.constant(np.array([[1], [3]]))
    return str(g.op("ScatterND", g.input("cache", 5, 4), places, norm(g, g.input("x", 2, 4), 4)))


def kept(g: Building) -> str:
    """Lanes that pass beside lanes that are normed."""
    whole = g.input("w", 2, 3, 6)
    return str(g.op("Concat", g.input("x", 2, 3, 4), norm(g, whole, 6), axis=-1))


LANDS: dict[str, tuple[Callable[[Building], str], str, str, str]] = {
    "cache": (appended, "land_in_rows", "MatMul", "-> past[rows 5:8 of 8]"),
    "rows": (joined, "land_in_rows", "MatMul", "-> Concat_2[rows 3:6 of 6]"),
    "scatter": (scattered, "land_in_rows", "LayerNormalization", "-> cache[rows c0]"),
    "twice": (angles, "land_in_units", "MatMul", "-> Concat_2[units 0:4, 4:8 of 8]"),
    "units": (kept, "land_in_units", "LayerNormalization", "-> Concat_1[units 4:10 of 10]"),
}


@pytest.mark.parametrize("name", LANDS)
def test_a_result_lands_where_it_goes(name: str) -> None:
    make, rule, kind, line = LANDS[name]
    g = Building()
    found = sound(g.model(make(g)), rule)
    assert shown(found, kind).endswith(line)
    op = placed(found, kind)
    assert rule in fuse.realizes(op)
    assert written(found.graph, op) == tuple(p.into for p in op.placements if isinstance(p, Land) and p.into)


@pytest.mark.parametrize("name", LANDS)
def test_inner_values_of_landings_as_outputs(name: str) -> None:
    g = Building()
    model = g.model(LANDS[name][0](g))
    assert each_interior_as_an_output(model, LANDS[name][1]) > 0


@drawn(st.sampled_from(sorted(LANDS)), st.integers(0, 99), st.sampled_from([np.float32, np.float16]))
def test_landings_keep_values(name: str, seed: int, dtype: Any) -> None:
    g = Building(dtype=dtype, seed=seed)
    found = compiled(g.model(LANDS[name][0](g)))
    assert LANDS[name][1] in found.fired
    assert reference.check(found.before, found.graph, seed=seed).bit_equal


def test_a_rotation_in_a_cache_answers_for_its_class() -> None:
    land = Land(0, "r", "present", "past", "rows", -2, 8, ((5, 8),))
    parts = (fuse.Op("rope", ("x",), ("r",), {}), fuse.Op("kv_append", ("past", "r"), ("present",), {}))
    op = fuse.Op("rope", ("x", "past"), ("present",), {}, parts, placements=(land,))
    assert {"rope", "land_in_rows", "rope_kv_append"} <= set(fuse.realizes(op))


def test_products_along_the_lanes_are_no_units() -> None:
    """A product with a weight writes its lanes in one piece."""
    g = Building()
    assert "land_in_units" not in compiled(g.model(joined(g, axis=-1))).fired


# ---- nothing between writes what is read ---------------------------------------------------------
def test_a_later_read_of_the_cache() -> None:
    """The joined rows are computed with, and the old ones are read once more behind that."""
    g = Building()
    present = appended(g, moved=False)
    late = g.op("Add", "past", g.op("ReduceMax", present, g.ints(2)))
    model = g.model(present, late)
    found = compiled(model)
    assert "land_in_rows" not in found.fired
    (row,) = found.report.near("land_in_rows")
    (reason,) = row.reasons
    assert (reason.code, reason.want) == (
        "written_between", f"nothing writes over past before {late} reads it",
    )  # fmt: skip
    assert reference.check(found.before, found.graph).bit_equal


def test_an_earlier_read_of_the_cache() -> None:
    g = Building()
    early = g.op("Neg", g.input("past", 1, 2, 5, 4))
    product = g.op("Reshape", g.op("MatMul", rows(g, 1, 3, 8), g.weight(8, 8)), g.ints(1, 2, -1, 4))
    found = sound(g.model(g.op("Concat", "past", product, axis=2), early), "land_in_rows")
    land = placed(found, "MatMul")
    reader = found.graph.producer(early)
    assert reader is not None
    assert reader.slot < land.slot


def test_only_the_shape_of_the_cache_is_read_later() -> None:
    g = Building()
    present = appended(g, moved=False)
    size = g.op("Size", "past")
    more = g.op("Add", present, g.op("Cast", size, to=TensorProto.FLOAT))
    assert compiled(g.model(present, more)).report.fired("land_in_rows")


def test_a_fusion_does_not_move_a_read_behind_a_write() -> None:
    """The engine refuses it for every rule: here one that reads the cache, put together by hand."""

    g = Building()
    early = g.op("Neg", g.input("past", 1, 2, 5, 4))
    present = appended_to(g)
    late = g.op("Add", g.op("ReduceMax", present, g.ints(2)), early)
    found = compiled(g.model(present, late))
    assert "land_in_rows" in found.fired
    graph = found.graph
    match = Match(graph)
    match.ops = [op for op in graph.ops if op.kind in ("Neg", "ReduceMax", "Add")]
    match.root = late
    fault = fit(graph, match, Built("elementwise_region", ("past",), {"inputs": 1}))
    assert isinstance(fault, Fault)
    assert (fault.code, fault.at) == ("written_between", present)


def appended_to(g: Building) -> str:
    product = g.op("Reshape", g.op("MatMul", rows(g, 1, 3, 8), g.weight(8, 8)), g.ints(1, 2, -1, 4))
    return str(g.op("Concat", "past", product, axis=2))


def test_a_cache_that_is_an_output_stays() -> None:
    g = Building()
    model = g.model(appended(g), "past")
    assert codes(model, "land_in_rows") == {"graph_output"}


def test_a_default_or_a_constant_is_no_memory_to_write() -> None:
    for overridable in (True, False):
        g = Building()
        g.constants["past"] = g.draw.normal(0, 1, (1, 2, 5, 4)).astype(np.float32)
        if overridable:
            g.overridable("past")
        found = compiled(g.model(appended_to(g)))
        assert not [p for op in found.graph.ops for p in op.placements if isinstance(p, Land) and p.into]


def test_a_graph_that_reads_what_was_written_over_is_refused() -> None:
    g = Building()
    g.input("past", 1, 2, 5, 4)
    present = appended_to(g)
    late = g.op("Neg", "past")
    graph = fuse.load(g.model(present, late))
    parts = tuple(op for op in graph.ops if op.outputs[0] != late)
    land = Land(0, parts[-2].outputs[0], present, "past", "rows", -2, 8, ((5, 8),))
    op = fuse.Op("MatMul", ("x", "c0", "past"), (present,), {}, parts, placements=(land,))
    graph.replace(op, parts[-1].slot)
    with pytest.raises(FuseError, match=f"Neg {late} reads past after {present} lands in it"):
        graph.verify()


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
