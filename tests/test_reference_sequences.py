"""Evaluation of optional values and of sequences, each beside onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
from building import Building
from holding import counts, held
from onnx import TensorProto, helper, numpy_helper
from reported import rms_of


def of_rows(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4])


def test_optionals() -> None:
    """One that holds a tensor, and one that holds nothing."""
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    g = Building(opset=18)
    full = g.op("Optional", g.input("x", 2))
    g.op("Optional", type=kind)
    results = (
        g.op("OptionalGetElement", full),
        *(g.op("OptionalHasElement", v) for v in (full, "Optional_1")),
    )
    held(g.model(*results, elements=(TensorProto.FLOAT, TensorProto.BOOL, TensorProto.BOOL)))


def test_a_body_for_each_element_of_a_sequence() -> None:
    """SequenceMap has a body as a Loop has; a norm in it fuses."""
    g = Building(opset=17)
    weight = g.weight(4)
    inner = Building(opset=17)
    _, result = rms_of(inner, "row", weight)
    inner.constants = {f"inner_{name}": array for name, array in inner.constants.items()}
    for node in inner.nodes:
        node.input[:] = [
            f"inner_{name}" if f"inner_{name}" in inner.constants else name for name in node.input
        ]
    body = helper.make_graph(inner.nodes, "body", [of_rows("row")], [of_rows(result)])
    body.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in inner.constants.items())
    rows = g.op("SequenceConstruct", g.input("x", 2, 4), g.input("z", 2, 4))
    mapped = g.op("SequenceMap", rows, body=body)
    found = held(g.model(g.op("ConcatFromSequence", mapped, axis=0)))
    assert counts(found)["rms_norm"] == 1
