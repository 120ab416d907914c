"""Primitive operators: `run(call, operands)`, by numpy here or by onnx.reference.

Own implementations stand where onnx's are slow, read a version wrongly (Softmax before 13), or do
not exist (com.microsoft). The same implementation serves a lifted graph and the parts of a fused op,
so the two agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fuse.types import FuseError
from reference.ops import standard
from reference.ops.attention import ATTENTION
from reference.ops.call import Array, Call, Implementation, Value, numpy_dtype, short_dtype
from reference.ops.contrib import CONTRIB
from reference.ops.elementwise import ELEMENTWISE
from reference.ops.norms import NORMS
from reference.ops.products import PRODUCTS, average_pool, max_pool
from reference.ops.quantized import QUANTIZED
from reference.ops.recurrent import RECURRENT
from reference.ops.reducing import REDUCING
from reference.ops.shaping import SHAPING

#: Operators implemented here, by kind.
OWN: Mapping[str, Implementation] = {
    **ELEMENTWISE, **SHAPING, **REDUCING, **PRODUCTS, **NORMS, **ATTENTION, **CONTRIB, **QUANTIZED,
    **RECURRENT,
}  # fmt: skip
#: Operators implemented here only for one output; onnx.reference runs the rest.
OWN_ONE_OUTPUT: Mapping[str, Implementation] = {"MaxPool": max_pool, "AveragePool": average_pool}


def implementation(call: Call) -> Implementation | None:
    """The own implementation of a call, if there is one."""
    own = OWN.get(call.kind)
    if own is None and sum(call.outputs) == 1:
        own = OWN_ONE_OUTPUT.get(call.kind)
    return own


def run(call: Call, operands: Sequence[Value]) -> tuple[Value, ...]:
    """The values of one operator, one for each output.

    Raises FuseError for an operator without implementation, or where the operands do not fit it.
    """
    own = implementation(call)
    try:
        if own is None:
            return standard.run(call, operands)
        result = own(call, *operands)
    except (ValueError, TypeError, IndexError, KeyError, NotImplementedError, RuntimeError) as error:
        shapes = ", ".join(_described(value) for value in operands)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FuseError(f"{call.kind} does not run on {shapes}: {reason}") from error
    return result if isinstance(result, tuple) else (result,)


def _described(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return f"{short_dtype(value)}{list(value.shape)}"
    return "-" if value is None else type(value).__name__


__all__ = [
    "OWN",
    "Array",
    "Call",
    "Implementation",
    "Value",
    "implementation",
    "numpy_dtype",
    "run",
    "short_dtype",
]
