"""Mixtures of experts: the routing and the experts as one, with what stands around them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuse import forms
from fuse.classes import CLASSES
from fuse.forms.mixtures import Mixture, gated, mixture
from fuse.guards import dims_text
from fuse.ir import Graph, Op
from fuse.match import Fault, Match
from fuse.match.plausible import NO_SUM, SQUASHING, STRAY
from fuse.rule import Built, Guard, Rule, Wrong, guard
from fuse.rules.mixture_facts import Expert, Facts
from fuse.rules.mixture_patterns import FLAT_KINDS, member
from fuse.rules.mixture_scores import Scores, scores_of
from fuse.rules.mixture_walks import find_mixtures


# ---- moe ------------------------------------------------------------------------------------------
def _fact(name: str, want: str, code: str = "") -> Guard:
    """A guard that reading a mixture answers."""
    return guard(lambda m: m["facts"].wrong.get(name), name=name, want=want, code=code)


MOE_GUARDS = (
    _fact("the_largest_are_chosen", "largest=1", "attribute"),
    _fact("k_is_known", "k: known when the model loads", "operand"),
    _fact("weights_are_of_the_choice", "the weights are those of the experts that are chosen"),
    _fact(
        "weights_sum_over_the_chosen",
        "a softmax or sum of weights goes over the k chosen, once each",
    ),
    _fact("each_row_meets_one_expert", "each row meets the weights of one expert"),
    _fact("each_row_stands_k_times", "each row stands k times in turn"),
    _fact("gate_and_up_are_parts", "gate and up are the halves, or every other lane, of one product"),
    _fact("limits_agree", "gate is bounded above, and up both ways, by one limit"),
    _fact("experts_are_alike", "all experts have one shape and one function, and their products fit"),
    _fact("one_weight_a_row", "each result has one weight"),
    _fact("one_axis_is_summed", "the axis before the last, keepdims=0", "attribute"),
    _fact("the_chosen_of_a_row_are_summed", "the sum goes over the k experts of a row"),
    _fact("places_are_marked_by_one", "values: 0 and 1", "operand"),
    _fact("table_is_turned", "perm=[2, 1, 0], one hot along the last axis", "attribute"),
    _fact("places_are_choice_and_row", "an expert's places are its number among the k and the row"),
    _fact("every_expert_is_added", "the sum takes every expert once"),
    _fact("results_are_written_by_row", "axis=0, and reduction=none onto zeros or add", "attribute"),
    _fact("the_sum_begins_at_zero", "results are added to zeros"),
    _fact(
        "casts_keep_the_kind",
        "casts only between floats that round no more than the rows are, or between integers",
        "attribute",
    ),
)


def find_moe(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """The mixture whose experts a TopK chooses, with its scoring taken in where nobody else reads it."""
    for found in find_mixtures(graph, op, budget):
        facts: Facts = found["facts"]
        sizes = any(op.kind == "ReduceL1" for op in found.ops)
        for scores in scores_of(found, facts.attrs.get("scoring", "")):
            if sizes and scores.attrs.get("scoring") == "none":
                continue  # the sizes of scores that may have a sign sum to something else
            for root, rounds in _results(graph, found):
                m = Match(graph, budget)
                m.ops, m.steps, m.root = [*found.ops, *scores.ops, *rounds], found.steps, root
                m.fault, m.budget = found.fault, found.budget
                m.loose = len({op.slot for op in m.ops if op.kind in FLAT_KINDS})
                m.bound = {**found.bound, "scores": scores}
                yield m


def _results(graph: Graph, m: Match) -> Iterator[tuple[str, list[Op]]]:
    """The sum, rounded to the type of the rows where weights of a wider type made it, and as it is."""
    readers = graph.readers(m.root)
    cast = graph.slots[readers[0]] if len(readers) == 1 and not graph.is_output(m.root) else None
    own = graph.dtype(m["x"])
    if (
        cast is not None
        and cast.kind == "Cast"
        and graph.dtype(cast.outputs[0]) == own != graph.dtype(m.root)
    ):
        yield cast.outputs[0], [cast]
    yield m.root, []


def _weights(experts: list[Expert]) -> tuple[str, ...]:
    """The operands from `first` on: of all experts the first product's weights, and so on."""
    columns = zip(*(expert[:6] for expert in experts), strict=True)
    return tuple(value for column in columns for value in column if value)


def without_defaults(name: str, attrs: dict[str, Any]) -> dict[str, Any]:
    declared = CLASSES[name].attrs
    return {key: value for key, value in attrs.items() if value != declared[key].default}


