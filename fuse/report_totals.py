"""What a graph costs, before and after: launches, bytes moved, how much of it is fused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fuse.ir import Graph
from fuse.report_bytes import size_text
from fuse.report_rows import Coverage, Totals
from fuse.types import Dim, Type, add, mul, nbytes

#: Operators that no runtime launches a kernel for: they only say how bytes are read.
FREE_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})

#: Operators of ai.onnx that are a fusion already; every operator of com.microsoft counts as one.
NATIVE = frozenset(
    {
        "Attention",
        "BatchNormalization",
        "CausalConvWithState",
        "FlexAttention",
        "GRU",
        "Gelu",
        "GroupNormalization",
        "HardSwish",
        "InstanceNormalization",
        "LSTM",
        "LayerNormalization",
        "LinearAttention",
        "LpNormalization",
        "Mish",
        "RMSNormalization",
        "RNN",
        "RotaryEmbedding",
        "Swish",
        "TensorScatter",
    }
)


def totals(graph: Graph) -> Totals:
    """The totals of a graph and its bodies."""
    launches = ops = 0
    moved: Counter[Type] = Counter()
    count: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    for one in (graph, *graph.bodies()):
        launches += _launches(one, moved)
        ops += len(one.base.lifted)
        sizes = Counter(one.into)
        for op in one.slots:
            if op is not None and (op.parts or op.kind in NATIVE or op.kind.startswith("com.microsoft.")):
                count[op.kind] += 1
                inside[op.kind] += sizes[op.slot]
    total, unknown = _sum(moved)
    classes = tuple(Coverage(name=k, count=count[k], ops=inside[k]) for k in sorted(count))
    return Totals(ops=ops, launches=launches, bytes=total, unknown=unknown, classes=classes)


def _launches(graph: Graph, moved: Counter[Type]) -> int:
    """Ops that launch; adds the types of the values they read and write to `moved`."""
    types, constants = graph.base.types, graph.base.constants
    none = Type("", None)
    launches = 0
    for op in graph.slots:
        if op is None or op.kind in FREE_VIEWS:
            continue
        launches += 1
        for value in {*op.inputs, *op.outputs}:
            if value and value not in constants:
                moved[types.get(value, none)] += 1
    return launches


def _sum(moved: Counter[Type]) -> tuple[int | str, int]:
    """Bytes of all values that have a size, and how many have none."""
    total: Dim = 0
    unknown = 0
    for type, number in moved.items():
        size = nbytes(type)
        if size is None:
            unknown += number
        else:
            total = add(total, mul(number, size))
    text = size_text(total)
    return (0 if text is None else text), unknown


def kinds(graph: Graph) -> Iterator[str]:
    """The operators a graph has, lifted or built, in its bodies too."""
    for one in (graph, *graph.bodies()):
        yield from one.base.by_kind
        yield from one.built
