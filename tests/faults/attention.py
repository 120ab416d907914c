"""Faults of attention written as primitives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import helper

from fuse.ir import Op

from .draft import Draft, Place, Planted, planted
from .readers import score_path


@dataclass(frozen=True)
class Attention:
    """Softmax, the product of q and k, the product with v, and the values between."""

    soft: Op
    score: Op
    out: Op
    path: frozenset[str]


PRODUCTS = ("MatMul", "Einsum")


def roles(place: Place) -> Attention | None:
    soft = next(iter(place.of("Softmax")), None)
    if soft is None:
        return None
    path = score_path(place)
    score = next((op for op in place.of(*PRODUCTS) if op.outputs[0] in path), None)
    out = next((op for op in place.of(*PRODUCTS) if op.inputs[0] in path and op is not score), None)
    return None if score is None or out is None else Attention(soft, score, out, frozenset(path))


def softmax_axis(draft: Draft, place: Place) -> Planted | None:
    a = roles(place)
    if a is None:
        return None
    node = draft.node(a.soft.outputs[0])
    draft.set_attribute(node, "axis", len(place.dims(a.soft.inputs[0])) - 2)
    return planted(place.rule, ("attribute", node.output[0]))


def _soft_kind(kind: str):
    def plant(draft: Draft, place: Place) -> Planted | None:
        a = roles(place)
        if a is None:
            return None
        node = draft.node(a.soft.outputs[0])
        node.op_type = kind
        return planted(place.rule, ("op", node.output[0]))

    return plant


def _path_ops(place: Place, a: Attention, *kinds: str) -> list[Op]:
    return [op for op in place.of(*kinds) if op.outputs[0] in a.path]


def _mask_add(place: Place, a: Attention) -> Op | None:
    return next(iter(_path_ops(place, a, "Add")), None)


def _mask_kind(kind: str):
    def plant(draft: Draft, place: Place) -> Planted | None:
        a = roles(place)
        add = _mask_add(place, a) if a is not None else None
        if add is None:
            return None
        node = draft.node(add.outputs[0])
        node.op_type = kind
        return planted(place.rule, ("op", node.output[0]))

    return plant


def fill_small(draft: Draft, place: Place) -> Planted | None:
    a = roles(place)
    for op in _path_ops(place, a, "Where") if a is not None else ():
        for index in (1, 2):
            number = place.scalar(op.inputs[index])
            if number is not None and number <= -1e4:
                node = draft.node(op.outputs[0])
                dtype = np.float16 if place.graph.dtype(op.outputs[0]) == "f16" else np.float32
                node.input[index] = draft.constant(np.array(-5, dtype), "fill")
                return planted(place.rule, ("operand", node.input[index]), ("operand", node.output[0]))
    return None


def _scale(place: Place, a: Attention, *kinds: str) -> tuple[Op, int] | None:
    for op in _path_ops(place, a, *kinds):
        index = place.constant_at(op)
        if index is not None and place.scalar(op.inputs[index]) is not None:
            return op, index
    return None


def scale_an_input(draft: Draft, place: Place) -> Planted | None:
    a = roles(place)
    found = _scale(place, a, "Mul") if a is not None else None
    if found is None:
        return None
    op, index = found
    node = draft.node(op.outputs[0])
    array = draft.array(draft.below(node.input[index]))
    if array is None:
        return None
    node.input[index] = draft.input(array)
    return planted(place.rule, ("operand", node.input[index]), ("operand", node.output[0]))


def scale_for_each_head(draft: Draft, place: Place) -> Planted | None:
    a = roles(place)
    found = _scale(place, a, "Mul", "Div") if a is not None else None
    if found is None:
        return None
    op, index = found
    dims = place.dims(op.outputs[0])
    if len(dims) != 4 or not isinstance(dims[1], int) or dims[1] < 2:
        return None
    node = draft.node(op.outputs[0])
    spread = np.linspace(0.2, 0.4, dims[1]).reshape(dims[1], 1, 1).astype(np.float32)
    if place.graph.dtype(op.outputs[0]) == "f16":
        spread = spread.astype(np.float16)
    node.input[index] = draft.constant(spread, "scale")
    return planted(place.rule, ("operand", node.input[index]), ("operand", node.output[0]))


def scale_after_mask(draft: Draft, place: Place) -> Planted | None:
    """The masked scores are scaled again, above the mask."""
    a = roles(place)
    add = _mask_add(place, a) if a is not None else None
    if a is None or add is None:
        return None
    dtype = np.float16 if place.graph.dtype(add.outputs[0]) == "f16" else np.float32
    half = draft.constant(np.array(0.5, dtype), "scale")
    inner = draft.rename_result(add.outputs[0])
    draft.insert(helper.make_node("Mul", [inner, half], [add.outputs[0]]), inner)
    guard = "guard:scale_stands_below_masks"
    at = (add.outputs[0], inner, half)
    return planted(place.rule, *((guard, v) for v in at), ("operand", add.outputs[0]), ("operand", half))


def inserted(kind: str, where: str):
    """A unary operator where none belongs: on the scores, or on the probabilities."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        a = roles(place)
        if a is None:
            return None
        node = draft.node(a.soft.outputs[0] if where == "scores" else a.out.outputs[0])
        out = draft.wrap(node, 0, kind)
        return planted(place.rule, ("op", out), ("operand", node.output[0]))

    return plant


