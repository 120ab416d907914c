"""What the constraints ask of a candidate: its operands by name, its attributes, its widths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from fuse.classes import CLASSES, REQUIRED, expert_counts
from fuse.ir import Tensor
from fuse.shim import Candidate
from fuse.types import UNKNOWN, Dim, Dims, Expr, Type, divide, mul

#: Operands that select or place and are never computed with: any element type will do.
SIDE_OPERANDS = frozenset({"position_ids", "indices", "word_ids", "type_ids", "code_zero_point"})


def operand_counts(kind: str, attrs: Mapping[str, Any]) -> dict[str, int]:
    """How many operands stand for each operand of the class that ends in `*`."""
    if "mask" in attrs and "mask*" in CLASSES[kind].operands:
        return {"mask": sum(step != "cap" for step in attrs["mask"])}
    if "experts" in attrs:
        return expert_counts(attrs)
    if "biases" in attrs:
        return {"weight": len(attrs["biases"]), "bias": sum(map(bool, attrs["biases"]))}
    return {}


class Operands:
    """A candidate's op read through its class. Absent operands are ""; their type is unknown."""

    def __init__(self, candidate: Candidate) -> None:
        self.graph = candidate.graph
        self.op = candidate.op
        self.kind = candidate.op.kind
        self._class = CLASSES[self.kind]

    def attr(self, name: str) -> Any:
        """The attribute, or its default where the op leaves it out."""
        if name in self.op.attrs:
            return self.op.attrs[name]
        declared = self._class.attrs.get(name)
        return None if declared is None or declared.default is REQUIRED else declared.default

    @cached_property
    def by_name(self) -> dict[str, tuple[str, ...]]:
        """Operand name -> its values, in the order of the class; one value unless it ends in `*`."""
        counts = operand_counts(self.kind, self.op.attrs)
        inputs = iter(self.op.inputs)
        found: dict[str, tuple[str, ...]] = {}
        for name in self._class.operands:
            bare = name.removesuffix("*")
            count = counts.get(bare, 0) if name.endswith("*") else 1
            found[bare] = tuple(next(inputs, "") for _ in range(count))
        return found

    def value(self, name: str) -> str:
        """The value path of a single operand, "" where it is absent or not one of the class."""
        return next(iter(self.by_name.get(name, ())), "")

    def type(self, name: str) -> Type:
        return self.type_of(self.value(name))

    def type_of(self, value: str) -> Type:
        return self.graph.type(value) if value else UNKNOWN

    def dims(self, name: str) -> Dims | None:
        return self.type(name).dims

    def constant(self, value: str) -> Tensor | None:
        return self.graph.constant(value)

    @property
    def main(self) -> str:
        """The name of the first operand: x, q, gate or past."""
        return self._class.operands[0]

    def computed(self) -> Iterator[tuple[str, str]]:
        """(name, value) of each operand that is present and computed with, in order; operands that
        stand for several are numbered from 1."""
        for name, values in self.by_name.items():
            if name in SIDE_OPERANDS:
                continue
            for number, value in enumerate(values, 1):
                if value:
                    yield (name if len(values) == 1 else f"{name} {number}"), value

    # ---- attention -----------------------------------------------------------------------------
    def layout(self, name: str) -> tuple[str, ...]:
        """The axes of q, k, v or out as letters: `b s hd` is ("b", "s", "hd"); "1" is a unit axis."""
        return letters(self.attr(f"{name}_layout") or "")

    def extent(self, name: str, letter: str) -> Dim | None:
        """The size of one letter of q, k or v; None where it cannot be told."""
        dims, layout = self.dims(name), self.layout(name)
        if letter == "h" and self.attr("heads"):
            heads = int(self.attr("heads"))
            return heads if name == "q" else heads // int(self.attr("groups"))
        if dims is None or len(dims) != len(layout):
            return None
        for axis, size in zip(layout, dims, strict=True):
            if letter in axis:
                return self._share(name, axis, letter, size)
        return 1

    def _share(self, name: str, axis: str, letter: str, size: Dim) -> Dim | None:
        """The part of a joined axis that one of its letters has."""
        others: Dim = 1
        for other in axis:
            if other == letter:
                continue
            part = self.extent(name, other) if other == "h" and self.attr("heads") else None
            if part is None:
                return None
            others = mul(others, part)
        return divide(size, others)


def symbols_of(dim: Dim | None) -> tuple[str, ...]:
    return tuple(sorted(dim.symbols)) if isinstance(dim, Expr) else ()


def letters(text: str) -> tuple[str, ...]:
    """A layout as one string of letters an axis; without spaces each letter is an axis."""
    return tuple(text.split()) if " " in text else tuple(text)
