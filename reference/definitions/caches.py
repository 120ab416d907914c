"""Rows landing in a cache."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reference.definitions.case import Array, Case, Definition, exact
from reference.definitions.rotations import qk_norm_rope, rope


def _joined(case: Case, past: Array, new: Array) -> Array:
    return np.concatenate([past, new], axis=case["axis"])


def kv_append(case: Case, past: Array, new: Array) -> Array:
    """New rows behind those of the cache; nothing is computed, so the type stays."""
    return _joined(case, past, new)


def rope_kv_append(case: Case, past: Array, x: Array, cos: Array, sin: Array, ids: Array | None) -> Array:
    return _joined(case, exact(past), rope(case, x, cos, sin, ids))


def qk_norm_rope_kv_append(
    case: Case,
    past: Array,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    cos: Array,
    sin: Array,
    ids: Array | None,
) -> Array:
    return _joined(case, exact(past), qk_norm_rope(case, x, weight, bias, cos, sin, ids))


CACHES: Mapping[str, Definition] = {
    "kv_append": kv_append, "rope_kv_append": rope_kv_append,
    "qk_norm_rope_kv_append": qk_norm_rope_kv_append,
}  # fmt: skip
