"""Faults of activations written as primitives, of the soft cap and of gates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fuse.ir import Op

from .draft import Draft, Place, Planted, planted

Plant = Callable[[Draft, Place], "Planted | None"]


def _number(place: Place, kind: str, wanted: Callable[[float], bool]) -> tuple[Op, int] | None:
    for op in place.of(kind):
        for index, value in enumerate(op.inputs[:2]):
            number = place.scalar(value)
            if number is not None and wanted(number):
                return op, index
    return None


def _change(draft: Draft, place: Place, op: Op, index: int, number: float) -> Planted:
    node = draft.node(op.outputs[0])
    dtype = {"f16": np.float16, "f64": np.float64}.get(place.graph.dtype(op.outputs[0]), np.float32)
    old = place.graph.constant(op.inputs[index])
    shape = () if old is None else old.dims
    name = draft.constant(np.full(shape, number, dtype), "number")
    node.input[index] = name
    return planted(place.rule, ("operand", name), ("operand", node.output[0]))


def constant_off(near: tuple[float, ...], factor: float) -> Plant:
    """A constant that is one of these numbers, off by a factor."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        for kind in ("Mul", "Div", "Add", "Pow"):
            found = _number(place, kind, lambda number: any(abs(number / n - 1) < 2e-3 for n in near))
            if found is not None:
                op, index = found
                return _change(draft, place, op, index, (place.scalar(op.inputs[index]) or 0.0) * factor)
        return None

    return plant


def _run_time(near: tuple[float, ...], how: str) -> Plant:
    def plant(draft: Draft, place: Place) -> Planted | None:
        for kind in ("Mul", "Div", "Add"):
            found = _number(place, kind, lambda number: any(abs(number / n - 1) < 2e-3 for n in near))
            if found is None:
                continue
            op, index = found
            node = draft.node(op.outputs[0])
            array = draft.array(draft.below(node.input[index]))
            if array is None:
                return None
            node.input[index] = draft.input(array) if how == "input" else draft.overridable(array)
            return planted(place.rule, ("operand", node.input[index]), ("operand", node.output[0]))
        return None

    return plant


def other_kind(old: str, new: str) -> Plant:
    def plant(draft: Draft, place: Place) -> Planted | None:
        found = place.of(old)
        if not found:
            return None
        node = draft.node(found[-1].outputs[0])
        if new in ("Sub", "Div") and place.constant_at(found[-1]) == 0:
            return None
        node.op_type = new
        rules = f"{place.rule} attention" if place.rule == "softcap" else place.rule
        return planted(rules, ("op", node.output[0]))

    return plant


def root_kind(new: str) -> Plant:
    """Another operator at the root."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        root = place.maker(place.op.outputs[0])
        if root is None or root.kind not in ("Mul", "Add"):
            return None
        draft.node(root.outputs[0]).op_type = new
        # A gate inside a mixture is the mixture's place too.
        larger = {"gated_act": "moe moe_block", "softcap": "attention"}.get(place.rule, "")
        rules = f"{place.rule} {larger}"
        return planted(rules, ("op", root.outputs[0]))

    return plant


def exponent_2(draft: Draft, place: Place) -> Planted | None:
    found = _number(place, "Pow", lambda number: number == 3)
    return None if found is None else _change(draft, place, *found, 2.0)


def x_of_another(which: int) -> Plant:
    """One reader of x reads another value."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        x = place.op.inputs[0]
        readers = place.readers(x)
        other = place.like(x)
        if other is None or len(readers) < 2:
            return None
        op = readers[which % len(readers)]
        # Of two readers either may be the one that reads another value.
        odd = {op.outputs[0], *(r.outputs[0] for r in readers if len(readers) == 2)}
        if list(op.inputs).count(x) != 1:
            return None
        node = draft.node(op.outputs[0])
        node.input[list(op.inputs).index(x)] = other
        return planted(place.rule, *(("same_value", at) for at in odd))

    return plant


