"""What the declaration of a fused class is made of (`fuse.classes` is the table of them)."""

from __future__ import annotations

from typing import Any, NamedTuple

#: Marks an attribute that every op of the class must carry.
REQUIRED: Any = object()


class Attr(NamedTuple):
    """An attribute: its default (REQUIRED where there is none) and what it means, with its unit."""

    default: Any
    meaning: str


class FusedClass(NamedTuple):
    name: str
    operands: tuple[str, ...]
    attrs: dict[str, Attr]
    outputs: tuple[str, ...]
    meaning: str
    composed_of: tuple[str, ...] = ()
    #: Its definition is its members' definitions in order.
    composite: bool = False


def declare(
    name: str,
    operands: str,
    meaning: str,
    outputs: str = "y",
    attrs: dict[str, Attr] | None = None,
    composed_of: tuple[str, ...] = (),
    composite: bool = False,
) -> FusedClass:
    return FusedClass(
        name, tuple(operands.split()), attrs or {}, tuple(outputs.split()), meaning, composed_of, composite
    )
