"""Norms over the last axis from primitives: rms_norm, layer_norm, l2_norm."""

from __future__ import annotations

from typing import Any, NamedTuple

from fuse import forms
from fuse.attributes import attribute
from fuse.guards import casts_to_float, dims_text, float_narrower_than_f64, same_type, spans_last_axis
from fuse.ir import Graph, Op
from fuse.match import Match, close
from fuse.pattern import (
    HOLE,
    LAST,
    Add,
    Cast,
    Clip,
    Div,
    Expand,
    Max,
    Mul,
    Neg,
    Pattern,
    Pow,
    Reciprocal,
    ReduceL2,
    ReduceMean,
    ReduceSum,
    ReduceSumSquare,
    Reshape,
    Sqrt,
    Sub,
    Unsqueeze,
    anything,
    constant,
    form,
    form_of,
    star,
)
from fuse.rule import Built, Rule, Wrong, absorb_cast, guard

x, weight, bias = anything("x"), constant("weight", scalar=False), constant("bias", scalar=False)
eps = constant("eps")
CASTS = {"cast": Cast(HOLE)}


class Pooled(NamedTuple):
    """The mean of each channel of a signal with one spatial axis: of rows, along the last axis."""

    x: str
    out: str
    op: Op


@form_of("GlobalAveragePool")
def pooled(graph: Graph, op: Op) -> Pooled | None:
    dims = graph.dims(op.inputs[0])
    return Pooled(op.inputs[0], op.outputs[0], op) if dims is not None and len(dims) == 3 else None


def squared(value: Pattern) -> Pattern:
    return Pow(value, constant(2)) | Mul(value, value)


def mean_of_rows(value: Pattern) -> Pattern:
    """The mean along the last axis, which stays or is put back; TensorFlow's converter pools it."""
    return (
        ReduceMean(value, axes=LAST, keepdims=1)
        | Unsqueeze(ReduceMean(value, axes=LAST, keepdims=0), axes=LAST)
        | form(pooled, "pooled", x=value)
    )


def root_of(variance: Pattern) -> Pattern:
    shifted = Add(variance, eps)
    return Sqrt(shifted) | Pow(shifted, constant(0.5))


def inverse_root_of(variance: Pattern) -> Pattern:
    root = root_of(variance)
    return Reciprocal(root) | Div(constant(1), root) | Pow(Add(variance, eps), constant(-0.5))


def over_root_mean_square(value: Pattern) -> Pattern:
    """A value over the root of its mean square along the last axis, however the division is written."""
    square = mean_of_rows(squared(value))
    return Div(value, root_of(square)) | Mul(inverse_root_of(square), value)


def weighted_over_root_mean_square(value: Pattern) -> Pattern:
    """The same where the weight is multiplied in before the value is."""
    square = mean_of_rows(squared(value))
    return Mul(Mul(inverse_root_of(square), weight), value)


def scaled(norm: Pattern) -> Pattern:
    """A norm times a weight, casts before or after, or without a weight."""
    below = star("casts", CASTS, norm, reach=2)
    offset = Add(weight, constant("offset"))
    return star("casts", CASTS, Mul(below, weight | offset), reach=2) | below


def _shared(m: Match, eps_name: str = "eps") -> tuple[str, list[Any], dict[str, Any]]:
    """x below its up-cast, the ops to take in, and the attributes of any norm."""
    value, cast = absorb_cast(m, m["x"], m.ops)
    attrs: dict[str, Any] = {"eps": float(m.number(eps_name))}
    if m.get("offset"):
        attrs["offset"] = float(m.number("offset"))
    if cast is not None or m.graph.dtype(m["x"]) != m.graph.dtype(m.root):
        attrs["compute"] = m.graph.dtype(m["x"])
    return value, [] if cast is None else [cast], attrs


def _rms(m: Match) -> Built | None:
    if _centred(m):
        return None
    value, also, attrs = _shared(m)
    return Built("rms_norm", (value, m.get("weight")), attrs, also=also)


def _centred(m: Match) -> bool:
    """Whether x is itself less its mean, read by the match only: the place is a layer norm's."""
    graph = m.graph
    sub = graph.producer(m["x"])
    if sub is None or sub.kind != "Sub" or graph.is_output(m["x"]):
        return False
    found = _CENTRED(Match(graph), m["x"])
    own = {op.slot for op in m.ops}
    return found and all(slot in own for slot in graph.readers(m["x"]))


