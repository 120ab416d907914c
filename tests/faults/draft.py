"""A model that can be edited node by node, and the place in it that a fault is planted at."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fuse.ir import Graph, Op
from fuse.types import DTYPE_NUMBERS, Dims


@dataclass
class Draft:
    """A copy of a model whose main graph may be changed; `feeds` are arrays for inputs it gained."""

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    made: int = 0

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Draft:
        return cls(copy.deepcopy(model))

    @property
    def graph(self) -> onnx.GraphProto:
        return self.model.graph

    @property
    def opset(self) -> int:
        return next((o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx")), 0)

    # ---- reading -------------------------------------------------------------------------------
    def node(self, value: str) -> onnx.NodeProto:
        """The node that makes a value of the main graph."""
        for node in self.graph.node:
            if value in node.output:
                return node
        raise LookupError(f"no node makes {value}")

    def array(self, value: str) -> np.ndarray | None:
        """The array of an initializer or a Constant node, None for anything else."""
        for tensor in self.graph.initializer:
            if tensor.name == value:
                return numpy_helper.to_array(tensor)
        for node in self.graph.node:
            if value in node.output and node.op_type == "Constant":
                for attr in node.attribute:
                    if attr.name == "value":
                        return numpy_helper.to_array(attr.t)
        return None

    def below(self, value: str) -> str:
        """The value that an Identity passes on (a lift leaves Identity nodes out)."""
        for node in self.graph.node:
            if value in node.output and node.op_type == "Identity":
                return self.below(node.input[0])
        return value

    # ---- changing ------------------------------------------------------------------------------
    def fresh(self, hint: str = "planted") -> str:
        self.made += 1
        return f"{hint}_{self.made}"

    def constant(self, array: np.ndarray, hint: str = "planted_constant") -> str:
        name = self.fresh(hint)
        self.graph.initializer.append(
            numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        )
        return name

    def input(self, array: np.ndarray, hint: str = "planted_input") -> str:
        """A graph input of the array's type and dims, fed with it."""
        name = self.fresh(hint)
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.graph.input.append(helper.make_tensor_value_info(name, dtype, array.shape))
        self.feeds[name] = array
        return name

    def overridable(self, array: np.ndarray) -> str:
        """An initializer that is a graph input too."""
        name = self.constant(array, "planted_default")
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.graph.input.append(helper.make_tensor_value_info(name, dtype, array.shape))
        return name

    def output(self, value: str, dtype: int = TensorProto.FLOAT) -> None:
        self.graph.output.append(helper.make_tensor_value_info(value, dtype, None))

    def insert(self, node: onnx.NodeProto, beside: str, after: bool = True) -> None:
        """Put a node right after (or before) the node that makes a value; first, where none does."""
        at = next((i for i, n in enumerate(self.graph.node) if beside in n.output), -1)
        self.graph.node.insert(at + 1 if after else max(at, 0), node)

    def wrap(self, node: onnx.NodeProto, index: int, kind: str, *more: str, **attrs: object) -> str:
        """Put a new operator on one operand of a node; the value it makes."""
        value = node.input[index]
        out = self.fresh()
        made = helper.make_node(kind, [value, *more], [out], **attrs)
        self.insert(made, node.output[0], after=False)
        node.input[index] = out
        return out

    def rename_result(self, value: str) -> str:
        """Give a node's result a new name and leave the old one to be made by another node."""
        node = self.node(value)
        out = self.fresh("inner")
        node.output[list(node.output).index(value)] = out
        return out

    def set_attribute(self, node: onnx.NodeProto, name: str, value: object) -> None:
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])

    def attribute(self, node: onnx.NodeProto, name: str) -> object:
        return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


@dataclass(frozen=True)
class Place:
    """Where a rule fired on the clean model: its lifted ops, and the lifted graph they are of.

    parts: what the fused op was made of (a lifted op, or a fused op inside). op: the fused op.
    inside: the values inside any fused op of the whole model.
    """

    rule: str
    builds: str
    ops: tuple[Op, ...]
    op: Op
    graph: Graph
    inside: frozenset[str]

    @property
    def parts(self) -> tuple[Op, ...]:
        return self.op.parts

    def of(self, *kinds: str) -> list[Op]:
        return [op for op in self.ops if op.kind in kinds]

    def maker(self, value: str) -> Op | None:
        return next((op for op in self.ops if value in op.outputs), None)

    def readers(self, value: str) -> list[Op]:
        return [op for op in self.ops if value in op.inputs]

    def constant(self, value: str) -> bool:
        return bool(value) and self.graph.is_constant(value)

    def scalar(self, value: str) -> float | None:
        number = self.graph.scalar(value)
        return None if number is None else float(number)

    def dims(self, value: str) -> Dims:
        return self.graph.dims(value) or ()

    def constant_at(self, op: Op) -> int | None:
        """The index of the operand that is a constant, of an op of two operands with one."""
        found = [i for i, value in enumerate(op.inputs[:2]) if self.constant(value)]
        return found[0] if len(found) == 1 else None

    def interior(self) -> Iterator[tuple[str, Op]]:
        """(value, part that makes it) for values made by one part and read by another only."""
        for part in self.parts:
            for value in part.outputs:
                inside = any(value in other.inputs for other in self.parts if other is not part)
                if value and inside and value not in self.op.outputs:
                    yield value, part

    def like(self, value: str) -> str | None:
        """Another value of the same type, made earlier than the place, inside no other place, no product."""
        base = self.graph.base
        wanted, own = self.graph.type(value), {v for op in self.ops for v in op.outputs}
        first = min(op.slot for op in self.ops)
        best = None
        for other, slot in base.producer.items():
            if (
                slot >= first
                or other in own
                or other in self.inside
                or other == value
                or other in base.derived
            ):
                continue
            if base.lifted[slot].kind in ("MatMul", "Gemm"):
                continue
            if self.graph.type(other) == wanted and wanted.dims is not None and base.readers.get(other):
                best = other
        return best

    def number_type(self, value: str) -> int:
        return DTYPE_NUMBERS.get(self.graph.dtype(value), TensorProto.FLOAT)


@dataclass(frozen=True)
class Planted:
    """What a true report says of a planted fault.

    answers: (code, at) pairs that are right; a code ending in ":" takes every member of the family.
    rules: whose near miss it is. kept: the model still means what the rule builds (nothing to say).
    """

    answers: frozenset[tuple[str, str]]
    rules: frozenset[str]


def planted(rules: str, *answers: tuple[str, str]) -> Planted:
    return Planted(frozenset(answers), frozenset(rules.split()))
