"""What a constraint answers, and conditions on numbers that may be symbolic."""

from __future__ import annotations

from typing import NamedTuple

from chips.operands import symbols_of
from chips.schema import Number
from fuse.types import Dim, Dims, Expr, non_negative, sub


class Unknown(NamedTuple):
    """A shape or type that nobody knows decides the constraint. got: what is unknown and, where a
    symbol stands for it, the flag to give; help: what to do."""

    got: str
    help: str | None = None


#: None: the constraint holds. A sentence: it fails, and this stands there instead.
Answer = str | Unknown | None


def unknown(what: str, dim: Dim | None = None) -> Unknown:
    """`what` is unknown; where symbols of the model stand for it, the flags that bind them."""
    names = [name for name in symbols_of(dim) if name.replace(".", "_").isidentifier()]
    if not names:
        return Unknown(f"{what} unknown")
    flags = " ".join(f"--dim {name}=1" for name in names)
    shown = "" if str(dim) == what else f" ({dim})"
    return Unknown(f"{what} unknown{shown}: try {flags}", f"bind {', '.join(names)} with --dim")


def undecided(text: str, dims: Dims) -> Unknown:
    """Symbols among the dims decide whether what the text names agrees."""
    names = sorted({name for dim in dims for name in symbols_of(dim) if name.isidentifier()})
    if not names:
        return Unknown(f"{text}, which may differ")
    flags = " ".join(f"--dim {name}=1" for name in names)
    return Unknown(f"{text}, which may differ: try {flags}", f"bind {', '.join(names)} with --dim")


def number(want: Number, dim: Dim | None, what: str) -> Answer:
    """Whether a dimension meets a condition, for every value its symbols may have."""
    if isinstance(dim, int):
        return None if _holds(want, dim) else str(dim)
    if dim is None:
        return unknown(what)
    if _surely(want, dim):
        return None
    return str(dim) if _never(want, dim) else unknown(what, dim)


def _holds(want: Number, value: int) -> bool:
    return (
        (want.one_of is None or value in want.one_of)
        and (want.at_least is None or value >= want.at_least)
        and (want.at_most is None or value <= want.at_most)
        and (want.multiple_of is None or value % want.multiple_of == 0)
    )


def _surely(want: Number, dim: Expr) -> bool:
    """Whether the condition holds for every value of the symbols (none is negative)."""
    if want.one_of is not None or want.at_most is not None:
        return False
    if want.at_least is not None and not non_negative(sub(dim, want.at_least)):
        return False
    return want.multiple_of is None or all(factor % want.multiple_of == 0 for _, factor in dim.terms)


def _never(want: Number, dim: Expr) -> bool:
    """Whether the condition fails for every value of the symbols."""
    return want.at_most is not None and non_negative(sub(dim, want.at_most + 1))


def last(dims: Dims | None) -> Dim | None:
    """The last axis, None where it is unknown or there is none."""
    return dims[-1] if dims else None


def without_unit_lead(dims: Dims) -> Dims:
    """The dims less leading axes of 1; one axis stays."""
    lead = 0
    while lead < len(dims) - 1 and dims[lead] == 1:
        lead += 1
    return dims[lead:]


def same(a: Dim, b: Dim) -> bool | None:
    """Whether two dimensions are equal; None where symbols leave it open."""
    if a == b:
        return True
    difference = sub(a, b)
    if isinstance(difference, int) or non_negative(sub(difference, 1)) or non_negative(sub(sub(b, a), 1)):
        return False
    return None
