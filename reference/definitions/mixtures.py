"""Mixtures of experts: who gets a row, what each expert makes of it, and the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fuse.classes import expert_counts
from reference.definitions.activations import activate
from reference.definitions.case import Array, Case, Definition, exact
from reference.definitions.products import merged
from reference.ops.call import NUMPY


def _softmax(x: Array) -> Array:
    raised = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def _best(values: Array, k: int) -> Array:
    """The places of the k largest of each row, of equal ones the first."""
    return np.asarray(np.argsort(-values, axis=-1, kind="stable")[..., :k])


def _in_best_groups(case: Case, values: Array) -> Array:
    """values, with those outside the best groups replaced."""
    rows, experts = values.shape
    grouped = values.reshape(rows, case["groups"], experts // case["groups"])
    best = np.sort(grouped, axis=-1)[..., ::-1][..., : case["group_best"]].sum(axis=-1)
    kept = np.zeros(best.shape, bool)
    np.put_along_axis(kept, _best(best, case["kept_groups"]), True, axis=-1)
    return np.asarray(np.where(kept[..., None], grouped, case["group_fill"]).reshape(rows, experts))


def _route(case: Case, scores: Array, choice: Array | None) -> tuple[Array, Array]:
    """The experts chosen for each row and their weights, [rows, k] each.

    The choice is made on scores as they are held, in the type that the routing computes in: two that
    become equal there are equal.
    """
    held = NUMPY[case["routing_compute"]] if case["routing_compute"] else scores.dtype
    values = exact(scores).reshape(-1, case["experts"])
    if case["scoring"] == "softmax":
        values = _softmax(values)
    elif case["scoring"] == "sigmoid":
        values = activate("sigmoid", values)
    values = exact(values.astype(held))
    chosen_by = values
    if case["selection"] == "separate" and choice is not None:
        chosen_by = exact(choice).reshape(values.shape)
    elif choice is not None:
        chosen_by = exact((values + exact(choice).reshape(1, -1)).astype(held))
    if case["selection"] == "grouped":
        chosen_by = _in_best_groups(case, chosen_by)
    index = _best(chosen_by, case["k"])
    weights = np.take_along_axis(values, index, axis=-1)
    if case["scoring"] == "softmax_chosen":
        weights = _softmax(weights)
    if case["renormalize"]:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + case["sum_eps"])
    return index, np.asarray(weights * case["route_scale"])


class _Experts(NamedTuple):
    """The operands of each expert by name, in f64; empty where absent."""

    first: Sequence[Array]
    second: Sequence[Array]
    down: Sequence[Array]
    first_bias: Sequence[Array]
    second_bias: Sequence[Array]
    down_bias: Sequence[Array]


def _experts(case: Case, operands: Sequence[Array]) -> _Experts:
    left = iter(operands)
    found = {}
    for name, count in expert_counts(case.attrs).items():
        given = [next(left) for _ in range(count)]
        found[name] = [each for stack in given for each in stack] if case["stacked"] else given
    if case["weight_bits"]:
        for name in ("first", "second", "down"):
            zeros = found[f"{name}_zero"] or [None] * len(found[name])
            stored = zip(found[name], found[f"{name}_scale"], zeros, strict=True)
            found[name] = [_decoded(case, weight, scale, zero) for weight, scale, zero in stored]
    return _Experts(*([exact(array) for array in found[name]] for name in _Experts._fields))


def _unpacked(packed: Array, bits: int) -> Array:
    """The numbers of an axis of bytes, the low bits first."""
    parts = [(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], -1).astype(np.float64)


def _decoded(case: Case, weight: Array, scale: Array, zero: Array | None) -> Array:
    """(weight - zero) scale: a scale a row, or one for each block of a row."""
    bits, block = case["weight_bits"], case["weight_block"]
    values = _unpacked(weight, bits)
    zeros = np.full(scale.shape, 2.0 ** (bits - 1))
    if zero is not None:
        zeros = _unpacked(zero, bits)[..., : scale.shape[-1]]
    each, less = (np.repeat(a, block, -1) if block else a[..., None] for a in (exact(scale), zeros))
    return np.asarray((values - less) * each)


def _linear(x: Array, weights: Sequence[Array], biases: Sequence[Array], expert: int, trans: int) -> Array:
    weight = weights[expert].T if trans else weights[expert]
    y = x @ weight
    return np.asarray(y + biases[expert].reshape(1, -1)) if biases else np.asarray(y)


def _gate_and_up(case: Case, first: Array) -> tuple[Array, Array]:
    gating = case["gating"]
    if gating.startswith("lanes"):
        parts = first[:, 0::2], first[:, 1::2]
    else:
        parts = np.split(first, 2, axis=-1)[0], np.split(first, 2, axis=-1)[1]
    return parts[::-1] if gating.endswith("up_first") else parts


def _expert(case: Case, x: Array, experts: _Experts, number: int) -> Array:
    """What one expert makes of its rows."""
    first = _linear(x, experts.first, experts.first_bias, number, case["trans_first"])
    if case["gating"] == "none":
        gate, up = first, None
    elif case["gating"] == "two":
        gate, up = first, _linear(x, experts.second, experts.second_bias, number, case["trans_second"])
    else:
        gate, up = _gate_and_up(case, first)
    if case["limit"]:
        gate = np.minimum(gate, case["limit"])
        up = None if up is None else np.clip(up, -case["limit"], case["limit"])
    inner = activate(case["act"], gate, float(case["act_alpha"]))
    if up is not None:
        inner = inner * (up + case["up_offset"])
    return _linear(inner, experts.down, experts.down_bias, number, case["trans_down"])


def _mixed(case: Case, x: Array, scores: Array, choice: Array | None, operands: Sequence[Array]) -> Array:
    """The weighted sum of what the chosen experts make of each row, [rows, out]."""
    rows = exact(x).reshape(-1, x.shape[-1])
    index, weights = _route(case, scores, choice)
    experts = _experts(case, operands)
    total: Array | None = None
    for number in range(case["experts"]):
        row, lane = np.nonzero(index == number)
        made = _expert(case, rows[row], experts, number)
        total = np.zeros((rows.shape[0], made.shape[-1])) if total is None else total
        np.add.at(total, row, made * weights[row, lane, None])
    assert total is not None
    return total


def moe(case: Case, x: Array, scores: Array, choice: Array | None, *operands: Array) -> Array:
    y = _mixed(case, x, scores, choice, operands)
    return y.reshape(*x.shape[:-1], y.shape[-1])


def _plus_shared(y: Array, shared: Array, gate: Array | None) -> Array:
    """The mixture plus the shared expert, times the sigmoid of its gate's score where it has one."""
    added = exact(shared).reshape(y.shape)
    if gate is not None:
        added = added * activate("sigmoid", exact(gate).reshape(-1, 1))
    return np.asarray((y + added).reshape(shared.shape))


