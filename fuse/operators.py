"""Operators and constants as values: an op is frozen, a constant is read only when asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from fuse.placement import Land, Placement
from fuse.types import Expr, Type

if TYPE_CHECKING:
    from fuse.ir import Graph

#: A constant larger than this is never read to decide a match; it answers "unknown".
SMALL_CONSTANT_BYTES = 64 * 1024

#: One known element of a small tensor; None where that element is not known.
Element = int | float | bool | Expr | None
#: The elements of a small tensor, flat, whatever its rank.
Content = tuple[Element, ...]
Attribute = Any


class Owned:
    """What an attribute may own: a graph (`fuse.ir.Graph`)."""

    __slots__ = ()


class Tensor:
    """A constant that is read only when asked. `dims` are ints; `proto` is kept for lowering."""

    __slots__ = ("_load", "dims", "dtype", "name", "nbytes", "proto")

    def __init__(
        self,
        name: str,
        dtype: str,
        dims: tuple[int, ...],
        nbytes: int,
        load: Callable[[], np.ndarray],
        proto: object = None,
    ) -> None:
        self.name, self.dtype, self.dims, self.nbytes = name, dtype, dims, nbytes
        self._load, self.proto = load, proto

    def __repr__(self) -> str:
        return f"Tensor({self.name}: {Type(self.dtype, self.dims)})"

    def array(self) -> np.ndarray:
        """The values, read now (from the external file where they lie outside the model)."""
        return self._load()

    def small(self) -> np.ndarray | None:
        """The values if they take at most 64 KiB, else None."""
        return self._load() if self.nbytes <= SMALL_CONSTANT_BYTES else None


class Op(NamedTuple):
    """One operator, lifted or fused.

    kind: "Add", "com.microsoft.SkipLayerNormalization", or a class that a rule built ("rms_norm").
    inputs, outputs: value paths, "" for an absent one. A fused op lists its class's operands first,
    then whatever else its parts read at run time; constants that only parts read are not listed.
    parts: what a fused op is made of, in slot order; its meaning is these run in that order.
    slot: where it stands (a lifted op: for ever). placements: what it reads and writes in place; its
    inputs and outputs are then the wider values.
    """

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attribute]
    parts: tuple[Op, ...] = ()
    name: str = ""
    slot: int = -1
    placements: tuple[Placement, ...] = ()

    @property
    def path(self) -> str:
        """What identifies the op: the path of its first output that is not absent."""
        return self.outputs[0] or next(filter(None, self.outputs), "")

    @property
    def bodies(self) -> dict[str, Graph]:
        """The subgraphs of an If, Loop or Scan by attribute name."""
        owned = {key: value for key, value in self.attrs.items() if isinstance(value, Owned)}
        return cast("dict[str, Graph]", owned)


def leaves(op: Op) -> list[Op]:
    """The lifted ops that an op is made of, in slot order within each part."""
    if not op.parts:
        return [op]
    found: list[Op] = []
    for part in op.parts:
        if part.parts:
            found += leaves(part)
        else:
            found.append(part)
    return found


def lands_in(op: Op) -> tuple[str, ...]:
    """The values whose memory an op writes over: where its results, or those of its parts, land."""
    if not op.parts:
        return ()
    found = [placement.into for placement in op.placements if isinstance(placement, Land) and placement.into]
    for part in op.parts:
        if part.parts:
            found += lands_in(part)
    return tuple(dict.fromkeys(found))
