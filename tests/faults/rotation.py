"""Faults of rotations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuse.ir import Op

from .draft import Draft, Place, Planted, planted


@dataclass(frozen=True)
class Rotation:
    """The ops of a rotation by halves: x * cos + concat(-upper, lower) * sin."""

    neg: Op
    join: Op
    upper: Op
    lower: Op
    times_sin: Op
    times_cos: Op
    total: Op
    x: str


def roles(place: Place) -> Rotation | None:
    for neg in place.of("Neg"):
        join = next((r for r in place.readers(neg.outputs[0]) if r.kind == "Concat"), None)
        upper = place.maker(neg.inputs[0])
        if join is None or upper is None or len(join.inputs) != 2:
            continue
        lower = place.maker(join.inputs[1])
        times_sin = next(iter(place.readers(join.outputs[0])), None)
        if lower is None or times_sin is None or times_sin.kind != "Mul":
            continue
        total = next(iter(place.readers(times_sin.outputs[0])), None)
        x = upper.inputs[0]
        times_cos = next((r for r in place.readers(x) if r.kind == "Mul"), None)
        if total is None or times_cos is None or lower.inputs[0] != x:
            continue
        return Rotation(neg, join, upper, lower, times_sin, times_cos, total, x)
    return None


def _guard(*ats: str) -> list[tuple[str, str]]:
    return [("guard:", at) for at in ats]


def neg_on_the_other_half(draft: Draft, place: Place) -> Planted | None:
    r = roles(place)
    if r is None:
        return None
    join, neg = draft.node(r.join.outputs[0]), draft.node(r.neg.outputs[0])
    low = join.input[1]
    join.input[0] = neg.input[0]
    neg.input[0] = low
    join.input[1] = neg.output[0]
    _move_before(draft, neg.output[0], join.output[0])
    at = (join.output[0], neg.output[0], r.upper.outputs[0], r.lower.outputs[0])
    return planted(place.rule, *_guard(*at), ("operand", join.output[0]), ("op", r.upper.outputs[0]))


def _move_before(draft: Draft, value: str, other: str) -> None:
    node = draft.node(value)
    copied = type(node)()
    copied.CopyFrom(node)
    draft.graph.node.remove(node)
    draft.insert(copied, other, after=False)


def neg_dropped(draft: Draft, place: Place) -> Planted | None:
    r = roles(place)
    if r is None:
        return None
    join = draft.node(r.join.outputs[0])
    join.input[0] = r.upper.outputs[list(r.upper.outputs).index(r.neg.inputs[0])]
    at = join.input[0]
    return planted(
        place.rule,
        ("op", at),
        ("operand", at),
        ("op", join.output[0]),
        ("operand", join.output[0]),
        *_guard(at, join.output[0]),
    )


def _other(role: str, kind: str):
    def plant(draft: Draft, place: Place) -> Planted | None:
        r = roles(place)
        if r is None:
            return None
        node = draft.node(getattr(r, role).outputs[0])
        node.op_type = kind
        return planted(place.rule, ("op", node.output[0]))

    return plant


def halves_swapped(draft: Draft, place: Place) -> Planted | None:
    """Concat(-lower, upper)."""
    r = roles(place)
    if r is None:
        return None
    join, neg = draft.node(r.join.outputs[0]), draft.node(r.neg.outputs[0])
    join.input[1], neg.input[0] = neg.input[0], join.input[1]
    _move_before(draft, neg.output[0], join.output[0])
    _move_before(draft, join.output[0], r.times_sin.outputs[0])
    return planted(
        place.rule, *_guard(join.output[0], r.upper.outputs[0], r.lower.outputs[0], r.neg.outputs[0])
    )


def join_swapped(draft: Draft, place: Place) -> Planted | None:
    """Concat(lower, -upper)."""
    r = roles(place)
    if r is None:
        return None
    join = draft.node(r.join.outputs[0])
    join.input[0], join.input[1] = join.input[1], join.input[0]
    at = (join.output[0], r.upper.outputs[0], r.lower.outputs[0], r.neg.outputs[0])
    return planted(place.rule, *_guard(*at), ("operand", join.output[0]))


def _bound(role: str, index: int, step: int):
    """A bound of one slice moved: index 1 is the start, 2 the stop."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        r = roles(place)
        op = getattr(r, role) if r is not None else None
        if op is None or op.kind != "Slice":
            return None
        width = place.dims(r.x)[-1]
        node = draft.node(op.outputs[0])
        if not isinstance(width, int) or width < 4:
            return None
        content = place.graph.content(op.inputs[index])
        if content is None or len(content) != 1:
            return None
        old = min(int(content[0]), width) if content[0] >= 0 else int(content[0])
        node.input[index] = draft.constant(np.array([old + step], np.int64), "bound")
        both = [r.join.outputs[0], r.x, op.outputs[0], node.input[index], r.neg.outputs[0]]
        return planted(
            place.rule, *_guard(*both), ("operand", node.input[index]), ("attribute", op.outputs[0])
        )

    return plant


