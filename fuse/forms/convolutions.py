"""What a convolution is, whatever wrote or built it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fuse.ir import Graph, Op
from fuse.pattern import form_of

#: Attributes of a convolution that its classes carry, and what an absent one means.
CONV_DEFAULTS: Mapping[str, Any] = {
    "strides": (), "pads": (), "dilations": (), "group": 1, "auto_pad": "NOTSET",
}  # fmt: skip


class Conv(NamedTuple):
    """A convolution of x [batch, channels, *space], scaled and shifted a channel; "" where absent.

    With mean and variance the result is normalized by them before it is scaled. attrs: what differs
    from CONV_DEFAULTS, and eps where there is a variance.
    """

    x: str
    weight: str
    bias: str
    scale: str
    shift: str
    mean: str
    variance: str
    attrs: dict[str, Any]
    out: str
    op: Op


def conv_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a convolution that are not their defaults."""
    found = {}
    for name, default in CONV_DEFAULTS.items():
        value = attrs.get(name, default)
        value = tuple(value) if isinstance(value, list | tuple) else value
        if value != default:
            found[name] = value
    return found


@form_of("Conv", "conv_affine")
def conv(graph: Graph, op: Op) -> Conv | None:
    """A Conv, or one with a scale and a shift that a rule built; None for anything else."""
    if op.kind == "conv_affine":
        x, weight, bias, scale, shift, mean, variance = op.inputs[:7]
        return Conv(x, weight, bias, scale, shift, mean, variance, dict(op.attrs), op.outputs[0], op)
    if op.kind != "Conv":
        return None
    bias = op.inputs[2] if len(op.inputs) > 2 else ""
    return Conv(op.inputs[0], op.inputs[1], bias, "", "", "", "", conv_attrs(op.attrs), op.outputs[0], op)
