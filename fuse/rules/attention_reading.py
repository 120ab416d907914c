"""What an attention is, as read off a match: scale, masks and cap, and where its axes lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fuse import layout as lay
from fuse.ir import Graph, Op
from fuse.layout import Layout
from fuse.match import Match
from fuse.rules.attention_axes import Stops, letters, mask_layout, opened
from fuse.rules.attention_masks import adds_nothing, always_true
from fuse.rules.attention_turns import exchanged, exchanges_last, is_turned, swapped
from fuse.types import Dim


@dataclass
class Reading:
    """An attention as read off a match."""

    scale: float = 1.0
    masks: list[tuple[str, str, str, float]] = field(default_factory=list)  # what, operand, layout, fill
    softcap: float = 0.0
    layout: Layout = ()
    empty_at: float = 0.0
    also: list[Op] = field(default_factory=list)


def products(m: Match) -> tuple[Op, Op] | None:
    """The product of q and k, and the product with v; None where one of them is another operator."""
    found = [op for op in m.ops if op.kind in ("MatMul", "com.microsoft.FusedMatMul", "Einsum")]
    score = [op for op in found if op.inputs[:2] == (m["q"], m["k"])]
    out = [op for op in found if op not in score[:1] and m["v"] in op.inputs[:2]]
    return (score[0], out[0]) if score and out else None


def read_scores(m: Match, score: Op) -> Reading | None:
    """Scale, masks and cap, and the axes of the scores where the softmax reads them."""
    graph = m.graph
    found = letters(graph, score, "q", "k")
    dims = graph.dims(score.outputs[0])
    if found is None or dims is None:
        return None
    axes = exchanged(found[2]) if swapped(m) else found[2]
    reading = Reading(scale=float(score.attrs.get("alpha", 1.0)), layout=lay.layout_of(dims, axes))
    for step in reversed(m.taken("scores")):
        if step.step == "reshape":
            shape = graph.dims(step.value)
            atoms = [atom for axis in reading.layout for atom in axis]
            again = None if shape is None else lay.regroup(atoms, shape)
            if again is None or not _counted(again):
                return None
            reading.layout = again
        elif step.step in ("scale", "unscale"):
            number = float(graph.scalar(step.bound["s"]) or 0.0)
            if number == 0.0:
                return None
            if number != 1 and any(what == "add" for what, *_ in reading.masks):
                how = "multiply" if step.step == "scale" else "divide"
                reading.masks.append((how, step.bound["s"], mask_layout(reading.layout), 0.0))
                continue
            reading.scale *= number if step.step == "scale" else 1 / number
        elif step.step == "turn":
            if not exchanges_last(graph, step.value):
                return None
            reading.layout = (*reading.layout[:-2], reading.layout[-1], reading.layout[-2])
        elif step.step not in ("cast", "shift", "floor"):
            if is_turned(reading.layout):
                return None
            _read_mask(graph, reading, step.step, step.value, step.bound)
            reading.layout = opened(reading.layout, graph.dims(step.value))
    return reading


def _counted(layout: Layout) -> bool:
    """Whether rows and keys that a reshape parts (rows and columns of pixels) have sizes that are numbers."""
    atoms = [atom for axis in layout for atom in axis]
    parted = any(atom.letter in "ST" for atom in atoms)
    return not parted or all(isinstance(atom.size, int) for atom in atoms if atom.letter in "sStT")


def _read_mask(graph: Graph, reading: Reading, what: str, at: str, bound: dict[str, Any]) -> None:
    where = mask_layout(reading.layout)
    if what in ("cap", "bound"):
        op = graph.producer(at)
        assert op is not None
        number = bound["c"] if what == "cap" and op.kind != "softcap" else bound.get("c2", "")
        cap = op.attrs["cap"] if op.kind == "softcap" else float(graph.scalar(number) or 0.0)
        reading.softcap = cap
        reading.scale *= cap if what == "bound" else 1.0
        reading.masks.append(("cap", "", "", 0.0))
        return
    name = {"add": "mask", "divide": "divisor", "multiply": "factor", "hide": "hidden"}.get(what, what)
    operand = bound[name]
    if (what == "add" and adds_nothing(graph, operand)) or (what == "keep" and always_true(graph, operand)):
        return
    fill = bound.get("much" if what == "hide" else "fill", "") if what in ("keep", "drop", "hide") else ""
    number = float(graph.scalar(fill) or 0.0) if fill else 0.0
    reading.masks.append((what, operand, where, number))


def read_operand(
    m: Match,
    value: str,
    layout: Layout,
    reading: Reading,
    stops: Stops,
    spread: bool = True,
    scaled: bool = True,
) -> tuple[str, Layout, Dim]:
    """Down from an operand through layout operators and, of q and k, scalar factors that only the match
    reads."""
    graph = m.graph
    repeats: Dim = 1
    while True:
        own = {op.slot for op in (*m.ops, *reading.also)}
        value, layout, times, ops = lay.walk(graph, value, layout, own, stops, spread)
        reading.also += ops
        repeats = times if times != 1 else repeats
        own |= {op.slot for op in ops}
        op = graph.producer(value)
        if op is None or op.kind not in ("Mul", "Div") or graph.is_output(value) or not scaled:
            return value, layout, repeats
        if op.slot in own or any(slot not in own for slot in graph.readers(value)):
            return value, layout, repeats
        at = 1 if graph.scalar(op.inputs[1]) is not None else 0
        number = graph.scalar(op.inputs[at])
        if (
            number is None
            or (op.kind == "Div" and at == 0)
            or not number
            or graph.dims(op.inputs[1 - at]) != graph.dims(value)
        ):
            return value, layout, repeats
        reading.scale *= float(number) if op.kind == "Mul" else 1 / float(number)
        reading.also.append(op)
        value = op.inputs[1 - at]
