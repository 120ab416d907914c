"""Rotation of pairs of lanes by position (rope), in every spelling."""

from __future__ import annotations

from typing import Any, NamedTuple

from fuse import forms
from fuse.guards import casts_to_float, dims_text
from fuse.ir import Graph, Op
from fuse.match import Match
from fuse.match.plausible import PASSING, UNARY
from fuse.pattern import (
    ANY,
    HOLE,
    LAST,
    Add,
    Cast,
    Concat,
    Constant,
    Gather,
    Mul,
    Neg,
    Reshape,
    Slice,
    Split,
    Squeeze,
    Sub,
    Unsqueeze,
    anything,
    form,
    form_of,
    star,
)
from fuse.rule import Built, Rule, Wrong, absorb_cast, guard
from fuse.rules.rotation_lanes import Lanes, along_another_axis, lane_ops, lanes

x, cos, sin = anything("x"), anything("cos"), anything("sin")
CASTS = {"cast": Cast(HOLE)}
TAKING = ("Slice", "Split", "Squeeze", "Gather")

# The pair of a lane: a half further (`half`), or the neighbour (`interleaved`).
# Which lanes a part takes, and which part has the minus, the guard says.
in_two = Reshape(x)
part = (
    Slice(x)
    | Split(x, output=ANY)
    | Squeeze(Slice(in_two))
    | Squeeze(Split(in_two, output=ANY))
    | Gather(in_two, Constant())
)
turned = Concat(Neg(part), part, axis=LAST) | Concat(part, Neg(part), axis=LAST)
turned_pairs = Reshape(Concat(Unsqueeze(Neg(part), axes=LAST), Unsqueeze(part, axes=LAST), axis=LAST))

# Lanes in f16 may be raised to the type of the tables where they meet them.
RAISED = {"raise": Cast(HOLE)}
rotated = Add(
    Mul(star("raised", RAISED, turned | turned_pairs, reach=1), sin),
    Mul(star("raised", RAISED, x, reach=1), cos),
)

first, second = anything("first"), anything("second")
less = Sub(Mul(first, cos), Mul(second, sin))
more = Add(Mul(second, cos), Mul(first, sin))
by_halves = Concat(less, more, axis=LAST)
by_pairs = Reshape(Concat(Unsqueeze(less, axes=LAST), Unsqueeze(more, axes=LAST), axis=LAST))
any_rotation = rotated | by_pairs | by_halves


@form_of(*(forms.rope.kinds - {"rope"}))
def _native(graph: Graph, op: Op) -> forms.Rope | None:
    """A rotation by one operator of the file, of all lanes of its x."""
    found: forms.Rope | None = forms.rope(graph, op)
    return None if found is None or {"rope_heads", "rotary_dim"} & found.attrs.keys() else found


rest = Slice(anything("whole")) | Split(anything("whole"), output=ANY)
turned_part = star("casts", CASTS, any_rotation, reach=2) | form(_native, "native")
# The lanes that pass stand behind the rotated ones, or before them (latent attention); where the halves
# are rotated apart, one join may hold all three.
partial = (
    Concat(turned_part, rest, axis=LAST)
    | Concat(rest, turned_part, axis=LAST)
    | Concat(rest, less, more, axis=LAST)
    | Concat(less, more, rest, axis=LAST)
)


class Pair(NamedTuple):
    """The two lane sets of a match: the value and lanes of the first of each pair, and of the second
    (the one that has the minus); the join that turns them, None where they are rotated apart."""

    first: str
    second: str
    one: Lanes
    two: Lanes
    join: Op | None = None


def _halves(m: Match) -> Pair | None:
    """The lane sets; None where their bounds are not known."""
    graph = m.graph
    join = None
    if m.get("first"):
        a, b = m["first"], m["second"]
    else:
        join = _turning(m)
        if join is None:
            return None
        b, a = (_through(graph, v, "Unsqueeze") for v in join.inputs[:2])
        if _made_by(graph, _below_casts(graph, a), *UNARY):
            a, b = b, a
        a, b = _part_below(graph, a), _part_below(graph, b)
    one, two = lanes(graph, a), lanes(graph, b)
    return None if one is None or two is None else Pair(a, b, one, two, join)


def _turning(m: Match) -> Op | None:
    """The join of the two parts, one of them with a minus (or none, where it was forgotten)."""
    graph = m.graph

    def is_part(value: str) -> bool:
        return _made_by(graph, _part_below(graph, value), *TAKING)

    return next((op for op in m.ops if op.kind == "Concat" and all(map(is_part, op.inputs))), None)


def _part_below(graph: Graph, value: str) -> str:
    """Below what gives a part its sign and its axis, and casts that do not belong there."""
    while _made_by(graph, value, "Unsqueeze", *PASSING):
        value = _through(graph, value, "Unsqueeze", *PASSING)
    return value