ROOTS_OF_TWO = (2**0.5, 0.5**0.5)
GELU = {
    "erf scale off": constant_off(ROOTS_OF_TWO, 1.05),
    "one off": constant_off((1.0,), 1.05),
    "half off": constant_off((0.5, 2.0), 1.05),
    "half negative": constant_off((0.5, 2.0), -1.0),
    "erf scale an input": _run_time(ROOTS_OF_TWO, "input"),
    "one overridable": _run_time((1.0,), "default"),
    "half an input": _run_time((0.5,), "input"),
    "Tanh for Erf": other_kind("Erf", "Tanh"),
    "Sigmoid for Erf": other_kind("Erf", "Sigmoid"),
    "Sub for the Add of one": other_kind("Add", "Sub"),
    "Mul for Div": other_kind("Div", "Mul"),
    "Add for the last Mul": root_kind("Add"),
    "Sub for the last Mul": root_kind("Sub"),
    "x of another, first reader": x_of_another(0),
    "x of another, last reader": x_of_another(-1),
}
FAST_GELU = {
    "cubic off": constant_off((0.044715,), 1.5),
    "tanh scale off": constant_off(((2 / np.pi) ** 0.5,), 1.05),
    "one off": constant_off((1.0,), 1.05),
    "half off": constant_off((0.5,), 0.9),
    "exponent 2": exponent_2,
    "cubic an input": _run_time((0.044715,), "input"),
    "half overridable": _run_time((0.5,), "default"),
    "Erf for Tanh": other_kind("Tanh", "Erf"),
    "Sub for an Add": other_kind("Add", "Sub"),
    "Add for the last Mul": root_kind("Add"),
    "x of another, first reader": x_of_another(0),
    "x of another, last reader": x_of_another(-1),
    "x of another, middle reader": x_of_another(1),
}
QUICK_GELU = {
    "alpha an input": _run_time((1.702,), "input"),
    "alpha overridable": _run_time((1.702,), "default"),
    "alpha negative": constant_off((1.702,), -1.0),
    "Tanh for Sigmoid": other_kind("Sigmoid", "Tanh"),
    "Add for the last Mul": root_kind("Add"),
    "x of another, first reader": x_of_another(0),
    "x of another, last reader": x_of_another(-1),
}


def gate_kind(new: str) -> Plant:
    """Another operator for the Sigmoid; with some it is one operator away from another activation."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        found = place.of("Sigmoid")
        if not found:
            return None
        node = draft.node(found[-1].outputs[0])
        node.op_type = new
        at = node.output[0]
        return planted(f"{place.rule} mish hard_swish", ("op", at), ("attribute", at))

    return plant


SILU = {
    **{
        kind + " for Sigmoid": gate_kind(kind)
        for kind in ("Tanh", "Erf", "Exp", "Softplus", "Softsign", "HardSigmoid", "Relu", "Elu", "Cos")
    },
    "Add for Mul": root_kind("Add"),
    "x of another": x_of_another(-1),
}


def caps_apart(draft: Draft, place: Place) -> Planted | None:
    found = next(((op, i) for op in place.of("Mul") if (i := place.constant_at(op)) is not None), None)
    if found is None:
        return None
    op, index = found
    other = _change(draft, place, op, index, (place.scalar(op.inputs[index]) or 1.0) * 1.5)
    guard = "guard:cap_is_again"
    at = draft.node(op.outputs[0]).input[index]
    return Planted(other.answers | {(guard, at), (guard, op.outputs[0])}, other.rules)


def cap_an_input(draft: Draft, place: Place) -> Planted | None:
    op = next(iter(place.of("Div")), None)
    if op is None:
        return None
    node = draft.node(op.outputs[0])
    array = draft.array(draft.below(node.input[1]))
    if array is None:
        return None
    node.input[1] = draft.input(array)
    return planted(place.rule, ("operand", node.input[1]), ("operand", node.output[0]))


SOFTCAP = {
    "caps apart": caps_apart,
    "cap an input": cap_an_input,
    "Erf for Tanh": other_kind("Tanh", "Erf"),
    "Add for Mul": root_kind("Add"),
    "Mul for Div": other_kind("Div", "Mul"),
}
GATE = {"Add for Mul": root_kind("Add"), "Sub for Mul": root_kind("Sub")}
