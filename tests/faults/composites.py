"""Faults of what is built of other operators: gates, caches, convolutions, norms of heads, blocks; and
those that any place may have: a value rounded on the way, an operator missing."""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto

from fuse.ir import Op

from .draft import Draft, Place, Planted, planted

Plant = Callable[[Draft, Place], "Planted | None"]
#: Operators that only move values, or are no operator of a pattern.
_MOVES = frozenset("Transpose Reshape Unsqueeze Squeeze Expand Cast Slice Split Gather Concat Shape".split())


def _inner_edges(place: Place) -> list[tuple[Op, int]]:
    """(part, operand) where a part that computes reads what another gives, in f32."""
    found = []
    for op in place.ops:
        for index, value in enumerate(op.inputs):
            maker = place.maker(value)
            if maker is None or maker.kind in _MOVES or op.kind in _MOVES:
                continue
            if place.graph.dtype(value) == "f32" and not place.constant(value):
                found.append((op, index))
    return found


def rounded(which: int) -> Plant:
    """A value goes through f16 on its way from one part to another."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        edges = _inner_edges(place)
        if not edges:
            return None
        op, index = edges[which % len(edges)]
        node = draft.node(op.outputs[0])
        narrow = draft.wrap(node, index, "Cast", to=TensorProto.FLOAT16)
        wide = draft.wrap(node, index, "Cast", to=TensorProto.FLOAT)
        readers = [r.outputs[0] for r in place.readers(op.inputs[index])]
        ats = (narrow, wide, node.output[0], *readers)
        codes = ("op", "attribute", "same_value", "operand")
        members = " ".join(part.kind for part in place.parts if part.parts)
        return planted(f"{place.rule} {members}", *((code, at) for code in codes for at in ats))

    return plant


def missing(*kinds: str) -> Plant:
    """An operator is not there: who reads it reads what it reads."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        for op in place.of(*kinds):
            value = next((v for v in op.inputs if place.graph.type(v) == place.graph.type(op.outputs[0])), "")
            readers = place.readers(op.outputs[0])
            if not value or not readers or place.constant(value):
                continue
            source = draft.node(op.outputs[0]).input[list(op.inputs).index(value)]
            for reader in readers:
                node = draft.node(reader.outputs[0])
                for index, given in enumerate(reader.inputs):
                    if given == op.outputs[0]:
                        node.input[index] = source
            ats = (source, *(r.outputs[0] for r in readers))
            return planted(place.rule, *((code, at) for code in ("op", "operand") for at in ats))
        return None

    return plant


def other_root(new: str, old: str, rules: str = "") -> Plant:
    """Another operator at the root."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        root = next((part for part in place.parts if place.op.outputs[0] in part.outputs), None)
        if root is None or root.kind != old:
            return None
        draft.node(root.outputs[0]).op_type = new
        return planted(rules or place.rule, ("op", root.outputs[0]))

    return plant


def stray(kind: str, on: str) -> Plant:
    """An operator of one operand too many before the first operand of a part."""

    def plant(draft: Draft, place: Place) -> Planted | None:
        part = next((part for part in place.parts if part.kind in on.split()), None)
        if part is None or place.constant(part.inputs[0]):
            return None
        node = draft.node(part.outputs[0])
        out = draft.wrap(node, 0, kind)
        return planted(place.rule, ("op", out), ("operand", out), ("operand", node.output[0]))

    return plant


# ---- gates -----------------------------------------------------------------------------------------
def up_of_another(draft: Draft, place: Place) -> Planted | None:
    """The gate is of one activation, up of another."""
    root = next((op for op in place.ops if place.op.outputs[0] in op.outputs), None)
    up = place.op.inputs[1]
    if root is None or up not in root.inputs:
        return None
    product = place.graph.base.producer.get(up)
    op = None if product is None else place.graph.base.lifted[product]
    if op is None or op.kind not in ("MatMul", "Gemm") or place.graph.base.readers.get(op.inputs[0]) is None:
        return None
    node = draft.node(up)
    out = draft.wrap(node, 0, "Abs")
    guard = "guard:halves_are_of_one_activation"
    rules = f"{place.rule} moe moe_block"
    return planted(rules, (guard, up), (guard, out), (guard, root.outputs[0]))


# ---- caches ----------------------------------------------------------------------------------------
def cache_swapped(draft: Draft, place: Place) -> Planted | None:
    """The new rows stand before the past ones."""
    node = draft.node(place.op.outputs[0])
    if node.op_type != "Concat":
        return None
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return planted("kv_append", ("operand", node.output[0]))


def past_changed(draft: Draft, place: Place) -> Planted | None:
    """The past passes an operator before new rows are joined to it."""
    node = draft.node(place.op.outputs[0])
    if node.op_type != "Concat":
        return None
    out = draft.wrap(node, 0, "Abs")
    return planted("kv_append", ("operand", out))


# ---- blocks ----------------------------------------------------------------------------------------
def hidden_an_output(draft: Draft, place: Place) -> Planted | None:
    """What the last product of a block reads is an output too."""
    last = next((part for part in reversed(place.parts) if place.op.outputs[0] in part.outputs), None)
    value = last.inputs[0] if last is not None and last.inputs else ""
    maker = place.maker(value)
    if last is None or last.kind not in ("MatMul", "Gemm", "matmul_bias") or maker is None:
        return None
    draft.output(value, place.number_type(value))
    rules = f"{place.rule} attention gated_act matmul_bias_act silu gelu fast_gelu"
    return planted(rules, ("graph_output", value))


ROUNDED = {"rounded on the way, first": rounded(0), "rounded on the way, last": rounded(-1)}
ROUNDED_LAST = {"rounded on the way, last": rounded(-1)}
NORM = {
    "square missing": missing("Pow"),
    "eps missing": missing("Add"),
    "root missing": missing("Sqrt"),
    **ROUNDED,
}
ROPE = {"a table missing": missing("Mul"), "sign missing": missing("Neg"), **ROUNDED}
GATE = {"up of another activation": up_of_another}
CACHE = {"joined the wrong way round": cache_swapped, "past changed": past_changed}
CONV_ACT = {"Abs before the activation": stray("Abs", "Relu Clip HardSigmoid LeakyRelu")}
CONV_AFFINE = {"Abs before the batch norm": stray("Abs", "BatchNormalization")}
BIAS = {kind + " for Add": other_root(kind, "Add") for kind in ("Max", "Min", "Div")}
RESIDUAL = {kind + " for Add": other_root(kind, "Add") for kind in ("Max", "Min")}
GATED_RESIDUAL = {kind + " for Add": other_root(kind, "Add") for kind in ("Sub", "Max", "Min")}
GATED_NORM = {kind + " for Mul": other_root(kind, "Mul") for kind in ("Sub", "Div", "Max")}
OUTPUT_GATE = {kind + " for Mul": other_root(kind, "Mul") for kind in ("Add", "Sub", "Div")}
BLOCK = {"what the last product reads an output": hidden_an_output}
QK_NORM = {"Abs before the norm": stray("Abs", "rms_norm layer_norm RMSNormalization LayerNormalization")}