def _moe(m: Match) -> Built | None:
    facts: Facts = m["facts"]
    scores: Scores = m["scores"]
    head = facts.experts[0]
    x, y = m.graph.dims(m["x"]), m.graph.dims(m.root)
    if x is None or y is None or x[:-1] != y[:-1]:
        return None
    attrs = {
        "experts": facts.count, "k": facts.k, "gating": head.gating, "act": head.act, "act_alpha": head.alpha,
        "limit": head.limit, "up_offset": head.up_offset, "trans_first": head.trans[0],
        "trans_second": head.trans[1], "trans_down": head.trans[2],
        "expert_biases": tuple(int(bool(bias)) for bias in head[3:6]), **facts.attrs, **scores.attrs,
    }  # fmt: skip
    operands = (m["x"], scores.scores, scores.choice, *_weights(facts.experts))
    return Built("moe", operands, without_defaults("moe", attrs))


moe = Rule(
    "moe",
    """each row through the experts that its scores choose, the results weighted and summed

    Routing, gathers, products and the sum become one kernel that reads only the weights of the
    experts it needs. Batched products and loops over the experts are found alike.""",
    finds=find_moe,
    marks=("TopK",),
    needs=MOE_GUARDS,
    builds=_moe,
    reads=tuple(sorted(forms.product.kinds | forms.activation.kinds | gated.kinds | member(0).kinds)),
)


# ---- what stands around a mixture -------------------------------------------------------------------
def origin(graph: Graph, value: str, only_same: bool = False) -> tuple[str, list[Op]]:
    """The value below what keeps elements and order (only_same: dims too), and the ops passed."""
    ops: list[Op] = []
    op = graph.producer(value)
    while op is not None and op.kind in FLAT_KINDS - {"Cast"}:
        if only_same and graph.dims(op.inputs[0]) != graph.dims(value):
            break
        ops.append(op)
        value = op.inputs[0]
        op = graph.producer(value)
    return value, ops


def _flat_readers(graph: Graph, value: str) -> Iterator[tuple[Op, str, list[Op]]]:
    """The readers of a value, and those of its only reader where that keeps elements and order."""
    ops: list[Op] = []
    while True:
        readers = [op for slot in graph.readers(value) if (op := graph.slots[slot]) is not None]
        for op in readers:
            yield op, value, list(ops)
        if len(readers) != 1 or readers[0].kind not in FLAT_KINDS - {"Cast"} or graph.is_output(value):
            return
        ops.append(readers[0])
        value = readers[0].outputs[0]


#: What a shared expert may consist of.
_EXPERT_KINDS = (
    forms.product.kinds | forms.activation.kinds | gated.kinds | FLAT_KINDS
    | {"merged_gate_up", "merged_products", "quantized_matmul", "Mul", "matmul_bias_act", "Split", "Slice"}
)  # fmt: skip
_PRODUCTS = forms.product.kinds | {"merged_gate_up", "merged_products", "quantized_matmul"}


def _is_expert(graph: Graph, value: str, x: str) -> bool:
    """Whether a value is made of x alone, by products and what stands between an expert's."""
    products, todo, seen = 0, [value], set[str]()
    while todo:
        at = todo.pop()
        if at in seen or not at or graph.is_constant(at) or origin(graph, at)[0] == x:
            continue
        seen.add(at)
        op = graph.producer(at)
        if op is None or op.kind not in _EXPERT_KINDS or len(seen) > 24:
            return False
        products += op.kind in _PRODUCTS
        todo += op.inputs
    return products > 0


def _gate_below(graph: Graph, value: str) -> Iterator[tuple[str, str, list[Op]]]:
    """A shared expert's result and the score of its gate ("" where it has none), and the ops passed."""
    op = graph.producer(value)
    if op is not None and op.kind == "Mul" and len(op.inputs) == 2:
        for gate, rest in (op.inputs, op.inputs[::-1]):
            base, ops = origin(graph, gate)
            made = graph.producer(base)
            if made is not None and made.kind == "Sigmoid":
                yield rest, made.inputs[0], [op, *ops, made]
    yield value, "", []


