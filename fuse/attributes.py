"""Attributes as a pattern reads them: one answer for every opset and spelling."""

from __future__ import annotations

from typing import Any

from fuse.ir import Graph, Op

#: Operators whose axes were an attribute and became an input: the operand that holds them.
AXES_OPERAND = {
    "ReduceMean": 1, "ReduceSum": 1, "ReduceMax": 1, "ReduceMin": 1, "ReduceL1": 1, "ReduceL2": 1,
    "ReduceSumSquare": 1, "ReduceProd": 1, "ReduceLogSum": 1, "ReduceLogSumExp": 1,
    "Squeeze": 1, "Unsqueeze": 1,
}  # fmt: skip
#: How many leading operands are data; the rest are parameters that a pattern need not name.
DATA_OPERANDS = {
    **dict.fromkeys(AXES_OPERAND, 1),
    "Slice": 1, "Split": 1, "Reshape": 1, "Expand": 1, "Clip": 1, "CumSum": 1, "Trilu": 1, "Dropout": 1,
}  # fmt: skip
_FLATTENING = frozenset({"Softmax", "LogSoftmax", "Hardmax"})
#: What an absent attribute means.
DEFAULTS: dict[str, Any] = {"keepdims": 1, "axis": -1, "approximate": "none", "alpha": 1.0, "beta": 1.0}


class Unknown:
    """An attribute given as an operand that is not known before the model runs."""

    def __repr__(self) -> str:
        return "known only at run time"


UNKNOWN_ATTRIBUTE = Unknown()


def attribute(graph: Graph, op: Op, name: str) -> Any:
    """The attribute, from the op's attributes or the operand that replaced it, or its default.

    `axes` of one element is that element; negative and positive last axes both read -1 where the
    rank is known. A softmax before opset 13 flattens from its axis on: only over the last axis is
    that the same, so any other axis stays the number it is.
    """
    if name == "axes":
        return _axes(graph, op)
    value = op.attrs.get(name)
    if value is None and name == "axis" and op.kind in _FLATTENING:
        value = 1 if graph.base.model.opsets.get("", 99) < 13 else -1
    if value is None:
        value = DEFAULTS.get(name)
    return from_end(graph, op, value) if name == "axis" else value


def from_end(graph: Graph, op: Op, axis: Any) -> Any:
    """An axis of the first operand, -1 for the last where the rank is known."""
    dims = graph.dims(op.inputs[0]) if op.inputs else None
    if isinstance(axis, int) and dims is not None and axis == len(dims) - 1:
        return -1
    return axis


def _axes(graph: Graph, op: Op) -> Any:
    axes = op.attrs.get("axes")
    at = AXES_OPERAND.get(op.kind)
    if axes is None and at is not None and len(op.inputs) > at and op.inputs[at]:
        axes = graph.content(op.inputs[at])
        if axes is None or not all(isinstance(axis, int) for axis in axes):
            return UNKNOWN_ATTRIBUTE
    if not axes:
        if op.attrs.get("noop_with_empty_axes"):
            return "none"
        dims = graph.dims(op.inputs[0])
        # All axes of a vector are its last one; of a squeeze they are those of one element.
        return -1 if dims is not None and len(dims) == 1 and op.kind.startswith("Reduce") else "all"
    if op.kind == "Unsqueeze":
        dims = graph.dims(op.outputs[0])
        axes = tuple(-1 if dims is not None and axis == len(dims) - 1 else axis for axis in axes)
    else:
        axes = tuple(from_end(graph, op, axis) for axis in axes)
    return axes[0] if len(axes) == 1 else axes
