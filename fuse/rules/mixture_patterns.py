"""What exporters write of a mixture of experts, as data: routing, an expert, and both ways to run many.

Batched: each token's row stands k times, each copy beside the weights of one chosen expert, and a sum
over the k brings them together. Looped: each expert gathers the rows of its tokens, runs on them, and
its results are added to a sum that began at zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from fuse import forms
from fuse.forms.mixtures import gated
from fuse.ir import Graph, Op
from fuse.match import compile_pattern
from fuse.match.plausible import PASSING, near_kinds, run_time, weight_like
from fuse.pattern import (
    ANY,
    HOLE,
    LAST,
    Add,
    Cast,
    Clip,
    Concat,
    Div,
    Expand,
    Max,
    Min,
    Mul,
    Pattern,
    Pow,
    ReduceSum,
    Reshape,
    Slice,
    Softmax,
    Split,
    Transpose,
    Unsqueeze,
    all_kinds,
    anything,
    constant,
    form,
    form_of,
    kind,
    star,
)

TopK, Gather, GatherND, GatherElements = (
    kind("TopK"),
    kind("Gather"),
    kind("GatherND"),
    kind("GatherElements"),
)
MatMul, NonZero, Tile, Not, Where = kind("MatMul"), kind("NonZero"), kind("Tile"), kind("Not"), kind("Where")
Squeeze, Flatten, Sigmoid = kind("Squeeze"), kind("Flatten"), kind("Sigmoid")
ReduceMax, ReduceL1 = kind("ReduceMax"), kind("ReduceL1")
ScatterElements, Greater = kind("ScatterElements"), kind("Greater")

#: Operators that keep the elements and their order.
FLAT = {
    "reshape": Reshape(HOLE),
    "unsqueeze": Unsqueeze(HOLE),
    "squeeze": Squeeze(HOLE),
    "flatten": Flatten(HOLE),
    "cast": Cast(HOLE),
}
GATHERS = frozenset({"Gather", "GatherND"})
FLAT_KINDS = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Flatten", "Cast"})


def flat(inner: Pattern) -> Pattern:
    return star("flat", FLAT, inner, tuple(FLAT))


# ---- routing ---------------------------------------------------------------------------------------
#: The experts chosen, k a token.
indices = TopK(anything("choice"), anything("k"), output=1, axis=LAST)
#: Their scores: those the choice was made by, or others taken at the same places.
chosen = TopK(anything("weighed"), anything("weighed_k"), output=0, axis=LAST) | GatherElements(
    anything("scored"), TopK(anything("weighed"), anything("weighed_k"), output=1, axis=LAST), axis=LAST
)
#: The sum of the sizes of probabilities is their sum (DBRX).
_total = ReduceSum(HOLE, axes=LAST, keepdims=1) | ReduceL1(HOLE, axes=LAST, keepdims=1)
routed = star(
    "route",
    {
        **FLAT,
        "renormalize": Div(HOLE, _total) | Div(HOLE, Add(_total, constant("sum_eps"))),
        "softmax": Softmax(HOLE, axis=LAST),
        "scale": Mul(HOLE, constant("route_scale")),
    },
    chosen,
    tuple(FLAT),
)

# ---- what an expert does between its products --------------------------------------------------------
_PART = {
    **FLAT,
    "first": Split(HOLE, output=0),
    "second": Split(HOLE, output=1),
    "slice": Slice(HOLE),
    "clip": Clip(HOLE) | Min(HOLE, constant("bound")) | Max(HOLE, constant("bound")),
}
#: What is done to a product's result: flattened, halved, bounded, shifted.
OFFSET = {"offset": Add(HOLE, constant("up_offset"))}


def part(name: str, made: Pattern, more: Mapping[str, Pattern]) -> Pattern:
    """Gate or up: a product's result, or half of one; perhaps bounded or shifted."""
    steps = {**_PART, **more}
    return star(name, steps, made, tuple(_PART))