def find_shared(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """A mixture to which what another expert makes of the same rows is added."""
    mix = mixture(graph, op)
    if mix is not None and not mix.shared:
        yield from _almost_shared(graph, mix, op) if budget else ()
        yield from _shared(graph, mix, [op], budget)


def _shared(graph: Graph, mix: Mixture, own: list[Op], budget: int) -> Iterator[Match]:
    """The sums of a mixture, made by ops of its own, and a shared expert."""
    rows = origin(graph, mix.x)[0]
    for add, value, passed in _flat_readers(graph, mix.out):
        if add.kind != "Add":
            continue
        other = next((v for v in add.inputs if v != value), value)
        for shared, score, ops in _gate_below(graph, other):
            if not _is_expert(graph, shared, rows):
                continue
            m = Match(graph, budget)
            m.root, m.ops = add.outputs[0], [*own, *passed, add, *ops]
            m.bound = {"mixture": mix, "shared": shared, "gate": score}
            yield m
            break


def _almost_shared(graph: Graph, mix: Mixture, own: Op) -> Iterator[Match]:
    """A sum of a mixture and a shared expert but for one operator: at the sum, its gate, or before it."""
    rows, given = origin(graph, mix.x)[0], mix.out
    above = [graph.slots[slot] for slot in graph.readers(given)]
    first = above[0] if len(above) == 1 else None
    stray = first if first is not None and first.kind in STRAY - {"Cast"} else None
    for op, value, passed in _flat_readers(graph, given if stray is None else stray.outputs[0]):
        if op.kind not in NO_SUM | {"Add", "Mul"} or op.parts:
            continue
        other = next((v for v in op.inputs if v != value), value)
        faults = [] if stray is None else [Fault("op", stray.outputs[0], "no operator", stray.kind)]
        faults += [] if op.kind == "Add" else [Fault("op", op.outputs[0], "Add", op.kind)]
        for shared, more in _almost_gated(graph, other):
            told = [*faults, *more]
            if len(told) == 1 and graph.dims(other) == graph.dims(value) and _is_expert(graph, shared, rows):
                m = Match(graph)
                m.root, m.fault, m.bound = op.outputs[0], told[0], {"shared": shared, "gate": ""}
                m.ops = [own, *passed, op, *([] if stray is None else [stray])]
                yield m
                break


def _almost_gated(graph: Graph, value: str) -> Iterator[tuple[str, list[Fault]]]:
    """What a shared expert gives, gated or not, and what is wrong with its gate or on its way."""
    for shared, _, _ in _gate_below(graph, value):
        yield shared, []
    op = graph.producer(value)
    if op is None or op.parts:
        return
    if op.kind in STRAY - {"Cast"}:
        fault = Fault("op", value, "no operator", op.kind)
        yield from ((shared, [fault]) for shared, _, _ in _gate_below(graph, op.inputs[0]))
    if op.kind not in ("Mul", "Add", "Sub", "Div"):
        return
    for gate, rest in (op.inputs, op.inputs[::-1]):
        made = graph.producer(origin(graph, gate)[0])
        if made is None or (graph.dims(gate) or ())[-1:] != (1,) or made.kind not in SQUASHING:
            continue
        if op.kind != "Mul" and made.kind == "Sigmoid":
            yield rest, [Fault("op", value, "Mul", op.kind)]
        elif op.kind == "Mul" and made.kind != "Sigmoid":
            yield rest, [Fault("op", made.outputs[0], "Sigmoid", made.kind)]


def shared_has_the_rows(m: Match) -> Wrong | None:
    """what the shared expert gives has exactly the dims of the sum"""
    own, out = m.graph.dims(m["shared"]), m.graph.dims(m.root)
    fine = own is not None and own == out
    return None if fine else Wrong(m["shared"], f"{dims_text(own)} beside {dims_text(out)}")


def shared_gate_is_one_score(m: Match) -> Wrong | None:
    """the gate of the shared expert is one score a row"""
    if not m["gate"]:
        return None
    own, out = m.graph.dims(m["gate"]), m.graph.dims(m.root)
    fine = own is not None and out is not None and own == (*out[:-1], 1)
    return None if fine else Wrong(m.root, f"{dims_text(own)} beside {dims_text(out)}")


def _moe_shared(m: Match) -> Built:
    mix: Mixture = m["mixture"]
    operands = (mix.x, mix.scores, mix.choice, m["shared"], m["gate"], *mix.weights)
    return Built("moe_shared", operands, mix.attrs)


def would_be(graph: Graph, top: Op) -> Iterator[tuple[Mixture, list[Op]]]:
    """The mixtures that a TopK chooses for, though none stands, and the ops of each; the largest first."""
    for m in find_moe(graph, top, 0):
        built = None if m["facts"].wrong else _moe(m)
        if built is None:
            continue
        x, scores, choice, *weights = built.operands
        mix = Mixture(x, scores, choice, "", "", tuple(weights), built.attrs, m.root, top)
        for s in _shared(graph, mix, m.ops, 0):
            if shared_has_the_rows(s) is None and shared_gate_is_one_score(s) is None:
                yield mix._replace(shared=s["shared"], shared_gate=s["gate"], out=s.root), s.ops
        yield mix, m.ops


_MIXTURES = tuple(sorted(mixture.kinds))

moe_shared = Rule(
    "moe_shared",
    """a mixture plus what an expert that every row is given to makes of it, perhaps gated

    The gate, its product and the sum run where the mixture's rows are written.""",
    finds=find_shared,
    marks=_MIXTURES,
    needs=(guard(shared_has_the_rows), guard(shared_gate_is_one_score)),
    builds=_moe_shared,
    # a mixture that stands and an expert of the same rows are telling
    almost=lambda match, fault: fault.code == "op",
    reads=tuple(sorted(_EXPERT_KINDS)),
)
