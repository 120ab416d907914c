"""Each fused op alone on random operands of its own types: its parts beside its definition."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fuse.ir import SMALL_CONSTANT_BYTES, Graph, Op, leaves
from fuse.types import FLOATS, INTEGERS, FuseError, roots, substitute
from reference import control, definitions
from reference.check import Check, Mismatch, held_against_definition
from reference.eval import HasGraph, Run, Scope, as_graph
from reference.feeds import OTHER, feeds, generator, symbol_sizes
from reference.ops.call import NUMPY, Value, short_dtype

#: Operators that read only the shapes of what they read.
_SHAPE_ONLY = frozenset({"Shape", "Size", "fuse.Dims"})
#: How many operators may stand behind a side input that is computed, not drawn.
_MOST_SIDE_OPS = 1000
#: How often a drawn mask is true.
_TRUE = 0.7


@dataclass(frozen=True)
class Each:
    """One fused op held alone against its definition. error: relative; None where it was not checked,
    and then the reason."""

    op: str
    builds: str
    error: float | None
    reason: str = ""


def check_each(
    optimized: Graph | HasGraph,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    only: Collection[str] | None = None,
) -> list[Each]:
    """Each fused op alone on random operands of its own types: its parts beside its definition.

    Weights are read one op at a time, so a model that does not fit in memory is checked too. Shape
    vectors and other side inputs that no weight enters are computed from the graph's inputs. An op
    that cannot be run alone is in the list with the reason. only: paths of the fused ops to hold; by
    default all. Raises Mismatch at the first that differs.
    """
    whole = as_graph(optimized)
    alone = _Alone(whole, seed, symbol_sizes(whole, dims), dims)
    graphs = (*whole.bodies(), whole)
    fused = {op.path: (graph, op) for graph in graphs for op in graph.ops if op.parts}
    for path in only or ():
        if path not in fused:
            raise FuseError(f"no fused op {path}")
    return [alone.held(*fused[path]) for path in fused if only is None or path in only]


def _operands(op: Op) -> set[str]:
    """The operands of an op, or of the members of a block: what is drawn and not computed."""
    if definitions.composite(op):
        return {value for part in op.parts for value in _operands(part)}
    return set(definitions.operand_names(op) if op.parts else op.inputs)


class _Alone:
    """The sizes of symbols, and what side inputs are computed from."""

    def __init__(
        self, whole: Graph, seed: int, sizes: Mapping[str, int], dims: Mapping[str, int] | None
    ) -> None:
        self.whole, self.seed, self.sizes, self.dims = whole, seed, sizes, dims
        self.run = Run(whole)
        self.run.sizes.update(sizes)
        self.sides: dict[str, Value] = {}

    @cached_property
    def makers(self) -> dict[str, Op]:
        """The lifted op that makes each value, of the graph and the bodies in it."""
        graphs = (self.whole, *self.whole.bodies())
        return {value: op for graph in graphs for op in graph.base.lifted for value in op.outputs if value}

    @cached_property
    def inputs(self) -> dict[str, np.ndarray]:
        return feeds(self.whole, self.seed, self.dims)

    def held(self, graph: Graph, op: Op) -> Each:
        scope = Scope(self.run, None)
        try:
            with np.errstate(all="ignore"):
                self._fill(graph, op, scope)
                scope.values.update(zip(op.outputs, self.run.step(graph, op, scope), strict=True))
                results = tuple(scope.read(value) if value else None for value in op.outputs)
        except FuseError as error:
            return Each(op.path, op.kind, None, str(error))
        with np.errstate(all="ignore"):
            reason, apart = held_against_definition(graph, op, scope.read, results)
        if reason:
            dtype = "" if results[0] is None else short_dtype(results[0])
            found = Check(False, self.seed, dtype, True, f"{apart:.3g}", op.path)
            raise Mismatch(f"{op.kind} {op.path} differs by definition: {reason}", found)
        return Each(op.path, op.kind, apart)

    def _fill(self, graph: Graph, op: Op, scope: Scope) -> None:
        """Values for what an op reads and does not make; constants are read where they are."""
        inside = {value for leaf in leaves(op) for value in leaf.outputs}
        reads = dict.fromkeys((*op.inputs, *(v for leaf in leaves(op) for v in leaf.inputs)))
        operands = _operands(op)
        rng = generator(self.seed)
        for value in reads:
            if not value or value in inside or graph.constant(value) is not None:
                continue
            drawn = value in operands and graph.dtype(value) not in INTEGERS
            found = None if drawn else self._side(value)
            scope.values[value] = self._random(graph, op, value, rng) if found is None else found

    # ---- drawn ------------------------------------------------------------------------------------
    def _random(self, graph: Graph, op: Op, value: str, rng: np.random.Generator) -> np.ndarray:
        """A shape vector from its contents, else random values; ids stay below the rows of any table."""
        type = graph.type(value)
        if type.dims is None or type.dtype not in NUMPY:
            raise FuseError(f"the type of operand {value} is not known ({type})")
        shape = tuple(self._size(dim) for dim in type.dims)
        content = graph.content(value)
        if content is not None and None not in content:
            return np.asarray([self._size(e) for e in content]).reshape(shape).astype(NUMPY[type.dtype])
        if type.dtype == "bool":
            return rng.random(shape) < _TRUE
        if type.dtype in FLOATS:
            return rng.standard_normal(shape).astype(NUMPY[type.dtype])
        return rng.integers(0, max(1, self._table_rows(graph, op)), shape).astype(NUMPY[type.dtype])

    def _table_rows(self, graph: Graph, op: Op) -> int:
        """The fewest rows of any table that a part selects from."""
        found = [2]
        for leaf in leaves(op):
            table = {"Gather": 0, "RotaryEmbedding": 1, "com.microsoft.RotaryEmbedding": 2}.get(leaf.kind)
            dims = graph.dims(leaf.inputs[table]) if table is not None else None
            if dims:
                axis = int(leaf.attrs.get("axis", 0)) if leaf.kind == "Gather" else 0
                found.append(self._size(dims[axis]))
        return min(found)

    def _size(self, dim: Any) -> Any:
        """A dimension, or an element of a shape; what no input tells gets a small size."""
        if not hasattr(dim, "symbols"):
            return dim
        return substitute(dim, {**dict.fromkeys(roots(dim), OTHER), **self.sizes})

    # ---- computed ---------------------------------------------------------------------------------
    def _side(self, value: str) -> Value:
        """A value computed from the graph's inputs; None where weights, a body's own inputs or too many
        operators stand behind it."""
        order = self._behind(value)
        if order is None:
            return None
        scope = Scope(self.run, None)
        scope.values.update(self.sides)
        scope.values.update(self.inputs)
        for op in order:
            if op.kind in _SHAPE_ONLY:
                for name in op.inputs:
                    scope.values.setdefault(name, self._hollow(name))
            results = self.run.leaf(self.whole, op, scope)
            made = {name: result for name, result in zip(op.outputs, results, strict=False) if name}
            scope.values.update(made)
            self.sides.update(made)
        return scope.read(value)

    def _hollow(self, value: str) -> np.ndarray:
        """An array of a value's shape that takes no memory."""
        type = self.whole.type(value)
        if type.dims is None or type.dtype not in NUMPY:
            raise FuseError(f"the shape of {value} is not known ({type})")
        return np.broadcast_to(np.zeros((), NUMPY[type.dtype]), [self._size(dim) for dim in type.dims])

    def _behind(self, value: str) -> list[Op] | None:
        """The operators behind a value in an order to run them in."""
        order: list[Op] = []
        done: set[str] = set()
        stack: list[tuple[str, bool]] = [(value, False)]
        while stack:
            name, ready = stack.pop()
            op = self.makers.get(name)
            if ready and op is not None:
                order.append(op)
                continue
            if not name or name in done or name in self.sides or name in self.inputs:
                continue
            done.add(name)
            tensor = self.whole.constant(name)
            if tensor is not None:
                if tensor.nbytes > SMALL_CONSTANT_BYTES:
                    return None
                continue
            if op is None or op.kind in control.KINDS or len(done) > _MOST_SIDE_OPS:
                return None
            stack.append((name, True))
            done.update(op.outputs)
            if op.kind not in _SHAPE_ONLY:
                stack += [(read, False) for read in op.inputs]
        return order