def _below_casts(graph: Graph, value: str) -> str:
    while _made_by(graph, value, "Cast"):
        value = _through(graph, value, "Cast")
    return value


def _made_by(graph: Graph, value: str, *kinds: str) -> bool:
    op = graph.producer(value)
    return op is not None and op.kind in kinds


def _through(graph: Graph, value: str, *kinds: str) -> str:
    op = graph.producer(value)
    return op.inputs[0] if op is not None and op.kind in kinds else value


def halves_make_the_whole(m: Match) -> Wrong | None:
    """the two halves are exact and make the whole, the minus on the second"""
    if m.get("native"):
        return None
    found = _halves(m)
    if found is None:
        return Wrong(m.get("first") or m.root, "bounds that are not known")
    one, two, join = found.one, found.two, found.join
    width = m.graph.dims(one[0])
    full = width[-1] if width else None
    if one[0] != two[0]:
        return Wrong(found.first, f"parts of {one[0]} and {two[0]}")
    if not isinstance(full, int) or full % 2:
        return Wrong(found.first, f"lanes {_shown(one)} and {_shown(two)} of {full}")
    halves, pairs = ((0, full // 2, 1), (full // 2, full, 1)), ((0, full, 2), (1, full, 2))
    if join is not None:
        wrong = _wrong_turn(m, found, join, halves, pairs)
        if wrong is not None:
            return wrong
    if (one[1:], two[1:]) in (halves, pairs):
        joined_as_pairs = any(op.kind == "Unsqueeze" for op in m.ops)
        if join is not None and joined_as_pairs != (one[3] == 2):
            return Wrong(join.outputs[0], "lanes taken one way and joined another")
        return None
    wanted = pairs if one[3] == 2 else halves
    odd = found.first if one[1:] != wanted[0] else found.second
    return Wrong(odd, f"lanes {_shown(one)} and {_shown(two)} of {full}")


def _wrong_turn(m: Match, pair: Pair, join: Op, *wanted: Any) -> Wrong | None:
    """The minus on the first of the pair, or the parts joined the other way round."""
    graph = m.graph
    turned_first = _made_by(graph, _below_casts(graph, _through(graph, join.inputs[0], "Unsqueeze")), *UNARY)
    exchanged = (pair.two[1:], pair.one[1:]) in wanted
    if exchanged and turned_first:
        return Wrong(join.outputs[0], "the halves exchanged")
    minus = next((op for op in m.ops if op.kind in UNARY), join)
    if exchanged:
        return Wrong(minus.outputs[0], "the minus on the first half")
    if turned_first or minus is join:
        return None
    return Wrong(join.outputs[0], "the halves joined the other way")


def _shown(taken: Lanes) -> str:
    return ":".join(map(str, taken[1:]))


def tables_broadcast(m: Match) -> Wrong | None:
    """cos and sin broadcast over heads and leave x's dims"""
    if m.get("native"):
        return None
    rotated_dims = m.graph.dims(m.get("first") or m["x"])
    for name in (name for name in ("cos", "sin") if m[name]):
        dims = m.graph.dims(m[name])
        if dims is None or rotated_dims is None or len(dims) > len(rotated_dims):
            return Wrong(m[name], f"{dims_text(dims)} over {dims_text(rotated_dims)}")
        lead = len(rotated_dims) - len(dims)
        for small, big in zip(dims, rotated_dims[lead:], strict=True):
            if small not in (1, big) and isinstance(small, int) and isinstance(big, int):
                return Wrong(m[name], f"{dims_text(dims)} over {dims_text(rotated_dims)}")
    return None


def rest_completes(m: Match) -> Wrong | None:
    """the lanes that pass are the rest of the rotated ones"""
    if not m.get("whole"):
        return None
    join = m.graph.producer(_through_casts(m))
    assert join is not None
    first = _made_by(m.graph, join.inputs[0], "Slice", "Split")
    rest_value = join.inputs[0 if first else -1]
    passed = lanes(m.graph, rest_value)
    source = _turned_value(m)
    turned_lanes = lanes(m.graph, _below_cast(m.graph, source))
    if passed is None or turned_lanes is None:
        return Wrong(rest_value, "bounds that are not known")
    dims = m.graph.dims(passed[0])
    whole = dims[-1] if dims else None
    low, high = (passed, turned_lanes) if first else (turned_lanes, passed)
    if passed[0] == turned_lanes[0] and low[1:] == (0, high[1], 1) and high[2:] == (whole, 1):
        return None
    return Wrong(rest_value, f"lanes {passed[1]}:{passed[2]} beside {turned_lanes[1]}:{turned_lanes[2]}")


def _rest_is_of_lanes(m: Match) -> bool:
    """Whether what is joined to a rotation is not, as text beside image, other rows."""
    join = m.graph.producer(_through_casts(m)) if m.get("whole") else None
    return join is None or not any(along_another_axis(m.graph, value) for value in join.inputs)


def _through_casts(m: Match) -> str:
    return _below_cast(m.graph, m.root)


def _below_cast(graph: Graph, value: str) -> str:
    return _through(graph, value, "Cast")


def _turned_value(m: Match) -> str:
    """The value all of whose lanes are rotated."""
    if m.get("native"):
        value: str = m["native"].x
        return value
    found = _halves(m)
    return m["x"] if m.get("x") else "" if found is None else found.one[0]


def _form(m: Match) -> dict[str, Any]:
    if m.get("native"):
        return dict(m["native"].attrs)
    found = _halves(m)
    assert found is not None
    pairs = found.one[3] == 2
    attrs: dict[str, Any] = {}
    if m.get("first"):
        attrs["tables"] = "half"
        joined = any(op.kind == "Unsqueeze" for op in m.ops)
        if pairs != joined:
            attrs["form"] = "pairs_to_halves" if pairs else "halves_to_pairs"
        elif pairs:
            attrs["form"] = "interleaved"
    elif pairs:
        attrs["form"] = "interleaved"
    return attrs


#: What a table may pass on its way to the product: it holds the same angles after each.
_TABLE_STEPS = frozenset("Slice Split Unsqueeze Squeeze Reshape Expand Transpose Cast Identity".split())
_LOOKUPS = frozenset(("Gather", "GatherND", "GatherElements"))


def tables_from(graph: Graph, value: str) -> str:
    """Where angles come from: table, gathered or computed."""
    while not graph.is_constant(value):
        op = graph.producer(value)
        if op is None or op.kind not in _TABLE_STEPS | _LOOKUPS:
            return "computed"
        if op.kind in _LOOKUPS:
            return "gathered" if tables_from(graph, op.inputs[0]) == "table" else "computed"
        value = op.inputs[0]
    return "table"


_RAISES = frozenset({("f16", "f32"), ("bf16", "f32"), ("f32", "f64")})


def _rope(m: Match) -> Built | None:
    graph = m.graph
    attrs, native = _form(m), m.get("native")
    cos, sin, ids = (native.cos, native.sin, native.position_ids) if native else (m["cos"], m["sin"], "")
    source = tables_from(graph, cos)
    if source != "computed" and not native:
        attrs["tables_from"] = source
    also: list[Op] = []
    value = _turned_value(m)
    raised = graph.dtype(cos) if m.taken("raised") else ""
    if raised and (graph.dtype(value), raised) not in _RAISES:
        return None
    if m.get("first"):
        both = (*lane_ops(graph, m["first"]), *lane_ops(graph, m["second"]))
        also += {op.slot: op for op in both}.values()
    if m.get("whole"):
        cut = graph.producer(_below_cast(graph, value))
        assert cut is not None
        taken = lanes(graph, _below_cast(graph, value))
        assert taken is not None
        attrs["rotary_dim"] = taken[2] - taken[1]
        if taken[1]:
            attrs["rotary_from"] = taken[1]
        parts = {op.slot for op in (*m.ops, *also)}
        chain = [cut] if _below_cast(graph, value) == value else [graph.producer(value), cut]
        for op in chain:
            if op is None or any(
                slot not in parts for out in op.outputs for slot in graph.readers(out) if out
            ):
                return None
            also.append(op)
            parts.add(op.slot)
        if len(chain) > 1 or raised:
            attrs["rope_compute"] = raised or graph.dtype(value)
        return Built("rope", (m["whole"], cos, sin, ids), attrs, also=also)
    below, cast = absorb_cast(m, value, [*m.ops, *also])
    if cast is not None:
        also.append(cast)
    if cast is not None or raised:
        attrs["rope_compute"] = raised or graph.dtype(value)
    return Built("rope", (below, cos, sin, ids), attrs, also=also)


rope = Rule(
    "rope",
    """rotates pairs of lanes of x by the angles of cos and sin

    Six to ten kernels and as many copies of x become one. The pairs are the halves of the width, or
    neighbours; cos and sin are any two values that broadcast over heads.""",
    finds=star("casts", CASTS, partial, reach=2) | star("casts", CASTS, any_rotation, reach=2),
    marks=("Concat",),
    place=_rest_is_of_lanes,
    needs=(
        guard(halves_make_the_whole),
        guard(rest_completes),
        guard(tables_broadcast),
        casts_to_float("casts"),
    ),
    builds=_rope,
)
