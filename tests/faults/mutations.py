"""Changes that know no rule: one attribute, constant, operand, operator or edge of a model, at random.

Nothing is known of what they mean, so nothing is asked of the report but that it is made. What fuses
must compute what the changed model computes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from fuse.ir import Op

from .draft import Draft, Place

#: Operators that are written for one another.
_KIN = (
    ("Add", "Sub", "Mul", "Div", "Max", "Min"),
    ("Sqrt", "Exp", "Abs", "Neg", "Erf", "Tanh", "Sigmoid", "Relu", "Softplus", "Reciprocal"),
    ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"),
    ("Softmax", "LogSoftmax", "Hardmax"),
)
_STRAY = ("Abs", "Neg", "Tanh", "Relu", "Exp", "Sigmoid")
#: A change of a node; what was done, or "" where it does not apply.
Mutation = Callable[[Draft, Place, Op, random.Random], str]


def attribute(draft: Draft, place: Place, op: Op, rng: random.Random) -> str:
    """An attribute is another: an axis, a permutation, a number."""
    node = draft.node(op.outputs[0])
    kinds = (onnx.AttributeProto.INT, onnx.AttributeProto.INTS, onnx.AttributeProto.FLOAT)
    found = [a for a in node.attribute if a.type in kinds]
    if not found or node.op_type in ("Cast", "Shape"):
        return ""
    chosen = rng.choice(found)
    rank = len(place.dims(op.inputs[0])) if op.inputs else 0
    if chosen.type == onnx.AttributeProto.FLOAT:
        chosen.f = chosen.f * 1.4 or 0.3
    elif chosen.type == onnx.AttributeProto.INTS:
        numbers = list(chosen.ints)
        rng.shuffle(numbers)
        if numbers == list(chosen.ints):
            return ""
        del chosen.ints[:]
        chosen.ints.extend(numbers)
    elif chosen.name == "axis" and rank > 1:
        chosen.i = (chosen.i + rng.randrange(1, rank)) % rank
    elif chosen.i in (0, 1):
        chosen.i = 1 - chosen.i
    else:
        return ""
    return f"{node.op_type} {chosen.name}"


def _constants(draft: Draft, node: onnx.NodeProto) -> list[tuple[int, np.ndarray]]:
    arrays = [(at, draft.array(draft.below(value))) for at, value in enumerate(node.input) if value]
    return [(at, array) for at, array in arrays if array is not None and array.size]


def constant(draft: Draft, place: Place, op: Op, rng: random.Random) -> str:
    """A constant is another: a number, an index, a shape of its own, or a value of the run."""
    node = draft.node(op.outputs[0])
    found = _constants(draft, node)
    if not found:
        return ""
    at, array = rng.choice(found)
    how = rng.choice(("number", "dims", "input", "default"))
    if how in ("input", "default"):
        node.input[at] = draft.input(array) if how == "input" else draft.overridable(array)
        return f"{node.op_type} operand {at} {how}"
    if how == "dims":
        shapes = [(1,), (), (1, *array.shape), (array.size, 1), array.shape[::-1]]
        shape = rng.choice([s for s in shapes if s != array.shape] or [array.shape])
        count = int(np.prod(shape))
        node.input[at] = draft.constant(np.ravel(array)[:count].reshape(shape))
        return f"{node.op_type} operand {at} of dims {shape}"
    if array.dtype == np.bool_:
        changed = ~array
    elif array.dtype.kind == "f":
        changed = array * array.dtype.type(rng.choice((-1.0, 0.5, 1.5)))
    else:
        changed = array.copy()
        at_one = rng.randrange(array.size)
        step = -1 if changed.flat[at_one] == np.iinfo(array.dtype).max else 1
        changed.flat[at_one] += array.dtype.type(step)
    node.input[at] = draft.constant(changed)
    return f"{node.op_type} operand {at} another number"


def operator(draft: Draft, place: Place, op: Op, rng: random.Random) -> str:
    """Another operator over the same operands."""
    node = draft.node(op.outputs[0])
    kin = next((kin for kin in _KIN if node.op_type in kin), ())
    others = [kind for kind in kin if kind != node.op_type]
    if not others:
        return ""
    old, node.op_type = node.op_type, rng.choice(others)
    return f"{node.op_type} for {old}"


def operand(draft: Draft, place: Place, op: Op, rng: random.Random) -> str:
    """Two operands the other way round, or another value of the same type."""
    node = draft.node(op.outputs[0])
    if len(node.input) == 2 and rng.random() < 0.3 and node.input[0] != node.input[1]:
        node.input[0], node.input[1] = node.input[1], node.input[0]
        return f"{node.op_type} swapped"
    values = [at for at, value in enumerate(op.inputs) if value and not place.constant(value)]
    if not values:
        return ""
    at = rng.choice(values)
    wanted, base = place.graph.type(op.inputs[at]), place.graph.base
    others = [
        value
        for value, slot in base.producer.items()
        if slot < op.slot and value != op.inputs[at] and place.graph.type(value) == wanted
    ]
    if not others or wanted.dims is None:
        return ""
    node.input[at] = rng.choice(others)
    draft.node(node.input[at])  # a value that the lift made is none of the file
    return f"{node.op_type} operand {at} of another"


def edge(draft: Draft, place: Place, op: Op, rng: random.Random) -> str:
    """An operator too many on an edge, or a value rounded there."""
    values = [at for at, value in enumerate(op.inputs) if value and place.graph.dtype(value) == "f32"]
    if not values:
        return ""
    node, at = draft.node(op.outputs[0]), rng.choice(values)
    if rng.random() < 0.4:
        draft.wrap(node, at, "Cast", to=TensorProto.FLOAT16)
        draft.wrap(node, at, "Cast", to=TensorProto.FLOAT)
        return f"{node.op_type} operand {at} rounded"
    kind = rng.choice(_STRAY)
    draft.wrap(node, at, kind)
    return f"{kind} before {node.op_type} operand {at}"


def missing(draft: Draft, place: Place, op: Op, rng: random.Random) -> str:
    """An operator is not there: who reads it reads what it reads."""
    result = op.outputs[0]
    same = [v for v in op.inputs if v and place.graph.type(v) == place.graph.type(result)]
    if not same or result in {output.name for output in draft.graph.output}:
        return ""
    source = draft.node(result).input[list(op.inputs).index(same[0])]
    for node in draft.graph.node:
        for at, value in enumerate(node.input):
            if value == result:
                node.input[at] = source
    return f"{op.kind} missing"


def reader(draft: Draft, place: Place, op: Op, rng: random.Random) -> str:
    """A result is an output too, or is read by one more."""
    result = op.outputs[0]
    if not place.graph.dtype(result).startswith("f") or result in {o.name for o in draft.graph.output}:
        return ""
    if rng.random() < 0.5:
        draft.output(result, place.number_type(result))
        return f"{op.kind} also an output"
    out = draft.fresh("read")
    draft.insert(helper.make_node("Abs", [result], [out]), result)
    draft.output(out, place.number_type(result))
    return f"{op.kind} read elsewhere"


MUTATIONS: tuple[Mutation, ...] = (attribute, constant, operator, operand, edge, missing, reader)
