"""How far two values are from each other, and how far they may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fuse.types import FLOATS
from reference.ops.call import short_dtype

#: Largest difference allowed by element type, relative to the larger of 1 and the largest value.
TOLERANCE: Mapping[str, float] = {"f16": 2e-2, "bf16": 6e-2, "f32": 1e-3, "f64": 1e-6}
#: Codes of quantized values: one on the edge between two codes rounds either way.
CODES = frozenset({"u8", "i8"})


class Difference(NamedTuple):
    """error: relative to the larger of 1 and the largest expected value. reason: empty where they agree."""

    error: float
    reason: str


def bit_equal(a: Any, b: Any) -> bool:
    """The same values of the same type and shape; NaN is equal to NaN. Sequences go by their elements."""
    if isinstance(a, list) or isinstance(b, list):
        return isinstance(a, list) and isinstance(b, list) and len(a) == len(b) and all(map(bit_equal, a, b))
    if a is None or b is None:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fcV"))


def difference(got: np.ndarray, want: np.ndarray, through: str = "") -> Difference:
    """How far a result is from what is expected; NaN and infinities must stand in the same places.

    through: the narrowest float type on the way to the result, whose tolerance holds where it is wider.
    """
    if got.dtype != want.dtype or got.shape != want.shape:
        have, need = (f"{short_dtype(a)}{list(a.shape)}" for a in (got, want))
        return Difference(np.inf, f"{have} where {need} is wanted")
    kind = short_dtype(want)
    if kind in CODES and not bit_equal(got, want):
        steps = int(np.max(np.abs(got.astype(np.int64) - want.astype(np.int64))))
        return Difference(steps / 255, "" if steps <= 1 else f"codes {steps} steps apart, allowed 1")
    if kind not in FLOATS:
        return Difference(0.0, "") if bit_equal(got, want) else Difference(np.inf, f"{kind} values differ")
    a, b = got.astype(np.float64), want.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return Difference(np.inf, "NaN in other places")
    finite = np.isfinite(b)
    if (
        not np.array_equal(a[~finite & ~np.isnan(b)], b[~finite & ~np.isnan(b)])
        or not np.isfinite(a[finite]).all()
    ):
        return Difference(np.inf, "infinities in other places")
    a, b = a[finite], b[finite]
    error = float(np.max(np.abs(a - b), initial=0.0)) / max(1.0, float(np.max(np.abs(b), initial=0.0)))
    allowed = max(TOLERANCE[kind], TOLERANCE.get(through, 0.0))
    return Difference(error, "" if error <= allowed else f"off by {error:.3g}, allowed {allowed:.3g}")
