"""The choice of the next token."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reference.definitions.case import Array, Case, Definition


def advance(case: Case, logits: Array) -> Array:
    """The index of the largest of the last row's logits, the first of equals, or the last if so said."""
    row = logits[..., -1, :]
    if case["last"]:
        found = row.shape[-1] - 1 - np.argmax(row[..., ::-1], axis=-1)
    else:
        found = np.argmax(row, axis=-1)
    rank = case.rank()
    return np.asarray(found).reshape(
        found.shape + (1,) * ((found.ndim if rank is None else rank) - found.ndim)
    )


DECODING: Mapping[str, Definition] = {"advance": advance}
