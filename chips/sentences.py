"""A chip's figures as words of a sentence."""

from __future__ import annotations

from typing import Any

from chips.schema import HeadDim, Layouts, Number

#: Constraints whose figures are all meant, not one of them.
_ALL_OF = frozenset({"rows", "constant", "transposed"})
_PHRASES = {
    ("softcap", False): "none",
    ("mask_folded", False): "with batch and heads on axes of their own",
    ("mask_folded", "heads"): "with batch and heads on axes of their own, or joined as bh",
    ("mask_folded", "as_scores"): "joined as bh like the scores, or of rows and keys alone",
    ("tables", False): "a base or divisors and an offset",
    ("decay_space", ("log",)): "its logarithm",
    ("decay_space", ("linear",)): "itself",
    ("offset", "none"): "none",
    ("offset", "constant"): "none, or of a constant weight",
    ("tables", "half"): "tables of one entry a pair",
    ("tables", "half_or_repeated"): "tables of one entry a pair, or of halves that repeat",
}


def words(want: Any, name: str) -> str:
    """What a chip's file gives for the constraint `name`, as it stands in its sentence."""
    if isinstance(want, Layouts):
        return _layout_words(want)
    if isinstance(want, Number):
        return _number_words(want)
    if isinstance(want, tuple) and (name, want) in _PHRASES:
        return _PHRASES[(name, want)]
    if name in ("head_pairs", "code_pairs"):
        return "one of " + ", ".join(f"{one} and {two}" for one, two in want)
    if isinstance(want, tuple):
        items = [f"{item:g}" if isinstance(item, float) else str(item).replace("_", " ") for item in want]
        if name == "compute":
            return "".join(f" or {item}" for item in items)
        return ("one of " if len(items) > 1 and name not in _ALL_OF else "") + (", ".join(items) or "none")
    return _PHRASES.get((name, want), str(want).replace("_", " the "))


def _layout_words(want: Layouts) -> str:
    """Operands that may have the same axes are named together."""
    together: dict[tuple[str, ...], list[str]] = {}
    for key in ("q", "k", "v", "out"):
        if allowed := getattr(want, key):
            together.setdefault(allowed, []).append(key)
    return "; ".join(f"of {', '.join(keys)}: {' | '.join(allowed)}" for allowed, keys in together.items())


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
