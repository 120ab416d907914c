"""What a mixture of experts and a gate are, whatever wrote or built them (`fuse.forms` shows them too)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fuse.classes import expert_counts
from fuse.ir import Graph, Op


class Gated(NamedTuple):
    """act(gate) times up."""

    act: str
    alpha: float
    gate: str
    up: str
    out: str
    op: Op


class Mixture(NamedTuple):
    """Experts that run on the rows they are chosen for; attrs are those of the class `moe`.

    weights: the operands from `first` on, as the class lists them. shared, shared_gate: what another
    expert gives for every row and the score of its gate, "" where there is none.
    """

    x: str
    scores: str
    choice: str
    shared: str
    shared_gate: str
    weights: tuple[str, ...]
    attrs: dict[str, Any]
    out: str
    op: Op


def _reads(*kinds: str) -> Callable[[Any], Any]:
    def mark(function: Any) -> Any:
        function.kinds = frozenset(kinds)
        return function

    return mark


_GATES = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}


def _gated(graph: Graph, op: Op) -> Gated:
    act = str(op.attrs.get("act", _GATES[op.kind]))
    return Gated(act, float(op.attrs.get("alpha", 1.0)), op.inputs[0], op.inputs[1], op.outputs[0], op)


gated = _reads(*_GATES)(_gated)

#: Where the experts' weights begin among the operands of each class.
_FIRST_WEIGHT = {"moe": 3, "moe_shared": 5}


def _mixture(graph: Graph, op: Op) -> Mixture | None:
    begin = _FIRST_WEIGHT.get(op.kind)
    if begin is None:
        return _contrib(graph, op)
    count = sum(expert_counts(op.attrs).values())
    x, scores, choice = op.inputs[:3]
    shared, gate = op.inputs[3:5] if begin > 3 else ("", "")
    weights = op.inputs[begin : begin + count]
    return Mixture(x, scores, choice, shared, gate, weights, dict(op.attrs), op.outputs[0], op)


#: activation_type of com.microsoft.MoE -> the activation (its gelu is the tanh form on CPU, erf on CUDA).
_CONTRIB_ACTS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "identity": "identity", "swiglu": "silu"}


def _contrib(graph: Graph, op: Op) -> Mixture | None:
    """com.microsoft.MoE: softmax over the router's logits, the k best, perhaps made to sum to one."""
    a = op.attrs
    dims = graph.dims(op.inputs[2])
    inputs = (*op.inputs, *("",) * 8)[:8]
    x, scores, first, first_bias, down, down_bias, second, second_bias = inputs
    act = a.get("activation_type", "relu")
    if dims is None or len(dims) != 3 or not isinstance(dims[0], int) or a.get("use_sparse_mixer"):
        return None
    if act not in _CONTRIB_ACTS or a.get("swiglu_limit_after_activation"):
        return None
    attrs: dict[str, Any] = {"experts": dims[0], "k": a.get("k", 1), "act": _CONTRIB_ACTS[act]}
    attrs |= {"trans_first": 1, "trans_down": 1}
    if second:
        attrs |= {"gating": "two", "trans_second": 1}
    if a.get("normalize_routing_weights"):
        attrs["renormalize"] = True
    if act == "swiglu":
        attrs |= _contrib_swiglu(a)
        if second or "gating" not in attrs:
            return None
    elif not second:
        attrs["gating"] = "none"
    biases = tuple(int(bool(v)) for v in (first_bias, second_bias, down_bias))
    if any(biases):
        attrs["expert_biases"] = biases
    weights = tuple(v for v in (first, second, down, first_bias, second_bias, down_bias) if v)
    return Mixture(x, scores, "", "", "", weights, attrs, op.outputs[0], op)


def _contrib_swiglu(a: Any) -> dict[str, Any]:
    """gate sigmoid(alpha gate) (up + beta), gate and up in lanes (fusion 1) or halves (fusion 2)."""
    attrs: dict[str, Any] = {}
    layout = {1: "lanes", 2: "halves"}.get(a.get("swiglu_fusion", 0))
    if layout is not None:
        attrs["gating"] = layout
    alpha = float(a.get("activation_alpha", 1.0))
    if alpha != 1.0:
        attrs |= {"act": "quick_gelu", "act_alpha": alpha}
    if a.get("activation_beta", 0.0):
        attrs["up_offset"] = float(a["activation_beta"])
    if a.get("swiglu_limit"):
        attrs["limit"] = float(a["swiglu_limit"])
    return attrs


mixture = _reads("moe", "moe_shared", "com.microsoft.MoE")(_mixture)
