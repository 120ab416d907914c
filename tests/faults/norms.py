"""Faults of norms written as primitives."""

from __future__ import annotations

import numpy as np
from onnx import helper

from fuse.ir import Op

from .draft import Draft, Place, Planted, planted
from .norm_roles import dtype_of, roles, vector_or_eps


def _rules(place: Place) -> str:
    """An rms norm and an l2 norm are one operator apart."""
    return "l2_norm rms_norm" if place.rule == "l2_norm" else place.rule


def exponent_3(draft: Draft, place: Place) -> Planted | None:
    norm = roles(place)
    if norm is None or norm.square.kind != "Pow":
        return None
    node = draft.node(norm.square.outputs[0])
    number = draft.constant(np.array(3, dtype_of(place, norm.square)), "exponent")
    node.input[1] = number
    return planted(_rules(place), ("operand", number), ("operand", node.output[0]))


def square_of_two_values(draft: Draft, place: Place) -> Planted | None:
    norm = roles(place)
    if norm is None or norm.centre is not None:
        return None
    other = place.like(norm.square.inputs[0])
    if other is None:
        return None
    node = draft.node(norm.square.outputs[0])
    node.op_type = "Mul"
    node.input[1] = other
    return planted(_rules(place), ("same_value", node.output[0]), ("operand", node.output[0]))


def mean_axis(draft: Draft, place: Place) -> Planted | None:
    norm = roles(place)
    return None if norm is None else _move_axis(draft, place, norm.mean, 1)


def centre_mean_axis(draft: Draft, place: Place) -> Planted | None:
    norm = roles(place)
    return None if norm is None or norm.centre_mean is None else _move_axis(draft, place, norm.centre_mean, 1)


def mean_over_all(draft: Draft, place: Place) -> Planted | None:
    norm = roles(place)
    return None if norm is None else _move_axis(draft, place, norm.mean, None)


def mean_over_two_axes(draft: Draft, place: Place) -> Planted | None:
    norm = roles(place)
    return None if norm is None else _move_axis(draft, place, norm.mean, (-2, -1))


def _move_axis(draft: Draft, place: Place, op: Op, axis: int | tuple[int, ...] | None) -> Planted | None:
    rank = len(place.dims(op.inputs[0]))
    if rank < 3:
        return None
    node = draft.node(op.outputs[0])
    axes = None if axis is None else (axis,) if isinstance(axis, int) else axis
    if len(node.input) > 1:
        if axes is None:
            del node.input[1:]
        else:
            node.input[1] = draft.constant(np.array(axes, np.int64), "axes")
    else:
        kept = [a for a in node.attribute if a.name != "axes"]
        del node.attribute[:]
        node.attribute.extend(kept if axes is None else [*kept, helper.make_attribute("axes", axes)])
    return planted(_rules(place), ("attribute", node.output[0]))


def keepdims_0(draft: Draft, place: Place) -> Planted | None:
    """keepdims 0 where the mean still broadcasts: against the rows of another axis."""
    norm = roles(place)
    if norm is None:
        return None
    dims = place.dims(norm.mean.inputs[0])
    if len(dims) < 2 or not (dims[-2] == dims[-1] or dims[-2] == 1):
        return None
    node = draft.node(norm.mean.outputs[0])
    draft.set_attribute(node, "keepdims", 0)
    return planted(_rules(place), ("attribute", node.output[0]))


def _other_kind(role: str, kind: str, strip_axes: bool = False):
    def plant(draft: Draft, place: Place) -> Planted | None:
        norm = roles(place)
        op = getattr(norm, role, None) if norm is not None else None
        if isinstance(op, tuple) and not isinstance(op, Op):
            op = op[0]
        if op is None or op.kind == kind or op.kind == "Pow":
            return None
        node = draft.node(op.outputs[0])
        if (
            node.op_type.startswith("Reduce")
            and draft.opset >= 13
            and (kind == "ReduceSum" or draft.opset >= 18)
        ):
            _axes_as_input(draft, node)
        elif kind.startswith("Reduce") and len(node.input) > 1:
            return None
        node.op_type = kind
        if kind in ("Sub", "Div") and op.kind in ("Add", "Mul") and place.constant_at(op) == 0:
            a, b = node.input
            node.input[0], node.input[1] = b, a
        return planted(_rules(place), ("op", node.output[0]))

    return plant


def _axes_as_input(draft: Draft, node: object) -> None:
    axes = draft.attribute(node, "axes")
    if axes is None:
        return
    kept = [a for a in node.attribute if a.name != "axes"]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.input.append(draft.constant(np.array(axes, np.int64), "axes"))


