"""Local functions, inlined before anything else is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
from google.protobuf.message import EncodeError
from onnx import inliner

from fuse.types import FuseError

#: (domain, name, overload) of a function, as a node calls it.
Key = tuple[str, str, str]


def inline(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """The model without local functions, and how many calls its graph made to them.

    Errors: a function that calls itself, directly or through others; one whose opset the model's
    own cannot express.
    """
    if not model.functions:
        return model, 0
    functions: dict[Key, onnx.FunctionProto] = {}
    for function in model.functions:
        key = (function.domain, function.name, function.overload)
        if key in functions:
            raise FuseError(f"function {_label(key)} is given twice")
        functions[key] = function
    calls = sum(key in functions for key in _called(model.graph.node))
    if not calls:
        return model, 0
    _refuse_recursion({key: [k for k in _called(f.node) if k in functions] for key, f in functions.items()})
    try:
        flat = inliner.inline_local_functions(_spelled_out(model, functions), convert_version=True)
    except (RuntimeError, ValueError, EncodeError) as error:
        raise FuseError(f"the local functions cannot be inlined: {' '.join(str(error).split())}") from error
    left = next((key for key in _called(flat.graph.node) if key in functions), None)
    if left is not None:
        raise FuseError(f"function {_label(left)} is of another opset and cannot be converted to the model's")
    return flat, calls


def _spelled_out(model: onnx.ModelProto, functions: dict[Key, onnx.FunctionProto]) -> onnx.ModelProto:
    """The model with what onnx's inliner does not see written out: the attributes that a call leaves to
    their defaults, and results of a function that are its operands."""
    passes = {key for key, f in functions.items() if set(f.output) & set(f.input)}
    if not passes and not any(f.attribute_proto for f in functions.values()):
        return model
    spelled = onnx.ModelProto()
    spelled.CopyFrom(model)
    for nodes in (spelled.graph.node, *(function.node for function in spelled.functions)):
        for node in _nodes(nodes):
            called = functions.get((node.domain, node.op_type, node.overload))
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(
                a for a in (called.attribute_proto if called else ()) if a.name not in given
            )
    for function in spelled.functions:
        if (function.domain, function.name, function.overload) in passes:
            _copy_operands(function)
    return spelled


def _copy_operands(function: onnx.FunctionProto) -> None:
    """Let a function return copies of the operands that it returns."""
    taken = {name for node in function.node for name in (*node.input, *node.output)}
    for number, name in enumerate(function.output):
        if name in function.input:
            copy = f"{name}_returned_{number}"
            while copy in taken:
                copy += "_"
            function.node.append(onnx.helper.make_node("Identity", [name], [copy]))
            function.output[number] = copy


def _label(key: Key) -> str:
    return repr(f"{key[0]}.{key[1]}" + (f":{key[2]}" if key[2] else ""))


def _called(nodes: Iterable[onnx.NodeProto]) -> Iterator[Key]:
    """What every node calls, the nodes of bodies included."""
    return ((node.domain, node.op_type, node.overload) for node in _nodes(nodes))


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Every node, those of bodies included."""
    waiting = [nodes]
    while waiting:
        for node in waiting.pop():
            yield node
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    waiting.append(attribute.g.node)
                waiting.extend(graph.node for graph in attribute.graphs)


def _refuse_recursion(calls: dict[Key, list[Key]]) -> None:
    done: set[Key] = set()
    for root in calls:
        path: list[tuple[Key, Iterator[Key]]] = [] if root in done else [(root, iter(calls[root]))]
        on_path = {root}
        while path:
            key, rest = path[-1]
            following = next((k for k in rest if k not in done), None)
            if following is None:
                path.pop()
                on_path.discard(key)
                done.add(key)
            elif following in on_path:
                raise FuseError(f"function {_label(following)} calls itself")
            else:
                path.append((following, iter(calls[following])))
                on_path.add(following)
