"""What a graph costs, before and after: launches, bytes moved, how much of it is fused."""

from __future__ import annotations

from collections import Counter
from collections.abc import ItemsView, Iterator

from fuse.ir import Graph
from fuse.report.rows import Coverage, Totals
from fuse.report.saves import launched, sum_bytes
from fuse.types import UNKNOWN, Dim, Type

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
    values: list[str] = []
    count: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    for one in (graph, *graph.bodies()):
        ops += len(one.base.lifted)
        sizes = Counter(one.into)
        for op in one.slots:
            if op is None:
                continue
            kind = op.kind
            if launched(op):
                launches += 1
                values += {*op.inputs, *op.outputs}
            if op.parts or kind in NATIVE or kind.startswith("com.microsoft."):
                count[kind] += 1
                inside[kind] += sizes[op.slot]
    total, unknown = sum_bytes(_types(graph, values))
    classes = tuple(Coverage(name=k, count=count[k], ops=inside[k]) for k in sorted(count))
    return Totals(ops=ops, launches=launches, bytes=_text(total), unknown=unknown, classes=classes)


def _types(graph: Graph, values: list[str]) -> ItemsView[Type, int]:
    """The type of each value that is read or written, with how often; constants left out."""
    types, constants = graph.base.types, graph.base.constants
    count: dict[Type, int] = {}
    for value, times in Counter(values).items():
        if value and value not in constants:
            type = types.get(value, UNKNOWN)
            count[type] = count.get(type, 0) + times
    return count.items()


def _text(total: Dim) -> int | str:
    return total if isinstance(total, int) else str(total)


def kinds(graph: Graph) -> Iterator[str]:
    """The operators a graph has, lifted or built, in its bodies too."""
    for one in (graph, *graph.bodies()):
        yield from one.base.by_kind
        yield from one.built
