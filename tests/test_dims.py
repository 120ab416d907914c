"""Symbolic sizes: exact, canonical, and never claimed to be what they may not be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fuse.types import (
    Dim,
    Expr,
    add,
    at_least,
    broadcast_dim,
    divide,
    floor_divide,
    minimum,
    mul,
    non_negative,
    parse_dim,
    roots,
    sub,
    substitute,
    symbol,
    trunc_divide,
)

h, w = symbol("h"), symbol("w")


@st.composite
def sizes(draw: st.DrawFn, depth: int = 3) -> tuple[Dim, object]:
    """A size and the function of (h, w) that it should be."""
    if depth == 0 or draw(st.booleans()):
        leaf = draw(st.sampled_from(["h", "w", "number"]))
        if leaf == "number":
            number = draw(st.integers(-6, 6))
            return number, lambda env: number
        return symbol(leaf), lambda env: env[leaf]
    (a, f), (b, g) = draw(sizes(depth=depth - 1)), draw(sizes(depth=depth - 1))
    n = draw(st.integers(1, 5))
    kind = draw(st.sampled_from(["add", "sub", "mul", "floor", "trunc", "min"]))
    if kind == "add":
        return add(a, b), lambda env: f(env) + g(env)
    if kind == "sub":
        return sub(a, b), lambda env: f(env) - g(env)
    if kind == "mul":
        return mul(a, b), lambda env: f(env) * g(env)
    if kind == "floor":
        return floor_divide(a, n), lambda env: f(env) // n
    if kind == "trunc":
        return trunc_divide(a, n), lambda env: int(f(env) / n)
    return minimum(a, b), lambda env: min(f(env), g(env))


@given(sizes(), st.integers(0, 9), st.integers(0, 9))
def test_a_size_is_the_computation_it_was_made_by(made: tuple[Dim, object], at_h: int, at_w: int) -> None:
    size, function = made
    env = {"h": at_h, "w": at_w}
    assert substitute(size, env) == function(env)  # type: ignore[operator]


@given(sizes(), st.integers(-3, 3))
def test_a_bound_that_is_claimed_holds_everywhere(made: tuple[Dim, object], bound: int) -> None:
    size, function = made
    if at_least(size, bound):
        assert all(function({"h": i, "w": j}) >= bound for i in range(8) for j in range(8))  # type: ignore[operator]


def test_a_floor_of_what_may_be_negative_may_be() -> None:
    for toward_zero in (trunc_divide(sub(mul(2, h), w), 2), trunc_divide(sub(h, floor_divide(w, 2)), 1)):
        assert not at_least(floor_divide(toward_zero, 2), 0)
    assert not at_least(floor_divide(sub(h, 3), w), 0)
    assert at_least(floor_divide(add(h, 3), w), 0)


@given(sizes(), sizes())
def test_an_exact_quotient_times_the_divisor_is_the_dividend(
    a: tuple[Dim, object], b: tuple[Dim, object]
) -> None:
    if b[0] != 0:
        assert divide(mul(a[0], b[0]), b[0]) is not None
        assert mul(divide(mul(a[0], b[0]), b[0]) or 0, b[0]) == mul(a[0], b[0])


def test_two_strided_convolutions_are_one_division() -> None:
    once = floor_divide(add(h, 1), 2)
    assert floor_divide(add(once, 1), 2) == floor_divide(add(h, 3), 4)


def test_padding_up_to_a_multiple_divides_by_it() -> None:
    left_over = sub(h, mul(4, floor_divide(h, 4)))
    padding = sub(sub(4, left_over), mul(4, floor_divide(sub(4, left_over), 4)))
    padded = add(h, padding)
    assert divide(padded, 4) == floor_divide(add(h, 3), 4)
    assert non_negative(padding)
    assert non_negative(sub(padded, h))


def test_the_two_ends_of_a_cut_add_up() -> None:
    kept = minimum(h, 3)
    assert isinstance(kept, Expr)
    assert add(kept, sub(h, kept)) == h
    assert non_negative(sub(h, kept))


def test_minima_of_one_size_keep_the_order_of_their_bounds() -> None:
    assert non_negative(sub(minimum(h, 4), minimum(h, 2)))
    assert not non_negative(sub(minimum(h, 2), minimum(h, 4)))


def test_a_minimum_broadcasts_to_its_own_operand() -> None:
    assert broadcast_dim(minimum(h, 128), h) == h
    assert broadcast_dim(h, broadcast_dim(w, h)) == broadcast_dim(h, w)


def test_a_rounding_toward_zero_may_be_negative() -> None:
    assert not non_negative(trunc_divide(sub(h, 3), 2))
    assert non_negative(add(trunc_divide(sub(h, 3), 2), 1))


def test_an_exporters_sum_is_read_and_anything_else_is_one_symbol() -> None:
    assert parse_dim("past + 2*n") == add(symbol("past"), mul(2, symbol("n")))
    assert parse_dim("floor(n/2)") == symbol("floor(n/2)")


def test_roots_are_the_symbols_inside_computations() -> None:
    assert roots(add(minimum(h, 7), floor_divide(w, 2))) == {"h", "w"}
