"""A graph as an ONNX model: what the file had is used again, only what changed is made new."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import onnx
from onnx import helper

from fuse.classes import CLASSES
from fuse.ir import Graph, Op, Tensor, leaves
from fuse.lifting.source import refuse_undecodable
from fuse.lowering import dims
from fuse.lowering.functions import DOMAIN, DOMAIN_VERSION, IR_VERSION, Functions, Part, stripped
from fuse.lowering.scope import Names, Scope
from fuse.lowering.tensors import Place, is_external, sparse
from fuse.placing import aliases
from fuse.types import FuseError

#: Initializers need not be graph inputs from this version of the IR on.
_FREE_INITIALIZERS_IR = 4
_MODEL_REMADE = frozenset({"graph", "functions", "metadata_props", "opset_import"})
_GRAPH_REMADE = frozenset(
    {"node", "initializer", "sparse_initializer", "input", "output", "value_info", "quantization_annotation"}
)


class Lowered(NamedTuple):
    """A model whose own graph's initializers stand apart, so that a file can be written without
    a second copy of the weights."""

    model: onnx.ModelProto
    initializers: list[onnx.TensorProto]


def lowered(graph: Graph, rules: Mapping[str, str], place: Place, version: str) -> Lowered:
    """The model of a graph. rules: path of a fused op -> the rule that made it."""
    source = graph.base.model.proto
    if not isinstance(source, onnx.ModelProto):
        raise FuseError(f"model {graph.base.model.name} was not loaded from onnx, so it cannot be saved")
    writer = _Writer(graph, rules, place)
    model = onnx.ModelProto()
    try:
        _copy_fields(source, model, _MODEL_REMADE)
        initializers = writer.graph(Scope(graph, writer.names), source.graph, model.graph)
    except UnicodeDecodeError:
        refuse_undecodable(source)
        raise
    _finish(model, source, writer.functions, initializers, version)
    return Lowered(model, initializers)


def _finish(
    model: onnx.ModelProto,
    source: onnx.ModelProto,
    functions: Functions,
    initializers: list[onnx.TensorProto],
    version: str,
) -> None:
    model.opset_import.extend(o for o in source.opset_import if o.domain != DOMAIN)
    if functions.protos:
        model.functions.extend(functions.protos)
        model.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
        model.ir_version = max(model.ir_version, IR_VERSION)
    if model.ir_version < _FREE_INITIALIZERS_IR:
        inputs = {value.name for value in model.graph.input}
        if any(tensor.name not in inputs for tensor in initializers):
            model.ir_version = _FREE_INITIALIZERS_IR
    model.metadata_props.extend(p for p in source.metadata_props if p.key != "fuse.version")
    model.metadata_props.add(key="fuse.version", value=version)


def _copy_fields(source: Any, target: Any, without: frozenset[str]) -> None:
    """Every field that is set, but those that are made anew."""
    for field, value in source.ListFields():
        if field.name not in without:
            copy_field(target, field.name, value)


def copy_field(target: Any, name: str, value: Any) -> None:
    """Set a field of a message to the value that another message of its kind has."""
    if isinstance(value, str | int | float | bytes):
        setattr(target, name, value)
    elif hasattr(value, "extend"):
        getattr(target, name).extend(value)
    else:
        getattr(target, name).CopyFrom(value)


class _Writer:
    """One model being written: what its graphs share."""

    def __init__(self, graph: Graph, rules: Mapping[str, str], place: Place) -> None:
        self._rules, self._place = rules, place
        self.names = Names(graph)
        self.functions = Functions(graph.base.model.opsets)

    def graph(self, scope: Scope, source: onnx.GraphProto, target: onnx.GraphProto) -> list[onnx.TensorProto]:
        """Fill `target` from a graph, all but its initializers, which are returned."""
        graph = scope.graph
        nodes = list(self._nodes(scope))
        _copy_fields(source, target, _GRAPH_REMADE)
        declared = {value.name: value for value in source.input}
        inputs = [declared[path[len(graph.base.prefix) :]] for path in graph.base.inputs]
        target.input.extend(_named(inputs, [scope.name(path) for path in graph.base.inputs]))
        outputs, passed = self._outputs(scope, [value.name for value in source.output])
        target.output.extend(_named(source.output, outputs))
        target.node.extend(nodes)
        target.node.extend(passed)
        self._annotate(source, target, scope.outer is None)
        return self._initializers(scope, target)

    def _initializers(self, scope: Scope, target: onnx.GraphProto) -> list[onnx.TensorProto]:
        """The constants that are read, and defaults of inputs; the sparse ones go to the target now."""
        base = scope.graph.base
        dense: list[onnx.TensorProto] = []
        for path, tensor in base.overridable.items():
            self._initializer(scope.name(path), tensor, dense, target)
        for path, name in scope.read.items():
            self._initializer(name, base.constants[path], dense, target)
        return dense

    def _initializer(
        self, name: str, tensor: Tensor, dense: list[onnx.TensorProto], target: onnx.GraphProto
    ) -> None:
        if isinstance(tensor.proto, onnx.SparseTensorProto):
            made = sparse(name, tensor.proto)
            if tensor.name.rpartition(":")[2] == tensor.proto.values.name:
                target.sparse_initializer.append(made)
            else:  # onnx's own inference holds that an initializer which is sparse is no tensor; a node's is
                target.node.insert(0, helper.make_node("Constant", [], [name], sparse_value=made))
        else:
            dense.append(self._place(name, tensor))

    def _outputs(self, scope: Scope, wanted: list[str]) -> tuple[list[str], list[onnx.NodeProto]]:
        """Names of the outputs, and an Identity for each that may not be returned as it is.

        wanted: their names in the file. The model's own outputs keep them. A body's output is known by
        its place, so it can be a value that the lift found equal; but runtimes refuse a body that
        returns a value of a graph around it, or one value twice.
        """
        names: list[str] = []
        passed: list[onnx.NodeProto] = []
        for path, given in zip(scope.graph.base.outputs, wanted, strict=True):
            name = scope.name(path)
            if scope.outer is None:
                returned = given
            elif name in names or not scope.owns(path):
                returned = self.names.fresh(f"{name}_returned")
            else:
                returned = name
            if returned != name:
                passed.append(helper.make_node("Identity", [name], [returned], returned))
            names.append(returned)
        return names, passed

    def _annotate(self, source: onnx.GraphProto, target: onnx.GraphProto, whole: bool) -> None:
        """Keep the types and quantization notes of values that still exist: the others mislead runtimes."""
        if not (source.value_info or source.quantization_annotation):
            return
        standing = {name for node in target.node for name in node.output}
        target.value_info.extend(v for v in source.value_info if v.name in standing)
        if whole:
            target.quantization_annotation.extend(
                a for a in source.quantization_annotation if a.tensor_name in standing
            )

    # ---- nodes ---------------------------------------------------------------------------------
    def _nodes(self, scope: Scope) -> Iterator[onnx.NodeProto]:
        """The nodes of a graph, in order."""
        shapes = dims.DimsWriter(self.names.fresh)
        owners = frozenset(scope.graph.base.owners)
        for op in scope.graph.slots:
            if op is None:
                continue
            members = sorted(leaves(op), key=_slot)
            # A function's body sees no value around it, but an If's branches read them by name. A name
            # for parts of a value is the operator that copies them: onnx has no other form for it. And in
            # the body of a SequenceMap, a function itself, onnxruntime puts a call's operators out of order.
            plain = not op.parts or aliases(op) or scope.mapped
            plain = plain or any(leaf.slot in owners for leaf in members)
            if plain:
                for leaf in members:
                    yield from self._leaf(leaf, scope, shapes)
            else:
                yield self._call(op, members, scope)

    def _leaf(self, op: Op, scope: Scope, shapes: dims.DimsWriter) -> Iterable[onnx.NodeProto]:
        reads = op.inputs
        if op.kind == dims.KIND:
            measured = _measured(op, scope.graph)
            if measured is None:
                return shapes.expand(op, scope.of(reads), scope.name(op.path))
            reads = (measured,)
        part = self._part(op, scope, reads)
        node = part.node
        inputs, outputs = scope.of(stripped(part.reads)), scope.of(op.outputs)
        bodies = op.bodies if op.attrs else {}
        if node.input == inputs and node.output == outputs and not bodies:
            return (node,)
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        changed.input[:] = inputs
        changed.output[:] = outputs
        for attribute in changed.attribute:
            if attribute.name in bodies:
                original = next(a.g for a in node.attribute if a.name == attribute.name)
                attribute.g.Clear()
                slot = scope.graph.into[op.slot]
                mapped = op.kind == "SequenceMap"
                body = Scope(bodies[attribute.name], self.names, scope, slot, mapped)
                attribute.g.initializer.extend(self.graph(body, original, attribute.g))
        return (changed,)

    def _part(self, op: Op, scope: Scope, reads: tuple[str, ...]) -> Part:
        """A leaf, its node, and the value behind each of the node's inputs."""
        node = scope.graph.base.nodes[op.slot]
        assert isinstance(node, onnx.NodeProto)
        if op.attrs and any(isinstance(value, Tensor) for value in op.attrs.values()):
            node = self._relocated(op, node)
        return Part(op, node, reads)

    def _relocated(self, op: Op, node: onnx.NodeProto) -> onnx.NodeProto:
        """The node with tensor attributes whose data is external pointing to where it goes."""
        outside = {key: t for key, t in op.attrs.items() if isinstance(t, Tensor) and is_external(t.proto)}
        if not outside:
            return node
        moved = onnx.NodeProto()
        moved.CopyFrom(node)
        for attribute in moved.attribute:
            if attribute.name in outside:
                attribute.t.CopyFrom(self._place(attribute.t.name, outside[attribute.name]))
        return moved

    def _call(self, op: Op, members: list[Op], scope: Scope) -> onnx.NodeProto:
        """A fused op as a call of its function, with what it stands for in its metadata."""
        parts = [self._part(leaf, scope, leaf.inputs) for leaf in members]
        call = self.functions.call(op, parts)
        anchor = next(part for part in reversed(parts) if op.path in part.op.outputs)
        node = onnx.NodeProto(op_type=call.function, domain=DOMAIN, name=op.name or anchor.op.name)
        node.input.extend(scope.of(call.inputs))
        node.output.extend(scope.of(filter(None, op.outputs)))
        replaced = [anchor, *(part for part in parts if part is not anchor)]
        node.metadata_props.add(key="fuse.fused", value=", ".join(map(_described, replaced)))
        if op.path in self._rules:
            node.metadata_props.add(key="fuse.rule", value=self._rules[op.path])
        node.metadata_props.add(key="fuse.class", value=op.kind)
        declared = CLASSES.get(op.kind)
        kernel = [name for name in declared.kernel_attrs if name in op.attrs] if declared is not None else []
        if kernel:
            settings = ", ".join(f"{name}={op.attrs[name]}" for name in kernel)
            node.metadata_props.add(key="fuse.kernel", value=settings)
        return node


