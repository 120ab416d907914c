"""Finds mixtures of experts from the choice that each is made by, and reads what was found."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from fuse.attributes import attribute
from fuse.guards import dims_text
from fuse.ir import Graph, Op
from fuse.match import Match
from fuse.match.plausible import FAMILIES
from fuse.rule import Wrong
from fuse.rules import mixture_patterns as patterns
from fuse.rules.mixture_facts import (
    Expert,
    Facts,
    check_alike,
    check_casts,
    check_choice,
    check_repeat,
    check_sum,
    read_expert,
    read_route,
    rows_of,
    single_products,
    stacked_products,
)
from fuse.types import Dims

#: How far a choice may be from the sum, in ops: those of a whole batched mixture, or of one expert.
REACH = 128
_SUMS = next(family for family in FAMILIES if "ReduceSum" in family)
_SCATTERS = frozenset({"ScatterElements", "ScatterND"})
#: What a walk over the experts keeps from one to the next.
_SHARED = frozenset({"x", "choice", "k", "weighed", "weighed_k", "scored", "table", "hits"})


def reached(graph: Graph, value: str, through: Collection[str], wanted: Collection[str]) -> list[Op]:
    """The nearest ops of the wanted kinds above a value, through kinds that may stand between."""
    found: list[Op] = []
    seen: set[int] = set()
    level = [value]
    while level and len(seen) < REACH:
        above: list[str] = []
        for slot in (slot for v in level for slot in graph.readers(v)):
            op = graph.slots[slot]
            if op is None or slot in seen:
                continue
            seen.add(slot)
            if op.kind in wanted:
                found.append(op)
            elif op.kind in through:
                above += [v for v in op.outputs if v]
        level = above
    return found


def find_mixtures(graph: Graph, top: Op, budget: int) -> Iterator[Match]:
    """The mixtures whose experts one TopK chooses, each with its facts; a fault may stand in one."""
    if top.kind != "TopK" or len(top.outputs) < 2 or not top.outputs[1]:
        return
    for found in (*_batched(graph, top, budget), *_looped(graph, top, budget)):
        facts = found.bound["facts"]
        check_casts(found, facts.wrong)
        check_alike(graph, facts, _width(graph, found["x"]))
        yield found


def _width(graph: Graph, x: str) -> Any:
    dims = graph.dims(x)
    return dims[-1] if dims else None


# ---- batched ---------------------------------------------------------------------------------------
def _batched(graph: Graph, top: Op, budget: int) -> Iterator[Match]:
    sums = _SUMS if budget else ("ReduceSum",)
    through = patterns.NEAR_BETWEEN if budget else patterns.BETWEEN
    for root in sorted(reached(graph, top.outputs[1], through, sums), key=lambda op: -op.slot):
        m = Match(graph, budget)
        m.root = root.outputs[0]
        if not patterns.match_batched(m, m.root) or top not in m.ops:
            continue
        rows = {m[f"{name}_times"].x for name in ("first", "second") if f"{name}_times" in m.bound}
        biases = {step.bound["bias_index"] for step in m.steps if step.step == "bias"}
        if not all(patterns.match_repeated(m, value) for value in sorted(rows)):
            continue
        if not all(patterns.match_indices(m, value) for value in sorted(biases)):
            continue
        wrong: dict[str, Wrong] = {}
        k = check_choice(m, top, wrong)
        attrs = read_route(m, m.steps, k, wrong)
        expert = read_expert(m, m.steps, stacked_products(m, wrong), wrong)
        check_repeat(m, k, wrong)
        check_sum(m, k, wrong)
        stack = graph.dims(expert.first)
        count = stack[0] if stack and isinstance(stack[0], int) else 0
        m.bound = {**m.bound, "facts": Facts(m.root, [expert], count, k, attrs, wrong), "top": top}
        yield m


# ---- looped ----------------------------------------------------------------------------------------
def _looped(graph: Graph, top: Op, budget: int) -> Iterator[Match]:
    hot = reached(graph, top.outputs[1], patterns.FLAT_KINDS, ("OneHot",))
    tables = [op for one in hot for op in reached(graph, one.outputs[0], (), ("Transpose",))]
    if len(hot) != 1 or len(tables) != 1:
        return
    table = tables[0].outputs[0]
    last = _last_sum(graph, table)
    if last is None:
        return
    m = Match(graph, budget)
    m.root = last.outputs[0]
    if not patterns.match_indices(m, hot[0].inputs[0]):
        return
    wrong: dict[str, Wrong] = {}
    experts = _experts(m, top, table, wrong)
    if experts is None:
        return
    k = check_choice(m, top, wrong)
    attrs = read_route(m, m.bound["route"], k, wrong)
    numbers = sorted(experts)
    if numbers != list(range(len(numbers))):
        wrong.setdefault("every_expert_is_added", Wrong(m.root, f"experts {numbers}"))
    if (hits := m.bound.get("hits")) is not None:
        facts = _of_hits(m, hits, experts, k, attrs, wrong)
    else:
        every = [experts[n] for n in numbers]
        facts = Facts(m.root, every, len(every), k, {"stacked": False, **attrs}, wrong)
    _check_table(m, top, hot[0], tables[0], facts, wrong)
    m.ops += [*_spread_shapes(graph, m.ops)]
    m.bound = {**m.bound, "facts": facts, "top": top}
    yield m


def _of_hits(
    m: Match, hits: Op, experts: dict[int, Expert], k: int, attrs: dict[str, Any], wrong: dict[str, Wrong]
) -> Facts:
    """A loop over the experts that were hit is all of the mixture: the rest add nothing."""
    graph, found = m.graph, list(experts.values())
    if len(hits.outputs) != len(found):
        got = f"{len(found)} of the {len(hits.outputs)} that were hit"
        wrong.setdefault("every_expert_is_added", Wrong(m.root, got))
    if any(expert != found[0] for expert in found):
        wrong.setdefault("experts_are_alike", Wrong(m.root, "other stacks of weights"))
    for op in m.ops:
        inside = op.kind == "ReduceSum" and op.inputs[0] == m["table"]
        if (inside and not _sums_all(graph, op)) or (op is hits and not _one_each(graph, op)):
            wrong.setdefault("every_expert_is_added", Wrong(op.outputs[0], "another choice of experts"))
    stack = graph.dims(found[0].first)
    count = stack[0] if stack and isinstance(stack[0], int) else 0
    return Facts(m.root, found[:1], count, k, attrs, wrong)


def _sums_all(graph: Graph, op: Op) -> bool:
    """Whether a sum of the table goes over choices and rows: how often each expert was chosen."""
    axes = attribute(graph, op, "axes")
    return (
        isinstance(axes, tuple) and {axis % 3 for axis in axes} == {1, 2} and not op.attrs.get("keepdims", 1)
    )


def _one_each(graph: Graph, op: Op) -> bool:
    """Whether a split gives each number of an expert alone."""
    return op.attrs.get("axis", 0) == 0 and all(graph.dims(out) == (1, 1) for out in op.outputs)


def _last_sum(graph: Graph, table: str) -> Op | None:
    """The sum that takes the last expert's results, from the first expert's on."""
    readers = (graph.slots[slot] for slot in graph.readers(table))
    op = next((op for op in readers if op is not None and op.kind == "Gather"), None)
    scatter = reached(graph, op.outputs[0], patterns.BETWEEN, _SCATTERS) if op is not None else []
    last = scatter[0] if scatter else None
    while last is not None:
        above = [graph.slots[slot] for slot in graph.readers(last.outputs[0])]
        adding = [op for op in above if op is not None and _takes(graph, op, last.outputs[0])]
        if len(adding) != 1:
            break
        last = adding[0]
    return last


def _takes(graph: Graph, op: Op, value: str) -> bool:
    """Whether an op adds an expert's results to a sum: an Add of a scatter, or a scatter that adds."""
    if op.kind in _SCATTERS:
        return op.inputs[0] == value and op.attrs.get("reduction", "none") != "none"
    if op.kind != "Add":
        return False
    other = next((v for v in op.inputs if v != value), value)
    makers = [graph.producer(v) for v in (value, other)]
    return any(maker is not None and _lands_apart(graph, maker) for maker in makers)


