"""How values of f16 and bf16 travel between operators: carried in f32 until the file casts them or ends.

Runtimes without arithmetic of their own for a narrow type compute in f32 and round where a value is
stored, as compilers that keep excess precision do; rounding after every operator is the noisier
reading of the same file. From the size on where the type has no fraction left a value is rounded at
once, so that an overflow and a mask that swallows a score show as they do in the type itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from reference.ops.call import NUMPY, Array, Value

_ARITHMETIC = frozenset({
    "Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Exp", "Log", "Erf", "Reciprocal", "Sigmoid", "Tanh",
    "Softplus", "Gelu", "Neg", "Abs", "Sin", "Cos", "Mean", "Sum", "ReduceSum", "ReduceMean",
    "ReduceSumSquare", "ReduceL2", "Softmax", "LogSoftmax", "MatMul", "Gemm", "Relu", "Clip", "Max", "Min",
    "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "Conv", "Einsum",
})  # fmt: skip
_MOVING = frozenset({
    "Reshape", "Transpose", "Slice", "Split", "Concat", "Where", "Expand", "Squeeze", "Unsqueeze", "Flatten",
    "Gather", "GatherElements", "GatherND", "ScatterND", "ScatterElements", "Pad", "Tile", "Trilu",
})  # fmt: skip
#: Operators that read and give carried values. All others, Cast first, see values of the type itself.
CARRYING = _ARITHMETIC | _MOVING
#: Narrow type -> the size from which on its values are whole numbers.
WHOLE: Mapping[np.dtype[Any], float] = {NUMPY["f16"]: 2.0**11, NUMPY["bf16"]: 2.0**8}
#: The same types by name.
NARROW = frozenset({"f16", "bf16"})


class Carried(NamedTuple):
    """A value of a narrow type, in f32."""

    array: Array
    dtype: np.dtype[Any]


def settled(value: Value) -> Value:
    """The value in its own type."""
    return value.array.astype(value.dtype) if isinstance(value, Carried) else value


def narrow_type(operands: Sequence[Value]) -> np.dtype[Any] | None:
    """The one narrow type that all float operands have; None where there is none, or a mixture."""
    kinds = {one.dtype for one in operands if not isinstance(one, list | None) and one.dtype.kind in "fV"}
    kind = kinds.pop() if len(kinds) == 1 else None
    return kind if kind in WHOLE else None


def widened(value: Value) -> Value:
    """A float operand of a narrow type in f32; any other as it is."""
    if isinstance(value, Carried):
        return value.array
    return value.astype(np.float32) if value is not None and value.dtype in WHOLE else value


def results_carried(kind: str, results: tuple[Value, ...], dtype: np.dtype[Any]) -> tuple[Value, ...]:
    """The results of an operator of CARRYING that ran on widened operands: what norms give beside
    their first result is f32 anyway."""
    if kind in _MOVING:
        return tuple(carried(result, dtype) for result in results)
    return (carried(results[0], dtype), *results[1:])


def carried(array: Array, dtype: np.dtype[Any]) -> Carried:
    """A result in f32, rounded to its narrow type where it is large."""
    large = np.abs(array) >= WHOLE[dtype]
    if large.any():
        array = np.where(large, array.astype(dtype).astype(array.dtype), array)
    return Carried(array, dtype)
