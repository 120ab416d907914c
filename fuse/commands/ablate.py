"""`fuse ablate`: what each step is worth, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fuse.commands import inputs
from fuse.commands.optimize import source
from fuse.commands.output import progress, say
from fuse.types import FuseError

if TYPE_CHECKING:
    from fuse.ablation import Ablation, Lost


def run(model: Path | None, example: str | None, chip: str | None, dims: Sequence[str]) -> int:
    """Hold each step alone; always 0."""
    path = source(model, example)
    sizes = inputs.dims(dims)
    if chip is None:
        raise FuseError("no chip: give --chip NAME; `fuse chips` lists them")
    import chips
    import fuse

    shim = chips.load(chip)
    graph = fuse.load(path)
    with progress(f"{path.name} on {shim.name}") as advance:
        found = fuse.ablate(graph, shim, dims=sizes or None, progress=advance)
    say(table(found))
    return 0


def table(found: Ablation) -> str:
    """A row a step: its firings, and what is lost where it is held."""
    from reports.text import align
    from reports.words import clean, count

    report = found.report
    head = (
        f"{clean(report.model.name)} on {clean(report.chip.name)}   {count(report.before.ops, 'op')}   "
        f"launches {report.before.launches:,} -> {report.after.launches:,}   each step held alone:"
    )
    if not found.rows:
        return f"{head}\nno step fires\n"
    titles = ("step", "fired", "launches lost", "bytes lost", "firings lost later, and those instead")
    lines = align([titles, *map(_cells, found.rows)], "<>>><")
    if any(isinstance(row.bytes, str) for row in found.rows):
        lines += ["", "bytes depend on symbolic dims: bind them with --dim"]
    return "".join(f"{line.rstrip()}\n" for line in (head, "", *lines))


def _cells(row: Lost) -> tuple[str, ...]:
    from reports.words import size

    later = [f"{rule} -{number}" for rule, number in row.later.items()]
    later += [f"{rule} +{number}" for rule, number in row.instead.items()]
    bytes_lost = "symbolic" if isinstance(row.bytes, str) else size(row.bytes) if row.bytes else "-"
    return (
        row.step,
        f"{row.fired:,}" if row.fired else "-",
        f"{row.launches:,}" if row.launches else "-",
        bytes_lost,
        ", ".join(later) or "-",
    )
