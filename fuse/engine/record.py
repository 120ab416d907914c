"""What the engine writes down while it works; `fuse.report` makes the public report of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from fuse.ir import Op
from fuse.placement import Placement
from fuse.shim import Limit

Outcome = Literal["fired", "held", "refused", "near_miss"]


class Miss(NamedTuple):
    """Why a place nearly matched.

    code: one of CODES. at: the path of a value (an op is named by its first output). want, got:
    sentences. matched, of: fixed nodes of the pattern that stand, and how many it has. path: from
    the root to the fault, as operand numbers joined by dots ("" is the root).
    """

    code: str
    at: str
    want: str
    got: str
    matched: int
    of: int
    path: str = ""


def state(op: Op) -> tuple[str, str, int, tuple[Placement, ...]]:
    """What tells ops apart that stood at one place: path, class, how often a chip's own rule took the
    op in to set kernel attributes, and what it reads and writes in place."""
    times, inner = 0, op
    while len(inner.parts) == 1 and (inner.parts[0].path, inner.parts[0].kind) == (op.path, op.kind):
        times, inner = times + 1, inner.parts[0]
    return op.path, op.kind, times, op.placements


class Record(NamedTuple):
    """One decision. `ops` are lifted ops (leaves) in slot order; `root` is a value path.

    graph: the path prefix of the graph it was made in ("" for the whole model's graph).
    op: the fused op as built (None for a near miss). number: order made.
    """

    outcome: Outcome
    rule: str
    builds: str
    root: str
    ops: tuple[Op, ...]
    graph: str
    number: int
    op: Op | None = None
    miss: Miss | None = None
    limits: tuple[Limit, ...] = ()
    fires: bool = True
    kernel: str = ""
    evidence: str = ""
    note: str = ""
    realizes: tuple[str, ...] = ()
    #: launches not made, bytes not written and read again (a Dim; None where a shape is unknown)
    launches: int = 0
    bytes: object = None
