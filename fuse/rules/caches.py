"""Caches: new rows joined to past ones, and what lands in them."""

from __future__ import annotations

from typing import Any

from fuse import forms
from fuse.ir import Graph, Op
from fuse.match import Fault, Match
from fuse.match.plausible import PASSING, READERS, STRAY
from fuse.pattern import Concat, anything, form, form_of
from fuse.rule import Built, Rule, Wrong, guard


def from_outside(graph: Graph, value: str) -> bool:
    """Whether a value comes from the caller: an input of this graph or one around it, cast or not."""
    op = graph.producer(value)
    if op is not None and op.kind == "Cast":
        value = op.inputs[0]
    return value in graph.inputs or (
        bool(graph.base.prefix) and value not in graph.base.producer and not graph.is_constant(value)
    )


def sequence_axis(graph: Graph, op: Op) -> int | None:
    """The axis, from the end, that an attention calls its rows, where one reads the joined value."""
    dims = graph.dims(op.outputs[0])
    if dims is None:
        return None
    for slot in graph.readers(op.outputs[0]):
        reader = graph.slots[slot]
        if reader is not None and reader.kind == "Attention" and len(dims) == 4:
            return -2
        if reader is not None and reader.kind == "attention":
            index = reader.inputs.index(op.outputs[0])
            layout = str(reader.attrs.get({1: "k_layout", 2: "v_layout"}.get(index, ""), "")).split()
            if "s" in layout and len(layout) == len(dims):
                return layout.index("s") - len(dims)
    return None


def rows_join_on_the_sequence_axis(m: Match) -> Wrong | None:
    """the axis joined is the sequence axis"""
    op = m.graph.producer(m.root)
    assert op is not None
    axis, want = _axis(m.graph, op), sequence_axis(m.graph, op)
    return None if want is None or axis == want else Wrong(op.outputs[0], f"axis {axis}, not {want}")


def past_stands_first(m: Match) -> Wrong | None:
    """past: rows of the caller, before the new ones"""
    graph = m.graph
    if from_outside(graph, m["past"]):
        return None
    made = graph.producer(m["past"])
    if made is not None and made.kind in PASSING and from_outside(graph, made.inputs[0]):
        return Wrong(m["past"], f"{made.kind} of them")
    return Wrong(m.root, "the operands swapped")


def _axis(graph: Graph, op: Op) -> int | None:
    dims = graph.dims(op.outputs[0])
    axis = op.attrs.get("axis")
    if not isinstance(axis, int) or dims is None:
        return None
    return axis if axis < 0 else axis - len(dims)


#: What a joined cache may pass on its way to the attention that reads it.
_ON_THE_WAY = frozenset(
    "Transpose Reshape Unsqueeze Squeeze Expand Cast Slice Gather Split Mul DequantizeLinear".split()
)
_ATTEND = frozenset(
    (
        "attention Attention com.microsoft.MultiHeadAttention com.microsoft.GroupQueryAttention If Loop Scan"
    ).split()
)
_MULTIPLY = frozenset("MatMul Einsum com.microsoft.FusedMatMul MatMulInteger".split())


def _is_kept_or_attended(graph: Graph, value: str) -> bool:
    """Whether what is joined is given back to the caller, or read as keys and values are: by an attention
    or by a product of two activations. Two inputs in one row (text beside text) are no cache."""
    seen, level = {value}, [value]
    while level:
        at = level.pop()
        if graph.is_output(at):
            return True
        for op in map(graph.slots.__getitem__, graph.readers(at)):
            if op is None:
                continue
            if op.kind in _ON_THE_WAY:
                level += [out for out in op.outputs if out and out not in seen]
                seen.update(op.outputs)
            elif op.kind in _ATTEND or (op.kind in _MULTIPLY and not any(map(graph.is_constant, op.inputs))):
                return True
    return False


def _is_cache(m: Match) -> bool:
    """Whether what is joined is a cache: of the caller's, three axes or more, and not along the width."""
    graph = m.graph
    op = graph.producer(m.root)
    dims = graph.dims(m.root)
    if op is None or dims is None or len(dims) < 3 or not _may_be_past(graph, op):
        return False
    if graph.is_constant(m["new"]) or not _is_kept_or_attended(graph, m.root):
        return False
    return _axis(graph, op) != -1 or sequence_axis(graph, op) is not None


def _may_be_past(graph: Graph, op: Op) -> bool:
    """Whether what is joined comes from outside; or, where an attention reads the rows or they are rotated,
    the past is the other operand or passes an operator that does not belong there."""
    if from_outside(graph, op.inputs[0]):
        return True
    first = graph.producer(op.inputs[0])
    if first is None:
        return False
    read = sequence_axis(graph, op) is not None
    if first.kind in PASSING and from_outside(graph, first.inputs[0]):
        return read or graph.is_output(op.outputs[0])
    rotated = first.kind in forms.rope.kinds | {"qk_norm_rope"}
    return (read or rotated) and from_outside(graph, op.inputs[1])


def _append(m: Match) -> Built | None:
    op = m.graph.producer(m.root)
    if op is None or not _is_cache(m):
        return None
    return Built("kv_append", (m["past"], m["new"]), {"axis": _axis(m.graph, op)})


kv_append = Rule(
    "kv_append",
    """new rows joined to a cache the caller passes in

    The rows can be written in place; the joined value may be a graph output and stays one.""",
    finds=Concat(anything("past"), anything("new")),
    marks=("Concat",),
    needs=(guard(past_stands_first, code="operand"), guard(rows_join_on_the_sequence_axis)),
    place=_is_cache,
    almost=lambda m, fault: fault.code == "operand" or fault.code.startswith("guard:"),
    builds=_append,
    reads=("attention",),
)


def _read_outside(m: Match, fault: Fault) -> bool:
    """Whether a rotation that a cache takes in is read by others too, or passes what no model means."""
    return fault.code in READERS or (fault.code == "op" and fault.got in STRAY)


def _landing(m: Match) -> Built:
    append, rotation = m["append"], m["rope"]
    operands = (append.past, rotation.x, rotation.cos, rotation.sin, rotation.position_ids)
    return Built("rope_kv_append", operands, rotation.attrs | {"axis": append.axis})


rope_kv_append = Rule(
    "rope_kv_append",
    """a rotation landing in a cache's rows

    The rotated rows are written where the cache wants them, not copied there.""",
    finds=form(forms.append, "append", new=form(forms.rope, "rope")),
    marks=tuple(sorted(forms.append.kinds)),
    almost=_read_outside,
    builds=_landing,
    reads=tuple(sorted(forms.rope.kinds)),
)


@form_of("qk_norm_rope")
def _normed_form(graph: Graph, op: Op) -> Any:
    return forms.Rope(
        op.inputs[0], op.inputs[3], op.inputs[4], op.inputs[5], dict(op.attrs), op.outputs[0], op
    )


def _normed_landing(m: Match) -> Built:
    append, inner = m["append"], m["normed"]
    op = inner.op
    return Built("qk_norm_rope_kv_append", (append.past, *op.inputs[:6]), inner.attrs | {"axis": append.axis})


qk_norm_rope_kv_append = Rule(
    "qk_norm_rope_kv_append",
    """a head's norm and rotation landing in a cache's rows

    One kernel from the product to the cache.""",
    finds=form(forms.append, "append", new=form(_normed_form, "normed")),
    marks=tuple(sorted(forms.append.kinds)),
    almost=_read_outside,
    builds=_normed_landing,
    reads=("qk_norm_rope",),
)
