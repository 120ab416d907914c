"""Faults that any rule's place may have, as data: which operator, which operand, what is changed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from fuse.ir import Op

from .draft import Draft, Place, Planted, planted

Plant = Callable[[Draft, Place], "Planted | None"]
#: What a change at one operator may be called by who sees only that.
_ONE = ("op", "attribute", "operand", "arity")


def found(place: Place, kinds: str, which: int = 0) -> Op | None:
    """One of the place's operators of these kinds, by number."""
    ops = place.of(*kinds.split())
    return ops[which] if -len(ops) <= which < len(ops) else None


def told(place: Place, codes: str, *ats: str, rules: str = "") -> Planted:
    """What is right to say: any of these codes at any of these places."""
    return planted(f"{place.rule} {rules}", *((code, at) for code in codes.split() for at in ats))


def run_time(kinds: str, index: int, how: str = "input", which: int = 0, rules: str = "") -> Plant:
    """A constant operand is an input of the graph, or can be overridden."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        op = found(place, kinds, which)
        if op is None or len(op.inputs) <= index or not op.inputs[index]:
            return None
        node = draft.node(op.outputs[0])
        array = draft.array(draft.below(node.input[index]))
        if array is None:
            return None
        node.input[index] = draft.input(array) if how == "input" else draft.overridable(array)
        return told(place, "operand", node.input[index], node.output[0], rules=rules)

    return plant


def kind(kinds: str, new: str, which: int = 0, rules: str = "") -> Plant:
    """Another operator over the same operands."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        op = found(place, kinds, which)
        if op is None:
            return None
        node = draft.node(op.outputs[0])
        node.op_type = new
        return told(place, "op", node.output[0], rules=rules)

    return plant


def attribute(
    kinds: str, name: str, value: object, which: int = 0, rules: str = "", codes: str = "attribute"
) -> Plant:
    """An attribute has another value. codes: what may be said of it."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        op = found(place, kinds, which)
        if op is None:
            return None
        node = draft.node(next(filter(None, op.outputs)))
        if draft.attribute(node, name) == value:
            return None
        draft.set_attribute(node, name, value)
        ats = [*filter(None, node.output), *filter(None, node.input)]
        readers = [reader.outputs[0] for out in op.outputs if out for reader in place.readers(out)]
        return told(place, codes, *ats, *readers, rules=rules)

    return plant


def number(
    kinds: str,
    index: int,
    change: Callable[[np.ndarray], np.ndarray],
    which: int = 0,
    rules: str = "",
    codes: str = "operand attribute",
) -> Plant:
    """A constant operand holds other numbers."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        op = found(place, kinds, which)
        if op is None or len(op.inputs) <= index or not op.inputs[index]:
            return None
        node = draft.node(op.outputs[0])
        array = draft.array(draft.below(node.input[index]))
        if array is None or not array.size:
            return None
        changed = np.asarray(change(array)).astype(array.dtype)
        if changed.shape == array.shape and (changed == array).all():
            return None
        node.input[index] = draft.constant(changed)
        return told(place, codes, node.input[index], node.output[0], rules=rules)

    return plant


def reading(place: Place, kinds: str, which: int, index: int) -> Op | None:
    """The op of one of these kinds, where its operand is a value of the run."""
    op = found(place, kinds, which)
    return None if op is None or len(op.inputs) <= index or place.constant(op.inputs[index]) else op


def before(stray: str, kinds: str, index: int = 0, which: int = 0, rules: str = "") -> Plant:
    """An operator of one operand too many before an operand."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        op = reading(place, kinds, which, index)
        if op is None:
            return None
        node = draft.node(op.outputs[0])
        out = draft.wrap(node, index, stray)
        return told(place, "op operand same_value guard:", out, node.output[0], rules=rules)

    return plant


def through(dtype: int, kinds: str, index: int = 0, which: int = 0, rules: str = "") -> Plant:
    """A value goes through another type and back before an operand."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        op = reading(place, kinds, which, index)
        if op is None:
            return None
        if place.graph.dtype(op.inputs[index]) != "f32":
            return None
        node = draft.node(op.outputs[0])
        there = draft.wrap(node, index, "Cast", to=dtype)
        back = draft.wrap(node, index, "Cast", to=TensorProto.FLOAT)
        return told(place, "op attribute operand same_value", there, back, node.output[0], rules=rules)

    return plant


def other(
    kinds: str, index: int, which: int = 0, rules: str = "", codes: str = "same_value operand"
) -> Plant:
    """An operand is another value of the same type, made earlier outside the place."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        op = found(place, kinds, which)
        if op is None or len(op.inputs) <= index:
            return None
        value = place.like(op.inputs[index])
        if value is None:
            return None
        node = draft.node(op.outputs[0])
        node.input[index] = value
        return told(place, codes, node.output[0], value, op.inputs[index], rules=rules)

    return plant


def swapped(kinds: str, which: int = 0, rules: str = "", codes: str = "operand op same_value") -> Plant:
    """Two operands the other way round."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        op = found(place, kinds, which)
        if op is None or len(op.inputs) < 2:
            return None
        node = draft.node(op.outputs[0])
        node.input[0], node.input[1] = node.input[1], node.input[0]
        return told(place, codes, node.output[0], *node.input, rules=rules)

    return plant


def an_output(kinds: str, which: int = 0, rules: str = "", output: int = 0) -> Plant:
    """A result inside is an output of the graph too."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        op = found(place, kinds, which)
        if op is None or len(op.outputs) <= output or not op.outputs[output]:
            return None
        value = op.outputs[output]
        if value in {out.name for out in draft.graph.output} or value in place.op.outputs:
            return None
        draft.output(value, place.number_type(value))
        return told(place, "graph_output", value, rules=rules)

    return plant
