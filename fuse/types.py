"""Element types, the type of a value, and the one error class of fuse.

Dimensions and their arithmetic are those of `fuse.polynomials` and `fuse.dims`, named here too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from fuse.dims import (
    as_size,
    at_least,
    broadcast,
    broadcast_dim,
    computed,
    equal,
    floor_divide,
    minimum,
    non_negative,
    positive,
    roots,
    spans,
    substitute,
    trunc_divide,
    within,
)
from fuse.polynomials import (
    Computed,
    Dim,
    Dims,
    Expr,
    Terms,
    add,
    divide,
    mul,
    parse_dim,
    product,
    sub,
    symbol,
)

__all__ = [
    "BITS",
    "DTYPES",
    "DTYPE_NUMBERS",
    "FLOATS",
    "INTEGERS",
    "UNKNOWN",
    "Computed",
    "Dim",
    "Dims",
    "Expr",
    "FuseError",
    "Terms",
    "Type",
    "add",
    "as_size",
    "at_least",
    "broadcast",
    "broadcast_dim",
    "computed",
    "divide",
    "equal",
    "floor_divide",
    "minimum",
    "mul",
    "nbytes",
    "non_negative",
    "parse_dim",
    "positive",
    "product",
    "roots",
    "spans",
    "sub",
    "substitute",
    "symbol",
    "trunc_divide",
    "within",
]

#: ONNX element type number -> short name (onnx.TensorProto.DataType).
DTYPES: Mapping[int, str] = {
    1: "f32", 2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 7: "i64", 8: "str", 9: "bool",
    10: "f16", 11: "f64", 12: "u32", 13: "u64", 14: "c64", 15: "c128", 16: "bf16", 17: "f8e4m3fn",
    18: "f8e4m3fnuz", 19: "f8e5m2", 20: "f8e5m2fnuz", 21: "u4", 22: "i4", 23: "f4e2m1",
    24: "f8e8m0", 25: "u2", 26: "i2",
}  # fmt: skip
DTYPE_NUMBERS: Mapping[str, int] = {name: number for number, name in DTYPES.items()}
FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
INTEGERS = frozenset({"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "i4", "u4", "i2", "u2"})
#: Bits of one element; strings have none.
BITS: Mapping[str, int] = {
    "f32": 32, "u8": 8, "i8": 8, "u16": 16, "i16": 16, "i32": 32, "i64": 64, "bool": 8, "f16": 16,
    "f64": 64, "u32": 32, "u64": 64, "c64": 64, "c128": 128, "bf16": 16, "f8e4m3fn": 8,
    "f8e4m3fnuz": 8, "f8e5m2": 8, "f8e5m2fnuz": 8, "u4": 4, "i4": 4, "f4e2m1": 4, "f8e8m0": 8,
    "u2": 2, "i2": 2,
}  # fmt: skip


#: The largest size of a dimension that ONNX can write.
LARGEST_SIZE = (1 << 63) - 1


class FuseError(Exception):
    """Bad input: the message is one line that names the bad thing. The command line exits 2."""


class Type(NamedTuple):
    """What is known of a value: `dtype` is "" and `dims` is None where nothing is."""

    dtype: str
    dims: Dims | None

    def __str__(self) -> str:
        if self.dims is None:
            return self.dtype or "?"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


UNKNOWN = Type("", None)


def nbytes(type: Type) -> Dim | None:
    """Bytes of a value, or None where its dims or element type are unknown."""
    bits = BITS.get(type.dtype)
    if bits is None or type.dims is None:
        return None
    count = product(type.dims)
    return math.ceil(count * bits / 8) if isinstance(count, int) else mul(count, max(bits // 8, 1))
