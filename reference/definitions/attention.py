"""Attention: softmax(scale q k^T, capped and masked) v, whatever axes its operands come in.

A layout is axes separated by spaces, each one letter or several joined: b batch, w windows (a batch
too), h heads, s rows, d width, 1 an axis of one. Inside, everything is [b, h, s, d], the windows in
the batch, and scores are [b, h, s, t].
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from fuse.types import FuseError
from reference.definitions.case import Array, Case, Definition, exact

_ORDER = "bwhsd"
#: An axis of windows may have their number behind it.
_WINDOWS = re.compile(r"\bw.*(?= b?h )")
_SIZE = re.compile(r"\d+$")
_COUNTED = re.compile(r"\bw(\d+) ")


def opened(x: Array, layout: str, heads: int) -> Array:
    """x as [b, h, s, d]. heads: of this operand, to split a joined axis; 0 leaves it to be a batch."""
    axes = layout.split()
    if len(axes) != x.ndim:
        raise FuseError(f"the layout {layout!r} has {len(axes)} axes, its operand has {x.ndim}")
    letters, sizes = "", []
    for axis, size in zip(axes, x.shape, strict=True):
        if axis == "1":
            continue
        if set(axis) - set(_ORDER) or (axis != "d" and "d" in axis and not heads):
            raise FuseError(f"the layout {layout!r} has an axis {axis!r}")
        if len(axis) > 1 and "h" in axis and heads:
            letters += axis
            sizes += _parted(axis, size, heads, layout)
        else:
            letters += axis[0]
            sizes.append(size)
    missing = [letter for letter in _ORDER if letter not in letters]
    y = x.reshape(*sizes, *(1,) * len(missing))
    letters += "".join(missing)
    y = y.transpose([letters.index(letter) for letter in _ORDER])
    return y.reshape(y.shape[0] * y.shape[1], *y.shape[2:])


def _parted(axis: str, size: int, heads: int, layout: str) -> list[int]:
    """The sizes of the letters of a joined axis that has the heads in it."""
    if len(axis) != 2 or size % heads:
        raise FuseError(
            f"the axis {axis!r} of {layout!r} with {size} elements does not part into {heads} heads"
        )
    return [heads if letter == "h" else size // heads for letter in axis]


def closed(y: Array, layout: str, windows: int = 1) -> Array:
    """[b, h, s, d] in a layout; an axis that the layout has not is one. windows: how many of them the
    batch holds, where the layout has an axis of their own."""
    axes = layout.split()
    letters = [letter for axis in axes for letter in axis if letter != "1"]
    order = _ORDER
    gone = [letter for letter in order if letter not in letters]
    y = y.reshape(y.shape[0] // windows, windows, *y.shape[1:])
    sizes = dict(zip(order, y.shape, strict=True))
    if any(sizes[letter] != 1 for letter in gone) or set(letters) - set(order):
        raise FuseError(f"a result of sizes {list(y.shape)} cannot be laid out as {layout!r}")
    y = y.transpose([order.index(letter) for letter in [*letters, *gone]])
    return y.reshape([math.prod(sizes[n] for n in axis if n != "1") for axis in axes])


def shared(x: Array, heads: int, batch: int, groups: int) -> Array:
    """Key heads repeated for the query heads that share each; where heads are the batch, that."""
    if groups == 1:
        return x
    if x.shape[1] * groups == heads:
        return np.repeat(x, groups, axis=1)
    if x.shape[0] * groups == batch:
        return np.repeat(x, groups, axis=0)
    raise FuseError(f"{x.shape[1]} key heads in groups of {groups} do not make {heads} query heads")


def masked(case: Case, scores: Array, masks: Sequence[Array]) -> Array:
    """The scores after the entries of `mask`, the innermost (last) first.

    A sum is rounded to the operand's type: a very negative bias swallows the score in it.
    """
    entries = tuple(case["mask"])
    layouts = tuple(case["mask_layouts"]) or ("",) * len(masks)
    places = iter(reversed(list(zip(masks, layouts, strict=True))))
    fills = iter(reversed(tuple(case["fill"])))
    if case["softcap"] and "cap" not in entries:
        scores = _capped(scores, case["softcap"])
    for entry in reversed(entries):
        if entry == "cap":
            scores = _capped(scores, case["softcap"])
            continue
        mask, layout = next(places)
        plain = scores.shape
        if layout:
            scores = scores.reshape(_folded(plain, layout, mask))
        if entry == "add":
            scores = exact((scores + exact(mask)).astype(mask.dtype))
        elif entry == "hide":
            scores = exact((scores - exact(mask) * float(next(fills))).astype(mask.dtype))
        elif entry == "multiply":
            scores = scores * exact(mask)
        elif entry == "divide":
            scores = scores / exact(mask)
        elif entry in ("keep", "drop"):
            scores = np.where(mask.astype(np.bool_) == (entry == "keep"), scores, float(next(fills)))
        else:
            raise FuseError(f"a mask entry is add, hide, keep, drop, cap, divide or multiply, got {entry!r}")
        if layout or scores.ndim != len(plain):  # else a mask of more batches than q has widened them
            scores = scores.reshape(plain)
    return scores


def _folded(plain: Sequence[int], layout: str, mask: Array) -> list[int]:
    """Scores [b, h, s, t] with the axes that a layout names; where the layout does not
    count the windows, the mask's own axis does."""
    axes = _WINDOWS.sub("w", layout).split()
    counted = _COUNTED.search(layout)
    windows = int(counted[1]) if counted else 1
    if not counted and "w" in axes and mask.ndim >= len(axes) - axes.index("w"):
        windows = mask.shape[axes.index("w") - len(axes)]
    batch, heads, rows, keys = plain
    sizes = {"b": batch // windows, "w": windows, "h": heads, "s": rows, "t": keys, "1": 1}
    given = [_SIZE.search(axis) for axis in axes]
    return [
        int(size[0]) if size else math.prod(sizes[letter] for letter in axis)
        for axis, size in zip(axes, given, strict=True)
    ]


def _capped(scores: Array, cap: float) -> Array:
    return np.asarray(cap * np.tanh(scores / cap))


def shares(scores: Array, empty_rows: str, empty_at: float = 0.0) -> Array:
    """The softmax of each row; `empty_rows` says what a row of only -inf gives.

    zero is a guard: whatever is no number after the softmax becomes 0, as such files write it.
    """
    if empty_rows not in ("nan", "zero", "average"):
        raise FuseError(f"empty_rows is nan, zero or average, got {empty_rows!r}")
    if not scores.shape[-1]:  # no keys at all: nothing has a share
        return scores
    top = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - top)
    found = powers / powers.sum(axis=-1, keepdims=True)
    if empty_rows == "nan":
        return np.asarray(found)
    if empty_rows == "zero":
        hidden = np.isnan(found) | (top <= empty_at if empty_at < 0 else False)
        return np.asarray(np.where(hidden, 0.0, found))
    return np.asarray(np.where(np.isneginf(top), 1.0 / scores.shape[-1], found))


