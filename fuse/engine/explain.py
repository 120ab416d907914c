"""What nearly matched: after a rule's fixed point the same matcher runs again with a budget of one fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from fuse.ir import Graph, Op, leaves
from fuse.match import Fault, Match
from fuse.match.plausible import PASSING, apart_by

if TYPE_CHECKING:
    from fuse.engine.rewriter import CompiledRule, Sweep

#: How many ops a climb from a mark to possible roots may visit.
CLIMB_LIMIT = 48
#: How much of a pattern must be there before a place is called almost: nodes that stand and, where the
#: fault is a wrong operator or two values that should be one, also numbers and values that agree, since
#: two operators that do not fit are just two operators.
LEAST_EVIDENCE = 3
#: Operators that only move values: two of them beside each other are no evidence of anything.
MOVES = frozenset(
    "Transpose Reshape Flatten Squeeze Unsqueeze Expand Slice Split Gather Concat Cast kv_append".split()
)
#: The same where no mark stands: the fault is at the mark itself.
LONE_EVIDENCE = 5


class Near(NamedTuple):
    """A near miss: where, why, and how much of the pattern stands."""

    root: str
    fault: Fault
    ops: tuple[Op, ...]
    matched: int
    of: int


#: (slot of a root, whether attributes may be wrong alike) -> what was found there, and the slots it holds.
Seen = dict[tuple[int, bool], tuple[Near | None, frozenset[int]]]


def fuller(a: Near, b: Near) -> bool:
    return (a.matched, a.of) > (b.matched, b.of)


def explain(sweep: Sweep) -> None:
    """The fullest near miss above each mark that no match took."""
    compiled, graph = sweep.compiled, sweep.graph
    rule = compiled.rule
    telling = [op for kind in (*rule.marks, *compiled.hints) for op in graph.of_kind(kind)]
    seen: Seen = {}
    for mark in sorted(telling, key=lambda op: op.slot):
        roots = near_roots(compiled, graph, mark)
        for alike in (False, True) if compiled.attributed else (False,):
            found = [near for root in roots if (near := _near(sweep, root, mark, alike, seen)) is not None]
            if found:
                sweep.keep(max(found, key=lambda near: (near.matched, near.of)))
                break


def explain_larger(sweep: Sweep, root: str, mark: Op) -> None:
    """Why a larger form stopped where a smaller one now stands: explained with that undone."""
    graph, compiled = sweep.graph, sweep.compiled
    fused = graph.producer(root)
    if fused is None or not fused.parts:
        return
    above = [graph.slots[slot] for slot in graph.readers(root)]
    kinds = compiled.near_roots | compiled.near_above
    if not any(op is not None and op.kind in kinds for op in above):
        return
    graph.dissolve(fused)
    own = {leaf.slot for leaf in leaves(fused)}
    for op in near_roots(compiled, graph, mark):
        if op.slot not in own:
            near = _near(sweep, op, mark)
            if near is not None and near.fault.code != "order" and not _casts_on(near, own):
                sweep.keep(near)
    graph.replace(fused, fused.slot)


def _casts_on(near: Near, own: set[int]) -> bool:
    """Whether a larger form would only take in a cast of what others read uncast: nothing is missed."""
    more = {op.kind for op in near.ops if op.slot not in own}
    return near.fault.code in ("read_elsewhere", "graph_output", "captured") and more <= {"Cast"}


def near_roots(compiled: CompiledRule, graph: Graph, mark: Op) -> list[Op]:
    """The ops above a mark that may be the root of a match with one fault, farthest first.

    On the way to them one op may be another's kin, or an operator of one operand too many (or casts).
    """
    if compiled.matcher is None:
        return [mark]
    found = [mark] if mark.kind in compiled.near_roots else []
    changed = {mark.slot: int(mark.kind not in compiled.kinds)}
    level = [mark]
    for _ in range(compiled.height + 1):
        higher: list[Op] = []
        for op in level:
            for reader in _readers(graph, op):
                if reader.slot in changed:
                    continue
                again = reader.kind == op.kind == "Cast"
                used = changed[op.slot] + (reader.kind not in compiled.above and not again)
                if reader.kind in compiled.near_roots:
                    found.append(reader)
                if used == changed[op.slot] or (
                    used == 1 and (reader.kind in compiled.near_above or reader.kind in PASSING)
                ):
                    changed[reader.slot] = used
                    (level if reader.kind == "Cast" else higher).append(reader)
        level = higher
        if not level or len(changed) > CLIMB_LIMIT:
            break
    return sorted({op.slot: op for op in found}.values(), key=lambda op: -op.slot)


def _readers(graph: Graph, op: Op) -> Iterator[Op]:
    for value in op.outputs:
        for slot in graph.readers(value) if value else ():
            reader = graph.slots[slot]
            if reader is not None:
                yield reader


def _near(sweep: Sweep, root: Op, mark: Op, alike: bool = False, seen: Seen | None = None) -> Near | None:
    """The near miss at a root that holds a mark. What a root gives is the same for every mark."""
    key = (root.slot, alike)
    if sweep.compiled.matcher is None:
        return _at_root(sweep, root, mark, alike)[0]
    found = None if seen is None else seen.get(key)
    if found is None:
        found = _at_root(sweep, root, mark, alike)
        if seen is not None:
            seen[key] = found
    return found[0] if mark.slot in found[1] else None


def _at_root(sweep: Sweep, root: Op, mark: Op, alike: bool) -> tuple[Near | None, frozenset[int]]:
    """The near miss at a root, and the slots of its ops."""
    rule = sweep.compiled.rule
    for match in sweep.matches(root, mark, 1, alike):
        if rule.place is not None and not rule.place(match):
            continue
        fault = match.fault
        if fault is None:
            whole = next(sweep.wholes(match), None)
            if not isinstance(whole, Fault):
                continue
            fault = whole
            own = fault.code == "written_between" or fault.want in {guard.want for guard in rule.needs}
            if rule.places and not own:
                continue  # a copy that others need too is no almost
        elif (alike or fault.code == "op") and any(guard.check(match) for guard in rule.needs):
            continue
        if not _tells(sweep.compiled, match, fault):
            continue
        matched, of = _standing(match, fault)
        ops = {leaf.slot: leaf for op in match.ops for leaf in leaves(op)}
        near = Near(match.root, fault, tuple(ops[slot] for slot in sorted(ops)), matched, of)
        return near, frozenset(op.slot for op in match.ops)
    return None, frozenset()


def _standing(match: Match, fault: Fault) -> tuple[int, int]:
    """Fixed nodes that stand, and how many there are; one that is wrong in a step counts as one too."""
    fixed = match.fixed()
    if fault.code != "op":
        return fixed, fixed
    return (fixed, fixed + 1) if fault.missing else (fixed - 1, fixed)


def _tells(compiled: CompiledRule, match: Match, fault: Fault) -> bool:
    """Whether enough of the pattern is there that a person would say almost."""
    rule = compiled.rule
    wrong = fault.at if fault.code == "op" and not fault.missing else ""
    standing = any(op.kind in (*rule.marks, *compiled.hints) and op.outputs[0] != wrong for op in match.ops)
    computing = sum(op.kind not in MOVES for op in {op.slot: op for op in match.ops}.values())
    nodes = min(_standing(match, fault)[0], computing - bool(wrong))
    evidence = nodes + match.agreed if fault.code in ("op", "same_value") else nodes + 1
    if rule.almost is not None and rule.almost(match, fault):
        return True
    if len(match.ops) > 1 and _cast_and_back(match.graph, fault):
        return True
    return evidence >= (LEAST_EVIDENCE if standing else LONE_EVIDENCE)


def _cast_and_back(graph: Graph, fault: Fault) -> bool:
    """Whether all that is wrong is that a value is rounded on the way: no model means that."""
    if fault.code == "op":
        return fault.got == "Cast" and not fault.missing
    return fault.code == "same_value" and apart_by(graph, fault.want, fault.got, ("Cast",))
