"""Norms and branches that conditions scale: affine-free norms, modulated norms, gated branches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fuse.ir import Graph, Op
from fuse.types import FLOATS, Dims


def filled_with(graph: Graph, value: str, number: float) -> bool:
    """Whether a small constant is one number everywhere."""
    tensor = graph.constant(value)
    array = None if tensor is None else tensor.small()
    return array is not None and bool(np.all(np.asarray(array, np.float64) == number))


def affine_operand(graph: Graph, norm: Any) -> str:
    """The weight or bias of a norm that does something; "" where it has none, or ones and zeros."""
    weight: str = norm.weight
    if weight and not (filled_with(graph, weight, 1.0 - norm.offset)):
        return weight
    bias: str = norm.bias
    return bias if bias and not filled_with(graph, bias, 0.0) else ""


class Branch(NamedTuple):
    """gate times y; the gate is narrower than y and as wide."""

    gate: str
    y: str
    op: Op


def narrower(gate: Dims | None, y: Dims | None) -> bool:
    """Whether a gate broadcasts over y, has its last axis, and is surely smaller."""
    if not gate or not y or len(gate) > len(y) or gate[-1] != y[-1] or y[-1] == 1:
        return False
    aligned = (*(1,) * (len(y) - len(gate)), *gate)
    return all(a in (1, b) for a, b in zip(aligned, y, strict=True)) and aligned != y


def gated_branch(graph: Graph, value: str) -> Branch | None:
    """A value as a gated branch; None where it is no product of a narrower gate and a full y."""
    op = graph.producer(value)
    if op is None or op.kind != "Mul" or len(op.inputs) != 2 or graph.dtype(value) not in FLOATS:
        return None
    for gate, y in (op.inputs, op.inputs[::-1]):
        if narrower(graph.dims(gate), graph.dims(y)) and graph.dims(y) == graph.dims(value):
            return Branch(gate, y, op)
    return None


#: What puts a row under the axes of what it scales.
_TURNS = frozenset({"Unsqueeze", "Reshape", "Squeeze"})


def one_plus(graph: Graph, value: str) -> bool:
    """Whether a run-time value is one plus another, then perhaps put under other axes."""
    op = graph.producer(value)
    while op is not None and op.kind in _TURNS:
        op = graph.producer(op.inputs[0])
    if op is None or op.kind != "Add" or graph.is_constant(op.outputs[0]):
        return False
    return any(graph.scalar(operand) == 1 for operand in op.inputs)


def is_modulated(graph: Graph, value: str) -> bool:
    """Whether a value is scaled by one plus a narrower run-time value: the norm of an adaptive layer."""
    readers = [op for slot in graph.readers(value) if (op := graph.slots[slot]) is not None]
    for op in readers:
        if op.kind != "Mul":
            continue
        other = next((v for v in op.inputs if v != value), value)
        if graph.is_constant(other) or not narrower(graph.dims(other), graph.dims(value)):
            continue
        again = any(add.kind == "Add" and op.outputs[0] in add.inputs for add in readers)
        if again or one_plus(graph, other):
            return True
    return False