def _lands_apart(graph: Graph, op: Op) -> bool:
    """Whether an op is a scatter onto rows of its own, that adds nothing to a sum itself."""
    if op.kind not in _SCATTERS:
        return False
    return op.attrs.get("reduction", "none") == "none" or filled(graph, op.inputs[0]) is not None


def _experts(m: Match, top: Op, table: str, wrong: dict[str, Wrong]) -> dict[int, Expert] | None:
    """The experts from the last sum down, by number; None where one is none."""
    graph, found = m.graph, dict[int, Expert]()
    value = m.root
    width = graph.dims(value)
    while (step := _contribution(graph, value)) is not None:
        scatter, sums, rest = step
        bound, ops, steps = m.bound, len(m.ops), len(m.steps)
        m.ops += sums
        if not _expert_again(m, scatter) or m.bound["table"] != table:
            return None
        number = _number(m)
        if number is None:
            return None
        _check_step(m, m.ops[ops:], scatter, width, wrong)
        taken = m.steps[steps:]
        expert = read_expert(m, taken, single_products(m, taken), wrong)
        if number in found:
            wrong.setdefault("every_expert_is_added", Wrong(value, f"expert {number} twice"))
        found[number] = expert
        route = bound.get("route") or [s for s in taken if s.star == "route"]
        lanes = m.number("lanes") if m.get("lanes") else None
        m.bound = {key: v for key, v in m.bound.items() if key in _SHARED} | {"route": route, "stride": lanes}
        value = rest
    start = graph.producer(value)
    if start is not None and start.kind == "ConstantOfShape":
        m.ops.append(start)
    if found and filled(graph, value) != 0:
        wrong.setdefault("the_sum_begins_at_zero", Wrong(value, "other values"))
    return found or None


