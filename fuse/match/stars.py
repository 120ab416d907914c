"""Matching what may stand on a way any number of times, and operators by their forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fuse.ir import Graph, Op
from fuse.match import Match, Matcher, Taken, below, best_of, compile_pattern
from fuse.match.nodes import node
from fuse.match.plausible import PASSING, substitutes, too_many
from fuse.pattern import COMMUTATIVE, Alternatives, Form, Node, Pattern, Star, root_kinds
from fuse.types import Expr, spans


def _form(pattern: Form, path: str, shared: frozenset[int]) -> Matcher:
    function, name, where = pattern.form, pattern.name, pattern.where
    kinds, almost = getattr(function, "kinds", None), getattr(function, "almost", None)
    inner = [
        (field, compile_pattern(p, below(path, i), shared)) for i, (field, p) in enumerate(pattern.operands)
    ]

    def match(m: Match, value: str) -> bool:
        op = m.graph.producer(value)
        if op is None or (kinds is not None and op.kind not in kinds):
            return op is not None and m.explains and not m.alike and one_too_many(m, value, op)
        mark = m.save()
        found = function(m.graph, op)
        if found is None and m.explains and almost is not None:
            changed = almost(m.graph, op)
            if changed is None or not m.spend(changed.code, changed.at, changed.want, changed.got, path):
                return False
            found = changed.form
        if found is None or found.out != value or (where is not None and not where(found)):
            m.restore(mark)
            return False
        m.ops.append(op)
        m.bound = {**m.bound, name: found}
        for field, matcher in inner:
            m.at = op.outputs[0]
            if not matcher(m, getattr(found, field)):
                m.restore(mark)
                return False
        return True

    def one_too_many(m: Match, value: str, op: Op) -> bool:
        """An operator too many on the operand, or casts."""
        passed = too_many(m.graph, op) if path and not op.parts else []
        below_it = m.graph.producer(passed[-1].inputs[0]) if passed else None
        if below_it is None or kinds is None or below_it.kind not in kinds:
            return False
        mark = m.save()
        if m.spend("op", value, name, op.kind, path):
            m.ops += passed
            m.loose += len(passed) - 1
            if match(m, passed[-1].inputs[0]):
                return True
        m.restore(mark)
        return False

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


class _Step(NamedTuple):
    name: str
    kinds: frozenset[str]
    operands: int
    matcher: Matcher


def _star(pattern: Star, path: str, shared: frozenset[int]) -> Matcher:
    inner = compile_pattern(pattern.inner, path, shared)
    by_kind: dict[str, list[_Step]] = {}
    steps: list[_Step] = []
    for step in pattern.steps:
        for option in step.pattern.options if isinstance(step.pattern, Alternatives) else (step.pattern,):
            for matcher in _step_matchers(option, path, shared):
                operands = len(option.args) if isinstance(option, Node) else 0
                kinds = frozenset(option.kinds) if isinstance(option, Node) else root_kinds(option)
                steps.append(_Step(step.name, kinds, operands, matcher))
                for kind in kinds:
                    by_kind.setdefault(kind, []).append(steps[-1])
    name, resizes, reach, once = pattern.name, pattern.resizes, pattern.reach, pattern.once
    wanted = " or ".join(sorted(root_kinds(pattern.inner)))

    def walk(depth: int) -> Matcher:
        def match(m: Match, value: str) -> bool:
            op = m.graph.producer(value) if depth < reach else None
            if op is None:
                return inner(m, value)
            options: list[Matcher] = [inner]
            options += [take(depth, step) for step in by_kind.get(op.kind, ())]
            if m.budget and not op.parts:
                options += [take(depth, s) for s in steps if op.kind not in s.kinds and another(s, op)]
            if m.budget and not op.parts and op.kind in PASSING and op.kind not in by_kind:
                options.append(pass_over(depth))
            return best_of(m, value, options) if len(options) > 1 else inner(m, value)

        return match

    def another(step: _Step, op: Any) -> bool:
        """Whether an op may be a step of two operands or more with the wrong operator."""
        return step.operands > 1 and substitutes(op, step.kinds, step.operands)

    def take(depth: int, step: _Step) -> Matcher:
        def match(m: Match, value: str) -> bool:
            if once and any((step.name, name) == (taken.step, taken.star) for taken in m.steps):
                return False
            before, ops, fault = m.bound, len(m.ops), m.fault
            m.hole = ""
            if not step.matcher(m, value):
                return False
            widens = step.name not in resizes and not keeps_size(m.graph, value, m.hole)
            if widens and not (m.budget and wider(m, value, step)):
                return False
            own = m.ops[ops:]
            wrong = m.fault if m.fault is not fault else None
            # What is wrong in a step is no repeated node, but the one that does not stand.
            odd = wrong is not None and wrong.code == "op" and any(wrong.at in op.outputs for op in own)
            m.loose += len(own) - odd
            bound = {k: v for k, v in m.bound.items() if k not in before}
            m.steps.append(Taken(name, step.name, value, bound))
            m.bound = before
            return walk(depth + 1)(m, m.hole)

        return match

    def wider(m: Match, value: str, step: _Step) -> bool:
        """Go on over an operand that does not broadcast over what it stands beside, but widens it."""
        op, graph = m.graph.producer(value), m.graph
        whole = graph.dims(m.hole)
        if op is None or step.operands < 2 or whole is None:
            return False
        dims = {v: graph.dims(v) for v in op.inputs if v and v != m.hole}
        odd = next((v for v, d in dims.items() if d is not None and not spans(d, whole)), "")
        want = f"what broadcasts over {graph.type(m.hole)}"
        return bool(odd) and m.spend("operand", odd, want, str(graph.type(odd)), path)

    def pass_over(depth: int) -> Matcher:
        """One operator too many on the way."""

        def match(m: Match, value: str) -> bool:
            op = m.graph.producer(value)
            passed = [] if op is None else too_many(m.graph, op)
            if op is None or not passed or not m.spend("op", value, wanted, op.kind, path):
                return False
            m.ops += passed
            m.loose += len(passed) - 1
            return walk(depth + 1)(m, passed[-1].inputs[0])

        return match

    return walk(0)


def _step_matchers(option: Pattern, path: str, shared: frozenset[int]) -> list[Matcher]:
    """A step whose commutative root leaves the other operand open is tried both ways."""
    if isinstance(option, Node) and len(option.args) == 2 and frozenset(option.kinds) & COMMUTATIVE:
        return [node(option, path, shared, "first"), node(option, path, shared, "second")]
    return [compile_pattern(option, path, shared)]


COMPILERS: dict[type, Callable[[Any, str, frozenset[int]], Matcher]] = {Form: _form, Star: _star}
