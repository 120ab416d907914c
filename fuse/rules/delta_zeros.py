"""Values that are zero everywhere: a state to begin with, a result before it is written."""

from __future__ import annotations

from fuse.ir import Graph, Tensor


def zeros(graph: Graph, value: str) -> bool:
    """Whether a value is zero everywhere."""
    op = graph.producer(value)
    if op is not None and op.kind == "Expand":
        return graph.scalar(op.inputs[0]) == 0
    if op is not None and op.kind == "ConstantOfShape":
        fill = op.attrs.get("value")
        return fill is None or (isinstance(fill, Tensor) and not fill.array().any())
    tensor = graph.constant(value)
    array = None if tensor is None else tensor.small()
    return array is not None and not array.any()
