"""Where a mixture's scores come from, and what its experts are chosen by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from fuse.attributes import attribute
from fuse.ir import Graph, Op
from fuse.match import Match
from fuse.rules import mixture_patterns as patterns
from fuse.rules.mixture_walks import filled
from fuse.types import FLOATS

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
    """Down through casts between floats."""
    op = graph.producer(value)
    while (
        op is not None and op.kind == "Cast" and {graph.dtype(v) for v in (*op.inputs, *op.outputs)} <= FLOATS
    ):
        ops.append(op)
        value = op.inputs[0]
        op = graph.producer(value)
    return value, op


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
        if selection == "grouped":
            groups = _groups(own)
            if groups is None:
                continue
            attrs |= groups
        yield Scores("", own.get("bias"), attrs, list(own.ops))


def _groups(own: Match) -> dict[str, Any] | None:
    """How many groups there are, how many are kept, and by how many of their best; None where unclear."""
    graph = own.graph
    tops = [op for op in own.ops if op.kind in ("TopK", "ReduceMax")]
    inner = next((op for op in tops if op.kind == "ReduceMax"), tops[-1])
    dims = graph.dims(inner.inputs[0])
    kept = graph.content(own["kept_k"])
    count = graph.content(own["group_k"]) if own.get("group_k") else (1,)
    if dims is None or len(dims) < 2 or kept is None or count is None:
        return None
    adds = {op.slot for op in own.ops if op.kind == "Add"}
    scatter = next(op for op in own.ops if op.kind == "ScatterElements")
    rank = len(graph.dims(scatter.outputs[0]) or ())
    marks = filled(graph, own["zeros"]), filled(graph, own["ones"])
    if marks != (0, 1) or scatter.attrs.get("axis", 0) not in (-1, rank - 1) or len(adds) > 1:
        return None
    fill = graph.scalar(own["fill"])
    return {
        "groups": dims[-2], "kept_groups": kept[0], "group_best": count[0], "group_fill": float(fill or 0.0),
    }  # fmt: skip
