"""Lookups before the first norm, and norms whose result is flattened to rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fuse import forms
from fuse.guards import dims_text
from fuse.ir import Graph, Op
from fuse.match import Fault, Match
from fuse.rule import Built, Rule, Wrong, guard
from fuse.rules.norm_composites import norm_attrs
from fuse.types import FLOATS, INTEGERS, Dim, Dims, mul


# ---- lookups -------------------------------------------------------------------------------------
@dataclass
class Lookup:
    """Rows of a table by ids, or rows as they are (no ids), less a number of codes, times a number."""

    table: str
    ids: str = ""
    scale: float = 1.0
    zero: float = 0.0
    ops: list[Op] = field(default_factory=list)


def lookup(graph: Graph, value: str) -> Lookup | None:
    """A value as a lookup; None where it is none."""
    op = graph.producer(value)
    if op is None or graph.is_constant(value):
        return Lookup(value) if graph.is_constant(value) and graph.dtype(value) in FLOATS else None
    if op.kind == "Mul":
        number = next((v for v in op.inputs if graph.scalar(v) is not None), "")
        inner = lookup(graph, next((v for v in op.inputs if v != number), "")) if number else None
        if inner is None or not inner.ids or inner.scale != 1.0:
            return None
        return Lookup(inner.table, inner.ids, float(graph.scalar(number) or 0.0), 0.0, [*inner.ops, op])
    if op.kind == "DequantizeLinear":
        return _codes(graph, op)
    if op.kind != "Gather" or graph.dtype(value) not in FLOATS or len(graph.dims(op.inputs[0]) or ()) != 2:
        return None
    return Lookup(op.inputs[0], op.inputs[1], 1.0, 0.0, [op])


def _codes(graph: Graph, op: Op) -> Lookup | None:
    """Rows of codes that are looked up, then decoded by one scale and one zero point."""
    rows = graph.producer(op.inputs[0])
    step = graph.scalar(op.inputs[1])
    zero = graph.scalar(op.inputs[2]) if len(op.inputs) > 2 and op.inputs[2] else 0
    if rows is None or rows.kind != "Gather" or step is None or zero is None:
        return None
    if graph.dtype(rows.inputs[0]) not in ("i8", "u8") or len(graph.dims(rows.inputs[0]) or ()) != 2:
        return None
    return Lookup(rows.inputs[0], rows.inputs[1], float(step), float(zero), [rows, op])


def lookups(graph: Graph, found: forms.AddNorm) -> tuple[list[Lookup], list[Op]] | None:
    """What an add_norm sums, where all of it is lookups of which one at least has ids; and the adds."""
    leaves: list[Lookup] = []
    adds: list[Op] = []
    todo = [found.residual, found.x]
    while todo:
        value = todo.pop()
        one = lookup(graph, value)
        op = graph.producer(value)
        if one is not None:
            leaves.append(one)
        elif op is not None and op.kind == "Add" and len(adds) < 2:
            adds.append(op)
            todo += reversed(op.inputs)
        else:
            return None
    with_ids = [one for one in leaves if one.ids]
    return (leaves, adds) if with_ids and 2 <= len(leaves) <= 3 else None


def find_embedding(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """An add_norm over the sum of two or three lookups."""
    found = forms.add_norm(graph, op)
    if found is None or found.add_bias or op.kind == "norm_reshape":
        return
    both = lookups(graph, found)
    if both is not None:
        match = Match(graph)
        match.ops = [*(inner for one in both[0] for inner in one.ops), *both[1], op]
        match.bound = {"norm": found, "lookups": both[0]}
        match.root = found.out
        yield match


def ids_are_integers(m: Match) -> Wrong | None:
    """ids: integers, which select rows"""
    for one in m["lookups"]:
        if one.ids and m.graph.dtype(one.ids) not in INTEGERS:
            return Wrong(one.ids, m.graph.dtype(one.ids) or "unknown type")
    return None


def tables_are_known(m: Match) -> Wrong | None:
    """tables: known when the model loads"""
    for one in m["lookups"]:
        if not m.graph.is_constant(one.table):
            return Wrong(one.table, "a value that changes at run time")
    return None


def rows_are_selected(m: Match) -> Wrong | None:
    """axis=0"""
    for one in m["lookups"]:
        for op in one.ops:
            axis = op.attrs.get("axis", 0) if op.kind == "Gather" else 0
            if axis not in (0, -2):
                return Wrong(op.outputs[0], f"axis={axis}")
    return None


def _rows(graph: Graph, one: Lookup) -> int:
    dims = graph.dims(one.table)
    rows = dims[0] if dims and one.ids else 0
    return rows if isinstance(rows, int) else 0


def _roles(graph: Graph, found: list[Lookup]) -> list[Lookup]:
    """Word, position, type: the table of most rows is the words', that of fewest the types'."""
    order = sorted(found, key=lambda one: -_rows(graph, one))
    word, *rest = order
    rows = [one for one in rest if not one.ids]
    others = [one for one in rest if one.ids]
    return [word, *rows, *others]


def _embedding(m: Match) -> Built | None:
    word, *rest = _roles(m.graph, m["lookups"])
    if len(rest) == 2 and not rest[1].ids:
        return None
    norm = m["norm"]
    attrs = norm_attrs(norm)
    for name, one in zip(("word", "position", "type"), (word, *rest), strict=False):
        attrs |= {f"{name}_scale": one.scale} if one.scale != 1.0 else {}
        attrs |= {f"{name}_zero": one.zero} if one.zero else {}
    tables = [value for one in (word, *rest, Lookup(""))[:3] for value in (one.ids, one.table)]
    return Built("embed_norm", (*tables, norm.weight, norm.bias), attrs, outputs=(norm.out, norm.total))


def _told(m: Match, fault: Fault) -> bool:
    """What is looked for is itself telling: a norm of nothing but lookups."""
    return True


def _rows_alone(m: Match, fault: Fault) -> bool:
    """A norm flattened is telling, but where other products, mixtures and norms take its rows as they are."""
    if fault.code != "read_elsewhere":
        return True
    norm, graph = m["norm"], m.graph
    readers = [graph.slots[slot] for slot in graph.readers(norm.out)]
    return not any(op is not None and op.kind in _ROW_READERS and op.outputs[0] != m.root for op in readers)


_ROW_READERS = (
    forms.product.kinds
    | forms.norm.kinds
    | forms.add_norm.kinds
    | frozenset("Reshape Flatten Gather Add Concat Cast merged_products merged_gate_up merged_qkv".split())
)


embed_norm = Rule(
    "embed_norm",
    """token, position and type rows looked up, added and normed; the sum is written on where others read it

    Three lookups, two adds and a norm become one kernel, and no row is written before it is normed.""",
    finds=find_embedding,
    marks=tuple(sorted(forms.add_norm.kinds)),
    needs=(
        guard(ids_are_integers, code="operand"),
        guard(tables_are_known, code="operand"),
        guard(rows_are_selected, code="attribute"),
    ),
    builds=_embedding,
    almost=_told,
    reads=("Gather",),
)


# ---- flattened rows ------------------------------------------------------------------------------
def joined_axes(inner: Dims, outer: Dims) -> tuple[int, ...] | None:
    """For each axis of a reshape's result how many axes of its operand it joins; None where it does else."""
    counts: list[int] = []
    at = 0
    for dim in outer:
        have: Dim = 1
        count = 0
        while at < len(inner) and (count == 0 or have != dim):
            have = mul(have, inner[at])
            at, count = at + 1, count + 1
        if have != dim or not count:
            return None
        counts.append(count)
    return tuple(counts) if at == len(inner) else None


