"""Blocks: an attention with its products, a feed-forward block, a whole transformer layer.

What they compute is what their members compute; a chip that runs one whole says up to which
batch x rows, judged by the candidate's own dims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fuse import forms
from fuse.guards import reader_fault
from fuse.ir import Graph, Op, lands_in
from fuse.match import Fault, Match
from fuse.match.plausible import READERS, STRAY
from fuse.rule import Built, Rule
from fuse.rules.gates import squaring

_CODES = frozenset(
    "QuantizeLinear DequantizeLinear com.microsoft.QuantizeLinear com.microsoft.DequantizeLinear".split()
)
_VIEWS = _CODES | frozenset("Reshape Transpose Squeeze Unsqueeze Expand Slice Split Gather Cast".split())
#: What lays out or rounds x for the products only, and what gives their result its axes or its type back.
_FLATTENS = frozenset("Reshape QuantizeLinear com.microsoft.QuantizeLinear DynamicQuantizeLinear".split())
_FOLDS_BACK = frozenset("Reshape DequantizeLinear com.microsoft.DequantizeLinear".split())
#: What may stand between an attention and the products before it, results of fused rules included.
_BEFORE = (
    _VIEWS
    | forms.norm.kinds
    | forms.rope.kinds
    | forms.append.kinds
    | frozenset("Mul Div l2_norm qk_norm qk_norm_rope rope_kv_append qk_norm_rope_kv_append Concat".split())
)
_PRODUCTS = (
    forms.product.kinds
    | frozenset("merged_qkv merged_products merged_gate_up quantized_matmul matmul_bias_act".split())
) - {"com.microsoft.MatMulNBits"}
_AFTER = _VIEWS
#: How many of its operands an attention reads products of x in, where not q, k and v.
_ACTIVATIONS = {"attn_output_gate": 4, "values_in_keys": 2}
#: Attentions that multiply x by packed weights themselves.
_WITH_PRODUCTS = frozenset({"com.microsoft.Attention", "com.microsoft.QAttention"})
_LIMIT = 48


class Block(NamedTuple):
    """The ops of a block, what it reads, its result, and results inside that others read too."""

    ops: list[Op]
    x: str
    out: str
    also_written: tuple[str, ...] = ()


#: What reads a value only by mistake, or captures it.
_STRANGE = STRAY | {"If", "Loop", "Scan"}


def _match(graph: Graph, block: Block) -> Match:
    match = Match(graph)
    match.ops = list({op.slot: op for op in block.ops}.values())
    match.bound = {"block": block}
    match.root = block.out
    return match


def _is_product(graph: Graph, op: Op) -> bool:
    return op.kind in _PRODUCTS and (
        op.kind not in forms.product.kinds or forms.product(graph, op) is not None
    )


def _down(graph: Graph, operands: tuple[str, ...]) -> tuple[list[Op], set[str]] | None:
    """The ops from these values down to the products that make them, and what the products read."""
    ops: dict[int, Op] = {}
    sources: set[str] = set()
    todo = [value for value in operands if value]
    while todo:
        value = todo.pop()
        op = graph.producer(value)
        if op is None or op.slot in ops:
            continue
        if len(ops) > _LIMIT:
            return None
        if _is_product(graph, op):
            ops[op.slot] = op
            sources.add(op.inputs[0])
        elif op.kind in _BEFORE or _is_bias(graph, op):
            ops[op.slot] = op
            todo += _data(graph, op)
    if len(sources) == 1:
        _take_flattening(graph, ops, sources)
    return (list(ops.values()), sources) if sources else None


def _is_bias(graph: Graph, op: Op) -> bool:
    """A constant added to a result that its product could not take in: it is decoded from codes before."""
    return op.kind == "Add" and sum(map(graph.is_constant, op.inputs)) == 1


def _take_flattening(graph: Graph, ops: dict[int, Op], sources: set[str]) -> None:
    """Take in what flattens x to rows, or rounds it to codes, for the products only."""
    for _ in range(2):
        op = graph.producer(next(iter(sources)))
        if op is None or op.kind not in _FLATTENS or any(map(graph.is_output, op.outputs)):
            return
        if any(slot not in ops for value in op.outputs for slot in graph.readers(value)):
            return
        ops[op.slot] = op
        sources.clear()
        sources.add(op.inputs[0])


def _data(graph: Graph, op: Op) -> list[str]:
    """The operands that carry the activation on: of a cache the new rows, of a rotation x."""
    if op.kind == "Concat":
        return [op.inputs[-1]]
    if op.kind in forms.append.kinds | {"rope_kv_append", "qk_norm_rope_kv_append"}:
        return [op.inputs[1]]
    return [next((v for v in op.inputs if v and not graph.is_constant(v)), "")]


def find_attention_block(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """Products of one x, an attention over them, and the product of its result."""
    if not op.inputs:
        return
    if op.kind in _WITH_PRODUCTS:
        before: tuple[list[Op], set[str]] | None = ([], {op.inputs[0]})
    else:
        before = _down(graph, op.inputs[: _ACTIVATIONS.get(op.kind, 3)])
    if before is None or len(before[1]) != 1:
        return
    after = _up(graph, op)
    if after is None:
        yield from _read_by_others(graph, op, before[0]) if budget else ()
        return
    ops, sources = before
    inside = {one.slot for one in (*ops, op, *after)}
    caches = tuple(
        v
        for one in ops
        if one.kind in forms.append.kinds | {"rope_kv_append", "qk_norm_rope_kv_append"} or lands_in(one)
        for v in one.outputs
        if graph.is_output(v) or any(slot not in inside for slot in graph.readers(v))
    )
    m = _match(graph, Block([*ops, op, *after], next(iter(sources)), after[-1].outputs[0], caches))
    # Keys and values are results of many a model: of them nothing is said.
    keys = _down(graph, op.inputs[1:3]) if budget else None
    results = [one.outputs for one in (keys[0] if keys is not None else ())]
    yield from _whole_or_read(graph, m, budget, {m.root, *caches}.union(*results))


def _up(graph: Graph, op: Op) -> list[Op] | None:
    """From an attention's result through layout operators to the product that reads it."""
    found: list[Op] = []
    value = op.outputs[0]
    for _ in range(6):
        readers = graph.readers(value)
        if len(readers) != 1 or graph.is_output(value):
            return None
        reader = graph.slots[readers[0]]
        if reader is None:
            return None
        found.append(reader)
        if _is_product(graph, reader) and reader.inputs[0] == value and len(reader.outputs) == 1:
            return [*found, *_folding_back(graph, reader)]
        if reader.kind not in _AFTER:
            return None
        value = reader.outputs[0]
    return None


