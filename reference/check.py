"""Holds an optimized graph against the one it came from: by parts bit for bit, by definition closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuse.ir import Graph, Op, leaves
from fuse.types import FLOATS, FuseError, Type
from reference import definitions
from reference.compare import TOLERANCE, bit_equal, difference
from reference.eval import HasGraph, Run, Scope, as_graph
from reference.feeds import feeds as random_feeds
from reference.ops.call import Value, short_dtype
from reference.precision import settled


@dataclass(frozen=True)
class Check:
    """What a check found. bit_equal: by parts. max_error: the largest relative difference of any output
    by definition. differs: the op that differs, or None."""

    ok: bool
    seed: int
    dtype: str
    bit_equal: bool
    max_error: str
    differs: str | None = None


class Mismatch(FuseError):
    """The graphs compute different values. `check` is what was found until then."""

    def __init__(self, message: str, check: Check | None = None) -> None:
        super().__init__(message)
        self.check = check


def check(
    before: Graph | HasGraph,
    after: Graph | HasGraph,
    feeds: Mapping[str, Any] | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
) -> Check:
    """Both graphs on the same feeds (random ones by seed and dims where none are given).

    Raises Mismatch, naming the first op that differs, where outputs by parts are not equal bit for
    bit, where a fused op's definition on its true operands is off by more than the tolerance of its
    type, or where the outputs by definition are, by that of the narrowest type the graph computes in.
    """
    lifted, fused = as_graph(before), as_graph(after)
    given = random_feeds(fused, seed, dims) if feeds is None else feeds
    wanted = Run(lifted).outputs(given)
    floats = [
        short_dtype(v) for v in wanted.values() if isinstance(v, np.ndarray) and short_dtype(v) in FLOATS
    ]
    dtype = floats[0] if floats else ""

    def fail(op: str, message: str, equal: bool, error: float) -> Mismatch:
        return Mismatch(message, Check(False, seed, dtype, equal, f"{error:.3g}", op))

    watch = _Definitions()
    got = Run(fused, watch=watch.see).outputs(given)
    for name, value in wanted.items():
        if not bit_equal(got.get(name), value):
            op = _first_by_parts(lifted, fused, given)
            where = f"output {name}" if op is None else f"{op.kind} {op.path}"
            raise fail(name if op is None else op.path, f"{where} differs by parts", False, np.inf)
    if watch.fault is not None:
        op, reason, error = watch.fault
        raise fail(op.path, f"{op.kind} {op.path} differs by definition: {reason}", True, error)
    worst, narrowest = 0.0, _narrowest(lifted)
    for name, value in Run(fused, "definition").outputs(given).items():
        found = difference(value, wanted[name], narrowest) if isinstance(value, np.ndarray) else None
        if found is not None and found.reason:
            message = f"output {name} differs by definition: {found.reason}; each fused op alone agrees"
            raise fail(name, message, True, found.error)
        worst = max(worst, found.error if found is not None else 0.0)
    return Check(True, seed, dtype, True, f"{worst:.3g}")


def _narrowest(graph: Graph) -> str:
    """The float type of least precision that any op of a graph gives; empty where there is none."""
    ops = (op for one in (graph, *graph.bodies()) for op in one.base.lifted)
    found = {graph.dtype(value) for op in ops for value in op.outputs} & TOLERANCE.keys()
    return max(found, key=lambda dtype: TOLERANCE[dtype], default="")


class _Definitions:
    """Watches a run by parts and holds each fused op's results against its definition."""

    def __init__(self) -> None:
        self.fault: tuple[Op, str, float] | None = None

    def see(self, graph: Graph, op: Op, read: Callable[[str], Value], results: tuple[Value, ...]) -> None:
        if not op.parts or self.fault is not None:
            return
        reason, error = held_against_definition(graph, op, read, results)
        if reason:
            self.fault = (op, reason, error)


def held_against_definition(
    graph: Graph, op: Op, read: Callable[[str], Value], results: tuple[Value, ...]
) -> tuple[str, float]:
    """What is wrong with a fused op (nothing: empty), and its largest error."""
    if definitions.composite(op):
        return _members_held(graph, op, read)
    operands = [read(value) for value in definitions.operand_names(op)]
    types = tuple(
        Type(short_dtype(result), result.shape) if isinstance(result, np.ndarray) else graph.type(value)
        for value, result in zip(op.outputs, results, strict=True)
    )
    found = definitions.define(op, operands, types)
    worst = 0.0
    for number, (name, want) in enumerate(zip(op.outputs, results, strict=True)):
        if not name:
            continue
        apart = difference(found[number], want)
        if apart.reason:
            return (apart.reason if number == 0 else f"output {name}: {apart.reason}"), apart.error
        worst = max(worst, apart.error)
    return "", worst


def _members_held(graph: Graph, op: Op, read: Callable[[str], Value]) -> tuple[str, float]:
    """The same for a block or region: each of its members, on what the members before it give."""
    run = Run(graph)
    scope = Scope(run, None)
    made = {value for leaf in leaves(op) for value in leaf.outputs}
    reads = dict.fromkeys(v for leaf in leaves(op) for v in leaf.inputs if v and v not in made)
    scope.values.update((value, read(value)) for value in reads if graph.constant(value) is None)
    worst = 0.0
    for part in op.parts:
        results = run.step(graph, part, scope)
        scope.values.update((v, r) for v, r in zip(part.outputs, results, strict=False) if v)
        if part.parts:
            reason, error = held_against_definition(graph, part, scope.read, tuple(map(settled, results)))
            if reason:
                return f"{part.kind} {part.path} in it: {reason}", error
            worst = max(worst, error)
    return "", worst


def _first_by_parts(lifted: Graph, fused: Graph, feeds: Mapping[str, Any]) -> Op | None:
    """The first lifted op whose results differ between two runs by parts; every value is kept."""
    kept: dict[str, list[tuple[Value, ...]]] = {}
    seen: dict[str, int] = {}
    first: list[Op] = []

    def keep(graph: Graph, op: Op, read: Callable[[str], Value], results: tuple[Value, ...]) -> None:
        kept.setdefault(_key(op), []).append(results)

    def compare(graph: Graph, op: Op, read: Callable[[str], Value], results: tuple[Value, ...]) -> None:
        if first:
            return
        key = _key(op)
        turn = seen[key] = seen.get(key, -1) + 1
        runs = kept.get(key, [])
        if turn >= len(runs) or not all(map(bit_equal, results, runs[turn])):
            first.append(op)

    Run(lifted, watch_leaf=keep).outputs(feeds)
    try:
        Run(fused, watch_leaf=compare).outputs(feeds)
    except FuseError:
        if not first:
            raise
    return first[0] if first else None


def _key(op: Op) -> str:
    return next(value for value in op.outputs if value)
