"""Element types, symbolic dimensions and the one error class of fuse.

A dimension is an `int` or an `Expr`: a polynomial with integer coefficients over symbols. A symbol
is never negative. What cannot be written as a polynomial (a floor division, a count that depends on
data) is a symbol of its own, named by what computes it, so equal computations still compare equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

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


class FuseError(Exception):
    """Bad input: the message is one line that names the bad thing. The command line exits 2."""


#: ((symbols of one product, sorted), coefficient), ... sorted: a polynomial in canonical form.
Terms = tuple[tuple[tuple[str, ...], int], ...]


class Expr:
    """A symbolic dimension: a polynomial over symbols, canonical, so `==` decides equality."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self.terms == other.terms)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Expr({self})"

    def __str__(self) -> str:
        parts: list[str] = []
        for symbols, factor in self.terms:
            text = "*".join(([str(abs(factor))] if abs(factor) != 1 or not symbols else []) + list(symbols))
            sign = ("-" if factor < 0 else "") if not parts else (" - " if factor < 0 else " + ")
            parts.append(sign + text)
        return "".join(parts)

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(symbol for product, _ in self.terms for symbol in product)


Dim = int | Expr
Dims = tuple[Dim, ...]


class Type(NamedTuple):
    """What is known of a value: `dtype` is "" and `dims` is None where nothing is."""

    dtype: str
    dims: Dims | None

    def __str__(self) -> str:
        if self.dims is None:
            return self.dtype or "?"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


UNKNOWN = Type("", None)


def symbol(name: str) -> Expr:
    """The dimension that a symbol stands for."""
    return Expr((((name,), 1),))


def _make(table: dict[tuple[str, ...], int]) -> Dim:
    terms = tuple(sorted((product, factor) for product, factor in table.items() if factor))
    if not terms:
        return 0
    if len(terms) == 1 and not terms[0][0]:
        return terms[0][1]
    return Expr(terms)


def _terms(a: Dim) -> Terms:
    return (((), a),) if isinstance(a, int) else a.terms


def add(a: Dim, b: Dim) -> Dim:
    """a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    table = dict(_terms(a))
    for product, factor in _terms(b):
        table[product] = table.get(product, 0) + factor
    return _make(table)


def mul(a: Dim, b: Dim) -> Dim:
    """a * b."""
    if isinstance(a, int):
        if isinstance(b, int):
            return a * b
        if a == 1:
            return b
    elif isinstance(b, int) and b == 1:
        return a
    table: dict[tuple[str, ...], int] = {}
    for p, i in _terms(a):
        for q, j in _terms(b):
            product = tuple(sorted(p + q))
            table[product] = table.get(product, 0) + i * j
    return _make(table)


def sub(a: Dim, b: Dim) -> Dim:
    """a - b."""
    return a - b if isinstance(a, int) and isinstance(b, int) else add(a, mul(-1, b))


def divide(a: Dim, b: Dim) -> Dim | None:
    """a / b where b divides a exactly whatever the symbols are (b not zero), else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if a == b:
        return 1
    divisor = _terms(b)
    if len(divisor) != 1:
        return None
    symbols, factor = divisor[0]
    table: dict[tuple[str, ...], int] = {}
    for product, i in _terms(a):
        left = list(product)
        for name in symbols:
            if name not in left:
                return None
            left.remove(name)
        if factor == 0 or i % factor:
            return None
        table[tuple(left)] = i // factor
    return _make(table)


def floor_divide(a: Dim, b: Dim) -> Dim:
    """Floor of a / b: exact where it can be, else a symbol named by the division."""
    if isinstance(a, int) and isinstance(b, int) and b:
        return a // b
    exact = divide(a, b)
    return symbol(f"floor({a} / {b})") if exact is None else exact


def product(dims: Iterable[Dim]) -> Dim:
    """The number of elements."""
    total: Dim = 1
    for dim in dims:
        total = mul(total, dim)
    return total


def non_negative(a: Dim) -> bool:
    """Surely not negative, whatever the symbols are."""
    return a >= 0 if isinstance(a, int) else all(factor > 0 for _, factor in a.terms)


def positive(a: Dim) -> bool:
    """Surely at least 1: a polynomial without negative terms and with a positive constant."""
    return a > 0 if isinstance(a, int) else non_negative(a) and any(not p for p, _ in a.terms)


def broadcast_dim(a: Dim, b: Dim) -> Dim:
    """One axis of a broadcast; two different symbols give a symbol named by both."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int):
        return a
    if isinstance(b, int):
        return b
    first, second = sorted((str(a), str(b)))
    return symbol(f"broadcast({first}, {second})")


def broadcast(a: Dims, b: Dims) -> Dims:
    """The dims of two operands broadcast together (numpy's rule)."""
    if len(a) < len(b):
        a, b = b, a
    lead = len(a) - len(b)
    return a[:lead] + tuple(map(broadcast_dim, a[lead:], b))


def spans(a: Dims, whole: Dims) -> bool:
    """True where `a` surely broadcasts to `whole` without changing it."""
    return len(a) <= len(whole) and all(
        x in (1, y) for x, y in zip(a, whole[len(whole) - len(a) :], strict=True)
    )


def substitute(a: Dim, values: Mapping[str, Dim]) -> Dim:
    """The dimension with symbols replaced."""
    if isinstance(a, int) or not (a.symbols & values.keys()):
        return a
    total: Dim = 0
    for symbols, factor in a.terms:
        term: Dim = factor
        for name in symbols:
            term = mul(term, values.get(name, symbol(name)))
        total = add(total, term)
    return total


def nbytes(type: Type) -> Dim | None:
    """Bytes of a value, or None where its dims or element type are unknown."""
    bits = BITS.get(type.dtype)
    if bits is None or type.dims is None:
        return None
    count = product(type.dims)
    return math.ceil(count * bits / 8) if isinstance(count, int) else mul(count, max(bits // 8, 1))


_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][\w.]*)|([-+*]))")


def parse_dim(text: str) -> Dim:
    """The dimension an exporter's `dim_param` stands for: `past + 1` and `2*n` are read as sums and
    products; anything else is one symbol."""
    tokens, at = [], 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            return symbol(text)
        tokens.append(found)
        at = found.end()
    total: Dim = 0
    term: Dim | None = None
    sign = 1
    expect_value = True
    for token in tokens:
        number, name, operator = token.groups()
        if operator is None:
            if not expect_value:
                return symbol(text)
            value = int(number) if number else symbol(name)
            term = value if term is None else mul(term, value)
            expect_value = False
        else:
            if expect_value or term is None:
                return symbol(text)
            if operator != "*":
                total, term = add(total, mul(sign, term)), None
                sign = 1 if operator == "+" else -1
            expect_value = True
    if expect_value or term is None:
        return symbol(text)
    return add(total, mul(sign, term))