def find_flattened(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """A reshape to fewer axes that alone reads a norm. A norm with other readers is written as it is."""
    norm: Any = forms.add_norm(graph, op) if op.kind in forms.add_norm.kinds else forms.norm(graph, op)
    if norm is None or op.kind == "norm_reshape":
        return
    readers = graph.readers(norm.out)
    for slot in readers if len(readers) == 1 else ():
        reader = graph.slots[slot]
        if reader is None or reader.kind not in ("Reshape", "Flatten") or reader.inputs[0] != norm.out:
            continue
        inner, outer = graph.dims(norm.out), graph.dims(reader.outputs[0])
        if inner is not None and outer is not None and len(outer) < len(inner):
            match = Match(graph)
            match.ops = [op, reader]
            match.bound = {"norm": norm, "inner": inner, "outer": outer}
            match.root = reader.outputs[0]
            yield match


def last_axis_is_kept(m: Match) -> Wrong | None:
    """the reshape joins leading axes and leaves the last axis alone"""
    counts = joined_axes(m["inner"], m["outer"])
    if counts is not None and counts[-1] == 1:
        return None
    return Wrong(m.root, f"{dims_text(m['inner'])} to {dims_text(m['outer'])}")


def _flattened_alone(m: Match) -> bool:
    """Whether nothing else needs the norm's rows as they are: a residual, another reshape, their shape."""
    graph = m.graph
    others = [graph.slots[slot] for slot in graph.readers(m["norm"].out) if slot != m.ops[1].slot]
    needing = forms.add_norm.kinds | {"Reshape", "Flatten", "Shape", "matmul_residual"}
    return not any(op is not None and op.kind in needing for op in others)


def _flattened(m: Match) -> Built | None:
    norm = m["norm"]
    added = isinstance(norm, forms.AddNorm)
    if added and (norm.add_bias or lookups(m.graph, norm) is not None):
        return None
    attrs = norm_attrs(norm) | {"joins": joined_axes(m["inner"], m["outer"])}
    residual, total = (norm.residual, norm.total) if added else ("", "")
    return Built("norm_reshape", (norm.x, residual, norm.weight, norm.bias), attrs, outputs=(m.root, total))


norm_reshape = Rule(
    "norm_reshape",
    """a norm (of a sum, perhaps) whose result is flattened to rows

    The norm writes the rows the products read; nothing is copied between.""",
    finds=find_flattened,
    marks=tuple(sorted((forms.norm.kinds | forms.add_norm.kinds) - {"norm_reshape"})),
    needs=(guard(last_axis_is_kept),),
    place=_flattened_alone,
    builds=_flattened,
    almost=_rows_alone,
    reads=("Reshape", "Flatten"),
)
