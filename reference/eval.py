"""Evaluation of a graph by numpy: fused ops by their parts, or by their class's definition.

By parts a fused op's leaves run in order on the same arrays by the same implementations as the lifted
graph, so the values are equal bit for bit. By definition a fused op is its class's closed form.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from fuse.ir import SMALL_CONSTANT_BYTES, Graph, Op, captures, leaves
from fuse.types import DTYPE_NUMBERS, Expr, FuseError, Type, substitute
from reference import control, definitions, ops
from reference.ops.call import NUMPY, Call, Value, short_dtype
from reference.precision import CARRYING, NARROW, carried, narrow_type, results_carried, settled, widened

#: Operators that draw, and how many seeds they get here (each exact as a float attribute).
_RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
_SEEDS = 1 << 24
Fused = Literal["parts", "definition"]
#: Called after each op that stands with the op, a way to read its operands, and its results.
Watch = Callable[[Graph, Op, Callable[[str], Value], tuple[Value, ...]], None]


class HasGraph(Protocol):
    """What an optimization gives."""

    @property
    def graph(self) -> Graph: ...


def as_graph(graph: Graph | HasGraph) -> Graph:
    """The graph itself, or the graph of what an optimization gave."""
    found = graph if isinstance(graph, Graph) else getattr(graph, "graph", None)
    if not isinstance(found, Graph):
        raise FuseError(f"a graph is wanted, got {type(graph).__name__}")
    return found


def eval(graph: Graph | HasGraph, feeds: Mapping[str, Any], fused: Fused = "parts") -> dict[str, np.ndarray]:
    """Outputs by name. feeds: an array for each input by name; one with a default may be left out.

    fused: how fused ops run, by their "parts" or by their class's "definition".
    Errors (FuseError): a feed that is missing, unknown or of another type or shape than the input;
    an operator without implementation, when it is reached.
    """
    if fused not in ("parts", "definition"):
        raise FuseError(f"fused is parts or definition, got {fused!r}")
    return Run(as_graph(graph), fused).outputs(feeds)


class Scope:
    """The values of one run of one graph, inside those of the graphs around it."""

    __slots__ = ("around", "run", "values")

    def __init__(self, run: Run, around: Scope | None) -> None:
        self.run, self.around = run, around
        self.values: dict[str, Value] = {}

    def read(self, value: str) -> Value:
        """The value of a path, in its own type; None for an absent operand."""
        return settled(self.raw(value))

    def raw(self, value: str) -> Value:
        """The value as it is held: one of a narrow type may be carried in f32."""
        if not value:
            return None
        scope: Scope | None = self
        while scope is not None:
            if value in scope.values:
                return scope.values[value]
            scope = scope.around
        return self.run.constant(value)


class _Step(NamedTuple):
    """One op that stands, and the values that nobody reads after it."""

    op: Op
    dead: tuple[str, ...]


class Run:
    """One evaluation: the way fused ops run, who watches, and what is kept between steps.

    watch is called for each op that stands; watch_leaf for each lifted op that runs.
    """

    def __init__(
        self,
        graph: Graph,
        fused: Fused = "parts",
        watch: Watch | None = None,
        watch_leaf: Watch | None = None,
    ) -> None:
        self.graph, self.fused, self.watch, self.watch_leaf = graph, fused, watch, watch_leaf
        self.sizes: dict[str, int] = {}
        self._constants: dict[str, np.ndarray] = {}
        self._plans: dict[int, list[_Step]] = {}
        self._calls: dict[int, tuple[Op, Call]] = {}

    def outputs(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The outputs of the whole graph by name."""
        scope = Scope(self, None)
        values, self.sizes = bind(self.graph, feeds)
        scope.values.update(values)
        with np.errstate(all="ignore"):
            results = self.body(self.graph, scope)
        return dict(zip(self.graph.outputs, results, strict=True))

    def constant(self, value: str) -> np.ndarray:
        """A constant; the small ones are kept."""
        kept = self._constants.get(value)
        if kept is not None:
            return kept
        tensor = self.graph.constant(value)
        if tensor is None:
            raise FuseError(f"{value} has no value: no input, constant or op makes it")
        array = tensor.array()
        if tensor.nbytes <= SMALL_CONSTANT_BYTES:
            self._constants[value] = array
        return array

    def body(self, graph: Graph, scope: Scope) -> list[Value]:
        """Run a graph whose inputs are in the scope; its outputs in order."""
        plan = self._plans.get(id(graph))
        if plan is None:
            plan = self._plans[id(graph)] = _planned(graph.ops, graph.outputs)
        for op, dead in plan:
            results = self.step(graph, op, scope)
            if self.watch is not None:
                self.watch(graph, op, scope.read, tuple(map(settled, results)))
            scope.values.update((v, r) for v, r in zip(op.outputs, results, strict=False) if v)
            for value in dead:
                scope.values.pop(value, None)
        return [scope.read(value) for value in graph.outputs]

    def step(self, graph: Graph, op: Op, scope: Scope) -> tuple[Value, ...]:
        """The results of one op that stands."""
        if not op.parts:
            return self.leaf(graph, op, scope)
        if self.fused == "definition" and not definitions.composite(op):
            types = tuple(self._sized(graph.type(value)) for value in op.outputs)
            operands = [scope.read(value) for value in definitions.operand_names(op)]
            # Like an operator's, a result of a narrow type goes on in f32: it is rounded where it is stored.
            wide = tuple(Type("f32", type.dims) if type.dtype in NARROW else type for type in types)
            results = definitions.define(op, operands, wide)
            return tuple(
                carried(result, NUMPY[type.dtype]) if type.dtype in NARROW else result
                for result, type in zip(results, types, strict=False)
            )
        inner = Scope(self, scope)
        plan = self._plans.get(id(op))
        if plan is None:
            members = op.parts if self.fused == "definition" else leaves(op)
            plan = self._plans[id(op)] = _planned(members, op.outputs)
        for part, dead in plan:
            results = self.step(graph, part, inner)
            inner.values.update((v, r) for v, r in zip(part.outputs, results, strict=False) if v)
            for value in dead:
                inner.values.pop(value, None)
        return tuple(inner.raw(value) for value in op.outputs)

    def _sized(self, type: Type) -> Type:
        """The type with the sizes that the feeds have."""
        dims = type.dims and tuple(substitute(dim, self.sizes) for dim in type.dims)
        return Type(type.dtype, dims)

    def leaf(self, graph: Graph, op: Op, scope: Scope) -> tuple[Value, ...]:
        """The results of one lifted op."""
        if op.kind in control.KINDS:
            results = control.run(self, op, scope)
        elif op.kind == "fuse.Dims":
            results = (_dims(op, scope),)
        else:
            results = self._primitive(op, [scope.raw(value) for value in op.inputs])
        if self.watch_leaf is not None:
            self.watch_leaf(graph, op, scope.read, tuple(map(settled, results)))
        return results

    def _primitive(self, op: Op, operands: list[Value]) -> tuple[Value, ...]:
        known = self._calls.get(id(op))
        if known is None:
            known = self._calls[id(op)] = (op, self._call(op))
        narrow = narrow_type(operands) if op.kind in CARRYING else None
        try:
            if narrow is None:
                return ops.run(known[1], list(map(settled, operands)))
            results = ops.run(known[1], list(map(widened, operands)))
        except FuseError as error:
            raise FuseError(f"{error} at {op.path}") from error
        return results_carried(op.kind, results, narrow)

    def _call(self, op: Op) -> Call:
        domain = op.kind.rpartition(".")[0]
        opset = self.graph.base.model.opsets.get(domain, 1)
        attrs = op.attrs
        if op.kind in _RANDOM and "seed" not in attrs:
            # One draw for the lifted graph and any that was made of it.
            attrs = {**attrs, "seed": float(zlib.crc32(op.path.encode()) % _SEEDS)}
        return Call(op.kind, attrs, opset, tuple(bool(value) for value in op.outputs))


