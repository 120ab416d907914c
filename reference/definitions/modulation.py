"""Norms and residuals that a condition scales, norms of lookups, norms flattened to rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reference.definitions.activations import activate
from reference.definitions.case import Array, Case, Definition, exact
from reference.definitions.norms import norm


def _normed(case: Case, x: Array, weight: Array | None, bias: Array | None) -> Array:
    return norm(x, case["norm"], case["eps"], weight, bias, float(case.attrs.get("offset", 0.0)))


def _sum(x: Array, residual: Array | None) -> Array:
    return exact(x) if residual is None else np.asarray(exact(x) + exact(residual))


def ada_norm(
    case: Case,
    x: Array,
    scale: Array,
    shift: Array | None,
    residual: Array | None,
    weight: Array | None,
    bias: Array | None,
) -> tuple[Array, Array]:
    """The norm of x + residual, times 1 + scale, plus shift; and that sum."""
    total = _sum(x, residual)
    scaled = _normed(case, total, weight, bias) * (case["scale_offset"] + exact(scale))
    return scaled if shift is None else scaled + exact(shift), total


def gated_residual(case: Case, x: Array, gate: Array, y: Array) -> Array:
    return np.asarray(exact(x) + exact(gate) * exact(y))


def gated_norm(case: Case, x: Array, weight: Array | None, bias: Array | None, z: Array) -> Array:
    return np.asarray(_normed(case, x, weight, bias) * activate(case["act"], z))


def norm_reshape(
    case: Case, x: Array, residual: Array | None, weight: Array | None, bias: Array | None
) -> tuple[Array, Array]:
    """The norm of x + residual, neighbouring axes joined as `joins` counts them; and that sum."""
    total = _sum(x, residual)
    ends = np.cumsum(case["joins"])
    sizes = [int(np.prod(total.shape[end - n : end])) for n, end in zip(case["joins"], ends, strict=True)]
    return _normed(case, total, weight, bias).reshape(sizes), total


def embed_norm(
    case: Case,
    word_ids: Array,
    word: Array,
    position_ids: Array | None,
    position: Array | None,
    type_ids: Array | None,
    types: Array | None,
    weight: Array | None,
    bias: Array | None,
) -> tuple[Array, Array]:
    """The norm of the rows of the three tables that their ids select; and their sum. Rows without ids
    are added as they are."""
    total: Array = np.zeros(())
    tables = ("word", word_ids, word), ("position", position_ids, position), ("type", type_ids, types)
    for name, ids, table in tables:
        if table is not None:
            rows = exact(table) if ids is None else exact(table)[ids]
            total = np.asarray(total + (rows - case[f"{name}_zero"]) * case[f"{name}_scale"])
    return _normed(case, total, weight, bias), total


MODULATION: Mapping[str, Definition] = {
    "ada_norm": ada_norm, "gated_residual": gated_residual, "gated_norm": gated_norm,
    "norm_reshape": norm_reshape, "embed_norm": embed_norm,
}  # fmt: skip
