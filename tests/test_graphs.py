"""Small graphs in, the rewritten graph and every decision out, held to golden files for each chip.

`pytest tests/test_graphs.py --bless` writes the files; look at the difference before committing it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import graph_files
import pytest
from standing import standing

import chips
import fuse
import reference
from fuse.ir import unfuse
from fuse.report import Decision
from fuse.text import text

CHIPS = ("any", "none", "ort-cpu", "m3")


@cache
def optimized(name: str, chip: str) -> fuse.Optimized:
    return fuse.optimize(graph_files.graph(name), shim=chips.load(chip))


def told(row: Decision) -> str:
    """A decision on a line: outcome, class, place, what it is made of; and why it did not fire."""
    line = f"{row.kind:<9}  {row.builds}  {row.root} <- {' '.join(row.kinds)}"
    if row.builds != row.rule:
        line += f"  by {row.rule}"
    if row.kernel:
        line += f"  on {row.kernel}"
    return "\n".join([line, *(f"  {one.code}: want {one.want}, got {one.got}" for one in row.reasons)])


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", graph_files.NAMES)
def test_golden(name: str, chip: str, golden: Callable[[str, str], None]) -> None:
    found = optimized(name, chip)
    decisions = [told(row) for row in found.report.decisions]
    parts = [f"# {graph_files.idea(name)}", "", text(found.graph), "", *(decisions or ["no decision"])]
    golden(f"{name}.{chip}.txt", "\n".join(parts) + "\n")


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", graph_files.NAMES)
def test_values(name: str, chip: str) -> None:
    """By parts bit for bit, by definition within the tolerance of the type."""
    found = optimized(name, chip)
    assert reference.check(found.before, found.graph).bit_equal


@pytest.mark.parametrize("name", graph_files.NAMES)
def test_unfused(name: str) -> None:
    found = optimized(name, "any")
    assert standing(unfuse(found.graph)) == standing(found.before)


def test_every_golden_file_has_a_graph(request: pytest.FixtureRequest) -> None:
    folder = request.path.parent / "golden"
    known = {f"{name}.{chip}.txt" for name in graph_files.NAMES for chip in CHIPS}
    found = {path.name for path in folder.glob("*.txt") if not path.name.startswith("report_")}
    assert found == known


def test_every_idea_is_told_once() -> None:
    ideas = [graph_files.idea(name) for name in graph_files.NAMES]
    assert len(set(ideas)) == len(ideas)