def inner(gate: Pattern, up: Pattern) -> Pattern:
    """act(gate) times up, or an activation alone; a relu may be squared."""
    act = form(forms.activation, "act", x=gate)
    relu = form(forms.activation, "act", lambda a: a.name == "relu", x=gate)
    squared = Mul(relu, relu) | Pow(relu, constant(2))
    return flat(form(gated, "gated", gate=gate, up=up) | squared | Mul(act, up) | act)


# ---- batched: weights gathered for each chosen expert -------------------------------------------------
class Times(NamedTuple):
    """Rows by weights gathered for each; side: which operand the weights are."""

    weight: str
    x: str
    side: int
    out: str
    op: Op


@form_of("MatMul")
def _times(graph: Graph, op: Op) -> Times | None:
    return next(_gathering(graph, op, graph.is_constant), None)


def _almost_times(graph: Graph, op: Op) -> forms.Almost | None:
    """A product whose weights are gathered from an input of the graph."""
    found = next(_gathering(graph, op, lambda value: weight_like(graph, value, 3)), None)
    made = None if found is None else graph.producer(found.weight)
    if made is None:
        return None
    stack = made.inputs[0]
    return forms.Almost(found, "operand", stack, "weight: a constant", run_time(graph, stack))


_times.almost = _almost_times  # type: ignore[attr-defined]


def _gathering(graph: Graph, op: Op, fits: Callable[[str], bool]) -> Iterator[Times]:
    for side in (0, 1) if len(op.inputs) == 2 else ():
        made = graph.producer(op.inputs[side])
        if made is not None and made.kind in GATHERS and fits(made.inputs[0]):
            yield Times(op.inputs[side], op.inputs[1 - side], side, op.outputs[0], op)


def gathered(name: str) -> Pattern:
    return kind(*sorted(GATHERS))(anything(name), flat(indices))


def bias(name: str) -> dict[str, Pattern]:
    """A row of bias gathered alike, by an index that is matched after."""
    row = kind(*sorted(GATHERS))(constant(f"{name}_bias", scalar=False), anything("bias_index"))
    return {"bias": Add(HOLE, row)}


def times(name: str, **operands: Pattern) -> Pattern:
    return form(_times, f"{name}_times", None, weight=gathered(name), **operands)


_unit = kind("Unsqueeze", "Reshape")(anything("x"))
#: Each row k times, as the products of the chosen experts read it.
repeated = flat(Expand(_unit) | Tile(_unit, anything("repeats")))
_gate = part("gate", times("first"), bias("first"))
_up = part("up", times("second"), {**bias("second"), **OFFSET})
_down = star("out", {**FLAT, **bias("down")}, times("down", x=inner(_gate, _up)), tuple(FLAT))
batched = ReduceSum(flat(Mul(_down, routed)))


# ---- looped: rows gathered for each expert ------------------------------------------------------------
#: The numbers of the experts that any token chose, and one of them. A trace splits them into as many as
#: there were when it was made: with any other number of them its file does not run.
_chosen_experts = Transpose(NonZero(flat(Greater(ReduceSum(anything("table")), constant(0)))))
_one_chosen = star(
    "flat",
    {**FLAT, "only": Gather(HOLE, constant(0))},
    Split(_chosen_experts, output=ANY),
    (*FLAT, "only"),
)
#: Which of its k choices (0) and which token (1) each place is where an expert was chosen.
_hits = NonZero(flat(Gather(anything("table"), constant("expert") | _one_chosen)))


def hit(number: int) -> Pattern:
    return flat(Split(Transpose(_hits), output=number) | Gather(_hits, constant(float(number))))


#: The rows of an expert's tokens.
rows = flat(Gather(_unit, anything("row"), axis=1) | Gather(anything("x"), anything("row"), axis=0))
#: Their weights.
weights = flat(
    Gather(routed, flat(Add(anything("lane"), Mul(anything("row"), constant("lanes")))))
    | GatherND(routed, Concat(flat(anything("row")), flat(anything("lane")), axis=LAST))
)


def member(number: int) -> Any:
    """A form: one of the products of one x that run as one."""

    @form_of("merged_gate_up", "merged_products")
    def read(graph: Graph, op: Op) -> forms.Product:
        biases, trans = op.attrs["biases"], op.attrs["trans_weights"]
        at = 1 + len(biases) + sum(biases[:number])
        bias = op.inputs[at] if biases[number] else ""
        weight, out = op.inputs[1 + number], op.outputs[number]
        return forms.Product(op.inputs[0], weight, bias, 0, trans[number], 1.0, 1.0, True, out, op)

    return read