def both_bounds(draft: Draft, place: Place) -> Planted | None:
    """Uneven parts: lower one lane shorter, upper one longer, so shapes still line up."""
    r = roles(place)
    if r is None or r.upper.kind != "Slice":
        return None
    starts = place.graph.content(r.upper.inputs[1])
    if starts is None:
        return None
    cut = draft.constant(np.array([int(starts[0]) - 1], np.int64), "bound")
    draft.node(r.upper.outputs[0]).input[1] = cut
    draft.node(r.lower.outputs[0]).input[2] = cut
    at = [r.join.outputs[0], r.x, r.upper.outputs[0], r.lower.outputs[0], cut, r.neg.outputs[0]]
    return planted(place.rule, *_guard(*at), ("operand", cut))


def slice_of_another(draft: Draft, place: Place) -> Planted | None:
    r = roles(place)
    other = place.like(r.x) if r is not None else None
    if r is None or other is None or r.lower.kind != "Slice":
        return None
    node = draft.node(r.lower.outputs[0])
    node.input[0] = other
    return planted(place.rule, ("same_value", node.output[0]))


def product_of_another(draft: Draft, place: Place) -> Planted | None:
    r = roles(place)
    other = place.like(r.x) if r is not None else None
    if r is None or other is None:
        return None
    node = draft.node(r.times_cos.outputs[0])
    node.input[list(r.times_cos.inputs).index(r.x)] = other
    return planted(place.rule, ("same_value", node.output[0]))


def slice_step(draft: Draft, place: Place) -> Planted | None:
    """Both slices take every second lane and are joined as halves."""
    r = roles(place)
    if r is None or r.upper.kind != "Slice":
        return None
    width = place.dims(r.x)[-1]
    if not isinstance(width, int):
        return None
    for op, start in ((r.lower, 0), (r.upper, 1)):
        node = draft.node(op.outputs[0])
        data = node.input[0]
        del node.input[:]
        bounds = [np.array([v], np.int64) for v in (start, width, -1, 2)]
        node.input.extend([data, *(draft.constant(b, "bound") for b in bounds)])
    at = [r.join.outputs[0], r.x, r.upper.outputs[0], r.lower.outputs[0], r.neg.outputs[0]]
    return planted(place.rule, *_guard(*at))


def joined_on_another_axis(draft: Draft, place: Place) -> Planted | None:
    r = roles(place)
    if r is None:
        return None
    node = draft.node(r.join.outputs[0])
    draft.set_attribute(node, "axis", len(place.dims(r.x)) - 2)
    return planted(place.rule, ("attribute", node.output[0]))


FAULTS = {
    "Neg on the other half": neg_on_the_other_half,
    "Neg dropped": neg_dropped,
    "Abs for Neg": _other("neg", "Abs"),
    "Relu for Neg": _other("neg", "Relu"),
    "halves swapped": halves_swapped,
    "join swapped": join_swapped,
    "start of the upper half moved": _bound("upper", 1, 1),
    "stop of the lower half moved": _bound("lower", 2, -1),
    "both bounds moved": both_bounds,
    "slice of another value": slice_of_another,
    "product of another value": product_of_another,
    "every second lane": slice_step,
    "joined on another axis": joined_on_another_axis,
    "Sub for Add": _other("total", "Sub"),
    "Mul for Add": _other("total", "Mul"),
    "Add for the Mul by sin": _other("times_sin", "Add"),
    "Add for the Mul by cos": _other("times_cos", "Add"),
    "Div for the Mul by sin": _other("times_sin", "Div"),
}
