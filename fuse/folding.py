"""What lifting and binding do alike: known contents become constants, unread ops go."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fuse.ir import Content, Graph, Op, Tensor, captures
from fuse.tables import RANDOM
from fuse.types import BITS, UNKNOWN, Expr, Type

#: Element type -> numpy's name of it; the others are in ml_dtypes.
_NUMPY = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bool": "bool", "i8": "int8", "u8": "uint8",
    "i16": "int16", "u16": "uint16", "i32": "int32", "u32": "uint32", "i64": "int64", "u64": "uint64",
}  # fmt: skip
_ML_DTYPES = {"bf16": "bfloat16", "i4": "int4", "u4": "uint4", "i2": "int2", "u2": "uint2"}


def _numpy_type(dtype: str) -> np.dtype | None:
    if dtype in _NUMPY:
        return np.dtype(_NUMPY[dtype])
    if dtype in _ML_DTYPES:
        import ml_dtypes

        found: np.dtype = np.dtype(getattr(ml_dtypes, _ML_DTYPES[dtype]))
        return found
    return None


def constant_of(name: str, type: Type, content: Content | None) -> Tensor | None:
    """The constant with these elements, or None where an element, a dim or the type is not known."""
    if content is None or type.dims is None:
        return None
    dims = tuple(dim for dim in type.dims if isinstance(dim, int))
    if len(dims) < len(type.dims) or math.prod(dims) != len(content):
        return None
    if any(element is None or isinstance(element, Expr) for element in content):
        return None
    numpy_type = _numpy_type(type.dtype)
    if numpy_type is None:
        return None
    return Tensor(
        name,
        type.dtype,
        dims,
        (len(content) * BITS[type.dtype] + 7) // 8,
        lambda: np.array(content, numpy_type).reshape(dims),
    )


def fold(op: Op, types: Mapping[str, Type], contents: Mapping[str, Content]) -> dict[str, Tensor] | None:
    """The constants that an op's results are, or None where one of them is not known whole."""
    found: dict[str, Tensor] = {}
    for value in op.outputs:
        if not value:
            continue
        content = contents.get(value)
        tensor = None if content is None else constant_of(value, types.get(value, UNKNOWN), content)
        if tensor is None:
            return None
        found[value] = tensor
    return None if op.kind in RANDOM or op.bodies else found


def domain_opset(kind: str, opsets: Mapping[str, int]) -> int:
    """The version of the operator set that an op is of; 1 for a domain that is not imported."""
    return opsets.get(kind.rpartition(".")[0], 1)


def live(ops: Sequence[Op], outputs: Sequence[str]) -> list[int]:
    """The places of the ops that an output depends on, also through a body, in order."""
    wanted = set(outputs)
    wanted.discard("")
    kept: list[int] = []
    for at in range(len(ops) - 1, -1, -1):
        op = ops[at]
        if wanted.isdisjoint(op.outputs):
            continue
        kept.append(at)
        wanted.update(op.inputs)
        for value in op.attrs.values():
            if isinstance(value, Graph):
                wanted.update(captures(value))
        wanted.discard("")
    kept.reverse()
    return kept
