"""The matcher: patterns compiled to functions, run strictly or with a budget of one fault.

A strict run decides; a run with a budget explains, and is the same code. Where it meets one thing
that is not as the pattern wants (an operator, an attribute, a constant, an operand, an identity, an
order), it writes that down as a `Fault` and goes on as if it were right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fuse.attributes import DATA_OPERANDS, attribute
from fuse.ir import Graph, Op
from fuse.pattern import (
    COMMUTATIVE,
    LAST,
    Alternatives,
    Anything,
    Constant,
    Form,
    Hole,
    Node,
    Pattern,
    Runtime,
    Star,
    Times,
)
from fuse.plausible import constant_like, substitutes
from fuse.types import Expr

Matcher = Callable[["Match", str], bool]


class Fault(NamedTuple):
    """The one thing that is not as the pattern wants; `at` is a value path."""

    code: str
    at: str
    want: str
    got: str
    path: str = ""


class Taken(NamedTuple):
    """A step of a star, with what it bound and the value it stood at."""

    star: str
    step: str
    value: str
    bound: dict[str, Any]


class Match:
    """A match under way, and the result: what is bound, the ops that are parts, the steps taken."""

    __slots__ = ("at", "bound", "budget", "fault", "graph", "hole", "loose", "ops", "root", "steps")

    def __init__(self, graph: Graph, budget: int = 0) -> None:
        self.graph, self.budget = graph, budget
        self.bound: dict[str, Any] = {}
        self.ops: list[Op] = []
        self.steps: list[Taken] = []
        self.loose = 0
        self.fault: Fault | None = None
        self.hole = ""
        self.at = ""
        self.root = ""

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
        return len(self.ops), len(self.steps), self.bound, self.loose, self.budget, self.fault, self.hole

    def restore(self, mark: tuple[Any, ...]) -> None:
        del self.ops[mark[0] :]
        del self.steps[mark[1] :]
        _, _, self.bound, self.loose, self.budget, self.fault, self.hole = mark

    def spend(self, code: str, at: str, want: str, got: str, path: str) -> bool:
        """Go on over a fault if the budget allows; the same fault met again costs nothing.

        An attribute that is wrong alike in two places is one fault: exporters write it once.
        """
        held = self.fault
        if held is not None and (
            held[:2] == (code, at) or (code == "attribute" and (held[0], *held[2:4]) == (code, want, got))
        ):
            return True
        if self.budget < 1:
            return False
        self.budget -= 1
        self.fault = Fault(code, at, want, got, path)
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
    best: tuple[int, tuple[Any, ...]] | None = None
    for attempt in attempts:
        if attempt(m, value):
            if m.fault is mark[5]:
                return True
            if best is None or len(m.ops) > best[0]:
                best = (len(m.ops), (m.ops[mark[0] :], m.steps[mark[1] :], *m.save()[2:]))
        m.restore(mark)
    if best is None:
        return False
    ops, steps, *rest = best[1]
    m.ops += ops
    m.steps += steps
    m.bound, m.loose, m.budget, m.fault, m.hole = rest
    return True


def compile_pattern(pattern: Pattern, path: str = "") -> Matcher:
    """The function that matches a value against a pattern."""
    return _COMPILERS[type(pattern)](pattern, path)


def _anything(pattern: Anything, path: str) -> Matcher:
    name = pattern.name

    def match(m: Match, value: str) -> bool:
        held = m.bound.get(name)
        if held is None:
            if not value:
                return False
            m.bound = {**m.bound, name: value}
            return True
        return held == value or m.spend("same_value", m.at, held, value, path)

    return match


def _hole(pattern: Hole, path: str) -> Matcher:
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


def _constant(pattern: Constant, path: str) -> Matcher:
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
            over = value in graph.base.overridable
            got = (
                "a graph input with a default, which can be overridden"
                if over
                else "a value that changes at run time"
            )
            if not m.spend("operand", value, described, got, path):
                return False
        elif scalar:
            number = graph.scalar(value)
            if number is None:
                dims = graph.dims(value)
                if not m.budget or dims is None or len([d for d in dims if d != 1]) > 1:
                    return False
                if not m.spend("operand", value, described, f"a constant of {graph.type(value)}", path):
                    return False
            else:
                wrong = (want_value is not None and not close(float(number), want_value, within)) or (
                    test is not None and not test(float(number))
                )
                if wrong and not m.spend("operand", value, described, shown(number), path):
                    return False
                held = m.bound.get(name) if name else None
                if held is not None and held != value:
                    other = graph.scalar(held)
                    if other != number and not m.spend(
                        "operand", value, f"{label}{shown(other)}", shown(number), path
                    ):
                        return False
                    return True
        if name:
            m.bound = {**m.bound, name: value}
        return True

    return match


def _runtime(pattern: Runtime, path: str) -> Matcher:
    name = pattern.name

    def match(m: Match, value: str) -> bool:
        dims = m.graph.dims(value)
        if not value or m.graph.is_constant(value) or dims is None or any(dim != 1 for dim in dims):
            return False
        m.bound = {**m.bound, name: value}
        return True

    return match


def _alternatives(pattern: Alternatives, path: str) -> Matcher:
    options = [compile_pattern(option, path) for option in pattern.options]
    return lambda m, value: best_of(m, value, options)


def _show_attribute(name: str, value: Any) -> str:
    return f"{name}={value!r}" if isinstance(value, str) and value != "all" else f"{name}={value}"


def _node(pattern: Node, path: str, order: str = "both") -> Matcher:
    kinds, count, output = frozenset(pattern.kinds), len(pattern.args), pattern.output
    args = [compile_pattern(arg, f"{path}.{i}" if path else str(i)) for i, arg in enumerate(pattern.args)]
    either = count == 2 and bool(kinds & COMMUTATIVE)
    label = " or ".join(pattern.kinds)
    orders: Sequence[tuple[int, ...]] = (tuple(range(count)),)
    if either:
        orders = {"both": ((0, 1), (1, 0)), "first": ((0, 1),), "second": ((1, 0),)}[order]

    def operands(positions: tuple[int, ...]) -> Matcher:
        def match(m: Match, value: str) -> bool:
            op = m.ops[-1]
            before = len(m.ops)
            inputs = op.inputs
            for matcher, position in zip(args, positions, strict=True):
                m.at = op.outputs[0]
                if not matcher(m, inputs[position]):
                    del m.ops[before:]
                    return False
            return True

        return match

    in_order = [operands(positions) for positions in orders]
    swapped = operands((1, 0)) if count == 2 and not either else None

    def match(m: Match, value: str) -> bool:
        op = m.graph.producer(value)
        if op is None:
            return False
        mark = m.save()
        if op.kind not in kinds:
            if not m.budget or op.parts or not substitutes(op, kinds, count):
                return False
            if not m.spend("op", op.outputs[0], label, op.kind, path):
                return False
        if len(op.outputs) <= output or op.outputs[output] != value:
            m.restore(mark)
            return False
        for name, want in pattern.attrs:
            got = attribute(m.graph, op, name)
            fine = got == -1 if want is LAST else got in want if isinstance(want, frozenset) else got == want
            if not fine and not m.spend(
                "attribute", op.outputs[0], _show_attribute(name, want), _show_attribute(name, got), path
            ):
                m.restore(mark)
                return False
        have = len(op.inputs)
        if have < count or (have > count and not op.parts and op.kind not in DATA_OPERANDS):
            m.restore(mark)
            return False
        m.ops.append(op)
        if best_of(m, value, in_order):
            return True
        if swapped is not None and m.budget and not (kinds & COMMUTATIVE):
            want = f"{label} of its operands in the other order"
            if m.spend("operand", op.outputs[0], want, "the operands swapped", path):
                m.budget, kept = 0, m.budget
                fine = swapped(m, value)
                m.budget = kept
                if fine:
                    return True
        m.restore(mark)
        return False

    return match


def _times(pattern: Times, path: str) -> Matcher:
    from fuse.product import product_matcher

    factors = [
        (f, compile_pattern(f, f"{path}.{i}" if path else str(i))) for i, f in enumerate(pattern.factors)
    ]
    return product_matcher(factors, pattern.constant, path)


def _form(pattern: Form, path: str) -> Matcher:
    function, name, where = pattern.form, pattern.name, pattern.where
    kinds = getattr(function, "kinds", None)
    inner = [
        (field, compile_pattern(p, f"{path}.{i}" if path else str(i)))
        for i, (field, p) in enumerate(pattern.operands)
    ]

    def match(m: Match, value: str) -> bool:
        op = m.graph.producer(value)
        if op is None or (kinds is not None and op.kind not in kinds):
            return False
        found = function(m.graph, op)
        if found is None or found.out != value or (where is not None and not where(found)):
            return False
        mark = m.save()
        m.ops.append(op)
        m.bound = {**m.bound, name: found}
        for field, matcher in inner:
            m.at = op.outputs[0]
            if not matcher(m, getattr(found, field)):
                m.restore(mark)
                return False
        return True

    return match


def keeps_size(graph: Graph, a: str, b: str) -> bool:
    """Whether two values surely or possibly have one number of elements, axis by axis where ranks agree."""
    first, second = graph.dims(a), graph.dims(b)
    if first is None or second is None:
        return True
    if len(first) == len(second):
        return all(x == y or _open(x) or _open(y) for x, y in zip(first, second, strict=True))
    return True


def _open(dim: object) -> bool:
    """A dim that may turn out equal to another: unknown, or the outcome of a broadcast."""
    return isinstance(dim, Expr) and any(s.startswith(("?", "broadcast(")) for s in dim.symbols)


def _star(pattern: Star, path: str) -> Matcher:
    inner = compile_pattern(pattern.inner, path)
    by_kind: dict[str, list[tuple[str, Matcher]]] = {}
    for step in pattern.steps:
        for option in step.pattern.options if isinstance(step.pattern, Alternatives) else (step.pattern,):
            for matcher in _step_matchers(option, path):
                for kind in option.kinds if isinstance(option, Node) else _form_kinds(option):
                    by_kind.setdefault(kind, []).append((step.name, matcher))
    name, resizes, reach = pattern.name, pattern.resizes, pattern.reach

    def walk(depth: int) -> Matcher:
        def match(m: Match, value: str) -> bool:
            op = m.graph.producer(value) if depth < reach else None
            options: list[Matcher] = [inner]
            if op is not None:
                options += [take(depth, key, matcher) for key, matcher in by_kind.get(op.kind, ())]
            return best_of(m, value, options)

        return match

    def take(depth: int, key: str, matcher: Matcher) -> Matcher:
        def match(m: Match, value: str) -> bool:
            before, ops = m.bound, len(m.ops)
            m.hole = ""
            if not matcher(m, value) or (key not in resizes and not keeps_size(m.graph, value, m.hole)):
                return False
            m.loose += len(m.ops) - ops
            bound = {k: v for k, v in m.bound.items() if k not in before}
            m.steps.append(Taken(name, key, value, bound))
            m.bound = before
            return walk(depth + 1)(m, m.hole)

        return match

    return walk(0)


def _form_kinds(option: Pattern) -> frozenset[str]:
    return frozenset(getattr(option.form, "kinds", ())) if isinstance(option, Form) else frozenset()


def _step_matchers(option: Pattern, path: str) -> list[Matcher]:
    """A step whose commutative root leaves the other operand open is tried both ways."""
    if isinstance(option, Node) and len(option.args) == 2 and frozenset(option.kinds) & COMMUTATIVE:
        return [_node(option, path, "first"), _node(option, path, "second")]
    return [compile_pattern(option, path)]


_COMPILERS: dict[type, Callable[[Any, str], Matcher]] = {
    Anything: _anything,
    Hole: _hole,
    Constant: _constant,
    Runtime: _runtime,
    Alternatives: _alternatives,
    Node: _node,
    Times: _times,
    Form: _form,
    Star: _star,
}
