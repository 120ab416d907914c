"""A compile under way: a step over the graph, each find judged, and what becomes of refused ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from fuse.classes import CLASSES
from fuse.engine.explain import Near
from fuse.engine.record import Miss, Outcome, Record, state
from fuse.engine.rewriter import CompiledRule, Sweep, compile_rule
from fuse.engine.rewriter import Whole as Placed
from fuse.ir import Graph, Op, leaves
from fuse.placement import Land
from fuse.placing import aliases, realized
from fuse.rule import Rule
from fuse.shim import Candidate, Refused, Shim, Whole


class Step(NamedTuple):
    """One step of a compile, in order; a rule of the table or of the chip."""

    name: str
    rule: Rule


def realizes(op: Op) -> tuple[str, ...]:
    """What a fused op answers for: its class, what that is composed of, its placements and its members'."""
    found: dict[str, None] = {}
    todo = [op]
    while todo:
        at = todo.pop()
        if not at.parts:
            continue
        if at.kind in CLASSES:
            found[at.kind] = None
            found.update(dict.fromkeys(CLASSES[at.kind].composed_of))
        for name in (name for placement in at.placements for name in realized(at, placement)):
            found[name] = None
        todo += reversed(at.parts)
    return tuple(found)


@lru_cache(maxsize=256)
def _compiled(rule: Rule) -> CompiledRule:
    return compile_rule(rule)


class Stone(NamedTuple):
    """A refused op that stands in its graph. placed: what is refused is where it reads or writes."""

    graph: Graph
    kind: str
    placed: bool


