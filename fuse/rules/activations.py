"""Activations from primitives, and the soft cap."""

from __future__ import annotations

import math

from fuse.guards import float_type
from fuse.match import Fault, Match, close
from fuse.match.plausible import SQUASHING, UNARY, apart_by
from fuse.pattern import (
    Add,
    Clip,
    Div,
    Erf,
    Max,
    Min,
    Mul,
    Neg,
    Sigmoid,
    Sub,
    Tanh,
    anything,
    constant,
    kind,
    times,
)
from fuse.rule import Built, Rule, Wrong, guard

x = anything("x")


def other_than(*kinds: str) -> tuple[str, ...]:
    """What may stand by mistake for these, which an activation is made of."""
    return tuple(sorted(SQUASHING - set(kinds)))


#: 1 / sqrt(2), the scale inside erf; sqrt(2 / pi) and 0.044715, those of the tanh form
#: (Hendrycks and Gimpel, Gaussian Error Linear Units, 2016).
INVERSE_ROOT_TWO = math.sqrt(0.5)
TANH_SCALE = math.sqrt(2 / math.pi)
CUBIC = 0.044715

erf = Erf(times(x, constant=INVERSE_ROOT_TWO))
#: The same of minus x: one less it is the complement of erf, which JAX's own form has.
minus_erf = Erf(
    times(x, constant=-INVERSE_ROOT_TWO)
    | times(Neg(x), constant=INVERSE_ROOT_TWO)
    | Neg(times(x, constant=INVERSE_ROOT_TWO))
)
half = anything("half")

gelu = Rule(
    "gelu",
    """x times the normal distribution function of x, by erf

    Five kernels become one, whichever way the half and the one are multiplied in.""",
    finds=(
        times(Add(erf, constant(1)), x, constant=0.5)
        | times(Add(times(erf, constant=0.5), constant(0.5)), x)
        | Add(Mul(erf, half), half)
        | times(Sub(constant(1), minus_erf), x, constant=0.5)
    ),
    marks=("Erf",),
    hints=other_than("Erf"),
    needs=(float_type("x"),),
    builds=lambda m: _gelu(m),
)


def _gelu(m: Match) -> Built | None:
    if not m.get("half"):
        return Built("gelu", (m["x"],), {})
    made = m.graph.producer(m["half"])
    if made is None or made.kind not in ("Mul", "Div") or m["x"] not in made.inputs:
        return None
    number = m.graph.scalar(made.inputs[1 - made.inputs.index(m["x"])])
    halves = number is not None and close(float(number), 0.5 if made.kind == "Mul" else 2.0)
    return Built("gelu", (m["x"],), {}, also=[made]) if halves else None


tanh = Tanh(
    times(Add(times(x, x, x, constant=CUBIC), x), constant=TANH_SCALE)
    | times(Add(times(x, x, constant=CUBIC), constant(1)), x, constant=TANH_SCALE)
)

fast_gelu = Rule(
    "fast_gelu",
    """gelu by tanh: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))

    Eight kernels become one, in each of the exporters' factorings.""",
    finds=times(Add(tanh, constant(1)), x, constant=0.5)
    | times(Add(times(tanh, constant=0.5), constant(0.5)), x),
    marks=("Tanh",),
    hints=other_than("Tanh"),
    needs=(float_type("x"),),
    builds=lambda m: Built("fast_gelu", (m["x"],), {}),
)

alpha = constant("alpha", test=lambda a: a > 0, want="alpha: a constant above 0")


def _quick(m: Match) -> Built | None:
    slope = float(m.number("alpha"))
    return None if close(slope, 1.0, 1e-6) else Built("quick_gelu", (m["x"],), {"alpha": slope})


def _slopes(m: Match) -> bool:
    """Whether alpha scales the sigmoid's side alone: x scaled on both sides is silu of what it becomes."""
    root = m.graph.producer(m.root)
    inside = {op.inputs[0] for op in m.ops if op.kind == "Sigmoid"}
    return root is None or inside.isdisjoint(root.inputs)


quick_gelu = Rule(
    "quick_gelu",
    """x times sigmoid(alpha x)

    Three kernels become one; alpha is an attribute, and alpha 1 is silu.""",
    finds=Mul(Sigmoid(Mul(x, alpha)), x),
    marks=("Sigmoid",),
    hints=other_than("Sigmoid"),
    almost=lambda m, fault: fault.code == "op" and fault.got in SQUASHING,
    needs=(float_type("x"),),
    place=_slopes,
    builds=_quick,
)


