"""Matching a product by its factors, however its multiplications are nested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fuse.ir import Graph, Op
from fuse.match import EFFORT, Fault, Match, Matcher, below, close, compile_pattern, shown
from fuse.match.plausible import constant_like, run_time, substitutes, too_many, truer
from fuse.pattern import Anything, Times

#: A product of more multiplications than this is no activation's.
MAX_MULTIPLICATIONS = 8
#: What a product multiplied out counts as beside one node.
PRODUCT_EFFORT = 4
_TIMES = frozenset({"Mul", "Div", "Pow"})


class _Odd(NamedTuple):
    """What one fault lets pass: an op for a multiplication, a run-time value for a constant, operators that
    are too many (the last of them first)."""

    op: int = -1
    constant: str = ""
    stray: tuple[Op, ...] = ()


_NOTHING = _Odd()


class _Tree(NamedTuple):
    """A product multiplied out: its factors (with the op that takes each), constants, and ops."""

    factors: list[tuple[str, Op]]
    constants: list[tuple[str, float, Op]]
    ops: list[Op]


def multiply_out(graph: Graph, value: str, keep: frozenset[str], odd: _Odd = _NOTHING) -> _Tree | None:
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
        elif at == odd.constant:
            continue
        elif odd.stray and taker is not None and at == odd.stray[0].outputs[0]:
            tree.ops.extend(odd.stray)
            todo.append((odd.stray[-1].inputs[0], taker))
        elif (
            op is not None and (op.kind == "Mul" or op.slot == odd.op) and len(tree.ops) < MAX_MULTIPLICATIONS
        ):
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


class _Product:
    """Matches a value that is the product of factors and a constant.

    Factors with a structure of their own are found first: they tell which value `x` is, and where
    to stop multiplying out (x may be a product itself).
    """

    def __init__(self, pattern: Times, path: str, shared: frozenset[int]) -> None:
        self.path, self.constant = path, pattern.constant
        self.plain = [p.name for p in pattern.factors if isinstance(p, Anything)]
        self.special = [
            compile_pattern(p, below(path, i), shared)
            for i, p in enumerate(pattern.factors)
            if not isinstance(p, Anything)
        ]

    def match(self, m: Match, value: str) -> bool:
        root = m.graph.producer(value)
        if root is None:
            return False
        mark = m.save()
        if root.kind in _TIMES and self._attempt(m, value, _NOTHING):
            if m.fault is not mark[5]:
                self._other_way_round(m, value, mark)
            return True
        m.restore(mark)
        if not m.budget:
            return False
        for fault, odd in self._oddities(m, value, root) if m.effort < EFFORT else ():
            if m.spend(*fault) and self._attempt(m, value, odd):
                return True
            m.restore(mark)
        passed = too_many(m.graph, root) if not root.parts else []
        if not passed or not m.spend("op", value, "Mul", root.kind, self.path):
            return False
        m.ops += passed
        m.loose += len(passed) - 1
        if self.match(m, passed[-1].inputs[0]):
            return True
        m.restore(mark)
        return False

    def _other_way_round(self, m: Match, value: str, mark: tuple[Any, ...]) -> None:
        """Where a factor is not the x found inside another: x may be the factor, and the other odd."""
        fault = m.fault
        if not self.plain or fault is None or fault.code != "same_value":
            return
        if not truer(m.graph, fault.got, fault.want):
            return
        ops, steps, kept = m.ops[mark[0] :], m.steps[mark[1] :], m.save()
        m.restore(mark)
        m.bound = {**m.bound, self.plain[0]: fault.got}
        if not self._attempt(m, value, _NOTHING):
            m.restore((*mark[:2], *kept[2:]))
            m.ops += ops
            m.steps += steps

    def _oddities(self, m: Match, value: str, root: Op) -> Iterator[tuple[Fault, _Odd]]:
        """What may pass for a multiplication, or for a constant, if that is the one fault."""
        graph = m.graph
        tops = [root] if root.kind not in _TIMES else []
        rough = multiply_out(graph, value, frozenset()) if root.kind in _TIMES else None
        factors = rough.factors if rough is not None else []
        made = [graph.producer(at) for at, _ in factors]
        if root.kind == "Div" and rough is None:
            tops.append(root)
            made.append(root)
        for op in (*tops, *made):
            if (
                op is not None
                and not op.parts
                and op.kind not in ("Mul", "Pow")
                and substitutes(op, ("Mul",), 2)
            ):
                yield Fault("op", op.outputs[0], "Mul", op.kind, self.path), _Odd(op=op.slot)
        for op in made:
            if op is not None and op.kind == "Div" and constant_like(graph, op.inputs[1], scalar=True):
                got = run_time(graph, op.inputs[1])
                fault = Fault("operand", op.inputs[1], "a constant of one value", got, self.path)
                yield fault, _Odd(op=op.slot, constant=op.inputs[1])
        for op in made:
            passed = tuple(too_many(graph, op)) if op is not None and not op.parts else ()
            if op is not None and passed:
                yield Fault("op", op.outputs[0], "Mul", op.kind, self.path), _Odd(stray=passed)
        for at, _ in factors:
            if constant_like(graph, at, scalar=True):
                want = "a constant of one value"
                yield Fault("operand", at, want, run_time(graph, at), self.path), _Odd(constant=at)

    def _attempt(self, m: Match, value: str, odd: _Odd) -> bool:
        m.effort += m.explains * PRODUCT_EFFORT
        rough = multiply_out(m.graph, value, frozenset(), odd) if m.effort < EFFORT else None
        if rough is None:
            return False
        found: list[str] = []
        return all(self._find(m, special, rough, found) for special in self.special) and self._settle(
            m, value, found, odd
        )

    def _find(self, m: Match, special: Matcher, rough: _Tree, found: list[str]) -> bool:
        """The factor with this structure: strictly, else with the budget."""
        budget, mark = m.budget, m.save()
        for strict in (True, False) if budget else (True,):
            for at, taker in rough.factors:
                m.at, m.budget = taker.outputs[0], 0 if strict else budget
                if special(m, at):
                    m.budget = budget if strict else m.budget
                    found.append(at)
                    return True
                m.restore(mark)
        return False

    def _settle(self, m: Match, value: str, found: list[str], odd: _Odd) -> bool:
        graph = m.graph
        keep = {m.bound[name] for name in self.plain if name in m.bound}
        if not keep and self.plain:
            alone = len(self.plain) == 1 and not found
            scaled = _scaled(graph, value, self.constant) if alone else None
            repeated = scaled or _repeated(graph, value, odd)
            if repeated is None:
                return False
            keep = {repeated}
        tree = multiply_out(graph, value, frozenset(keep | set(found)), odd)
        if tree is None:
            return False
        left = list(tree.factors)
        for at in found:
            index = next((i for i, (v, _) in enumerate(left) if v == at), None)
            if index is None:
                return False
            left.pop(index)
        if len(left) != len(self.plain):
            return self._wrong_power(m, tree, left)
        m.ops += tree.ops
        for name in self.plain:
            want = m.bound.get(name) or next(iter(keep))
            index = next((i for i, (v, _) in enumerate(left) if v == want), None)
            if index is None:
                at, taker = left[0]
                if not m.spend("same_value", taker.outputs[0], want, at, self.path):
                    return False
                index = 0
            elif m.explains:
                m.agreed += 1
            left.pop(index)
            m.bound = {**m.bound, name: want}
        # What a number is meant to be beside an operator that is another cannot be told.
        unknown = odd.constant or any(taker.slot == odd.op for _, _, taker in tree.constants)
        return bool(unknown) or self._constants(m, tree)

    def _constants(self, m: Match, tree: _Tree) -> bool:
        total = 1.0
        for _, number, _ in tree.constants:
            total *= number
        if close(total, self.constant):
            m.agreed += m.explains and bool(tree.constants)
            return True
        if not tree.constants or not m.budget:
            return False
        for _, number, taker in tree.constants:
            if number and taker.kind in ("Mul", "Div") and close(total / number**2, self.constant):
                other = "Div" if taker.kind == "Mul" else "Mul"
                return m.spend("op", taker.outputs[0], other, taker.kind, self.path)
        at, number, taker = min(
            tree.constants, key=lambda c: abs(c[1] * self.constant / total - 1) if total else 0.0
        )
        want = self.constant / (total / number) if total else self.constant
        inverse = taker.kind == "Div" and taker.inputs[1] == at
        want, number = (1 / want if inverse and want else want), (1 / number if inverse else number)
        return m.spend("operand", at, shown(want), shown(number), self.path)

    def _wrong_power(self, m: Match, tree: _Tree, left: list[tuple[str, Op]]) -> bool:
        """A power of x other than the wanted one, at a Pow's exponent."""
        power = next((op for op in tree.ops if op.kind == "Pow"), None)
        wanted = {m.bound.get(name) for name in self.plain}
        known = all(v in wanted or None in wanted for v, _ in left)
        if power is None or not m.budget or not self.plain or not known:
            return False
        exponent = float(m.graph.scalar(power.inputs[1]) or 0)
        want = exponent + len(self.plain) - len(left)
        m.ops += tree.ops
        return m.spend(
            "operand", power.inputs[1], shown(want), shown(exponent), self.path
        ) and self._constants(m, tree)