def _number(m: Match) -> int | None:
    """The number of an expert, or its place among those that were hit."""
    if m.get("expert"):
        number = m.number("expert")
        return None if number is None else int(number)
    graph, value = m.graph, m["hit"]
    op = graph.producer(value)
    while op is not None and op.kind != "Split":
        value = op.inputs[0]
        op = graph.producer(value)
    if op is None or m.bound.setdefault("hits", op) is not op:
        return None
    return op.outputs.index(value)


def _expert_again(m: Match, scatter: Op) -> bool:
    """Match one expert more. What is wrong in the routing is met by each of them, and is one fault."""
    held, m.effort = m.fault, 0
    if held is None:
        return _expert(m, scatter)
    m.budget, m.fault = 1, None
    fine = _expert(m, scatter) and m.fault in (None, held)
    m.budget, m.fault = 0, held
    return fine


def _expert(m: Match, scatter: Op) -> bool:
    """Match what one expert scatters: its results, their weights, and the rows that both are of."""
    begin = len(m.ops)
    if not patterns.match_place(m, scatter.inputs[1]):
        return False
    update = patterns.match_update
    if not m.get("expert"):
        m.bound["hit"] = _looked_up(m, begin)[0]
        update = patterns.match_update_of_hit
    if not update(m, scatter.inputs[2]):
        return False
    bound = m.bound
    products = [bound[f"{name}_product"] for name in ("first", "second") if f"{name}_product" in bound]
    places = [bound["row"]]
    for x in dict.fromkeys(product.x for product in products):
        m.bound = {key: value for key, value in m.bound.items() if key != "row"}
        if not patterns.match_rows(m, x):
            return False
        places.append(m.bound["row"])
    fine = all(patterns.match_row(m, place) for place in places) and patterns.match_lane(m, bound["lane"])
    m.bound = {**bound, **m.bound}
    return fine and (bool(m.get("expert")) or _looked_up(m, begin) == [m["hit"]])


def _looked_up(m: Match, begin: int) -> list[str]:
    """By which numbers the ops from one on look up the table."""
    found = (op.inputs[1] for op in m.ops[begin:] if op.kind == "Gather" and op.inputs[0] == m["table"])
    return list(dict.fromkeys(found))


def _contribution(graph: Graph, value: str) -> tuple[Op, list[Op], str] | None:
    """The scatter of an expert's results, the ops that add it to a sum, and that sum before."""
    op = graph.producer(value)
    if op is None:
        return None
    if op.kind in _SCATTERS and op.attrs.get("reduction", "none") != "none":
        return op, [op], op.inputs[0]
    if op.kind != "Add" or len(op.inputs) != 2:
        return None
    for scattered, rest in (op.inputs, op.inputs[::-1]):
        scatter = graph.producer(scattered)
        if scatter is not None and _lands_apart(graph, scatter):
            zeros = graph.producer(scatter.inputs[0])
            return scatter, [op, scatter, *([zeros] if zeros is not None else [])], rest
    return None


