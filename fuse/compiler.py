"""A compile: the steps of the table over a copy of a graph, judged by a chip, written down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from fuse.chip_rules import rule_of
from fuse.classes import CLASSES
from fuse.collecting import no_collecting
from fuse.explain import Near
from fuse.final import final
from fuse.ir import Graph, Op, leaves
from fuse.placing import realized
from fuse.record import Miss, Record, state
from fuse.rewriter import CompiledRule, Sweep, compile_rule
from fuse.rewriter import Whole as Placed
from fuse.rule import Rule
from fuse.rules.table import ADVANCE, LATE, RULES
from fuse.shim import Candidate, Refused, Shim, Whole
from fuse.types import FuseError

if TYPE_CHECKING:
    from fuse.report import Report

#: Called as work goes on: steps done, steps in all, the name of the step begun.
Progress = Callable[[int, int, str], None]


class Step(NamedTuple):
    """One step of a compile, in order; a rule of the table or of the chip."""

    name: str
    rule: Rule


@dataclass(frozen=True)
class Optimized:
    """What a compile gives: the rewritten graph, the names of the rules that fired, the report."""

    graph: Graph
    before: Graph
    records: tuple[Record, ...]
    shim_name: str
    shim_sha256: str
    held: tuple[str, ...]
    plan: tuple[Step, ...]

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the steps, in order."""
        return tuple(step.name for step in self.plan)

    @cached_property
    def fired(self) -> tuple[str, ...]:
        """The rules that fired, in table order."""
        names = {record.rule for record in self.records if record.outcome == "fired"}
        return tuple(name for name in self.steps if name in names)

    @cached_property
    def rules(self) -> dict[str, str]:
        """The rule that built each fused op that stands, by the op's path."""
        standing = {
            op.path: op for graph in (*self.graph.bodies(), self.graph) for op in graph.ops if op.parts
        }
        return {
            record.root: record.rule
            for record in self.records
            if record.op is not None
            and record.root in standing
            and standing[record.root].kind == record.op.kind
            and standing[record.root].placements == record.op.placements
        }

    @cached_property
    def report(self) -> Report:
        """Every decision of the compile."""
        from fuse.report import build

        return build(
            self.records,
            self.before,
            self.graph,
            chip_name=self.shim_name,
            chip_sha256=self.shim_sha256,
            held=self.held,
            steps=self.steps,
            marks={step.name: step.rule.marks for step in self.plan},
        )


def steps(shim: Shim) -> tuple[Step, ...]:
    """Every step of a compile for a chip, in order: the shared rules, each with the chip's own
    before and after it, the late ones, the chip's closing rules, the advance of the step."""
    own = [(chip_rule, rule_of(chip_rule)) for chip_rule in shim.chip_rules]

    def beside(rule: Rule, place: str) -> list[Rule]:
        return [mine for chip_rule, mine in own if chip_rule.place == place and chip_rule.beside == rule.name]

    order: list[Rule] = []
    for rule in (*RULES, *LATE):
        order += [*beside(rule, "before"), rule, *beside(rule, "after")]
    order += [mine for chip_rule, mine in own if chip_rule.place == "closing"]
    return tuple(Step(rule.name, rule) for rule in (*order, *ADVANCE))


def rule_names() -> tuple[str, ...]:
    """The names of all shared rules, in table order; `held` takes these, and those of a chip's own."""
    return tuple(rule.name for rule in (*RULES, *LATE, *ADVANCE))


def classes_built() -> dict[str, tuple[str, ...]]:
    """Rule -> the classes it may build, in table order. A rule that places names itself: what it builds
    keeps its class."""
    return {rule.name: rule.builds_classes for rule in (*RULES, *LATE, *ADVANCE)}


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


def candidate(
    name: str,
    parts: Op | Iterable[Op],
    graph: Graph,
    operands: Iterable[str] = (),
    attrs: Mapping[str, Any] | None = None,
) -> Candidate:
    """An op of a class that does not stand yet, for a chip to judge: `shim.judge(candidate(...))`.

    parts: ops that stand in the graph, or the fused op itself. operands: values in the order of the
    class ("" where absent); what the parts read beside them follows. attrs: of the class. Raises
    FuseError for an unknown class, or parts that are none.
    """
    if name not in CLASSES:
        near = get_close_matches(name, CLASSES, 3)
        raise FuseError(f"unknown class {name}" + (f"; nearest: {', '.join(near)}" if near else ""))
    if isinstance(parts, Op):
        return Candidate(name, parts, graph)
    ordered = tuple(sorted(parts, key=lambda part: part.slot))
    if not ordered:
        raise FuseError(f"a candidate of {name} has no parts")
    made = {value for part in ordered for value in part.outputs if value}
    reads = dict.fromkeys(value for part in ordered for value in part.inputs if value and value not in made)
    listed = tuple(operands)
    inputs = (*listed, *(value for value in reads if value not in listed and not graph.is_constant(value)))
    slots = {part.slot for part in ordered}
    outputs = tuple(
        value
        for part in ordered
        for value in part.outputs
        if value and (graph.is_output(value) or any(slot not in slots for slot in graph.readers(value)))
    )
    return Candidate(name, Op(name, inputs, outputs, dict(attrs or {}), ordered), graph)