def _swap(role: str):
    def plant(draft: Draft, place: Place) -> Planted | None:
        norm = roles(place)
        op = getattr(norm, role, None) if norm is not None else None
        if op is None or op.kind not in ("Sub", "Div"):
            return None
        node = draft.node(op.outputs[0])
        a, b = node.input
        node.input[0], node.input[1] = b, a
        return planted(_rules(place), ("operand", node.output[0]))

    return plant


def root_power(draft: Draft, place: Place) -> Planted | None:
    """Sqrt written as another power."""
    norm = roles(place)
    if norm is None or norm.root.kind != "Sqrt":
        return None
    node = draft.node(norm.root.outputs[0])
    node.op_type = "Pow"
    number = draft.constant(np.array(0.25, dtype_of(place, norm.root)), "power")
    node.input.append(number)
    return planted(_rules(place), ("operand", number), ("operand", node.output[0]), ("op", node.output[0]))


def _run_time(role: str, how: str):
    def plant(draft: Draft, place: Place) -> Planted | None:
        found = vector_or_eps(draft, place, role)
        if found is None:
            return None
        node, index, array = found
        name = draft.input(array) if how == "input" else draft.overridable(array)
        node.input[index] = name
        return planted(_rules(place), ("operand", name), ("operand", node.output[0]))

    return plant


def eps_for_each_lane(draft: Draft, place: Place) -> Planted | None:
    found = vector_or_eps(draft, place, "eps")
    norm = roles(place)
    width = place.dims(norm.square.outputs[0])[-1] if norm is not None else None
    rows = place.dims(norm.square.outputs[0])[-2:-1] if norm is not None else ()
    if found is None or not isinstance(width, int) or not rows or not isinstance(rows[0], int):
        return None
    node, index, array = found
    spread = (np.arange(1, rows[0] + 1) * 0.3).reshape(rows[0], 1).astype(array.dtype)
    node.input[index] = draft.constant(spread, "eps")
    return planted(_rules(place), ("operand", node.input[index]), ("operand", node.output[0]))


def eps_other_type(draft: Draft, place: Place) -> Planted | None:
    """eps of another float type: no runtime takes it, and no rule may read it as if it were right."""
    found = vector_or_eps(draft, place, "eps")
    if found is None:
        return None
    node, index, array = found
    other = np.float16 if array.dtype == np.float32 else np.float32
    name = draft.constant(array.astype(other), "eps")
    node.input[index] = name
    answers = [("operand", name), ("operand", node.output[0]), ("guard:eps_type_is_x_type", name)]
    return planted(_rules(place), *answers, ("guard:eps_type_is_x_type", node.output[0]))


def _column(role: str):
    """A weight or bias along the rows instead of the lanes."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        found = vector_or_eps(draft, place, role)
        if found is None:
            return None
        node, index, array = found
        norm = roles(place)
        rows = place.dims(norm.square.outputs[0])[-2:-1]
        count = rows[0] if rows and isinstance(rows[0], int) else 1
        if array.ndim != 1 or count == 1:
            return None
        name = draft.constant(np.linspace(0.5, 1.5, count).reshape(count, 1).astype(array.dtype), role)
        node.input[index] = name
        guard = f"guard:{role}_spans_last_axis"
        return planted(
            _rules(place),
            (guard, name),
            (guard, node.output[0]),
            ("operand", name),
            ("operand", node.output[0]),
        )

    return plant


def _one_number(role: str):
    """A weight or bias of one element: a scale, no weight."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        found = vector_or_eps(draft, place, role)
        if found is None:
            return None
        node, index, array = found
        if array.ndim != 1 or len(array) == 1:
            return None
        name = draft.constant(np.array([1.5], array.dtype), role)
        node.input[index] = name
        guard = f"guard:{role}_spans_last_axis"
        return planted(
            _rules(place),
            (guard, name),
            (guard, node.output[0]),
            ("operand", name),
            ("operand", node.output[0]),
        )

    return plant


def numerator_of_another(draft: Draft, place: Place) -> Planted | None:
    """The value that is divided is not the value whose mean square divides it."""
    norm = roles(place)
    if norm is None:
        return None
    x = norm.square.inputs[0]
    op = next((r for r in place.readers(x) if r.kind in ("Div", "Mul") and r is not norm.square), None)
    other = place.like(norm.centre.inputs[0] if norm.centre is not None else x)
    if op is None or other is None:
        return None
    node = draft.node(op.outputs[0])
    node.input[list(op.inputs).index(x)] = other
    answers = [("same_value", node.output[0])]
    if norm.centre is None:  # of two places either may be the odd one
        answers.append(("same_value", norm.square.outputs[0]))
    return planted(_rules(place), *answers)


def mean_of_another(draft: Draft, place: Place) -> Planted | None:
    norm = roles(place)
    if norm is None or norm.centre_mean is None:
        return None
    other = place.like(norm.centre_mean.inputs[0])
    if other is None:
        return None
    node = draft.node(norm.centre_mean.outputs[0])
    node.input[0] = other
    answers = [("same_value", node.output[0])]
    if len(place.of("Sub")) == 1:  # of two places either may be the odd one
        answers.append(("same_value", norm.centre.outputs[0]))
    return planted(_rules(place), *answers)


