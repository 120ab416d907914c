"""What the owner of a body tells of the types of the body's inputs."""

from __future__ import annotations

from collections.abc import Mapping

from fuse.lifting.draft import Node
from fuse.types import UNKNOWN, Type

#: Since this opset a Scan has no batch axis and its state keeps its shape.
SCAN_WITHOUT_BATCH = 9


def body_types(
    node: Node, inputs: tuple[str, ...], types: Mapping[str, Type], opset: int
) -> tuple[Type | None, ...]:
    """The types of a body's inputs as its owner gives them, by position; None where it does not tell.

    A value that a Loop carries may change its dims from one iteration to the next: only its element
    type is told.
    """
    outer = [types.get(value, UNKNOWN) for value in inputs]
    if node.kind == "Loop":
        carried = (Type(type.dtype, None) for type in outer[2:])
        return (Type("i64", ()), Type("bool", ()), *carried)
    if node.kind == "Scan" and opset >= SCAN_WITHOUT_BATCH:
        count = node.attrs.get("num_scan_inputs", 0)
        states = len(outer) - count
        axes = node.attrs.get("scan_input_axes", (0,) * count)
        scanned = (_without(type, axis) for type, axis in zip(outer[states:], axes, strict=False))
        return (*outer[:states], *scanned)
    return ()


def _without(type: Type, axis: int) -> Type:
    if type.dims is None or not -len(type.dims) <= axis < len(type.dims):
        return Type(type.dtype, None)
    dims = list(type.dims)
    del dims[axis]
    return Type(type.dtype, tuple(dims))
