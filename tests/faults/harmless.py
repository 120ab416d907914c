"""Changes of spelling that change nothing: every rule must fire as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from onnx import helper

from .draft import Draft, Place
from .norm_roles import roles as norm_roles

#: A change at a place; False where it does not apply.
Change = Callable[[Draft, Place], bool]


def commuted(which: int) -> Change:
    def change(draft: Draft, place: Place) -> bool:
        found = [op for op in place.of("Add", "Mul") if op.inputs[0] != op.inputs[1]]
        if not found:
            return False
        node = draft.node(found[which % len(found)].outputs[0])
        node.input[0], node.input[1] = node.input[1], node.input[0]
        return True

    return change


def square_as_mul(draft: Draft, place: Place) -> bool:
    op = next((op for op in place.of("Pow") if place.scalar(op.inputs[1]) == 2), None)
    if op is None:
        return False
    node = draft.node(op.outputs[0])
    node.op_type = "Mul"
    node.input[1] = node.input[0]
    return True


def square_as_pow(draft: Draft, place: Place) -> bool:
    op = next((op for op in place.of("Mul") if op.inputs[0] == op.inputs[1]), None)
    if op is None:
        return False
    node = draft.node(op.outputs[0])
    node.op_type = "Pow"
    node.input[1] = draft.constant(np.array(2, np.float32), "two")
    return True


def root_as_power(draft: Draft, place: Place) -> bool:
    op = next(iter(place.of("Sqrt")), None)
    if op is None or place.graph.dtype(op.outputs[0]) != "f32":
        return False
    node = draft.node(op.outputs[0])
    node.op_type = "Pow"
    node.input.append(draft.constant(np.array(0.5, np.float32), "half"))
    return True


def division_by_reciprocal(draft: Draft, place: Place) -> bool:
    """x / root as x * (1 / root)."""
    norm = norm_roles(place)
    if norm is None or norm.divide.kind != "Div" or place.scalar(norm.divide.inputs[0]) is not None:
        return False
    node = draft.node(norm.divide.outputs[0])
    draft.wrap(node, 1, "Reciprocal")
    node.op_type = "Mul"
    return True


def reciprocal_by_division(draft: Draft, place: Place) -> bool:
    op = next(iter(place.of("Reciprocal")), None)
    if op is None or place.graph.dtype(op.outputs[0]) != "f32":
        return False
    node = draft.node(op.outputs[0])
    node.op_type = "Div"
    node.input.insert(0, draft.constant(np.array(1, np.float32), "one"))
    return True


def inverse_constant(draft: Draft, place: Place) -> bool:
    """A division by a constant as a product with its inverse."""
    for op in place.of("Div"):
        number = place.scalar(op.inputs[1])
        if number:
            node = draft.node(op.outputs[0])
            dtype = np.float16 if place.graph.dtype(op.outputs[0]) == "f16" else np.float32
            node.op_type = "Mul"
            node.input[1] = draft.constant(np.array(1 / number, dtype), "inverse")
            return True
    return False


def axis_from_the_front(draft: Draft, place: Place) -> bool:
    done = False
    for op in place.ops:
        rank = len(place.dims(op.inputs[0])) if op.inputs else 0
        node = (
            draft.node(op.outputs[0])
            if op.kind.startswith(("Reduce", "Softmax", "Concat", "LayerNorm"))
            else None
        )
        if node is None or not rank:
            continue
        if op.kind.startswith("Reduce"):
            if len(node.input) > 1:
                node.input[1] = draft.constant(np.array([rank - 1], np.int64), "axes")
            elif draft.attribute(node, "axes") is not None:
                draft.set_attribute(node, "axes", [rank - 1])
            done = True
        elif draft.attribute(node, "axis") == -1:
            draft.set_attribute(node, "axis", rank - 1)
            done = True
    return done


def number_spread(rank: int) -> Change:
    """Numbers as tensors of one element."""

    def change(draft: Draft, place: Place) -> bool:
        done = False
        for op in place.of("Add", "Mul", "Div", "Pow"):
            node = draft.node(op.outputs[0])
            for index, value in enumerate(op.inputs[:2]):
                array = (
                    draft.array(draft.below(node.input[index])) if place.scalar(value) is not None else None
                )
                if array is not None and rank <= len(place.dims(op.outputs[0])):
                    node.input[index] = draft.constant(array.reshape((1,) * rank), "number")
                    done = True
        return done

    return change


def row_spread(draft: Draft, place: Place) -> bool:
    """A weight or bias [N] as [1, 1, N]."""
    done = False
    for op in place.of("Add", "Mul"):
        index = place.constant_at(op)
        if index is None or len(place.dims(op.outputs[0])) < 3:
            continue
        node = draft.node(op.outputs[0])
        array = draft.array(draft.below(node.input[index]))
        if array is not None and array.ndim == 1 and array.size > 1:
            node.input[index] = draft.constant(array.reshape(1, 1, -1), "row")
            done = True
    return done


def passed_on(kind: str) -> Change:
    """An Identity, or a Cast to the type it has, on an inner edge."""

    def change(draft: Draft, place: Place) -> bool:
        for op in reversed(place.ops):
            for index, value in enumerate(op.inputs):
                if place.maker(value) is not None and place.graph.dtype(value).startswith("f"):
                    node = draft.node(op.outputs[0])
                    attrs = {"to": place.number_type(value)} if kind == "Cast" else {}
                    draft.wrap(node, index, kind, **attrs)
                    return True
        return False

    return change


def root_an_output(draft: Draft, place: Place) -> bool:
    root = place.op.outputs[0]
    if root in {o.name for o in draft.graph.output} or root in place.inside:
        return False
    draft.output(root, place.number_type(root))
    return True


def x_read_elsewhere(draft: Draft, place: Place) -> bool:
    x = place.op.inputs[0]
    if not place.graph.dtype(x).startswith("f") or x in place.inside:
        return False
    out = draft.fresh("read")
    draft.insert(helper.make_node("Abs", [x], [out]), x)
    draft.output(out, place.number_type(x))
    return True


def constants_as_nodes(draft: Draft, place: Place) -> bool:
    """Every initializer of at most 64 elements as a Constant node."""
    inputs = {i.name for i in draft.graph.input}
    small = [t for t in draft.graph.initializer if t.name not in inputs and np.prod(t.dims or [1]) <= 64]
    for tensor in small:
        draft.graph.initializer.remove(tensor)
        draft.insert(helper.make_node("Constant", [], [tensor.name], value=tensor), "")
    return bool(small)


def constants_as_initializers(draft: Draft, place: Place) -> bool:
    done = False
    for node in list(draft.graph.node):
        value = (
            next((a for a in node.attribute if a.name == "value"), None)
            if node.op_type == "Constant"
            else None
        )
        if value is not None:
            tensor = value.t
            tensor.name = node.output[0]
            draft.graph.initializer.append(tensor)
            draft.graph.node.remove(node)
            done = True
    return done


def nodes_reversed(draft: Draft, place: Place) -> bool:
    """Nodes stored last first: a lift sorts them."""
    nodes = list(draft.graph.node)
    del draft.graph.node[:]
    draft.graph.node.extend(reversed(nodes))
    return True


def nodes_nameless(draft: Draft, place: Place) -> bool:
    for node in draft.graph.node:
        node.name = ""
    return True


def types_forgotten(draft: Draft, place: Place) -> bool:
    del draft.graph.value_info[:]
    return True


CHANGES: dict[str, Change] = {
    "first operator commuted": commuted(0),
    "second operator commuted": commuted(1),
    "last operator commuted": commuted(-1),
    "square as Mul": square_as_mul,
    "square as Pow": square_as_pow,
    "root as Pow": root_as_power,
    "division by reciprocal": division_by_reciprocal,
    "reciprocal by division": reciprocal_by_division,
    "product with the inverse": inverse_constant,
    "axis from the front": axis_from_the_front,
    "numbers of rank 1": number_spread(1),
    "numbers of rank 2": number_spread(2),
    "rows [1, 1, N]": row_spread,
    "Identity inside": passed_on("Identity"),
    "Cast to the same type": passed_on("Cast"),
    "root an output": root_an_output,
    "x read elsewhere": x_read_elsewhere,
}
#: Changes of the whole file, one for a model.
EVERYWHERE: dict[str, Change] = {
    "constants as nodes": constants_as_nodes,
    "constants as initializers": constants_as_initializers,
    "nodes reversed": nodes_reversed,
    "nodes nameless": nodes_nameless,
    "types forgotten": types_forgotten,
}


def changes_at(place: Place) -> Iterator[tuple[str, Change]]:
    for name, change in CHANGES.items():
        yield f"{place.builds}: {name}", change
