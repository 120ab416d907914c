"""What a matched mixture of experts says: its experts, its routing, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fuse import forms
from fuse.attributes import attribute
from fuse.guards import FRACTION_BITS, dims_text
from fuse.ir import Graph, Op
from fuse.match import Match, Taken, close
from fuse.rule import Wrong
from fuse.rules.gates import squaring
from fuse.rules.mixture_patterns import GATHERS, Picked
from fuse.types import FLOATS, INTEGERS, Dims, product

#: Guard -> what it found, the first of each.
Problems = dict[str, Wrong]
#: A product's weight and bias, and whether the weight is [out, in].
Named = tuple[str, str, int]
#: A bound this far out bounds nothing.
FAR = 1e30


class Expert(NamedTuple):
    """One expert, or the stacks of all: operands "" where absent, and what it does between its products."""

    first: str
    second: str
    down: str
    first_bias: str
    second_bias: str
    down_bias: str
    trans: tuple[int, int, int]
    gating: str
    act: str
    alpha: float
    limit: float
    up_offset: float


@dataclass
class Facts:
    """A mixture as found. count: of experts; wrong: what fails, by the guard that says it."""

    root: str
    experts: list[Expert]
    count: int
    k: int
    attrs: dict[str, Any]
    wrong: Problems = field(default_factory=dict)

    @property
    def stacked(self) -> bool:
        return "stacked" not in self.attrs


# ---- between the products ----------------------------------------------------------------------------
def _lane(graph: Graph, value: str) -> tuple[str, int] | None:
    """Which half, or which of every two lanes, of its operand's last axis a split or slice takes."""
    op = graph.producer(value)
    assert op is not None
    whole, dims = graph.dims(op.inputs[0]), graph.dims(value)
    if not whole or not dims or not isinstance(whole[-1], int) or (*whole[:-1], whole[-1] / 2) != dims:
        return None
    if op.kind == "Split":
        return ("halves", op.outputs.index(value)) if len(op.outputs) == 2 else None
    given = [graph.content(v) if v else None for v in op.inputs[1:]]
    starts, steps = given[0], given[3] if len(given) > 3 else (1,)
    if starts is None or steps is None or len(starts) != 1 or len(steps) != 1:
        return None
    return {
        (0, 1): ("halves", 0), (whole[-1] // 2, 1): ("halves", 1), (-(whole[-1] // 2), 1): ("halves", 1),
        (0, 2): ("lanes", 0), (1, 2): ("lanes", 1),
    }.get((starts[0], steps[0]))  # type: ignore[arg-type]  # fmt: skip


#: The order, from the result down, of what may be done to a product's result.
_ORDER = {"offset": 0, "clip": 1, "first": 1, "second": 1, "slice": 1, "bias": 2}


def _taken(steps: Sequence[Taken], star: str, *names: str) -> list[Taken]:
    return [step for step in steps if step.star == star and (step.step in names or not names)]


def _lanes(graph: Graph, steps: Sequence[Taken], star: str) -> list[tuple[str, int] | None]:
    """The parts of products that gate or up is taken from; None where a part or their order is another."""
    ranks = [_ORDER[step.step] for step in _taken(steps, star) if step.step in _ORDER]
    lanes = [_lane(graph, step.value) for step in _taken(steps, star, "first", "second", "slice")]
    return lanes if ranks == sorted(ranks) else [None]


def _gating(graph: Graph, steps: Sequence[Taken], gated: bool, two: bool) -> str | None:
    gate, up = _lanes(graph, steps, "gate"), _lanes(graph, steps, "up")
    if not gated:
        return None if gate or up else "none"
    if two:
        return None if gate or up else "two"
    if len(gate) != 1 or len(up) != 1 or gate[0] is None or up[0] is None:
        return None
    (kind, place), (other, rest) = gate[0], up[0]
    if kind != other or {place, rest} != {0, 1}:
        return None
    return kind if place == 0 else f"{kind}_up_first"


def _bounds(graph: Graph, ops: list[Op]) -> tuple[float, float] | None:
    """Between which numbers these ops keep a value; None where a number is not known."""
    found = [_bounds_of(graph, op) for op in ops]
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None
    return max(low for low, _ in known), min(high for _, high in known)


def _bounds_of(graph: Graph, op: Op) -> tuple[float, float] | None:
    if op.kind != "Clip":
        number = next((n for v in op.inputs if (n := graph.scalar(v)) is not None), None)
        if number is None or len(op.inputs) != 2:
            return None
        return (-float("inf"), float(number)) if op.kind == "Min" else (float(number), float("inf"))
    found = []
    for index, name, none in ((1, "min", -float("inf")), (2, "max", float("inf"))):
        value = op.inputs[index] if len(op.inputs) > index else ""
        number = graph.scalar(value) if value else op.attrs.get(name, none)
        if number is None:
            return None
        found.append(float(number))
    return found[0], found[1]


def _limit(graph: Graph, steps: Sequence[Taken]) -> float | None:
    """The limit of gate (above) and up (both ways); 0 where there is none, None where they disagree."""
    gate, up = (
        [op for s in _taken(steps, star, "clip") if (op := graph.producer(s.value)) is not None]
        for star in ("gate", "up")
    )
    if not gate and not up:
        return 0.0
    one, two = _bounds(graph, gate), _bounds(graph, up)
    if one is None or two is None or one[0] > -FAR:
        return None
    return one[1] if close(one[1], two[1]) and close(one[1], -two[0]) else None


def read_expert(m: Match, steps: Sequence[Taken], products: dict[str, Named], wrong: Problems) -> Expert:
    """The expert that a match bound. products: name -> weight, bias, whether [out, in]."""
    bound, graph = m.bound, m.graph
    gated, act = bound.get("gated"), bound.get("act")
    has_up = gated is not None or "second" in bound or "second_product" in bound
    if act is None:
        assert gated is not None
        act = forms.Activation(gated.act, gated.alpha, gated.gate, gated.out, gated.op)
    name = "squared_relu" if act.name == "relu" and squaring(graph, act.out) in m.ops else act.name
    gating = _gating(graph, steps, has_up, "second" in products)
    if gating is None:
        wrong.setdefault("gate_and_up_are_parts", Wrong(m.root, "other parts"))
    limit = _limit(graph, steps)
    if limit is None:
        wrong.setdefault("limits_agree", Wrong(m.root, "other bounds"))
    offsets = [float(graph.scalar(s.bound["up_offset"]) or 0.0) for s in _taken(steps, "up", "offset")]
    absent = ("", "", 0)
    first, second, down = (products.get(name, absent) for name in ("first", "second", "down"))
    return Expert(
        first[0], second[0], down[0], first[1], second[1], down[1], (first[2], second[2], down[2]),
        gating or "halves", name, act.alpha, limit or 0.0, sum(offsets),
    )  # fmt: skip


# ---- products ------------------------------------------------------------------------------------------
def stacked_products(m: Match, wrong: Problems) -> dict[str, Named]:
    """The batched products of a match: their stacks, and on which side the weight stands."""
    graph, found = m.graph, dict[str, Named]()
    biases = {name: v for step in m.steps if step.step == "bias" for name, v in step.bound.items()}
    for op in m.ops:
        if op.kind in GATHERS and graph.is_constant(op.inputs[0]) and not picks_experts(graph, op):
            got = f"indices {dims_text(graph.dims(op.inputs[1]))} into {dims_text(graph.dims(op.inputs[0]))}"
            wrong.setdefault("each_row_meets_one_expert", Wrong(op.outputs[0], got))
    for name in ("first", "second", "down"):
        stack = m.get(name)
        if not stack or (name == "second" and stack == m["first"]):
            continue
        product = m[f"{name}_times"]
        rows, whole = graph.dims(product.x), graph.dims(product.weight)
        if not rows or not whole or rows[:-2] != whole[:-2] or rows[-1 if product.side == 0 else -2] != 1:
            got = f"{dims_text(rows)} by {dims_text(whole)}"
            wrong.setdefault("each_row_meets_one_expert", Wrong(product.out, got))
        found[name] = (stack, biases.get(f"{name}_bias", ""), 1 - product.side)
    return found


def picks_experts(graph: Graph, gather: Op) -> bool:
    """Whether a gather takes whole experts, along the first axis of a stack."""
    if gather.kind == "Gather":
        return bool(gather.attrs.get("axis", 0) == 0)
    index = graph.dims(gather.inputs[1])
    return not gather.attrs.get("batch_dims", 0) and bool(index) and index is not None and index[-1] == 1


def single_products(m: Match, steps: Sequence[Taken]) -> dict[str, Named]:
    """The products of one expert that a match bound; of one that was hit, the stacks it picks from."""
    found: dict[str, Named] = {}
    biases = {name: v for step in steps if step.step == "bias" for name, v in step.bound.items()}
    for name in ("first", "second", "down"):
        product = m.get(f"{name}_product", None)
        if product is None or (name == "second" and product.out == m["first_product"].out):
            continue
        if isinstance(product, Picked):
            found[name] = (m[name], biases.get(f"{name}_bias", ""), product.trans)
        else:
            found[name] = (product.weight, product.bias, product.trans_weight)
    return found


# ---- routing ---------------------------------------------------------------------------------------------
def read_route(m: Match, steps: Sequence[Taken], k: int, wrong: Problems) -> dict[str, Any]:
    """What is done to the scores of the chosen: attributes of the class."""
    graph, attrs = m.graph, dict[str, Any]()
    order: list[str] = []
    for step in steps:
        if step.star != "route" or step.step not in ("renormalize", "softmax", "scale"):
            continue
        order.append(step.step)
        dims = graph.dims(step.value)
        if step.step == "scale":
            attrs["route_scale"] = attrs.get("route_scale", 1.0) * float(
                graph.scalar(step.bound["route_scale"]) or 0.0
            )
        elif not dims or dims[-1] != k:
            wrong.setdefault("weights_sum_over_the_chosen", Wrong(step.value, dims_text(dims)))
        elif step.step == "softmax":
            attrs["scoring"] = "softmax_chosen"
        else:
            attrs["renormalize"] = True
            if "sum_eps" in step.bound:
                attrs["sum_eps"] = float(graph.scalar(step.bound["sum_eps"]) or 0.0)
    if (
        order != sorted(order, key=("scale", "renormalize", "softmax").index)
        or order.count("renormalize") > 1
    ):
        wrong.setdefault("weights_sum_over_the_chosen", Wrong(m.root, " of ".join(order)))
    return attrs


def check_choice(m: Match, top: Op, wrong: Problems) -> int:
    """How many experts are chosen; wrong where weights are of another choice, or the smallest are taken."""
    graph = m.graph
    content = graph.content(m["k"])
    k = content[0] if content is not None and len(content) == 1 and isinstance(content[0], int) else 0
    if not k:
        wrong.setdefault("k_is_known", Wrong(m["k"], "known only at run time"))
    if not top.attrs.get("largest", 1):
        wrong.setdefault("the_largest_are_chosen", Wrong(top.outputs[1], "largest=0"))
    others = {op.slot for op in m.ops if op.kind == "TopK"} - {top.slot}
    if others:
        other = graph.slots[min(others)]
        assert other is not None
        wrong.setdefault(
            "weights_are_of_the_choice", Wrong(other.outputs[0], f"a choice by {other.inputs[0]}")
        )
    return int(k)


def check_casts(m: Match, wrong: Problems) -> None:
    """Casts change no kind of number, and none rounds more than the rows or the result are."""
    ends = min(FRACTION_BITS.get(m.graph.dtype(value), 0) for value in (m["x"], m.root))
    for op in m.ops:
        if op.kind != "Cast":
            continue
        inside, outside = m.graph.dtype(op.inputs[0]), m.graph.dtype(op.outputs[0])
        alike = {inside, outside} <= FLOATS or {inside, outside} <= INTEGERS | {"bool"}
        if inside and outside and not alike:
            wrong.setdefault("casts_keep_the_kind", Wrong(op.outputs[0], f"{inside} to {outside}"))
        elif FRACTION_BITS.get(outside, ends) < ends:
            wrong.setdefault("casts_keep_the_kind", Wrong(op.outputs[0], f"{inside} to {outside} and back"))


# ---- shapes ------------------------------------------------------------------------------------------------
def check_alike(graph: Graph, facts: Facts, width: Any) -> None:
    """Experts of one shape, storage and function, and products that fit each other."""
    head = facts.experts[0]
    want = _sizes(graph, head, facts.stacked)
    for expert in facts.experts:
        if want is None or _sizes(graph, expert, facts.stacked) != want or expert[6:] != head[6:]:
            got = " and ".join(str(graph.type(weight)) for weight in expert[:3] if weight)
            facts.wrong.setdefault("experts_are_alike", Wrong(facts.root, got))
            return
    assert want is not None
    inner = want.outs if head.gating in ("none", "two") else want.outs / 2
    if want.ins != width or want.downs != inner or (facts.stacked and want.count != facts.count):
        got = f"{want.ins} of {width} lanes in, {want.outs} made, {want.downs} read"
        facts.wrong.setdefault("experts_are_alike", Wrong(facts.root, got))


class _Sizes(NamedTuple):
    """Of an expert's products: how many experts are stacked, lanes in, made, read by the last, given out;
    element types; biases."""

    count: Any
    ins: Any
    outs: Any
    downs: Any
    types: tuple[str, ...]
    biases: tuple[Any, ...]


def _sizes(graph: Graph, expert: Expert, stacked: bool) -> _Sizes | None:
    """None where the products of an expert cannot be those of one."""
    lead = 1 if stacked else 0
    found: list[Dims | None] = []
    for weight, trans in zip(expert[:3], expert.trans, strict=True):
        dims = graph.dims(weight) if weight else None
        if weight and (
            dims is None or len(dims) != lead + 2 or not all(isinstance(dim, int) for dim in dims)
        ):
            return None
        found.append(None if dims is None else dims[:lead] + (dims[lead:][::-1] if trans else dims[lead:]))
    first, second, down = found
    if first is None or down is None or second not in (None, first) or first[:lead] != down[:lead]:
        return None
    for bias, own in zip(expert[3:6], found, strict=True):
        if bias and stacked and own is not None and graph.dims(bias) != (own[0], own[-1]):
            return None
    types = tuple(graph.dtype(weight) for weight in expert[:6] if weight)
    biases = tuple(bool(bias) for bias in expert[3:6])
    return _Sizes(first[0] if stacked else 1, first[-2], first[-1], down[-2], types, biases)


def rows_of(dims: Dims | None) -> Any:
    """The number of rows of a value, its last axis aside."""
    return None if dims is None or not dims else product(dims[:-1])


def check_repeat(m: Match, k: int, wrong: Problems) -> None:
    """Each token's row k times in turn: [rows, width] to [rows, 1, width] to [rows, k, width]."""
    graph = m.graph
    spread = next(op for op in m.ops if op.kind in ("Expand", "Tile"))
    x, unit, many = graph.dims(m["x"]), graph.dims(spread.inputs[0]), graph.dims(spread.outputs[0])
    fine = x is not None and unit == (*x[:-1], 1, x[-1]) and many == (*x[:-1], k, x[-1])
    if not fine:
        wrong.setdefault("each_row_stands_k_times", Wrong(spread.outputs[0], dims_text(many)))


def check_sum(m: Match, k: int, wrong: Problems) -> None:
    """The weighted results of a token's k experts are what is summed."""
    graph, root = m.graph, m.graph.producer(m.root)
    assert root is not None
    dims, rows = graph.dims(root.inputs[0]), rows_of(graph.dims(m["x"]))
    axes = attribute(graph, root, "axes")
    rank = len(dims or ())
    if dims is not None and (axes not in (-2, rank - 2) or attribute(graph, root, "keepdims")):
        got = f"axes {axes} of {dims_text(dims)}, keepdims={attribute(graph, root, 'keepdims')}"
        wrong.setdefault("one_axis_is_summed", Wrong(m.root, got))
    elif rank < 3 or dims is None or dims[-2] != k or not rows or product(dims[:-2]) != rows:
        wrong.setdefault("the_chosen_of_a_row_are_summed", Wrong(m.root, f"axes {axes} of {dims_text(dims)}"))
    for op in m.ops:
        if op.kind == "Mul" and _is_weighting(m, op):
            small, whole = (graph.dims(v) for v in _weighting(m, op))
            if whole is None or small != (*whole[:-1], 1):
                wrong.setdefault(
                    "one_weight_a_row", Wrong(op.outputs[0], f"{dims_text(small)} over {dims_text(whole)}")
                )


def _routed_values(m: Match) -> set[str]:
    return {step.value for step in m.steps if step.star == "route"} | {
        op.outputs[0] for op in m.ops if op.kind == "TopK"
    }


def _is_weighting(m: Match, op: Op) -> bool:
    routed = _routed_values(m)
    return any(v in routed for v in op.inputs) and op.outputs[0] not in routed


def _weighting(m: Match, op: Op) -> Iterator[str]:
    """The weights and the results that a product of both reads, in that order."""
    routed = _routed_values(m)
    yield next(v for v in op.inputs if v in routed)
    yield next((v for v in op.inputs if v not in routed), op.inputs[0])
