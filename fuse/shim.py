"""What a chip answers, as the engine sees it. Chips themselves are data, in the folder `chips`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from fuse.ir import Graph, Op
from fuse.types import Type


class Limit(NamedTuple):
    """One condition of a chip that a candidate fails. Sentences are lower case, want beside got."""

    code: str
    want: str
    got: str
    help: str | None = None


class Candidate(NamedTuple):
    """A fused op that does not stand yet, over its parts as they are now, and where it would stand.

    `op` has its class as kind, its operands, attributes and parts; `graph` gives types, contents
    and constants of every value (`candidate.type(value)`).
    """

    name: str
    op: Op
    graph: Graph

    def type(self, value: str) -> Type:
        return self.graph.type(value)


class Whole(NamedTuple):
    """The chip runs the candidate as one kernel."""

    kernel: str
    note: str = ""
    evidence: str = ""


class Refused(NamedTuple):
    """The chip does not; every limit that refuses, never only the first."""

    limits: tuple[Limit, ...]


class ChipRule(NamedTuple):
    """A chip's own rule: sets kernel attributes on ops of one class that meet a condition.

    place: before or after the shared rule `beside`, or closing (after all of them).
    """

    name: str
    place: Literal["before", "after", "closing"]
    beside: str
    builds: str
    sets: Mapping[str, Any]
    applies: Callable[[Candidate], bool]
    why: str


class Shim(Protocol):
    """One chip."""

    name: str
    sha256: str
    chip_rules: tuple[ChipRule, ...]

    def judge(self, candidate: Candidate) -> Whole | Refused:
        """Whether the chip runs this candidate whole."""
        ...

    def caps(self, name: str) -> Mapping[str, int]:
        """Bounds that a search for a class must keep: max_depth, max_inputs, max_buffers (regions)."""
        ...

    def links(self, name: str) -> bool:
        """Whether the chip has any kernel of the class. Never used to decide, only to explain."""
        ...
