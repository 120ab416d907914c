"""The text form of a graph: one op a line, the parts of a fused op under it, bodies indented.

    s = Add(x, r)
    y = rms_norm(s, g) {eps=1e-05}
      | p = Pow(s, two)
      | m = ReduceMean(p, axes) {keepdims=1}

What is read or written in place is shown as the part of the wider value that it is:

    q = rope(qkv[0:64 of 192], cos, sin)
    k = rope(x, cos, sin) -> cache[rows P:P + S of P + S]
    g, u = Split(both) is both[0:64 of 128] is both[64:128 of 128]

The same graph gives the same text. Values of a body are shown without the path of its owner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import numpy as np

from fuse.ir import Graph, Op, Tensor
from fuse.placement import Read
from fuse.types import BITS, Expr, Type

_INDENT = "  "
_PART = "  | "


def text(graph: Graph, types: bool = False) -> str:
    """The graph in words, a line an op, without a newline at the end.

    types: write the type of every value where it is made (`y: f32[B,8] = Relu(x)`), and first of
    all the graph's inputs, one a line.
    """
    lines = [_value(name, graph, types) for name in graph.inputs] if types else []
    lines += _graph(graph, types)
    return "\n".join(lines)


def op_text(op: Op, graph: Graph, types: bool = False) -> str:
    """One op in words, with its parts and bodies, as it stands in the graph."""
    return "\n".join(_op(op, graph, types))


def _graph(graph: Graph, types: bool) -> Iterator[str]:
    for op in graph.slots:
        if op is not None:
            yield from _op(op, graph, types)


def _op(op: Op, graph: Graph, types: bool) -> Iterator[str]:
    results = ", ".join(_value(value, graph, types) for value in op.outputs)
    reads = {placement.operand: placement for placement in op.placements if isinstance(placement, Read)}
    short = partial(_short, graph=graph)
    operands = ", ".join(
        reads[number].shown(short) if number in reads else short(value)
        for number, value in enumerate(op.inputs)
    )
    line = f"{results} = {op.kind}({operands})"
    attrs = {key: value for key, value in op.attrs.items() if not isinstance(value, Graph)}
    if attrs:
        line += f" {{{_attributes(attrs)}}}"
    places = [placement for placement in op.placements if not isinstance(placement, Read)]
    yield line + "".join(f" {placement.shown(short)}" for placement in places)
    for part in op.parts:
        for inner in _op(part, graph, types):
            yield _PART + inner
    for key, body in op.bodies.items():
        inputs = ", ".join(_value(value, body, types) for value in body.inputs)
        outputs = ", ".join(_short(value, body) for value in body.outputs)
        yield f"{_INDENT}{key}({inputs}) -> {outputs}:"
        for inner in _graph(body, types):
            yield _INDENT * 2 + inner


def _short(path: str, graph: Graph) -> str:
    """A value's name inside its own graph; "_" for an absent one."""
    return path.removeprefix(graph.base.prefix) or "_"


def _value(path: str, graph: Graph, types: bool) -> str:
    name = _short(path, graph)
    return f"{name}: {graph.type(path)}" if types and path else name


def _attributes(attrs: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={_attribute(attrs[key])}" for key in sorted(attrs))


def _attribute(value: object) -> str:
    if isinstance(value, float):
        return short_float(value)
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, Mapping):
        return f"{{{_attributes(value)}}}"
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return f"[{','.join(map(_attribute, value))}]"
    if isinstance(value, str):
        return (
            value if value and value.isprintable() and not set(value) & set(" ,={}[]()\"'") else repr(value)
        )
    return str(value) if isinstance(value, (int, Expr)) else repr(value)


def _tensor(value: Tensor) -> str:
    """The type, and the number if there is only one."""
    shown = str(Type(value.dtype, value.dims))
    if value.dtype not in BITS or math.prod(value.dims) != 1:
        return shown
    return f"{shown}({_attribute(value.array().item())})"


def short_float(value: float) -> str:
    """The shortest text that reads back as this number; of a number that f32 holds, as an f32."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return str(single) if float(single) == value else repr(value)
