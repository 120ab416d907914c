"""What carries a state along a sequence, whatever wrote or built it: short convolutions, delta rules."""

from __future__ import annotations

from typing import Any, NamedTuple

from fuse.ir import Graph, Op
from fuse.pattern import form_of


class CausalConv(NamedTuple):
    """A causal depthwise convolution; operands and attrs are those of the class `conv_state`."""

    x: str
    weight: str
    bias: str
    state: str
    x_gate: str
    gate: str
    silu: bool
    attrs: dict[str, Any]
    out: str
    last_state: str
    op: Op


class Delta(NamedTuple):
    """A recurrence of keys and values; operands and attrs are those of the class `gated_delta`."""

    q: str
    k: str
    v: str
    decay: str
    beta: str
    state: str
    attrs: dict[str, Any]
    out: str
    last_state: str
    op: Op


def _second(op: Op) -> str:
    return op.outputs[1] if len(op.outputs) > 1 else ""


#: Attributes of com.microsoft.CausalConvWithState that make it another function where they are set.
_CONV_EXTENSIONS = (
    "state_window", "state_update_capacity", "state_length", "input_channel_offset", "input_channels",
    "channels_last",
)  # fmt: skip


def _causal_conv(graph: Graph, op: Op) -> CausalConv | None:
    a = op.attrs
    if op.kind in ("conv_state", "conv_silu"):
        x, weight, bias, state, x_gate, gate = op.inputs[:6]
        attrs, silu = dict(a), op.kind == "conv_silu"
        return CausalConv(x, weight, bias, state, x_gate, gate, silu, attrs, op.outputs[0], _second(op), op)
    activation = a.get("activation", "none")
    if a.get("ndim", 1) != 1 or any(a.get(name) for name in _CONV_EXTENSIONS):
        return None
    if activation not in ("none", "silu", "swish") or a.get("state_channels_last", -1) == 1:
        return None
    x, weight, bias, state = (*op.inputs, "", "")[:4]
    attrs = {"dilation": a["dilation"]} if a.get("dilation", 1) != 1 else {}
    silu = activation != "none"
    return CausalConv(x, weight, bias, state, "", "", silu, attrs, op.outputs[0], _second(op), op)


causal_conv = form_of("conv_state", "conv_silu", "CausalConvWithState", "com.microsoft.CausalConvWithState")(
    _causal_conv
)


def _delta(graph: Graph, op: Op) -> Delta | None:
    if op.kind == "gated_delta":
        q, k, v, decay, beta, state = op.inputs[:6]
        return Delta(q, k, v, decay, beta, state, dict(op.attrs), op.outputs[0], _second(op), op)
    if op.kind == "com.microsoft.GatedDeltaNet":
        return _gated_delta_net(graph, op)
    return _linear_attention(graph, op)


def _width(graph: Graph, value: str, heads: int = 1) -> int | None:
    dims = graph.dims(value)
    if not dims or not isinstance(dims[-1], int) or dims[-1] % heads:
        return None
    return dims[-1] // heads


def _linear_attention(graph: Graph, op: Op) -> Delta | None:
    """LinearAttention of ai.onnx or com.microsoft: rows packed, the logarithm of the decay, keys first."""
    a, (q, k, v, state, decay, beta) = op.attrs, (*op.inputs, "", "", "")[:6]
    q_heads, heads = a.get("q_num_heads", 0), a.get("kv_num_heads", 0)
    width = _width(graph, q, q_heads) if q_heads else None
    if not heads or width is None or q_heads != heads or a.get("state_window"):
        return None
    attrs = _common(a, "b s hd", heads, width)
    if decay:
        attrs["decay_layout"] = "b s h" if _width(graph, decay) == heads else "b s hd"
    if beta:
        attrs["beta_layout"] = "b s h" if _width(graph, beta) == heads else "b s 1"
    return Delta(q, k, v, decay, beta, state, attrs, op.outputs[0], _second(op), op)


def _gated_delta_net(graph: Graph, op: Op) -> Delta | None:
    """GatedDeltaNet with batch and rows apart and its gates computed outside; values first in the state."""
    a, inputs = op.attrs, (*op.inputs, *("",) * 11)[:11]
    q, k, v, lengths, decay, beta, state = inputs[:7]
    dims, values = graph.dims(q), graph.dims(v) if v else None
    if not k or lengths or dims is None or len(dims) != 4 or values is None or a.get("qk_l2_norm"):
        return None
    if any(a.get(name, "none") != "none" for name in ("gate_activation", "beta_activation")):
        return None
    own, heads, width = dims[2], values[2], dims[3]
    if not isinstance(own, int) or not isinstance(heads, int) or not isinstance(width, int):
        return None
    attrs = _common(a, "b s h d", heads, width) | {"state_layout": "b h v k"}
    if own != heads:
        attrs["key_heads"] = own
    if decay:
        attrs["decay_layout"] = "b s h d" if len(graph.dims(decay) or ()) == 4 else "b s h"
    if beta:
        attrs["beta_layout"] = "b s h"
    return Delta(q, k, v, decay, beta, state, attrs, op.outputs[0], _second(op), op)


def _common(a: Any, layout: str, heads: int, width: int) -> dict[str, Any]:
    attrs: dict[str, Any] = {f"{name}_layout": layout for name in ("q", "k", "v", "out")}
    attrs |= {"heads": heads, "scale": float(a.get("scale", 0.0)) or width**-0.5}
    update = a.get("update_rule", "gated_delta")
    return attrs | ({"update": update} if update != "gated_delta" else {})


delta = form_of(
    "gated_delta", "LinearAttention", "com.microsoft.LinearAttention", "com.microsoft.GatedDeltaNet"
)(_delta)
