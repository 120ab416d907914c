"""What exporters write of a mixture of experts, as data: routing, an expert, and both ways to run many.

Batched: each token's row stands k times, each copy beside the weights of one chosen expert, and a sum
over the k brings them together. Looped: each expert gathers the rows of its tokens, runs on them, and
its results are added to a sum that began at zero.
"""

from __future__ import annotations

from typing import Any

from fuse import forms
from fuse.ir import Graph, Op
from fuse.match import compile_pattern
from fuse.mixture_form import gated
from fuse.pattern import (
    HOLE,
    LAST,
    Add,
    Cast,
    Clip,
    Concat,
    Div,
    Expand,
    Mul,
    Pattern,
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
ReduceMax, ScatterElements = kind("ReduceMax"), kind("ScatterElements")

#: Operators that keep the elements and their order.
FLAT = {
    "reshape": Reshape(HOLE),
    "unsqueeze": Unsqueeze(HOLE),
    "squeeze": Squeeze(HOLE),
    "flatten": Flatten(HOLE),
    "cast": Cast(HOLE),
}
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
_total = ReduceSum(HOLE, axes=LAST, keepdims=1)
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
    "clip": Clip(HOLE),
}


def part(name: str, inner: Pattern) -> Pattern:
    """Gate or up: a product's result, or half of one; perhaps bounded."""
    return star(name, _PART, inner, tuple(_PART))


def gate_of(first: Pattern, second: Pattern) -> Pattern:
    """act(gate) times up, up perhaps shifted."""
    gate, up = part("gate", first), part("up", second)
    act = form(forms.activation, "act", x=gate)
    return form(gated, "gated", gate=gate, up=up) | Mul(Add(up, constant("up_offset")), act) | Mul(act, up)


# ---- batched: weights gathered for each chosen expert -------------------------------------------------
def gathered(name: str) -> Pattern:
    stack, index = constant(name, scalar=False), flat(indices)
    return Gather(stack, index) | GatherND(stack, index)


def product(name: str, rows: Pattern) -> Pattern:
    """Rows times the gathered weights, either operand first, plus a gathered bias."""
    weight, x = gathered(name), flat(rows)
    plain = MatMul(weight, x) | MatMul(x, weight)
    return Add(flat(plain), flat(gathered(f"{name}_bias"))) | plain


_unit = kind("Unsqueeze", "Reshape")(anything("x"))
repeated = Expand(_unit) | Tile(_unit, anything("repeats"))
_first, _second = product("first", repeated), product("second", repeated)
_alone = form(forms.activation, "act", x=part("gate", _first))
_inner = gate_of(_first, _second) | _alone
batched = ReduceSum(flat(Mul(flat(product("down", flat(_inner))), routed)))


# ---- looped: rows gathered for each expert ------------------------------------------------------------
#: Which of its k choices (0) and which token (1) each place is where expert was chosen.
_hits = NonZero(flat(Gather(anything("table"), constant("expert"))))


def hit(number: int) -> Pattern:
    return flat(Split(Transpose(_hits), output=number) | Gather(_hits, constant(float(number))))


lanes, tokens = hit(0), hit(1)
rows = flat(Gather(_unit, tokens, axis=1) | Gather(anything("x"), tokens, axis=0))
weights = flat(
    Gather(routed, flat(Add(lanes, Mul(tokens, constant("lanes")))))
    | Gather(routed, flat(Add(Mul(tokens, constant("lanes")), lanes)))
    | GatherND(routed, Concat(tokens, lanes, axis=LAST))
)


def member(number: int) -> Any:
    """A form: one of the products of one x that run as one."""

    def read(graph: Graph, op: Op) -> forms.Product:
        biases, trans = op.attrs["biases"], op.attrs["trans_weights"]
        at = 1 + len(biases) + sum(biases[:number])
        bias = op.inputs[at] if biases[number] else ""
        weight, out = op.inputs[1 + number], op.outputs[number]
        return forms.Product(op.inputs[0], weight, bias, 0, trans[number], 1.0, 1.0, True, out, op)

    read.kinds = frozenset({"merged_gate_up", "merged_products"})  # type: ignore[attr-defined]
    return read


def linear(name: str, x: Pattern) -> Pattern:
    """A product of one expert's rows, alone or one of two that run as one."""
    alone = form(forms.product, f"{name}_product", lambda p: p.plain and not p.trans_x, x=x)
    return alone | form(member(0), f"{name}_product", x=x) | form(member(1), f"{name}_product", x=x)


_one, _two = linear("first", rows), linear("second", rows)
_expert_inner = gate_of(_one, _two) | form(forms.activation, "act", x=part("gate", _one))
_SPREAD = {**FLAT, "expand": Expand(HOLE)}
#: What is scattered, and where to.
update = star("flat", _SPREAD, Mul(flat(linear("down", flat(_expert_inner))), weights), tuple(FLAT))
place = star("flat", _SPREAD, tokens, (*FLAT, "expand"))

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
match_batched, match_update, match_place = map(compile_pattern, (batched, update, place))
match_indices = compile_pattern(flat(indices))
#: Kinds that stand between a choice of experts and the result.
BETWEEN = all_kinds(batched) | all_kinds(update)
