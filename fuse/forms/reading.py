"""How a form is read off an op: which kinds, beneath its placements, and what nearly is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fuse.ir import Graph, Op
from fuse.pattern import form_of
from fuse.placing import seen


class Almost(NamedTuple):
    """A form that an op would be but for one fault of its own (an attribute, an operand)."""

    form: Any
    code: str
    at: str
    want: str
    got: str


def reads(*kinds: str) -> Callable[[Any], Any]:
    """Say which kinds a form reads. Of a placed op it tells what is computed beneath the placements."""

    def mark(function: Any) -> Any:
        def form(graph: Graph, op: Op) -> Any:
            if not op.placements:
                return function(graph, op)
            found = function(graph, seen(op))
            return op if isinstance(found, Op) else found and found._replace(op=op)

        return form_of(*kinds)(form)

    return mark


def operand_of(op: Op, index: int) -> str:
    return op.inputs[index] if index < len(op.inputs) else ""