def guard_of_one(draft: Draft, place: Place) -> Planted | None:
    """The NaN guard puts 1 where it finds NaN."""
    a = roles(place)
    for op in _path_ops(place, a, "Where") if a is not None else ():
        test = place.maker(op.inputs[0])
        if test is None or test.kind != "IsNaN":
            continue
        node = draft.node(op.outputs[0])
        dtype = np.float16 if place.graph.dtype(op.outputs[0]) == "f16" else np.float32
        node.input[1] = draft.constant(np.array(1, dtype), "guard")
        return planted(place.rule, ("operand", node.input[1]), ("operand", node.output[0]))
    return None


def guard_of_another(draft: Draft, place: Place) -> Planted | None:
    """The NaN guard looks at the scores, not at the probabilities."""
    a = roles(place)
    test = next(iter(place.of("IsNaN")), None)
    if a is None or test is None or test.inputs[0] != a.soft.outputs[0]:
        return None
    node = draft.node(test.outputs[0])
    node.input[0] = draft.node(a.soft.outputs[0]).input[0]
    where = next(op for op in place.readers(test.outputs[0]))
    return planted(
        place.rule,
        ("same_value", node.output[0]),
        ("same_value", where.outputs[0]),
        ("read_elsewhere", a.soft.inputs[0]),
    )


def guard_branches_swapped(draft: Draft, place: Place) -> Planted | None:
    a = roles(place)
    for op in _path_ops(place, a, "Where") if a is not None else ():
        test = place.maker(op.inputs[0])
        if test is not None and test.kind == "IsNaN":
            node = draft.node(op.outputs[0])
            node.input[1], node.input[2] = node.input[2], node.input[1]
            return planted(place.rule, ("operand", node.output[0]), ("same_value", node.output[0]))
    return None


def product_swapped(draft: Draft, place: Place) -> Planted | None:
    a = roles(place)
    if a is None or a.out.kind != "MatMul":
        return None
    node = draft.node(a.out.outputs[0])
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return planted(place.rule, ("operand", node.output[0]))


def cast_to_int(draft: Draft, place: Place) -> Planted | None:
    """The scores pass through integers: a cast down and one back."""
    a = roles(place)
    if a is None:
        return None
    node = draft.node(a.soft.outputs[0])
    whole = draft.wrap(node, 0, "Cast", to=6)
    back = draft.wrap(node, 0, "Cast", to=place.number_type(a.soft.inputs[0]))
    return planted(place.rule, ("attribute", whole), ("attribute", back), ("operand", whole))


FAULTS = {
    "softmax axis": softmax_axis,
    "LogSoftmax for Softmax": _soft_kind("LogSoftmax"),
    "Hardmax for Softmax": _soft_kind("Hardmax"),
    "Mul for the mask Add": _mask_kind("Mul"),
    "Sub for the mask Add": _mask_kind("Sub"),
    "Max for the mask Add": _mask_kind("Max"),
    "small fill": fill_small,
    "scale an input": scale_an_input,
    "scale for each head": scale_for_each_head,
    "scale after the mask": scale_after_mask,
    "Relu on the scores": inserted("Relu", "scores"),
    "Relu on the probabilities": inserted("Relu", "probabilities"),
    "Exp on the scores": inserted("Exp", "scores"),
    "NaN guard of one": guard_of_one,
    "NaN guard of another value": guard_of_another,
    "NaN guard's branches swapped": guard_branches_swapped,
    "product with v swapped": product_swapped,
    "scores through integers": cast_to_int,
}
