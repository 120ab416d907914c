"""Plants one fault (or harmless change) and holds the report and the values against what is true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner

import chips
import fuse
import reference
from fuse.engine.compiler import Optimized
from fuse.ir import leaves
from reference.check import Mismatch
from reference.feeds import feeds as random_feeds

from .draft import Draft, Place, Planted
from .harmless import CHANGES, EVERYWHERE, Change
from .kinds import Plant, kinds_at

Miss = tuple[str, str, str]
#: What saves a copy or gathers what stands: a reader more may well be in its way.
PLACING = frozenset({"read_in_place", "land_in_rows", "land_in_units", "elementwise_region"})


@dataclass
class Clean:
    """A clean model: its compile, its places, and feeds for it."""

    name: str
    model: onnx.ModelProto
    optimized: Optimized
    places: tuple[Place, ...]
    misses: frozenset[Miss]
    fired: Counter[str]
    feeds: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Outcome:
    """What came of one planted fault.

    wrong: why what was fused is not the function of the faulted model (nothing: empty). misses: near
    misses that the clean model does not have. right: whether one of them says what was planted.
    """

    kind: str
    model: str
    place: str
    wrong: str
    misses: tuple[Miss, ...]
    right: bool
    answers: Planted | None = None

    @property
    def reported(self) -> bool:
        return bool(self.misses)


def near(optimized: Optimized) -> frozenset[Miss]:
    return frozenset((d.rule, d.outcome.miss.code, d.outcome.miss.at) for d in optimized.report.near())


def fired(optimized: Optimized) -> Counter[str]:
    return Counter(d.builds for d in optimized.report.decisions if d.outcome.kind == "fired")


def clean(path: Path, feeds: Mapping[str, np.ndarray] | None = None) -> Clean:
    """A model of a file, compiled for a chip that links every class."""
    model = onnx.load(path)
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    return clean_model(model, path.stem, feeds)


def clean_model(model: onnx.ModelProto, name: str, feeds: Mapping[str, np.ndarray] | None = None) -> Clean:
    graph = fuse.load(model)
    optimized = fuse.optimize(graph, shim=chips.load("any"))
    made = {v for node in model.graph.node for v in node.output}
    records = [r for r in optimized.records if r.outcome == "fired" and r.op is not None and not r.graph]
    inside = frozenset(
        v for r in records for leaf in leaves(r.op) for v in leaf.outputs if v not in r.op.outputs
    )
    places = tuple(
        Place(r.rule, r.builds, tuple(leaf for leaf in r.ops), r.op, graph, inside)
        for r in records
        if all(out in made for op in r.ops for out in op.outputs if out)
    )
    given = random_feeds(graph) if feeds is None else feeds
    return Clean(name, model, optimized, places, near(optimized), fired(optimized), given)


def plants(model: Clean) -> Iterator[tuple[str, Place, Plant]]:
    for place in model.places:
        for name, plant in kinds_at(place):
            yield name, place, plant


def compiled(draft: Draft) -> tuple[fuse.Graph, Optimized]:
    graph = fuse.load(draft.model)
    return graph, fuse.optimize(graph, shim=chips.load("any"))


def fused(optimized: Optimized) -> set[object]:
    """Every fused op that means more than its parts, by all that it is."""
    return {
        (
            op.kind,
            op.inputs,
            op.outputs,
            repr(op.attrs),
            tuple((p.kind, p.inputs, repr(p.attrs)) for p in leaves(op)),
        )
        for graph in (*optimized.graph.bodies(), optimized.graph)
        for op in graph.ops
        if op.parts and op.kind != "elementwise_region"
    }


def values_differ(graph: fuse.Graph, optimized: Optimized, feeds: Mapping[str, np.ndarray]) -> str:
    """Why the optimized graph is not the function of the graph; nothing where it is."""
    optimized.graph.verify()
    try:
        reference.check(graph, optimized.graph, feeds)
    except Mismatch as error:
        # Where every fused op agrees on what it is given, half precision has added up on the way.
        return "" if str(error).endswith("each fused op alone agrees") else str(error)
    except (fuse.FuseError, ValueError, TypeError, IndexError) as error:
        return f"not run: {error}"
    return ""


def judge(model: Clean, name: str, place: Place, plant: Plant, check: bool = True) -> Outcome | None:
    """Plant a fault at a place and look; None where the fault does not apply there.

    Values are compared where something is fused that the clean model has not, or always (check).
    """
    draft = Draft.of(model.model)
    try:
        truth = plant(draft, place)
    except LookupError:
        return None
    if truth is None:
        return None
    graph, optimized = compiled(draft)
    misses = near(optimized) - model.misses
    right = any(rule in truth.rules and _holds(truth, code, at) for rule, code, at in misses)
    wrong = ""
    if check or not fused(optimized) <= fused(model.optimized):
        wrong = values_differ(graph, optimized, {**model.feeds, **draft.feeds})
    return Outcome(name, model.name, place.op.outputs[0], wrong, tuple(sorted(misses)), right, truth)


def _holds(truth: Planted, code: str, at: str) -> bool:
    return (code, at) in truth.answers or (code.partition(":")[0] + ":", at) in truth.answers


def harmless(model: Clean, name: str, place: Place, change: Change, check: bool = True) -> Outcome | None:
    """Make a harmless change at a place; `wrong` says what no longer fires."""
    draft = Draft.of(model.model)
    try:
        if not change(draft, place):
            return None
    except LookupError:
        return None
    graph, optimized = compiled(draft)
    lost, now = [], fired(optimized)
    for builds, count in model.fired.items():
        if now[builds] < count and builds not in PLACING:
            lost.append(f"{builds} {now[builds]} of {count}")
    wrong = f"no longer fires: {', '.join(lost)}" if lost else ""
    if check and not wrong:
        wrong = values_differ(graph, optimized, model.feeds)
    misses = tuple(sorted(near(optimized) - model.misses))
    return Outcome(name, model.name, place.op.outputs[0], wrong, misses, not wrong and not misses)


def changes(model: Clean) -> Iterator[tuple[str, Place, Change]]:
    for place in model.places:
        for name, change in CHANGES.items():
            yield f"{place.builds}: {name}", place, change
    for name, change in EVERYWHERE.items():
        if model.places:
            yield name, model.places[0], change
