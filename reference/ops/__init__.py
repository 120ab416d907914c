"""Primitive operators: `run(call, operands)`, by numpy here or by onnx.reference.

Own implementations stand where onnx's are slow, read a version wrongly (Softmax before 13), or do
not exist (com.microsoft). The same implementation serves a lifted graph and the parts of a fused op,
so the two agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fuse.types import DTYPE_NUMBERS, FuseError
from reference.ops import standard
from reference.ops.attention import ATTENTION
from reference.ops.call import Array, Call, Implementation, Value, numpy_dtype, short_dtype
from reference.ops.contrib import CONTRIB
from reference.ops.elementwise import ELEMENTWISE, cast
from reference.ops.mixtures import MIXTURES
from reference.ops.norms import NORMS, batch_norm
from reference.ops.products import PRODUCTS, average_pool, max_pool
from reference.ops.quantized import QUANTIZED
from reference.ops.quantized_contrib import QUANTIZED_CONTRIB
from reference.ops.recurrent import RECURRENT
from reference.ops.reducing import REDUCING
from reference.ops.shaping import SHAPING

#: Operators implemented here, by kind.
OWN: Mapping[str, Implementation] = {
    **ELEMENTWISE, **SHAPING, **REDUCING, **PRODUCTS, **NORMS, **ATTENTION, **CONTRIB, **QUANTIZED,
    **QUANTIZED_CONTRIB, **RECURRENT, **MIXTURES,
}  # fmt: skip
#: Operators whose own implementation is not for every call: it, and whether a call is onnx.reference's.
OWN_IN_PART: Mapping[str, tuple[Implementation, Callable[[Call], bool]]] = {
    "MaxPool": (max_pool, lambda call: call.wants(1)),
    "AveragePool": (average_pool, lambda call: False),
    "Cast": (cast, lambda call: call.get("to") == DTYPE_NUMBERS["f8e8m0"]),
    "BatchNormalization": (batch_norm, lambda call: bool(call.get("training_mode", 0))),
}


def implementation(call: Call) -> Implementation | None:
    """The own implementation of a call, if there is one."""
    part = OWN_IN_PART.get(call.kind)
    if part is not None:
        return None if part[1](call) else part[0]
    return OWN.get(call.kind)


def run(call: Call, operands: Sequence[Value]) -> tuple[Value, ...]:
    """The values of one operator, one for each output.

    Raises FuseError for an operator without implementation, or where the operands do not fit it.
    """
    own = implementation(call)
    try:
        if own is None:
            return standard.run(call, operands)
        result = own(call, *operands)
    except (
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        NotImplementedError,
        RuntimeError,
        OverflowError,
        ImportError,
    ) as error:
        shapes = ", ".join(_described(value) for value in operands)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FuseError(f"{call.kind} does not run on {shapes}: {reason}") from error
    return result[: len(call.outputs)] if isinstance(result, tuple) else (result,)


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
