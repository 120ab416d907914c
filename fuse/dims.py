"""Sizes that are no polynomials (floors, minima, broadcasts), bounds of sizes, and replacing symbols."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from fuse.polynomials import (
    DIVISIONS,
    MINIMA,
    SIGNED,
    Computed,
    Dim,
    Dims,
    Expr,
    Symbol,
    add,
    divide,
    make,
    mul,
    sub,
    symbol,
    terms_of,
)

#: Sizes looked at, at most, to decide whether one is surely not below a bound.
MAX_BOUNDS = 40


def floor_divide(a: Dim, b: Dim) -> Dim:
    """Floor of a / b: exact where it can be, else with a symbol named by the division.

    By a positive number the form is canonical: whole multiples stand outside, common factors are
    cancelled and nested divisions are one, so that equal sizes found on different ways are equal.
    """
    if isinstance(a, int) and isinstance(b, int) and b:
        return a // b
    exact = divide(a, b)
    if exact is not None:
        return exact
    if not isinstance(b, int) or b <= 0 or isinstance(a, int):
        common = math.gcd(*(factor for _, factor in (*terms_of(a), *terms_of(b))))
        a, b = divide(a, common or 1) or a, divide(b, common or 1) or b
        return symbol(Computed.of("floor", a, b))
    whole = make({product: factor // b for product, factor in a.terms if factor % b == 0})
    if not isinstance(whole, int) or whole:
        return add(whole, floor_divide(sub(a, mul(whole, b)), b))
    if all(factor < 0 for product, factor in a.terms if product):
        # floor(-x / n) is -ceil(x / n): so ceil has one form too.
        return mul(-1, floor_divide(sub(b - 1, a), b))
    whole = make({product: factor // b for product, factor in a.terms})
    constant = dict(a.terms).get((), 0)
    rest = {product: factor % b for product, factor in a.terms if product}
    common = math.gcd(b, *rest.values())
    constant, b = constant % b // common, b // common
    if b == 1:
        return add(whole, make({p: f // common for p, f in rest.items()} | {(): constant}))
    inner = make({product: factor // common for product, factor in rest.items()} | {(): constant})
    if len(rest) == 1:
        (product,) = rest
        found = product[0] if len(product) == 1 else None
        if isinstance(found, Computed) and found.function == "floor" and rest[product] == common:
            below = found.right
            if isinstance(below, int) and below > 0:
                return add(whole, floor_divide(add(found.left, constant * below), b * below))
    return add(whole, symbol(Computed.of("floor", inner, b)))


def minimum(a: Dim, b: Dim) -> Dim:
    """The smaller of two: one of them where that is sure, else a symbol named by both.

    It is `min` of what is surely never negative, and `lesser` otherwise.
    """
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if non_negative(sub(a, b)):
        return b
    if non_negative(sub(b, a)):
        return a
    function = "min" if non_negative(a) and non_negative(b) else "lesser"
    return symbol(Computed.of(function, *sorted((a, b), key=str)))


def non_negative(a: Dim) -> bool:
    """Surely not negative, whatever the symbols are."""
    return at_least(a, 0)


def positive(a: Dim) -> bool:
    """Surely at least 1."""
    return at_least(a, 1)


def at_least(a: Dim, bound: int) -> bool:
    """Surely not below a bound, whatever the symbols are.

    Terms that only grow count as 0. Where that does not decide, a floor or a minimum is replaced by
    what bounds it: `n floor(x / n)` lies between `x - n + 1` and `x`, `min(x, y)` is at most each.
    """
    stack: list[Dim] = [a]
    for _ in range(MAX_BOUNDS):
        if not stack:
            break
        lower = stack.pop()
        if _plainly_at_least(lower, bound):
            return True
        if not isinstance(lower, int):
            stack.extend(_lower_bounds(lower, bound))
    return not isinstance(a, int) and any(
        all(at_least(case, bound) for case in cases) for cases in _either(a)
    )


def _either(a: Expr) -> Iterator[tuple[Dim, Dim]]:
    """What a size is if an added minimum is its one operand, and if it is the other."""
    if len(a.terms) > 4 or not any(factor < 0 for _, factor in a.terms):
        return
    for symbols, factor in a.terms:
        found = symbols[0] if len(symbols) == 1 else None
        if factor > 0 and isinstance(found, Computed) and found.function in MINIMA:
            without = sub(a, make({symbols: factor}))
            yield add(without, mul(factor, found.left)), add(without, mul(factor, found.right))


def _plainly_at_least(a: Dim, bound: int) -> bool:
    """By the signs of the terms alone."""
    if isinstance(a, int):
        return a >= bound
    total = 0
    for symbols, factor in a.terms:
        least = factor
        for name in symbols:
            if name.__class__ is str:
                least = 0
            elif isinstance(name, Symbol):
                if _signed(name):
                    return False
                least *= name.least
        if symbols and factor < 0:
            return False
        total += least
    return total >= bound


def _signed(name: str) -> bool:
    """Whether a symbol may be negative: some functions are, and a floor of what may be."""
    if not isinstance(name, Computed):
        return False
    if name.function == "floor":
        return not (_plainly_at_least(name.left, 0) and _plainly_at_least(name.right, 0))
    return name.function in SIGNED


def as_size(a: Dim, least: int = 0) -> Dim:
    """The same size, known from now on not to be below `least`, because it is a tensor's.

    Only a constant and one symbol with a positive factor tell anything of the symbol.
    """
    if isinstance(a, int) or at_least(a, least):
        return a
    table = dict(a.terms)
    constant = table.pop((), 0)
    if len(table) != 1:
        return a
    ((symbols, factor),) = table.items()
    if len(symbols) != 1 or factor < 0 or _signed(symbols[0]):
        return a
    name = symbols[0] if isinstance(symbols[0], Symbol) else Symbol(symbols[0])
    return make({(name.bounded(-((constant - least) // factor)),): factor, (): constant})


def _lower_bounds(a: Expr, bound: int) -> Iterator[Dim]:
    """Sizes that decide the same and are surely not above `a`: one computed symbol is replaced."""
    for symbols, factor in a.terms:
        if len(symbols) != 1 or not isinstance(symbols[0], Computed):
            continue
        function, left, right = symbols[0].function, symbols[0].left, symbols[0].right
        without = sub(a, make({symbols: factor}))
        if function in MINIMA and factor < 0:
            yield add(without, mul(factor, left))
            yield add(without, mul(factor, right))
        if not isinstance(right, int) or right <= 0:
            continue
        if function == "floor" and (bound == 0 or factor % right == 0):
            # Against 0 the sign decides, so there the whole may be scaled by the divisor.
            scale = 1 if factor % right == 0 else right
            edge = left if factor < 0 else sub(left, right - 1)
            yield add(mul(scale, without), mul(factor * scale // right, edge))
        if function == "trunc" and factor > 0:
            least = 0 if isinstance(left, int) else dict(left.terms).get((), 0)
            if _plainly_at_least(sub(left, least), 0):
                yield add(without, factor * _trunc(least, right))


def _trunc(a: int, b: int) -> int:
    """a / b rounded toward zero."""
    whole = abs(a) // abs(b)
    return whole if (a < 0) == (b < 0) else -whole


def trunc_divide(a: Dim, b: Dim) -> Dim:
    """a / b rounded toward zero (b not zero): the floor where both are surely not negative."""
    if isinstance(a, int) and isinstance(b, int):
        return _trunc(a, b)
    exact = divide(a, b)
    if exact is not None:
        return exact
    if non_negative(a) and non_negative(b):
        return floor_divide(a, b)
    return symbol(Computed.of("trunc", a, b))


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
    for whole, part in ((a, b), (b, a)):
        found = computed(whole)
        if found is not None and part in (found.left, found.right):
            # Against min(a, b), b is b however it turns out: equal, or 1 where a is 1.
            if found.function in MINIMA:
                return part
            if found.function == "broadcast":
                return whole
        if _rounded_alike(whole, part):
            return whole
    return symbol(Computed.of("broadcast", *sorted((a, b), key=str)))


def _rounded_alike(a: Dim, b: Dim) -> bool:
    """Whether a is b with its division rounded down instead of toward zero, and they broadcast to a.

    c + floor(x / n) and c + trunc(x / n) differ only where x is negative: by 1, and a is below c. So
    for c of at most 1 a size that differs is 0 against 1.
    """
    if isinstance(b, int):
        return False
    for symbols, factor in b.terms:
        found = symbols[0] if len(symbols) == 1 else None
        if factor == 1 and isinstance(found, Computed) and found.function == "trunc":
            rest = sub(b, symbol(found))
            return (
                isinstance(rest, int) and rest <= 1 and add(rest, floor_divide(found.left, found.right)) == a
            )
    return False


def equal(a: Dim, b: Dim) -> bool:
    """Surely the same size. One that is at least 1 is what it is however its division rounds."""
    return a == b or (_rounded_alike(a, b) and at_least(a, 1))


def computed(a: Dim) -> Computed | None:
    """The computation that a size is, where it is nothing but one."""
    if isinstance(a, int) or len(a.terms) != 1:
        return None
    symbols, factor = a.terms[0]
    return symbols[0] if factor == 1 and len(symbols) == 1 and isinstance(symbols[0], Computed) else None


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


def within(a: Dim, b: Dim) -> Dim:
    """Where a slice bound lies in an axis of size b: counted from the end where it is negative."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b) if a >= 0 else max(a + b, 0)
    if non_negative(a):
        return minimum(a, b)
    back = mul(-1, a)
    if non_negative(back):
        return sub(b, minimum(b, back))
    return symbol(Computed.of("within", a, b))