def _planned(run: Iterable[Op], outputs: Iterable[str]) -> list[_Step]:
    """The ops with, for each, what is read last by it or by nobody."""
    order = list(run)
    kept = set(outputs)
    seen: set[str] = set()
    dead: list[tuple[str, ...]] = []
    for op in reversed(order):
        reads = list(op.inputs)
        for leaf in leaves(op):
            for body in leaf.bodies.values() if leaf.attrs else ():
                reads += captures(body)
        mentioned = dict.fromkeys(v for v in (*op.outputs, *reads) if v and v not in kept)
        dead.append(tuple(v for v in mentioned if v not in seen))
        seen.update(mentioned)
    return [_Step(op, values) for op, values in zip(order, reversed(dead), strict=True)]


def _dims(op: Op, scope: Scope) -> np.ndarray:
    """The shape that an op of kind fuse.Dims stands for, its symbols read from the inputs' axes."""
    sizes = {symbol: scope.read(op.inputs[at]).shape[axis] for symbol, at, axis in op.attrs["homes"]}
    found = [substitute(dim, sizes) for dim in op.attrs["dims"]]
    unknown = [str(dim) for dim in found if isinstance(dim, Expr)]
    if unknown:
        raise FuseError(f"the dim {unknown[0]} of {op.path} cannot be read from the inputs")
    return np.asarray(found, np.int64)


