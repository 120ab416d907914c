"""What a norm over groups of channels is, whatever wrote or built it."""

from __future__ import annotations

from typing import NamedTuple

from fuse.ir import Graph, Op
from fuse.pattern import form_of


class GroupNorm(NamedTuple):
    """A norm of x [batch, channels, *space] over groups of channels; weight and bias are one number a
    channel, "" where absent."""

    x: str
    weight: str
    bias: str
    groups: int
    eps: float
    out: str
    op: Op


@form_of("group_norm", "GroupNormalization")
def group_norm(graph: Graph, op: Op) -> GroupNorm | None:
    """A GroupNormalization, or what a rule built; None for anything else.

    Before version 21 the operator scales groups and not channels: only where each group is one channel
    is that the same.
    """
    a = op.attrs
    if op.kind == "group_norm":
        x, weight, bias = op.inputs[:3]
        return GroupNorm(x, weight, bias, int(a["groups"]), float(a["eps"]), op.outputs[0], op)
    if op.kind != "GroupNormalization":
        return None
    x, weight, bias = op.inputs[:3]
    dims, own = graph.dims(x), graph.dims(weight)
    if dims is None or own is None or len(dims) < 2 or own != (dims[1],):
        return None
    return GroupNorm(x, weight, bias, int(a["num_groups"]), float(a.get("epsilon", 1e-5)), op.outputs[0], op)