#: What makes a computed symbol of its operands.
_FUNCTIONS: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "floor": floor_divide,
    "trunc": trunc_divide,
    "min": minimum,
    "lesser": minimum,
    "broadcast": broadcast_dim,
    "within": within,
}


def roots(a: Dim) -> frozenset[str]:
    """The symbols that a size is computed of, those inside computations too."""
    if isinstance(a, int):
        return frozenset()
    found: set[str] = set()
    for name in a.symbols:
        if isinstance(name, Computed):
            found |= roots(name.left) | roots(name.right)
        else:
            found.add(name)
    return frozenset(found)


def substitute(a: Dim, values: Mapping[str, Dim]) -> Dim:
    """The dimension with symbols replaced, those inside computations too."""
    if isinstance(a, int):
        return a
    names = a.symbols
    if not (names & values.keys() or any(isinstance(name, Computed) for name in names)):
        return a
    total: Dim = 0
    for symbols, factor in a.terms:
        term: Dim = factor
        for name in symbols:
            term = mul(term, _replaced(name, values))
        total = add(total, term)
    return total


def _replaced(name: str, values: Mapping[str, Dim]) -> Dim:
    found = values.get(name)
    if found is not None:
        return found
    if isinstance(name, Computed):
        left, right = substitute(name.left, values), substitute(name.right, values)
        if (left, right) != (name.left, name.right) and not (right == 0 and name.function in DIVISIONS):
            return _FUNCTIONS[name.function](left, right)
    return symbol(name)
