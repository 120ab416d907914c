"""Operators that treat each element alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from reference.ops.call import Array, Call, Implementation, numpy_dtype, short_dtype, tensor_attribute, wide

INTEGER_RANGE = frozenset({"i4", "u4", "i2", "u2"})
FLOAT8 = frozenset({"f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f4e2m1"})


def erf(x: Array) -> Array:
    """The error function, computed in f64 and rounded to x's type."""
    values = np.fromiter(map(math.erf, x.astype(np.float64).ravel().tolist()), np.float64, x.size)
    return values.reshape(x.shape).astype(x.dtype)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow at either end."""
    wide_x = wide(x)
    small = np.exp(-np.abs(wide_x))
    one = wide_x.dtype.type(1)
    return np.asarray(np.where(wide_x >= 0, one / (one + small), small / (one + small)), x.dtype)


def gelu(x: Array, approximate: str = "none") -> Array:
    """x times the normal distribution function of x, by erf or by the tanh form."""
    w = wide(x)
    if approximate == "tanh":
        y = 0.5 * w * (1 + np.tanh(math.sqrt(2 / math.pi) * (w + 0.044715 * w * w * w)))
    else:
        y = 0.5 * w * (1 + erf(w * w.dtype.type(math.sqrt(0.5))))
    return np.asarray(y, x.dtype)


def _unary(function: Callable[[Array], Any]) -> Implementation:
    return lambda call, x: np.asarray(function(x), x.dtype)


def _in_wide(function: Callable[[Array], Any]) -> Implementation:
    """Computed in f32 where x is narrower, then rounded once."""
    return lambda call, x: np.asarray(function(wide(x)), x.dtype)


def _compare(function: Callable[[Array, Array], Any]) -> Implementation:
    return lambda call, a, b: np.asarray(function(a, b), np.bool_)


def _binary(function: Callable[[Array, Array], Any]) -> Implementation:
    return lambda call, a, b: np.asarray(function(a, b))


def _many(function: Callable[[Array, Array], Any]) -> Implementation:
    return lambda call, *operands: np.asarray(reduce(function, operands))


def divide(call: Call, a: Array, b: Array) -> Array:
    """Integers are divided towards zero."""
    if a.dtype.kind in "iu":
        quotient = a // b
        if a.dtype.kind == "i":
            quotient = quotient + ((quotient < 0) & (quotient * b != a)).astype(a.dtype)
        return np.asarray(quotient, a.dtype)
    return np.asarray(a / b)


def modulo(call: Call, a: Array, b: Array) -> Array:
    if call.get("fmod", 0):
        return np.asarray(np.fmod(a, b), a.dtype)
    return np.asarray(np.mod(a, b), a.dtype)


def power(call: Call, a: Array, b: Array) -> Array:
    """Rounded to the type of the base, whatever the exponent's type is."""
    if a.dtype == b.dtype or b.dtype.kind in "iu":
        return np.asarray(np.power(wide(a), b.astype(wide(a).dtype) if a.dtype.kind != "i" else b), a.dtype)
    return np.asarray(np.power(a.astype(np.float64), b.astype(np.float64)), a.dtype)


def mean(call: Call, *operands: Array) -> Array:
    total = reduce(np.add, operands)
    return np.asarray(total / total.dtype.type(len(operands)), operands[0].dtype)