def linear(name: str, **operands: Pattern) -> Pattern:
    """A product of one expert's rows, alone or one of two that run as one."""
    called = f"{name}_product"
    alone = form(forms.product, called, lambda p: p.plain and not p.trans_x, **operands)
    return alone | form(member(0), called, None, **operands) | form(member(1), called, None, **operands)


_one, _two = part("gate", linear("first"), {}), part("up", linear("second"), OFFSET)
_SPREAD = {**FLAT, "expand": Expand(HOLE)}
#: What is scattered, and where to.
update = star("flat", _SPREAD, Mul(flat(linear("down", x=inner(_one, _two))), weights), tuple(FLAT))
place = star("flat", _SPREAD, hit(1), (*FLAT, "expand"))


# ---- looped over the experts that were hit, as a trace of such a loop has it ----------------------------
class Picked(NamedTuple):
    """Rows by the weight that one expert has in a stack; trans: 1 where it is turned first."""

    weight: str
    x: str
    trans: int
    out: str
    op: Op


@form_of("MatMul")
def _picked(graph: Graph, op: Op) -> Picked | None:
    made, trans = graph.producer(op.inputs[1]), 0
    if made is not None and made.kind == "Transpose":
        made, trans = graph.producer(made.inputs[0]), 1
    if made is None or made.kind != "Gather" or not graph.is_constant(made.inputs[0]):
        return None
    return Picked(op.inputs[1], op.inputs[0], trans, op.outputs[0], op)


def _of_hit(name: str) -> Pattern:
    return Gather(constant(name, scalar=False), anything("hit"), axis=0)


def picked(name: str, **operands: Pattern) -> Pattern:
    return form(_picked, f"{name}_product", None, weight=Transpose(_of_hit(name)) | _of_hit(name), **operands)


def _hit_bias(name: str) -> dict[str, Pattern]:
    return {"bias": Add(HOLE, _of_hit(f"{name}_bias"))}


_three, _four = (
    part("gate", picked("first"), _hit_bias("first")),
    part("up", picked("second"), {**_hit_bias("second"), **OFFSET}),
)
_made = star("out", {**FLAT, **_hit_bias("down")}, picked("down", x=inner(_three, _four)), tuple(FLAT))
update_of_hit = star("flat", _SPREAD, Mul(_made, weights), tuple(FLAT))

# ---- a choice of its own --------------------------------------------------------------------------------
#: Scores with a bias an expert, and those of all but the best groups of experts replaced.
biased = Add(flat(anything("scored")), constant("bias", scalar=False))
_values = flat(biased | flat(anything("scored")))
_best = TopK(_values, anything("group_k"), output=0, axis=LAST)
_group = ReduceSum(_best, axes=LAST) | ReduceMax(_values, axes=LAST)
_places = TopK(_group, anything("kept_k"), output=1, axis=LAST)
_kept = ScatterElements(anything("zeros"), _places, anything("ones"))
_mask = star("mask", {**FLAT, "expand": Expand(HOLE)}, _kept, (*FLAT, "expand"))
_fill = constant("fill")
grouped = Where(Not(_mask), _fill, _values) | Where(_mask, _values, _fill)

match_biased, match_grouped = compile_pattern(biased), compile_pattern(grouped)
match_batched, match_repeated = compile_pattern(batched), compile_pattern(repeated)
match_update, match_rows = compile_pattern(update), compile_pattern(rows)
match_update_of_hit = compile_pattern(update_of_hit)
match_place, match_lane, match_row = map(compile_pattern, (place, hit(0), hit(1)))
match_indices = compile_pattern(flat(indices))
#: Kinds that stand between a choice of experts and the result.
BETWEEN = frozenset().union(*map(all_kinds, (batched, repeated, update, rows, place)))
#: The same, and what is written for them or stands there by mistake.
NEAR_BETWEEN = near_kinds(BETWEEN) | PASSING