def numerator_2(draft: Draft, place: Place) -> Planted | None:
    """Two over the root."""
    op = next((op for op in place.of("Div") if place.scalar(op.inputs[0]) == 1), None)
    if op is None:
        return None
    node = draft.node(op.outputs[0])
    node.input[0] = draft.constant(np.array(2, dtype_of(place, op)), "numerator")
    return planted(_rules(place), ("operand", node.input[0]), ("operand", node.output[0]))


def eps_of_every_norm(draft: Draft, place: Place) -> Planted | None:
    """One input is the eps of this norm and of every other that has the same number."""
    found = vector_or_eps(draft, place, "eps")
    if found is None:
        return None
    node, index, array = found
    name = draft.input(array)
    node.input[index] = name
    for other in draft.graph.node:
        for at, value in enumerate(other.input):
            same = draft.array(value) if other.op_type == "Add" else None
            if same is not None and same.size == 1 and same.dtype == array.dtype and same == array:
                other.input[at] = name
    return planted(_rules(place), ("operand", name), ("operand", node.output[0]))


def double(draft: Draft, place: Place) -> Planted | None:
    """The whole norm in f64: casts around it, its constants widened."""
    norm = roles(place)
    if (
        norm is None
        or place.of("Cast")
        or place.op.inputs[0] not in {v for op in place.ops for v in op.inputs}
    ):
        return None
    x, root = place.op.inputs[0], place.op.outputs[0]
    wide = draft.fresh("wide")
    kind = 11
    first = min(place.ops, key=lambda op: op.slot)
    draft.insert(helper.make_node("Cast", [x], [wide], to=kind), first.outputs[0], after=False)
    for op in place.ops:
        node = draft.node(op.outputs[0])
        for index, value in enumerate(node.input):
            if op.inputs[index] == x:
                node.input[index] = wide
            elif place.constant(op.inputs[index]) and place.graph.dtype(op.inputs[index]).startswith("f"):
                array = draft.array(draft.below(value))
                if array is None:
                    return None
                node.input[index] = draft.constant(array.astype(np.float64), "wide")
    narrow = draft.rename_result(root)
    draft.insert(helper.make_node("Cast", [narrow], [root], to=place.number_type(root)), narrow)
    del draft.graph.value_info[:]
    return planted(_rules(place), ("operand", wide), ("operand", x))


FAULTS = {
    "exponent 3": exponent_3,
    "square of two values": square_of_two_values,
    "axis of the mean square": mean_axis,
    "axis of the mean": centre_mean_axis,
    "mean over all axes": mean_over_all,
    "mean over two axes": mean_over_two_axes,
    "keepdims 0": keepdims_0,
    "ReduceMax for ReduceMean": _other_kind("mean", "ReduceMax"),
    "ReduceSum for ReduceMean": _other_kind("mean", "ReduceSum"),
    "ReduceL2 for ReduceMean": _other_kind("mean", "ReduceL2"),
    "ReduceMax for the centring mean": _other_kind("centre_mean", "ReduceMax"),
    "Abs for Sqrt": _other_kind("root", "Abs"),
    "Exp for Sqrt": _other_kind("root", "Exp"),
    "another power": root_power,
    "Sub for the eps Add": _other_kind("shift", "Sub"),
    "Max for the eps Add": _other_kind("shift", "Max"),
    "Add for the centring Sub": _other_kind("centre", "Add"),
    "Add for the weight Mul": _other_kind("weight", "Add"),
    "Div for the weight Mul": _other_kind("weight", "Div"),
    "Sub for the bias Add": _other_kind("bias", "Sub"),
    "Mul for the bias Add": _other_kind("bias", "Mul"),
    "centring Sub swapped": _swap("centre"),
    "Div swapped": _swap("divide"),
    "eps an input": _run_time("eps", "input"),
    "eps overridable": _run_time("eps", "default"),
    "weight an input": _run_time("weight", "input"),
    "weight overridable": _run_time("weight", "default"),
    "bias an input": _run_time("bias", "input"),
    "bias overridable": _run_time("bias", "default"),
    "eps for each lane": eps_for_each_lane,
    "eps of another type": eps_other_type,
    "weight in a column": _column("weight"),
    "bias in a column": _column("bias"),
    "weight of one number": _one_number("weight"),
    "bias of one number": _one_number("bias"),
    "numerator 2": numerator_2,
    "one eps for every norm, an input": eps_of_every_norm,
    "numerator of another value": numerator_of_another,
    "mean of another value": mean_of_another,
    "f64": double,
}
