"""Rotations of pairs of lanes, alone and behind a norm."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fuse.types import FuseError
from reference.definitions.case import Array, Case, Definition, exact
from reference.definitions.norms import normed_heads


def _tables(case: Case, cos: Array, sin: Array, ids: Array | None) -> tuple[Array, Array]:
    """cos and sin as they lie over the rotated lanes of x: one entry a lane, rows selected."""
    angles = [exact(cos), exact(sin)]
    if case["position_ids"]:
        if ids is None:
            raise FuseError("rope selects rows of its tables and has no position ids")
        angles = [table[ids.astype(np.int64)] for table in angles]
    if case["rope_unsqueeze"] != -1:
        angles = [np.expand_dims(table, case["rope_unsqueeze"]) for table in angles]
    if case["tables"] == "half":
        if case["form"] == "interleaved":
            angles = [np.repeat(table, 2, axis=-1) for table in angles]
        else:
            angles = [np.concatenate([table, table], axis=-1) for table in angles]
    return angles[0], angles[1]


def rotate(case: Case, x: Array, cos: Array, sin: Array, ids: Array | None) -> Array:
    """Each pair (a, b) of lanes becomes (a cos - b sin, b cos + a sin); the lanes around them pass."""
    y = exact(x)
    if case["rope_heads"]:
        batch, rows, size = x.shape
        y = y.reshape(batch, rows, case["rope_heads"], size // case["rope_heads"])
    cosines, sines = _tables(case, cos, sin, ids)
    lanes = case["rotary_dim"] or y.shape[-1]
    if cosines.shape[-1] not in (1, lanes):
        raise FuseError(f"rope turns {lanes} lanes, its tables have {cosines.shape[-1]}")
    start = case["rotary_from"]
    before, after = y[..., :start], y[..., start + lanes :]
    turned = _turned(y[..., start : start + lanes], cosines, sines, case["form"])
    passed = (np.broadcast_to(part, (*turned.shape[:-1], part.shape[-1])) for part in (before, after))
    result = np.concatenate([next(passed), turned, *passed], axis=-1)
    return result.reshape(x.shape) if case["rope_heads"] else result


def _turned(x: Array, cosines: Array, sines: Array, form: str) -> Array:
    """All lanes of x turned. A form from one order of lanes to the other has its tables in halves."""
    if form == "interleaved":
        partner = np.stack([-x[..., 1::2], x[..., 0::2]], axis=-1).reshape(x.shape)
        return np.asarray(x * cosines + partner * sines)
    if form == "pairs_to_halves":
        x = np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
    elif form not in ("half", "halves_to_pairs"):
        raise FuseError(f"no definition of a rope of form {form!r}")
    first, second = np.split(x, 2, axis=-1)
    y = x * cosines + np.concatenate([-second, first], axis=-1) * sines
    if form == "halves_to_pairs":
        y = np.stack(np.split(y, 2, axis=-1), axis=-1).reshape(y.shape)
    return np.asarray(y)


def rope(case: Case, x: Array, cos: Array, sin: Array, ids: Array | None) -> Array:
    return rotate(case, x, cos, sin, ids)


def qk_norm_rope(
    case: Case,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    cos: Array,
    sin: Array,
    ids: Array | None,
) -> Array:
    """A norm of each head, the transpose `perm`, the rotation."""
    y = normed_heads(case, x, weight, bias, 0)
    if case["perm"]:
        y = y.transpose(case["perm"])
    elif y.ndim != x.ndim and case["rope_heads"]:
        y = y.reshape(x.shape)
    return rotate(case, y, cos, sin, ids)


ROTATIONS: Mapping[str, Definition] = {"rope": rope, "qk_norm_rope": qk_norm_rope}
