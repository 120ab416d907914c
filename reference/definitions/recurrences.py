"""Recurrences with a state: the gated delta rule, and short causal convolutions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fuse.types import FuseError
from reference.definitions.attention import closed, opened
from reference.definitions.case import Array, Case, Definition, exact
from reference.definitions.norms import l2_norm

_UPDATES = ("gated_delta", "delta", "gated", "linear")


def gated_delta(
    case: Case, q: Array, k: Array, v: Array, decay: Array | None, beta: Array | None, state: Array | None
) -> tuple[Array, Array]:
    """Row by row: S = decay S; S = S + k (beta (v - S^T k))^T; y = scale S^T q. S is [key, value]."""
    if case["update"] not in _UPDATES:
        raise FuseError(f"update is one of {', '.join(_UPDATES)}, got {case['update']!r}")
    heads, retrieves = int(case["heads"]), case["update"] in ("gated_delta", "delta")
    own = int(case["key_heads"]) or heads
    query, key = (opened(exact(x), case[f"{n}_layout"], own) for n, x in (("q", q), ("k", k)))
    value = opened(exact(v), case["v_layout"], heads)
    query, key = (np.repeat(x, value.shape[1] // x.shape[1], axis=1) for x in (query, key))
    kept = _kept(case, decay, heads)
    rates = opened(exact(beta), case["beta_layout"], heads) if beta is not None and retrieves else None
    s = _first_state(case, state, value.shape, key.shape[-1])
    rows, results = _computed_rows(case, value.shape[2]), []
    for t in range(rows):
        if kept is not None:
            s = s * kept[:, :, t, :, None]
        seen = np.einsum("bhkv,bhk->bhv", s, key[:, :, t]) if retrieves else 0.0
        added = (value[:, :, t] - seen) * (rates[:, :, t] if rates is not None else 1.0)
        s = s + key[:, :, t, :, None] * added[:, :, None, :]
        results.append(case["scale"] * np.einsum("bhkv,bhk->bhv", s, query[:, :, t]))
    y = np.zeros(value.shape)
    if results:
        y[:, :, :rows] = np.stack(results, axis=2)
    last = s if case["state_layout"] == "b h k v" else s.swapaxes(-1, -2)
    return _laid_out(case, y), last


def _kept(case: Case, decay: Array | None, heads: int) -> Array | None:
    """What the state is scaled by at each row: [b, h, s, 1], or a number a lane of k."""
    if decay is None or case["update"] in ("delta", "linear"):
        return None
    opened_decay = opened(exact(decay), case["decay_layout"], heads)
    if case["decay_space"] not in ("log", "linear"):
        raise FuseError(f"decay_space is log or linear, got {case['decay_space']!r}")
    return np.exp(opened_decay) if case["decay_space"] == "log" else opened_decay


def _first_state(case: Case, state: Array | None, sizes: tuple[int, ...], width: int) -> Array:
    if case["state_layout"] not in ("b h k v", "b h v k"):
        raise FuseError(f"state_layout is b h k v or b h v k, got {case['state_layout']!r}")
    if state is None:
        return np.zeros((*sizes[:2], width, sizes[-1]))
    s = exact(state)
    return s if case["state_layout"] == "b h k v" else s.swapaxes(-1, -2)


def _computed_rows(case: Case, rows: int) -> int:
    return min(rows, case["chunk"] * case["chunks"]) if case["chunks"] else rows


def _laid_out(case: Case, y: Array) -> Array:
    """y [b, h, s, d] in its layout; cut into chunks of `chunk` rows where that has a letter c."""
    if "c" not in case["out_layout"].split():
        return closed(y, case["out_layout"])
    batch, heads, rows, width = y.shape
    if case["out_layout"] != "b h c s d" or not case["chunk"]:
        raise FuseError(f"a result in chunks is laid out as 'b h c s d', got {case['out_layout']!r}")
    more = -rows % case["chunk"]
    padded = np.pad(y, ((0, 0), (0, 0), (0, more), (0, 0)))
    return padded.reshape(batch, heads, -1, case["chunk"], width)


def conv_state(
    case: Case,
    x: Array,
    weight: Array,
    bias: Array | None,
    state: Array | None,
    x_gate: Array | None,
    gate: Array | None,
) -> tuple[Array, Array]:
    """A causal depthwise convolution, perhaps of x times x_gate, and perhaps times gate."""
    y, last = _convolved(case, x, weight, bias, state, x_gate)
    return _finished(case, y, gate), last


def conv_silu(
    case: Case,
    x: Array,
    weight: Array,
    bias: Array | None,
    state: Array | None,
    x_gate: Array | None,
    gate: Array | None,
) -> tuple[Array, Array]:
    """The same through silu, before the gate."""
    y, last = _convolved(case, x, weight, bias, state, x_gate)
    return _finished(case, y / (1 + np.exp(-y)), gate), last


def _finished(case: Case, y: Array, gate: Array | None) -> Array:
    """Times the gate; in heads, each divided by its length, where there are any."""
    y = y if gate is None else y * exact(gate)
    if not case["heads"]:
        return y
    heads = y.reshape(y.shape[0], case["heads"], -1, y.shape[-1]).swapaxes(-1, -2)
    length = {"eps": case["length_eps"], "eps_at": case["length_eps_at"]}
    return closed(l2_norm(Case(length, case.types), heads), case["out_layout"])


def _convolved(
    case: Case, x: Array, weight: Array, bias: Array | None, state: Array | None, x_gate: Array | None
) -> tuple[Array, Array]:
    """y[c, s] = bias[c] + the sum over taps j of weight[c, j] x[c, s - (taps - 1 - j) dilation]; the
    columns of the past are those of the state, zeros where there is none."""
    columns, taps, dilation = x.shape[-1], weight.shape[-1], int(case["dilation"])
    own = exact(x) if x_gate is None else exact(x) * exact(x_gate)
    past = np.zeros((*x.shape[:2], (taps - 1) * dilation)) if state is None else exact(state)
    if past.shape[-1] < (taps - 1) * dilation:
        raise FuseError(f"a state of {past.shape[-1]} columns does not reach as far as the taps")
    joined = np.concatenate([past, own], axis=-1)
    y = np.zeros(x.shape)
    for tap in range(taps):
        begin = past.shape[-1] - (taps - 1 - tap) * dilation
        y += exact(weight)[:, 0, tap, None] * joined[..., begin : begin + columns]
    y = y if bias is None else y + exact(bias)[:, None]
    return y, joined[..., joined.shape[-1] - past.shape[-1] :]


RECURRENCES: Mapping[str, Definition] = {
    "gated_delta": gated_delta, "conv_state": conv_state, "conv_silu": conv_silu,
}  # fmt: skip
