"""Numbers, sizes and names as every text form writes them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from fuse.report import Decision, Limit, Miss, Saves

#: Outcome kind -> its word; also the order of columns.
WORDS = {"fired": "fired", "held": "held", "refused": "refused", "near_miss": "near"}

#: Codes that want the same everywhere: what is there says it all.
_OUTSIDE = frozenset({"read_elsewhere", "graph_output", "captured"})
_UNITS = ("B", "kB", "MB", "GB", "TB")


def clean(text: str) -> str:
    """A name of the model that cannot move the cursor or break a line."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() and unicodedata.category(c) != "Cf" else f"\\u{ord(c):04x}" for c in text
    )


def clip(text: str, width: int | None) -> str:
    """At most width characters, the rest as three dots."""
    if width is None or len(text) <= width:
        return text
    return text[: max(width - 3, 0)].rstrip() + "..."


def count(number: int, noun: str) -> str:
    """`1 launch`, `1,234 launches`."""
    plural = noun + ("es" if noun.endswith(("ch", "s")) else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def size(amount: int | str | None) -> str:
    """Bytes in decimal units; a symbolic sum as it stands."""
    if amount is None:
        return "unknown"
    if isinstance(amount, str):
        return f"{clean(amount)} B"
    return f"{scaled(amount, unit_of(amount))} {_UNITS[unit_of(amount)]}"


def unit_of(amount: int) -> int:
    """The index of the largest decimal unit that an amount fills."""
    unit = 0
    while unit < len(_UNITS) - 1 and abs(amount) >= 1000 ** (unit + 1):
        unit += 1
    return unit


def scaled(amount: int, unit: int) -> str:
    """An amount in one unit: three figures, never a point in bytes."""
    value = amount / 1000**unit
    return f"{value:,.1f}" if unit and abs(value) < 100 else f"{value:,.0f}"


def unit_name(unit: int) -> str:
    return _UNITS[unit]


def saves(saved: Saves | None, launches: int | None, amount: int | str | None) -> str:
    """`5 launches, 1.0 MB`, of one decision or given figures; "" where nothing is known."""
    if saved is not None:
        launches, amount = saved.launches, saved.bytes
    parts = [count(launches, "launch")] if launches else []
    if amount not in (None, 0):
        parts.append(size(amount))
    return ", ".join(parts)


def short_code(code: str) -> str:
    """A code without the family that its outcome says already."""
    return code.removeprefix("chip:")


def cause(reasons: Sequence[Limit | Miss]) -> str:
    """The reasons of a decision in one line; of a value read where it must not be, who reads it."""
    said = []
    for reason in reasons:
        at = f" at {clean(reason.at)}" if isinstance(reason, Miss) and reason.at else ""
        want = "" if reason.code in _OUTSIDE else f"want {clean(reason.want)}, got "
        said.append(f"{short_code(reason.code)}{at}: {want}{clean(reason.got)}")
    return "; ".join(said)


def place(row: Decision) -> str:
    """The node that makes the result, by name where it has one."""
    if row.names and len(row.names) == len(row.ops):
        by_path = dict(zip(row.ops, row.names, strict=True))
        return clean(by_path.get(row.root, row.names[-1]))
    return clean(row.root)
