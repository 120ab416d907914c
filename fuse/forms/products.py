"""What a product with a weight is, whatever wrote or built it."""

from __future__ import annotations

from typing import NamedTuple

from fuse.forms.reading import Almost, operand_of, reads
from fuse.ir import Graph, Op
from fuse.match.plausible import run_time, weight_like


class Product(NamedTuple):
    """x times a weight [in, out] (trans_weight: [out, in]) that is known when the model loads.

    plain: the weight is stored as it is used, not quantized.
    """

    x: str
    weight: str
    bias: str
    trans_x: int
    trans_weight: int
    alpha: float
    beta: float
    plain: bool
    out: str
    op: Op


def _product(graph: Graph, op: Op) -> Product | None:
    a = op.attrs
    if op.kind == "matmul_bias":
        if a.get("perm"):
            return None
        trans = a.get("trans_x", 0), a.get("trans_weight", 0), a.get("alpha", 1.0), a.get("beta", 1.0)
        x, weight, bias = op.inputs[:3]
        return Product(x, weight, bias, *trans, True, op.outputs[0], op)
    if op.kind == "quantized_matmul":
        trans = a.get("trans_x", 0), a.get("trans_weight", 0), a.get("alpha", 1.0), a.get("beta", 1.0)
        return Product(op.inputs[0], op.inputs[1], op.inputs[4], *trans, False, op.outputs[0], op)
    if op.kind == "com.microsoft.MatMulNBits":
        bias = operand_of(op, 5)
        return Product(op.inputs[0], op.inputs[1], bias, 0, 1, 1.0, 1.0, False, op.outputs[0], op)
    weight = operand_of(op, 1)
    dims = graph.dims(weight)
    if not graph.is_constant(weight) or dims is None or len(dims) != 2:
        return None
    plain = graph.base.constants.get(weight) is not None or not _dequantized(graph, weight)
    if op.kind == "Gemm":
        bias = operand_of(op, 2)
        if not adds_a_row(graph, op):
            return None
        beta = a.get("beta", 1.0) if bias else 1.0
        trans = a.get("transA", 0), a.get("transB", 0), a.get("alpha", 1.0), beta
        return Product(op.inputs[0], weight, bias, *trans, plain, op.outputs[0], op)
    if op.kind == "Einsum":
        turned = _contracted(str(a.get("equation", "")))
        if turned is None or len(op.inputs) != 2:
            return None
        return Product(op.inputs[0], weight, "", 0, turned, 1.0, 1.0, plain, op.outputs[0], op)
    if op.kind == "com.microsoft.FusedMatMul":
        if a.get("transBatchA") or a.get("transBatchB"):
            return None
        trans = a.get("transA", 0), a.get("transB", 0), a.get("alpha", 1.0), 1.0
        return Product(op.inputs[0], weight, "", *trans, plain, op.outputs[0], op)
    return Product(op.inputs[0], weight, "", 0, 0, 1.0, 1.0, plain, op.outputs[0], op)


def adds_a_row(graph: Graph, op: Op) -> bool:
    """Whether what a Gemm adds is one row of its width, or nothing: a column, a number or a matrix is no
    bias of a product."""
    added = operand_of(op, 2)
    dims, out = graph.dims(added) if added else (), graph.dims(op.outputs[0])
    if not added or dims is None or not out:
        return not added
    return (dims[-1:] == out[-1:] and dims[:-1] in ((), (1,))) or (not dims and out[-1] == 1)


def _contracted(equation: str) -> int | None:
    """Whether rows times a matrix are written with the matrix transposed; None for any other equation."""
    left, _, out = equation.replace(" ", "").partition("->")
    x, _, weight = left.partition(",")
    rows, summed = x[:-1], x[-1:]
    if len(weight) != 2 or len(set(x)) != len(x) or not x.isalpha() or out[:-1] != rows:
        return None
    made = out[-1:]
    if not made.isalpha() or made in x:
        return None
    return {summed + made: 0, made + summed: 1}.get(weight)


def _dequantized(graph: Graph, weight: str) -> bool:
    """Whether a weight is decoded from a quantized constant where it is read."""
    for _ in range(4):
        op = graph.producer(weight)
        if op is None:
            return False
        if op.kind in ("DequantizeLinear", "Cast", "Mul"):
            return True
        weight = op.inputs[0]
    return False


def _almost_product(graph: Graph, op: Op) -> Almost | None:
    """A product whose weight is a graph input of two known dims, or can be overridden; or a Gemm that adds
    what is no row."""
    weight = operand_of(op, 1)
    if op.kind == "Gemm" and graph.is_constant(weight) and not adds_a_row(graph, op):
        added = operand_of(op, 2)
        found = Product(op.inputs[0], weight, added, 0, 0, 1.0, 1.0, True, op.outputs[0], op)
        got = f"a value of {graph.type(added)}"
        return Almost(found, "operand", added, "bias: one row of exactly the product's width", got)
    if op.kind not in ("MatMul", "Gemm") or not weight_like(graph, weight, 2):
        return None
    found = Product(op.inputs[0], weight, operand_of(op, 2), 0, 0, 1.0, 1.0, True, op.outputs[0], op)
    return Almost(found, "operand", weight, "weight: a constant", run_time(graph, weight))


product = reads(
    "MatMul",
    "Gemm",
    "Einsum",
    "com.microsoft.FusedMatMul",
    "com.microsoft.MatMulNBits",
    "matmul_bias",
    "quantized_matmul",
)(_product)
product.almost = _almost_product
