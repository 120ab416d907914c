"""Arithmetic on single known elements.

Integers are exact and may be symbolic; None is an element that is not known. A float is computed in
the tensor's own dtype, so a constant found here is the constant a runtime finds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from fuse.ir import Element
from fuse.shape_functions.call import MAX_TERMS, kept
from fuse.types import (
    BITS,
    FLOATS,
    INTEGERS,
    Dim,
    Expr,
    add,
    floor_divide,
    minimum,
    mul,
    non_negative,
    positive,
    sub,
    trunc_divide,
)

FLOAT_TYPES: Mapping[str, type[np.floating]] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
Binary = Callable[[Dim, Dim], Element]


def bounds(dtype: str) -> tuple[int, int]:
    """The least and the greatest number that an integer dtype holds."""
    bits = BITS[dtype]
    return (0, (1 << bits) - 1) if dtype[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)


def in_range(element: Element, dtype: str) -> Element:
    """The element where an integer dtype can hold it. Sizes that are symbols fit 32 bits; text holds none."""
    if isinstance(element, bool) or element is None:
        return element
    if dtype not in BITS:
        return None
    if isinstance(element, Expr):
        return element if BITS[dtype] >= 32 and len(element.terms) <= MAX_TERMS else None
    low, high = bounds(dtype)
    return element if low <= element <= high else None


# ---- integers -----------------------------------------------------------------------------------
def _divide(a: Dim, b: Dim) -> Element:
    return None if b == 0 else kept(trunc_divide(a, b))


def _power(a: Dim, b: Dim) -> Element:
    if not isinstance(b, int) or not 0 <= b <= 64:
        return None
    if isinstance(a, int):
        return int(a**b)
    if b < 2:
        return a if b else 1
    return product_of(a, a) if b == 2 else None


def _modulo(a: Dim, b: Dim) -> Element:
    """The sign of b, as ONNX has it for integers where fmod is 0: what the floor leaves."""
    if b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return kept(sub(a, mul(b, floor_divide(a, b)))) if isinstance(b, int) and b > 0 else None


def _larger(a: Dim, b: Dim) -> Element:
    """By max(a, b) = a + b - min(a, b)."""
    found = _smaller(a, b)
    return kept(sub(add(a, b), found)) if isinstance(found, int | Expr) else None


def _smaller(a: Dim, b: Dim) -> Element:
    """One of them where that is sure; else the symbol of both, which may not be negative."""
    found = minimum(a, b)
    sure = isinstance(found, int) or found in (a, b) or (non_negative(a) and non_negative(b))
    return kept(found) if isinstance(found, Expr) and sure else found if sure else None


def _equal(a: Dim, b: Dim) -> Element:
    if a == b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    return False if positive(sub(a, b)) or positive(sub(b, a)) else None


def _less(a: Dim, b: Dim) -> Element:
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    if positive(sub(b, a)):
        return True
    return False if non_negative(sub(a, b)) else None


def _not_more(a: Dim, b: Dim) -> Element:
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    if non_negative(sub(b, a)):
        return True
    return False if positive(sub(a, b)) else None


def product_of(a: Dim, b: Dim) -> Element:
    if isinstance(a, Expr) and isinstance(b, Expr) and len(a.terms) * len(b.terms) > MAX_TERMS:
        return None
    return kept(mul(a, b))


INTEGER_FUNCTIONS: Mapping[str, Binary] = {
    "Add": add, "Sub": sub, "Mul": product_of, "Div": _divide, "Pow": _power, "Mod": _modulo,
    "Max": _larger, "Min": _smaller, "Equal": _equal, "Less": _less, "LessOrEqual": _not_more,
    "Greater": lambda a, b: _less(b, a), "GreaterOrEqual": lambda a, b: _not_more(b, a),
}  # fmt: skip
_FLOATS: Mapping[str, Callable[[np.floating, np.floating], object]] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b, "Pow": lambda a, b: a**b, "Max": np.maximum, "Min": np.minimum,
    "Mod": np.fmod, "Equal": lambda a, b: a == b, "Less": lambda a, b: a < b,
    "LessOrEqual": lambda a, b: a <= b, "Greater": lambda a, b: a > b,
    "GreaterOrEqual": lambda a, b: a >= b,
}  # fmt: skip
COMPARISONS = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})


def _and(a: Element, b: Element) -> Element:
    if a is False or b is False:
        return False
    return True if a is True and b is True else None


def _or(a: Element, b: Element) -> Element:
    if a is True or b is True:
        return True
    return False if a is False and b is False else None


def _xor(a: Element, b: Element) -> Element:
    return a is not b if isinstance(a, bool) and isinstance(b, bool) else None


LOGIC: Mapping[str, Callable[[Element, Element], Element]] = {
    "And": _and,
    "Or": _or,
    "Xor": _xor,
    "Equal": lambda a, b: a is b if isinstance(a, bool) and isinstance(b, bool) else None,
}


# ---- by dtype ----------------------------------------------------------------------------------
def on_integers(function: Binary, a: Element, b: Element) -> Element:
    if not isinstance(a, int | Expr) or not isinstance(b, int | Expr):
        return None
    return function(a, b)


def on_floats(kind: str, dtype: str, a: Element, b: Element) -> Element:
    scalar = FLOAT_TYPES.get(dtype)
    if scalar is None or not isinstance(a, float | int) or not isinstance(b, float | int):
        return None
    with np.errstate(all="ignore"):
        found = _FLOATS[kind](scalar(a), scalar(b))
    return bool(found) if kind in COMPARISONS else float(scalar(found))  # type: ignore[arg-type]


UNARY_FLOATS: Mapping[str, Callable[[np.floating], object]] = {
    "Neg": lambda a: -a, "Abs": abs, "Sqrt": np.sqrt, "Reciprocal": lambda a: type(a)(1) / a,
    "Floor": np.floor, "Ceil": np.ceil, "Round": np.rint,
}  # fmt: skip


def on_integer(kind: str, a: Element) -> Element:
    if kind == "Not":
        return (not a) if isinstance(a, bool) else None
    if not isinstance(a, int | Expr):
        return None
    if kind == "Neg":
        return mul(-1, a)
    if kind == "Abs":
        if isinstance(a, int):
            return abs(a)
        return a if non_negative(a) else mul(-1, a) if non_negative(mul(-1, a)) else None
    return None


def cast_element(a: Element, source: str, target: str) -> Element:
    """One element in another dtype. The float of a symbol is unknown."""
    if a is None:
        return None
    if target in FLOATS:
        scalar = FLOAT_TYPES.get(target)
        if scalar is None or isinstance(a, Expr):
            return None
        with np.errstate(all="ignore"):
            return float(scalar(a))
    if target == "bool":
        if isinstance(a, Expr):
            return True if positive(a) else None
        return bool(a)
    if target not in INTEGERS:
        return None
    if isinstance(a, float):
        if not math.isfinite(a):
            return None
        a = int(a)
    elif isinstance(a, bool):
        a = int(a)
    return in_range(a, target)


FOLDS: Mapping[str, Binary] = {
    "ReduceSum": add, "ReduceProd": product_of, "ReduceMax": _larger, "ReduceMin": _smaller,
}  # fmt: skip
