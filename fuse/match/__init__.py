"""The matcher: patterns compiled to functions, run strictly or with a budget of one fault.

A strict run decides; a run with a budget explains, and is the same code. Where it meets one thing
that is not as the pattern wants (an operator, an attribute, a constant, an operand, an identity, an
order), it writes that down as a `Fault` and goes on as if it were right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from fuse.ir import Graph, Op
from fuse.match.plausible import constant_like, run_time, truer
from fuse.pattern import (
    Alternatives,
    Anything,
    Constant,
    Hole,
    Pattern,
    Runtime,
    children,
)

Matcher = Callable[["Match", str], bool]
#: How many nodes one run that explains may look at: what is almost the pattern is found long before.
EFFORT = 400


class Fault(NamedTuple):
    """The one thing that is not as the pattern wants; `at` is a value path.

    missing: an operator is not there at all, and nothing that stands is wrong.
    """

    code: str
    at: str
    want: str
    got: str
    path: str = ""
    missing: bool = False


class Taken(NamedTuple):
    """A step of a star, with what it bound and the value it stood at."""

    star: str
    step: str
    value: str
    bound: dict[str, Any]


class Match:
    """A match under way, and the result: what is bound, the ops that are parts, the steps taken.

    budget: faults that may still be met. explains: it began with a budget. alike: only an attribute may
    be wrong, and that in several places alike. agreed: how often a named
    value was met again, or a number was the wanted one, while explaining. stood: where a pattern that
    occurs in several places has held.
    """

    __slots__ = (
        "agreed",
        "alike",
        "at",
        "bound",
        "budget",
        "effort",
        "explains",
        "fault",
        "graph",
        "hole",
        "loose",
        "ops",
        "root",
        "steps",
        "stood",
    )

    def __init__(self, graph: Graph, budget: int = 0, alike: bool = False) -> None:
        self.graph, self.budget, self.explains, self.alike = graph, budget, budget > 0, alike
        self.bound: dict[str, Any] = {}
        self.ops: list[Op] = []
        self.steps: list[Taken] = []
        self.loose = self.agreed = self.effort = 0
        self.fault: Fault | None = None
        self.stood: dict[int, str] = {}
        self.hole = self.at = self.root = ""

    def __getitem__(self, name: str) -> Any:
        return self.bound[name]

    def get(self, name: str, default: Any = "") -> Any:
        return self.bound.get(name, default)

    def number(self, name: str) -> Any:
        """The number of a bound constant of one element."""
        return self.graph.scalar(self.bound[name])

    def taken(self, star: str) -> list[Taken]:
        return [step for step in self.steps if step.star == star]

    def save(self) -> tuple[Any, ...]:
        return (
            len(self.ops),
            len(self.steps),
            self.bound,
            self.loose,
            self.budget,
            self.fault,
            self.hole,
            self.agreed,
            self.stood,
        )

    def restore(self, mark: tuple[Any, ...]) -> None:
        del self.ops[mark[0] :]
        del self.steps[mark[1] :]
        _, _, self.bound, self.loose, self.budget, self.fault, self.hole, self.agreed, self.stood = mark

    def spend(self, code: str, at: str, want: str, got: str, path: str, missing: bool = False) -> bool:
        """Go on over a fault if the budget allows; the same fault met again costs nothing.

        An attribute that is wrong alike in two places is one fault: exporters write it once.
        """
        held = self.fault
        if held is not None and (
            held[:2] == (code, at) or (code == "attribute" and (held[0], *held[2:4]) == (code, want, got))
        ):
            return True
        if self.budget < 1 or (self.alike and code != "attribute"):
            return False
        self.budget -= 1
        self.fault = Fault(code, at, want, got, path, missing)
        return True

    def fixed(self) -> int:
        """How many nodes of the pattern the match holds, repeated steps not counted."""
        return len({op.slot for op in self.ops}) - self.loose


def best_of(m: Match, value: str, attempts: Iterable[Matcher]) -> bool:
    """The first attempt that holds; with a budget, the one without a new fault, else the fullest."""
    mark = m.save()
    if not m.budget:
        for attempt in attempts:
            if attempt(m, value):
                return True
            m.restore(mark)
        return False
    best: tuple[list[Op], list[Taken], tuple[Any, ...]] | None = None
    fullest: tuple[int, int, int] = (0, 0, 0)
    for attempt in attempts:
        if attempt(m, value):
            if m.fault is mark[5]:
                return True
            full = (len(m.ops), m.agreed, -len(m.steps))
            if best is None or full > fullest or (full == fullest and _truer(m, best[2][5])):
                best, fullest = (m.ops[mark[0] :], m.steps[mark[1] :], m.save()), full
        m.restore(mark)
    if best is None:
        return False
    m.restore((*mark[:2], *best[2][2:]))
    m.ops += best[0]
    m.steps += best[1]
    return True


def _truer(m: Match, held: Fault | None) -> bool:
    """Whether the fault just met tells better than another which of two values is meant."""
    new = m.fault
    if new is None or held is None or new.code != "same_value" or held.code != "same_value":
        return False
    if (new.want, new.got) != (held.got, held.want):
        return False
    if m.hole == new.want:  # the way goes on below the later of the two
        made = m.graph.base.producer
        return made.get(new.want, -1) > made.get(held.want, -1)
    return truer(m.graph, new.want, held.want)


def compile_pattern(pattern: Pattern, path: str = "", shared: frozenset[int] | None = None) -> Matcher:
    """The function that matches a value against a pattern. shared: patterns that occur more than once."""
    from fuse.match import nodes, product, stars

    if shared is None:
        shared = _shared(pattern)
    tables = (_COMPILERS, nodes.COMPILERS, stars.COMPILERS, product.COMPILERS)
    make = next(table[type(pattern)] for table in tables if type(pattern) in table)
    return make(pattern, path, shared)


def _shared(pattern: Pattern) -> frozenset[int]:
    """The composite patterns that occur more than once in one way of matching or another, by identity."""
    seen: dict[int, int] = {}
    todo = [pattern]
    while todo:
        at = todo.pop()
        inner = children(at)
        seen[id(at)] = seen.get(id(at), 0) + 1
        if seen[id(at)] == 1:
            todo += inner
    return frozenset(key for key, times in seen.items() if times > 1)


def below(path: str, index: int) -> str:
    """The path of an operand."""
    return f"{path}.{index}" if path else str(index)


def _anything(pattern: Anything, path: str, shared: frozenset[int]) -> Matcher:
    name = pattern.name

    def match(m: Match, value: str) -> bool:
        held = m.bound.get(name)
        if held is None:
            if not value:
                return False
            m.bound = {**m.bound, name: value}
            return True
        if held == value:
            m.agreed += m.explains
            return True
        return m.spend("same_value", m.at, held, value, path)

    return match


def _hole(pattern: Hole, path: str, shared: frozenset[int]) -> Matcher:
    def match(m: Match, value: str) -> bool:
        if m.hole and m.hole != value:
            return m.spend("same_value", m.at, m.hole, value, path)
        m.hole = value
        return True

    return match


def close(a: float, b: float, within: float = 1e-3) -> bool:
    """Equal within a relative distance (infinities equal themselves)."""
    return a == b or (math.isfinite(a) and math.isfinite(b) and abs(a - b) <= within * max(abs(a), abs(b)))


def shown(number: Any) -> str:
    """A number as a reason shows it."""
    return f"{number:.7g}" if isinstance(number, float) else str(number)


def _constant(pattern: Constant, path: str, shared: frozenset[int]) -> Matcher:
    name, want_value, scalar, within = pattern.name, pattern.value, pattern.scalar, pattern.within
    test, want = pattern.test, pattern.want
    label = f"{name}: " if name else ""
    described = want or (
        shown(want_value) if want_value is not None else f"{label}a constant" + " of one value" * scalar
    )

    def match(m: Match, value: str) -> bool:
        graph = m.graph
        if not value:
            return False
        if not graph.is_constant(value):
            if not m.budget or not constant_like(graph, value, scalar):
                return False
            if not m.spend("operand", value, described, run_time(graph, value), path):
                return False
        elif scalar:
            number = graph.scalar(value)
            if number is None:
                dims = graph.dims(value)
                if not m.budget or dims is None or len([d for d in dims if d != 1]) > 1:
                    return False
                if not m.spend("operand", value, described, f"a constant of {graph.type(value)}", path):
                    return False
            elif not numbered(m, value, number):
                return False
            elif name and name in m.bound:
                return True
        if name:
            m.bound = {**m.bound, name: value}
        return True

    def numbered(m: Match, value: str, number: Any) -> bool:
        """Whether a number is the wanted one, and the one met before under the same name."""
        wrong = (want_value is not None and not close(float(number), want_value, within)) or (
            test is not None and not test(float(number))
        )
        if wrong and not m.spend("operand", value, described, shown(number), path):
            return False
        if want_value is not None and not wrong:
            m.agreed += m.explains
        held = m.bound.get(name) if name else None
        if held is None or held == value:
            return True
        other = m.graph.scalar(held)
        return other == number or m.spend("operand", value, f"{label}{shown(other)}", shown(number), path)

    return match


def _runtime(pattern: Runtime, path: str, shared: frozenset[int]) -> Matcher:
    name, heads = pattern.name, pattern.heads

    def match(m: Match, value: str) -> bool:
        dims = m.graph.dims(value)
        if not value or dims is None or any(dim != 1 for dim in dims[-2:]):
            return False
        one = all(dim == 1 for dim in dims)
        if not (one or heads) or (one and m.graph.is_constant(value)):
            return False
        m.bound = {**m.bound, name: value}
        return True

    return match


def _alternatives(pattern: Alternatives, path: str, shared: frozenset[int]) -> Matcher:
    options = [compile_pattern(option, path, shared) for option in pattern.options]
    return lambda m, value: best_of(m, value, options)


_COMPILERS: dict[type, Callable[[Any, str, frozenset[int]], Matcher]] = {
    Anything: _anything,
    Hole: _hole,
    Constant: _constant,
    Runtime: _runtime,
    Alternatives: _alternatives,
}
