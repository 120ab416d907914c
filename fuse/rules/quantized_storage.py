"""How a product with a weight of few bits stores it: its operators by role, read off a match."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fuse.forms.products import adds_a_row
from fuse.ir import Graph, Op
from fuse.match import Match
from fuse.match.plausible import weight_like
from fuse.pattern import form_of
from fuse.types import BITS

DECODERS = ("DequantizeLinear", "com.microsoft.DequantizeLinear")
ENCODERS = ("QuantizeLinear", "com.microsoft.QuantizeLinear")


class Roles(NamedTuple):
    """An operator of a quantized product, its operands by role ("" where absent)."""

    x: str
    weight: str
    codes: str
    scales: str
    zeros: str
    bias: str
    x_scale: str
    x_zero: str
    order: str
    y_scale: str
    y_zero: str
    out: str
    op: Op


DECODED = dict.fromkeys(DECODERS, ("codes", "scales", "zeros"))
MULTIPLIED = dict.fromkeys(("MatMul", "Gemm", "com.microsoft.FusedMatMul"), ("x", "weight", "bias"))
WHOLE = {"MatMulInteger": ("x", "codes", "x_zero", "zeros")}
CONTRIB = {
    "com.microsoft.MatMulNBits": ("x", "codes", "scales", "zeros", "order", "bias"),
    "com.microsoft.MatMulIntegerToFloat": ("x", "codes", "x_scale", "scales", "x_zero", "zeros", "bias"),
    "com.microsoft.DynamicQuantizeMatMul": ("x", "codes", "scales", "zeros", "bias"),
    "com.microsoft.MatMulBnb4": ("x", "codes", "scales"),
    "QLinearMatMul": ("x", "x_scale", "x_zero", "codes", "scales", "zeros", "y_scale", "y_zero"),
    "com.microsoft.QGemm": (
        "x", "x_scale", "x_zero", "codes", "scales", "zeros", "bias", "y_scale", "y_zero",
    ),
}  # fmt: skip


def roles(kinds: Mapping[str, tuple[str, ...]]) -> Callable[[Graph, Op], Roles | None]:
    """A form of operators whose operands have these roles, in order."""

    @form_of(*kinds)
    def read(graph: Graph, op: Op) -> Roles | None:
        given = dict(zip(kinds[op.kind], op.inputs, strict=False))
        found = Roles(**{name: given.get(name, "") for name in Roles._fields[:-2]}, out=op.outputs[0], op=op)
        # A value of the run is an activation: no weight, nor nearly one unless the caller passes it in.
        rank = len(graph.dims(found.codes) or ())
        passed_in = weight_like(graph, found.codes, max(rank, 2))
        activation = found.codes and not _known(graph, found.codes) and not passed_in
        row = not found.bias or (graph.is_constant(found.bias) and adds_a_row(graph, op))
        gemm = op.kind == "Gemm" and not row
        return None if activation or gemm else found

    return read


def _known(graph: Graph, value: str) -> bool:
    return graph.is_constant(value) or value in graph.base.overridable


@dataclass(frozen=True)
class Stored:
    """A product with a quantized weight as read off a match.

    axis: of the codes, along which the scales run; None for one scale. block: codes of one scale along
    it, 0: each index has its own. parts: operators taken in beside the match.
    """

    x: str
    codes: str
    scales: str
    zeros: str = ""
    bias: str = ""
    x_scale: str = ""
    x_zero: str = ""
    order: str = ""
    bits: int = 0
    storage: str = "values"
    axis: int | None = None
    block: int = 0
    turned: int = 0
    activation: str = "none"
    x_codes: str = ""
    y_scale: str = ""
    y_zero: str = ""
    y_codes: str = ""
    attrs: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Op, ...] = ()


_BOUND = ("codes", "scales", "zeros", "bias", "x_scale")


def read(m: Match) -> Stored:
    """What a match of any spelling holds; x as the product reads it."""
    graph = m.graph
    if m.get("contrib"):
        return _read_contrib(graph, m["contrib"], m.get("bias"))
    product: Roles = m.get("whole") or m["multiplied"]
    names = {name: m.get(name) for name in _BOUND}
    decoder = m.get("decoded") or product
    names["zeros"] = names["zeros"] or decoder.zeros
    names["bias"] = names["bias"] or product.bias
    bits = BITS.get(graph.dtype(m["codes"]), 0)
    stored = Stored(**names, x=product.x, x_zero=product.x_zero, bits=bits)
    op = product.op
    if op.kind == "MatMulInteger":
        axis = 1 if size_of(graph, stored.scales) != 1 else None
        return replace(stored, axis=axis, activation="static")
    turned = int(op.attrs.get("transB", 0)) + len(m.taken("turned"))
    attrs = {
        "trans_x": int(op.attrs.get("transA", 0)),
        "alpha": float(op.attrs.get("alpha", 1.0)),
        "beta": float(op.attrs.get("beta", 1.0)) if op.kind == "Gemm" and product.bias else 1.0,
    }
    axis, block = _scale_axis(m)
    return replace(stored, axis=axis, block=block, turned=turned % 2, attrs=attrs)


def _scale_axis(m: Match) -> tuple[int | None, int]:
    """The axis of the codes along which the scales run, and the length of a block."""
    graph, dims = m.graph, m.graph.dims(m["codes"])
    decoder = m["decoded"].op if m.get("decoded") else None
    own = graph.dims(m["scales"])
    if own is None or not dims or (decoder is not None and size_of(graph, m["scales"]) == 1):
        return None, 0
    if decoder is not None:
        axis = int(decoder.attrs.get("axis", 1))
        return axis % len(dims), int(decoder.attrs.get("block_size", 0))
    wide = [len(dims) - len(own) + at for at, dim in enumerate(own) if dim != 1]
    return (wide[0] if len(wide) == 1 else -1, 0) if wide else (None, 0)


def size_of(graph: Graph, value: str) -> object:
    """The number of elements of a small constant, as far as it is known to be one."""
    dims = graph.dims(value)
    return 1 if dims is not None and all(dim == 1 for dim in dims) else dims


def _read_contrib(graph: Graph, found: Roles, bias: str) -> Stored:
    op, a = found.op, found.op.attrs
    names = {name: getattr(found, name) for name in _CONTRIB_ROLES}
    stored = Stored(**names, bias=found.bias or bias)
    if op.kind == "com.microsoft.MatMulNBits":
        bits, block = int(a.get("bits", 4)), int(a["block_size"])
        return replace(stored, bits=bits, storage="blocks", axis=1, block=block, turned=1)
    if op.kind == "com.microsoft.MatMulBnb4":
        table, block = "nf4" if a.get("quant_type") else "fp4", int(a["block_size"])
        turned = int(a.get("transB", 1))
        return replace(stored, bits=4, storage=table, axis=turned, block=block, turned=turned)
    activation = "dynamic" if op.kind == "com.microsoft.DynamicQuantizeMatMul" else "static"
    axis = None if size_of(graph, stored.scales) == 1 else 1
    if op.kind == "com.microsoft.QGemm":
        turned = int(a.get("transB", 0))
        attrs = {"trans_x": int(a.get("transA", 0)), "alpha": float(a.get("alpha", 1.0))}
        stored = replace(stored, turned=turned, attrs=attrs)
        axis = None if axis is None else 1 - turned
    if stored.y_scale:
        stored = replace(stored, y_codes=graph.dtype(found.out))
    return replace(stored, bits=BITS.get(graph.dtype(stored.codes), 0), axis=axis, activation=activation)


_CONTRIB_ROLES = ("x", "codes", "scales", "zeros", "x_scale", "x_zero", "order", "y_scale", "y_zero")
#: How a weight of packed bytes is stored.
PACKED = ("blocks", "fp4", "nf4")