def clip(call: Call, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """Bounds are attributes before opset 11 and operands after."""
    low = call.get("min") if low is None else low.reshape(())
    high = call.get("max") if high is None else high.reshape(())
    y = x
    if low is not None:
        y = np.maximum(y, np.asarray(low, x.dtype))
    if high is not None:
        y = np.minimum(y, np.asarray(high, x.dtype))
    return np.asarray(y, x.dtype)


def cast(call: Call, x: Array) -> Array:
    return cast_to(x, numpy_dtype(call.attrs["to"]), bool(call.get("saturate", 1)))


def cast_like(call: Call, x: Array, target: Array) -> Array:
    return cast_to(x, target.dtype, bool(call.get("saturate", 1)))


def cast_to(x: Array, target: np.dtype[Any], saturate: bool = True) -> Array:
    """The cast of ONNX: floats to integers truncate, float8 saturates, strings are parsed."""
    if x.dtype == target:
        return x
    if x.dtype.kind in "USO":
        if target.kind == "b":
            return np.asarray([bool(int(text)) for text in x.ravel()], target).reshape(x.shape)
        through = np.int64 if target.kind in "iu" else np.float64
        return x.astype(str).astype(through).astype(target)
    if target.kind == "O":
        return np.asarray([_text(value) for value in x.ravel()], np.object_).reshape(x.shape)
    name = short_dtype(np.empty(0, target))
    if name in FLOAT8:
        wide_x = x.astype(np.float32)
        if saturate and name != "f8e8m0":
            top = float(_finfo(target).max)
            wide_x = np.where(np.isnan(wide_x), wide_x, np.clip(wide_x, -top, top))
        return wide_x.astype(target)
    if name in INTEGER_RANGE:
        return np.asarray(np.trunc(x.astype(np.float64)).astype(np.int64).astype(target))
    if x.dtype.kind in "fV" and target.kind in "iu":
        with np.errstate(invalid="ignore"):
            return np.asarray(wide_float(x).astype(target))
    if x.dtype.kind == "V" and target.kind == "b":
        return np.asarray(wide_float(x) != 0)
    with np.errstate(over="ignore"):
        return np.asarray(x.astype(target))


def _finfo(target: np.dtype[Any]) -> Any:
    import ml_dtypes

    return ml_dtypes.finfo(target)


def _text(value: Any) -> str:
    if isinstance(value, (np.bool_, np.integer)):
        return str(int(value))
    number = float(value)
    return (
        str(int(number))
        if number.is_integer() and abs(number) < 1e16
        else np.format_float_positional(np.float32(number), trim="-")
    )


def wide_float(x: Array) -> Array:
    """The array as f32 where numpy has no arithmetic of its own for it."""
    return x.astype(np.float32) if x.dtype.kind == "V" or x.dtype.itemsize == 1 else x


def where(call: Call, condition: Array, a: Array, b: Array) -> Array:
    return np.asarray(np.where(condition, a, b), a.dtype)


def hard_sigmoid(call: Call, x: Array) -> Array:
    alpha, beta = x.dtype.type(call.get("alpha", 0.2)), x.dtype.type(call.get("beta", 0.5))
    return np.asarray(np.clip(alpha * x + beta, 0, 1), x.dtype)


def hard_swish(call: Call, x: Array) -> Array:
    w = wide(x)
    return np.asarray(w * np.clip(w / w.dtype.type(6) + w.dtype.type(0.5), 0, 1), x.dtype)


def leaky_relu(call: Call, x: Array) -> Array:
    return np.asarray(np.where(x < 0, x * x.dtype.type(call.get("alpha", 0.01)), x), x.dtype)


def prelu(call: Call, x: Array, slope: Array) -> Array:
    return np.asarray(np.where(x < 0, x * slope, x), x.dtype)


def elu(call: Call, x: Array) -> Array:
    w = wide(x)
    alpha = w.dtype.type(call.get("alpha", 1.0))
    return np.asarray(np.where(w > 0, w, alpha * np.expm1(np.minimum(w, 0))), x.dtype)


def softplus(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def quick_gelu(x: Array, alpha: float) -> Array:
    """x times sigmoid(alpha x)."""
    w = wide(x)
    return np.asarray(w * sigmoid(w * w.dtype.type(alpha)), x.dtype)


def round_even(x: Array) -> Array:
    return np.asarray(np.rint(x))


def is_inf(call: Call, x: Array) -> Array:
    found = np.isinf(x)
    if not call.get("detect_negative", 1):
        found &= x > 0
    if not call.get("detect_positive", 1):
        found &= x < 0
    return np.asarray(found)


def constant_of_shape(call: Call, shape: Array) -> Array:
    value = call.get("value")
    fill = np.zeros(1, np.float32) if value is None else tensor_attribute(value)
    return np.full(tuple(int(d) for d in shape), fill.reshape(-1)[0], fill.dtype)


ELEMENTWISE: Mapping[str, Implementation] = {
    "Abs": _unary(np.abs), "Neg": _unary(np.negative), "Ceil": _unary(np.ceil), "Floor": _unary(np.floor),
    "Round": _unary(round_even), "Sign": _unary(np.sign), "Not": _unary(np.logical_not),
    "Relu": lambda call, x: np.maximum(x, x.dtype.type(0)),
    "Sqrt": _in_wide(np.sqrt), "Exp": _in_wide(np.exp), "Log": _in_wide(np.log), "Erf": _in_wide(erf),
    "Reciprocal": _in_wide(lambda x: x.dtype.type(1) / x), "Sigmoid": lambda call, x: sigmoid(x),
    "Sin": _in_wide(np.sin), "Cos": _in_wide(np.cos), "Tan": _in_wide(np.tan), "Tanh": _in_wide(np.tanh),
    "Asin": _in_wide(np.arcsin), "Acos": _in_wide(np.arccos), "Atan": _in_wide(np.arctan),
    "Sinh": _in_wide(np.sinh), "Cosh": _in_wide(np.cosh),
    "Asinh": _in_wide(np.arcsinh), "Acosh": _in_wide(np.arccosh), "Atanh": _in_wide(np.arctanh),
    "Softplus": _in_wide(softplus), "Softsign": _in_wide(lambda x: x / (1 + np.abs(x))),
    "Mish": _in_wide(lambda x: x * np.tanh(softplus(x))),
    "Swish": lambda call, x: quick_gelu(x, call.get("alpha", 1.0)),
    "Gelu": lambda call, x: gelu(x, call.get("approximate", "none")),
    "HardSigmoid": hard_sigmoid, "HardSwish": hard_swish, "LeakyRelu": leaky_relu, "PRelu": prelu, "Elu": elu,
    "Add": _binary(np.add), "Sub": _binary(np.subtract), "Mul": _binary(np.multiply), "Div": divide,
    "Mod": modulo, "Pow": power, "Max": _many(np.maximum), "Min": _many(np.minimum), "Sum": _many(np.add),
    "Mean": mean, "Clip": clip, "Where": where,
    "And": _compare(np.logical_and), "Or": _compare(np.logical_or), "Xor": _compare(np.logical_xor),
    "Equal": _compare(np.equal), "Greater": _compare(np.greater), "Less": _compare(np.less),
    "GreaterOrEqual": _compare(np.greater_equal), "LessOrEqual": _compare(np.less_equal),
    "IsNaN": lambda call, x: np.asarray(np.isnan(x)), "IsInf": is_inf,
    "Cast": cast, "CastLike": cast_like, "Identity": lambda call, x: x, "ConstantOfShape": constant_of_shape,
}  # fmt: skip
