"""The public report of what the engine wrote down while it worked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2s
from pathlib import PurePosixPath, PureWindowsPath

from fuse.engine.collecting import no_collecting
from fuse.engine.record import Record
from fuse.ir import Graph, Model, Op
from fuse.report.absorbed import absorbers
from fuse.report.place import Places
from fuse.report.query import Found, Group, counts, grouped, known_names, nearest
from fuse.report.rows import (
    Check,
    ChipId,
    Count,
    Coverage,
    Decision,
    Fired,
    Held,
    Limit,
    Miss,
    ModelId,
    NearMiss,
    Refused,
    Report,
    Saves,
    Totals,
)
from fuse.report.saves import FREE_VIEWS, Ledger
from fuse.report.totals import kinds, totals
from fuse.version import VERSION

__all__ = [
    "FREE_VIEWS",
    "Check",
    "ChipId",
    "Count",
    "Coverage",
    "Decision",
    "Fired",
    "Found",
    "Group",
    "Held",
    "Limit",
    "Miss",
    "ModelId",
    "NearMiss",
    "Refused",
    "Report",
    "Saves",
    "Totals",
    "build",
    "counts",
    "grouped",
    "known_names",
    "nearest",
]


@no_collecting()
def build(
    records: Iterable[Record],
    before: Graph,
    after: Graph,
    *,
    chip_name: str,
    chip_sha256: str,
    held: Sequence[str],
    steps: Sequence[str],
    made_by: str = f"fuse {VERSION}",
    marks: Mapping[str, Sequence[str]] | None = None,
) -> Report:
    """The report of one compile.

    before, after: the lifted graph and the rewritten one. held: rules held by name. steps: every
    step, in order. marks: rule -> the operators or classes one of which every place of it has; it
    lets the report say that a model has none of them.
    """
    rows = sorted(records, key=lambda record: record.number)
    decisions = _decisions(rows, before)
    present = {*kinds(before), *kinds(after), *(row.builds for row in rows)}
    absent = tuple(rule for rule, wanted in (marks or {}).items() if not present.intersection(wanted))
    return Report(
        made_by=made_by,
        model=_model(before.base.model),
        chip=ChipId(name=chip_name, sha256=chip_sha256),
        held=tuple(sorted(held)),
        steps=tuple(steps),
        absent=absent,
        before=totals(before),
        after=totals(after),
        decisions=decisions,
    )


def _model(model: Model) -> ModelId:
    return ModelId(
        name=PureWindowsPath(PurePosixPath(model.name).name).name,
        sha256=model.sha256,
        opset=model.opsets.get("", 0),
        ops=model.nodes,
        lifting=tuple(Count(name=name, count=number) for name, number in sorted(model.lifting.items())),
        conflicts=model.conflicts,
    )


def _output_names(graph: Graph) -> dict[str, str]:
    """Node name of each named op by the path of its first output, bodies included."""
    return {op.path: op.name for one in (graph, *graph.bodies()) for op in one.base.lifted if op.name}


def _decisions(rows: Sequence[Record], before: Graph) -> tuple[Decision, ...]:
    """The rows of the report; equal parts of them are one object."""
    paths = [tuple(map(path_of, row.ops)) for row in rows]
    ids = _ids(rows, paths)
    above = absorbers(rows)
    names = _output_names(before)
    ledger = Ledger(before, rows)
    shared = _Shared()
    places = Places()
    decisions = []
    for n, row in enumerate(rows):
        named = tuple([op.name for op in row.ops if op.name])
        taken_by = above[n]
        decisions.append(
            Decision(
                id=ids[n],
                n=row.number,
                rule=row.rule,
                builds=row.builds,
                root=row.root,
                ops=paths[n],
                kinds=shared.kinds(tuple([op.kind for op in row.ops])),
                names=named,
                group=places.group(named or paths[n], names.get(row.root, row.root)),
                saves=ledger.of(row),
                realizes=row.realizes,
                kernel=row.kernel,
                evidence=row.evidence,
                note=row.note,
                outcome=shared.outcome(row, None if taken_by is None else ids[taken_by]),
            )
        )
    return tuple(decisions)


class _Shared:
    """Rows that repeat over the layers of a model, each made once."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._refused: dict[tuple[object, ...], Refused] = {}

    def kinds(self, kinds: tuple[str, ...]) -> tuple[str, ...]:
        return self._kinds.setdefault(kinds, kinds)

    def outcome(self, row: Record, above: str | None) -> Fired | Held | Refused | NearMiss:
        if row.outcome == "fired":
            return Fired(slot=(row.graph, -1 if row.op is None else row.op.slot), absorbed_by=above)
        if row.outcome == "held":
            return Held(fires=row.fires)
        if row.outcome == "refused":
            key = (row.limits, above)
            if key not in self._refused:
                limits = tuple(Limit(**limit._asdict()) for limit in row.limits)
                self._refused[key] = Refused(limits=limits, absorbed_by=above)
            return self._refused[key]
        if row.miss is None:
            raise ValueError(f"a near miss of {row.rule} at {row.root} has no cause")
        return NearMiss(miss=Miss(**row.miss._asdict()))


def path_of(op: Op) -> str:
    """The path of an op's first output that has a name."""
    return op.outputs[0] or next(filter(None, op.outputs), "")


def _ids(rows: Sequence[Record], paths: Sequence[tuple[str, ...]]) -> list[str]:
    """blake2s-8 of rule, root and sorted op paths; of a near miss, rule and root only.

    The same place met again by the same rule (a stone dissolved and found once more) adds which
    time it is.
    """
    seen: dict[str, int] = {}
    ids = []
    for row, ops in zip(rows, paths, strict=True):
        parts = (row.rule, row.root) if row.outcome == "near_miss" else (row.rule, row.root, *sorted(ops))
        text = "\0".join(parts)
        time = seen[text] = seen.get(text, 0) + 1
        if time > 1:
            text += f"\0\0{time}"
        ids.append(blake2s(text.encode(), digest_size=8).hexdigest())
    return ids
