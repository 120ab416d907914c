"""Polynomials over symbols: what a symbolic dimension is, and its exact arithmetic.

An `Expr` has integer coefficients and is canonical, so `==` decides equality. A symbol is never
negative (but those of `SIGNED`, and floors of what may be). What is no polynomial is a symbol too, a
`Computed`, named by what computes it, so equal computations still compare equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


class Symbol(str):
    """A symbol of which a bound is known: it is never below `least`.

    It compares as its text, so the same symbol may stand elsewhere without the bound.
    """

    __slots__ = ("least",)
    least: int

    def bounded(self, least: int) -> Symbol:
        found = Symbol(self)
        found.least = least
        return found


class Computed(Symbol):
    """The symbol of a size that is no polynomial: `floor(a / b)`, `min(a, b)`, with its operands.

    It is the text that names it, so it compares and sorts as any symbol. floor rounds down; trunc
    rounds toward zero; lesser is a minimum that may be negative.
    """

    __slots__ = ("function", "left", "right")
    function: str
    left: Dim
    right: Dim

    @classmethod
    def of(cls, function: str, left: Dim, right: Dim) -> Computed:
        self = cls(
            f"{function}({left} / {right})" if function in DIVISIONS else f"{function}({left}, {right})"
        )
        self.function, self.left, self.right, self.least = function, left, right, 0
        return self

    def bounded(self, least: int) -> Computed:
        found = Computed(self)
        found.function, found.left, found.right = self.function, self.left, self.right
        found.least = least
        return found


#: Functions that are written as a division.
DIVISIONS = frozenset({"floor", "trunc"})
MINIMA = frozenset({"min", "lesser"})
#: Functions whose symbol may be negative.
SIGNED = frozenset({"trunc", "lesser"})


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


def symbol(name: str) -> Expr:
    """The dimension that a symbol stands for."""
    return Expr((((name,), 1),))


def make(table: dict[tuple[str, ...], int]) -> Dim:
    terms = tuple(sorted((product, factor) for product, factor in table.items() if factor))
    if not terms:
        return 0
    if len(terms) == 1 and not terms[0][0]:
        return terms[0][1]
    return Expr(terms)


def terms_of(a: Dim) -> Terms:
    return (((), a),) if isinstance(a, int) else a.terms


def add(a: Dim, b: Dim) -> Dim:
    """a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    table = dict(terms_of(a))
    for product, factor in terms_of(b):
        table[product] = table.get(product, 0) + factor
    return make(table)


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
    for p, i in terms_of(a):
        for q, j in terms_of(b):
            product = tuple(sorted(p + q))
            table[product] = table.get(product, 0) + i * j
    return make(table)


def sub(a: Dim, b: Dim) -> Dim:
    """a - b."""
    return a - b if isinstance(a, int) and isinstance(b, int) else add(a, mul(-1, b))


def divide(a: Dim, b: Dim) -> Dim | None:
    """a / b where b divides a exactly whatever the symbols are (b not zero), else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if a == b:
        return 1
    if a == 0:
        return 0
    divisor = terms_of(b)
    if len(divisor) != 1:
        return _long_divide(a, b)
    symbols, factor = divisor[0]
    table: dict[tuple[str, ...], int] = {}
    for product, i in terms_of(a):
        left = list(product)
        for name in symbols:
            if name not in left:
                return None
            left.remove(name)
        if factor == 0 or i % factor:
            return None
        table[tuple(left)] = i // factor
    return make(table)


def _leading(a: Dim) -> tuple[tuple[str, ...], int]:
    """The term of the highest degree, the first by name among those."""
    return max(terms_of(a), key=lambda term: (len(term[0]), [-ord(c) for c in "\0".join(term[0])]))


def _long_divide(a: Dim, b: Dim) -> Dim | None:
    """Polynomial division by a sum, where nothing is left over."""
    quotient: Dim = 0
    head = make(dict([_leading(b)]))
    for _ in range(2 * len(terms_of(a))):
        if a == 0:
            return quotient
        part = divide(make(dict([_leading(a)])), head)
        if part is None:
            return None
        quotient, a = add(quotient, part), sub(a, mul(part, b))
    return None


def product(dims: Iterable[Dim]) -> Dim:
    """The number of elements."""
    total: Dim = 1
    for dim in dims:
        total = mul(total, dim)
    return total


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
