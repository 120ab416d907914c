"""Conditions on what a kernel does beside its norm or convolution, and on lookups. Docstrings are the
sentences of `want`."""

from __future__ import annotations

from chips.answers import Answer
from chips.operands import Operands

_IDS = ("word_ids", "position_ids", "type_ids")


def plus_residual(at: Operands, want: bool) -> Answer:
    """no residual added"""
    value = at.value("residual")
    return f"residual {value}" if value else None


def result_codes(at: Operands, want: bool) -> Answer:
    """a result that is not rounded to codes"""
    named = "y_codes" if at.kind == "quantized_matmul" else "codes"
    return f"rounded to {at.attr(named)}" if at.value("code_scale") else None


def ids(at: Operands, want: tuple[str, ...]) -> Answer:
    """ids of element type {want}"""
    for name in _IDS:
        dtype = at.type(name).dtype
        if at.value(name) and dtype not in want:
            return f"{name.replace('_', ' ')} are {dtype or 'of an unknown type'}"
    return None
