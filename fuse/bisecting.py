"""The first step of a compile, and in it the first firing, whose result changes what a model computes.

Holding every step from one on leaves the graph as the steps before it made it (`fuse.engine.compiler`), so
the steps are searched by halves; so are the firings of the step that is found, by undoing the later
ones. What "changes" means is the caller's: a reference, a runtime, a program of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from fuse.engine.compiler import Optimized, Progress, optimize
from fuse.engine.record import Record, state
from fuse.ir import Graph
from fuse.report import Decision
from fuse.shim import Shim
from fuse.types import FuseError

#: Whether a compile computes other values than the model it came from.
Differs = Callable[[Optimized], bool]


class Tried(NamedTuple):
    """One evaluation: how many steps ran, of the last one how many firings (None: all), and whether
    the values differed."""

    steps: int
    firings: int | None
    differed: bool


class Bisected(NamedTuple):
    """What a search found.

    step: the first step whose result differs, "" where the whole compile does not. decision: its first
    firing with which the values differ; None where no step differs. before, first, after: the compile of
    the steps before it, with it up to that firing, and with all of it; each the whole compile where no
    step differs. tried: every evaluation, in order.
    """

    step: str
    decision: Decision | None
    before: Optimized
    first: Optimized
    after: Optimized
    tried: tuple[Tried, ...]


def bisect(
    graph: Graph,
    shim: Shim,
    differs: Differs,
    held: Iterable[str] = (),
    dims: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> Bisected:
    """Find the first step after which `differs` is true, and its first firing with which it is.

    differs: called with the compile of a number of first steps, and true where its values differ. It is
    called about twice as often as the number of steps that fire has binary digits. held, dims: as for
    `fuse.optimize`. progress: called before each evaluation. Raises FuseError where the values differ
    with every step held: then no fusion changes them.
    """
    held = (held,) if isinstance(held, str) else tuple(held)
    whole = optimize(graph, shim, held, dims)
    ends = [number for number, name in enumerate(whole.steps, 1) if name in whole.fired]
    prefix = partial(_prefix, graph, shim, held, dims, whole.steps)
    search = _Search(prefix, differs, progress, 2 + len(ends).bit_length())
    if not search.differs(whole, len(whole.steps), None):
        return Bisected("", None, whole, whole, whole, tuple(search.tried))
    start = prefix(0)
    if search.differs(start, 0, None):
        raise FuseError(f"{whole.before.base.model.name}: the values differ with every step held")
    number, before, after = search.step([0, *ends], start, whole)
    name = whole.steps[number - 1]
    record, first = search.firing(name, number, after)
    decision = next(row for row in after.report.decisions if row.n == record.number)
    return Bisected(name, decision, before, first, after, tuple(search.tried))


def _prefix(
    graph: Graph,
    shim: Shim,
    held: tuple[str, ...],
    dims: Mapping[str, int] | None,
    steps: tuple[str, ...],
    count: int,
) -> Optimized:
    """The compile with every step from a number on held."""
    return optimize(graph, shim, (*held, *steps[count:]), dims)


@dataclass
class _Search:
    """A search under way. prefix: the compile of a number of first steps. about: how many evaluations
    there may be."""

    prefix: Callable[[int], Optimized]
    asked: Differs
    progress: Progress | None
    about: int
    tried: list[Tried] = field(default_factory=list)

    def differs(self, optimized: Optimized, steps: int, firings: int | None) -> bool:
        done = len(self.tried)
        if self.progress is not None:
            what = f"{steps} steps" if firings is None else f"{firings} firings of step {steps}"
            self.progress(done, max(self.about, done + 1), what)
        answer = bool(self.asked(optimized))
        self.tried.append(Tried(steps, firings, answer))
        return answer

    def step(self, ends: list[int], good: Optimized, bad: Optimized) -> tuple[int, Optimized, Optimized]:
        """The first of these numbers of steps that differs, the compile of the last that does not and
        its own."""
        low, high = 0, len(ends) - 1
        while high - low > 1:
            middle = (low + high) // 2
            tried = self.prefix(ends[middle])
            if self.differs(tried, ends[middle], None):
                high, bad = middle, tried
            else:
                low, good = middle, tried
        return ends[high], good, bad

    def firing(self, step: str, number: int, optimized: Optimized) -> tuple[Record, Optimized]:
        """The first firing of a step with which the values differ, and the compile up to it."""
        firings = [row for row in optimized.records if row.outcome == "fired" and row.rule == step]
        low, high, after = 0, len(firings), optimized
        self.about = len(self.tried) + (high - 1).bit_length()
        while high - low > 1:
            middle = (low + high) // 2
            tried = without(optimized, firings[middle:])
            if self.differs(tried, number, middle):
                high, after = middle, tried
            else:
                low = middle
        return firings[high - 1], after


def without(optimized: Optimized, firings: Iterable[Record]) -> Optimized:
    """A compile with firings that nothing later was built on undone; last made, first undone."""
    graph = optimized.graph.copy()
    graphs = {one.base.prefix: one for one in (*graph.bodies(), graph)}
    last = {
        state(row.op): row.outcome
        for row in optimized.records
        if row.op is not None and row.outcome != "held"
    }
    for row in sorted(firings, key=lambda row: -row.number):
        one = graphs[row.graph]
        op = one.producer(row.root)
        todo = [op] if op is not None and row.op is not None and state(op) == state(row.op) else []
        while todo:
            back = one.dissolve(todo.pop())
            todo += [part for part in back if part.parts and last[state(part)] == "refused"]
    return replace(optimized, graph=graph)
