"""Small models built by hand, and what the table says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from onnx import ModelProto, TensorProto, helper, numpy_helper

import chips
import fuse
import reference
from fuse.engine.compiler import Optimized

ELEMENTS = {np.float32: TensorProto.FLOAT, np.float16: TensorProto.FLOAT16, np.float64: TensorProto.DOUBLE}


class Building:
    """A model under way. Weights are drawn in order, so a graph built alike has the same ones."""

    def __init__(self, dtype: Any = np.float32, opset: int = 21, seed: int = 0) -> None:
        self.dtype, self.opset = dtype, opset
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.constants: dict[str, np.ndarray | TensorProto] = {}
        self.draw = np.random.default_rng(seed)

    def input(self, name: str, *dims: int | str, dtype: int | None = None) -> str:
        element = ELEMENTS[self.dtype] if dtype is None else dtype
        self.inputs.append(helper.make_tensor_value_info(name, element, dims))
        return name

    def constant(self, array: Any, name: str = "") -> str:
        """A constant; a plain number or list becomes one of the model's type."""
        name = name or f"c{len(self.constants)}"
        given = isinstance(array, np.ndarray | TensorProto)
        self.constants[name] = array if given else np.asarray(array, self.dtype)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def weight(self, *dims: int, about: float = 0.2) -> str:
        return self.constant(self.draw.normal(about, 0.5, dims).astype(self.dtype))

    def overridable(self, constant: str) -> str:
        """Make a constant an input with a default as well."""
        array = self.constants[constant]
        tensor = array if isinstance(array, TensorProto) else numpy_helper.from_array(array)
        self.inputs.append(helper.make_tensor_value_info(constant, tensor.data_type, list(tensor.dims)))
        return constant

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attrs: Any) -> Any:
        """A node; its result's name, or those of its results."""
        domain, _, kind = kind.rpartition(".")
        names = [f"{kind}_{len(self.nodes)}" + (f"_{i}" if i else "") for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attrs))
        return names[0] if outputs == 1 else tuple(names)

    def model(self, *outputs: str, elements: tuple[int, ...] = ()) -> ModelProto:
        types = elements or (ELEMENTS[self.dtype],) * len(outputs)
        infos = [helper.make_tensor_value_info(n, e, None) for n, e in zip(outputs, types, strict=True)]
        graph = helper.make_graph(self.nodes, "g", self.inputs, infos)
        for name, array in self.constants.items():
            tensor = array if isinstance(array, TensorProto) else numpy_helper.from_array(array)
            graph.initializer.append(tensor)
            graph.initializer[-1].name = name
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def drawn(*strategies: Any) -> Any:
    """Twenty draws of a test that lifts, optimizes and runs a model; the first pays for what is cached."""
    return lambda test: settings(deadline=None, max_examples=20)(given(*strategies)(test))


def optimized(model: ModelProto, chip: str = "any") -> Optimized:
    return fuse.optimize(fuse.load(model), shim=chips.load(chip))


def fired(model: ModelProto, kind: str, seed: int = 0) -> Any:
    """The first op of a class that fired; values are the same by parts and close by definition."""
    found = optimized(model)
    records = [r for r in found.records if r.outcome == "fired" and r.builds == kind]
    assert records, found.report
    assert reference.check(found.before, found.graph, seed=seed).bit_equal
    return records[0].op


def near(model: ModelProto, rule: str) -> set[str]:
    """The codes of a rule's near misses."""
    return {row.reasons[0].code for row in optimized(model).report.near(rule)}


def codes(model: ModelProto, rule: str) -> set[str]:
    """The codes of a rule's near misses; the rule fires nowhere, and values stay."""
    found = optimized(model)
    assert not [r for r in found.records if r.outcome == "fired" and r.rule == rule], found.report
    assert reference.check(found.before, found.graph).bit_equal
    return near(model, rule)


def each_interior_as_an_output(model: ModelProto, kind: str, skip: tuple[str, ...] = ()) -> int:
    """Mark every value inside a fused op as an output in turn: it is kept, and no value changes."""
    op = fired(model, kind)
    inside = [v for leaf in fuse.leaves(op) for v in leaf.outputs if v and v not in op.outputs]
    for value in (v for v in inside if v not in skip):
        twin = ModelProto.FromString(model.SerializeToString())
        dtype = fuse.load(model).dtype(value)
        element = {"f16": 10, "f32": 1, "u8": 2, "i32": 6}[dtype]
        twin.graph.output.append(helper.make_tensor_value_info(value, element, None))
        found = optimized(twin)
        assert value in found.graph.outputs
        assert reference.check(found.before, found.graph).bit_equal
    return len(inside)
