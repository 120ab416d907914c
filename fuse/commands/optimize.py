"""`fuse optimize`: compile, check, write, print the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from fuse.commands import inputs
from fuse.commands.check import checked
from fuse.commands.examples import find
from fuse.commands.output import check_target, complain, progress, say, width, written
from fuse.types import FuseError

if TYPE_CHECKING:
    from fuse.engine.compiler import Optimized
    from fuse.report import Report


class Request(NamedTuple):
    """What the command line asked for."""

    model: Path | None
    example: str | None
    chip: str | None
    out: Path | None
    report: Path | None
    held: Sequence[str]
    dims: Sequence[str]
    check: bool
    seed: int


def run(request: Request) -> int:
    """The exit code: 1 where values were checked and differ, and then nothing is written."""
    from reports import View, render

    model = source(request.model, request.example)
    for target, other in ((request.out, request.report), (request.report, request.out)):
        if target is not None:
            weights = None if other is None else other.with_name(f"{other.name}.data")
            check_target(target, (model, other, weights))
    optimized = compiled(model, request.chip, request.held, request.dims)
    report, fault = optimized.report, ""
    if request.check:
        check, fault = checked(optimized, request.seed)
        report = report.model_copy(update={"check": check})
    if not fault:
        _write(optimized, report, request)
    say(render(report, "text", View(width=width(), more=_more(request, model))))
    if fault:
        complain(f"{fault} (seed {request.seed}); nothing written")
    return 1 if fault else 0


def _write(optimized: Optimized, report: Report, request: Request) -> None:
    """The model and the report: both, or neither where one finds no room."""
    text = "" if request.report is None else report.model_dump_json() + "\n"
    with written(request.report, text):
        if request.out is not None:
            import fuse

            fuse.save(optimized, request.out)


def source(model: Path | None, example: str | None) -> Path:
    """The model file to read."""
    if example is not None:
        if model is not None:
            raise FuseError(f"both {model} and --example {example}: want one of them")
        return find(example)
    if model is None:
        raise FuseError("no model: give a file, or --example llama")
    return model


def compiled(model: Path, chip: str | None, held: Sequence[str], dims: Sequence[str]) -> Optimized:
    """Load a model and optimize it for a chip, with a bar on standard error."""
    sizes = inputs.dims(dims)
    if chip is None:
        raise FuseError("no chip: give --chip NAME; `fuse chips` lists them")
    import chips
    import fuse

    shim = chips.load(chip)
    graph = fuse.load(model)
    with progress(f"{model.name} on {shim.name}") as advance:
        return fuse.optimize(graph, shim=shim, held=tuple(held), dims=sizes or None, progress=advance)


def _more(request: Request, model: Path) -> tuple[str, ...]:
    """The commands that tell more of this compile."""
    if request.report is not None:
        return more_of(request.report)
    again = f"--example {request.example}" if request.example else quote(str(model))
    words = [again, f"--chip {request.chip}"]
    words += [f"--hold {name}" for name in request.held] + [f"--dim {dim}" for dim in request.dims]
    return (f"fuse why {' '.join(words)} RULE|OP|ID",)


def more_of(path: Path) -> tuple[str, ...]:
    """The commands that tell more of a report in a file."""
    name = quote(str(path))
    return (f"fuse why {name} RULE|OP|ID", f"fuse report {name} --every")
