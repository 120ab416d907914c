"""What an attention is, whatever wrote or built it, in the attributes of its class."""

from __future__ import annotations

from typing import Any, NamedTuple

from fuse.ir import Graph, Op
from fuse.pattern import form_of
from fuse.types import DTYPES, FLOATS


class Core(NamedTuple):
    """An attention: its operands, and the attributes of the class `attention`."""

    q: str
    k: str
    v: str
    masks: tuple[str, ...]
    attrs: dict[str, Any]
    out: str
    op: Op


@form_of("attention", "Attention")
def core(graph: Graph, op: Op) -> Core | None:
    """An attention that a rule built, or ai.onnx.Attention over heads on an axis of their own."""
    if op.kind == "Attention":
        return _native(graph, op)
    count = 3 + sum(entry != "cap" for entry in op.attrs.get("mask", ()))
    q, k, v = op.inputs[:3]
    return Core(q, k, v, op.inputs[3:count], dict(op.attrs), op.outputs[0], op)


def _native(graph: Graph, op: Op) -> Core | None:
    """ai.onnx.Attention without a cache, without causality of its own, of which only the result is read."""
    a, (q, k, v, mask, *more) = op.attrs, (*op.inputs, "", "", "", "")[:7]
    dims, keys = graph.dims(q), graph.dims(k)
    if dims is None or keys is None or len(dims) != 4 or len(keys) != 4 or any(more) or any(op.outputs[1:]):
        return None
    if a.get("is_causal") or a.get("left_window_size", -1) >= 0 or a.get("right_window_size", -1) >= 0:
        return None
    heads, own, width = dims[1], keys[1], dims[3]
    if not isinstance(heads, int) or not isinstance(own, int) or not isinstance(width, int):
        return None
    attrs: dict[str, Any] = {f"{name}_layout": "b h s d" for name in ("q", "k", "v", "out")}
    attrs |= {"heads": heads, "scale": float(a["scale"]) if "scale" in a else width**-0.5}
    if heads != own:
        attrs["groups"] = heads // own
    entries: list[str] = []
    if mask:
        columns = graph.dims(mask)
        if columns is None or columns[-1] != keys[2]:
            return None
        truth = graph.dtype(mask) == "bool"
        entries.append("keep" if truth else "add")
        attrs |= {"fill": (float("-inf"),)} if truth else {}
        attrs["empty_rows"] = "zero"
    if a.get("softcap"):
        entries.append("cap")
        attrs["softcap"] = float(a["softcap"])
    if entries:
        attrs["mask"] = tuple(entries)
    precision = DTYPES.get(a.get("softmax_precision", 0), "")
    if precision in FLOATS and precision != graph.dtype(q):
        attrs["compute"] = precision
    return Core(q, k, v, (mask,) if mask else (), attrs, op.outputs[0], op)
