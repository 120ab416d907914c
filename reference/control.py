"""Operators that run a body graph: If, Loop, Scan, SequenceMap. A body reads outer values by their paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fuse.ir import Graph, Op
from fuse.types import FuseError
from reference.ops.call import NUMPY, Array, Value

if TYPE_CHECKING:
    from reference.eval import Run, Scope

KINDS = frozenset({"If", "Loop", "Scan", "SequenceMap"})
#: Before this opset a Scan had a batch axis.
_SCAN_WITHOUT_BATCH = 9


def run(how: Run, op: Op, scope: Scope) -> tuple[Value, ...]:
    """The results of an op with bodies."""
    operands = [scope.read(value) for value in op.inputs]
    if op.kind == "If":
        chosen = op.bodies["then_branch" if bool(operands[0].reshape(-1)[0]) else "else_branch"]
        return tuple(_body(how, chosen, (), scope))
    if op.kind == "Loop":
        return _loop(how, op, operands, scope)
    if op.kind == "SequenceMap":
        return _mapped(how, op, operands, scope)
    if how.graph.base.model.opsets.get("", _SCAN_WITHOUT_BATCH) < _SCAN_WITHOUT_BATCH:
        raise FuseError(f"no implementation for ai.onnx Scan before opset 9 at {op.path}")
    return _scan(how, op, operands, scope)


def _body(how: Run, body: Graph, operands: Sequence[Value], scope: Scope) -> list[Value]:
    inner = type(scope)(how, scope)
    inner.values.update(zip(body.inputs, operands, strict=True))
    return how.body(body, inner)


def _loop(how: Run, op: Op, operands: list[Value], scope: Scope) -> tuple[Value, ...]:
    """Operands: trip count (absent: no end), condition (absent: true), carried values."""
    body = op.bodies["body"]
    limit = None if operands[0] is None else int(operands[0].reshape(-1)[0])
    going = True if operands[1] is None else bool(operands[1].reshape(-1)[0])
    carried = list(operands[2:])
    gathered: list[list[Value]] = [[] for _ in body.outputs[1 + len(carried) :]]
    at = 0
    while going and (limit is None or at < limit):
        inputs = [np.asarray(at, np.int64), np.asarray(going), *carried]
        condition, *results = _body(how, body, inputs, scope)
        going = bool(condition.reshape(-1)[0])
        carried, scanned = results[: len(carried)], results[len(carried) :]
        for rows, row in zip(gathered, scanned, strict=True):
            rows.append(row)
        at += 1
    made = body.outputs[1 + len(carried) :]
    return (*carried, *(_stacked(rows, 0, body, v) for rows, v in zip(gathered, made, strict=True)))


def _stacked(rows: list[Value], axis: int, body: Graph, value: str) -> Array:
    """Rows joined along a new axis; of none only the type is known that each would have, 0 where a dim
    is not."""
    if rows:
        return np.stack(rows, axis=axis)
    dtype, dims = body.type(value)
    sizes = [dim if isinstance(dim, int) else 0 for dim in dims or ()]
    at = axis % (len(sizes) + 1)
    return np.zeros((*sizes[:at], 0, *sizes[at:]), NUMPY.get(dtype, np.float32))


def _mapped(how: Run, op: Op, operands: list[Value], scope: Scope) -> tuple[Value, ...]:
    """The body on each element of the first sequence, beside those of others and tensors as they are."""
    body = op.bodies["body"]
    made: list[list[Value]] = [[] for _ in body.outputs]
    for at in range(len(operands[0])):
        each = [one[at] if isinstance(one, list) else one for one in operands]
        for kept, result in zip(made, _body(how, body, each, scope), strict=True):
            kept.append(result)
    return tuple(made)


def _scan(how: Run, op: Op, operands: list[Value], scope: Scope) -> tuple[Value, ...]:
    """Operands: states, then values that are cut along an axis; results: states, then joined rows."""
    body = op.bodies["body"]
    count = int(op.attrs["num_scan_inputs"])
    states, sources = operands[: len(operands) - count], operands[len(operands) - count :]
    joined = len(body.outputs) - len(states)
    in_axes = op.attrs.get("scan_input_axes") or (0,) * count
    backward = op.attrs.get("scan_input_directions") or (0,) * count
    out_axes = op.attrs.get("scan_output_axes") or (0,) * joined
    out_backward = op.attrs.get("scan_output_directions") or (0,) * joined
    length = sources[0].shape[in_axes[0]]
    gathered: list[list[Value]] = [[] for _ in range(joined)]
    for at in range(length):
        rows = [
            np.take(source, length - 1 - at if back else at, axis=axis)
            for source, axis, back in zip(sources, in_axes, backward, strict=True)
        ]
        results = _body(how, body, [*states, *rows], scope)
        states = results[: len(states)]
        for kept, row in zip(gathered, results[len(states) :], strict=True):
            kept.append(row)
    turned = (rows[::-1] if back else rows for rows, back in zip(gathered, out_backward, strict=True))
    made = body.outputs[len(states) :]
    return (
        *states,
        *(_stacked(rows, axis, body, v) for rows, axis, v in zip(turned, out_axes, made, strict=True)),
    )
