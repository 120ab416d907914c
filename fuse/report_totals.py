"""What a graph costs, before and after: launches, bytes moved, how much of it is fused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fuse.ir import Graph
from fuse.report_rows import Coverage, Totals
from fuse.report_saves import FREE_VIEWS, moved, sum_bytes
from fuse.types import Dim, Type

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
    traffic: Counter[Type] = Counter()
    count: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    for one in (graph, *graph.bodies()):
        launches += _launches(one, traffic)
        ops += len(one.base.lifted)
        sizes = Counter(one.into)
        for op in one.slots:
            if op is not None and (op.parts or op.kind in NATIVE or op.kind.startswith("com.microsoft.")):
                count[op.kind] += 1
                inside[op.kind] += sizes[op.slot]
    total, unknown = sum_bytes(traffic.items())
    classes = tuple(Coverage(name=k, count=count[k], ops=inside[k]) for k in sorted(count))
    return Totals(ops=ops, launches=launches, bytes=_text(total), unknown=unknown, classes=classes)


def _launches(graph: Graph, count: Counter[Type]) -> int:
    """Ops that launch; adds the types of the values they read and write to `count`."""
    launches = 0
    for op in graph.slots:
        if op is not None and op.kind not in FREE_VIEWS:
            launches += 1
            count.update(moved(graph, op))
    return launches


def _text(total: Dim) -> int | str:
    return total if isinstance(total, int) else str(total)


def kinds(graph: Graph) -> Iterator[str]:
    """The operators a graph has, lifted or built, in its bodies too."""
    for one in (graph, *graph.bodies()):
        yield from one.base.by_kind
        yield from one.built
