"""Attention from primitives: two products around a softmax, with whatever exporters put between."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fuse import layout as lay
from fuse.guards import casts_to_float
from fuse.ir import Graph, Op
from fuse.layout import Atom, Layout
from fuse.match import Match
from fuse.pattern import (
    HOLE,
    LAST,
    Add,
    Cast,
    Clip,
    Concat,
    Div,
    Einsum,
    Expand,
    FusedMatMul,
    IsNaN,
    MatMul,
    Max,
    Mul,
    Reshape,
    Runtime,
    Slice,
    Softmax,
    Sub,
    Tanh,
    Transpose,
    Unsqueeze,
    Where,
    anything,
    constant,
    form,
    kind,
    star,
)
from fuse.rule import Built, Rule, Wrong, guard
from fuse.rules.attention_axes import (
    Stops,
    any_order,
    heads_first,
    heads_of,
    letters,
    renamed,
    result_layout,
    weighing,
    windows_and_heads,
)
from fuse.rules.attention_guards import (
    caps_agree,
    factor_is_of_unit_vectors,
    floor_stands_above_masks,
    masks_lie_over_the_scores,
    scale_stands_below_masks,
    sink_is_cut_off,
    softmax_runs_over_the_keys,
    zeroed_where_dropped,
)
from fuse.rules.attention_masks import (
    HIDDEN,
    lower_triangle,
    one_condition,
)
from fuse.rules.attention_reading import Reading, products, read_operand, read_scores
from fuse.rules.attention_turns import (
    exchanged,
    exchanges_last,
    is_turned,
    scaled_product_tanh,
    softmax_of_columns,
    swapped,
)
from fuse.types import FLOATS

ReduceMax, Not, Squeeze = kind("ReduceMax"), kind("Not"), kind("Squeeze")
q, k, v = anything("q"), anything("k"), anything("v")
fill = constant("fill", test=lambda number: number <= HIDDEN, want="at most -1e4 or -inf")
lowest = constant("lowest", test=lambda number: number <= HIDDEN, want="at most -1e4")
c, c2 = constant("c"), constant("c2")
softcap = kind("softcap")


#: What scores are lowered by where a key is hidden.
much = constant("much", test=lambda number: number >= -HIDDEN, want=f"much: at least {-HIDDEN:g}")
#: What may stand between the scores and the softmax, each any number of times.
SCORE_STEPS = {
    "scale": Mul(HOLE, constant("s")),
    "unscale": Div(HOLE, constant("s")),
    "divide": Div(HOLE, Runtime("divisor")),
    "cap": softcap(HOLE) | Mul(Tanh(Div(HOLE, c)), c2),
    "bound": Mul(form(scaled_product_tanh, "tanh", x=HOLE), c2),
    "keep": Where(anything("keep"), HOLE, fill)
    | Add(Mul(Cast(anything("keep")), HOLE), Mul(Cast(Not(anything("keep"))), fill)),
    "drop": Where(anything("drop"), fill, HOLE),
    "cast": Cast(HOLE),
    "reshape": Reshape(HOLE) | Squeeze(HOLE) | Unsqueeze(HOLE),
    "add": Add(HOLE, anything("mask")),
    "floor": Max(HOLE, lowest) | Clip(HOLE, lowest),
    "turn": Transpose(HOLE),
    "sink": Concat(HOLE, Expand(anything("sink")) | anything("sink"), axis=LAST),
    "shift": Sub(HOLE, ReduceMax(HOLE, axes=LAST, keepdims=1)),
    "hide": Sub(HOLE, Mul(anything("hidden"), much)),
    "multiply": Mul(HOLE, Runtime("factor", heads=True)),
}
#: What may stand between the softmax and the product with v.
PROBABILITY_STEPS = {
    "nan_guard": Where(IsNaN(HOLE), constant(0), HOLE),
    "cast": Cast(HOLE),
    "reshape": Reshape(HOLE) | Squeeze(HOLE) | Unsqueeze(HOLE),
    "without_sink": Slice(HOLE),
    "zeroed": Where(anything("gone"), constant(0), HOLE),
    "turn": Transpose(HOLE),
    "again": Where(anything("keep"), HOLE, constant(0))
    | Add(Mul(Cast(anything("keep")), HOLE), Mul(Cast(Not(anything("keep"))), constant(0))),
}
product = MatMul(q, k) | FusedMatMul(q, k) | Einsum(q, k)
scores = star("scores", SCORE_STEPS, product, resizes=["reshape", "sink", "turn"])
softmax = Softmax(scores, axis=LAST) | form(softmax_of_columns, "columns", x=scores)
probabilities = star("probabilities", PROBABILITY_STEPS, softmax, resizes=["reshape", "without_sink", "turn"])
core = (
    MatMul(probabilities, v)
    | FusedMatMul(probabilities, v)
    | Einsum(probabilities, v)
    | MatMul(v, Transpose(probabilities))
)
OUT_STEPS = {"transpose": Transpose(HOLE), "reshape": Reshape(HOLE) | Squeeze(HOLE) | Unsqueeze(HOLE)}


def products_fit(m: Match) -> Wrong | None:
    """the scores are q times k transposed, and the probabilities weigh rows of v"""
    both = products(m)
    if both is None:
        return Wrong(m.root, "another operator")
    score, out = both
    if letters(m.graph, score, "q", "k") is None:
        return Wrong(score.path, "a product over other axes")
    if weighing(m.graph, out, m["v"]) is None:
        return Wrong(out.path, "a product over other axes")
    return None


def _reads_what_runs(m: Match) -> bool:
    """Whether keys or values are made of the input: else the place is a classifier between two layers."""
    return not (m.graph.is_constant(m["k"]) and m.graph.is_constant(m["v"]))


def build(m: Match) -> Iterator[Built]:
    """The attention with every layout operator taken in that can be, then with heads before rows."""
    fullest = _build(m, None)
    if fullest is not None:
        yield fullest
        plainer = _build(m, heads_first)
        if plainer is not None and plainer.operands != fullest.operands:
            yield plainer


def _build(m: Match, stops: Stops | None) -> Built | None:
    graph = m.graph
    both = products(m)
    if both is None:
        return None
    score, out = both
    reading = read_scores(m, score)
    if reading is None or (graph.is_constant(m["q"]) and graph.is_constant(m["k"])):
        return None
    for step in reversed(m.taken("probabilities")):
        if step.step == "turn":
            if not exchanges_last(graph, step.value):
                return None
            reading.layout = (*reading.layout[:-2], reading.layout[-1], reading.layout[-2])
        elif step.step == "again" and not _hidden_again(m, reading, step.bound["keep"]):
            return None
        elif step.step == "reshape":
            shape = graph.dims(step.value)
            again = (
                None if shape is None else lay.regroup([a for axis in reading.layout for a in axis], shape)
            )
            if again is None:
                return None
            reading.layout = again
    return None if is_turned(reading.layout) else _assemble(m, reading, score, out, stops)


def _hidden_again(m: Match, reading: Reading, keep: str) -> bool:
    """Whether shares are kept where the scores were: what it changes are rows that are hidden whole."""
    fills = [fill for what, operand, _, fill in reading.masks if what == "keep" and operand == keep]
    reading.empty_at = max(fills, default=0.0)
    return bool(fills)


def _assemble(
    m: Match, scores: Reading, score: Op, out: Op, stops: Stops | None, grouped: bool = True
) -> Built | None:
    graph, reading = m.graph, replace(scores, also=list(scores.also))
    names, values = letters(graph, score, "q", "k"), weighing(graph, out, m["v"])
    query, key = m["q"], m["k"]
    if names is not None and swapped(m):
        names = exchanged(names[1]), exchanged(names[0]), exchanged(names[2])
        query, key = key, query
    q_dims, k_dims, v_dims = graph.dims(query), graph.dims(key), graph.dims(m["v"])
    if names is None or values is None or q_dims is None or k_dims is None or v_dims is None:
        return None
    if len(reading.layout) != len(values[2].split()):
        return None
    plain = frozenset({"b", "w", "h", "s", "d", "bh", "1"})
    folded = stops or any_order(plain | {"hd"} if heads_of(reading.layout) or len(q_dims) == 3 else plain)
    q_value, q_layout, _ = read_operand(m, query, lay.layout_of(q_dims, names[0]), reading, folded)
    k_start = renamed(lay.layout_of(k_dims, names[1]), {"t": "s"})
    k_value, k_layout, k_groups = read_operand(m, key, k_start, reading, folded, grouped)
    v_start = renamed(lay.layout_of(v_dims, values[1]), {"t": "s"})
    if len(v_start) == len(reading.layout) and any(len(axis) > 1 for axis in reading.layout[:-2]):
        v_start = (*reading.layout[:-2], *v_start[-2:])
    v_value, v_layout, v_groups = read_operand(m, m["v"], v_start, reading, folded, grouped, scaled=False)
    if k_groups != v_groups and grouped:
        # One of them is repeated further down than can be read: both are read as they are repeated.
        return _assemble(m, scores, score, out, stops, grouped=False)
    if k_groups != v_groups or not isinstance(k_groups, int):
        return None
    result = (*reading.layout[:-2], *renamed(lay.layout_of(v_dims, values[1]), {"t": "s"})[-2:])
    by_letter = {atom.letter: axis for axis in (*reading.layout, *result) for atom in axis}
    if out.kind == "Einsum":
        result = tuple(by_letter[name if name in by_letter else name[0]] for name in values[2].split())
    elif values[2].endswith("d s"):
        result = (*reading.layout[:-2], result[-2], reading.layout[-2])
    else:
        result = (*reading.layout[:-1], (Atom("d", v_dims[values[1].split().index("d")]),))
    shaped = result_layout(m, result)
    if shaped is None or any(atom.letter == "S" for axis in shaped for atom in axis):
        return None
    parted = windows_and_heads((q_layout, k_layout, v_layout, shaped), bool(reading.masks))
    heads = (
        heads_of(*parted, reading.layout)
        if parted[0] != q_layout
        else heads_of(q_layout, reading.layout, shaped)
    )
    q_layout, k_layout, v_layout, shaped = parted
    if not heads and any("hd" in lay.text(x).split() for x in (q_layout, k_layout, v_layout)):
        return None
    if heads > 1 and k_groups == 1 and heads_of(k_layout) == heads_of(v_layout) == 1:
        k_groups = heads  # one key head for all query heads
    if any("hd" in lay.text(x).split() and heads_of(x) * k_groups != heads for x in (k_layout, v_layout)):
        return None
    return _built(
        m, reading, (q_value, k_value, v_value), (q_layout, k_layout, v_layout, shaped), heads, k_groups
    )


def _is_any(graph: Graph, condition: str, others: list[str]) -> bool:
    return any(one_condition(graph, condition, other) for other in others)


def _built(
    m: Match,
    reading: Reading,
    operands: tuple[str, str, str],
    layouts: tuple[Layout, ...],
    heads: int,
    groups: int,
) -> Built:
    graph = m.graph
    gone = [step.bound["gone"] for step in m.taken("probabilities") if step.step == "zeroed"]
    masks = [
        (what, operand, where, -math.inf if what == "drop" and _is_any(graph, operand, gone) else number)
        for what, operand, where, number in reversed(reading.masks)
    ]
    attrs: dict[str, Any] = dict(
        zip(("q_layout", "k_layout", "v_layout", "out_layout"), map(lay.text, layouts), strict=True)
    )
    attrs |= {"heads": heads, "scale": reading.scale}
    if groups != 1:
        attrs["groups"] = groups
    if masks:
        attrs["mask"] = tuple(what for what, *_ in masks)
        fills = tuple(number for what, _, _, number in masks if what in ("keep", "drop", "hide"))
        attrs |= {"fill": fills} if fills else {}
        where = tuple(layout for what, _, layout, _ in masks if what != "cap")
        attrs |= {"mask_layouts": where} if any(where) else {}
    hiding = [mask for mask in masks if mask[0] not in ("cap", "sink", "multiply")]
    if len(hiding) == 1 and lower_triangle(graph, hiding[0][0], hiding[0][1]):
        attrs["causal"] = True
    if reading.softcap:
        attrs["softcap"] = reading.softcap
    if any(step.step in ("nan_guard", "zeroed") for step in m.taken("probabilities")):
        attrs["empty_rows"] = "zero"
    elif any(step.step == "floor" for step in m.taken("scores")):
        attrs["empty_rows"] = "average"
    if reading.empty_at:
        attrs |= {"empty_rows": "zero", "empty_at": reading.empty_at}
    soft = next(op for op in m.ops if op.kind == "Softmax")
    if graph.dtype(soft.inputs[0]) != graph.dtype(operands[0]) and graph.dtype(soft.inputs[0]) in FLOATS:
        attrs["compute"] = graph.dtype(soft.inputs[0])
    listed = (*operands, *(operand for what, operand, _, _ in masks if what != "cap"))
    return Built("attention", listed, attrs, also=reading.also)


attention = Rule(
    "attention",
    """softmax(scale q k^T, capped and masked) v, heads by heads

    Five to twenty kernels become one, and the scores, quadratic in the rows, are never written.""",
    finds=star("out", OUT_STEPS, core, resizes=["transpose", "reshape"], reach=3),
    marks=("Softmax",),
    hints=("LogSoftmax", "Hardmax"),
    place=_reads_what_runs,
    almost=lambda m, fault: fault.code == "op" and fault.got in ("LogSoftmax", "Hardmax"),
    needs=(
        casts_to_float("scores"),
        casts_to_float("probabilities"),
        guard(masks_lie_over_the_scores, code="operand"),
        guard(products_fit),
        guard(softmax_runs_over_the_keys, code="attribute"),
        guard(scale_stands_below_masks),
        guard(factor_is_of_unit_vectors, code="operand"),
        guard(floor_stands_above_masks),
        guard(caps_agree),
        guard(sink_is_cut_off),
        guard(zeroed_where_dropped),
    ),
    builds=build,
)