def _slot(op: Op) -> int:
    return op.slot


def _measured(op: Op, graph: Graph) -> str | None:
    """The value whose shape a `fuse.Dims` op is, where it stands before the op: then the file's own
    Shape says the same in one node."""
    base = graph.base
    node = base.nodes[op.slot]
    assert isinstance(node, onnx.NodeProto)
    if node.op_type != "Shape":
        return None
    value = base.prefix + node.input[0]
    maker = graph.producer(value)
    if maker is not None:
        return value if value in maker.outputs and maker.slot < graph.into[op.slot] else None
    return value if value in base.inputs or value in base.constants else None


def _described(part: Part) -> str:
    """Op type and name of a node, as people find it in their model."""
    kind = part.node.op_type if part.op.kind == dims.KIND else part.op.kind.rpartition(".")[2]
    return f"{kind} {part.op.name}".rstrip()


def _named(values: Iterable[onnx.ValueInfoProto], names: Iterable[str]) -> Iterator[onnx.ValueInfoProto]:
    """The declarations of a graph's inputs or outputs under the names they have now."""
    for value, name in zip(values, names, strict=True):
        if value.name != name:
            renamed = onnx.ValueInfoProto()
            renamed.CopyFrom(value)
            renamed.name = name
            value = renamed
        yield value
