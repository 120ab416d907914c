"""The report as data: frozen rows, unknown fields refused, no times, no absolute paths.

Everything a renderer, a diff or an assertion needs is here, and nothing needs a model or onnx to be
read back. Operator names of the model are in it; weights never are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fuse.report.query import Found, Group, answering, counts, grouped, holds, of

if TYPE_CHECKING:
    from fuse.report.diff import Diff


class Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limit(Row):
    """One condition of a chip that the place fails; `help` is the chip file's note on it."""

    code: str
    want: str
    got: str
    help: str | None = None


class Miss(Row):
    """Why a place nearly matched: `at` is the op or value where the cause sits.

    matched of `of` fixed nodes of the pattern stand. path: operand numbers from the root to the
    fault, joined by dots.
    """

    code: str
    at: str
    want: str
    got: str
    matched: int
    of: int
    path: str = ""


class Fired(Row):
    """Rewritten. slot: graph path and slot where the fused op was put. absorbed_by: the id of the
    decision that took it in."""

    kind: Literal["fired"] = "fired"
    slot: tuple[str, int]
    absorbed_by: str | None = None


class Held(Row):
    """Seen on a copy, where the rule was not held; `fires` says whether the chip would have run it."""

    kind: Literal["held"] = "held"
    fires: bool


class Refused(Row):
    """Matched whole, and the chip does not run it: every limit that refuses. absorbed_by: the id
    of the decision that was built on it."""

    kind: Literal["refused"] = "refused"
    limits: tuple[Limit, ...]
    absorbed_by: str | None = None


class NearMiss(Row):
    """The pattern holds with one thing changed."""

    kind: Literal["near_miss"] = "near_miss"
    miss: Miss


Outcome = Annotated[Fired | Held | Refused | NearMiss, Field(discriminator="kind")]


class Saves(Row):
    """What the fusion saves (or would): launches not made, and bytes not written and read again.

    bytes is a sum of products of symbols where dims are symbolic, None where a shape is unknown.
    Floating point operations are the same before and after.
    """

    launches: int | None
    bytes: int | str | None


class Decision(Row):
    """One place and one rule.

    id: the same on every chip and in every run. n: the order the table made it. builds: the class.
    ops: the lifted ops, each by the path of its first output; kinds: their operators; names: node
    names as the user sees them. group: digits in the names starred. realizes: classes that a
    firing answers for beside its own. kernel, evidence: what the chip runs it by, and how that is
    known; note: what the chip says of it beside, such as what is made once beside the kernel.
    """

    id: str
    n: int
    rule: str
    builds: str
    root: str
    ops: tuple[str, ...]
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    group: str
    saves: Saves
    realizes: tuple[str, ...] = ()
    kernel: str = ""
    evidence: str = ""
    note: str = ""
    outcome: Outcome

    @property
    def kind(self) -> str:
        """fired, held, refused or near_miss."""
        return self.outcome.kind

    @property
    def reasons(self) -> tuple[Limit | Miss, ...]:
        """Why it did not fire: every limit, or the one miss; empty where it fired or was held."""
        outcome = self.outcome
        if isinstance(outcome, Refused):
            return outcome.limits
        return (outcome.miss,) if isinstance(outcome, NearMiss) else ()

    @property
    def absorbed_by(self) -> str | None:
        return self.outcome.absorbed_by if isinstance(self.outcome, Fired | Refused) else None


class Coverage(Row):
    """One class, or one operator of the file that is a fusion already: how many ops are of it, and
    how many lifted ops lie inside them."""

    name: str
    count: int
    ops: int


class Totals(Row):
    """A graph with its bodies, each body counted once.

    ops: lifted ops. launches: ops that stand and are not free views. bytes: read and written by
    them, constants left out; a sum of products of symbols where dims are symbolic. unknown: values
    read or written whose size is not known. classes: what the graph has of fused operators.
    """

    ops: int
    launches: int
    bytes: int | str
    unknown: int
    classes: tuple[Coverage, ...]

    @property
    def covered(self) -> int:
        """Lifted ops that lie inside a fused operator."""
        return sum(row.ops for row in self.classes)


