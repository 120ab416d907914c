"""A rule as data: what it finds, its marks, its guards, what it builds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fuse.ir import Op
from fuse.match import Fault, Match
from fuse.pattern import Pattern
from fuse.placement import Placement
from fuse.types import FuseError


class Wrong(NamedTuple):
    """What a guard answers where it fails: the value or op it speaks of, and what is there."""

    at: str
    got: str


class Guard(NamedTuple):
    """A named condition. `want` is the sentence that the report shows.

    code: `guard:<name>` where two or more places must agree; `operand` where one operand alone
    decides; `unknown_shape` is given by `Unknown` answers of any guard.
    """

    name: str
    want: str
    check: Callable[[Match], Wrong | None]
    code: str = ""


def guard(check: Callable[[Match], Wrong | None], *, name: str = "", want: str = "", code: str = "") -> Guard:
    """A guard from a function: its name and the first line of its docstring.

    Raises FuseError where there is none, as under `python -OO`: no report could say what was wanted.
    """
    called = name or check.__name__
    if not want:
        doc = (check.__doc__ or "").strip().splitlines()
        if not doc:
            raise FuseError(f"{called} has no docstring to quote; python -OO drops them, python -O does not")
        want = doc[0].rstrip(".")
    return Guard(called, want, check, code or f"guard:{called}")


@dataclass
class Built:
    """What a match becomes: a class over operands, and the ops to take in beside those matched.

    operands: one that a part reads in place is named by the value that it computes with (`placing.seen`).
    outputs: the results, "" where unused; by default the root's. A later output is dropped where
    nobody outside reads it.
    """

    kind: str
    operands: tuple[str, ...]
    attrs: dict[str, Any]
    outputs: tuple[str, ...] = ()
    also: list[Op] = field(default_factory=list)
    #: What the op reads and writes in place, beside the placements that its parts have already.
    placements: tuple[Placement, ...] = ()


class Found(NamedTuple):
    """What a walk finds: a whole match ready to build, or a near miss at a root."""

    match: Match
    fault: Fault | None = None


#: (graph, marked op, budget) -> matches; a capped rule's walk takes the chip's caps too.
Walk = Callable[..., Iterator[Match]]


@dataclass(frozen=True, eq=False)
class Rule:
    """One line of the table.

    finds: a pattern, or a walk (graph, marked op, budget) that yields matches where no tree can say
    it. marks: the rare kinds that the engine starts from. needs: guards, checked in order. builds:
    what a match becomes, or several forms of it, the fullest first, of which the first that the chip
    runs is taken; None where the place belongs to another rule. classes: what it may build.
    """

    name: str
    why: str
    finds: Pattern | Walk
    marks: tuple[str, ...]
    builds: Callable[[Match], Built | Iterable[Built] | None]
    needs: tuple[Guard, ...] = ()
    classes: tuple[str, ...] = ()
    #: Kinds that tell a near miss beside the marks; a match is never sought from them.
    hints: tuple[str, ...] = ()
    #: Whether the ops matched are this rule's place at all; of another rule's place nothing is said.
    place: Callable[[Match], bool] | None = None
    #: What tells, where little of a pattern stands, that a place is almost one all the same.
    almost: Callable[[Match, Fault], bool] | None = None
    #: Kinds that `builds` or a walk asks forms about, beside those of the pattern.
    reads: tuple[str, ...] = ()
    #: The rule matches primitives only: refused ops that nobody took are undone before it.
    primitives: bool = False
    #: The rule runs again over what comes apart where refused ops that nobody took are undone.
    again: bool = False
    #: Nothing is put where the chip refuses (a chip's own rule).
    only_whole: bool = False
    #: The rule places: what it builds keeps its kind, and reads or writes in place.
    places: bool = False
    #: The walk takes the chip's caps on the class as a fourth argument.
    capped: bool = False
    #: Marks are visited last slot first: a match is found from its result.
    from_the_end: bool = False
    since: str = "0.1"

    @property
    def doc(self) -> str:
        """What it finds, in a sentence: the first paragraph of `why`."""
        return " ".join(self.why.partition("\n\n")[0].split())

    @property
    def builds_classes(self) -> tuple[str, ...]:
        return self.classes or (self.name,)

    @property
    def guards(self) -> tuple[Guard, ...]:
        return self.needs


def absorb_cast(m: Match, value: str, built_parts: list[Op]) -> tuple[str, Op | None]:
    """The value below an up-cast that only the match reads, and that cast; else the value itself."""
    op = m.graph.producer(value)
    if op is None or op.kind != "Cast" or m.graph.is_output(value):
        return value, None
    if m.graph.dtype(op.inputs[0]) not in ("f16", "bf16", "f32") or m.graph.dtype(value) not in (
        "f32",
        "f64",
    ):
        return value, None
    own = {part.slot for part in built_parts}
    if any(slot not in own for slot in m.graph.readers(value)):
        return value, None
    return op.inputs[0], op
