"""`--check`: values before and after, as the report keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fuse import Optimized
    from fuse.report import Check


class Checked(NamedTuple):
    """What was found, and how it differs in a sentence that is empty where it does not."""

    check: Check
    fault: str


def checked(optimized: Optimized, seed: int) -> Checked:
    """Random feeds of one seed through the lifted graph and the rewritten one.

    Raises FuseError where the model cannot be evaluated at all.
    """
    import reference
    from fuse.report import Check

    fault = ""
    try:
        found = reference.check(optimized.before, optimized.graph, seed=seed)
    except reference.Mismatch as error:
        if error.check is None:
            raise
        found, fault = error.check, str(error)
    check = Check(
        ok=found.ok,
        seed=found.seed,
        dtype=found.dtype,
        bit_equal=found.bit_equal,
        max_error=found.max_error,
        differs=found.differs,
    )
    return Checked(check, fault)