def attention(case: Case, q: Array, k: Array, v: Array, *masks: Array) -> Array:
    heads, groups = int(case["heads"]), int(case["groups"])
    query = opened(exact(q), case["q_layout"], heads)
    key = opened(exact(k), case["k_layout"], heads // groups)
    value = opened(exact(v), case["v_layout"], heads // groups)
    batch = query.shape[0]
    key, value = (shared(part, query.shape[1], batch, groups) for part in (key, value))
    entries = tuple(case["mask"])
    masks = masks[: sum(entry != "cap" for entry in entries)]
    sink = exact(masks[0]) if entries[:1] == ("sink",) else None
    inner = (
        case if sink is None else Case({**case.attrs, "mask": entries[1:], "mask_layouts": ()}, case.types)
    )
    scores = masked(inner, case["scale"] * (query @ key.swapaxes(-1, -2)), masks[sink is not None :])
    if sink is not None:
        scores = np.concatenate([scores, np.broadcast_to(sink, (*scores.shape[:-1], 1))], axis=-1)
    weights = shares(scores, case["empty_rows"], case.attrs.get("empty_at", 0.0))
    axes = case["q_layout"].split()
    windows = q.shape[axes.index("w")] if "w" in axes else 1
    return closed(weights[..., : key.shape[2]] @ value, case["out_layout"], windows)


def attn_output_gate(case: Case, q: Array, k: Array, v: Array, gate: Array, *masks: Array) -> Array:
    """Attention, its result times sigmoid(gate)."""
    return np.asarray(attention(case, q, k, v, *masks) / (1 + np.exp(-exact(gate))))


def values_in_keys(case: Case, q: Array, k: Array, *masks: Array) -> Array:
    """Attention whose values are `v_width` lanes of the key rows, from `v_from` on."""
    begin = int(case["v_from"])
    return attention(case, q, k, k[..., begin : begin + int(case["v_width"])], *masks)


ATTENTION: Mapping[str, Definition] = {
    "attention": attention, "attn_output_gate": attn_output_gate, "values_in_keys": values_in_keys,
}  # fmt: skip
