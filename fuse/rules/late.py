"""Numerics and what follows: results written in codes, products of quantized weights that run as one.

What these compute is what their members compute in order.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuse import forms
from fuse.ir import Graph, Op
from fuse.match import Match
from fuse.rule import Built, Rule

QUANTIZE = ("QuantizeLinear", "com.microsoft.QuantizeLinear", "DynamicQuantizeLinear")
_DEQUANTIZE = frozenset({"DequantizeLinear", "com.microsoft.DequantizeLinear"})
#: Classes that multiply the activation of one side by the other.
_GATES = ("swiglu", "geglu", "reglu")
#: What writes its result row by row, and so can round it where it is written.
PRODUCERS = (
    forms.norm.kinds
    | forms.add_norm.kinds
    | forms.activation.kinds
    | forms.biased_activation.kinds
    | frozenset(
        "norm_add_norm ada_norm gated_norm group_norm embed_norm qk_norm matmul_bias_act conv_act".split()
    )
    | frozenset(_GATES)
)
#: What may stand between a product and the gate that reads it.
_PASSES = frozenset({"Reshape", "Cast"})


def _found(graph: Graph, ops: list[Op], root: str, **bound: object) -> Match:
    match = Match(graph)
    match.ops = ops
    match.root = root
    match.bound = dict(bound)
    return match


def _readers(graph: Graph, value: str) -> list[Op]:
    return [op for slot in graph.readers(value) if (op := graph.slots[slot]) is not None]


# ---- a result written in codes -------------------------------------------------------------------
def find_fused_quant(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """What quantizes a result, and what makes that result."""
    if budget:
        return
    producer = graph.producer(op.inputs[0])
    if producer is not None and producer.kind in PRODUCERS and producer.outputs[0] == op.inputs[0]:
        yield _found(graph, [producer, op], op.outputs[0], producer=producer, quantize=op)


def _fused_quant(m: Match) -> Built:
    producer, quantize = m["producer"], m["quantize"]
    codes = (*quantize.outputs, "", "")[:3]
    return Built("fused_quant", producer.inputs[:1], {}, outputs=(*codes, *producer.outputs))


fused_quant = Rule(
    "fused_quant",
    """a norm, an activation or a gate that takes the quantize of its result

    The result is rounded where it is made and a quarter of the bytes is written; where others read it
    in floats it is written on.""",
    finds=find_fused_quant,
    marks=QUANTIZE,
    builds=_fused_quant,
    reads=tuple(sorted(PRODUCERS)),
)


# ---- products of one quantized activation --------------------------------------------------------
def _products_of(graph: Graph, value: str) -> list[Op]:
    return [op for op in _readers(graph, value) if op.kind == "quantized_matmul" and op.inputs[0] == value]


def find_quant_shared(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """The products that read one value's codes, straight or decoded again."""
    if budget:
        return
    codes = op.outputs[0]
    decoders = [one for one in _readers(graph, codes) if one.kind in _DEQUANTIZE and one.inputs[0] == codes]
    products = _products_of(graph, codes)
    for decoder in decoders:
        products += _products_of(graph, decoder.outputs[0])
    products = sorted({one.slot: one for one in products}.values(), key=lambda one: one.slot)
    if len(products) > 1:
        yield _found(graph, products, products[0].outputs[0], x=op, decoders=decoders)


def _quant_shared(m: Match) -> Iterator[Built]:
    """With the quantize, with only what decodes it, or the products alone: as much as others leave."""
    products, x, decoders = m.ops, m["x"], m["decoders"]
    outputs = tuple(product.outputs[0] for product in products)
    taken = [[*decoders, x]] if x.kind in QUANTIZE else []
    for also in (*taken, decoders, []):
        source = x.inputs[0] if x in also else also[0].inputs[0] if also else products[0].inputs[0]
        yield Built("quant_shared", (source,), {}, outputs=outputs, also=list(also))


quant_shared = Rule(
    "quant_shared",
    """products that read one quantized activation, with its quantize, as one

    The activation is rounded and read once for all of them, and one launch does what each did alone.""",
    finds=find_quant_shared,
    marks=(*QUANTIZE, "fused_quant"),
    builds=_quant_shared,
    reads=("quantized_matmul",),
)


# ---- gates ---------------------------------------------------------------------------------------
def _sides(graph: Graph, op: Op) -> Iterator[tuple[str, str]]:
    """The two values that a gate multiplies, the one under its activation first."""
    if op.kind in _GATES:
        yield op.inputs[0], op.inputs[1]
        return
    act = forms.activation(graph, op)
    if act is None:
        return
    for mul in _readers(graph, act.out):
        others = [value for value in mul.inputs if value != act.out]
        if mul.kind == "Mul" and len(others) == 1:
            yield act.x, others[0]


def _quantized_below(graph: Graph, value: str) -> Op | None:
    op = graph.producer(value)
    while op is not None and op.kind in _PASSES:
        op = graph.producer(op.inputs[0])
    return op if op is not None and op.kind == "quantized_matmul" else None


def find_late_gate_up(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """The two products of quantized weights, of one x, that meet in a gate."""
    if budget:
        return
    for gate, up in _sides(graph, op):
        one, two = _quantized_below(graph, gate), _quantized_below(graph, up)
        if one is not None and two is not None and one is not two and one.inputs[0] == two.inputs[0]:
            products = sorted((one, two), key=lambda product: product.slot)
            yield _found(graph, products, products[0].outputs[0])


def _late_gate_up(m: Match) -> Built:
    first, second = m.ops
    return Built("quantized_gate_up", first.inputs[:1], {}, outputs=(first.outputs[0], second.outputs[0]))


late_merged_gate_up = Rule(
    "late_merged_gate_up",
    """the two products of quantized weights that meet in a gate, run as one

    Two launches become one and x is read once; the codes of both stand behind each other.""",
    finds=find_late_gate_up,
    marks=tuple(sorted(forms.activation.kinds | frozenset(_GATES))),
    builds=_late_gate_up,
    classes=("quantized_gate_up",),
    reads=("quantized_matmul",),
)


def find_late_gate(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """A gate of the two results of products that run as one."""
    if budget or len(op.outputs) != 2:
        return
    for gate in _readers(graph, op.outputs[0]):
        if gate.kind in _GATES and set(op.outputs) == set(gate.inputs[:2]):
            yield _found(graph, [op, gate], gate.outputs[0])


def _late_gate(m: Match) -> Built:
    products, gate = m.ops
    return Built("quantized_gate", products.inputs[:1], {}, outputs=gate.outputs[:1])


late_gated_act = Rule(
    "late_gated_act",
    """a gate with the two quantized products it reads

    The gate runs on the rows of both products where they are made, and neither is written.""",
    finds=find_late_gate,
    marks=("quantized_gate_up", "quant_shared"),
    builds=_late_gate,
    classes=("quantized_gate",),
    reads=_GATES,
)
