"""What an op is, whatever wrote or built it.

A native operator, a contrib operator already in the file and a class that a rule built answer
alike, so later rules ask forms and never kinds. Each function lists the kinds it reads (`.kinds`),
which is also how the engine finds them, and answers None for anything else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fuse.forms.mixtures import mixture as mixture
from fuse.forms.normalizations import AddNorm as AddNorm
from fuse.forms.normalizations import Norm as Norm
from fuse.forms.normalizations import add_norm as add_norm
from fuse.forms.normalizations import norm as norm
from fuse.forms.products import Product as Product
from fuse.forms.products import product as product
from fuse.forms.reading import Almost as Almost
from fuse.forms.reading import operand_of, reads
from fuse.forms.recurrences import causal_conv as causal_conv
from fuse.forms.recurrences import delta as delta
from fuse.ir import Graph, Op


class Activation(NamedTuple):
    name: str
    alpha: float
    x: str
    out: str
    op: Op


class BiasedActivation(NamedTuple):
    """An activation of x plus a row of bias, as one operator."""

    name: str
    alpha: float
    x: str
    bias: str
    out: str
    op: Op


class Rope(NamedTuple):
    """A rotation of pairs of lanes; attrs are those of the class `rope`."""

    x: str
    cos: str
    sin: str
    position_ids: str
    attrs: dict[str, Any]
    out: str
    op: Op


class Append(NamedTuple):
    """New rows joined to a cache along an axis counted from the end."""

    past: str
    new: str
    axis: int
    out: str
    op: Op


_ACTIVATIONS = {
    "gelu": ("gelu", 1.0), "fast_gelu": ("fast_gelu", 1.0), "silu": ("silu", 1.0), "Relu": ("relu", 1.0),
    "Sigmoid": ("sigmoid", 1.0), "Tanh": ("tanh", 1.0), "com.microsoft.Gelu": ("gelu", 1.0),
    "HardSwish": ("hard_swish", 1.0), "Mish": ("mish", 1.0), "hard_swish": ("hard_swish", 1.0),
    "mish": ("mish", 1.0),
}  # fmt: skip


def _activation(graph: Graph, op: Op) -> Activation | None:
    name, alpha = _ACTIVATIONS.get(op.kind, ("", 1.0))
    if op.kind == "Gelu":
        name = "fast_gelu" if op.attrs.get("approximate") == "tanh" else "gelu"
    elif op.kind in ("quick_gelu", "com.microsoft.QuickGelu", "Swish"):
        alpha = float(op.attrs.get("alpha", 1.702 if op.kind.endswith("QuickGelu") else 1.0))
        name = "silu" if abs(alpha - 1) < 1e-6 else "quick_gelu"
    elif op.kind == "com.microsoft.FastGelu":
        if operand_of(op, 1):
            return None
        name = "fast_gelu"
    return Activation(name, alpha, op.inputs[0], op.outputs[0], op) if name else None


activation = reads(
    *_ACTIVATIONS, "Gelu", "quick_gelu", "com.microsoft.QuickGelu", "Swish", "com.microsoft.FastGelu"
)(_activation)


def _biased_activation(graph: Graph, op: Op) -> BiasedActivation | None:
    name = "gelu" if op.kind == "com.microsoft.BiasGelu" else "fast_gelu"
    bias = operand_of(op, 1)
    return BiasedActivation(name, 1.0, op.inputs[0], bias, op.outputs[0], op) if bias else None


biased_activation = reads("com.microsoft.BiasGelu", "com.microsoft.FastGelu")(_biased_activation)


def _rope(graph: Graph, op: Op) -> Rope | None:
    a = op.attrs
    if op.kind == "rope":
        return Rope(op.inputs[0], op.inputs[1], op.inputs[2], operand_of(op, 3), dict(a), op.outputs[0], op)
    contrib = op.kind == "com.microsoft.RotaryEmbedding"
    if contrib and (a.get("is_packed_batching") or a.get("scale", 1.0) != 1.0):
        return None
    x, cos, sin, ids = (
        (op.inputs[0], op.inputs[2], op.inputs[3], op.inputs[1])
        if contrib
        else (op.inputs[0], op.inputs[1], op.inputs[2], operand_of(op, 3))
    )
    dims = graph.dims(x)
    if dims is None or (contrib and graph.dims(ids) is not None and len(graph.dims(ids) or ()) != 2):
        return None
    rank3 = len(dims) == 3
    attrs: dict[str, Any] = {"form": "interleaved" if a.get("interleaved") else "half", "tables": "half"}
    if a.get("rotary_embedding_dim"):
        attrs["rotary_dim"] = a["rotary_embedding_dim"]
    if graph.is_constant(cos):
        attrs["tables_from"] = "gathered" if ids else "table"
    if ids:
        attrs["position_ids"] = True
    if rank3:
        if not a.get("num_heads"):
            return None
        attrs["rope_heads"] = a["num_heads"]
        attrs["rope_unsqueeze"] = 2
    else:
        attrs["rope_unsqueeze"] = 1
    return Rope(x, cos, sin, ids, attrs, op.outputs[0], op)


rope = reads("rope", "RotaryEmbedding", "com.microsoft.RotaryEmbedding")(_rope)


def _append(graph: Graph, op: Op) -> Append | None:
    return Append(op.inputs[0], op.inputs[1], op.attrs["axis"], op.outputs[0], op)


append = reads("kv_append")(_append)


def _attention(graph: Graph, op: Op) -> Op | None:
    return op


attention = reads(
    "attention",
    "attn_output_gate",
    "values_in_keys",
    "Attention",
    "com.microsoft.MultiHeadAttention",
    "com.microsoft.Attention",
    "com.microsoft.GroupQueryAttention",
)(_attention)
