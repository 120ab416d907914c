"""Operands whose element types contradict each other although the operator wants them alike.

No runtime accepts such a node, and yet its meaning is clear; torch writes one where a model in f16
keeps its norm's weights in f32. The model loads, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from fuse.ir import Op
from fuse.lifting.draft import Node
from fuse.types import Type

_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic


class Conflicts:
    """Collects the conflicts of one lift. Which operands are of one type, the schemas tell."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self.opsets = opsets
        self.lines: list[str] = []
        #: kind -> (groups of inputs that are of one type, where the last group goes on for ever)
        self._alike: dict[str, tuple[tuple[tuple[int, ...], ...], int]] = {}

    def check(self, op: Op, node: Node, types: Mapping[str, Type]) -> None:
        """Note the op if two operands of one type variable have different element types."""
        alike = self._alike.get(op.kind)
        if alike is None:
            alike = self._alike[op.kind] = self._read(op.kind)
        groups, endless = alike
        inputs = op.inputs
        for group in groups:
            first, dtype = -1, ""
            if endless >= 0 and endless in group:
                group += tuple(range(endless + 1, len(inputs)))
            for at in group:
                if at >= len(inputs) or inputs[at] not in types:
                    continue
                other = types[inputs[at]][0]
                if not dtype:
                    first, dtype = at, other
                elif other and other != dtype:
                    names = node.inputs
                    self.lines.append(f"{node}: {names[first]!r} is {dtype} and {names[at]!r} is {other}")
                    return

    def _read(self, kind: str) -> tuple[tuple[tuple[int, ...], ...], int]:
        domain, _, name = kind.rpartition(".")
        try:
            schema = onnx.defs.get_schema(name, self.opsets.get(domain, 1), domain)
        except onnx.defs.SchemaError:
            return (), -1
        variables = {constraint.type_param_str for constraint in schema.type_constraints}
        groups: dict[str, list[int]] = {}
        endless = -1
        for at, parameter in enumerate(schema.inputs):
            if parameter.type_str in variables and parameter.is_homogeneous:
                groups.setdefault(parameter.type_str, []).append(at)
                if parameter.option == _VARIADIC:
                    endless = at
        found = (tuple(group) for group in groups.values() if len(group) > 1 or endless in group)
        return tuple(found), endless
