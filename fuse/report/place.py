"""Where a decision is, in words that repeat over layers: `/model/layers.*/norm`."""

from __future__ import annotations

import re
from collections.abc import Sequence

_DIGITS = re.compile(r"\d+")


class Places:
    """Group texts, with every distinct name starred once."""

    def __init__(self) -> None:
        self._starred: dict[str, str] = {}

    def star(self, name: str) -> str:
        """A name with each run of digits starred."""
        found = self._starred.get(name)
        if found is None:
            found = self._starred[name] = _DIGITS.sub("*", name)
        return found

    def group(self, names: Sequence[str], root: str) -> str:
        """The folder that all named ops share; without one, the name of the root.

        names: node names, or value paths where nodes have none. root: what names the last op.
        """
        if not names:
            return self.star(root)
        low, high = min(names), max(names)
        if low == high:
            return self.star(low)
        folder = low
        while folder and not high.startswith(folder + "/"):
            folder = folder.rpartition("/")[0]
        return self.star(folder or root)
