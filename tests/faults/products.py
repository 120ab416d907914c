"""Faults of products with a bias, a residual or a norm after, and of caches."""

from __future__ import annotations

import numpy as np

from fuse.ir import Op

from .draft import Draft, Place, Planted, planted


def bias_add(place: Place) -> tuple[Op, int] | None:
    root = next((part for part in place.parts if place.op.outputs[0] in part.outputs), None)
    if root is None or root.kind != "Add":
        return None
    index = place.constant_at(root)
    return None if index is None else (root, index)


def _bias(draft: Draft, place: Place) -> tuple[object, int, np.ndarray] | None:
    found = bias_add(place)
    if found is None:
        return None
    op, index = found
    node = draft.node(op.outputs[0])
    array = draft.array(draft.below(node.input[index]))
    return None if array is None else (node, index, array)


def _answers(place: Place, node: object, name: str) -> Planted:
    both = [(code, at) for code in ("operand", "guard:bias_is_a_row") for at in (name, node.output[0])]
    return planted(place.rule, *both)


def bias_at_run_time(how: str):
    def plant(draft: Draft, place: Place) -> Planted | None:
        found = _bias(draft, place)
        if found is None:
            return None
        node, index, array = found
        node.input[index] = draft.input(array) if how == "input" else draft.overridable(array)
        return planted(place.rule, ("operand", node.input[index]), ("operand", node.output[0]))

    return plant


def bias_shape(shape: tuple[int, ...]):
    def plant(draft: Draft, place: Place) -> Planted | None:
        found = _bias(draft, place)
        if found is None or found[2].size == 1:
            return None
        node, index, array = found
        node.input[index] = draft.constant(np.full(shape, 0.7, array.dtype), "bias")
        return _answers(place, node, node.input[index])

    return plant


def bias_in_a_column(draft: Draft, place: Place) -> Planted | None:
    found = _bias(draft, place)
    if found is None:
        return None
    node, index, array = found
    rows = place.dims(place.op.outputs[0])[-2:-1]
    if not rows or not isinstance(rows[0], int) or rows[0] < 2:
        return None
    column = np.linspace(0, 1, rows[0]).reshape(rows[0], 1).astype(array.dtype)
    node.input[index] = draft.constant(column, "bias")
    return _answers(place, node, node.input[index])


def bias_raises_rank(draft: Draft, place: Place) -> Planted | None:
    """A bias [1, .., 1, N] of more axes than the product has; only where nothing else minds the rank."""
    found = _bias(draft, place)
    if found is None or found[2].ndim != 1:
        return None
    node, index, array = found
    rank = len(place.dims(place.op.outputs[0]))
    node.input[index] = draft.constant(array.reshape((1,) * rank + array.shape), "bias")
    return _answers(place, node, node.input[index])


def bias_for_each_row(draft: Draft, place: Place) -> Planted | None:
    """A whole matrix added: no row."""
    found = _bias(draft, place)
    if found is None:
        return None
    node, index, array = found
    rows = place.dims(place.op.outputs[0])[-2:-1]
    if not rows or not isinstance(rows[0], int) or rows[0] < 2 or array.ndim != 1:
        return None
    node.input[index] = draft.constant(np.stack([array * (i + 1) for i in range(rows[0])]), "bias")
    return _answers(place, node, node.input[index])


def root_kind(new: str, kind: str = "Add"):
    def plant(draft: Draft, place: Place) -> Planted | None:
        root = next((part for part in place.parts if place.op.outputs[0] in part.outputs), None)
        if root is None or root.kind != kind:
            return None
        node = draft.node(root.outputs[0])
        if new in ("Sub", "Div") and place.constant_at(root) == 0:
            node.input[0], node.input[1] = node.input[1], node.input[0]
        node.op_type = new
        return planted(place.rule, ("op", node.output[0]))

    return plant


def weight_at_run_time(how: str):
    def plant(draft: Draft, place: Place) -> Planted | None:
        op = next(
            (op for op in place.ops if op.kind in ("MatMul", "Gemm") and place.constant(op.inputs[1])), None
        )
        if op is None:
            return None
        node = draft.node(op.outputs[0])
        array = draft.array(draft.below(node.input[1]))
        if array is None:
            return None
        node.input[1] = draft.input(array) if how == "input" else draft.overridable(array)
        return planted(place.rule, ("operand", node.input[1]), ("operand", node.output[0]))

    return plant


def sum_kind(new: str):
    """Another operator for the add before a norm."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        add = next((part for part in place.parts if part.kind == "Add"), None)
        if add is None:
            return None
        draft.node(add.outputs[0]).op_type = new
        return planted("add_norm", ("op", add.outputs[0]))

    return plant


def native_axis(draft: Draft, place: Place) -> Planted | None:
    """A native norm over two axes; its weight is spread to both."""
    op = next((op for op in place.ops if op.kind == "LayerNormalization"), None)
    if op is None:
        return None
    dims = place.dims(op.inputs[0])
    node = draft.node(op.outputs[0])
    rows = dims[-2] if len(dims) > 2 else None
    if not isinstance(rows, int):
        return None
    draft.set_attribute(node, "axis", -2)
    for index in range(1, len(node.input)):
        array = draft.array(draft.below(node.input[index]))
        if array is None:
            return None
        node.input[index] = draft.constant(np.broadcast_to(array, (rows, *array.shape)), "weight")
    return planted("add_norm", ("attribute", node.output[0]))


def native_mean(draft: Draft, place: Place) -> Planted | None:
    """A native norm gives its mean too, and somebody reads it."""
    op = next((op for op in place.ops if op.kind == "LayerNormalization"), None)
    if op is None:
        return None
    node = draft.node(op.outputs[0])
    node.output.append(draft.fresh("mean"))
    draft.output(node.output[1])
    return planted("add_norm", ("arity", node.output[0]))


MATMUL_BIAS = {
    "bias an input": bias_at_run_time("input"),
    "bias overridable": bias_at_run_time("default"),
    "scalar bias": bias_shape(()),
    "bias of one element": bias_shape((1,)),
    "bias in a column": bias_in_a_column,
    "bias raises the rank": bias_raises_rank,
    "bias for each row": bias_for_each_row,
    "Sub for Add": root_kind("Sub"),
    "Mul for Add": root_kind("Mul"),
    "weight an input": weight_at_run_time("input"),
    "weight overridable": weight_at_run_time("default"),
}
RESIDUAL = {"Sub for Add": root_kind("Sub"), "Mul for Add": root_kind("Mul")}
ADD_NORM = {
    "Sub for Add": sum_kind("Sub"),
    "Mul for Add": sum_kind("Mul"),
    "native norm's axis": native_axis,
    "native norm's mean": native_mean,
}
