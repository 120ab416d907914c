"""Matching a product by its factors, however its multiplications are nested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fuse.ir import Graph, Op
from fuse.match import Match, Matcher, close, shown
from fuse.pattern import Anything, Pattern

#: A product of more multiplications than this is no activation's.
MAX_MULTIPLICATIONS = 8


class _Tree(NamedTuple):
    """A product multiplied out: its factors (with the op that takes each), constants, and ops."""

    factors: list[tuple[str, Op]]
    constants: list[tuple[str, float, Op]]
    ops: list[Op]


def multiply_out(graph: Graph, value: str, keep: frozenset[str]) -> _Tree | None:
    """The factors of a value, going through Mul, Div by a constant and whole powers.

    Values in `keep` stay whole. None where the value is no product.
    """
    tree = _Tree([], [], [])
    todo: list[tuple[str, Op | None]] = [(value, None)]
    while todo:
        at, taker = todo.pop()
        op = graph.producer(at) if at not in keep else None
        number = graph.scalar(at)
        if number is not None and taker is not None:
            tree.constants.append((at, float(number), taker))
        elif op is not None and op.kind == "Mul" and len(tree.ops) < MAX_MULTIPLICATIONS:
            tree.ops.append(op)
            todo += [(operand, op) for operand in reversed(op.inputs)]
        elif op is not None and op.kind == "Div" and graph.scalar(op.inputs[1]):
            tree.ops.append(op)
            tree.constants.append((op.inputs[1], 1.0 / float(graph.scalar(op.inputs[1]) or 1.0), op))
            todo.append((op.inputs[0], op))
        elif op is not None and op.kind == "Pow" and graph.scalar(op.inputs[1]) in (2, 3):
            tree.ops.append(op)
            todo += [(op.inputs[0], op)] * int(graph.scalar(op.inputs[1]) or 0)
        elif taker is None:
            return None
        else:
            tree.factors.append((at, taker))
    return tree


def product_matcher(factors: Sequence[tuple[Pattern, Matcher]], constant: float, path: str) -> Matcher:
    """Match a value that is the product of these factors and a constant.

    Factors with a structure of their own are found first: they tell which value `x` is, and where
    to stop multiplying out (x may be a product itself).
    """
    plain = [p for p, _ in factors if isinstance(p, Anything)]
    special = [matcher for p, matcher in factors if not isinstance(p, Anything)]

    def match(m: Match, value: str) -> bool:
        graph = m.graph
        root = graph.producer(value)
        if root is None or root.kind not in ("Mul", "Div", "Pow"):
            return False
        mark = m.save()
        rough = multiply_out(graph, value, frozenset())
        if rough is None:
            return False
        found: list[str] = []
        for matcher in special:
            for strict in (True, False) if m.budget else (True,):
                if _find(m, matcher, rough, found, strict):
                    break
            else:
                m.restore(mark)
                return False
        if _settle(m, value, found):
            return True
        m.restore(mark)
        return False

    def _find(m: Match, matcher: Matcher, rough: _Tree, found: list[str], strict: bool) -> bool:
        budget = m.budget
        for at, taker in rough.factors:
            mark = m.save()
            m.at = taker.outputs[0]
            if strict:
                m.budget = 0
            fine = matcher(m, at)
            if fine:
                if strict:
                    m.budget = budget
                found.append(at)
                return True
            m.restore(mark)
        return False

    def _settle(m: Match, value: str, found: list[str]) -> bool:
        graph = m.graph
        keep = {m.bound[p.name] for p in plain if p.name in m.bound}
        if not keep and plain:
            repeated = _repeated(graph, value)
            if repeated is None:
                return False
            keep = {repeated}
        tree = multiply_out(graph, value, frozenset(keep | set(found)))
        if tree is None:
            return False
        left = list(tree.factors)
        for at in found:
            index = next((i for i, (v, _) in enumerate(left) if v == at), None)
            if index is None:
                return False
            left.pop(index)
        if len(left) != len(plain):
            return _wrong_power(m, tree, left)
        m.ops += tree.ops
        for pattern in plain:
            want = m.bound.get(pattern.name) or next(iter(keep))
            index = next((i for i, (v, _) in enumerate(left) if v == want), None)
            if index is None:
                at, taker = left[0]
                if not m.spend("same_value", taker.outputs[0], want, at, path):
                    return False
                index = 0
            left.pop(index)
            m.bound = {**m.bound, pattern.name: want}
        return _constants(m, tree)

    def _constants(m: Match, tree: _Tree) -> bool:
        total = 1.0
        for _, number, _ in tree.constants:
            total *= number
        if close(total, constant):
            return True
        if not tree.constants:
            return False
        at, number, taker = min(
            tree.constants, key=lambda c: abs(c[1] * constant / total - 1) if total else 0.0
        )
        at, number, taker = tree.constants[-1] if len(tree.constants) == 1 else (at, number, taker)
        want = constant / (total / number) if total else constant
        inverse = taker.kind == "Div" and taker.inputs[1] == at
        return m.spend(
            "operand",
            at,
            shown(1 / want if inverse and want else want),
            shown(1 / number if inverse else number),
            path,
        )

    def _wrong_power(m: Match, tree: _Tree, left: list[tuple[str, Op]]) -> bool:
        """A power of x other than the wanted one, at a Pow's exponent."""
        power = next((op for op in tree.ops if op.kind == "Pow"), None)
        wanted = {m.bound.get(p.name) for p in plain}
        if (
            power is None
            or not m.budget
            or not plain
            or any(v not in wanted and None not in wanted for v, _ in left)
        ):
            return False
        exponent = float(m.graph.scalar(power.inputs[1]) or 0)
        want = exponent + len(plain) - len(left)
        m.ops += tree.ops
        return m.spend("operand", power.inputs[1], shown(want), shown(exponent), path) and _constants(m, tree)

    return match


def _repeated(graph: Graph, value: str) -> str | None:
    """The value that a product without other structure takes more than once (x in x*x*x)."""
    tree = multiply_out(graph, value, frozenset())
    if tree is None:
        return None
    counts: dict[str, int] = {}
    for at, _ in tree.factors:
        counts[at] = counts.get(at, 0) + 1
    if len(counts) == 1:
        return next(iter(counts))
    operands = [v for op in tree.ops for v in op.inputs if graph.scalar(v) is None]
    twice = [v for v in dict.fromkeys(operands) if operands.count(v) > 1 and graph.producer(v) is not None]
    return twice[0] if twice else None
