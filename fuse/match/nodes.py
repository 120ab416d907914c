"""Matching an operator over operands, strictly or with one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fuse.attributes import DATA_OPERANDS, attribute
from fuse.ir import Op
from fuse.match import EFFORT, Match, Matcher, below, best_of, compile_pattern
from fuse.match.plausible import UNARY, substitutes, too_many
from fuse.pattern import ANY, COMMUTATIVE, LAST, Anything, Constant, Node, Star, children, root_kinds


def show_attribute(name: str, value: Any) -> str:
    return (
        f"{name}={value!r}" if isinstance(value, str) and value not in ("all", "none") else f"{name}={value}"
    )


def attribute_fits(m: Match, op: Op, name: str, want: Any) -> bool:
    """Whether an attribute is the wanted one: the last axis, one of a set, or one value."""
    got = attribute(m.graph, op, name)
    if want is LAST:
        return bool(got == -1)
    return got in want if isinstance(want, frozenset) else bool(got == want)


def _operands(args: Sequence[Matcher], positions: tuple[int, ...]) -> Matcher:
    """All operands, in the order the pattern has them."""

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


def _all_but(args: Sequence[Matcher], positions: tuple[int, ...], odd: int) -> Matcher:
    """All operands strictly but one, which is matched last, with the budget: the rest tells what it
    should be."""

    def match(m: Match, value: str) -> bool:
        op = m.ops[-1]
        before = len(m.ops)
        inputs = op.inputs
        budget, m.budget = m.budget, 0
        for index, matcher in enumerate(args):
            m.at = op.outputs[0]
            if index != odd and not matcher(m, inputs[positions[index]]):
                del m.ops[before:]
                return False
        m.budget, m.at = budget, op.outputs[0]
        if args[odd](m, inputs[positions[odd]]):
            return True
        del m.ops[before:]
        return False

    return match


def node(pattern: Node, path: str, shared: frozenset[int], order: str = "both") -> Matcher:
    """order: both, or which operand of a commutative operator is matched first.

    What lies below is compiled where an operator of the kind is first met: of a norm's hundreds of
    spellings a graph has one or two.
    """
    kinds = frozenset(pattern.kinds)
    whole: Matcher | None = None

    def match(m: Match, value: str) -> bool:
        nonlocal whole
        if not m.explains:
            op = m.graph.producer(value)
            if op is None or op.kind not in kinds:
                return False
        if whole is None:
            whole = _node(pattern, path, shared, order)
        return whole(m, value)

    return match


def _node(pattern: Node, path: str, shared: frozenset[int], order: str) -> Matcher:
    kinds, count, output = frozenset(pattern.kinds), len(pattern.args), pattern.output
    args = [compile_pattern(arg, below(path, i), shared) for i, arg in enumerate(pattern.args)]
    either = count == 2 and bool(kinds & COMMUTATIVE)
    label = " or ".join(pattern.kinds)
    orders: Sequence[tuple[int, ...]] = (tuple(range(count)),)
    if either:
        orders = {"both": ((0, 1), (1, 0)), "first": ((0, 1),), "second": ((1, 0),)}[order]
    in_order = [_operands(args, positions) for positions in orders]
    one_odd = [_all_but(args, positions, odd) for positions in orders for odd in range(count)]
    if _in_two(pattern, shared):  # what is wrong in it is met in both operands
        one_odd += in_order
    swap = {2: (1, 0), 3: (0, 2, 1)}.get(count)
    swapped = _operands(args, swap) if swap is not None and not either else None
    own = id(pattern) if id(pattern) in shared else 0

    def match(m: Match, value: str) -> bool:
        op = m.graph.producer(value)
        if op is None:
            return m.explains and elsewhere(m, value, m.at)
        if m.explains:
            return explained(m, value, op)
        if op.kind not in kinds or not of_output(op, value):
            return False
        if not all(attribute_fits(m, op, name, want) for name, want in pattern.attrs) or not fits(op):
            return False
        mark = m.save()
        m.ops.append(op)
        if best_of(m, value, in_order):
            return True
        m.restore(mark)
        return False

    def of_output(op: Op, value: str) -> bool:
        return output == ANY or (len(op.outputs) > output and op.outputs[output] == value)

    def fits(op: Op) -> bool:
        have = len(op.inputs)
        return have == count or (have > count and (bool(op.parts) or op.kind in DATA_OPERANDS))

    def explained(m: Match, value: str, op: Op) -> bool:
        """The same, with what is left of the budget; where the match stood is remembered."""
        m.effort += 1
        if m.effort > EFFORT:
            return False
        at, mark = m.at, m.save()
        if here(m, value, op):
            if own:
                m.stood = {**m.stood, own: value}
            return True
        m.restore(mark)
        return elsewhere(m, value, at)

    def elsewhere(m: Match, value: str, at: str) -> bool:
        """Another value stands where this pattern, which occurs twice, was found at its own value; or
        what the operator would work on stands in its place."""
        stood = m.stood.get(own) if own else None
        if stood is not None and stood != value:
            return m.spend("same_value", at, stood, value, path)
        if not bare or m.bound.get(bare) != value:
            return False
        if not m.spend("op", at, label, "no operator", path, missing=True):
            return False
        m.bound = {**absent, **m.bound}
        return True

    def here(m: Match, value: str, op: Op) -> bool:
        if op.kind not in kinds:
            return not op.parts and another_kind(m, value, op)
        if not of_output(op, value):
            return False
        for name, want in pattern.attrs:
            if attribute_fits(m, op, name, want):
                continue
            got = show_attribute(name, attribute(m.graph, op, name))
            if not m.spend("attribute", op.outputs[0], show_attribute(name, want), got, path):
                return False
        if not fits(op) and not (
            0 < count < len(op.inputs)
            and m.spend("arity", op.outputs[0], f"{count} operands", f"{len(op.inputs)} operands", path)
        ):
            return False
        mark = m.save()
        m.ops.append(op)
        if best_of(m, value, one_odd if m.budget and not m.alike and count else in_order):
            return True
        m.restore(mark)
        return wrong_order(m, value, op)

    def wrong_order(m: Match, value: str, op: Op) -> bool:
        if swapped is None or not m.budget:
            return False
        want = f"{label} of its operands in the other order"
        if not m.spend("operand", op.outputs[0], want, "the operands swapped", path):
            return False
        m.ops.append(op)
        return swapped(m, value)

    def another_kind(m: Match, value: str, op: Op) -> bool:
        """An operator in another's place, one too many on the way, or one too few."""
        mark = m.save()
        if not m.spend("op", op.outputs[0], label, op.kind, path):
            return False
        if (
            output == 0
            and substitutes(op, kinds, count)
            and all(attribute_fits(m, op, *a) for a in pattern.attrs)
        ):
            m.ops.append(op)
            if best_of(m, value, in_order):
                return True
            m.restore(mark)
            m.spend("op", op.outputs[0], label, op.kind, path)
        passed = too_many(m.graph, op)
        below_it = m.graph.producer(passed[-1].inputs[0]) if passed else None
        if below_it is not None and below_it.kind in kinds:
            m.ops += passed
            m.loose += len(passed) - 1
            if here(m, passed[-1].inputs[0], below_it):
                return True
        m.restore(mark)
        if any(name in m.bound for name in absent):
            return False
        for index in (i for i, found in missing.items() if op.kind in found):
            m.spend("op", op.outputs[0], label, op.kind, path, missing=True)
            m.bound = {**absent, **m.bound}
            if args[index](m, value):
                return True
            m.restore(mark)
        return False

    missing = _missing(pattern) if path else {}
    bare = _bare(pattern) if path else ""
    #: The plain values beside what is left where the operator is missing.
    absent = {arg.name: "" for arg in pattern.args if isinstance(arg, PLAIN) and arg.name}
    return match


