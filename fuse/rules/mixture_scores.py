"""Where a mixture's scores come from, and what its experts are chosen by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from fuse.attributes import attribute
from fuse.guards import FRACTION_BITS, squeezed
from fuse.ir import Graph, Op
from fuse.match import Match
from fuse.rules import mixture_patterns as patterns
from fuse.rules.mixture_walks import filled
from fuse.types import Dims

_SCORING = {"Softmax": "softmax", "Sigmoid": "sigmoid"}


class Scores(NamedTuple):
    """The operands scores and choice, attributes of the class, and the ops taken in for them."""

    scores: str
    choice: str
    attrs: dict[str, Any]
    ops: list[Op]


def _below(graph: Graph, value: str) -> Scores:
    """The logits below a softmax or sigmoid of all scores, casts around it taken in."""
    ops: list[Op] = []
    at, op = _uncast(graph, value, ops)
    if op is None or op.kind not in _SCORING or (op.kind == "Softmax" and attribute(graph, op, "axis") != -1):
        return Scores(value, "", {"scoring": "none"}, [])
    ops.append(op)
    computed = graph.dtype(op.outputs[0])
    at, _ = _uncast(graph, op.inputs[0], ops)
    attrs: dict[str, Any] = {"scoring": _SCORING[op.kind]}
    if computed != graph.dtype(at):
        attrs["routing_compute"] = computed
    return Scores(at, "", attrs, ops)


def _uncast(graph: Graph, value: str, ops: list[Op]) -> tuple[str, Op | None]:
    """Down through casts between floats that round nothing."""
    op = graph.producer(value)
    while op is not None and op.kind == "Cast" and _widens(graph, op):
        ops.append(op)
        value = op.inputs[0]
        op = graph.producer(value)
    return value, op


def _widens(graph: Graph, cast: Op) -> bool:
    bits = [FRACTION_BITS.get(graph.dtype(value), 0) for value in (cast.inputs[0], cast.outputs[0])]
    return 0 < bits[0] <= bits[1]


def scores_of(m: Match, scoring: str) -> Iterator[Scores]:
    """What a mixture's scores may be taken to be, the most taken in first.

    scoring: what the weights of the chosen say of it ("softmax_chosen", or nothing).
    """
    graph = m.graph
    weighed, scored = m["weighed"], m.get("scored")
    if not scored or scored == weighed:
        if scoring:
            yield Scores(weighed, "", {}, [])
            return
        full = _below(graph, weighed)
        if full.ops:
            yield full
        yield Scores(weighed, "", {"scoring": "none"}, [])
        return
    below = _below(graph, scored)
    for own in _choices(m):
        taken = Scores(below.scores, own.choice, {**below.attrs, **own.attrs}, [*below.ops, *own.ops])
        if scoring:
            taken = Scores(scored, own.choice, own.attrs, own.ops)
        yield taken
    yield Scores(scored, weighed, {"selection": "separate"} | ({} if scoring else {"scoring": "none"}), [])


def _choices(m: Match) -> Iterator[Scores]:
    """The values that a choice is made by, as scores with a bias, in groups or not."""
    for matcher, selection in ((patterns.match_biased, "biased"), (patterns.match_grouped, "grouped")):
        own = Match(m.graph)
        own.root = m["weighed"]
        own.bound = {"scored": m["scored"]}
        if not matcher(own, own.root):
            continue
        attrs: dict[str, Any] = {"selection": selection}
        if own.get("bias") and not _one_an_expert(own):
            continue
        if selection == "grouped":
            groups = _groups(own)
            if groups is None:
                continue
            attrs |= groups
        yield Scores("", own.get("bias"), attrs, list(own.ops))


def _one_an_expert(own: Match) -> bool:
    """Whether the bias is one number for each score of a row."""
    bias, scored = own.graph.dims(own["bias"]), own.graph.dims(own["scored"])
    return bias is not None and bool(scored) and scored is not None and squeezed(bias) == scored[-1:]


def _groups(own: Match) -> dict[str, Any] | None:
    """How many groups there are, how many are kept, and by how many of their best; None where unclear."""
    graph = own.graph
    tops = [op for op in own.ops if op.kind in ("TopK", "ReduceMax")]
    if any(op.kind == "TopK" and not op.attrs.get("largest", 1) for op in tops):
        return None
    inner = next((op for op in tops if op.kind == "ReduceMax"), tops[-1])
    dims = graph.dims(inner.inputs[0])
    kept = graph.content(own["kept_k"])
    count = graph.content(own["group_k"]) if own.get("group_k") else (1,)
    if dims is None or len(dims) < 2 or kept is None or count is None:
        return None
    chosen = next((op for op in tops if op.kind == "TopK" and op.inputs[1] == own["kept_k"]), inner)
    if (graph.dims(chosen.inputs[0]) or ())[-1:] != dims[-2:-1]:
        return None
    adds = {op.slot for op in own.ops if op.kind == "Add"}
    scatter = next(op for op in own.ops if op.kind == "ScatterElements")
    rank = len(graph.dims(scatter.outputs[0]) or ())
    marks = filled(graph, own["zeros"]), filled(graph, own["ones"])
    if marks != (0, 1) or scatter.attrs.get("axis", 0) not in (-1, rank - 1) or len(adds) > 1:
        return None
    if scatter.attrs.get("reduction", "none") != "none" or not _each_mark_covers_its_group(own, dims[-2:]):
        return None
    fill = graph.scalar(own["fill"])
    return {
        "groups": dims[-2], "kept_groups": kept[0], "group_best": count[0], "group_fill": float(fill or 0.0),
    }  # fmt: skip


def _each_mark_covers_its_group(own: Match, groups: Dims) -> bool:
    """Whether the mark of a group stands beside each of its scores, [groups, scores of one]."""
    graph = own.graph
    spread = [step.value for step in own.taken("mask") if step.step == "expand"]
    made = graph.producer(spread[0] if spread else own.root)
    marks = None if made is None else graph.dims(made.inputs[0])
    if marks is None or marks[-2:] != (groups[0], 1):
        return False
    return not spread or (len(spread) == 1 and (graph.dims(spread[0]) or ())[-2:] == groups)