@dataclass
class Compile:
    """A compile under way.

    stones: the refused ops that stand for later rules to build on, by path. loose: whether something
    came apart, or lost a reader, that a rule which runs again has not seen. would: what the chip
    refuses of what refused ops would have become. needed: the paths of refused ops that a later step
    builds on whole. ahead: whether later steps were taken where refused placements stand. explains:
    whether near misses are sought too.
    """

    graph: Graph
    shim: Shim
    records: list[Record] = field(default_factory=list)
    stones: dict[str, Stone] = field(default_factory=dict)
    loose: bool = False
    would: list[Record] = field(default_factory=list)
    needed: set[str] = field(default_factory=set)
    ahead: bool = False
    explains: bool = True
    #: The last word on an op as it stood, and on one that a rule of this name built.
    _verdicts: dict[object, Outcome] = field(default_factory=dict)

    def run(self, plan: tuple[Step, ...], held: tuple[str, ...], index: int) -> None:
        """One step of the plan.

        Refused ops that no step from here on reads come apart before it; before a rule that matches
        primitives all do that no later step needs. A held step leaves the graph as it is.
        """
        last = _last_reader(plan)
        step = plan[index]
        if self.stones:
            if not self.ahead and any(stone.placed for stone in self.stones.values()):
                self._go_on_placed(tuple(step for step in plan[index:] if step.name not in held))
            self.dissolve_stones(lambda path, kind: last.get(kind, -1) >= index)
        if step.rule.primitives and self.stones:
            self._go_on_with_stones(plan[index:], held)
        if step.name not in held:
            if step.rule.primitives:
                self._come_apart(plan[:index], held)
            self.step(step.rule, self.graph, held=False)
        elif step.rule.primitives:
            twin = self._twin()
            twin._come_apart(plan[:index], held)
            self.step(step.rule, twin.graph, held=True)
        else:
            self.step(step.rule, self.graph.copy(), held=True)

    def _come_apart(self, done: tuple[Step, ...], held: tuple[str, ...]) -> None:
        """Undo the refused ops that no later step needs; earlier rules that run again see what they were
        made of."""
        self._dissolve_unneeded()
        if not self.loose:
            return
        for step in done:
            if step.rule.again and step.name in held:
                self.step(step.rule, self.graph.copy(), held=True)
            elif step.rule.again:
                self.step(step.rule, self.graph, held=False)
                self._dissolve_unneeded()
        self.loose = False

    def _go_on_with_stones(self, steps: tuple[Step, ...], held: tuple[str, ...]) -> None:
        """Take these steps on a copy where refused ops stand on: what the chip refuses of that is told, and
        what it runs whole keeps the refused ops in it and behind it standing.

        They stand on though the step that needs them is held: that changes no decision before it.
        """
        free = self._taken(steps)
        withheld = {step.name for step in steps}.intersection(held)
        told = self._taken(tuple(s for s in steps if s.name not in withheld)) if withheld else free
        self.would += [record for record in told if record.outcome == "refused"]
        primitives = {step.name for step in steps if step.rule.primitives}
        #: value -> the refused ops that make or read it: a rule may have come from one that reads
        beside: dict[str, list[str]] = {}
        for path, stone in self.stones.items():
            op = stone.graph.producer(path)
            for value in (path, *(op.inputs if op is not None else ())):
                beside.setdefault(value, []).append(path)
        for record in free:
            if record.outcome == "fired" and record.rule not in primitives:
                made = (value for leaf in record.ops for value in leaf.outputs)
                self.needed.update(path for value in made for path in beside.get(value, ()))

    def _go_on_placed(self, steps: tuple[Step, ...]) -> None:
        """Take these steps on a copy where refused placements stand on: a block may need them."""
        self.ahead = True
        self.would += [record for record in self._taken(steps) if record.outcome == "refused"]

    def _taken(self, steps: tuple[Step, ...]) -> list[Record]:
        """What these steps decide on a copy."""
        copy = Compile(self.graph.copy(), self.shim, explains=False)
        for step in steps:
            copy.step(step.rule, copy.graph, held=False)
        return copy.records

    def _twin(self) -> Compile:
        """A compile of its own that stands where this one does."""
        graph = self.graph.copy()
        graphs = {one.base.prefix: one for one in (*graph.bodies(), graph)}
        stones = {
            path: stone._replace(graph=graphs[stone.graph.base.prefix]) for path, stone in self.stones.items()
        }
        twin = Compile(graph, self.shim, stones=stones, loose=self.loose, needed=self.needed)
        twin._verdicts = self._verdicts.copy()
        return twin

    def _dissolve_unneeded(self) -> None:
        self.dissolve_stones(lambda path, kind: path in self.needed)

    def step(self, rule: Rule, graph: Graph, held: bool) -> None:
        for one in (*graph.bodies(), graph):
            commit = self._commit_held if held else self._commit
            caps = self.shim.caps(rule.builds_classes[0])
            sweep = Sweep(_compiled(rule), one, self._judge, commit, caps, explains=self.explains)
            sweep.run()
            for near in sweep.misses.values():
                self._miss(rule, one, near)

    def _judge(self, graph: Graph, op: Op) -> Whole | Refused:
        """The chip's word; what is only a name is whole where each op that reads it is."""
        verdict = self.shim.judge(Candidate(op.kind, op, graph))
        if isinstance(verdict, Refused) or not aliases(op):
            return verdict
        for slot in dict.fromkeys(slot for value in op.outputs for slot in graph.readers(value)):
            reader = graph.slots[slot]
            if reader is not None and reader.parts and self._refused(reader):
                return self.shim.judge(Candidate(reader.kind, reader, graph))
        return verdict

    def _commit(self, rule: Rule, graph: Graph, placed: Placed, verdict: Whole | Refused) -> None:
        self._put(rule, graph, placed, verdict, held=False)

    def _commit_held(self, rule: Rule, graph: Graph, placed: Placed, verdict: Whole | Refused) -> None:
        self._put(rule, graph, placed, verdict, held=True)

    def _put(self, rule: Rule, graph: Graph, placed: Placed, verdict: Whole | Refused, held: bool) -> None:
        refused = isinstance(verdict, Refused)
        op = graph.replace(placed.op, placed.slot)
        outcome: Outcome = "held" if held else "refused" if refused else "fired"
        if not held:
            self.stones.pop(op.path, None)
            # A landing takes a reader away: what the others read may now be read in place.
            self.loose |= rule.places and any(isinstance(one, Land) for one in op.placements)
            if refused:
                self.stones[op.path] = Stone(graph, op.kind, rule.places)
        if self._verdicts.get((rule.name, state(op))) == outcome:
            return
        self._verdicts[rule.name, state(op)] = outcome
        if not held:
            self._verdicts[state(op)] = outcome
        builds = rule.name if rule.places else op.kind
        self.records.append(
            Record(
                outcome=outcome,
                rule=rule.name,
                builds=builds,
                root=op.path,
                ops=tuple(sorted(leaves(op), key=lambda leaf: leaf.slot)),
                graph=graph.base.prefix,
                number=len(self.records),
                op=op,
                limits=verdict.limits if isinstance(verdict, Refused) else (),
                fires=not refused,
                kernel="" if isinstance(verdict, Refused) else verdict.kernel,
                evidence="" if isinstance(verdict, Refused) else verdict.evidence,
                note="" if isinstance(verdict, Refused) else verdict.note,
                realizes=realizes(op),
            )
        )

    def _miss(self, rule: Rule, graph: Graph, near: Near) -> None:
        fault = near.fault
        self.records.append(
            Record(
                outcome="near_miss",
                rule=rule.name,
                builds=rule.builds_classes[0],
                root=near.root,
                ops=near.ops,
                graph=graph.base.prefix,
                number=len(self.records),
                miss=Miss(fault.code, fault.at, fault.want, fault.got, near.matched, near.of, fault.path),
            )
        )

    def dissolve_stones(self, keep: Callable[[str, str], bool]) -> None:
        """Undo the refused ops that nothing took, but those whose class a later step may build on.

        Fused members stay fused; a refused member that comes back stands as a stone of its own.
        """
        todo = list(self.stones)
        while todo:
            path = todo.pop()
            if path not in self.stones:
                continue
            graph, kind, placed = self.stones[path]
            stone = graph.producer(path)
            if stone is None or stone.path != path or stone.kind != kind:
                del self.stones[path]
            elif placed or not keep(path, kind):
                del self.stones[path]
                self.loose |= not placed
                for part in graph.dissolve(stone):
                    if part.parts and self._refused(part):
                        self.stones[part.path] = Stone(graph, part.kind, bool(part.placements))
                        todo.append(part.path)

    def _refused(self, op: Op) -> bool:
        """Whether the last word on an op was that the chip refuses it."""
        return self._verdicts.get(state(op)) == "refused"

    def tell_would(self) -> None:
        """Record what would be built of refused ops, where nothing else was built of them by that rule."""
        told = {(r.rule, r.graph, op.slot) for r in self.records if r.miss is None for op in r.ops}
        for record in self.would:
            places = {(record.rule, record.graph, op.slot) for op in record.ops}
            if told.isdisjoint(places):
                self.records.append(record._replace(number=len(self.records)))
                told |= places

    def close(self, done: tuple[Step, ...], held: tuple[str, ...]) -> None:
        """Undo every refused op that still stands: the graph then holds only what the chip runs whole."""
        self.needed = set()
        self._come_apart(done, held)
        for graph in (*self.graph.bodies(), self.graph):
            todo = [op for op in graph.ops if op.parts]
            while todo:
                op = todo.pop()
                if op.parts and self._refused(op):
                    todo += graph.dissolve(op)


@lru_cache(maxsize=64)
def _last_reader(plan: tuple[Step, ...]) -> dict[str, int]:
    """Class -> the last step whose marks, pattern or forms read it."""
    last: dict[str, int] = {}
    for index, step in enumerate(plan):
        for kind in _compiled(step.rule).kinds.union(step.rule.marks, step.rule.reads):
            last[kind] = index
    return last