def _whole_or_read(graph: Graph, m: Match, budget: int, kept: set[str]) -> Iterator[Match]:
    """A whole block; with a budget, one of which a single value inside is an output of the graph, or is read
    by what computes nothing of a model's. kept: results that may be read by others."""
    if budget:
        m.fault = _read_inside(graph, m.ops, kept)
    if bool(budget) == (m.fault is not None):
        yield m


def _read_inside(graph: Graph, ops: list[Op], kept: set[str]) -> Fault | None:
    own = {one.slot: one for one in ops}
    inside = [v for one in ops for v in one.outputs if v and v not in kept]
    outside = [v for v in inside if graph.is_output(v) or any(slot not in own for slot in graph.readers(v))]
    if len(outside) != 1:
        return None
    readers = [graph.slots[slot] for slot in graph.readers(outside[0]) if slot not in own]
    meant = any(one is not None and one.kind not in _STRANGE for one in readers)
    return None if meant else reader_fault(graph, outside[0], own)


def _read_by_others(graph: Graph, op: Op, before: list[Op]) -> Iterator[Match]:
    """A block but for one thing: between the op and the product that reads it a value is an output of the
    graph, or is read by what computes nothing of a model's; or the weight changes at run time."""
    ops, value = [*before, op], op.outputs[0]
    fault: Fault | None = None
    for _ in range(6):
        readers = [graph.slots[slot] for slot in graph.readers(value)]
        others = [one for one in readers if one is not None and one.kind in _STRANGE]
        way = [one for one in readers if one is not None and one not in others]
        if len(way) != 1 or len(others) + graph.is_output(value) > 1:
            return
        if others or graph.is_output(value):
            if fault is not None:
                return
            fault = reader_fault(graph, value, {way[0].slot: way[0]})
        ops.append(way[0])
        changed = forms.product.almost(graph, way[0]) if fault is None else None
        if changed is not None:
            fault = Fault(*changed[1:])
        if changed is not None or (_is_product(graph, way[0]) and way[0].inputs[0] == value):
            if fault is not None:
                m = Match(graph, 0)
                m.ops, m.root, m.fault = ops, way[0].outputs[0], fault
                yield m
            return
        if way[0].kind not in _AFTER:
            return
        value = way[0].outputs[0]


def _folding_back(graph: Graph, product: Op) -> list[Op]:
    """What ends a product, if only that reads it: the axes of its rows, the floats of its codes, a bias."""
    found: list[Op] = []
    value = product.outputs[0]
    while len(found) < 3 and not graph.is_output(value) and len(readers := graph.readers(value)) == 1:
        op = graph.slots[readers[0]]
        ends = op is not None and op.kind in _FOLDS_BACK and op.inputs[0] == value
        if op is None or not (ends or _is_bias(graph, op)):
            break
        found.append(op)
        value = op.outputs[0]
    return found


def _read(m: Match, fault: Fault) -> bool:
    """Two products with all that stands between them are telling."""
    return fault.code in READERS | {"operand"}


