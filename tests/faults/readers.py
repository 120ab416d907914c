"""Faults of readers: a value inside is read outside, in each of the three ways."""

from __future__ import annotations

from onnx import TensorProto, helper

from .draft import Draft, Place, Planted, planted

#: Parts that a match may leave outside: their values may be read elsewhere, and a smaller form fires.
LAYOUT = frozenset("Transpose Reshape Unsqueeze Squeeze Expand Cast Flatten".split())


def interior(place: Place) -> list[str]:
    """Values that the match cannot do without."""
    found = []
    for value, part in place.interior():
        readers = place.readers(value)
        optional = part.kind in LAYOUT or any(r.kind in LAYOUT for r in readers)
        if place.builds == "attention":
            optional = value not in score_path(place)
        if not optional and place.graph.dtype(value).startswith(("f", "b")):
            found.append(value)
    return found


def score_path(place: Place) -> set[str]:
    """The values between the product of q and k and the product with v."""
    soft = next(iter(place.of("Softmax")), None)
    if soft is None:
        return set()
    path: set[str] = set()
    value = soft.inputs[0]
    while True:
        path.add(value)
        maker = place.maker(value)
        if maker is None or maker.kind in ("MatMul", "Einsum"):
            break
        value = next((v for v in maker.inputs if place.maker(v) is not None and not v_is_mask(place, v)), "")
        if not value:
            break
    todo = [soft.outputs[0]]
    while todo:
        value = todo.pop()
        path.add(value)
        for reader in place.readers(value):
            if reader.kind not in ("MatMul", "Einsum"):
                todo += reader.outputs
    return path


def v_is_mask(place: Place, value: str) -> bool:
    """Whether no product of the place lies below a value."""
    todo, seen = [value], set()
    while todo:
        at = todo.pop()
        maker = place.maker(at)
        if maker is None or at in seen:
            continue
        seen.add(at)
        if maker.kind in ("MatMul", "Einsum"):
            return False
        todo += maker.inputs
    return True


def _rules(place: Place) -> str:
    """A gate inside a mixture is the mixture's place too."""
    return f"{place.rule} moe moe_block" if place.rule == "gated_act" else place.rule


def graph_output(draft: Draft, place: Place, value: str) -> Planted:
    draft.output(value, place.number_type(value))
    return planted(_rules(place), ("graph_output", value))


def read_elsewhere(draft: Draft, place: Place, value: str) -> Planted:
    out = draft.fresh("read")
    kind = "Abs" if place.graph.dtype(value).startswith("f") else "Not"
    draft.insert(helper.make_node(kind, [value], [out], name="planted_reader"), value)
    draft.output(out, place.number_type(value))
    return planted(_rules(place), ("read_elsewhere", value))


def captured(draft: Draft, place: Place, value: str) -> Planted:
    dtype = place.number_type(value)

    def branch(name: str, kind: str) -> object:
        node = helper.make_node(kind, [value], [f"{name}_out"])
        info = helper.make_tensor_value_info(f"{name}_out", dtype, None)
        return helper.make_graph([node], name, [], [info])

    condition = helper.make_tensor("planted_condition", TensorProto.BOOL, [], [True])
    draft.graph.initializer.append(condition)
    out = draft.fresh("chosen")
    kinds = ("Abs", "Neg") if place.graph.dtype(value).startswith("f") else ("Not", "Identity")
    node = helper.make_node(
        "If",
        ["planted_condition"],
        [out],
        name="planted_if",
        then_branch=branch("then", kinds[0]),
        else_branch=branch("else", kinds[1]),
    )
    draft.insert(node, value)
    draft.output(out, dtype)
    return planted(_rules(place), ("captured", value))
