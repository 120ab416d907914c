"""Conditions of kernels that run a mixture of experts. Docstrings are the sentences of `want`."""

from __future__ import annotations

from chips.answers import Answer
from chips.operands import Operands


def scoring(at: Operands, want: tuple[str, ...]) -> Answer:
    """weights of the experts by {want}"""
    found = str(at.attr("scoring"))
    return None if found in want else found.replace("_", " ")


def selection(at: Operands, want: tuple[str, ...]) -> Answer:
    """experts chosen by {want}"""
    found = str(at.attr("selection"))
    return None if found in want else found


def plain_weights(at: Operands, want: bool) -> Answer:
    """no factor on the experts' weights and nothing added to their sum"""
    scale, eps = at.attr("route_scale"), at.attr("sum_eps")
    found = [f"factor {scale:g}"] * (scale != 1.0) + [f"{eps:g} added"] * (eps != 0.0)
    return ", ".join(found) or None


def gating(at: Operands, want: tuple[str, ...]) -> Answer:
    """gate and up of an expert given as {want}"""
    found = str(at.attr("gating"))
    return None if found in want else found.replace("_", " ")


def limited(at: Operands, want: bool) -> Answer:
    """no limit on gate and up and nothing added to up"""
    limit, shift = at.attr("limit"), at.attr("up_offset")
    found = [f"limit {limit:g}"] * bool(limit) + [f"{shift:g} added to up"] * bool(shift)
    return ", ".join(found) or None


def stacked(at: Operands, want: bool) -> Answer:
    """the experts' weights stacked, an expert's [out, in]"""
    if not at.attr("stacked"):
        return "a weight of its own for each expert"
    names = [name for name in ("first", "second", "down") if at.value(name) and not at.attr(f"trans_{name}")]
    return f"{names[0]} weight [in, out]" if names else None