def _built(kind: str) -> Callable[[Match], Built]:
    def build(m: Match) -> Built:
        block: Block = m["block"]
        return Built(kind, (block.x,), {}, outputs=(block.out, *block.also_written))

    return build


attention_block = Rule(
    "attention_block",
    """the products of x, their attention, and the product of its result

    One kernel where the rows are few enough to stay on chip from x to the residual.""",
    finds=find_attention_block,
    marks=tuple(sorted(forms.attention.kinds | _WITH_PRODUCTS)),
    almost=_read,
    builds=_built("attention_block"),
    reads=tuple(sorted(_PRODUCTS | _BEFORE | _AFTER)),
)

_GATES = frozenset("swiglu geglu reglu".split())
_ACTIVATION_KINDS = forms.activation.kinds | forms.biased_activation.kinds


def find_mlp_block(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """A product, an activation or gate of it, and the product of that."""
    before = _products_before(graph, op) if len(op.outputs) == 1 else None
    if before is None or len(before[1]) != 1:
        return
    square = squaring(graph, op.outputs[0]) if _is_relu(graph, op) else None
    acts = [op] if square is None else [op, square]
    after = _up(graph, acts[-1]) if len(graph.readers(acts[-1].outputs[0])) == 1 else None
    if after is None:
        yield from _read_by_others(graph, acts[-1], [*before[0], *acts[:-1]]) if budget else ()
        return
    m = _match(graph, Block([*before[0], *acts, *after], next(iter(before[1])), after[-1].outputs[0]))
    yield from _whole_or_read(graph, m, budget, {m.root})


def _is_relu(graph: Graph, op: Op) -> bool:
    """Whether an op ends in a relu, which a square may follow."""
    if op.kind == "matmul_bias_act":
        return bool(op.attrs["act"] == "relu")
    act = forms.activation(graph, op) if op.kind in forms.activation.kinds else None
    return act is not None and act.name == "relu"


def _products_before(graph: Graph, op: Op) -> tuple[list[Op], set[str]] | None:
    """The products that an activation or a gate is of, and what they read."""
    if op.kind != "matmul_bias_act":
        return _down(graph, op.inputs[:2] if op.kind in _GATES else op.inputs[:1])
    ops, sources = {op.slot: op}, {op.inputs[0]}
    _take_flattening(graph, ops, sources)
    return list(ops.values()), sources


mlp_block = Rule(
    "mlp_block",
    """a product, an activation or a gate, and the product of that

    A relu may be squared. The wide rows between the two products are never written.""",
    finds=find_mlp_block,
    marks=tuple(sorted(_GATES | _ACTIVATION_KINDS | {"matmul_bias_act"})),
    almost=_read,
    builds=_built("mlp_block"),
    reads=tuple(sorted(_PRODUCTS | _ACTIVATION_KINDS | _GATES)),
)


def find_layer(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """An attention block, an add and norm, a feed-forward block, an add and norm.

    What is x and what is the residual tells the kind: after a post-norm layer (BERT) both adds take
    the normed rows, in a pre-norm or gated one (GPT-2, Llama) they take the stream of sums.
    """
    if budget:
        return
    first = _add_norm_of(graph, op.outputs[0])
    mlp = None if first is None else _reader_of_kind(graph, first.out, "mlp_block")
    second = None if mlp is None else _add_norm_of(graph, mlp.outputs[0])
    if first is None or mlp is None or second is None:
        return
    residual = second.residual if second.x == mlp.outputs[0] else second.x
    if residual not in (first.out, first.total):
        return
    written = tuple(v for v in (second.total, *op.outputs[1:]) if v)
    yield _match(graph, Block([op, first.op, mlp, second.op], op.inputs[0], second.out, written))


def _add_norm_of(graph: Graph, value: str) -> forms.AddNorm | None:
    for slot in graph.readers(value):
        reader = graph.slots[slot]
        if reader is not None and reader.kind in forms.add_norm.kinds:
            found: forms.AddNorm | None = forms.add_norm(graph, reader)
            if found is not None and value in (found.x, found.residual):
                return found
    return None


def _reader_of_kind(graph: Graph, value: str, kind: str) -> Op | None:
    readers = (graph.slots[slot] for slot in graph.readers(value))
    return next((op for op in readers if op is not None and op.kind == kind and op.inputs[0] == value), None)


transformer_layer = Rule(
    "transformer_layer",
    """an attention block, add and norm, a feed-forward block, add and norm

    A whole layer as one kernel: post-norm (BERT), pre-norm (GPT-2, ViT) and gated (Llama) alike.""",
    finds=find_layer,
    marks=("attention_block",),
    builds=_built("transformer_layer"),
    reads=tuple(sorted(forms.add_norm.kinds | {"mlp_block"})),
)