@lru_cache(maxsize=256)
def _compiled(rule: Rule) -> CompiledRule:
    return compile_rule(rule)


@dataclass
class Compile:
    """A compile under way. stones: the refused ops that stand for later rules to build on, by path."""

    graph: Graph
    shim: Shim
    records: list[Record] = field(default_factory=list)
    stones: dict[str, tuple[Graph, str]] = field(default_factory=dict)

    def step(self, rule: Rule, graph: Graph, held: bool) -> None:
        for one in (*graph.bodies(), graph):
            commit = self._commit_held if held else self._commit
            sweep = Sweep(_compiled(rule), one, self._judge, commit, self.shim.caps(rule.builds_classes[0]))
            sweep.run()
            for near in sweep.misses.values():
                self._miss(rule, one, near)

    def _judge(self, graph: Graph, op: Op) -> Whole | Refused:
        return self.shim.judge(Candidate(op.kind, op, graph))

    def _commit(self, rule: Rule, graph: Graph, placed: Placed, verdict: Whole | Refused) -> None:
        self._put(rule, graph, placed, verdict, held=False)

    def _commit_held(self, rule: Rule, graph: Graph, placed: Placed, verdict: Whole | Refused) -> None:
        self._put(rule, graph, placed, verdict, held=True)

    def _put(self, rule: Rule, graph: Graph, placed: Placed, verdict: Whole | Refused, held: bool) -> None:
        refused = isinstance(verdict, Refused)
        op = graph.replace(placed.op, placed.slot)
        if not held:
            self.stones.pop(op.path, None)
            if refused:
                self.stones[op.path] = (graph, op.kind)
        builds = rule.name if rule.places else op.kind
        self.records.append(
            Record(
                outcome="held" if held else "refused" if refused else "fired",
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

    def dissolve_stones(self, keep: Callable[[str], bool]) -> None:
        """Undo the refused ops that nothing took, but those whose class a later step may build on.

        Fused members stay fused; a refused member that comes back stands as a stone of its own.
        """
        todo = list(self.stones)
        while todo:
            path = todo.pop()
            if path not in self.stones:
                continue
            graph, kind = self.stones[path]
            stone = graph.producer(path)
            if stone is None or stone.path != path or stone.kind != kind:
                del self.stones[path]
            elif not keep(kind):
                del self.stones[path]
                for part in graph.dissolve(stone):
                    if part.parts and self._refused(part):
                        self.stones[part.path] = (graph, part.kind)
                        todo.append(part.path)

    def _refused(self, op: Op) -> bool:
        """Whether the last word on an op was that the chip refuses it."""
        place = state(op)
        last = [
            r.outcome
            for r in self.records
            if r.root == op.path and r.op is not None and r.outcome != "held" and state(r.op) == place
        ]
        return bool(last) and last[-1] == "refused"

    def close(self) -> None:
        """Undo every refused op that still stands: the graph then holds only what the chip runs whole."""
        self.dissolve_stones(lambda kind: False)
        last = {state(r.op): r.outcome for r in self.records if r.op is not None and r.outcome != "held"}
        for graph in (*self.graph.bodies(), self.graph):
            todo = [op for op in graph.ops if op.parts]
            while todo:
                op = todo.pop()
                if op.parts and last.get(state(op)) == "refused":
                    todo += graph.dissolve(op)


def _last_reader(plan: tuple[Step, ...]) -> dict[str, int]:
    """Class -> the last step whose marks, pattern or forms read it."""
    last: dict[str, int] = {}
    for index, step in enumerate(plan):
        for kind in _compiled(step.rule).kinds.union(step.rule.marks, step.rule.reads):
            last[kind] = index
    return last


@no_collecting()
def optimize(
    graph: Graph,
    shim: Shim,
    held: Iterable[str] = (),
    dims: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> Optimized:
    """Run the table over a copy of the graph for a chip.

    held: names of steps that do not change the graph; where they would have fired is seen on a
    copy. dims: sizes of symbolic dimensions, by symbol. Raises FuseError for an unknown held rule
    or symbol.
    """
    plan = steps(shim)
    names = tuple(step.name for step in plan)
    held = tuple(dict.fromkeys([held] if isinstance(held, str) else held))
    for name in held:
        if name not in names:
            near = get_close_matches(name, names, 3)
            raise FuseError(f"unknown held rule {name!r}" + (f"; nearest: {', '.join(near)}" if near else ""))
    if dims:
        from fuse.binding import bind

        graph = bind(graph, dims)
    work = Compile(graph.copy(), shim)
    last = _last_reader(plan)
    for index, step in enumerate(plan):
        if progress is not None:
            progress(index, len(plan), step.name)
        if work.stones:
            work.dissolve_stones(_wanted_later(last, index, step.rule))
        if step.name in held:
            work.step(step.rule, work.graph.copy(), held=True)
        else:
            work.step(step.rule, work.graph, held=False)
    work.close()
    if progress is not None:
        progress(len(plan), len(plan), "done")
    return Optimized(work.graph, graph, final(work.records), shim.name, shim.sha256, held, plan)


def _wanted_later(last: Mapping[str, int], now: int, rule: Rule) -> Callable[[str], bool]:
    """Whether a stone of a class stays: a step from now on reads it, and that step is not held off
    by a rule that matches primitives."""
    return lambda kind: not rule.primitives and last.get(kind, -1) >= now
