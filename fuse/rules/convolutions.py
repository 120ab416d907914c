"""Convolutions with what is folded into their weights, and with what runs on their result."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fuse import forms
from fuse.forms.convolutions import conv
from fuse.guards import agree, branches_off, dims_text
from fuse.ir import Graph, Op
from fuse.match import Match
from fuse.match.plausible import NO_SUM, PASSING, STRAY
from fuse.pattern import HOLE, Add, Mul, anything, constant, form, form_of, kind, star
from fuse.rule import Built, Rule, Wrong, guard
from fuse.rules.group_norm import along_channels

scale, shift = constant("scale", scalar=False), constant("shift", scalar=False)
mean, variance = constant("mean", scalar=False), constant("variance", scalar=False)
BatchNormalization = kind("BatchNormalization")

# ---- scale and shift -----------------------------------------------------------------------------
plain = form(conv, "conv", where=lambda c: not c.scale and not c.shift)


def weight_is_known(m: Match) -> Wrong | None:
    """the weights of the convolution: known when the model loads"""
    weight = m["conv"].weight
    return None if m.graph.is_constant(weight) else Wrong(weight, "a value that changes at run time")


def batch_norm_is_frozen(m: Match) -> Wrong | None:
    """training_mode=0, and statistics of whole channels"""
    for op in m.ops:
        if op.kind == "BatchNormalization" and (
            op.attrs.get("training_mode") or op.attrs.get("spatial") == 0
        ):
            name = "training_mode=1" if op.attrs.get("training_mode") else "spatial=0"
            return Wrong(op.outputs[0], name)
    return None


def _one_number(graph: Graph, value: str) -> bool:
    dims = graph.dims(value)
    return dims is not None and all(dim == 1 for dim in dims)


def scale_and_shift_lie_along_the_channels(m: Match) -> Wrong | None:
    """scale and shift are one number a channel, the second axis"""
    whole = m.graph.dims(m["conv"].out)
    batch = bool(m.get("mean"))
    for name in ("scale", "shift", "mean", "variance"):
        value = m.get(name)
        if not value or (not batch and _one_number(m.graph, m["scale"])):
            continue
        dims = m.graph.dims(value)
        fits = dims == whole[1:2] if batch and whole else along_channels(dims, whole)
        if not fits:
            return Wrong(value, f"{dims_text(dims)} beside {dims_text(whole)}")
    return None


def _is_a_scale(m: Match) -> bool:
    """Whether channels are scaled, and not all by one number, which is no part of the convolution."""
    return bool(m.get("mean")) or not _one_number(m.graph, m["scale"])


def _affine(m: Match) -> Built | None:
    found = m["conv"]
    if not _is_a_scale(m):
        return None
    attrs = dict(found.attrs)
    norm = next((op for op in m.ops if op.kind == "BatchNormalization"), None)
    if norm is not None:
        attrs["eps"] = float(norm.attrs.get("epsilon", 1e-5))
    affine = (m["scale"], m.get("shift"), m.get("mean"), m.get("variance"))
    return Built("conv_affine", (found.x, found.weight, found.bias, *affine), attrs)


conv_affine = Rule(
    "conv_affine",
    """a convolution, then a scale and a shift of each channel: a batch norm, or a product and a sum

    Scale and shift go into the weights and the bias when the model is lowered, so they cost nothing.
    Folding changes how products are rounded; the definition is held to the type's tolerance.""",
    finds=BatchNormalization(plain, scale, shift, mean, variance)
    | Add(Mul(plain, scale), shift)
    | Mul(plain, scale),
    marks=("Conv",),
    needs=(
        guard(weight_is_known, code="operand"),
        guard(batch_norm_is_frozen, code="attribute"),
        guard(scale_and_shift_lie_along_the_channels),
    ),
    place=_is_a_scale,
    almost=lambda m, fault: fault.code == "op" and fault.got in STRAY,
    builds=_affine,
    reads=("Conv",),
)


# ---- what runs on the result ---------------------------------------------------------------------
class Pointwise(NamedTuple):
    """An activation by name. low, high: the bounds of a clip, None where they are not known."""

    name: str
    x: str
    out: str
    alpha: float
    beta: float
    low: float | None
    high: float | None
    op: Op


#: Activations beside those of forms.activation: name, and what absent alpha and beta mean.
_MORE = {
    "HardSigmoid": ("hard_sigmoid", 0.2, 0.5), "LeakyRelu": ("leaky_relu", 0.01, 0.0),
    "Elu": ("elu", 1.0, 0.0), "Softplus": ("softplus", 1.0, 0.0),
}  # fmt: skip


@form_of(*(forms.activation.kinds | _MORE.keys() | {"Clip"}))
def _pointwise(graph: Graph, op: Op) -> Pointwise | None:
    if op.kind == "Clip":
        low, high = _bound(graph, op, 1, "min", -math.inf), _bound(graph, op, 2, "max", math.inf)
        return Pointwise("clip", op.inputs[0], op.outputs[0], 1.0, 0.0, low, high, op)
    if op.kind in _MORE:
        name, alpha, beta = _MORE[op.kind]
        slope, offset = float(op.attrs.get("alpha", alpha)), float(op.attrs.get("beta", beta))
        return Pointwise(name, op.inputs[0], op.outputs[0], slope, offset, 0.0, 0.0, op)
    found = forms.activation(graph, op)
    if found is None:
        return None
    return Pointwise(found.name, found.x, found.out, found.alpha, 0.0, 0.0, 0.0, op)


