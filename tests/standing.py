"""What stands in a graph as plain data, so that two graphs can be compared slot for slot."""

from __future__ import annotations

from typing import Any

import fuse
from fuse.engine.compiling import Compile
from fuse.ir import Graph, Op
from fuse.shim import Shim


def standing(graph: Graph) -> list[Any]:
    """Every slot in order: nothing, or the op with its parts, bodies as lists of the same kind."""
    return [None if op is None else _op(op) for op in graph.slots]


def _op(op: Op) -> tuple[Any, ...]:
    attrs = {
        key: standing(value) if isinstance(value, Graph) else repr(value) for key, value in op.attrs.items()
    }
    parts = tuple(map(_op, op.parts))
    return (op.kind, op.inputs, op.outputs, attrs, parts, op.name, op.slot, op.placements)


def first_steps(graph: Graph, shim: Shim, count: int) -> Compile:
    """What a compile's first steps make of a graph, closed; the rest of the plan stays known."""
    plan = fuse.steps(shim)
    work = Compile(graph.copy(), shim)
    for index in range(count):
        work.run(plan, (), index)
    work.close(plan[:count], ())
    return work
