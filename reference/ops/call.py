"""What an operator's implementation is given, and the element types of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from fuse.ir import Tensor
from fuse.types import DTYPE_NUMBERS, DTYPES, FuseError

Array = np.ndarray
#: A value while a graph runs: an array, or a list for a sequence, or None for an absent operand.
Value = Any

#: Short name of an element type -> the numpy type that holds it.
NUMPY: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
        "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
        "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
        "bool": np.bool_, "str": np.object_, "c64": np.complex64, "c128": np.complex128,
        "f8e4m3fn": ml_dtypes.float8_e4m3fn, "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
        "f8e5m2": ml_dtypes.float8_e5m2, "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
        "u4": ml_dtypes.uint4, "i4": ml_dtypes.int4, "u2": ml_dtypes.uint2, "i2": ml_dtypes.int2,
        "f4e2m1": ml_dtypes.float4_e2m1fn, "f8e8m0": ml_dtypes.float8_e8m0fnu,
    }.items()
}  # fmt: skip
SHORT: Mapping[np.dtype[Any], str] = {kind: name for name, kind in NUMPY.items()}
#: Float types narrower than f32: sums over them are carried in f32.
NARROW = frozenset(NUMPY[name] for name in ("f16", "bf16"))


class Call(NamedTuple):
    """One operator as its implementation sees it.

    opset: version of the operator's domain. outputs: for each output, whether anybody named it.
    """

    kind: str
    attrs: Mapping[str, Any]
    opset: int
    outputs: tuple[bool, ...]

    def get(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)

    def wants(self, number: int) -> bool:
        return number < len(self.outputs) and self.outputs[number]


#: Implementations take the call and the operands and return one value, or a tuple of them.
Implementation = Callable[..., Any]


def short_dtype(array: Array) -> str:
    """The short name of an array's element type ("f32"); strings of any width are "str"."""
    if array.dtype.kind in "USO":
        return "str"
    return SHORT[array.dtype]


def numpy_dtype(which: object) -> np.dtype[Any]:
    """The numpy type of an ONNX element type given by number, short name or numpy type."""
    if isinstance(which, (int, np.integer)):
        which = DTYPES.get(int(which), str(which))
    if isinstance(which, str):
        if which not in NUMPY:
            raise FuseError(f"unknown element type {which}")
        return NUMPY[which]
    return np.dtype(which)  # type: ignore[call-overload,no-any-return]


def dtype_number(array: Array) -> int:
    """The ONNX number of an array's element type."""
    return DTYPE_NUMBERS[short_dtype(array)]


def tensor_attribute(value: object) -> Array:
    """The values of an attribute that is a tensor."""
    return value.array() if isinstance(value, Tensor) else np.asarray(value)


def wide(array: Array) -> Array:
    """The array in f32 where its type is narrower, so that sums keep their digits."""
    return array.astype(np.float32) if array.dtype in NARROW else array


def ints(value: Any) -> tuple[int, ...]:
    """Integers from an attribute or an operand, whichever the operator's version gives."""
    if value is None:
        return ()
    return tuple(int(i) for i in np.asarray(value).reshape(-1))


def from_front(axis: int, rank: int) -> int:
    """An axis counted from the front. ValueError where there is none of that number: numpy's `%` would
    take another axis, and an operator that nothing runs would have values."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is none of {rank}")
    return axis % rank