def moe_shared(
    case: Case,
    x: Array,
    scores: Array,
    choice: Array | None,
    shared: Array,
    shared_gate: Array | None,
    *operands: Array,
) -> Array:
    return _plus_shared(_mixed(case, x, scores, choice, operands), shared, shared_gate)


def moe_block(
    case: Case,
    x: Array,
    router: Array,
    router_bias: Array | None,
    choice: Array | None,
    shared: Array | None,
    shared_gate: Array | None,
    *operands: Array,
) -> Array:
    """The router's product gives the scores, rounded as they are held, then the mixture."""
    rows = exact(x).reshape(-1, x.shape[-1])
    scores = rows @ exact(router.T if case["trans_router"] else router)
    if router_bias is not None:
        scores = scores + exact(router_bias)
    y = _mixed(case, x, scores.astype(x.dtype), choice, operands)
    if shared is None:
        return y.reshape(*x.shape[:-1], y.shape[-1])
    if shared_gate is not None:
        shared_gate = rows @ exact(shared_gate.T if case["trans_shared_gate"] else shared_gate)
    return _plus_shared(y, shared, shared_gate)


def gather_product(case: Case, x: Array, weight: Array, indices: Array) -> Array:
    """Row n of the result: row n // repeats of x times the weight of expert indices[n]."""
    index = indices.reshape(-1)
    rows = np.repeat(exact(x).reshape(-1, x.shape[-1]), case["repeats"], axis=0)
    each = exact(weight)[index]
    turned = np.swapaxes(each, -1, -2) if case["trans_weight"] else each
    return np.asarray((rows[:, None, :] @ turned)[:, 0, :])


MIXTURES: Mapping[str, Definition] = {
    "moe": moe, "moe_shared": moe_shared, "moe_block": moe_block,
    "router_shared_gate_merge": merged, "moe_gather_in_operand": gather_product,
}  # fmt: skip