rms_norm = Rule(
    "rms_norm",
    """x over the root of its mean square along the last axis, scaled by a weight

    Five to eight kernels become one; the square, the mean and the root are never written.""",
    finds=scaled(over_root_mean_square(x)) | weighted_over_root_mean_square(x),
    marks=("ReduceMean", "GlobalAveragePool"),
    hints=("Sqrt",),
    needs=(
        float_narrower_than_f64("x"),
        same_type("x", "eps"),
        spans_last_axis("weight"),
        casts_to_float("casts"),
    ),
    builds=_rms,
)

row_mean = mean_of_rows(x)
centred = Sub(x, row_mean)


def _compile_centred() -> Any:
    from fuse.match import compile_pattern

    return compile_pattern(centred)


_CENTRED = _compile_centred()

whitened = over_root_mean_square(centred)
#: The variance as the mean square less the squared mean, kept from below zero.
moments = Sub(mean_of_rows(squared(x)), squared(row_mean))
by_moments = Max(moments, constant(0)) | moments
whitened_by_moments = Div(centred, root_of(by_moments)) | Mul(inverse_root_of(by_moments), centred)
#: As TensorFlow's batch_normalization writes it: x and its mean are scaled apart.
factor = Mul(inverse_root_of(mean_of_rows(squared(centred)) | by_moments), weight)
affine = Add(Mul(x, factor), Sub(bias, Mul(row_mean, factor)) | Add(Mul(Neg(row_mean), factor), bias)) | Sub(
    Mul(x, factor), Mul(row_mean, factor)
)
_of_centred = form(forms.norm, "inner", where=lambda n: n.norm == "rms" and not n.offset, x=centred)


# The same from sums, as JAX writes it: the variance is the mean square less the squared mean, kept from
# below zero, and what was reduced away is put back by a reshape and a broadcast.
per_width = constant("per_width", test=lambda number: number > 0, want="per_width: 1 over the last axis")
width = constant("width", test=lambda number: number > 0, want="width: the last axis")


def averaged(total: Pattern) -> Pattern:
    return Mul(total, per_width) | Div(total, width)


PUT_BACK = {"reshape": Reshape(HOLE), "expand": Expand(HOLE)}
CLAMPED = PUT_BACK | {"clamp": Max(HOLE, constant(0))}
sum_of_squares = ReduceSum(squared(x), axes=LAST) | ReduceSumSquare(x, axes=LAST)
mean = averaged(ReduceSum(x, axes=LAST))
variance = star("restored", CLAMPED, Sub(averaged(sum_of_squares), squared(mean)), list(PUT_BACK), reach=3)
deviation = Sqrt(Add(variance, eps))
inverse_deviation = Reciprocal(deviation) | Div(constant(1), deviation)
put_back_mean = star("restored", PUT_BACK, mean, list(PUT_BACK), reach=2)
by_sums = Mul(Mul(inverse_deviation, weight) | inverse_deviation, Sub(x, put_back_mean))


def average_is_over_the_width(m: Match) -> Wrong | None:
    """the factor of the sums is one over the last axis"""
    name = "per_width" if m.get("per_width") else "width"
    if not m.get(name):
        return None
    dims = m.graph.dims(m["x"])
    last = dims[-1] if dims else None
    number = float(m.number(name))
    if isinstance(last, int) and close(number, 1 / last if name == "per_width" else float(last)):
        return None
    return Wrong(m[name], f"{number:.7g} for a last axis of {'unknown' if last is None else last}")


def sums_are_put_back(m: Match) -> Wrong | None:
    """what was summed stands again beside each row, with a last axis of one"""
    whole = m.graph.dims(m["x"])
    for step in (step for step in m.taken("restored") if step.step != "clamp"):
        dims = m.graph.dims(step.value)
        # A vector of rows that becomes a column has as many rows; of more axes each must be known.
        if dims is None or whole is None or len(dims) != len(whole) or dims[-1] != 1:
            return Wrong(step.value, dims_text(dims))
        if len(dims) > 2 and dims[:-1] != whole[:-1]:
            return Wrong(step.value, f"{dims_text(dims)} beside {dims_text(whole)}")
    if m.get("per_width") or m.get("width"):
        return _kept(m, whole is not None and len(whole) > 1)
    return None


