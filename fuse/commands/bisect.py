"""`fuse bisect`: the first step, and in it the first firing, that changes what a model computes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from fuse.commands import inputs
from fuse.commands.evaluations import evaluation
from fuse.commands.optimize import source
from fuse.commands.output import progress, say
from fuse.types import FuseError

if TYPE_CHECKING:
    from fuse import Optimized
    from fuse.bisecting import Bisected
    from fuse.report import Decision


class Request(NamedTuple):
    """What the command line asked for."""

    model: Path | None
    example: str | None
    chip: str | None
    evaluation: str
    command: str | None
    tolerance: float | None
    held: Sequence[str]
    dims: Sequence[str]
    seed: int


def run(request: Request) -> int:
    """The exit code: 1 where a step changes values."""
    path = source(request.model, request.example)
    sizes = inputs.dims(request.dims)
    if request.chip is None:
        raise FuseError("no chip: give --chip NAME; `fuse chips` lists them")
    import chips
    import fuse
    from fuse.binding import bind

    shim = chips.load(request.chip)
    graph = fuse.load(path)
    lifted = bind(graph, sizes) if sizes else graph
    said: list[str] = []
    apart = evaluation(request.evaluation, request.command, lifted, request.seed, request.tolerance)

    def differs(optimized: Optimized) -> bool:
        fault = apart(optimized)
        said.extend([fault] if fault else [])
        return bool(fault)

    with progress(f"{path.name} on {shim.name}") as advance:
        found = fuse.bisect(
            graph, shim, differs, held=tuple(request.held), dims=sizes or None, progress=advance
        )
    by = request.command or request.evaluation
    steps = len(found.after.steps)
    evaluations = f"{len(found.tried)} evaluation{'s' if len(found.tried) > 1 else ''}"
    if found.decision is None:
        say(f"{path.name} on {shim.name}: no step of {steps} changes its values   ({by}, {evaluations})\n")
        return 0
    number = found.after.steps.index(found.step) + 1
    lines = [
        f"{path.name} on {shim.name}: {found.step}, step {number} of {steps}, "
        "is the first that changes values",
        *_place(found.decision),
        f"  values    {said[-1]}   ({by}, {evaluations})",
        *(f"  alone     {line}" for line in _alone(found, request.seed)),
        f"  try       fuse optimize {_subject(request)} --chip {request.chip} --hold {found.step}",
    ]
    say("".join(f"{line}\n" for line in lines))
    return 1


def _subject(request: Request) -> str:
    """The model as the command line names it."""
    return f"--example {request.example}" if request.example else quote(str(request.model))


def _place(row: Decision) -> list[str]:
    return [
        f"  firing    {row.builds} {row.root}   [{row.id}]",
        f"  of        {', '.join(row.names or row.ops)}",
    ]


def _alone(found: Bisected, seed: int) -> list[str]:
    """Each firing of the step on random operands of its own types, against its class's definition."""
    import reference

    rows = [row for row in found.after.report.decisions if row.kind == "fired" and row.rule == found.step]
    said = []
    for row in rows:
        try:
            results = reference.check_each(found.after, seed, only=[row.root])
        except reference.Mismatch as error:
            said.append(str(error))
        else:
            said += [f"{each.builds} {each.op} was not run: {each.reason}" for each in results if each.reason]
    if not said:
        return [f"every firing of {found.step} agrees with the definition of its class"]
    return said
