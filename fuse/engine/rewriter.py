"""One rule over one graph: find from marks, judge legality, commit, and explain what nearly matched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fuse import shim as chip
from fuse.engine.explain import CLIMB_LIMIT, Near, explain, explain_larger, fuller
from fuse.guards import reader_fault, widened
from fuse.ir import Graph, Op, leaves
from fuse.match import Fault, Match, Matcher, compile_pattern
from fuse.match.plausible import near_kinds
from fuse.pattern import Pattern, all_kinds, attributes, depth_of, kinds_above, root_kinds
from fuse.placing import apart, carried
from fuse.rule import Built, Rule
from fuse.shim import Refused
from fuse.types import INTEGERS, FuseError

#: No tensor has more axes than this.
LONGEST_SHAPE = 16


class Whole(NamedTuple):
    """A legal match, ready to be judged and put in its slot."""

    op: Op
    slot: int


@dataclass(frozen=True)
class CompiledRule:
    """A rule with its matcher and where to look.

    kinds: every kind a match may hold. above: those between its root and a mark. The near ones are
    the same with what is written for them by mistake.
    """

    rule: Rule
    matcher: Matcher | None
    kinds: frozenset[str]
    above: frozenset[str]
    roots: frozenset[str]
    near_above: frozenset[str]
    near_roots: frozenset[str]
    height: int
    #: Whether the pattern wants an attribute in more than one place.
    attributed: bool = False

    @property
    def hints(self) -> tuple[str, ...]:
        return self.rule.hints


def compile_rule(rule: Rule) -> CompiledRule:
    if not isinstance(rule.finds, Pattern):
        none: frozenset[str] = frozenset()
        marks = frozenset(rule.marks)
        return CompiledRule(rule, None, none, none, marks, none, marks, 0)
    roots, telling = root_kinds(rule.finds), frozenset((*rule.marks, *rule.hints))
    above = kinds_above(rule.finds, telling)
    height = max(depth_of(rule.finds, frozenset({mark})) for mark in telling)
    kinds = all_kinds(rule.finds)
    near_above, near_roots = near_kinds(above), near_kinds(roots)
    matcher = compile_pattern(rule.finds)
    attributed = attributes(rule.finds) > 1
    return CompiledRule(rule, matcher, kinds, above, roots, near_above, near_roots, height, attributed)


@dataclass
class Sweep:
    """A rule at work on one graph: the chip judges each match, `commit` puts it, near misses are kept."""

    compiled: CompiledRule
    graph: Graph
    judge: Callable[[Graph, Op], chip.Whole | Refused]
    commit: Callable[[Rule, Graph, Whole, chip.Whole | Refused], None]
    caps: Mapping[str, int] = field(default_factory=dict)
    misses: dict[str, Near] = field(default_factory=dict)
    #: Whether near misses are sought too.
    explains: bool = True

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
        if self.explains:
            explain(self)

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
        for root in roots:
            for match in self.matches(root, mark, 0):
                if match.fault is not None:
                    continue
                for whole in self.wholes(match):
                    if not isinstance(whole, Whole):
                        continue
                    verdict = self.judge(self.graph, whole.op)
                    if isinstance(verdict, Refused):
                        refused = refused or (whole, verdict)
                        continue
                    self.commit(self.compiled.rule, self.graph, whole, verdict)
                    if self.explains and refused is None and self.compiled.matcher is not None:
                        explain_larger(self, match.root, mark)
                    return True
        if refused is None or self.compiled.rule.only_whole:
            return False
        self.commit(self.compiled.rule, self.graph, *refused)
        return True

    def _roots(self, mark: Op, roots: frozenset[str]) -> list[Op]:
        """The ops of these kinds above a mark, through kinds that may stand between, farthest first."""
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

    def matches(self, root: Op, mark: Op, budget: int, alike: bool = False) -> Iterator[Match]:
        rule, matcher = self.compiled.rule, self.compiled.matcher
        if matcher is None:
            assert not isinstance(rule.finds, Pattern)
            caps = (self.caps,) if rule.capped else ()
            yield from rule.finds(self.graph, root, budget, *caps)
            return
        for value in root.outputs:
            if not value:
                continue
            match = Match(self.graph, budget, alike)
            match.root = value
            if matcher(match, value) and (budget or any(op.slot == mark.slot for op in match.ops)):
                yield match

    def wholes(self, match: Match) -> Iterator[Whole | Fault]:
        """The match as fused ops with legal slots, the fullest first, or the reason it is none."""
        for guard in self.compiled.rule.needs:
            wrong = guard.check(match)
            if wrong is not None:
                yield Fault(guard.code, wrong.at, guard.want, wrong.got)
                return
        wide = None if self.compiled.rule.primitives else widened(self.graph, match.ops)
        built = self.compiled.rule.builds(match)
        for one in () if built is None else (built,) if isinstance(built, Built) else built:
            yield wide or fit(self.graph, match, one)

    def keep(self, near: Near) -> None:
        held = self.misses.get(near.root)
        if held is None or fuller(near, held):
            self.misses[near.root] = near


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
                fault = reader_fault(graph, value, parts)
                if fault is not None:
                    return fault
    ordered = tuple(sorted(parts.values(), key=lambda op: op.slot))
    operands, placements = carried(ordered, built.placements, built.operands, kept)
    own = next((v for v in operands if v in made), None)
    if own is not None:
        return Fault("operand", own, "an operand from outside the match", "a value made inside it")
    listed = dict.fromkeys(operands)
    constants = graph.base.constants
    reads = dict.fromkeys(v for op in ordered for v in op.inputs)
    if graph.base.owners:
        reads.update((v, None) for op in ordered for v in _captured(op))
    outside = [v for v in reads if v and v not in made and v not in constants]
    inputs = (*operands, *(v for v in outside if v not in listed))
    window = graph.window(ordered, outside, [v for v in kept if v])
    if not window:
        return _order_fault(graph, ordered, outside, kept)
    name = next((op.name for op in ordered if outputs[0] in op.outputs), "")
    op = Op(built.kind, inputs, tuple(kept), built.attrs, ordered, name, placements=placements)
    if graph.landed or placements:
        window, clash = apart(graph, op, outside, window)
        if clash is not None and not window:
            want = f"nothing writes over {clash.value} before {clash.reader} reads it"
            return Fault("written_between", clash.writer, want, "it lands there first")
    return Whole(op, _slot(graph, ordered, kept, window))


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
