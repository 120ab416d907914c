"""Attributes and declared types of the file as python values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from sys import intern
from typing import Any

import onnx

from fuse.lifting.tensors import Weights, make_sparse, make_tensor
from fuse.types import DTYPES, UNKNOWN, Dim, FuseError, Type, parse_dim, symbol

_KIND = onnx.AttributeProto
_TENSOR, _GRAPH = int(_KIND.TENSOR), int(_KIND.GRAPH)
#: dim_param texts with which exporters say "unknown": they name nothing.
_NO_NAMES = frozenset({"", "?", "-1", "None", "*"})


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


_READ: dict[int, Callable[[Any], Any]] = {
    _KIND.INT: attrgetter("i"),
    _KIND.FLOAT: attrgetter("f"),
    _KIND.STRING: lambda a: _text(a.s),
    _KIND.INTS: lambda a: tuple(a.ints[:]),
    _KIND.FLOATS: lambda a: tuple(a.floats[:]),
    _KIND.STRINGS: lambda a: tuple(map(_text, a.strings)),
    _KIND.TYPE_PROTO: lambda a: type_text(a.tp),
    _KIND.TYPE_PROTOS: lambda a: tuple(map(type_text, a.type_protos)),
}
#: Where the type of an attribute is not set, the field that is tells it (files of IR version 1).
_FIELDS = {"i": _KIND.INT, "f": _KIND.FLOAT, "s": _KIND.STRING, "t": _KIND.TENSOR, "g": _KIND.GRAPH}
_LISTS = {"ints": _KIND.INTS, "floats": _KIND.FLOATS, "strings": _KIND.STRINGS}


def read_attributes(
    attributes: Iterable[Any], path: str, weights: Weights
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Attributes by name, and which of them are graphs, left as GraphProto.

    path: of the node's first output, to name its tensors.
    """
    values: dict[str, Any] = {}
    graphs: tuple[str, ...] = ()
    for attribute in attributes:
        name, kind = intern(attribute.name), attribute.type or _kind_of(attribute)
        if name in values:
            raise FuseError(f"attribute {name!r} of {path!r} is given twice")
        read = _READ.get(kind)
        if read is not None:
            values[name] = read(attribute)
        elif kind == _TENSOR:
            values[name] = make_tensor(attribute.t, path, weights)
        elif kind == _GRAPH:
            values[name] = attribute.g
            graphs += (name,)
        elif kind == _KIND.SPARSE_TENSOR:
            values[name] = make_sparse(attribute.sparse_tensor, path, weights)
        elif kind == _KIND.TENSORS:
            values[name] = tuple(make_tensor(tensor, path, weights) for tensor in attribute.tensors)
        elif attribute.ref_attr_name:
            raise FuseError(f"attribute {name!r} of {path!r} refers to one of a function, outside any")
        else:
            raise FuseError(f"attribute {name!r} of {path!r} is of a kind that no ONNX operator has")
    return values, graphs


def _kind_of(attribute: Any) -> int:
    for field, kind in _FIELDS.items():
        if attribute.HasField(field):
            return int(kind)
    return next((int(kind) for field, kind in _LISTS.items() if len(getattr(attribute, field))), 0)


def type_text(proto: onnx.TypeProto) -> str:
    """A declared type in words: `tensor(f32)`, `seq(tensor(i64))`, `optional(...)`."""
    which = proto.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        inner = DTYPES.get(getattr(proto, which).elem_type, "?")
        return f"{which.removesuffix('_type')}({inner})"
    if which in ("sequence_type", "optional_type"):
        short = {"sequence_type": "seq", "optional_type": "optional"}[which]
        return f"{short}({type_text(getattr(proto, which).elem_type)})"
    if which == "map_type":
        key, value = DTYPES.get(proto.map_type.key_type, "?"), type_text(proto.map_type.value_type)
        return f"map({key}, {value})"
    return "?"


def declared(value: onnx.ValueInfoProto, path: str, named: bool = True) -> Type:
    """The declared type of a value; UNKNOWN for what is no tensor.

    A dimension without a name becomes the symbol `?path.axis`. named=False: names are not trusted,
    every symbolic dimension becomes one of its own.
    """
    if value.type.WhichOneof("value") != "tensor_type":
        return UNKNOWN
    tensor = value.type.tensor_type
    dtype = DTYPES.get(tensor.elem_type, "")
    if not tensor.HasField("shape"):
        return Type(dtype, None)
    dims: list[Dim] = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        elif named and (name := dim.dim_param.strip()) not in _NO_NAMES:
            dims.append(parse_dim(name))
        else:
            dims.append(symbol(f"?{path}.{axis}"))
    return Type(dtype, tuple(dims))
