"""Binding: a graph for given sizes of its symbolic dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral

from fuse.folding import domain_opset, fold, live
from fuse.homes import KIND, Homes, substituted_dims
from fuse.ir import Content, Graph, Op, Tensor, make_base
from fuse.shapes import infer
from fuse.types import LARGEST_SIZE, UNKNOWN, Dim, Expr, FuseError, Type, substitute


def bind(graph: Graph, dims: Mapping[str, int]) -> Graph:
    """The graph, as it was lifted, with symbols bound to sizes (counts of elements, 0 or more).

    Types and contents are inferred again with the sizes, so what only they make known becomes
    constant too; ops that nothing reads then go. Errors: a symbol that no graph input has, a size
    that is none.
    """
    types = graph.base.types
    known = sorted({name for value in graph.inputs for name in _symbols(types.get(value, UNKNOWN))})
    for name, size in dims.items():
        if name not in known:
            raise FuseError(
                f"no graph input has a dimension {name!r}; there are {', '.join(known) or 'none'}"
            )
        if isinstance(size, bool) or not isinstance(size, Integral) or not 0 <= size <= LARGEST_SIZE:
            raise FuseError(f"dimension {name!r} cannot be {size!r}; it is a number, 0 to {LARGEST_SIZE}")
    return _Binding(graph, {name: int(size) for name, size in dims.items()}).graph(graph)


def _symbols(type: Type) -> Iterable[str]:
    return (name for dim in type.dims or () if isinstance(dim, Expr) for name in dim.symbols)


class _Binding:
    """The new tables, shared by the graph and its bodies."""

    def __init__(self, graph: Graph, values: dict[str, Dim]) -> None:
        base = graph.base
        self.values = values
        self.constants: dict[str, Tensor] = dict(base.constants)
        self.types: dict[str, Type] = {
            value: self._type(base.types.get(value, UNKNOWN)) for value in (*base.inputs, *self.constants)
        }
        self.contents: dict[str, Content] = {
            value: base.contents[value] for value in self.constants if value in base.contents
        }
        self.homes = Homes(
            (value, self.types[value]) for value in base.inputs if value not in base.overridable
        )

    def graph(self, old: Graph) -> Graph:
        """A graph over the new tables; bodies before their owner."""
        base = old.base
        for value in base.inputs:
            self.types[value] = self._type(base.types.get(value, UNKNOWN))
        ops: list[Op] = []
        places: list[int] = []
        for slot, op in enumerate(base.lifted):
            bound = self._op(op, old)
            if bound is not None:
                ops.append(bound)
                places.append(slot)
        kept = live(ops, base.outputs)
        return Graph(
            make_base(
                model=base.model,
                prefix=base.prefix,
                inputs=base.inputs,
                outputs=base.outputs,
                ops=[ops[at] for at in kept],
                types=self.types,
                contents=self.contents,
                constants=self.constants,
                overridable=base.overridable,
                nodes=[base.nodes[places[at]] for at in kept] if base.nodes else (),
            )
        )

    def _op(self, op: Op, old: Graph) -> Op | None:
        """The op for the new sizes, or None where its results have become constants."""
        if op.bodies:
            attrs = {k: self.graph(v) if isinstance(v, Graph) else v for k, v in op.attrs.items()}
            op = op._replace(attrs=attrs)
        if op.kind == KIND:
            op = substituted_dims(op, self.values)
        else:
            infer(op, self.types, self.contents, domain_opset(op.kind, old.base.model.opsets))
        for value in filter(None, op.outputs):
            self._complete(value, old)
        if old.base.output_set.isdisjoint(op.outputs):
            found = fold(op, self.types, self.contents)
            if found is not None:
                self.constants.update(found)
                return None
        if op.kind == "Shape":
            return self.homes.rewritten(op, self.types.get(op.inputs[0], UNKNOWN).dims) or op
        return op

    def _complete(self, value: str, old: Graph) -> None:
        """What inference cannot tell is what it was before, with the sizes put in."""
        new, before = self.types.get(value, UNKNOWN), self._type(old.base.types.get(value, UNKNOWN))
        if new.dims is None or not new.dtype:
            self.types[value] = Type(new.dtype or before.dtype, before.dims if new.dims is None else new.dims)
        content = old.base.contents.get(value)
        if content is not None and value not in self.contents:
            self.contents[value] = tuple(
                substitute(element, self.values) if isinstance(element, Expr) else element
                for element in content
            )

    def _type(self, type: Type) -> Type:
        if type.dims is None or not any(isinstance(dim, Expr) for dim in type.dims):
            return type
        return Type(type.dtype, tuple(substitute(dim, self.values) for dim in type.dims))
