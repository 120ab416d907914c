"""Attention as converters turn it: scores with a row for each key, a cap folded into their product."""

from __future__ import annotations

from typing import NamedTuple

from fuse.ir import Graph, Op
from fuse.layout import Layout
from fuse.match import Match
from fuse.pattern import form_of


class ScaledTanh(NamedTuple):
    """The tanh of a product that is scaled already."""

    x: str
    out: str
    op: Op


@form_of("Tanh")
def scaled_product_tanh(graph: Graph, op: Op) -> ScaledTanh | None:
    """A tanh of a product with a scale of its own: an optimizer folded one over the cap into that."""
    made = graph.producer(op.inputs[0])
    folded = (
        made is not None and made.kind == "com.microsoft.FusedMatMul" and made.attrs.get("alpha", 1.0) != 1
    )
    return ScaledTanh(op.inputs[0], op.outputs[0], op) if folded else None


class Columns(NamedTuple):
    """A softmax over the last axis but one (before opset 13 it ran over both)."""

    x: str
    out: str
    op: Op


@form_of("Softmax")
def softmax_of_columns(graph: Graph, op: Op) -> Columns | None:
    dims, axis = graph.dims(op.inputs[0]), op.attrs.get("axis", -1)
    alone = graph.base.model.opsets.get("", 99) >= 13
    over = alone and dims is not None and axis in (-2, len(dims) - 2) and dims[-1] != 1
    return Columns(op.inputs[0], op.outputs[0], op) if over else None


def swapped(m: Match) -> bool:
    """Whether the first operand of the scores is k: what the softmax runs over are its rows."""
    turns = sum(step.step == "turn" for step in m.taken("scores"))
    return (turns % 2 == 1) != bool(m.get("columns"))


def exchanged(axes: str) -> str:
    """Axes with the rows of q and of k exchanged."""
    return " ".join({"s": "t", "t": "s"}.get(axis, axis) for axis in axes.split())


def is_turned(layout: Layout) -> bool:
    """Whether keys come before rows."""
    return [atom.letter for axis in layout[-2:] for atom in axis] == ["t", "s"]


def exchanges_last(graph: Graph, value: str) -> bool:
    """Whether a Transpose exchanges the last two axes and no others."""
    op = graph.producer(value)
    perm = tuple(op.attrs.get("perm", ())) if op is not None else ()
    rank = len(perm)
    return rank > 1 and perm == (*range(rank - 2), rank - 1, rank - 2)