# ---- feeds ---------------------------------------------------------------------------------------
def bind(graph: Graph, feeds: Mapping[str, Any]) -> tuple[dict[str, Value], dict[str, int]]:
    """The graph's inputs from the feeds, checked against their types; defaults where one is left out.

    Also the size of each dimension that an input has, by its text.
    """
    known = set(graph.inputs)
    for name in feeds:
        if name not in known:
            raise FuseError(
                f"the graph has no input {name}; its inputs are {', '.join(graph.inputs) or 'none'}"
            )
    values: dict[str, Value] = {}
    sizes: dict[str, tuple[int, str]] = {}
    for name in graph.inputs:
        if name in feeds:
            values[name] = _checked(name, feeds[name], graph.type(name), sizes)
        elif name in graph.base.overridable:
            values[name] = graph.base.overridable[name].array()
        else:
            raise FuseError(f"input {name} has no feed")
    return values, {dim: size for dim, (size, _) in sizes.items()}


def _checked(name: str, value: Any, want: Type, sizes: dict[str, tuple[int, str]]) -> Value:
    """One feed as an array of its input's type. sizes: what each symbol was so far, and where."""
    if want.dtype not in DTYPE_NUMBERS:
        return value
    array = np.asarray(value)
    held = NUMPY[want.dtype]
    if array.dtype != held and array.dtype.kind == "V" and array.dtype.itemsize == held.itemsize:
        array = array.view(held)  # numpy's files keep only the size of types that it does not know
    got = (
        short_dtype(array) if array.dtype.kind in "USO" or array.dtype in NUMPY.values() else str(array.dtype)
    )
    if got != want.dtype:
        raise FuseError(f"input {name} wants {want}, got {got}{list(array.shape)}")
    if want.dims is None:
        return array
    if len(want.dims) != array.ndim:
        raise FuseError(f"input {name} wants {want}, got {got}{list(array.shape)}")
    for dim, size in zip(want.dims, array.shape, strict=True):
        if isinstance(dim, int):
            if dim != size:
                raise FuseError(f"input {name} wants {want}, got {got}{list(array.shape)}")
            continue
        before = sizes.setdefault(str(dim), (size, name))
        if before[0] != size:
            raise FuseError(f"dim {dim} is {before[0]} in input {before[1]} and {size} in input {name}")
    return array