def _kept(m: Match, has_rows: bool) -> Wrong | None:
    """Sums that dropped their axis must be put back, or they meet the last axis of x."""
    for op in m.ops:
        if op.kind in ("ReduceSum", "ReduceSumSquare") and op.attrs.get("keepdims", 1) == 0:
            steps = [step for step in m.taken("restored") if step.step == "reshape"]
            if has_rows and len(steps) < 2:
                return Wrong(op.outputs[0], "an axis dropped")
    return None


def with_bias(norm: Pattern) -> Pattern:
    return star("casts", CASTS, Add(norm, bias), reach=2) | norm


def _layer(m: Match) -> Built:
    inner = m.get("inner")
    if inner:
        attrs = {"eps": inner.eps} | ({"compute": inner.compute} if inner.compute else {})
        return Built("layer_norm", (m["x"], inner.weight, m.get("bias")), attrs)
    value, also, attrs = _shared(m)
    return Built("layer_norm", (value, m.get("weight"), m.get("bias")), attrs, also=also)


def _of_one_axis(m: Match) -> bool:
    """Whether its means are of one axis: those of several are a group norm's."""
    means = (op for op in m.ops if op.kind in ("ReduceMean", "ReduceSum"))
    return not any(isinstance(attribute(m.graph, op, "axes"), tuple) for op in means)


layer_norm = Rule(
    "layer_norm",
    """x less its mean, over its standard deviation along the last axis, times weight, plus bias

    Seven to ten kernels become one; it is also an rms norm of x - mean written as a native operator.""",
    finds=with_bias(scaled(whitened | whitened_by_moments) | _of_centred | by_sums | Mul(factor, centred))
    | affine,
    marks=("ReduceMean", "ReduceSum", "GlobalAveragePool"),
    hints=("Sqrt", "rms_norm"),
    needs=(
        float_narrower_than_f64("x"),
        same_type("x", "eps"),
        spans_last_axis("weight"),
        spans_last_axis("bias"),
        casts_to_float("casts"),
        guard(average_is_over_the_width),
        guard(sums_are_put_back),
    ),
    place=_of_one_axis,
    builds=_layer,
    reads=tuple(sorted(forms.norm.kinds)),
)

total = ReduceSum(squared(x), axes=LAST, keepdims=1) | ReduceSumSquare(x, axes=LAST, keepdims=1)
length = ReduceL2(x, axes=LAST, keepdims=1) | Sqrt(total) | Pow(total, constant(0.5))
inside = Sqrt(Add(total, eps)) | Pow(Add(total, eps), constant(0.5))
clipped = Max(length, eps) | Clip(length, eps)
divisor = inside | Add(length, eps) | clipped | length
spread = Expand(divisor, anything("target")) | divisor


def _l2(m: Match) -> Built:
    attrs: dict[str, Any] = {}
    if m.get("eps"):
        kinds = [op.kind for op in m.ops]
        order = {"Clip": "clip", "Max": "clip"}
        where = next((order[kind] for kind in kinds if kind in order), "")
        attrs = {"eps": float(m.number("eps")), "eps_at": where or _eps_place(m)}
    value, cast = absorb_cast(m, m["x"], m.ops)
    if cast is not None:
        attrs["compute"] = m.graph.dtype(m["x"])
    return Built("l2_norm", (value,), attrs, also=[] if cast is None else [cast])


def _eps_place(m: Match) -> str:
    add = next(op for op in m.ops if op.kind == "Add" and m["eps"] in op.inputs)
    readers = [m.graph.slots[slot] for slot in m.graph.readers(add.outputs[0])]
    return "inside" if any(op is not None and op.kind == "Sqrt" for op in readers) else "outside"


l2_norm = Rule(
    "l2_norm",
    """x over the root of the sum of its squares along the last axis

    Three to five kernels become one; where eps stands is part of the form.""",
    finds=Div(x, spread) | Mul(Reciprocal(divisor) | Div(constant(1), divisor), x),
    marks=("ReduceSum", "ReduceL2", "ReduceSumSquare"),
    hints=("Sqrt", "Pow"),
    needs=(float_narrower_than_f64("x"), same_type("x", "eps")),
    builds=_l2,
)