def _bound(graph: Graph, op: Op, at: int, name: str, open_end: float) -> float | None:
    """A bound of a clip, as an attribute (before opset 11) or an operand."""
    if name in op.attrs:
        return float(op.attrs[name])
    value = op.inputs[at] if at < len(op.inputs) else ""
    if not value:
        return open_end
    number = graph.scalar(value)
    return None if number is None else float(number)


q_scale, q_zero = constant("q_scale"), constant("q_zero")
Quantize, Dequantize = kind("QuantizeLinear"), kind("DequantizeLinear")
EPILOGUE = {
    # What a sum of branches starts from.
    "nothing": Add(HOLE, constant(0)),
    "bias": Add(HOLE, constant("bias", scalar=False)),
    "residual": Add(HOLE, anything("residual")),
    "rounded": Dequantize(Quantize(HOLE, q_scale, q_zero), q_scale, q_zero),
}
any_conv = form(conv, "conv")
act = form(_pointwise, "act", x=star("epilogue", EPILOGUE, any_conv, reach=4, once=True))


def _steps(m: Match, name: str) -> list[Any]:
    return [step for step in m.taken("epilogue") if step.step == name]


def bias_lies_along_the_channels(m: Match) -> Wrong | None:
    """bias is one number a channel, the second axis"""
    whole = m.graph.dims(m["conv"].out)
    for step in _steps(m, "bias"):
        dims = m.graph.dims(step.bound["bias"])
        if not along_channels(dims, whole):
            return Wrong(step.bound["bias"], f"{dims_text(dims)} beside {dims_text(whole)}")
    return None


def residual_has_the_dims_of_the_result(m: Match) -> Wrong | None:
    """residual has exactly the dims of the convolution"""
    whole = m.graph.dims(m["conv"].out)
    for step in _steps(m, "residual"):
        dims = m.graph.dims(step.bound["residual"])
        if not agree(dims, whole):
            return Wrong(step.bound["residual"], f"{dims_text(dims)} beside {dims_text(whole)}")
    return None


def _is_no_stream(m: Match) -> bool:
    """Whether what is activated goes nowhere else: a stream that a block begins with has to be written.
    Nor is an activation that others read too one too many: a block before this one ends there."""
    graph, fault = m.graph, m.fault
    if fault is not None and fault.got in _pointwise.kinds and len(graph.readers(fault.at)) > 1:
        return False
    return not branches_off(graph, m["act"].x, m["act"].op)


def bounds_are_known(m: Match) -> Wrong | None:
    """the bounds of the clip: constants of one value"""
    found = m["act"]
    if found.low is not None and found.high is not None:
        return None
    at = 1 if found.low is None else 2
    return Wrong(found.op.inputs[at], "a value that changes at run time")


def _with_act(m: Match) -> Built | None:
    found, act = m["conv"], m["act"]
    order = [step.step for step in reversed(m.taken("epilogue")) if step.step != "nothing"]
    if order != sorted(order, key=["bias", "rounded", "residual"].index):
        return None
    if act.name == "clip" and act.low == -math.inf and act.high == math.inf:
        return None
    bound = {name: value for step in m.taken("epilogue") for name, value in step.bound.items()}
    bias, added = found.bias, bound.get("bias", "")
    affine = [found.scale, found.shift, found.mean, found.variance]
    if added and not any(affine) and not bias:
        bias = added
    elif added and not any(affine):
        affine[1] = added
    elif added:
        return None
    attrs = found.attrs | {"act": act.name} | _act_attrs(act)
    if "rounded" in order:
        to = next(op for op in m.ops if op.kind == "QuantizeLinear")
        attrs["codes"] = m.graph.dtype(to.outputs[0])
    rest = (bound.get(name, "") for name in ("q_scale", "q_zero", "residual"))
    return Built("conv_act", (found.x, found.weight, bias, *affine, *rest), attrs)


def _act_attrs(act: Pointwise) -> dict[str, float]:
    if act.name == "clip":
        return {"act_low": float(act.low or 0.0), "act_high": float(act.high or 0.0)}
    attrs = {} if act.alpha == 1.0 else {"act_alpha": act.alpha}
    return attrs | ({"act_beta": act.beta} if act.beta else {})


conv_act = Rule(
    "conv_act",
    """an activation of a convolution, with its bias and a residual

    The activation runs on the result before it is written; where the file rounds the result to codes
    in between, so does the kernel.""",
    finds=act,
    marks=("Conv", "conv_affine"),
    place=_is_no_stream,
    needs=(
        guard(weight_is_known, code="operand"),
        guard(bias_lies_along_the_channels),
        guard(residual_has_the_dims_of_the_result),
        guard(bounds_are_known, code="operand"),
    ),
    almost=lambda m, fault: fault.code == "op" and fault.got in NO_SUM | PASSING,
    builds=_with_act,
    reads=("Conv", "conv_affine", *sorted(forms.activation.kinds)),
)
