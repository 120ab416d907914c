"""What a mixture of experts and a gate are, whatever wrote or built them (`fuse.forms` shows them too)."""

from __future__ import annotations

from typing import Any, NamedTuple

from fuse.classes import expert_counts
from fuse.ir import Graph, Op
from fuse.pattern import form_of


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


_GATES = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}


def _gated(graph: Graph, op: Op) -> Gated:
    act = str(op.attrs.get("act", _GATES[op.kind]))
    return Gated(act, float(op.attrs.get("alpha", 1.0)), op.inputs[0], op.inputs[1], op.outputs[0], op)


gated = form_of(*_GATES)(_gated)

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


#: activation_type of com.microsoft.MoE -> the activation; its gelu is the tanh form (measured, 1.32 CPU).
_CONTRIB_ACTS = {
    "relu": "relu", "gelu": "fast_gelu", "silu": "silu", "identity": "identity", "swiglu": "silu",
}  # fmt: skip
#: Where com.microsoft.MoE and QMoE keep the operands of each product: weight, bias, scale, zero point.
_PLACES = {
    "com.microsoft.MoE": {"first": (2, 3, -1, -1), "second": (6, 7, -1, -1), "down": (4, 5, -1, -1)},
    "com.microsoft.QMoE": {"first": (2, 4, 3, 11), "second": (8, 10, 9, 12), "down": (5, 7, 6, 13)},
}


def _contrib(graph: Graph, op: Op) -> Mixture | None:
    """MoE and QMoE: softmax over the router's logits, the k best, perhaps made to sum to one."""
    a = op.attrs
    inputs = (*op.inputs, *("",) * 15)
    places = _PLACES[op.kind]
    products = {name: tuple(inputs[i] if i >= 0 else "" for i in at) for name, at in places.items()}
    dims = graph.dims(products["first"][0])
    act = a.get("activation_type", "relu")
    if dims is None or len(dims) != 3 or not isinstance(dims[0], int) or a.get("use_sparse_mixer"):
        return None
    if act not in _CONTRIB_ACTS or a.get("swiglu_limit_after_activation") or inputs[14]:
        return None
    gating = {1: "lanes", 2: "halves"}.get(a.get("swiglu_fusion", 0)) if act == "swiglu" else "none"
    if products["second"][0]:
        gating = "two" if act != "swiglu" else None
    storage = _contrib_storage(op, products)
    if gating is None or storage is None:
        return None
    attrs: dict[str, Any] = {"experts": dims[0], "k": a.get("k", 1), "trans_first": 1, "trans_down": 1}
    attrs |= _contrib_act(a, act) | storage
    attrs |= {"gating": gating} if gating != "halves" else {}
    attrs |= {"trans_second": 1} if gating == "two" else {}
    attrs |= {"renormalize": True} if a.get("normalize_routing_weights") else {}
    for name, place in (("expert_biases", 1), ("expert_zeros", 3)):
        given = tuple(int(bool(values[place])) for values in products.values())
        attrs |= {name: given} if any(given) else {}
    weights = tuple(values[place] for place in range(4) for values in products.values() if values[place])
    return Mixture(op.inputs[0], op.inputs[1], "", "", "", weights, attrs, op.outputs[0], op)


def _contrib_act(a: Any, act: str) -> dict[str, Any]:
    """swiglu: gate sigmoid(alpha gate) (up + beta), both within a limit."""
    attrs: dict[str, Any] = {} if _CONTRIB_ACTS[act] == "silu" else {"act": _CONTRIB_ACTS[act]}
    if act != "swiglu":
        return attrs
    if (alpha := float(a.get("activation_alpha", 1.0))) != 1.0:
        attrs |= {"act": "quick_gelu", "act_alpha": alpha}
    for name, given in (("up_offset", "activation_beta"), ("limit", "swiglu_limit")):
        attrs |= {name: float(a[given])} if a.get(given) else {}
    return attrs


def _contrib_storage(op: Op, products: dict[str, tuple[str, ...]]) -> dict[str, Any] | None:
    """Bits and block of QMoE's integers; None for its other formats."""
    if op.kind == "com.microsoft.MoE":
        return {}
    a = op.attrs
    bits = {a.get(f"{name}_expert_weight_bits") or a.get("expert_weight_bits", 4) for name in ("fc1", "fc2")}
    scaled = all(bool(values[0]) == bool(values[2]) for values in products.values())
    if a.get("quant_type", "int") != "int" or any(op.inputs[15:]) or bits - {4, 8} or len(bits) != 1:
        return None
    if not scaled or a.get("weights_prepacked", 0) not in (0, -1):
        return None
    block = {"weight_block": a["block_size"]} if a.get("block_size") else {}
    return {"weight_bits": bits.pop(), **block}


mixture = form_of("moe", "moe_shared", *_PLACES)(_mixture)

_FLAT = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Flatten", "Cast"})
_SCATTERS = frozenset({"ScatterElements", "ScatterND"})


def sums_experts(graph: Graph, value: str) -> bool:
    """Whether a value is a sum over experts as exporters write it, laid out again or not.

    What is added to one is a shared expert's, so that place is the mixture's.
    """
    op = _below_flat(graph, value)
    if op is None:
        return False
    if op.kind == "ReduceSum":
        weighted = _below_flat(graph, op.inputs[0])
        columns = (graph.dims(v) for v in weighted.inputs) if weighted and weighted.kind == "Mul" else ()
        return any(dims and dims[-1] == 1 for dims in columns)
    makers = [graph.producer(v) for v in op.inputs] if op.kind == "Add" else [op]
    return op.kind in mixture.kinds or any(made is not None and made.kind in _SCATTERS for made in makers)


def _below_flat(graph: Graph, value: str) -> Op | None:
    """The op that makes a value, below what keeps elements and order."""
    op = graph.producer(value)
    while op is not None and op.kind in _FLAT:
        op = graph.producer(op.inputs[0])
    return op
