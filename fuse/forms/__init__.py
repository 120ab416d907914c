"""What an op is, whatever wrote or built it.

A native operator, a contrib operator already in the file and a class that a rule built answer
alike, so later rules ask forms and never kinds. Each function lists the kinds it reads (`.kinds`),
which is also how the engine finds them, and answers None for anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fuse.attributes import from_end
from fuse.forms.mixtures import mixture as mixture
from fuse.forms.recurrences import causal_conv as causal_conv
from fuse.forms.recurrences import delta as delta
from fuse.ir import Graph, Op
from fuse.match.plausible import run_time
from fuse.pattern import form_of
from fuse.placing import seen


class Norm(NamedTuple):
    """A norm over the last axis. norm: rms or layer. Operands are values, "" where absent."""

    norm: str
    x: str
    weight: str
    bias: str
    eps: float
    offset: float
    compute: str
    out: str
    op: Op


class Almost(NamedTuple):
    """A form that an op would be but for one fault of its own (an attribute, an operand)."""

    form: Any
    code: str
    at: str
    want: str
    got: str


class Product(NamedTuple):
    """x times a weight [in, out] (trans_weight: [out, in]) that is known when the model loads.

    plain: the weight is stored as it is used, not quantized.
    """

    x: str
    weight: str
    bias: str
    trans_x: int
    trans_weight: int
    alpha: float
    beta: float
    plain: bool
    out: str
    op: Op


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


class AddNorm(NamedTuple):
    """The norm of a sum; total is the value of the sum, "" where it is not written."""

    norm: str
    x: str
    residual: str
    weight: str
    bias: str
    add_bias: str
    eps: float
    offset: float
    compute: str
    out: str
    total: str
    op: Op


class Append(NamedTuple):
    """New rows joined to a cache along an axis counted from the end."""

    past: str
    new: str
    axis: int
    out: str
    op: Op


def _reads(*kinds: str) -> Callable[[Any], Any]:
    """Say which kinds a form reads. Of a placed op it tells what is computed beneath the placements."""

    def mark(function: Any) -> Any:
        def form(graph: Graph, op: Op) -> Any:
            if not op.placements:
                return function(graph, op)
            found = function(graph, seen(op))
            return op if isinstance(found, Op) else found and found._replace(op=op)

        return form_of(*kinds)(form)

    return mark


def _operand(op: Op, index: int) -> str:
    return op.inputs[index] if index < len(op.inputs) else ""


def _last_axis(graph: Graph, op: Op) -> bool:
    last: bool = from_end(graph, op, op.attrs.get("axis", -1)) == -1
    return last


def _norm(graph: Graph, op: Op) -> Norm | None:
    a = op.attrs
    if op.kind in ("rms_norm", "layer_norm"):
        kind = "rms" if op.kind == "rms_norm" else "layer"
        bias = _operand(op, 2) if kind == "layer" else ""
        return Norm(
            kind,
            op.inputs[0],
            _operand(op, 1),
            bias,
            a["eps"],
            a.get("offset", 0.0),
            a.get("compute", ""),
            op.outputs[0],
            op,
        )
    if sum(bool(out) for out in op.outputs) != 1 or not _last_axis(graph, op):
        return None
    layer = op.kind == "LayerNormalization"
    bias = _operand(op, 2) if layer else ""
    if not all(_lies_along_lanes(graph, op, value) for value in (_operand(op, 1), bias) if value):
        return None
    compute = "f32" if a.get("stash_type", 1) == 1 and graph.dtype(op.inputs[0]) in ("f16", "bf16") else ""
    eps = a.get("epsilon", 1e-5)
    return Norm(
        "layer" if layer else "rms", op.inputs[0], _operand(op, 1), bias, eps, 0.0, compute, op.outputs[0], op
    )


def _lies_along_lanes(graph: Graph, op: Op, value: str) -> bool:
    """Whether a weight or bias has a number for each lane: ONNX lets one of one number broadcast."""
    own, whole = graph.dims(value), graph.dims(op.inputs[0])
    if not own or not whole or not isinstance(own[-1], int) or not isinstance(whole[-1], int):
        return True
    return own[-1] == whole[-1]


def _almost_norm(graph: Graph, op: Op) -> Almost | None:
    """A native norm over more than the last axis, with a weight of one number, or one that gives its mean or
    deviation too."""
    if _last_axis(graph, op) and sum(map(bool, op.outputs)) > 1:
        found = _norm(graph, op._replace(outputs=op.outputs[:1]))
        got = f"{sum(map(bool, op.outputs))} results"
        return (
            None
            if found is None
            else Almost(found._replace(op=op), "arity", op.outputs[0], "one result", got)
        )
    if op.kind in ("rms_norm", "layer_norm"):
        return None
    odd = next((v for v in op.inputs[1:3] if v and not _lies_along_lanes(graph, op, v)), "")
    if odd and _last_axis(graph, op):
        found = _norm(graph, op._replace(inputs=tuple("" if v == odd else v for v in op.inputs)))
        got = str(graph.type(odd))
        want = "a number for each lane of the last axis"
        return None if found is None else Almost(found._replace(op=op), "operand", odd, want, got)
    if _last_axis(graph, op) or "axis" not in op.attrs:
        return None
    found = _norm(graph, op._replace(attrs={**op.attrs, "axis": -1}))
    if found is None:
        return None
    return Almost(found._replace(op=op), "attribute", op.outputs[0], "axis=-1", f"axis={op.attrs['axis']}")


norm = _reads(
    "rms_norm", "layer_norm", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"
)(_norm)
norm.almost = _almost_norm


def _product(graph: Graph, op: Op) -> Product | None:
    a = op.attrs
    if op.kind == "matmul_bias":
        if a.get("perm"):
            return None
        trans = a.get("trans_x", 0), a.get("trans_weight", 0), a.get("alpha", 1.0), a.get("beta", 1.0)
        x, weight, bias = op.inputs[:3]
        return Product(x, weight, bias, *trans, True, op.outputs[0], op)
    if op.kind == "quantized_matmul":
        trans = a.get("trans_x", 0), a.get("trans_weight", 0), a.get("alpha", 1.0), a.get("beta", 1.0)
        return Product(op.inputs[0], op.inputs[1], op.inputs[4], *trans, False, op.outputs[0], op)
    if op.kind == "com.microsoft.MatMulNBits":
        bias = _operand(op, 5)
        return Product(op.inputs[0], op.inputs[1], bias, 0, 1, 1.0, 1.0, False, op.outputs[0], op)
    weight = _operand(op, 1)
    dims = graph.dims(weight)
    if not graph.is_constant(weight) or dims is None or len(dims) != 2:
        return None
    plain = graph.base.constants.get(weight) is not None or not _dequantized(graph, weight)
    if op.kind == "Gemm":
        bias = _operand(op, 2)
        beta = a.get("beta", 1.0) if bias else 1.0
        trans = a.get("transA", 0), a.get("transB", 0), a.get("alpha", 1.0), beta
        return Product(op.inputs[0], weight, bias, *trans, plain, op.outputs[0], op)
    if op.kind == "Einsum":
        turned = _contracted(str(a.get("equation", "")))
        if turned is None or len(op.inputs) != 2:
            return None
        return Product(op.inputs[0], weight, "", 0, turned, 1.0, 1.0, plain, op.outputs[0], op)
    if op.kind == "com.microsoft.FusedMatMul":
        if a.get("transBatchA") or a.get("transBatchB"):
            return None
        trans = a.get("transA", 0), a.get("transB", 0), a.get("alpha", 1.0), 1.0
        return Product(op.inputs[0], weight, "", *trans, plain, op.outputs[0], op)
    return Product(op.inputs[0], weight, "", 0, 0, 1.0, 1.0, plain, op.outputs[0], op)


def _contracted(equation: str) -> int | None:
    """Whether rows times a matrix are written with the matrix transposed; None for any other equation."""
    left, _, out = equation.replace(" ", "").partition("->")
    x, _, weight = left.partition(",")
    rows, summed = x[:-1], x[-1:]
    if len(weight) != 2 or len(set(x)) != len(x) or not x.isalpha() or out[:-1] != rows:
        return None
    made = out[-1:]
    if not made.isalpha() or made in x:
        return None
    return {summed + made: 0, made + summed: 1}.get(weight)


def _dequantized(graph: Graph, weight: str) -> bool:
    """Whether a weight is decoded from a quantized constant where it is read."""
    for _ in range(4):
        op = graph.producer(weight)
        if op is None:
            return False
        if op.kind in ("DequantizeLinear", "Cast", "Mul"):
            return True
        weight = op.inputs[0]
    return False


def _almost_product(graph: Graph, op: Op) -> Almost | None:
    """A product whose weight is a graph input of two known dims, or can be overridden."""
    weight = _operand(op, 1)
    dims = graph.dims(weight)
    if op.kind not in ("MatMul", "Gemm") or graph.is_constant(weight) or weight in graph.base.producer:
        return None
    if dims is None or len(dims) != 2 or not all(isinstance(dim, int) for dim in dims):
        return None
    found = Product(op.inputs[0], weight, _operand(op, 2), 0, 0, 1.0, 1.0, True, op.outputs[0], op)
    return Almost(found, "operand", weight, "weight: a constant", run_time(graph, weight))


product = _reads(
    "MatMul",
    "Gemm",
    "Einsum",
    "com.microsoft.FusedMatMul",
    "com.microsoft.MatMulNBits",
    "matmul_bias",
    "quantized_matmul",
)(_product)
product.almost = _almost_product

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
        if _operand(op, 1):
            return None
        name = "fast_gelu"
    return Activation(name, alpha, op.inputs[0], op.outputs[0], op) if name else None


activation = _reads(
    *_ACTIVATIONS, "Gelu", "quick_gelu", "com.microsoft.QuickGelu", "Swish", "com.microsoft.FastGelu"
)(_activation)


def _biased_activation(graph: Graph, op: Op) -> BiasedActivation | None:
    name = "gelu" if op.kind == "com.microsoft.BiasGelu" else "fast_gelu"
    bias = _operand(op, 1)
    return BiasedActivation(name, 1.0, op.inputs[0], bias, op.outputs[0], op) if bias else None


biased_activation = _reads("com.microsoft.BiasGelu", "com.microsoft.FastGelu")(_biased_activation)


def _rope(graph: Graph, op: Op) -> Rope | None:
    a = op.attrs
    if op.kind == "rope":
        return Rope(op.inputs[0], op.inputs[1], op.inputs[2], _operand(op, 3), dict(a), op.outputs[0], op)
    contrib = op.kind == "com.microsoft.RotaryEmbedding"
    if contrib and (a.get("is_packed_batching") or a.get("scale", 1.0) != 1.0):
        return None
    x, cos, sin, ids = (
        (op.inputs[0], op.inputs[2], op.inputs[3], op.inputs[1])
        if contrib
        else (op.inputs[0], op.inputs[1], op.inputs[2], _operand(op, 3))
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


rope = _reads("rope", "RotaryEmbedding", "com.microsoft.RotaryEmbedding")(_rope)


def _add_norm(graph: Graph, op: Op) -> AddNorm | None:
    a = op.attrs
    if op.kind == "add_norm":
        if a.get("regrouped"):
            return None
        total = op.outputs[1] if len(op.outputs) > 1 else ""
        x, residual, weight, bias, add_bias = op.inputs[:5]
        return AddNorm(
            a.get("norm", "rms"),
            x,
            residual,
            weight,
            bias,
            add_bias,
            a["eps"],
            a.get("offset", 0.0),
            a.get("compute", ""),
            op.outputs[0],
            total,
            op,
        )
    if op.kind == "norm_reshape":
        return _flattened_add_norm(op)
    if any(op.outputs[1:3]):
        return None
    layer = op.kind == "com.microsoft.SkipLayerNormalization"
    bias, add_bias = (_operand(op, 3), _operand(op, 4)) if layer else ("", _operand(op, 3))
    total = op.outputs[3] if len(op.outputs) > 3 else ""
    eps = op.attrs.get("epsilon", 1e-12)
    x, residual, weight = op.inputs[:3]
    return AddNorm(
        "layer" if layer else "rms",
        x,
        residual,
        weight,
        bias,
        add_bias,
        eps,
        0.0,
        "",
        op.outputs[0],
        total,
        op,
    )


add_norm = _reads(
    "add_norm",
    "norm_reshape",
    "com.microsoft.SkipLayerNormalization",
    "com.microsoft.SkipSimplifiedLayerNormalization",
)(_add_norm)


def _flattened_add_norm(op: Op) -> AddNorm | None:
    """An add_norm whose result is flattened to rows; `total` keeps the axes of the sum."""
    a = op.attrs
    x, residual, weight, bias = op.inputs[:4]
    if not residual:
        return None
    total = op.outputs[1] if len(op.outputs) > 1 else ""
    numbers = a["eps"], a.get("offset", 0.0), a.get("compute", "")
    return AddNorm(a.get("norm", "rms"), x, residual, weight, bias, "", *numbers, op.outputs[0], total, op)


def _append(graph: Graph, op: Op) -> Append | None:
    return Append(op.inputs[0], op.inputs[1], op.attrs["axis"], op.outputs[0], op)


append = _reads("kv_append")(_append)


def _attention(graph: Graph, op: Op) -> Op | None:
    return op


attention = _reads(
    "attention",
    "attn_output_gate",
    "values_in_keys",
    "Attention",
    "com.microsoft.MultiHeadAttention",
    "com.microsoft.Attention",
    "com.microsoft.GroupQueryAttention",
)(_attention)
