"""A compile: the steps of the table over a copy of a graph, judged by a chip, written down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fuse.classes import CLASSES
from fuse.classes.declare import REQUIRED
from fuse.engine.chip_rules import rule_of
from fuse.engine.collecting import no_collecting
from fuse.engine.compiling import Compile, Step
from fuse.engine.final import final
from fuse.engine.record import Record
from fuse.ir import Graph, Op
from fuse.rule import Rule
from fuse.rules.table import ADVANCE, LATE, RULES
from fuse.shim import Candidate, Shim
from fuse.types import FuseError

if TYPE_CHECKING:
    from fuse.report import Report

#: Called as work goes on: steps done, steps in all, the name of the step begun.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, repr=False)
class Optimized:
    """What a compile gives: the rewritten graph, the names of the rules that fired, the report."""

    graph: Graph
    before: Graph
    records: tuple[Record, ...]
    shim_name: str
    shim_sha256: str
    held: tuple[str, ...]
    plan: tuple[Step, ...]

    def __repr__(self) -> str:
        return f"<{len(self.before.ops)} -> {len(self.graph.ops)} ops for {self.shim_name}, {self.report!r}>"

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
    before and after it, the late ones, the chip's closing rules, the advance of the step.

    Raises FuseError for what is no shim, the name of a chip say."""
    if not hasattr(shim, "chip_rules"):
        raise FuseError(f"a shim is wanted, as chips.load gives it, got {shim!r}")
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
    FuseError for an unknown class, parts that are none, or an attribute without a default that is missing.
    """
    if name not in CLASSES:
        near = get_close_matches(name, CLASSES, 3)
        raise FuseError(f"unknown class {name}" + (f"; nearest: {', '.join(near)}" if near else ""))
    if isinstance(parts, Op):
        return Candidate(name, parts, graph)
    ordered = tuple(sorted(parts, key=lambda part: part.slot))
    if not ordered:
        raise FuseError(f"a candidate of {name} has no parts")
    given = dict(attrs or {})
    missing = [k for k, attr in CLASSES[name].attrs.items() if attr.default is REQUIRED and k not in given]
    if missing:
        raise FuseError(f"a candidate of {name} has no attribute {missing[0]}")
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
    return Candidate(name, Op(name, inputs, outputs, given, ordered), graph)


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
    or symbol, and for a graph or a shim that is none.
    """
    if not isinstance(graph, Graph):
        raise FuseError(f"a graph of fuse.load is wanted, got {type(graph).__name__}")
    plan = steps(shim)
    names = tuple(step.name for step in plan)
    held = tuple(dict.fromkeys([held] if isinstance(held, str) else held))
    for name in held:
        if name not in names:
            near = get_close_matches(str(name), names, 3)
            raise FuseError(f"unknown held rule {name!r}" + (f"; nearest: {', '.join(near)}" if near else ""))
    if dims:
        from fuse.binding import bind

        graph = bind(graph, dims)
    work = Compile(graph.copy(), shim)
    for index, step in enumerate(plan):
        if progress is not None:
            progress(index, len(plan), step.name)
        work.run(plan, held, index)
    work.close(plan, held)
    work.tell_would()
    if progress is not None:
        progress(len(plan), len(plan), "done")
    return Optimized(work.graph, graph, final(work.records), shim.name, shim.sha256, held, plan)
