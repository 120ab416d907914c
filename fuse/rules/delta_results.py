"""What a match of unrolled chunks becomes: the recurrence, with its layouts taken in or as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuse import layout as lay
from fuse.ir import Graph, Op
from fuse.match import Match
from fuse.rule import Built
from fuse.rules.attention_axes import Stops, any_order
from fuse.rules.delta_step import scaled
from fuse.rules.delta_zeros import zeros
from fuse.types import Dims, mul

NAMES = ("q", "k", "v", "decay", "beta")
_AXES = frozenset({"b", "h", "s", "d", "hd", "1"})


def build_chunks(m: Match) -> Iterator[Built]:
    """The recurrence with every layout operator taken in that can be, then of its operands as they are."""
    for stops in (any_order(_AXES), None):
        found = _build(m, stops)
        if found is not None:
            yield from _joined_again(m, found)
            yield found


def _build(m: Match, stops: Stops | None) -> Built | None:
    graph, facts = m.graph, m["facts"]
    heads = (graph.dims(m["v"]) or (0, 0))[1]
    if not isinstance(heads, int):
        return None
    also: list[Op] = []
    values, layouts = [], {}
    scale = float(m.number("q_scale")) if m.get("q_scale") else 1.0
    for name in NAMES:
        value = m[name]
        if name == "q" and stops is not None:
            value, factor = scaled(m, value, also)
            scale *= factor
        dims = graph.dims(value)
        assert dims is not None
        letters = "b h s" if name in ("decay", "beta") else "b h s d"
        layout = lay.layout_of(dims, letters)
        if stops is not None:
            own = {op.slot for op in (*m.ops, *also)}
            value, layout, repeats, ops = lay.walk(graph, value, layout, own, stops)
            also += ops if repeats == 1 else []
        values.append(value)
        layouts[f"{name}_layout"] = lay.text(layout)
    state = "" if zeros(graph, m["state"]) else m["state"]
    attrs: dict[str, Any] = {**layouts, "out_layout": "b h c s d", "heads": heads}
    attrs |= {"chunk": facts.rows, "chunks": len(facts.bounds)}
    if scale != 1.0:
        attrs["scale"] = scale
    outputs = (m.root, facts.last_state) if facts.last_state else (m.root,)
    return Built("gated_delta", (*values, state), attrs, outputs, also)


def _joined_again(m: Match, found: Built) -> Iterator[Built]:
    """The recurrence with its chunks joined again and cut to the rows there are, where every chunk is
    computed; with its rows before its heads first."""
    graph, facts = m.graph, m["facts"]
    whole, v = graph.dims(m.root), graph.dims(m["v"])
    if whole is None or v is None or whole[2] != len(facts.bounds):
        return
    forms: list[Built] = []
    ops, value, layout = list[Op](), m.root, "b h c s d"
    attrs = {name: number for name, number in found.attrs.items() if name not in ("chunk", "chunks")}
    while True:
        readers = graph.readers(value)
        op = graph.slots[readers[0]] if len(readers) == 1 and not graph.is_output(value) else None
        after = _joined_axes(graph, op, layout, v) if op is not None else ""
        if op is None or not after:
            break
        ops, value, layout = [*ops, op], op.outputs[0], after
        if graph.dims(value) in (
            (v[0], v[1], v[2], v[3]),
            (v[0], v[2], v[1], v[3]),
            (v[0], v[2], mul(v[1], v[3])),
        ):
            outputs = (value, *found.outputs[1:])
            forms.append(
                Built(
                    found.kind, found.operands, attrs | {"out_layout": layout}, outputs, [*found.also, *ops]
                )
            )
    yield from reversed(forms)


def _joined_axes(graph: Graph, op: Op, layout: str, v: Dims) -> str:
    """The axes of a result behind an operator on it; empty where that does something else."""
    dims = graph.dims(op.outputs[0])
    if dims is None:
        return ""
    if op.kind == "Reshape" and layout == "b h c s d":
        return "b h s d" if (*dims[:2], *dims[3:]) == (v[0], v[1], v[3]) and len(dims) == 4 else ""
    if op.kind == "Slice" and layout == "b h s d" and dims == v and len(op.inputs) >= 4:
        begin, axes = graph.content(op.inputs[1]), graph.content(op.inputs[3])
        step = graph.content(op.inputs[4]) if len(op.inputs) > 4 else (1,)
        return layout if begin == (0,) and axes in ((2,), (-2,)) and step == (1,) else ""
    if op.kind == "Transpose" and layout == "b h s d" and tuple(op.attrs.get("perm") or ()) == (0, 2, 1, 3):
        return "b s h d"
    joined = (v[0], v[2], mul(v[1], v[3]))
    return "b s hd" if op.kind == "Reshape" and layout == "b s h d" and dims == joined else ""