def _one_apart(m: Match, fault: Fault) -> bool:
    """Whether one operator is wrong, or x has one too many in one of its two places."""
    if fault.code == "same_value":
        return apart_by(m.graph, fault.want, fault.got, UNARY)
    return fault.code == "op"


silu = Rule(
    "silu",
    """x times sigmoid(x)

    Two kernels become one; a diamond, since x is read twice.""",
    finds=Mul(Sigmoid(x), x) | Mul(Sigmoid(Mul(x, constant(1))), x),
    marks=("Sigmoid",),
    hints=other_than("Sigmoid"),
    almost=_one_apart,
    needs=(float_type("x"),),
    builds=lambda m: Built("silu", (m["x"],), {}),
)

Exp, Log, Softplus = kind("Exp"), kind("Log"), kind("Softplus")
HardSigmoid, Relu = kind("HardSigmoid"), kind("Relu")

mish = Rule(
    "mish",
    """x times tanh(softplus(x))

    Three kernels become one, or five where softplus is written out.""",
    finds=Mul(Tanh(Softplus(x) | Log(Add(Exp(x), constant(1)))), x),
    marks=("Tanh",),
    hints=other_than("Tanh"),
    needs=(float_type("x"),),
    builds=lambda m: Built("mish", (m["x"],), {}),
)

six = (
    Clip(Add(x, constant(3)), constant(0), constant(6))
    | Clip(Add(x, constant(3)), min=0.0, max=6.0)
    | Min(Max(Add(x, constant(3)), constant(0)) | Relu(Add(x, constant(3))), constant(6))
)


def slope_is_one_sixth(m: Match) -> Wrong | None:
    """alpha=1/6 and beta=0.5"""
    for op in m.ops:
        if op.kind == "HardSigmoid":
            slope, shift = float(op.attrs.get("alpha", 0.2)), float(op.attrs.get("beta", 0.5))
            if not close(slope, 1 / 6) or not close(shift, 0.5):
                return Wrong(op.outputs[0], f"alpha={slope:.4g} and beta={shift:.4g}")
    return None


hard_swish = Rule(
    "hard_swish",
    """x times x / 6 + 1 / 2, kept between 0 and 1

    Four kernels become one, as Paddle writes it, or two around a hard sigmoid.""",
    finds=times(six, x, constant=1 / 6) | Mul(HardSigmoid(x), x),
    marks=("Clip", "Min", "HardSigmoid"),
    needs=(float_type("x"), guard(slope_is_one_sixth, code="attribute")),
    builds=lambda m: Built("hard_swish", (m["x"],), {}),
)

cap, again, inverse = constant("cap"), constant("again"), constant("inverse", test=lambda a: a != 0)
#: How far two caps may lie apart and still be meant as one: further, they are two scales.
FARTHEST_CAPS = 4.0


def _cap(m: Match) -> float:
    """What x is divided by."""
    return float(m.number("cap")) if m.get("cap") else 1 / float(m.number("inverse"))


def cap_is_again(m: Match) -> Wrong | None:
    """cap and again are one number"""
    one, two = _cap(m), float(m.number("again"))
    return None if close(one, two) else Wrong(m["again"], f"{two:.7g} beside {one:.7g}")


def _caps(m: Match) -> bool:
    """Whether the two numbers may be a cap: not a scale inside and another outside."""
    if any(m.get(name) and m.number(name) is None for name in ("cap", "inverse", "again")):
        return True
    one, two = _cap(m), float(m.number("again"))
    return one != 0 and 1 / FARTHEST_CAPS <= two / one <= FARTHEST_CAPS


softcap = Rule(
    "softcap",
    """cap times tanh(x / cap)

    Three kernels become one; the two constants must agree.""",
    finds=Mul(Tanh(Div(x, cap) | Mul(x, inverse)), again),
    marks=("Tanh",),
    hints=other_than("Tanh"),
    place=_caps,
    almost=lambda m, fault: fault.code == "op" and cap_is_again(m) is None,
    needs=(float_type("x"), guard(cap_is_again)),
    builds=lambda m: Built("softcap", (m["x"],), {"cap": _cap(m)}),
)
