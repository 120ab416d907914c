"""One rule over one graph: find from marks, judge legality, commit, and explain what nearly matched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fuse import shim as chip
from fuse.ir import Graph, Op, leaves
from fuse.match import Fault, Match, Matcher, compile_pattern
from fuse.pattern import Pattern, all_kinds, constant_names, depth_of, kinds_above, root_kinds
from fuse.plausible import FAMILIES
from fuse.rule import Built, Rule
from fuse.shim import Refused
from fuse.types import INTEGERS, FuseError

#: How many ops a climb from a mark to possible roots may visit.
CLIMB_LIMIT = 48
#: No tensor has more axes than this.
LONGEST_SHAPE = 16
#: How much of a pattern must be there before a place is called almost: fixed nodes, where the fault is
#: a wrong operator or two values that should be one also constants, since two operators that do not
#: fit are just two operators.
LEAST_EVIDENCE = 3


class Whole(NamedTuple):
    """A legal match, ready to be judged and put in its slot."""

    op: Op
    slot: int


class Near(NamedTuple):
    """A near miss: where, why, and how much of the pattern stands."""

    root: str
    fault: Fault
    ops: tuple[Op, ...]
    matched: int
    of: int


@dataclass(frozen=True)
class CompiledRule:
    """A rule with its matcher and where to look."""

    rule: Rule
    matcher: Matcher | None
    kinds: frozenset[str]
    above: frozenset[str]
    roots: frozenset[str]
    near_roots: frozenset[str]
    height: int
    constants: frozenset[str] = frozenset()


def compile_rule(rule: Rule) -> CompiledRule:
    if not isinstance(rule.finds, Pattern):
        return CompiledRule(
            rule, None, frozenset(), frozenset(), frozenset(rule.marks), frozenset(rule.marks), 0
        )
    roots = root_kinds(rule.finds)
    near = roots.union(*(family for family in FAMILIES if not family.isdisjoint(roots)))
    height = max(depth_of(rule.finds, frozenset({mark})) for mark in rule.marks)
    above = kinds_above(rule.finds, frozenset(rule.marks))
    constants = constant_names(rule.finds)
    return CompiledRule(
        rule, compile_pattern(rule.finds), all_kinds(rule.finds), above, roots, near, height, constants
    )


@dataclass
class Sweep:
    """A rule at work on one graph: the chip judges each match, `commit` puts it, near misses are kept."""

    compiled: CompiledRule
    graph: Graph
    judge: Callable[[Graph, Op], chip.Whole | Refused]
    commit: Callable[[Rule, Graph, Whole, chip.Whole | Refused], None]
    caps: Mapping[str, int] = field(default_factory=dict)
    misses: dict[str, Near] = field(default_factory=dict)

    def run(self) -> None:
        """Sweep over the marks in slot order until nothing fires.

        A firing only takes ops away from other places, so a second sweep can find more only where
        the rule reads what it builds.
        """
        rule = self.compiled.rule
        feeds_itself = not self.compiled.kinds.union(rule.marks).isdisjoint(rule.builds_classes)
        bound = len(self.graph.slots) + 1
        for _ in range(bound):
            if not self._once() or not feeds_itself:
                break
        else:
            raise FuseError(f"rule {self.compiled.rule.name} keeps firing on {self.graph.base.model.name}")
        self._explain()

    def _marks(self) -> Iterator[Op]:
        found = [op for kind in self.compiled.rule.marks for op in self.graph.of_kind(kind)]
        yield from sorted(found, key=lambda op: op.slot, reverse=self.compiled.rule.from_the_end)

    def _once(self) -> bool:
        fired = False
        for mark in self._marks():
            if self.graph.slots[mark.slot] is mark and self._at(mark):
                fired = True
        return fired

    def _at(self, mark: Op) -> bool:
        """Try the roots above a mark, the farthest first: the fullest form that the chip runs wins.

        Where the chip refuses a form, a smaller one may still be whole; where it refuses all, the
        fullest stands, refused.
        """
        roots = self._roots(mark, self.compiled.roots)
        refused: tuple[Whole, Refused] | None = None
        for tried, root in enumerate(roots):
            for match in self._matches(root, mark, 0):
                if match.fault is not None:
                    continue
                for whole in self._wholes(match):
                    if not isinstance(whole, Whole):
                        continue
                    verdict = self.judge(self.graph, whole.op)
                    if isinstance(verdict, Refused):
                        refused = refused or (whole, verdict)
                        continue
                    self.commit(self.compiled.rule, self.graph, whole, verdict)
                    if tried and refused is None:
                        self._explain_larger(roots[:tried], match.root, mark)
                    return True
        if refused is None or self.compiled.rule.only_whole:
            return False
        self.commit(self.compiled.rule, self.graph, *refused)
        return True

    def _roots(self, mark: Op, roots: frozenset[str]) -> list[Op]:
        """The ops of these kinds above a mark, reached through kinds that may stand between; farthest first."""
        graph, slots, above = self.graph, self.graph.slots, self.compiled.above
        found = [mark] if mark.kind in roots else []
        seen = {mark.slot}
        level = [mark]
        for _ in range(self.compiled.height):
            higher: list[Op] = []
            for op in level:
                for value in op.outputs:
                    for slot in graph.readers(value) if value else ():
                        if slot in seen:
                            continue
                        seen.add(slot)
                        reader = slots[slot]
                        if reader is None:
                            continue
                        if reader.kind in roots:
                            found.append(reader)
                        if reader.kind in above:
                            higher.append(reader)
            level = higher
            if not level or len(seen) > CLIMB_LIMIT:
                break
        found.sort(key=lambda op: -op.slot)
        return found

    def _matches(self, root: Op, mark: Op, budget: int) -> Iterator[Match]:
        rule, matcher = self.compiled.rule, self.compiled.matcher
        if matcher is None:
            assert not isinstance(rule.finds, Pattern)
            caps = (self.caps,) if rule.capped else ()
            yield from rule.finds(self.graph, root, budget, *caps)
            return
        for value in root.outputs:
            if not value:
                continue
            match = Match(self.graph, budget)
            match.root = value
            if matcher(match, value) and any(op.slot == mark.slot for op in match.ops):
                yield match

    def _wholes(self, match: Match) -> Iterator[Whole | Fault]:
        """The match as fused ops with legal slots, the fullest first, or the reason it is none."""
        for guard in self.compiled.rule.needs:
            wrong = guard.check(match)
            if wrong is not None:
                yield Fault(guard.code, wrong.at, guard.want, wrong.got)
                return
        built = self.compiled.rule.builds(match)
        for one in () if built is None else (built,) if isinstance(built, Built) else built:
            yield fit(self.graph, match, one)

    # ---- near misses -----------------------------------------------------------------------------
    def _explain(self) -> None:
        for mark in self._marks():
            if self.graph.slots[mark.slot] is not mark:
                continue
            best: Near | None = None
            for root in self._roots(mark, self.compiled.near_roots):
                near = self._near(root, mark)
                if near is not None and (best is None or _fuller(near, best)):
                    best = near
            if best is not None:
                self._keep(best)

    def _explain_larger(self, roots: list[Op], root: str, mark: Op) -> None:
        """Why a larger form stopped where a smaller one now stands: explained with that undone."""
        graph = self.graph
        above = {slot for slot in graph.readers(root)}
        above |= {
            s for slot in above for v in getattr(graph.slots[slot], "outputs", ()) for s in graph.readers(v)
        }
        larger = [op for op in roots if op.slot in above]
        fused = graph.producer(root)
        if not larger or fused is None or not fused.parts:
            return
        graph.dissolve(fused)
        for op in larger:
            near = self._near(op, mark)
            if near is not None:
                self._keep(near)
        graph.replace(fused, fused.slot)

    def _keep(self, near: Near) -> None:
        held = self.misses.get(near.root)
        if held is None or _fuller(near, held):
            self.misses[near.root] = near

    def _evidence(self, match: Match, fault: Fault) -> int:
        if fault.code not in ("op", "same_value"):
            return match.fixed() + 1
        constants = self.compiled.constants & match.bound.keys() if fault.code == "op" else ()
        return match.fixed() + len(constants)

    def _near(self, root: Op, mark: Op) -> Near | None:
        marks = self.compiled.rule.marks
        for match in self._matches(root, mark, 1):
            fault = match.fault
            if fault is None:
                whole = next(self._wholes(match), None)
                if not isinstance(whole, Fault):
                    continue
                fault = whole
            standing = [
                op
                for op in match.ops
                if op.kind in marks and not (fault.code == "op" and fault.at == op.outputs[0])
            ]
            of = match.fixed()
            if not standing or self._evidence(match, fault) < LEAST_EVIDENCE:
                continue
            if fault.code == "op" and any(guard.check(match) for guard in self.compiled.rule.needs):
                continue
            wrong = int(fault.code == "op")
            ops = tuple(
                sorted(
                    {leaf.slot: leaf for op in match.ops for leaf in leaves(op)}.values(),
                    key=lambda o: o.slot,
                )
            )
            return Near(root.outputs[0], fault, ops, of - wrong, of)
        return None


def _fuller(a: Near, b: Near) -> bool:
    return (a.matched, a.of) > (b.matched, b.of)


def fit(graph: Graph, match: Match, built: Built) -> Whole | Fault:
    """A built class over the matched ops as an op in a legal slot, or the reason there is none."""
    parts = {op.slot: op for op in (*match.ops, *built.also)}
    outputs = tuple(built.outputs) or (match.root,)
    _take_side_chains(graph, parts, {*outputs, *built.operands})
    kept = [outputs[0], *(v if v and _read_outside(graph, v, parts) else "" for v in outputs[1:])]
    while len(kept) > 1 and not kept[-1]:
        kept.pop()
    made = {v for op in parts.values() for v in op.outputs if v}
    for op in parts.values():
        for value in op.outputs:
            if value and value not in kept:
                fault = _reader_fault(graph, value, parts)
                if fault is not None:
                    return fault
    ordered = tuple(sorted(parts.values(), key=lambda op: op.slot))
    listed = dict.fromkeys(built.operands)
    constants = graph.base.constants
    reads = dict.fromkeys(v for op in ordered for v in op.inputs)
    if graph.base.owners:
        reads.update((v, None) for op in ordered for v in _captured(op))
    outside = [v for v in reads if v and v not in made and v not in constants]
    inputs = (*built.operands, *(v for v in outside if v not in listed))
    window = graph.window(ordered, outside, [v for v in kept if v])
    if not window:
        return _order_fault(graph, ordered, outside, kept)
    slot = _slot(graph, ordered, kept, window)
    name = next((op.name for op in ordered if outputs[0] in op.outputs), "")
    return Whole(Op(built.kind, inputs, tuple(kept), built.attrs, ordered, name), slot)


def _captured(op: Op) -> Iterable[str]:
    from fuse.ir import captures

    return (v for leaf in leaves(op) for body in leaf.bodies.values() for v in captures(body))


def _slot(graph: Graph, parts: tuple[Op, ...], outputs: list[str], window: list[int]) -> int:
    """The slot of the first result read outside if that is in the window, else the last in it."""
    own = {leaf.slot for part in parts for leaf in leaves(part)}
    first = [graph.base.producer[v] for v in outputs if v and graph.base.producer.get(v) in own]
    return min(first) if first and min(first) in window else window[-1]


def _read_outside(graph: Graph, value: str, parts: dict[int, Op]) -> bool:
    return graph.is_output(value) or any(slot not in parts for slot in graph.readers(value))


def _reader_fault(graph: Graph, value: str, parts: dict[int, Op]) -> Fault | None:
    if graph.is_output(value):
        return Fault("graph_output", value, "read only inside the match", f"also the graph output {value}")
    captured = graph.base.captured.get(value)
    for slot in graph.readers(value):
        if slot not in parts:
            reader = graph.slots[slot]
            assert reader is not None
            called = reader.name or reader.outputs[0]
            if captured and any(graph.into[c] == slot for c in captured):
                return Fault(
                    "captured", value, "read only inside the match", f"also read by a subgraph of {called}"
                )
            return Fault("read_elsewhere", value, "read only inside the match", f"also read by {called}")
    return None


def _order_fault(graph: Graph, parts: tuple[Op, ...], reads: list[str], kept: list[str]) -> Fault:
    base = graph.base
    own = {leaf.slot for part in parts for leaf in leaves(part)}
    readers = [
        (min(slot, graph.into[slot]), slot)
        for v in kept
        if v
        for slot in base.readers.get(v, ())
        if slot not in own
    ]
    made = [(max(base.producer[v], graph.into[base.producer[v]]), v) for v in reads if v in base.producer]
    late = max(made, default=(0, kept[0]))[1]
    reader = graph.slots[graph.into[min(readers)[1]]] if readers else None
    called = (reader.name or reader.outputs[0]) if reader else "its reader"
    return Fault("order", late, f"made before {called} reads the result", "made after it")


def _take_side_chains(graph: Graph, parts: dict[int, Op], kept: set[str]) -> None:
    """Take in integer arithmetic whose every reader is a part: a target shape computed for one.

    kept: results and operands, which stay outside values. Only what is as small as a shape is taken:
    larger integers (ids, masks) are data.
    """
    todo = [v for op in parts.values() for v in op.inputs]
    while todo:
        value = todo.pop()
        op = graph.producer(value) if value else None
        if op is None or op.slot in parts or op.parts or not all(_like_a_shape(graph, v) for v in op.outputs):
            continue
        if any(v and (v in kept or _read_outside(graph, v, parts)) for v in op.outputs):
            continue
        parts[op.slot] = op
        todo += op.inputs


def _like_a_shape(graph: Graph, value: str) -> bool:
    """Integers of rank 0 or 1, at most as many as a shape has axes."""
    dtype, dims = graph.type(value)
    if dtype not in INTEGERS or dims is None or len(dims) > 1:
        return False
    return not dims or (isinstance(dims[0], int) and dims[0] <= LONGEST_SHAPE)
