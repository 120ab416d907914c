"""Which values an op reads or writes unit by unit, and which it writes over.

A unit is a run of lanes of the last axis that an op treats alike: a head of a wider product. An op
that works unit by unit can read its units from, or write them into, a wider tensor.
"""

from __future__ import annotations

from fuse import forms
from fuse.ir import Graph, Op, lands_in

#: Norms of each row alone. Those of a sum write or read what they add in one piece, so they are none.
NORMS = forms.norm.kinds | frozenset({"l2_norm", "qk_norm"})
ROTATIONS = forms.rope.kinds | frozenset({"qk_norm_rope"})
_HEAD_PRODUCTS = frozenset({"MatMul", "com.microsoft.FusedMatMul"})


def unit_input(graph: Graph, op: Op) -> str:
    """The operand that an op reads unit by unit, "" where there is none.

    That is what a norm norms (not what it adds), what a rotation rotates, what a per-head product
    multiplies; of an op that reads or lands nowhere in place already.
    """
    return op.inputs[0] if _by_units(graph, op) else ""


def unit_output(graph: Graph, op: Op) -> str:
    """The result that an op writes unit by unit, "" where there is none; the ops of `unit_input`."""
    return op.outputs[0] if _by_units(graph, op) else ""


def written(graph: Graph, op: Op) -> tuple[str, ...]:
    """The values whose memory an op of the graph writes over, in place: where its results land."""
    return lands_in(op)


def _by_units(graph: Graph, op: Op) -> bool:
    if op.placements:
        return False
    return op.kind in NORMS or op.kind in ROTATIONS or head_product(graph, op)


def head_product(graph: Graph, op: Op) -> bool:
    """Whether an op is a product of two batches: heads by heads, with no weight known beforehand."""
    if op.kind not in _HEAD_PRODUCTS or forms.product(graph, op) is not None:
        return False
    dims = [graph.dims(value) for value in op.inputs[:2]]
    return all(some is not None and len(some) > 2 for some in dims)
