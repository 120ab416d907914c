"""What a definition is given beside its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuse.types import Type

Array = np.ndarray
#: Takes the case and the operands, None where absent; gives one array, or one for each output.
Definition = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """attrs: with defaults filled in. types: what is known of each output."""

    attrs: Mapping[str, Any]
    types: tuple[Type, ...]

    def __getitem__(self, name: str) -> Any:
        return self.attrs[name]

    def sizes(self, output: int = 0) -> tuple[int, ...] | None:
        """The shape of an output, where it is known as numbers."""
        dims = self.types[output].dims if output < len(self.types) else None
        if dims is None:
            return None
        known = tuple(dim for dim in dims if isinstance(dim, int))
        return known if len(known) == len(dims) else None

    def rank(self, output: int = 0) -> int | None:
        """The rank of an output, where it is known."""
        if output >= len(self.types) or self.types[output].dims is None:
            return None
        dims = self.types[output].dims
        return None if dims is None else len(dims)


def exact(x: Array) -> Array:
    """x in f64, in which definitions compute."""
    return x.astype(np.float64)