def _check_step(m: Match, ops: list[Op], scatter: Op, width: Dims | None, wrong: dict[str, Wrong]) -> None:
    """One expert's own places, and results that land on zeros, a row each."""
    graph, table = m.graph, m["table"]
    onto, reduction = scatter.inputs[0], scatter.attrs.get("reduction", "none")
    fine = reduction == "add" or (reduction == "none" and filled(graph, onto) == 0)
    if reduction not in ("add", "none") or scatter.attrs.get("axis", 0) != 0:
        got = f"axis={scatter.attrs.get('axis', 0)}, reduction={reduction}"
        wrong.setdefault("results_are_written_by_row", Wrong(scatter.outputs[0], got))
    elif not fine or graph.dims(onto) != width:
        got = f"a scatter ({reduction}) onto {dims_text(graph.dims(onto))}"
        wrong.setdefault("the_sum_begins_at_zero", Wrong(scatter.outputs[0], got))
    for op in ops:
        if op.kind == "Split" and op is not m.get("hits") and op.attrs.get("axis", 0) not in (1, -1):
            wrong.setdefault("places_are_choice_and_row", Wrong(op.outputs[0], "a split of places"))
        if op.kind == "Gather" and op.inputs[0] == table and op.attrs.get("axis", 0) != 0:
            wrong.setdefault("places_are_choice_and_row", Wrong(op.outputs[0], "another axis"))


def _check_table(m: Match, top: Op, hot: Op, turned: Op, facts: Facts, wrong: dict[str, Wrong]) -> None:
    """[experts, k, rows], one where the expert was chosen: what NonZero gives (choice, row) pairs of.

    Rows past the last expert, where only those that were hit run, are of experts that nobody chooses.
    """
    graph, k, count = m.graph, facts.k, facts.count
    m.ops += [hot, turned]
    on = graph.content(hot.inputs[2])
    dims = graph.dims(turned.outputs[0])
    rows = rows_of(graph.dims(m["x"]))
    fine = on == (0, 1) and hot.attrs.get("axis", -1) in (-1, 2)
    perm = tuple(turned.attrs.get("perm", ()))
    if on is not None and on != (0, 1):
        wrong.setdefault("places_are_marked_by_one", Wrong(hot.inputs[2], str(on)))
    elif perm != (2, 1, 0):
        wrong.setdefault("table_is_turned", Wrong(turned.outputs[0], f"perm={list(perm)}"))
    elif hot.attrs.get("axis", -1) not in (-1, 2):
        wrong.setdefault("table_is_turned", Wrong(hot.outputs[0], f"axis={hot.attrs['axis']}"))
    elif not fine or dims is None or dims[1:] != (k, rows):
        wrong.setdefault("places_are_choice_and_row", Wrong(turned.outputs[0], dims_text(dims)))
    elif dims[0] != count and not (facts.stacked and isinstance(dims[0], int) and dims[0] > count):
        wrong.setdefault("every_expert_is_added", Wrong(m.root, f"{count} of {dims[0]}"))
    if m.get("stride", None) not in (None, k):
        wrong.setdefault("places_are_choice_and_row", Wrong(m.root, f"{m['stride']} choices a row"))


def _spread_shapes(graph: Graph, ops: list[Op]) -> Iterator[Op]:
    """Slices of the sum that only tell an Expand its width."""
    own = {op.slot for op in ops}
    for op in ops:
        shape = graph.producer(op.inputs[1]) if op.kind == "Expand" else None
        if shape is None or shape.kind != "Shape" or shape.slot in own:
            continue
        piece = graph.producer(shape.inputs[0])
        if piece is not None and piece.kind == "Slice" and graph.readers(piece.outputs[0]) == [shape.slot]:
            yield from (piece, shape)


def filled(graph: Graph, value: str) -> float | None:
    """The number that a value is filled with, where it is filled with one."""
    op = graph.producer(value)
    if op is not None and op.kind == "Expand":
        value = op.inputs[0]
    array: np.ndarray | None = None
    if op is not None and op.kind == "ConstantOfShape":
        given = op.attrs.get("value")
        array = np.zeros(1) if given is None else given.array()
    elif (tensor := graph.constant(value)) is not None:
        array = tensor.small()
    if array is None or not array.size or (array != array.ravel()[0]).any():
        return None
    return float(array.ravel()[0])
