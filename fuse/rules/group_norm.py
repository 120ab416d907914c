"""A norm over groups of channels, written around an instance norm."""

from __future__ import annotations

from fuse.forms.modulations import filled_with
from fuse.guards import dims_text, float_narrower_than_f64
from fuse.match import Fault, Match
from fuse.pattern import Add, Mul, Reshape, anything, constant, kind
from fuse.rule import Built, Rule, Wrong, guard
from fuse.types import Dims, divide

x, weight, bias = anything("x"), constant("weight", scalar=False), constant("bias", scalar=False)
InstanceNormalization = kind("InstanceNormalization")
plain = constant("ones", scalar=False), constant("zeros", scalar=False)
# Each channel a group of its own: the reshapes change nothing, and exporters or simplifiers leave them out.
alone = InstanceNormalization(x, *plain)
grouped = Reshape(InstanceNormalization(Reshape(x), *plain)) | Reshape(alone)


def _inner_dims(m: Match) -> Dims | None:
    op = next(op for op in m.ops if op.kind == "InstanceNormalization")
    return m.graph.dims(op.inputs[0])


def groups_divide_channels(m: Match) -> Wrong | None:
    """the first reshape cuts the channels into whole groups and joins the rest"""
    whole, cut = m.graph.dims(m["x"]), _inner_dims(m)
    if whole is None or cut is None or len(whole) < 2 or len(cut) < 3:
        return Wrong(m["x"], f"{dims_text(whole)} as {dims_text(cut)}")
    if divide(whole[1], cut[1]) is not None and cut[0] == whole[0]:
        return None
    return Wrong(m["x"], f"{dims_text(whole)} as {dims_text(cut)}")


def reshape_gives_the_shape_back(m: Match) -> Wrong | None:
    """the second reshape gives the dims of x back"""
    back = next((op.outputs[0] for op in m.ops if op.kind == "Reshape" and op.inputs[0] != m["x"]), m["x"])
    dims, whole = m.graph.dims(back), m.graph.dims(m["x"])
    if dims is not None and dims == whole:
        return None
    return Wrong(back, f"{dims_text(dims)} for {dims_text(whole)}")


def inner_norm_is_plain(m: Match) -> Wrong | None:
    """the instance norm inside scales by one and adds nothing"""
    for name, number in (("ones", 1.0), ("zeros", 0.0)):
        if not filled_with(m.graph, m[name], number):
            return Wrong(m[name], f"not {number:g} everywhere")
    return None


def lies_along_the_channels(m: Match) -> Wrong | None:
    """weight and bias lie along the channels, the second axis"""
    whole = m.graph.dims(m["x"])
    for name in ("weight", "bias"):
        if not m.get(name) or _does_nothing(m, name):
            continue
        dims = m.graph.dims(m[name])
        if not along_channels(dims, whole):
            return Wrong(m[name], f"{dims_text(dims)} beside {dims_text(whole)}")
    return None


def _does_nothing(m: Match, name: str) -> bool:
    """Whether a weight is a single one, or a bias a single zero: what torch writes where there is none."""
    number = m.graph.scalar(m[name])
    return number is not None and float(number) == (1.0 if name == "weight" else 0.0)


def along_channels(dims: Dims | None, whole: Dims | None) -> bool:
    """Whether dims broadcast as one number a channel: [1,C,1,..], or the same without the batch."""
    if dims is None or whole is None or len(whole) < 2 or len(dims) not in (len(whole), len(whole) - 1):
        return False
    own = dims if len(dims) == len(whole) else (1, *dims)
    return own == (1, whole[1], *(1,) * (len(whole) - 2))


def _is_of_groups(m: Match) -> bool:
    """Whether reshapes make groups, or the instance norm leaves scale and shift to what stands behind it."""
    return any(op.kind == "Reshape" for op in m.ops) or inner_norm_is_plain(m) is None


def _group_norm(m: Match) -> Built:
    op = next(op for op in m.ops if op.kind == "InstanceNormalization")
    cut = _inner_dims(m)
    assert cut is not None
    attrs = {"groups": cut[1], "eps": float(op.attrs.get("epsilon", 1e-5))}
    affine = (
        m.get(name) if m.get(name) and not _does_nothing(m, name) else "" for name in ("weight", "bias")
    )
    return Built("group_norm", (m["x"], *affine), attrs)


def _stands_between_reshapes(m: Match, fault: Fault) -> bool:
    """An instance norm between two reshapes is written for nothing else."""
    return fault.code != "op" and sum(op.kind == "Reshape" for op in m.ops) == 2


group_norm = Rule(
    "group_norm",
    """a norm over groups of channels and all that lies behind them, scaled and shifted a channel

    Five kernels become one: two reshapes, a norm, a product and a sum.""",
    finds=Add(Mul(grouped | alone, weight), bias) | Mul(grouped | alone, weight) | grouped,
    marks=("InstanceNormalization",),
    needs=(
        float_narrower_than_f64("x"),
        guard(groups_divide_channels),
        guard(reshape_gives_the_shape_back),
        guard(inner_norm_is_plain, code="operand"),
        guard(lies_along_the_channels),
    ),
    place=_is_of_groups,
    builds=_group_norm,
    almost=_stands_between_reshapes,
)
