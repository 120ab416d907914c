"""What a norm is, of lanes, of a sum or of groups of channels, whatever wrote or built it."""

from __future__ import annotations

from typing import NamedTuple

from fuse.attributes import from_end
from fuse.forms.reading import Almost, operand_of, reads
from fuse.ir import Graph, Op
from fuse.pattern import form_of


class Norm(NamedTuple):
    """A norm over the last axis. norm: rms or layer. Operands are values, "" where absent."""

    norm: str
    x: str
    weight: str
    bias: str
    eps: float
    offset: float
    compute: str
    out: str
    op: Op


class AddNorm(NamedTuple):
    """The norm of a sum; total is the value of the sum, "" where it is not written."""

    norm: str
    x: str
    residual: str
    weight: str
    bias: str
    add_bias: str
    eps: float
    offset: float
    compute: str
    out: str
    total: str
    op: Op


def _last_axis(graph: Graph, op: Op) -> bool:
    last: bool = from_end(graph, op, op.attrs.get("axis", -1)) == -1
    return last


def _norm(graph: Graph, op: Op) -> Norm | None:
    a = op.attrs
    if op.kind in ("rms_norm", "layer_norm"):
        kind = "rms" if op.kind == "rms_norm" else "layer"
        bias = operand_of(op, 2) if kind == "layer" else ""
        return Norm(
            kind,
            op.inputs[0],
            operand_of(op, 1),
            bias,
            a["eps"],
            a.get("offset", 0.0),
            a.get("compute", ""),
            op.outputs[0],
            op,
        )
    if sum(bool(out) for out in op.outputs) != 1 or not _last_axis(graph, op):
        return None
    layer = op.kind == "LayerNormalization"
    bias = operand_of(op, 2) if layer else ""
    if not all(_lies_along_lanes(graph, op, value) for value in (operand_of(op, 1), bias) if value):
        return None
    compute = "f32" if a.get("stash_type", 1) == 1 and graph.dtype(op.inputs[0]) in ("f16", "bf16") else ""
    eps = a.get("epsilon", 1e-5)
    return Norm(
        "layer" if layer else "rms",
        op.inputs[0],
        operand_of(op, 1),
        bias,
        eps,
        0.0,
        compute,
        op.outputs[0],
        op,
    )


def _lies_along_lanes(graph: Graph, op: Op, value: str) -> bool:
    """Whether a weight or bias has a number for each lane: ONNX lets one of one number broadcast."""
    own, whole = graph.dims(value), graph.dims(op.inputs[0])
    if not own or not whole or not isinstance(own[-1], int) or not isinstance(whole[-1], int):
        return True
    return own[-1] == whole[-1]


def _almost_norm(graph: Graph, op: Op) -> Almost | None:
    """A native norm over more than the last axis, with a weight of one number, or one that gives its mean or
    deviation too."""
    if _last_axis(graph, op) and sum(map(bool, op.outputs)) > 1:
        found = _norm(graph, op._replace(outputs=op.outputs[:1]))
        got = f"{sum(map(bool, op.outputs))} results"
        return (
            None
            if found is None
            else Almost(found._replace(op=op), "arity", op.outputs[0], "one result", got)
        )
    if op.kind in ("rms_norm", "layer_norm"):
        return None
    odd = next((v for v in op.inputs[1:3] if v and not _lies_along_lanes(graph, op, v)), "")
    if odd and _last_axis(graph, op):
        found = _norm(graph, op._replace(inputs=tuple("" if v == odd else v for v in op.inputs)))
        got = str(graph.type(odd))
        want = "a number for each lane of the last axis"
        return None if found is None else Almost(found._replace(op=op), "operand", odd, want, got)
    if _last_axis(graph, op) or "axis" not in op.attrs:
        return None
    found = _norm(graph, op._replace(attrs={**op.attrs, "axis": -1}))
    if found is None:
        return None
    return Almost(found._replace(op=op), "attribute", op.outputs[0], "axis=-1", f"axis={op.attrs['axis']}")


norm = reads(
    "rms_norm", "layer_norm", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"
)(_norm)
norm.almost = _almost_norm


def _add_norm(graph: Graph, op: Op) -> AddNorm | None:
    a = op.attrs
    if op.kind == "add_norm":
        if a.get("regrouped"):
            return None
        total = op.outputs[1] if len(op.outputs) > 1 else ""
        x, residual, weight, bias, add_bias = op.inputs[:5]
        return AddNorm(
            a.get("norm", "rms"),
            x,
            residual,
            weight,
            bias,
            add_bias,
            a["eps"],
            a.get("offset", 0.0),
            a.get("compute", ""),
            op.outputs[0],
            total,
            op,
        )
    if op.kind == "norm_reshape":
        return _flattened_add_norm(op)
    if any(op.outputs[1:3]):
        return None
    layer = op.kind == "com.microsoft.SkipLayerNormalization"
    bias, add_bias = (operand_of(op, 3), operand_of(op, 4)) if layer else ("", operand_of(op, 3))
    total = op.outputs[3] if len(op.outputs) > 3 else ""
    eps = op.attrs.get("epsilon", 1e-12)
    x, residual, weight = op.inputs[:3]
    return AddNorm(
        "layer" if layer else "rms",
        x,
        residual,
        weight,
        bias,
        add_bias,
        eps,
        0.0,
        "",
        op.outputs[0],
        total,
        op,
    )


def _flattened_add_norm(op: Op) -> AddNorm | None:
    """An add_norm whose result is flattened to rows; `total` keeps the axes of the sum."""
    a = op.attrs
    x, residual, weight, bias = op.inputs[:4]
    if not residual:
        return None
    total = op.outputs[1] if len(op.outputs) > 1 else ""
    numbers = a["eps"], a.get("offset", 0.0), a.get("compute", "")
    return AddNorm(a.get("norm", "rms"), x, residual, weight, bias, "", *numbers, op.outputs[0], total, op)


add_norm = reads(
    "add_norm",
    "norm_reshape",
    "com.microsoft.SkipLayerNormalization",
    "com.microsoft.SkipSimplifiedLayerNormalization",
)(_add_norm)


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
