"""Grows small models from the patterns of rules: the same data that matches makes what it must match.

A pattern is written out as it stands: a node as its operator, a constant as an initializer, anything
as an input, an operator by its form as a native one. Where a pattern leaves a choice (alternatives, the
steps of a star, the nesting of a product) each choice gives a model of its own, one changed at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import fuse
from fuse import forms
from fuse.classes import CLASSES
from fuse.pattern import (
    LAST,
    Alternatives,
    Anything,
    Constant,
    Form,
    Hole,
    Node,
    Pattern,
    Runtime,
    Star,
    Times,
    children,
    root_kinds,
)
from fuse.types import DTYPE_NUMBERS

OPSET = 23
NUMPY = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.DOUBLE: np.float64}
#: Operators whose axes are an input.
AXES_INPUT = frozenset({"ReduceMean", "ReduceSum", "ReduceL2", "ReduceSumSquare", "ReduceMax", "Unsqueeze"})


@dataclass
class Seeds:
    """What a pattern does not say: dims of the inputs by name, numbers of the constants, whole weights,
    and how an operator with parameters beside its operands is written at a path.

    forms: operators by the name of their form. made: inputs that something else makes, by name. skip:
    steps that do not stand alone.
    """

    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    types: Mapping[str, int] = field(default_factory=dict)
    nodes: Mapping[str, Callable[[Grower, str, list[str]], str]] = field(default_factory=dict)
    forms: Mapping[str, Callable[[Grower, str, dict[str, str]], str]] = field(default_factory=dict)
    made: Mapping[str, Callable[[Grower, str], str]] = field(default_factory=dict)
    skip: frozenset[str] = frozenset()
    default: tuple[int, ...] = (2, 3, 4)


def of_constants(pattern: Pattern) -> bool:
    """Whether a pattern holds nothing but constants."""
    inner = children(pattern)
    return isinstance(pattern, Constant) or (bool(inner) and all(map(of_constants, inner)))


class Grower:
    """Grows one model. points: every choice that was met, by path, and how many ways it has."""

    def __init__(self, seeds: Seeds, choices: Mapping[str, int]) -> None:
        self.seeds, self.choices = seeds, choices
        self.points: dict[str, int] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, onnx.ValueInfoProto] = {}
        self.initializers: list[onnx.TensorProto] = []
        self.bound: dict[str, str] = {}
        self.hole = ""
        self.fixed: int = TensorProto.FLOAT
        self.count = 0

    def choose(self, path: str, ways: int) -> int:
        if ways < 2:
            return 0
        self.points[path] = ways
        return min(self.choices.get(path, 0), ways - 1)

    # ---- making --------------------------------------------------------------------------------
    def name(self, hint: str) -> str:
        self.count += 1
        return f"{hint.lower()}_{self.count}"

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attrs: object) -> str:
        domain, _, op = kind.rpartition(".")
        outs = [self.name(op) for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), outs, domain=domain, **attrs))
        return outs[0]

    def array(self, array: np.ndarray, hint: str = "c") -> str:
        name = self.name(hint)
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def input(self, name: str, dims: tuple[int, ...], dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.setdefault(name, helper.make_tensor_value_info(name, dtype, dims))
        return name

    def type(self, value: str) -> tuple[int, tuple[int, ...]]:
        """Element type and dims of a value made so far."""
        found = fuse.load(self.model(value)).type(value)
        return DTYPE_NUMBERS[found.dtype], tuple(int(dim) for dim in found.dims or ())  # type: ignore[arg-type]

    def model(self, *outputs: str) -> onnx.ModelProto:
        infos = [onnx.ValueInfoProto(name=output) for output in outputs]
        graph = helper.make_graph(self.nodes, "grown", list(self.inputs.values()), infos, self.initializers)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=11)

    # ---- growing -------------------------------------------------------------------------------
    def grow(self, pattern: Pattern, path: str = "") -> str:
        """The value that a pattern matches."""
        return _GROW[type(pattern)](self, pattern, path)

    def anything(self, pattern: Anything, path: str) -> str:
        name = pattern.name
        if name not in self.bound:
            made = self.seeds.made.get(name)
            dims = self.seeds.dims.get(name, self.seeds.default)
            dtype = self.seeds.types.get(name, TensorProto.FLOAT)
            self.bound[name] = self.input(name, dims, dtype) if made is None else made(self, path)
        return self.bound[name]

    def runtime(self, pattern: Runtime, path: str) -> str:
        return self.input(pattern.name, (1,))

    def constant(self, pattern: Constant, path: str) -> str:
        """Of the type of what it meets."""
        if pattern.name in self.bound:
            return self.bound[pattern.name]
        if pattern.scalar:
            number = pattern.value if pattern.value is not None else self.seeds.numbers.get(pattern.name, 2.0)
            made = self.array(np.array(number, NUMPY[self.fixed]), pattern.name or "number")
        else:
            dims = self.seeds.weights.get(pattern.name, self.seeds.default[-1:])
            drawn = np.random.default_rng(len(pattern.name)).normal(0.5, 0.25, dims)
            made = self.array(drawn.astype(NUMPY[self.fixed]), pattern.name)
        if pattern.name:
            self.bound[pattern.name] = made
        return made

    def alternatives(self, pattern: Alternatives, path: str) -> str:
        options = [
            one for one in pattern.options if isinstance(one, Form) or not root_kinds(one) <= CLASSES.keys()
        ]
        at = self.choose(f"{path}|", len(options))
        return self.grow(options[at], f"{path}|{at}")

    def an_operator(self, pattern: Node, path: str) -> str:
        """Operands that are no constants first: a constant has the type of what it meets."""
        kind = pattern.kinds[0]
        operands = [""] * len(pattern.args)
        late = [i for i, arg in enumerate(pattern.args) if of_constants(arg)]
        for index, arg in enumerate(pattern.args):
            if index not in late:
                operands[index] = self.grow(arg, f"{path}/{kind}.{index}")
        types = [self.type(value)[0] for value in operands if value]
        outer, self.fixed = self.fixed, next((one for one in types if one in NUMPY), self.fixed)
        dtype = self.fixed
        for index in late:
            operands[index] = self.grow(pattern.args[index], f"{path}/{kind}.{index}")
        self.fixed = outer
        special = self.seeds.nodes.get(kind, _NODES.get(kind))
        if special is not None:
            return special(self, path, operands)
        attrs = {key: -1 if want is LAST else want for key, want in pattern.attrs}
        if kind in AXES_INPUT:
            operands.append(self.array(np.array([attrs.pop("axes")], np.int64), "axes"))
        if kind == "Cast":
            attrs["to"] = TensorProto.FLOAT16 if dtype == TensorProto.FLOAT else TensorProto.FLOAT
        return self.node(kind, *operands, outputs=pattern.output + 1, **attrs)

    def times(self, pattern: Times, path: str) -> str:
        """A product, nested from the left, from the right, or with its constant as a division."""
        way = self.choose(f"{path}*", 3)
        factors = [self.grow(factor, f"{path}.{i}") for i, factor in enumerate(pattern.factors)]
        own = self.type(factors[0])[0]
        dtype = own if own in NUMPY else self.fixed
        if pattern.constant != 1.0:
            number = 1 / pattern.constant if way == 2 else pattern.constant
            fixed = self.array(np.array(number, NUMPY[dtype]), "number")
            factors = [fixed, *factors] if way == 1 else [*factors, fixed]
        if len(factors) == 1:
            return self.node("Mul", factors[0], self.array(np.array(1, NUMPY[dtype])))
        if way == 1:
            factors.reverse()
        total = factors[0]
        for index, factor in enumerate(factors[1:], 1):
            divides = way == 2 and pattern.constant != 1.0 and index == len(factors) - 1
            total = self.node("Div" if divides else "Mul", total, factor)
        return total

    def form(self, pattern: Form, path: str) -> str:
        operands = {field: self.grow(inner, f"{path}.{field}") for field, inner in pattern.operands}
        make = self.seeds.forms.get(pattern.name) or _FORMS[pattern.form]
        return make(self, path, operands)

    def star(self, pattern: Star, path: str) -> str:
        steps = [step for step in pattern.steps if step.name not in self.seeds.skip]
        at = self.choose(f"{path}~{pattern.name}", 1 + len(steps))
        below = self.grow(pattern.inner, f"{path}~")
        if at == 0:
            return below
        step = steps[at - 1]
        self.hole = below
        return self.grow(step.pattern, f"{path}~{step.name}")


def as_it_is(grower: Grower, path: str, operands: list[str]) -> str:
    """A reshape or expand to the dims that are there already."""
    dims = np.array(grower.type(operands[0])[1], np.int64)
    kind = "Expand" if path.endswith("expand") else "Reshape"
    return grower.node(kind, operands[0], grower.array(dims, "shape"))


def with_attributes(kind: str, **attrs: object) -> Callable[[Grower, str, list[str]], str]:
    return lambda grower, path, operands: grower.node(kind, *operands, **attrs)


def outer_axes_exchanged(grower: Grower, path: str, operands: list[str]) -> str:
    """A transpose of the axes before the last two, or of the first two of three."""
    rank = len(grower.type(operands[0])[1])
    first = 1 if rank > 3 else 0
    perm = list(range(rank))
    perm[first], perm[first + 1] = perm[first + 1], perm[first]
    return grower.node("Transpose", operands[0], perm=perm)


_NODES: dict[str, Callable[[Grower, str, list[str]], str]] = {
    "Reshape": as_it_is,
    "Transpose": outer_axes_exchanged,
}


def layer_normalization(grower: Grower, path: str, operands: dict[str, str]) -> str:
    x = operands.get("x") or grower.input("x", grower.seeds.default)
    width = grower.type(x)[1][-1]
    weight = grower.array(np.linspace(0.5, 1.5, width).astype(np.float32), "scale")
    return grower.node("LayerNormalization", x, weight, epsilon=1e-3)


def rms_normalization(grower: Grower, path: str, operands: dict[str, str]) -> str:
    weight = grower.array(np.linspace(0.5, 1.5, grower.type(operands["x"])[1][-1]).astype(np.float32))
    return grower.node("RMSNormalization", operands["x"], weight, epsilon=1e-3)


def product(grower: Grower, path: str = "", operands: Mapping[str, str] | None = None) -> str:
    operands = operands or {}
    x = operands.get("x") or grower.input("x", grower.seeds.default)
    width = grower.type(x)[1][-1]
    drawn = np.random.default_rng(3).normal(0, 0.5, (width, grower.seeds.default[-1]))
    return grower.node("MatMul", x, grower.array(drawn.astype(np.float32), "weight"))


def gemm(grower: Grower, path: str, operands: dict[str, str]) -> str:
    x = operands.get("x") or grower.input("x", grower.seeds.default[-2:])
    width = grower.type(x)[1][-1]
    weight = grower.array(np.random.default_rng(3).normal(0, 0.5, (width, 6)).astype(np.float32), "weight")
    return grower.node("Gemm", x, weight, grower.array(np.linspace(-1, 1, 6).astype(np.float32), "bias"))


def gelu(grower: Grower, path: str, operands: dict[str, str]) -> str:
    return grower.node("Gelu", operands.get("x") or product(grower))


def bias_gelu(grower: Grower, path: str, operands: dict[str, str]) -> str:
    return grower.node("com.microsoft.BiasGelu", operands["x"], operands["bias"])


_FORMS: dict[object, Callable[[Grower, str, dict[str, str]], str]] = {
    forms.norm: layer_normalization,
    forms.product: product,
    forms.activation: gelu,
    forms.biased_activation: bias_gelu,
}
_GROW: dict[type, Callable[[Grower, Pattern, str], str]] = {
    Anything: Grower.anything,  # type: ignore[dict-item]
    Runtime: Grower.runtime,  # type: ignore[dict-item]
    Constant: Grower.constant,  # type: ignore[dict-item]
    Alternatives: Grower.alternatives,  # type: ignore[dict-item]
    Node: Grower.an_operator,  # type: ignore[dict-item]
    Times: Grower.times,  # type: ignore[dict-item]
    Form: Grower.form,  # type: ignore[dict-item]
    Star: Grower.star,  # type: ignore[dict-item]
    Hole: lambda grower, pattern, path: grower.hole,
}


@dataclass(frozen=True)
class Grown:
    """A model grown from a pattern: which choices were taken, and the value at its root."""

    way: str
    model: onnx.ModelProto
    root: str


def grown(pattern: Pattern, seeds: Seeds) -> Iterator[Grown]:
    """The model as the pattern stands, then one for each other choice that it leaves."""
    todo: list[dict[str, int]] = [{}]
    seen: set[tuple[tuple[str, int], ...]] = {()}
    while todo:
        choices = todo.pop(0)
        grower = Grower(seeds, choices)
        root = grower.grow(pattern)
        way = ", ".join(f"{path}={at}" for path, at in choices.items()) or "as it stands"
        yield Grown(way, grower.model(root), root)
        if len(choices) > 1:
            continue
        for path, ways in grower.points.items():
            for at in range(1, ways):
                more = {**choices, path: at}
                key = tuple(sorted(more.items()))
                nested = not choices or path.startswith(next(iter(choices)).rstrip("|*"))
                if path in choices or not nested or key in seen:
                    continue
                seen.add(key)
                todo.append(more)
