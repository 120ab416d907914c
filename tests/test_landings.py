"""Results written where they go, and what stands between: nothing writes what is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from building import Building, codes, drawn, each_interior_as_an_output
from hypothesis import strategies as st
from onnx import TensorProto
from placement_models import (
    LANDS,
    appended,
    appended_to,
    compiled,
    joined,
    placed,
    rows,
    shown,
    sound,
)

import fuse
import reference
from fuse.engine.rewriter import fit
from fuse.match import Fault, Match
from fuse.placement import Land
from fuse.rule import Built
from fuse.types import FuseError
from fuse.units import written


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
