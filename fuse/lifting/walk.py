"""The one pass over the nodes: names become paths, types and contents are inferred, ops are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import onnx

from fuse.folding import domain_opset, fold, live
from fuse.homes import Homes
from fuse.ir import Content, Graph, Model, Op, Tensor, make_base
from fuse.lifting.attributes import declared
from fuse.lifting.bodies import body_types
from fuse.lifting.conflicts import Conflicts
from fuse.lifting.constants import constant_node
from fuse.lifting.draft import Draft, Node
from fuse.lifting.tensors import Weights, content_of
from fuse.lifting.wanted import check
from fuse.shapes import infer
from fuse.types import DTYPES, UNKNOWN, FuseError, Type

#: Before this IR version the file had no other way to write a constant than a graph input with a
#: default, so there a default is a constant (onnxruntime reads such files the same way).
FIRST_IR_WITH_CONSTANTS = 4
#: What the report of the lift counts, in this order.
COUNTED = (
    "sorted", "functions", "constants", "identities", "dropouts", "casts", "folded", "shapes", "unread",
)  # fmt: skip


class Scope:
    """The names one graph can see: its own so far, then those of the graphs around it."""

    __slots__ = ("around", "draft", "hints", "paths", "reads")

    def __init__(self, draft: Draft, around: Scope | None) -> None:
        self.draft, self.around = draft, around
        self.paths: dict[str, str] = {"": ""}
        self.hints: dict[str, tuple[onnx.ValueInfoProto, bool]] | None = None
        self.reads: set[str] | None = None

    def find(self, name: str) -> str | None:
        """The path of a name, or None where nothing made before has it."""
        scope: Scope | None = self
        while scope is not None:
            path = scope.paths.get(name)
            if path is not None:
                return path
            scope = scope.around
        return None

    def hint(self, name: str, path: str) -> Type:
        """What the file itself says of the type of a value.

        An exporter copies the names of dims that its user gave for an output, and nothing checks
        them: those are not taken over.
        """
        if self.hints is None:
            proto = self.draft.proto
            self.hints = {value.name: (value, False) for value in proto.output}
            self.hints.update((value.name, (value, True)) for value in proto.value_info)
        found = self.hints.get(name)
        return UNKNOWN if found is None else declared(found[0], path, named=found[1])

    def is_read(self, name: str) -> bool:
        """Whether a node still to come, a body of one, or an output reads a value."""
        if self.reads is None:
            self.reads = {value for node in self.draft.nodes for value in node.reads}
            self.reads.update(self.draft.outputs)
        return name in self.reads


class Lift:
    """The state of one lift: the tables that all its graphs share."""

    def __init__(
        self, proto: onnx.ModelProto, opsets: dict[str, int], draft: Draft, weights: Weights
    ) -> None:
        self.weights = weights
        self.opsets, self.opset = opsets, opsets.get("", 0)
        self.old = 0 < proto.ir_version < FIRST_IR_WITH_CONSTANTS
        self.types: dict[str, Type] = {}
        self.contents: dict[str, Content] = {}
        self.constants: dict[str, Tensor] = {}
        self.paths: set[str] = set()
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        self.nodes = 0
        self.conflicts = Conflicts(opsets)
        #: What is known of the model while bodies are made; the lift ends with the whole of it.
        self.model = Model("", "", opsets, proto.ir_version, 0)
        self.homes = Homes(
            (value.name, declared(value, value.name))
            for value in draft.proto.input
            if value.name not in draft.constants
        )

    # ---- one graph -----------------------------------------------------------------------------
    def graph(self, draft: Draft, around: Scope | None, inputs: tuple[Type | None, ...]) -> Graph:
        """Lift a graph. inputs: for a body, what its owner tells of its inputs' types, by position."""
        scope = Scope(draft, around)
        # A body's inputs are always given, whatever their defaults.
        constants = draft.constants.keys() if self.old and around is None else frozenset()
        overridable = self._define(scope, inputs, constants)
        self.nodes += len(draft.nodes)
        self.counts["sorted"] += draft.moved
        outputs = frozenset(draft.outputs)
        ops: list[Op] = []
        protos: list[object] = []
        rest = draft.nodes
        rest.reverse()
        while rest:
            # Taken off the list, so that what is lifted already need not be held twice.
            node = rest.pop()
            op = self._node(node, scope, outputs)
            if op is not None:
                ops.append(op)
                protos.append(node.proto)
        paths = [self._output(scope, value) for value in draft.proto.output]
        kept = live(ops, paths)
        self.counts["unread"] += len(ops) - len(kept)
        return Graph(
            make_base(
                model=self.model,
                prefix=draft.prefix,
                inputs=[scope.paths[name] for name in draft.inputs if name not in constants],
                outputs=paths,
                ops=[ops[at] for at in kept],
                types=self.types,
                contents=self.contents,
                constants=self.constants,
                overridable=overridable,
                nodes=[protos[at] for at in kept],
            )
        )

    def _define(
        self, scope: Scope, inputs: tuple[Type | None, ...], constants: Collection[str]
    ) -> dict[str, Tensor]:
        """Give the inputs and initializers of a graph their paths and types; returns the defaults.

        constants: initializers that are constants even where they are inputs too.
        """
        draft = scope.draft
        for name in dict.fromkeys((*draft.inputs, *draft.constants, *draft.made)):
            self._claim(name, scope)
        overridable: dict[str, Tensor] = {}
        for at, value in enumerate(draft.proto.input):
            path = scope.paths[value.name] = draft.prefix + value.name
            known = inputs[at] if at < len(inputs) else None
            self.types[path] = _meet(known, declared(value, path))
        for name, tensor in draft.constants.items():
            path = scope.paths[name] = draft.prefix + name
            if path in self.types and name not in constants:
                overridable[path] = tensor
                self.types[path] = _meet(self.types[path], Type(tensor.dtype, None))
            else:
                self._constant(path, tensor)
        return overridable

    def _claim(self, name: str, scope: Scope) -> None:
        """A name may not be one that the graph sees around it, nor a path be taken."""
        path = scope.draft.prefix + name
        if scope.around is not None and scope.around.find(name) is not None:
            raise FuseError(f"{name!r} is made{scope.draft.where} and already around it")
        if path in self.paths:
            raise FuseError(f"two values would both be called {path!r}")
        self.paths.add(path)

    def _constant(self, path: str, tensor: Tensor) -> None:
        self.constants[path] = tensor
        self.types[path] = Type(tensor.dtype, tensor.dims)
        content = content_of(tensor, self.weights)
        if content is not None:
            self.contents[path] = content

    def _output(self, scope: Scope, value: onnx.ValueInfoProto) -> str:
        name = value.name
        path = scope.find(name)
        if path is None or not name:
            raise FuseError(f"graph output {name!r} is made by no node{scope.draft.where}")
        said, known = declared(value, path).dtype, self.types.get(path, UNKNOWN).dtype
        if said and known and said != known:
            self.conflicts.lines.append(
                f"graph output {name!r}{scope.draft.where} is declared {said} and its node makes {known}"
            )
        return path

    # ---- one node ------------------------------------------------------------------------------
    def _node(self, node: Node, scope: Scope, outputs: frozenset[str]) -> Op | None:
        """The op of a node, or None where the node leaves none."""
        kind, prefix = node.kind, scope.draft.prefix
        if kind == "Constant":
            path = scope.paths[node.outputs[0]] = prefix + node.outputs[0]
            self._constant(path, constant_node(node, path))
            self.counts["constants"] += 1
            return None
        check(node, domain_opset(kind, self.opsets))
        inputs = self._inputs(node, scope)
        simplify = _SIMPLIFY.get(kind)
        if simplify is not None and node.outputs[0] not in outputs and simplify(self, node, inputs, scope):
            scope.paths[node.outputs[0]] = inputs[0]
            return None
        attrs: dict[str, Any] = node.attrs
        if node.bodies:
            seeds = body_types(node, inputs, self.types, self.opset)
            attrs = {
                key: self.graph(value, scope, seeds) if key in node.bodies else value
                for key, value in attrs.items()
            }
        paths = node.outputs if not prefix else tuple(name and prefix + name for name in node.outputs)
        op = Op(kind, inputs, paths, attrs, (), node.name)
        self._infer(op, node, scope)
        for name, path in zip(node.outputs, paths, strict=True):
            scope.paths[name] = path
        return self._settled(op, node, outputs)

    def _inputs(self, node: Node, scope: Scope) -> tuple[str, ...]:
        inputs = tuple(map(scope.paths.get, node.inputs))
        if None in inputs:
            inputs = tuple(map(scope.find, node.inputs))
            if None in inputs:
                missing = node.inputs[inputs.index(None)]
                raise FuseError(
                    f"{node} reads {missing!r}, which no node, input or initializer makes{scope.draft.where}"
                )
        return inputs  # type: ignore[return-value]

    def _infer(self, op: Op, node: Node, scope: Scope) -> None:
        if not self.opset and "." not in op.kind:
            raise FuseError(f"{node} is of ai.onnx, of which the model imports no opset")
        types = self.types
        infer(op, types, self.contents, domain_opset(op.kind, self.opsets))
        self.conflicts.check(op, node, types)
        for name, path in zip(node.outputs, op.outputs, strict=True):
            if path and (types[path].dims is None or not types[path].dtype):
                types[path] = _meet(types[path], scope.hint(name, path))

    def _settled(self, op: Op, node: Node, outputs: frozenset[str]) -> Op | None:
        """The op as it stays: folded if its results are known, a Shape reading graph inputs."""
        contents = self.contents
        if op.outputs[0] in contents and outputs.isdisjoint(node.outputs):
            found = fold(op, self.types, contents)
            if found is not None:
                self.constants.update(found)
                self.counts["folded"] += 1
                return None
        if op.kind == "Shape":
            other = self.homes.rewritten(op, self.types.get(op.inputs[0], UNKNOWN).dims)
            if other is not None:
                self.counts["shapes"] += 1
                return other
        return op


