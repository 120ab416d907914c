"""The close: the choice of the next token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fuse import forms
from fuse.ir import Graph, Op
from fuse.match import Fault, Match
from fuse.rule import Built, Rule, Wrong, guard
from fuse.types import FLOATS

#: Slices that end behind this go to the end of any axis.
_FAR = 1 << 30
_VIEWS = frozenset({"Squeeze", "Reshape", "Cast"})


class Row(NamedTuple):
    """The ops that take one row of the logits. row: which, counted from the end, None where that is not
    known; axis: of the rows, from the end."""

    ops: tuple[Op, ...]
    logits: str
    row: int | None
    axis: int


def _integer(graph: Graph, value: str) -> int | None:
    content = graph.content(value)
    found = content[0] if content is not None and len(content) == 1 else None
    return found if isinstance(found, int) else None


def _row_of(graph: Graph, op: Op) -> Row | None:
    """What one row a Gather or a Slice takes."""
    dims = graph.dims(op.inputs[0])
    if dims is None or len(dims) < 2:
        return None
    rank = len(dims)
    if op.kind == "Gather":
        axis = int(op.attrs.get("axis", 0))
        start, end = _integer(graph, op.inputs[1]), None
        if graph.content(op.inputs[1]) is None:
            return Row((op,), op.inputs[0], None, axis % rank - rank)
    else:
        operands = (*op.inputs, "", "", "")
        given = [_integer(graph, value) if value else None for value in operands[1:5]]
        start, end = given[0], given[1]
        along = given[2] if operands[3] else 0
        if along is None or given[3] not in (None, 1):
            return None
        axis = along
    size = dims[axis]
    if start is not None and start >= 0 and isinstance(size, int):
        start -= size
    last = end is None or end > _FAR or end == size
    one_row = op.kind == "Gather" or (last and start == -1)
    return Row((op,), op.inputs[0], start if one_row else None, axis % rank - rank)


def find_advance(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """An ArgMax over a row of logits."""
    dims = graph.dims(op.inputs[0])
    if dims is None or int(op.attrs.get("axis", 0)) % len(dims) != len(dims) - 1:
        return
    ops, value = [op], op.inputs[0]
    made = graph.producer(value)
    while made is not None and made.kind in _VIEWS:
        ops.append(made)
        value = made.inputs[0]
        made = graph.producer(value)
    row = _row_of(graph, made) if made is not None and made.kind in ("Gather", "Slice") else None
    if row is None or row.axis == -1 or graph.dtype(row.logits) not in FLOATS:
        return
    match = Match(graph, budget)
    match.ops = [*reversed(row.ops), *reversed(ops)]
    match.root = op.outputs[0]
    match.bound = {"row": row, "argmax": op}
    yield match


def row_is_the_last(m: Match) -> Wrong | None:
    """the row of logits is the last one"""
    row = m["row"]
    if row.row == -1:
        return None
    which = "a row that changes at run time" if row.row is None else f"row {row.row}"
    return Wrong(row.ops[0].outputs[0], which)


def rows_stand_before_the_words(m: Match) -> Wrong | None:
    """the axis of rows stands right before the axis of words"""
    axis = m["row"].axis
    return None if axis == -2 else Wrong(m["row"].logits, f"rows along axis {axis}")


def reads_logits(m: Match, fault: Fault) -> bool:
    """Whether the rows are a product's: then it is the wrong row of the right thing."""
    made = m.graph.producer(m["row"].logits)
    return made is not None and made.kind in forms.product.kinds | {"softcap", "quantized_matmul", "MatMul"}


def _advance(m: Match) -> Built:
    argmax = m["argmax"]
    attrs = {"last": 1} if argmax.attrs.get("select_last_index") else {}
    return Built("advance", (m["row"].logits,), attrs)


advance = Rule(
    "advance",
    """the largest of the last row's logits, which picks the next token

    The step moves on without the logits leaving the chip: one number a sequence is read back. For
    decoders exported with their greedy choice (`logits[:, -1].argmax(-1)`).""",
    finds=find_advance,
    marks=("ArgMax",),
    needs=(guard(row_is_the_last, code="operand"), guard(rows_stand_before_the_words, code="operand")),
    builds=_advance,
    almost=reads_logits,
)
