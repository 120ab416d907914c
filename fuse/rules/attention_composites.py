"""What stands around an attention and can be part of it: a gate of its result, values in its keys."""

from __future__ import annotations

from collections.abc import Iterator

from fuse import layout as lay
from fuse.forms.attentions import Core, core
from fuse.guards import agree, dims_text
from fuse.ir import Graph, Op
from fuse.layout import Atom, Layout
from fuse.match import Match
from fuse.pattern import HOLE, Mul, Reshape, Sigmoid, Transpose, anything, form, star
from fuse.rule import Built, Rule, Wrong, guard
from fuse.rules.attention_axes import result_layout
from fuse.rules.delta_solve import integers
from fuse.types import divide

_AXES_STEPS = {"transpose": Transpose(HOLE), "reshape": Reshape(HOLE)}


def gate_has_the_rows_of_the_result(m: Match) -> Wrong | None:
    """the gate has the result's dims, or one number for each of its rows"""
    gate, result = m.graph.dims(m["gate"]), m.graph.dims(m.root)
    if agree(gate, result) or (gate and result and gate[-1] == 1 and agree(gate[:-1], result[:-1])):
        return None
    return Wrong(m["gate"], f"{dims_text(gate)} beside {dims_text(result)}")


def _gated(m: Match) -> Built | None:
    found: Core = m["attention"]
    attrs = dict(found.attrs)
    if m.taken("out"):
        opened = _layout(m.graph, found)
        again = None if opened is None else result_layout(m, opened)
        if again is None:
            return None
        attrs["out_layout"] = lay.text(again)
    return Built("attn_output_gate", (found.q, found.k, found.v, m["gate"], *found.masks), attrs)


def _layout(graph: Graph, found: Core) -> Layout | None:
    """The axes of an attention's result with their sizes; None where joined axes have no known parts."""
    dims, letters = graph.dims(found.out), str(found.attrs["out_layout"]).split()
    if dims is None or len(dims) != len(letters):
        return None
    axes: list[tuple[Atom, ...]] = []
    for letter, dim in zip(letters, dims, strict=True):
        heads = found.attrs["heads"]
        if len(letter) == 1:
            axes.append((Atom(letter, dim),))
            continue
        width = divide(dim, heads) if letter == "hd" and heads else None
        if width is None:
            return None
        axes.append((Atom("h", heads), Atom("d", width)))
    return tuple(axes)


attn_output_gate = Rule(
    "attn_output_gate",
    """attention, its result times sigmoid(gate)

    The result is gated where it is written: two kernels and a pass over it are saved.""",
    finds=Mul(
        star("out", _AXES_STEPS, form(core, "attention"), resizes=["transpose", "reshape"]),
        Sigmoid(anything("gate")),
    ),
    marks=("attention", "Attention"),
    needs=(guard(gate_has_the_rows_of_the_result),),
    almost=lambda m, fault: fault.code == "op",
    builds=_gated,
)


# ---- values in keys ----------------------------------------------------------------------------------
def _lanes(graph: Graph, value: str) -> tuple[str, int, Op] | None:
    """The rows that a value is some lanes of, the first of those lanes, and the op that cuts them."""
    op = graph.producer(value)
    dims, rows = graph.dims(value), graph.dims(op.inputs[0]) if op is not None and op.inputs else None
    if op is None or dims is None or rows is None or len(dims) != len(rows) or dims[:-1] != rows[:-1]:
        return None
    last = len(rows) - 1
    if op.kind == "Slice" and len(op.inputs) >= 4:
        begin, axes = integers(graph, op.inputs[1]), integers(graph, op.inputs[3])
        step = integers(graph, op.inputs[4]) if len(op.inputs) > 4 else (1,)
        if begin is None or len(begin) != 1 or axes not in ((-1,), (last,)) or step != (1,):
            return None
        return (op.inputs[0], begin[0], op) if begin[0] >= 0 else None
    if op.kind == "Split" and op.attrs.get("axis", 0) in (-1, last):
        before = [graph.dims(out) for out in op.outputs[: op.outputs.index(value)]]
        widths = [d[-1] for d in before if d is not None and isinstance(d[-1], int)]
        return (op.inputs[0], sum(widths), op) if len(widths) == len(before) else None
    return None


def _joined(graph: Graph, rows: str, value: str) -> int | None:
    """Where a value's lanes begin in rows that join it with others; None where they do not."""
    op = graph.producer(rows)
    dims = graph.dims(rows)
    if op is None or op.kind != "Concat" or dims is None or op.attrs.get("axis") not in (-1, len(dims) - 1):
        return None
    if value not in op.inputs:
        return None
    begin = 0
    for part in op.inputs[: op.inputs.index(value)]:
        width = graph.dims(part)
        if not width or not isinstance(width[-1], int):
            return None
        begin += width[-1]
    return begin


def find(graph: Graph, top: Op, budget: int) -> Iterator[Match]:
    """An attention whose values are lanes of its key rows, cut from them or joined into them."""
    found = core(graph, top)
    dims = graph.dims(top.inputs[2]) if len(top.inputs) > 2 else None
    if found is None or not dims or not isinstance(dims[-1], int) or dims[-1] < 1:
        return
    m = Match(graph, budget)
    m.root, m.ops = top.outputs[0], [top]
    begin = 0 if found.k == found.v else _joined(graph, found.k, found.v)
    if begin is None:
        cut = _lanes(graph, found.v)
        if cut is None or cut[0] != found.k:
            return
        begin = cut[1]
        if cut[2].kind == "Slice" and graph.readers(found.v) == [top.slot] and not graph.is_output(found.v):
            m.ops.append(cut[2])
    m.bound = {"attention": found, "from": begin, "width": dims[-1], "v": found.v}
    yield m


def values_are_laid_out_as_keys(m: Match) -> Wrong | None:
    """v has the axes of k, its lanes the last of them"""
    attrs = m["attention"].attrs
    if attrs["k_layout"] == attrs["v_layout"] and str(attrs["k_layout"]).split()[-1] == "d":
        return None
    return Wrong(m["v"], f"v {attrs['v_layout']}, k {attrs['k_layout']}")


def _shared(m: Match) -> Built:
    found: Core = m["attention"]
    attrs = dict(found.attrs) | {"v_width": m["width"]}
    if m["from"]:
        attrs["v_from"] = m["from"]
    return Built("values_in_keys", (found.q, found.k, *found.masks), attrs)


values_in_keys = Rule(
    "values_in_keys",
    """attention that reads its values in lanes of its key rows (latent attention)

    One cache holds keys and values, and a kernel reads each row once for both.""",
    finds=find,
    marks=("attention", "Attention"),
    needs=(guard(values_are_laid_out_as_keys),),
    builds=_shared,
)