def _meet(known: Type | None, hint: Type) -> Type:
    """What is known, completed by a hint where nothing is."""
    if known is None or known == UNKNOWN:
        return hint
    dims = hint.dims if known.dims is None and hint.dtype in ("", known.dtype) else known.dims
    return Type(known.dtype or hint.dtype, dims)


def _identity(lift: Lift, node: Node, inputs: tuple[str, ...], scope: Scope) -> bool:
    lift.counts["identities"] += 1
    return True


def _join_of_one(lift: Lift, node: Node, inputs: tuple[str, ...], scope: Scope) -> bool:
    """Left where an exporter drops the empty operands of a join: a cache that starts with nothing."""
    return len(inputs) == 1 and _identity(lift, node, inputs, scope)


def _dropout(lift: Lift, node: Node, inputs: tuple[str, ...], scope: Scope) -> bool:
    if not node.outputs[0]:
        return False
    training = inputs[2] if len(inputs) > 2 else ""
    if training and (training not in lift.constants or lift.contents.get(training) != (False,)):
        return False
    if any(name and scope.is_read(name) for name in node.outputs[1:]):
        return False
    lift.counts["dropouts"] += 1
    return True


def _cast(lift: Lift, node: Node, inputs: tuple[str, ...], scope: Scope) -> bool:
    dtype = lift.types.get(inputs[0], UNKNOWN).dtype
    if node.kind == "Cast":
        wanted = DTYPES.get(node.attrs.get("to", 0), "?")
    else:
        wanted = lift.types.get(inputs[1], UNKNOWN).dtype
    if not dtype or dtype != wanted:
        return False
    lift.counts["casts"] += 1
    return True


#: Operators that may do nothing -> whether this node does nothing.
_SIMPLIFY: dict[str, Callable[[Lift, Node, tuple[str, ...], Scope], bool]] = {
    "Identity": _identity,
    "Concat": _join_of_one,
    "Dropout": _dropout,
    "Cast": _cast,
    "CastLike": _cast,
}
