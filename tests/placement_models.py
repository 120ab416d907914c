"""Small graphs whose copies can be read in place or whose results can land, and how they are held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
from building import Building
from onnx import ModelProto, TensorProto
from standing import standing

import chips
import fuse
import reference
from fuse.engine.compiler import Optimized
from fuse.text import op_text

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


def appended_to(g: Building) -> str:
    product = g.op("Reshape", g.op("MatMul", rows(g, 1, 3, 8), g.weight(8, 8)), g.ints(1, 2, -1, 4))
    return str(g.op("Concat", "past", product, axis=2))
