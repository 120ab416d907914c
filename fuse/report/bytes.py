"""Sizes in a report: exact ints, or sums of products of symbols as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from fuse.types import Dim, add, mul, symbol

#: A size as the report writes it; None where a shape is unknown.
Size = int | str | None

_NUMBER = re.compile(r"\d+\Z")


def size_text(size: object) -> Size:
    """A Dim as the report writes it."""
    return size if size is None or isinstance(size, int) else str(size)


def read_size(text: str) -> Dim:
    """The Dim that a size's text stands for; symbols may hold operators inside brackets."""
    total: Dim = 0
    for sign, product in _split(text):
        term: Dim = sign
        for factor in _factors(product):
            term = mul(term, int(factor) if _NUMBER.match(factor) else symbol(factor))
        total = add(total, term)
    return total


def _split(text: str) -> list[tuple[int, str]]:
    """The signed terms of a sum."""
    text, sign = (text[1:], -1) if text.startswith("-") else (text, 1)
    terms, start, depth = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if depth == 0 and letter in "+-" and text[at - 1 : at] == text[at + 1 : at + 2] == " ":
            terms.append((sign, text[start : at - 1]))
            sign, start = (1 if letter == "+" else -1), at + 2
    return [*terms, (sign, text[start:])]


def _factors(text: str) -> list[str]:
    parts, start, depth = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if depth == 0 and letter == "*":
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def add_sizes(sizes: Iterable[Size]) -> Size:
    """The sum of those that are known; None where none is."""
    table = Counter(sizes)
    table.pop(None, None)
    total: Dim = 0
    for size, number in table.items():
        total = add(total, mul(number, read_size(size) if isinstance(size, str) else size or 0))
    return size_text(total) if table else None


def subtract_sizes(a: int | str, b: int | str) -> Size:
    """The first less the second."""
    less = mul(-1, read_size(b) if isinstance(b, str) else b)
    return size_text(add(read_size(a) if isinstance(a, str) else a, less))


def known_bytes(size: Size) -> int:
    """A size to rank by: symbols count as one each, unknown as nothing."""
    if isinstance(size, str):
        dim = read_size(size)
        return dim if isinstance(dim, int) else sum(factor for _, factor in dim.terms)
    return size or 0
