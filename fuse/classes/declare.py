"""What the declaration of a fused class is made of (`fuse.classes` is the table of them)."""

from __future__ import annotations

from typing import Any, NamedTuple

#: How the meaning of an attribute begins that says only how a class is run.
KERNEL = "kernel attribute: "
#: Marks an attribute that every op of the class must carry.
REQUIRED: Any = object()


class Attr(NamedTuple):
    """An attribute: its default (REQUIRED where there is none) and what it means, with its unit."""

    default: Any
    meaning: str


#: What products that run as one carry of each of them.
MERGED = {
    "biases": Attr(REQUIRED, "for each member, 1 where it has a bias"),
    "trans_weights": Attr(REQUIRED, "for each member, 1 where its weight is [out, in]"),
}


class FusedClass(NamedTuple):
    name: str
    operands: tuple[str, ...]
    attrs: dict[str, Attr]
    outputs: tuple[str, ...]
    meaning: str
    composed_of: tuple[str, ...] = ()
    #: Its definition is its members' definitions in order.
    composite: bool = False

    @property
    def kernel_attrs(self) -> dict[str, Attr]:
        """The attributes that say only how a class is run: definitions ignore them, chips' own rules set
        them, and a saved model names them."""
        return {name: attr for name, attr in self.attrs.items() if attr.meaning.startswith(KERNEL)}


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
