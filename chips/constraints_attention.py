"""Conditions on attention. The docstrings are the sentences of refusals (chips/constraints.py)."""

from __future__ import annotations

from chips.answers import Answer, number, unknown
from chips.operands import Operands, letters
from chips.schema import HeadDim, Layouts, Number
from fuse.types import mul, non_negative, sub


def head_dim(at: Operands, want: HeadDim) -> Answer:
    """head width {want}"""
    q, v = at.extent("q", "d"), at.extent("v", "d")
    if not isinstance(q, int) or not isinstance(v, int):
        return number(want, q, "head width") or (None if want.v_differs else unknown("head width of v", v))
    padded = at.attr("pad_head_to")
    if padded:
        if max(q, v) > padded:
            return f"{max(q, v)}, padded to {padded}"
        q = v = padded
    if (q, v) in want.pairs:
        return None
    if q != v and not want.v_differs:
        return f"{q}, with v {v}"
    return number(want, q, "head width")


def mask(at: Operands, want: tuple[str, ...]) -> Answer:
    """mask {want}"""
    steps = tuple(step for step in at.attr("mask") if step not in ("cap", "sink"))
    if "sink" in at.attr("mask") and "sinks" not in want:
        return "sinks"
    if len(steps) > 1:
        return f"{len(steps)} masks: {', '.join(steps)}"
    kinds = {
        "add": "additive",
        "keep": "bool",
        "drop": "bool",
        "hide": "a mask that is subtracted",
        "divide": "a mask that divides",
        "multiply": "a factor of each head",
    }
    kind = kinds[steps[0]] if steps else "none"
    return None if kind in want or (at.attr("causal") and "causal" in want) else kind


def mask_folded(at: Operands, want: bool | str) -> Answer:
    """mask {want}"""
    folded = at.attr("mask_layouts") or ("",) * len(at.by_name["mask"])
    for layout, value in zip(folded, at.by_name["mask"], strict=False):
        if want == "as_scores" and not layout:
            dims = at.type_of(value).dims
            if dims is None:
                return unknown(f"shape of the mask {value}")
            if any(dim != 1 for dim in dims[:-2]):
                return f"mask {at.type_of(value)}"
        elif layout and (want is False or letters(layout) != ("bh", "s", "t")):
            return f"mask of axes {layout}"
    return None


def softcap(at: Operands, want: bool | str) -> Answer:
    """softcap of the scores: {want}"""
    cap, steps = at.attr("softcap"), at.attr("mask")
    if not cap:
        return None
    if want is False:
        return f"softcap {cap:g}"
    masks = [i for i, step in enumerate(steps) if step != "cap"]
    if not masks or "cap" not in steps:
        return None
    order = "after_mask" if steps.index("cap") < masks[-1] else "before_mask"
    return None if order == want else order.replace("_", " the ")


def positive_scale(at: Operands, want: bool) -> Answer:
    """scale of the scores above 0"""
    scale = at.attr("scale")
    return None if scale > 0 else f"{scale:g}"


def groups(at: Operands, want: Number) -> Answer:
    """query heads a key head {want}"""
    return number(want, int(at.attr("groups")), "query heads a key head")


def q_len(at: Operands, want: Number) -> Answer:
    """rows of q {want}"""
    return number(want, at.extent("q", "s"), "rows of q")


def q_len_groups(at: Operands, want: Number) -> Answer:
    """rows of q times query heads a key head {want}"""
    rows = at.extent("q", "s")
    total = None if rows is None else mul(rows, int(at.attr("groups")))
    return number(want, total, "rows of q times heads")


def kv_len(at: Operands, want: Number) -> Answer:
    """rows of k {want}"""
    return number(want, at.extent("k", "s"), "rows of k")


def q_within_kv(at: Operands, want: bool) -> Answer:
    """no more rows of q than of k"""
    q, k = at.extent("q", "s"), at.extent("k", "s")
    if q is None or k is None:
        return unknown("rows of q" if q is None else "rows of k")
    more = sub(k, q)
    if non_negative(more):
        return None
    return f"{q} rows of q, {k} of k" if isinstance(more, int) else unknown("rows of k less rows of q", more)


def layouts(at: Operands, want: Layouts) -> Answer:
    """axes {want}"""
    found = []
    for name in ("q", "k", "v", "out"):
        allowed = {letters(text) for text in getattr(want, name)}
        axes = tuple(axis for axis in at.layout(name) if axis != "1")
        if allowed and axes not in allowed:
            found.append(f"{name} {' '.join(axes)}")
    return ", ".join(found) or None
