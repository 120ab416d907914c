"""A chip's figures as words of a sentence."""

from __future__ import annotations

from typing import Any

from chips.schema import HeadDim, Layouts, Number


def words(want: Any, name: str) -> str:
    """A chip's figures as words of a sentence."""
    if isinstance(want, Layouts):
        parts = [
            f"{key} {' or '.join(names)}" for key in ("q", "k", "v", "out") if (names := getattr(want, key))
        ]
        return "; ".join(parts)
    if isinstance(want, Number):
        return _number_words(want)
    if want is False:
        return {"softcap": "none", "tables": "a base or divisors and an offset"}.get(name, "no")
    if isinstance(want, tuple):
        items = [f"{item:g}" if isinstance(item, float) else str(item).replace("_", " ") for item in want]
        return ", ".join(items) or "none"
    texts = {
        "constant": "none, or of a constant weight",
        "half": "tables of one entry a pair",
        "half_or_repeated": "tables of one entry a pair, or of halves that repeat",
    }
    return texts.get(str(want), str(want).replace("_", " the "))


def _number_words(want: Number) -> str:
    parts = []
    if want.one_of is not None:
        parts.append(("one of " if len(want.one_of) > 1 else "") + ", ".join(map(str, want.one_of)))
    if want.at_least is not None:
        parts.append(f"at least {want.at_least}")
    if want.at_most is not None:
        parts.append(f"at most {want.at_most}")
    if want.multiple_of is not None:
        parts.append(f"a multiple of {want.multiple_of}")
    text = " and ".join(parts) or "any"
    if isinstance(want, HeadDim):
        text += "".join(f", or {q} with v {v}" for q, v in want.pairs)
        text += " (v may differ)" if want.v_differs else ""
    return text
