"""Operands whose element types contradict each other although the operator wants them alike.

No runtime accepts such a node, and yet its meaning is clear; torch writes one where a model in f16
keeps its norm's weights in f32. The model loads, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from fuse.ir import Op
from fuse.lifting.draft import Node
from fuse.types import UNKNOWN, Type

_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic


class Conflicts:
    """Collects the conflicts of one lift. Which operands are of one type, the schemas tell."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self.opsets = opsets
        self.lines: list[str] = []
        self._alike: dict[str, tuple[tuple[str, ...], str]] = {}

    def check(self, op: Op, node: Node, types: Mapping[str, Type]) -> None:
        """Note the op if two operands of one type variable have different element types."""
        alike = self._alike.get(op.kind)
        if alike is None:
            alike = self._alike[op.kind] = self._read(op.kind)
        variables, rest = alike
        if not variables and not rest:
            return
        first: dict[str, int] = {}
        for at, value in enumerate(op.inputs):
            variable = variables[at] if at < len(variables) else rest
            dtype = types.get(value, UNKNOWN).dtype
            if not variable or not dtype:
                continue
            other = first.setdefault(variable, at)
            before = types[op.inputs[other]].dtype
            if before != dtype:
                self.lines.append(
                    f"{node}: {node.inputs[other]!r} is {before} and {node.inputs[at]!r} is {dtype}"
                )
                return

    def _read(self, kind: str) -> tuple[tuple[str, ...], str]:
        """The type variable of each input of an operator, and of all that follow; "" for none."""
        domain, _, name = kind.rpartition(".")
        try:
            schema = onnx.defs.get_schema(name, self.opsets.get(domain, 1), domain)
        except onnx.defs.SchemaError:
            return (), ""
        names = {constraint.type_param_str for constraint in schema.type_constraints}
        variables = [
            parameter.type_str if parameter.type_str in names and parameter.is_homogeneous else ""
            for parameter in schema.inputs
        ]
        if sum(variable != "" for variable in variables) != len(set(variables) - {""}):
            shared = True
        else:
            shared = bool(schema.inputs) and schema.inputs[-1].option == _VARIADIC
        if not shared:
            return (), ""
        rest = variables[-1] if schema.inputs[-1].option == _VARIADIC else ""
        return tuple(variables), rest
