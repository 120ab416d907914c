"""Conditions on products of quantized weights. The docstrings are the sentences of refusals."""

from __future__ import annotations

from chips.answers import Answer, number
from chips.operands import Operands
from chips.schema import Number
from fuse.types import INTEGERS


def float_types(at: Operands, want: tuple[str, ...]) -> Answer:
    """x, scales and bias in floats of element type {want}"""
    for name in ("x", "scales", "bias"):
        value = at.value(name)
        dtype = at.type_of(value).dtype if value else ""
        in_codes = name != "scales" and dtype in INTEGERS
        if dtype and dtype not in want and not in_codes:
            return f"{name} is {dtype}"
    return None


def codes(at: Operands, want: tuple[str, ...]) -> Answer:
    """codes of element type {want}"""
    dtype = at.type("codes").dtype
    return None if dtype in want else f"codes are {dtype or 'of an unknown type'}"


def code_pairs(at: Operands, want: tuple[tuple[str, str], ...]) -> Answer:
    """x and weight in codes of {want}, a result in codes in those of x"""
    x, weight = at.type("x").dtype, at.type("codes").dtype
    if (x, weight) not in want:
        return f"{x} and {weight}"
    result = at.attr("y_codes") if at.value("code_scale") else x
    return None if result == x else f"{x} and {weight}, the result in {result}"


def bits(at: Operands, want: Number) -> Answer:
    """bits of a code: {want}"""
    return number(want, at.attr("bits"), "bits")


def storage(at: Operands, want: tuple[str, ...]) -> Answer:
    """codes stored as {want}"""
    stored = at.attr("storage")
    return None if stored in want else str(stored)


def granularity(at: Operands, want: tuple[str, ...]) -> Answer:
    """a scale for each {want}"""
    scaled = at.attr("granularity")
    return None if scaled in want else str(scaled)


def block_size(at: Operands, want: Number) -> Answer:
    """inputs that share a scale: {want}"""
    return number(want, at.attr("block_size"), "block size")


def x_rounded(at: Operands, want: tuple[str, ...]) -> Answer:
    """what x is rounded to: {want}"""
    rounded = "codes" if at.type("x").dtype in INTEGERS else at.attr("activation")
    return None if rounded in want else str(rounded)
