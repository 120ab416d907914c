"""The roles of a norm's ops, where it is written as primitives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuse.ir import Op

from .draft import Draft, Place


@dataclass(frozen=True)
class Norm:
    """The roles of a norm's ops; None where the place has none."""

    square: Op
    mean: Op
    shift: Op | None
    root: Op
    divide: Op
    weight: tuple[Op, int] | None
    bias: tuple[Op, int] | None
    centre: Op | None
    centre_mean: Op | None


def roles(place: Place) -> Norm | None:
    squares = [op for op in place.ops if _is_square(place, op)]
    if len(squares) != 1:
        return None
    square = squares[0]
    mean = next((r for r in place.readers(square.outputs[0]) if r.kind.startswith("Reduce")), None)
    if mean is None:
        return None
    value, shift, root = mean.outputs[0], None, None
    while root is None:
        reader = next(iter(place.readers(value)), None)
        if reader is None:
            return None
        if reader.kind in ("Sqrt", "Pow"):
            root = reader
        elif reader.kind == "Add":
            shift, value = reader, reader.outputs[0]
        else:
            return None
    divide = next(iter(place.readers(root.outputs[0])), None)
    if divide is None:
        return None
    vectors = {"Mul": None, "Add": None}
    for op in place.of("Mul", "Add"):
        index = place.constant_at(op)
        if index is not None and place.scalar(op.inputs[index]) is None:
            vectors[op.kind] = (op, index)
    centre = next(iter(place.of("Sub")), None)
    centre_mean = None if centre is None else place.maker(centre.inputs[1])
    return Norm(square, mean, shift, root, divide, vectors["Mul"], vectors["Add"], centre, centre_mean)


def _is_square(place: Place, op: Op) -> bool:
    if op.kind == "Pow":
        return place.scalar(op.inputs[1]) == 2
    return op.kind == "Mul" and op.inputs[0] == op.inputs[1]


def dtype_of(place: Place, op: Op) -> np.dtype:
    return np.dtype({"f16": np.float16, "f64": np.float64}.get(place.graph.dtype(op.outputs[0]), np.float32))


def vector_or_eps(draft: Draft, place: Place, role: str):
    """The node, operand index and array of eps, weight or bias."""
    norm = roles(place)
    if norm is None:
        return None
    if role == "eps":
        if norm.shift is None:
            return None
        op, index = norm.shift, place.constant_at(norm.shift)
    else:
        op, index = getattr(norm, role) or (None, None)
    if op is None or index is None:
        return None
    node = draft.node(op.outputs[0])
    array = draft.array(draft.below(node.input[index]))
    return None if array is None else (node, index, array)
