"""`--check`: values before and after, as the report keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuse import Optimized
    from fuse.report import Check


def checked(optimized: Optimized, seed: int) -> Check:
    """Random feeds of one seed through the lifted graph and the rewritten one."""
    import reference
    from fuse.report import Check

    found = reference.check(optimized.before, optimized.graph, seed=seed)
    return Check(
        ok=found.ok,
        seed=seed,
        dtype=found.dtype,
        bit_equal=found.bit_equal,
        max_error=found.max_error,
        differs=found.differs,
    )
