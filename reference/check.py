"""Holds an optimized graph against the one it came from: by parts bit for bit, by definition closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuse.ir import Graph, Op, leaves
from fuse.types import FLOATS, FuseError, Type, roots, substitute
from reference import definitions
from reference.compare import bit_equal, difference
from reference.eval import Run, Scope, _HasGraph, as_graph
from reference.feeds import OTHER, symbol_sizes
from reference.feeds import feeds as random_feeds
from reference.ops.call import NUMPY, Value, short_dtype


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


@dataclass(frozen=True)
class Each:
    """One fused op held alone against its definition. error: relative; None where it was not checked,
    and then the reason."""

    op: str
    builds: str
    error: float | None
    reason: str = ""


def check(
    before: Graph | _HasGraph,
    after: Graph | _HasGraph,
    feeds: Mapping[str, Any] | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
) -> Check:
    """Both graphs on the same feeds (random ones by seed and dims where none are given).

    Raises Mismatch, naming the first op that differs, where outputs by parts are not equal bit for
    bit, where a fused op's definition on its true operands is off by more than the tolerance of its
    type, or where the outputs by definition are.
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
    worst = 0.0
    for name, value in Run(fused, "definition").outputs(given).items():
        found = difference(value, wanted[name]) if isinstance(value, np.ndarray) else None
        if found is not None and found.reason:
            message = f"output {name} differs by definition: {found.reason}; each fused op alone agrees"
            raise fail(name, message, True, found.error)
        worst = max(worst, found.error if found is not None else 0.0)
    return Check(True, seed, dtype, True, f"{worst:.3g}")


class _Definitions:
    """Watches a run by parts and holds each fused op's results against its definition."""

    def __init__(self) -> None:
        self.fault: tuple[Op, str, float] | None = None

    def see(self, graph: Graph, op: Op, read: Callable[[str], Value], results: tuple[Value, ...]) -> None:
        if not op.parts or self.fault is not None:
            return
        reason, error = _held_against_definition(graph, op, read, results)
        if reason:
            self.fault = (op, reason, error)


def _held_against_definition(
    graph: Graph, op: Op, read: Callable[[str], Value], results: tuple[Value, ...]
) -> tuple[str, float]:
    """What is wrong with a fused op (nothing: empty), and its largest error."""
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


# ---- each op alone -------------------------------------------------------------------------------
def check_each(
    optimized: Graph | _HasGraph, seed: int = 0, dims: Mapping[str, int] | None = None
) -> list[Each]:
    """Each fused op alone on random operands of its own types: its parts beside its definition.

    Weights are read one op at a time, so a model that does not fit in memory is checked too. An op
    that cannot be run alone is in the list with the reason. Raises Mismatch at the first that differs.
    """
    whole = as_graph(optimized)
    sizes = symbol_sizes(whole, dims)
    found = []
    for graph in (*whole.bodies(), whole):
        for op in graph.ops:
            if op.parts:
                found.append(_alone(whole, graph, op, sizes, np.random.default_rng(seed)))
    return found


def _alone(whole: Graph, graph: Graph, op: Op, sizes: Mapping[str, int], rng: np.random.Generator) -> Each:
    run = Run(whole)
    scope = Scope(run, None)
    try:
        _fill(graph, op, scope, sizes, rng)
        with np.errstate(all="ignore"):
            results = tuple(_settled(scope, op, run, graph))
    except FuseError as error:
        return Each(op.path, op.kind, None, str(error))
    reason, apart = _held_against_definition(graph, op, scope.read, results)
    if reason:
        check = Check(False, 0, short_dtype(results[0]), True, f"{apart:.3g}", op.path)
        raise Mismatch(f"{op.kind} {op.path} differs by definition: {reason}", check)
    return Each(op.path, op.kind, apart)


def _settled(scope: Scope, op: Op, run: Run, graph: Graph) -> list[Value]:
    """The results of the parts, in their own types."""
    scope.values.update(zip(op.outputs, run.step(graph, op, scope), strict=True))
    return [scope.read(value) if value else None for value in op.outputs]


def _fill(graph: Graph, op: Op, scope: Scope, sizes: Mapping[str, int], rng: np.random.Generator) -> None:
    """Random values for what an op reads; constants are read where they are."""
    inside = {value for leaf in leaves(op) for value in leaf.outputs}
    reads = dict.fromkeys((*op.inputs, *(v for leaf in leaves(op) for v in leaf.inputs)))
    rows = _table_rows(graph, op, sizes)
    for value in reads:
        if value and value not in inside and graph.constant(value) is None:
            scope.values[value] = _random(graph, value, sizes, rng, rows)


def _random(
    graph: Graph, value: str, sizes: Mapping[str, int], rng: np.random.Generator, rows: int
) -> np.ndarray:
    """A shape vector from its contents, else random values; ids stay below the rows of any table."""
    type = graph.type(value)
    if type.dims is None or type.dtype not in NUMPY:
        raise FuseError(f"the type of operand {value} is not known ({type})")
    shape = tuple(_bound(dim, sizes) for dim in type.dims)
    content = graph.content(value)
    if content is not None and None not in content:
        return np.asarray([_bound(e, sizes) for e in content]).reshape(shape).astype(NUMPY[type.dtype])
    if type.dtype == "bool":
        return rng.random(shape) < 0.7
    if type.dtype in FLOATS:
        return rng.standard_normal(shape).astype(NUMPY[type.dtype])
    return rng.integers(0, max(1, rows), shape).astype(NUMPY[type.dtype])


def _table_rows(graph: Graph, op: Op, sizes: Mapping[str, int]) -> int:
    """The fewest rows of any table that a part selects from."""
    found = [2]
    for leaf in leaves(op):
        if leaf.kind in ("Gather", "RotaryEmbedding", "com.microsoft.RotaryEmbedding"):
            table = leaf.inputs[0] if leaf.kind == "Gather" else leaf.inputs[-2 if "." in leaf.kind else 1]
            dims = graph.dims(table)
            if dims:
                found.append(
                    _bound(dims[int(leaf.attrs.get("axis", 0)) if leaf.kind == "Gather" else 0], sizes)
                )
    return min(found)


def _bound(dim: Any, sizes: Mapping[str, int]) -> Any:
    """A dimension or an element of a shape for these sizes; what no input tells gets a small size."""
    if not hasattr(dim, "symbols"):
        return dim
    return substitute(dim, {**dict.fromkeys(roots(dim), OTHER), **sizes})