def _scaled(graph: Graph, value: str, constant: float) -> str | None:
    """The x of which a value is this constant times, by multiplications with constants alone; x may be
    a product itself."""
    total = 1.0
    while (op := graph.producer(value)) is not None and op.kind in ("Mul", "Div"):
        at = 0 if op.kind == "Mul" and graph.scalar(op.inputs[0]) is not None else 1
        number = graph.scalar(op.inputs[at])
        if not number:
            return None
        total = total * float(number) if op.kind == "Mul" else total / float(number)
        value = op.inputs[1 - at]
        if close(total, constant):
            return value
    return None


def _repeated(graph: Graph, value: str, odd: _Odd) -> str | None:
    """The value that a product without other structure takes more than once (x in x*x*x)."""
    tree = multiply_out(graph, value, frozenset(), odd)
    if tree is None:
        return None
    counts: dict[str, int] = {}
    for at, _ in tree.factors:
        counts[at] = counts.get(at, 0) + 1
    if len(counts) == 1:
        return next(iter(counts))
    operands = [v for op in tree.ops for v in _multiplied(graph, op)]
    twice = [v for v in dict.fromkeys(operands) if operands.count(v) > 1 and graph.producer(v) is not None]
    return twice[0] if twice else None


def _multiplied(graph: Graph, op: Op) -> list[str]:
    """What an op of a product multiplies: the base of a power as often as it says."""
    if op.kind == "Pow":
        return [op.inputs[0]] * int(graph.scalar(op.inputs[1]) or 0)
    return [v for v in op.inputs if graph.scalar(v) is None]


def _times(pattern: Times, path: str, shared: frozenset[int]) -> Matcher:
    return _Product(pattern, path, shared).match


COMPILERS: dict[type, Callable[[Any, str, frozenset[int]], Matcher]] = {Times: _times}
