"""Activations and gates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from fuse.types import FuseError
from reference.definitions.case import Array, Case, Definition, exact


def _distribution(x: Array) -> Array:
    """The distribution function of the standard normal distribution."""
    flat = [0.5 * math.erfc(-value * math.sqrt(0.5)) for value in x.ravel().tolist()]
    return np.asarray(flat, np.float64).reshape(x.shape)


def _logistic(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def _tanh_gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


#: Activation -> its formula on f64; the second argument is its slope, which only some read.
FORMULAS: Mapping[str, Callable[[Array, float], Array]] = {
    "identity": lambda x, alpha: x,
    "relu": lambda x, alpha: np.where(np.isnan(x), x, np.maximum(x, 0)),
    "squared_relu": lambda x, alpha: np.where(np.isnan(x), x, np.maximum(x, 0)) ** 2,
    "gelu": lambda x, alpha: x * _distribution(x),
    "fast_gelu": lambda x, alpha: _tanh_gelu(x),
    "quick_gelu": lambda x, alpha: x * _logistic(alpha * x),
    "silu": lambda x, alpha: x * _logistic(x),
    "sigmoid": lambda x, alpha: _logistic(x),
    "tanh": lambda x, alpha: np.tanh(x),
    "mish": lambda x, alpha: x * np.tanh(np.logaddexp(0, x)),
    "softplus": lambda x, alpha: np.logaddexp(0, x),
    "hard_swish": lambda x, alpha: x * np.clip(x / 6 + 0.5, 0, 1),
    "hard_sigmoid": lambda x, alpha: np.clip(x / 6 + 0.5, 0, 1),
    "leaky_relu": lambda x, alpha: np.where(x < 0, alpha * x, x),
    "elu": lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
}


def activate(name: str, x: Array, alpha: float = 1.0) -> Array:
    """An activation by its class's name, in f64."""
    if name not in FORMULAS:
        raise FuseError(f"no definition of the activation {name}")
    return FORMULAS[name](exact(x), alpha)


def _alone(name: str) -> Definition:
    return lambda case, x: activate(name, x, float(case.attrs.get("alpha", 1.0)))


def softcap(case: Case, x: Array) -> Array:
    return np.asarray(case["cap"] * np.tanh(exact(x) / case["cap"]))


def gate(case: Case, gate: Array, up: Array) -> Array:
    """act(gate) times up."""
    return np.asarray(activate(case["act"], gate, float(case["alpha"])) * exact(up))


ACTIVATIONS: Mapping[str, Definition] = {
    **{name: _alone(name) for name in ("gelu", "fast_gelu", "quick_gelu", "silu", "mish", "hard_swish")},
    "softcap": softcap, "swiglu": gate, "geglu": gate, "reglu": gate,
}  # fmt: skip
