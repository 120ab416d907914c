"""Conditions on rotations. The docstrings are the sentences of refusals (chips/constraints.py)."""

from __future__ import annotations

import numpy as np

from chips.answers import Answer, last, same, unknown
from chips.operands import Operands
from fuse.types import Dim, Dims

#: Operators that act on each entry of a table alone.
_BY_ENTRY = frozenset({"Cos", "Sin", "Cast", "Identity"})
#: Operators that move rows of a table and keep its columns, where they keep how many there are.
_BY_ROW = frozenset({"Unsqueeze", "Squeeze", "Slice", "Expand", "Gather"})


def form(at: Operands, want: tuple[str, ...]) -> Answer:
    """pairs of lanes taken as {want}"""
    pairs = at.attr("form")
    if pairs not in want:
        return str(pairs)
    return f"lanes from {at.attr('rotary_from')} on" if at.attr("rotary_from") else None


def tables(at: Operands, want: bool | str) -> Answer:
    """angles given as {want}"""
    if want is False:
        return f"tables of cos and sin ({at.value('cos')})"
    if at.attr("tables") == "half":
        return None
    if want == "half_or_repeated" and at.attr("form") == "half":
        if all(_repeats(at, at.value(name)) for name in ("cos", "sin")):
            return None
        return "tables that span the rotated width and may differ in their halves"
    return "tables that span the rotated width"


def _repeats(at: Operands, value: str) -> bool:
    """Whether the second half of a table's columns surely repeats the first."""
    axis = -1
    for _ in range(16):
        constant = at.constant(value)
        if constant is not None:
            return _halves_equal(constant.small(), axis)
        op = at.graph.producer(value)
        if op is None or op.parts:
            return False
        if op.kind == "Concat":
            dims = at.type_of(value).dims
            joined = op.attrs.get("axis")
            across = joined == axis or (dims is not None and joined == len(dims) + axis)
            return across and len(op.inputs) == 2 and op.inputs[0] == op.inputs[1]
        if op.kind == "Transpose" and "perm" in op.attrs:
            perm = tuple(op.attrs["perm"])
            axis = perm[axis] - len(perm)
        elif op.kind == "Mul":
            factors = [v for v in op.inputs if not _one_element(at.type_of(v).dims)]
            if len(factors) != 1:
                return False
            value = factors[0]
            continue
        elif op.kind in _BY_ROW:
            if axis != -1 or last(at.type_of(op.inputs[0]).dims) != last(at.type_of(value).dims):
                return False
            if op.kind == "Gather" and op.attrs.get("axis", 0) != 0:
                return False
        elif op.kind not in _BY_ENTRY:
            return False
        value = op.inputs[0]
    return False


def _one_element(dims: Dims | None) -> bool:
    return dims is not None and all(dim == 1 for dim in dims)


def _halves_equal(array: np.ndarray | None, axis: int) -> bool:
    if array is None or array.ndim < -axis or array.shape[axis] % 2:
        return False
    first, second = np.split(array, 2, axis)
    return bool(np.array_equal(first, second))


def table_axes(at: Operands, want: tuple[str, ...]) -> Answer:
    """cos and sin given {want}"""
    x, cos = at.dims("x"), at.dims("cos")
    if x is None or cos is None:
        return unknown(f"shape of {'x' if x is None else 'cos'}")
    if at.attr("position_ids"):
        return _selected(at, x, want)
    if len(cos) > len(x) or len(x) < 3:
        return f"cos {at.type('cos')} of x {at.type('x')}"
    lined_up = (1,) * (len(x) - len(cos)) + cos
    got = f"cos {at.type('cos')} of x {at.type('x')}"
    rows = same(lined_up[-2], x[-2])
    if rows is False or any(dim != 1 for dim in lined_up[1:-2]):
        return got
    if rows is None:
        return unknown("whether cos has a row for each row of x", lined_up[-2])
    return _batch(lined_up[0], x[0], want, got)


def _batch(given: Dim, batch: Dim, want: tuple[str, ...], got: str) -> Answer:
    if given == 1 and "for_all_batches" in want:
        return None
    if "for_each_batch" not in want:
        return got
    equal = same(given, batch)
    if equal is None:
        return unknown("batch of cos or of x", batch)
    return None if equal else got


def _selected(at: Operands, x: Dims, want: tuple[str, ...]) -> Answer:
    """position_ids must select one row for each batch and row of x, heads before rows."""
    ids = at.dims("position_ids")
    if "selected" not in want:
        return f"rows selected by {at.value('position_ids')}"
    if ids is None:
        return unknown("shape of position_ids")
    got = f"position_ids {at.type('position_ids')} of x {at.type('x')}"
    if len(ids) != 2 or (len(x) == 4 and at.attr("rope_unsqueeze") not in (1, -3)):
        return got
    for given, wanted in zip(ids, (x[0], x[-2]), strict=True):
        equal = same(given, wanted)
        if equal is None:
            return unknown("shape of position_ids", wanted if not isinstance(wanted, int) else given)
        if not equal:
            return got
    return None


def position_ids(at: Operands, want: bool) -> Answer:
    """rows of cos and sin already selected"""
    return f"rows selected by {at.value('position_ids')}" if at.attr("position_ids") else None


def partial(at: Operands, want: bool) -> Answer:
    """rotation of the whole width"""
    lanes, width = at.attr("rotary_dim"), last(at.dims("x"))
    if not lanes or lanes == width:
        return None
    return f"{lanes} of {width} lanes" if isinstance(width, int) else f"the first {lanes} lanes"
