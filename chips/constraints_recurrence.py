"""Conditions of kernels that carry a state along a sequence. Docstrings are the sentences of `want`."""

from __future__ import annotations

from chips.answers import Answer, number, unknown
from chips.operands import Operands
from chips.schema import Number
from fuse.types import Dim, divide


def _heads(at: Operands, name: str) -> int:
    own = int(at.attr("key_heads") or 0) if name in ("q", "k") else 0
    return own or int(at.attr("heads"))


def _width(at: Operands, name: str) -> Dim | None:
    """The width of a head of k or v."""
    dims, layout = at.dims(name), at.layout(name)
    if dims is None or len(dims) != len(layout):
        return None
    for axis, size in zip(layout, dims, strict=True):
        if "d" in axis:
            return size if axis == "d" else divide(size, _heads(at, name))
    return None


def key_width(at: Operands, want: Number) -> Answer:
    """width of a key {want}"""
    return number(want, _width(at, "k"), "width of a key")


def value_width(at: Operands, want: Number) -> Answer:
    """width of a value {want}"""
    return number(want, _width(at, "v"), "width of a value")


def head_pairs(at: Operands, want: tuple[tuple[int, int], ...]) -> Answer:
    """heads of keys and of values {want}"""
    found = _heads(at, "k"), _heads(at, "v")
    return None if found in want else f"{found[0]} and {found[1]}"


def decay_space(at: Operands, want: tuple[str, ...]) -> Answer:
    """decay given as {want}"""
    if not at.value("decay"):
        return None
    found = str(at.attr("decay_space"))
    return None if found in want else {"log": "its logarithm", "linear": "itself"}[found]


def decay_of_heads(at: Operands, want: bool) -> Answer:
    """one decay a head"""
    return "one a lane of a key" if "d" in str(at.attr("decay_layout")) else None


def state_layout(at: Operands, want: tuple[str, ...]) -> Answer:
    """axes of the state {want}"""
    found = str(at.attr("state_layout"))
    kept = at.value("state") or len(at.op.outputs) > 1
    return None if found in want or not kept else found


def update(at: Operands, want: tuple[str, ...]) -> Answer:
    """update of the state {want}"""
    found = str(at.attr("update"))
    return None if found in want else found.replace("_", " ")


def unscaled(at: Operands, want: bool) -> Answer:
    """no factor of the result"""
    scale = at.attr("scale")
    return None if scale == 1.0 else f"{scale:g}"


def gates(at: Operands, want: bool) -> Answer:
    """no gate of x or of the result, no heads divided by their length"""
    found = [name.replace("_", " ") for name in ("x_gate", "gate") if at.value(name)]
    found += ["heads divided by their length"] if at.attr("heads") else []
    return " and ".join(found) or None


def state_columns(at: Operands, want: str) -> Answer:
    """a state of as many columns as the taps reach back"""
    if not at.value("state"):
        return None
    state, weight = at.dims("state"), at.dims("weight")
    if state is None or not weight or not isinstance(weight[-1], int):
        return unknown("columns of the state")
    reach = (weight[-1] - 1) * int(at.attr("dilation"))
    return number(Number(one_of=(reach,)), state[-1], "columns of the state")
