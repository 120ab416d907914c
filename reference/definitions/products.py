"""Products with what is added to them, and products of one activation as one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from reference.definitions.activations import activate
from reference.definitions.case import Array, Case, Definition, exact


def _product(x: Array, weight: Array, trans_x: int = 0, trans_weight: int = 0) -> Array:
    """x times weight in f64; a transposed one has its last two axes swapped."""
    left, right = exact(x), exact(weight)
    if trans_x:
        left = np.swapaxes(left, -1, -2)
    if trans_weight:
        right = np.swapaxes(right, -1, -2)
    return np.asarray(np.matmul(left, right))


def _laid(case: Case, y: Array, output: int = 0) -> Array:
    """The rows of a product with the leading axes that the result has, or cut into heads."""
    shape = case.sizes(output)
    if shape is None or y.shape == shape or y.size != math.prod(shape):
        return y
    return y.reshape(shape)


def _biased(case: Case, x: Array, weight: Array, bias: Array | None) -> Array:
    """alpha x weight + beta bias, its rows as x has them."""
    y = case["alpha"] * _product(x, weight, case["trans_x"], case["trans_weight"])
    if bias is None or not case["beta"]:
        return np.asarray(y)
    return np.asarray(y + case["beta"] * _row(bias, y.shape[-1]))


def _row(bias: Array, width: int) -> Array:
    """A bias; one cut into heads as the row that it is."""
    return exact(bias).reshape(-1) if bias.size == width and bias.shape[-1] != width else exact(bias)


def matmul_bias(case: Case, x: Array, weight: Array, bias: Array | None) -> Array:
    y = _biased(case, x, weight, bias)
    perm = case.attrs.get("perm")
    if not perm:
        return _laid(case, y)
    shape = case.sizes()
    if shape is not None:
        before = [shape[perm.index(axis)] for axis in range(len(perm))]
        y = y.reshape(before) if y.size == math.prod(before) else y
    return np.asarray(y.transpose(perm))


def matmul_bias_act(case: Case, x: Array, weight: Array, bias: Array | None) -> Array:
    return activate(case["act"], matmul_bias(case, x, weight, bias), float(case["act_alpha"]))


def matmul_residual(case: Case, x: Array, weight: Array, bias: Array | None, residual: Array) -> Array:
    return np.asarray(_laid(case, _biased(case, x, weight, bias)) + exact(residual))


def merged(case: Case, x: Array, *operands: Array) -> tuple[Array, ...]:
    """x times each weight, plus the bias of the members that have one."""
    count = len(case["biases"])
    weights, biases = operands[:count], iter(operands[count:])
    results = []
    for at, (weight, has, turned) in enumerate(
        zip(weights, case["biases"], case["trans_weights"], strict=True)
    ):
        y = _product(x, weight, 0, turned)
        y = y + _row(next(biases), y.shape[-1]) if has else y
        results.append(_laid(case, np.asarray(y), at))
    return tuple(results)


PRODUCTS: Mapping[str, Definition] = {
    "matmul_bias": matmul_bias, "matmul_bias_act": matmul_bias_act, "matmul_residual": matmul_residual,
    "merged_qkv": merged, "merged_gate_up": merged, "merged_products": merged,
}  # fmt: skip
