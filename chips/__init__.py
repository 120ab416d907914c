"""Chips as data: what one chip runs as one kernel, with the source of every number.

`load(name)` gives a chip that `fuse.optimize(graph, shim=...)` asks; `names()` lists the shipped
ones; `support_table(chip)` is what `fuse chips NAME` prints.
"""

from __future__ import annotations

from pathlib import Path

from chips.load import load_file, names
from chips.shim import Chip
from chips.table import SupportRow, support_table

__all__ = ["Chip", "SupportRow", "load", "names", "support_table"]


def load(name: str | Path) -> Chip:
    """The chip of a shipped name, or of a YAML file given by its path.

    Raises FuseError in one line: an unknown name with the nearest ones, a bad file with its line.
    """
    return Chip(load_file(name))
