"""A graph of the file, read once: its names, its nodes in topological order, its bodies.

Reading checks what can be checked without types: who makes which value, that nothing is made twice,
that there is no cycle.
"""

from __future__ import annotations

import heapq
from sys import intern
from typing import Any, NamedTuple

import onnx

from fuse.ir import Tensor
from fuse.lifting.attributes import read_attributes
from fuse.lifting.tensors import Weights, make_sparse, make_tensor
from fuse.types import FuseError

#: Shared by all nodes without any.
_NO_ATTRIBUTES: dict[str, Any] = {}


class Node(NamedTuple):
    """One node. `bodies` are the attributes that hold a Draft; `reads` is what it reads, also there."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any]
    bodies: tuple[str, ...]
    reads: tuple[str, ...]
    proto: onnx.NodeProto

    def __str__(self) -> str:
        return label(self.kind, self.name or next(filter(None, self.outputs), ""))


def label(kind: str, name: str) -> str:
    """How errors name a node."""
    return f"{kind if kind.isprintable() else repr(kind)} {name!r}"


class Draft:
    """One graph of the file, or a body in it; all names are still the file's."""

    def __init__(self, proto: onnx.GraphProto, prefix: str, where: str) -> None:
        self.proto, self.prefix, self.where = proto, prefix, where
        self.inputs = tuple(value.name for value in proto.input)
        self.outputs = tuple(value.name for value in proto.output)
        self.constants: dict[str, Tensor] = {}
        self.nodes: list[Node] = []
        #: value -> the place of its node in `nodes`, as the file has them
        self.made: dict[str, int] = {}
        #: what the graph reads of the graphs around it, in order
        self.free: dict[str, None] = {}
        #: nodes that do not stand where the file has them
        self.moved = 0


def read_graph(proto: onnx.GraphProto, weights: Weights, prefix: str = "", where: str = "") -> Draft:
    """Read a graph with its bodies. where: how errors name it, "" for the whole model's graph."""
    draft = Draft(proto, prefix, where)
    _read_constants(draft, weights)
    draft.nodes = [_read_node(draft, node, weights) for node in proto.node]
    _check_names(draft)
    if prefix:
        own = draft.constants.keys() | draft.made.keys() | {"", *draft.inputs}
        read = [draft.outputs] if draft.outputs else []
        read += [node.reads for node in draft.nodes]
        draft.free = {value: None for values in read for value in values if value not in own}
    _sort(draft)
    return draft


def _read_constants(draft: Draft, weights: Weights) -> None:
    for tensor in draft.proto.initializer:
        _add_constant(draft, make_tensor(tensor, tensor.name, weights))
    for sparse in draft.proto.sparse_initializer:
        _add_constant(draft, make_sparse(sparse, sparse.values.name, weights))


def _add_constant(draft: Draft, tensor: Tensor) -> None:
    if not tensor.name:
        raise FuseError(f"an initializer{draft.where} has no name")
    if tensor.name in draft.constants:
        raise FuseError(f"initializer {tensor.name!r} is given twice{draft.where}")
    draft.constants[tensor.name] = tensor
    tensor.name = draft.prefix + tensor.name


def _read_node(draft: Draft, proto: onnx.NodeProto, weights: Weights) -> Node:
    # A slice of a repeated field is read at once; iterating over it takes four times as long. Each
    # read makes new strings: interned, a name that a thousand nodes read is kept once.
    kind, domain, name = intern(proto.op_type), intern(proto.domain), intern(proto.name)
    inputs, outputs = tuple(map(intern, proto.input[:])), tuple(map(intern, proto.output[:]))
    path = outputs[0] if outputs and outputs[0] else next(filter(None, outputs), "")
    if not kind:
        raise FuseError(f"node {name or path!r} has no op_type{draft.where}")
    if not path:
        raise FuseError(f"{label(kind, name)} has no outputs{draft.where}")
    if domain and domain != "ai.onnx":
        kind = intern(f"{domain}.{kind}")
    attributes = proto.attribute
    if not attributes:
        return Node(kind, name, inputs, outputs, _NO_ATTRIBUTES, (), inputs, proto)
    path = draft.prefix + path
    attrs, bodies = read_attributes(attributes, path, weights)
    reads = inputs
    for key in bodies:
        where = f" in {key} of {label(kind, name or path)}"
        attrs[key] = body = read_graph(attrs[key], weights, f"{path}/{key}:", where)
        reads += tuple(body.free)
    return Node(kind, name, inputs, outputs, attrs, bodies, reads, proto)


def _check_names(draft: Draft) -> None:
    inputs: set[str] = set()
    for value in draft.inputs:
        if not value:
            raise FuseError(f"a graph input has no name{draft.where}")
        if value in inputs:
            raise FuseError(f"graph input {value!r} is given twice{draft.where}")
        inputs.add(value)
    made, constants = draft.made, draft.constants
    for at, node in enumerate(draft.nodes):
        for value in node.outputs:
            if not value:
                continue
            if value in made:
                raise FuseError(f"{draft.nodes[made[value]]} and {node} both make {value!r}{draft.where}")
            if value in inputs:
                raise FuseError(f"{node} makes {value!r}, which is a graph input{draft.where}")
            if value in constants:
                raise FuseError(f"{node} makes {value!r}, which is an initializer{draft.where}")
            made[value] = at


def _sort(draft: Draft) -> None:
    """Bring the nodes into topological order; where they are in one already, they stay."""
    made, nodes = draft.made, draft.nodes
    for at, node in enumerate(nodes):
        for value in node.reads:
            if made.get(value, -1) >= at:
                break
        else:
            continue
        break
    else:
        return
    waits = [0] * len(nodes)
    followers: list[list[int]] = [[] for _ in nodes]
    for at, node in enumerate(nodes):
        before = {made[value] for value in node.reads if value in made}
        waits[at] = len(before)
        for first in before:
            followers[first].append(at)
    ready = [at for at, count in enumerate(waits) if not count]
    order: list[int] = []
    while ready:
        at = heapq.heappop(ready)
        order.append(at)
        for following in followers[at]:
            waits[following] -= 1
            if not waits[following]:
                heapq.heappush(ready, following)
    if len(order) < len(nodes):
        raise FuseError(f"the graph has a cycle through {_on_cycle(draft, waits)}{draft.where}")
    draft.nodes = [nodes[at] for at in order]
    draft.moved = sum(place != at for place, at in enumerate(order))


def _on_cycle(draft: Draft, waits: list[int]) -> Node:
    """A node on a cycle: walk back from a node that never got ready until one comes again."""
    at = next(at for at, count in enumerate(waits) if count)
    seen: set[int] = set()
    while at not in seen:
        seen.add(at)
        reads = (draft.made[value] for value in draft.nodes[at].reads if value in draft.made)
        at = next(before for before in reads if waits[before])
    return draft.nodes[at]