class Count(Row):
    name: str
    count: int


class ModelId(Row):
    """The file: its name without folders, its hash, the version of ai.onnx, its nodes.

    lifting: how many nodes each normalization of the lift touched. conflicts: contradictions in
    the file whose meaning is clear all the same.
    """

    name: str
    sha256: str
    opset: int
    ops: int
    lifting: tuple[Count, ...] = ()
    conflicts: tuple[str, ...] = ()


class ChipId(Row):
    name: str
    sha256: str


class Check(Row):
    """The rewritten graph evaluated beside the lifted one on random feeds.

    bit_equal: by parts, every output has the same bits. max_error: the largest difference of any
    output by definition, as text. differs: the first op whose values differ beyond the tolerance.
    """

    ok: bool
    seed: int
    dtype: str
    bit_equal: bool
    max_error: str
    differs: str | None = None


class Report(Row):
    """Every decision of one compile.

    held_rules (`held` in the file): rules held by name. steps: what ran, in order. absent: rules
    none of whose rare operators the model has, so that they had nothing to find.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", serialize_by_alias=True, validate_by_name=True, validate_by_alias=True
    )

    version: Literal[1] = 1
    made_by: str
    model: ModelId
    chip: ChipId
    held_rules: tuple[str, ...] = Field(alias="held")
    steps: tuple[str, ...]
    absent: tuple[str, ...] = ()
    before: Totals
    after: Totals
    decisions: tuple[Decision, ...]
    check: Check | None = None

    def fired(self, name: str | None = None, *, at: str | None = None) -> Found:
        """The firings of a rule or class, or that realize it, each place once; all without a name."""
        if name is None:
            rows = [row for row in self.decisions if row.kind == "fired"]
        else:
            rows = answering(self.decisions, name)
        return self._found(rows, "fired", name, at)

    def held(self, name: str | None = None, *, at: str | None = None) -> Found:
        """Where a held rule would have fired, seen on a copy of the graph."""
        return self._of("held", name, at)

    def refused(self, name: str | None = None, *, at: str | None = None) -> Found:
        """Whole matches that the chip does not run, with every limit that refuses."""
        return self._of("refused", name, at)

    def near(self, name: str | None = None, *, at: str | None = None) -> Found:
        """Places where the pattern holds with one thing changed."""
        return self._of("near_miss", name, at)

    def at(self, op: str) -> Found:
        """Every decision that has an op among its own: by node name or by the path of an output."""
        return self._found([row for row in self.decisions if holds(row, op)], "decisions", op, None)

    def by_rule(self) -> dict[str, dict[str, int]]:
        """Rule -> how many decisions of each outcome, in the order of the steps."""
        return counts(self.steps, self.decisions)

    def groups(self) -> tuple[Group, ...]:
        """Decisions that repeat over layers, as one row each, the largest saving first."""
        return grouped(self.decisions)

    def diff(self, other: Report) -> Diff:
        """What changed from this report to another: places that are lost, gained, moved or otherwise."""
        from fuse.report.diff import diff

        return diff(self, other)

    def _of(self, kind: str, name: str | None, at: str | None) -> Found:
        rows = [row for row in self.decisions if row.kind == kind and (name is None or of(row, name))]
        return self._found(rows, kind, name, at)

    def _found(self, rows: list[Decision], asked: str, name: str | None, at: str | None) -> Found:
        if at is not None:
            rows = [row for row in rows if holds(row, at)]
        return Found(rows, self, asked, name)

    def __repr__(self) -> str:
        kinds = [row.kind for row in self.decisions]
        return (
            f"<report of {self.model.name} on {self.chip.name}: {self.before.launches} -> "
            f"{self.after.launches} launches, fired {kinds.count('fired')}, held {kinds.count('held')}, "
            f"refused {kinds.count('refused')}, near {kinds.count('near_miss')}>"
        )

    __str__ = __repr__