def _in_two(pattern: Node, shared: frozenset[int]) -> bool:
    """Whether a pattern that occurs more than once occurs in two operands."""
    found: set[int] = set()
    for arg in pattern.args:
        own: set[int] = set()
        todo = [arg]
        while todo:
            at = todo.pop()
            if isinstance(at, Node) and id(at) in shared:
                own.add(id(at))
            todo += children(at)
        if found & own:
            return True
        found |= own
    return False


def _missing(pattern: Node) -> dict[int, frozenset[str]]:
    """Operand -> the kinds that make it, where it may stand in the place of an operator that is missing:
    one whose other operands are plain values."""
    if len(pattern.args) == 1 and not frozenset(pattern.kinds) <= UNARY:
        return {}
    made = {i: root_kinds(arg) for i, arg in enumerate(pattern.args) if not isinstance(arg, PLAIN)}
    return made if len(made) == 1 and len(pattern.args) < 3 else {}


def _bare(pattern: Node) -> str:
    """The value that may stand in the place of an operator over it and one other plain value, which no
    other reading of the place is without."""
    args = [arg.inner if isinstance(arg, Star) else arg for arg in pattern.args]
    names = [arg.name for arg in args if isinstance(arg, Anything)]
    fixed = all(isinstance(arg, PLAIN) and (isinstance(arg, Anything) or not arg.name) for arg in args)
    return names[0] if fixed and names and len(args) == 2 else ""


#: Patterns of values, whatever makes them.
PLAIN = (Anything, Constant)


COMPILERS: dict[type, Callable[[Any, str, frozenset[int]], Matcher]] = {Node: node}
