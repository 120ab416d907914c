"""Elementwise regions: what is left of single-reader arithmetic, as one kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fuse.ir import Graph, Op
from fuse.match import Match
from fuse.rule import Built, Rule
from fuse.types import FLOATS, spans

#: Operators and classes that compute each element from those at its own place. Products,
#: convolutions, reductions and attention are boundaries.
ELEMENTWISE = frozenset(
    "Add Sub Mul Div Pow Min Max Neg Abs Sqrt Reciprocal Exp Log Erf Tanh Sigmoid Relu LeakyRelu Elu "
    "Softplus Sin Cos Floor Ceil Round Clip Where Cast And Or Not Xor Equal Less LessOrEqual Greater "
    "GreaterOrEqual IsNaN "
    "HardSigmoid HardSwish Mish Gelu Swish Sign gelu fast_gelu quick_gelu silu mish hard_swish softcap "
    "swiglu geglu reglu gated_residual".split()
)
#: A chip's caps on a region, where its file gives them; none otherwise.
CAPS = ("max_depth", "max_inputs", "max_buffers")


def find_region(graph: Graph, op: Op, budget: int, caps: Mapping[str, int]) -> Iterator[Match]:
    """The largest region that ends in an op: grown down over single readers of the same dims."""
    dims = graph.dims(op.outputs[0])
    if budget or dims is None or graph.dtype(op.outputs[0]) not in FLOATS or not _whole(graph, op, op):
        return
    region = {op.slot: op}
    depth = {op.slot: 1}
    todo = [op]
    while todo:
        at = todo.pop()
        for value in at.inputs:
            made = graph.producer(value) if value else None
            if made is None or made.slot in region or not _whole(graph, made, op) or graph.is_output(value):
                continue
            if any(slot not in region for slot in graph.readers(value)):
                continue
            deeper = depth[at.slot] + 1
            if deeper > caps.get("max_depth", deeper) or not _fits(graph, {**region, made.slot: made}, caps):
                continue
            region[made.slot] = made
            depth[made.slot] = deeper
            todo.append(made)
    if len(region) > 1:
        match = Match(graph)
        match.ops = list(region.values())
        match.root = op.outputs[0]
        yield match


def _whole(graph: Graph, op: Op, root: Op) -> bool:
    """Whether an op may be in a region: elementwise, of the root's dims, its operands broadcast to them."""
    if op.kind not in ELEMENTWISE or len(op.outputs) != 1:
        return False
    dims = graph.dims(root.outputs[0])
    if dims is None or graph.dims(op.outputs[0]) != dims:
        return False
    return all(
        (found := graph.dims(value)) is not None and spans(found, dims)
        for value in op.inputs
        if value and not (op.kind == "Clip" and value != op.inputs[0])
    )


def _fits(graph: Graph, region: Mapping[int, Op], caps: Mapping[str, int]) -> bool:
    """Whether inputs and buffers stay within the chip's caps."""
    if "max_inputs" not in caps and "max_buffers" not in caps:
        return True
    made = {value for op in region.values() for value in op.outputs}
    read = {value for op in region.values() for value in op.inputs if value and value not in made}
    arrays = sum(graph.scalar(value) is None for value in read)
    return arrays <= caps.get("max_inputs", arrays) and arrays + 1 <= caps.get("max_buffers", arrays + 1)


def _region(m: Match) -> Built:
    made = {value for op in m.ops for value in op.outputs}
    ordered = sorted(m.ops, key=lambda op: op.slot)
    operands = dict.fromkeys(
        v for op in ordered for v in op.inputs if v and v not in made and m.graph.scalar(v) is None
    )
    return Built("elementwise_region", tuple(operands), {"inputs": len(operands)})


elementwise_region = Rule(
    "elementwise_region",
    """elementwise operators of one shape that only each other read, at least two

    Each value between them stays in registers; the chip's caps on depth, inputs and buffers bound
    the search itself.""",
    finds=find_region,
    marks=tuple(sorted(ELEMENTWISE)),
    builds=_region,
    primitives=True,
    capped=True,
    from_the_end=True,
)
