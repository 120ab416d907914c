"""A Llama-like decoder of any number of layers, as an exporter writes it: about 60 operators a layer."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

HIDDEN, HEADS, INNER, VOCABULARY = 32, 4, 64, 100
HEAD = HIDDEN // HEADS


class Writer:
    """Collects nodes and initializers."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.draw = np.random.default_rng(0)

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attrs: object) -> str:
        name = f"{kind}_{len(self.nodes)}"
        outs = [name, *(f"{name}_{n}" for n in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(inputs), outs, name=f"/{name}", **attrs))
        return name

    def constant(self, values: object, dtype: type = np.float32) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def weight(self, *dims: int) -> str:
        return self.constant(self.draw.normal(0, 0.1, dims))


def _norm(w: Writer, x: str) -> str:
    square = w.op("Pow", x, w.constant(2.0))
    mean = w.op("ReduceMean", square, axes=[-1])
    root = w.op("Sqrt", w.op("Add", mean, w.constant(1e-6)))
    return w.op("Mul", w.weight(HIDDEN), w.op("Mul", x, w.op("Div", w.constant(1.0), root)))


def _heads(w: Writer, x: str) -> str:
    shape = w.constant([0, 0, HEADS, HEAD], np.int64)
    return w.op("Transpose", w.op("Reshape", x, shape), perm=[0, 2, 1, 3])


def _rotated(w: Writer, x: str, cos: str, sin: str) -> str:
    def cut(start: int, end: int) -> str:
        return w.op("Slice", x, *(w.constant([n], np.int64) for n in (start, end, 3, 1)))

    turned = w.op("Concat", w.op("Neg", cut(HEAD // 2, HEAD)), cut(0, HEAD // 2), axis=-1)
    return w.op("Add", w.op("Mul", x, cos), w.op("Mul", turned, sin))


def _attention(w: Writer, x: str, mask: str, cos: str, sin: str) -> str:
    q, k, v = (_heads(w, w.op("MatMul", x, w.weight(HIDDEN, HIDDEN))) for _ in range(3))
    q, k = _rotated(w, q, cos, sin), _rotated(w, k, cos, sin)
    scores = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = w.op("Add", w.op("Div", scores, w.constant(HEAD**0.5)), mask)
    mixed = w.op("MatMul", w.op("Softmax", scores, axis=-1), v)
    rows = w.op("Transpose", mixed, perm=[0, 2, 1, 3])
    return w.op(
        "MatMul", w.op("Reshape", rows, w.constant([0, 0, HIDDEN], np.int64)), w.weight(HIDDEN, HIDDEN)
    )


def _mlp(w: Writer, x: str) -> str:
    gate, up = (w.op("MatMul", x, w.weight(HIDDEN, INNER)) for _ in range(2))
    act = w.op("Mul", gate, w.op("Sigmoid", gate))
    return w.op("MatMul", w.op("Mul", act, up), w.weight(INNER, HIDDEN))


def scale_model(layers: int) -> ModelProto:
    """A decoder of so many layers over [batch, seq] tokens."""
    w = Writer()
    x = w.op("Gather", w.weight(VOCABULARY, HIDDEN), "tokens")
    for _ in range(layers):
        x = w.op("Add", x, _attention(w, _norm(w, x), "mask", "cos", "sin"))
        x = w.op("Add", x, _mlp(w, _norm(w, x)))
    logits = w.op("MatMul", _norm(w, x), w.weight(HIDDEN, VOCABULARY))
    value, rows = helper.make_tensor_value_info, ["batch", "seq"]
    inputs = [
        value("tokens", TensorProto.INT64, rows),
        value("mask", TensorProto.FLOAT, ["batch", 1, "seq", "seq"]),
        value("cos", TensorProto.FLOAT, ["batch", 1, "seq", HEAD]),
        value("sin", TensorProto.FLOAT, ["batch", 1, "seq", HEAD]),
    ]
    outputs = [value(logits, TensorProto.FLOAT, [*rows, VOCABULARY])]
    graph = helper.make_graph(w.nodes, f"llama-{layers}", inputs, outputs, w.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
