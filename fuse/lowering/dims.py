"""Shapes as arithmetic: a `fuse.Dims` op becomes Shape, Gather, Mul, Add and Concat nodes.

The lift reads a shape off the graph inputs wherever it is a polynomial of their dimensions; ONNX
has no such operator, so here the polynomial is written out, each dimension and product once a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import helper

from fuse.ir import Op
from fuse.types import Dim, FuseError

KIND = "fuse.Dims"


class DimsWriter:
    """Writes the shapes of one graph (or function body): what was written once is read again.

    fresh: gives a name that is free. Every intermediate is an int64 tensor of one element, [1].
    """

    def __init__(self, fresh: Callable[[str], str]) -> None:
        self._fresh = fresh
        self._written: dict[tuple[object, ...], str] = {}

    def expand(self, op: Op, inputs: Sequence[str], output: str) -> list[onnx.NodeProto]:
        """The nodes that compute an op's dims into `output`, an int64 vector.

        op.attrs: dims, the elements; homes, (symbol, input index, axis) for each symbol in them.
        inputs: the names of op.inputs here.
        """
        homes = {symbol: (inputs[index], axis) for symbol, index, axis in op.attrs["homes"]}
        nodes: list[onnx.NodeProto] = []
        elements = [self._dim(dim, homes, nodes, op) for dim in op.attrs["dims"]]
        name = op.name or output
        if elements:
            nodes.append(helper.make_node("Concat", elements, [output], name, axis=0))
        else:
            nodes.append(_integers([], output, name))
        return nodes

    def _dim(self, dim: Dim, homes: dict[str, tuple[str, int]], nodes: list[onnx.NodeProto], op: Op) -> str:
        if isinstance(dim, int):
            return self._number(dim, nodes)
        total = ""
        for symbols, factor in dim.terms:
            term = ""
            for symbol in symbols:
                if symbol not in homes:
                    raise FuseError(f"shape {op.path} needs dimension {symbol}, which no graph input has")
                term = self._binary("Mul", term, self._axis(*homes[symbol], nodes), nodes)
            if factor != 1 or not symbols:
                term = self._binary("Mul", term, self._number(factor, nodes), nodes)
            total = self._binary("Add", total, term, nodes)
        return total

    def _number(self, value: int, nodes: list[onnx.NodeProto]) -> str:
        def make(name: str) -> onnx.NodeProto:
            return _integers([value], name, name)

        return self._once(("Constant", value), f"fuse_dim_{value}".replace("-", "minus_"), make, nodes)

    def _axis(self, value: str, axis: int, nodes: list[onnx.NodeProto]) -> str:
        def shape(name: str) -> onnx.NodeProto:
            return helper.make_node("Shape", [value], [name], name)

        whole = self._once(("Shape", value), f"fuse_shape_{value}", shape, nodes)
        index = self._number(axis, nodes)

        def gather(name: str) -> onnx.NodeProto:
            return helper.make_node("Gather", [whole, index], [name], name, axis=0)

        return self._once(("Gather", value, axis), f"fuse_dim_{value}_{axis}", gather, nodes)

    def _binary(self, kind: str, a: str, b: str, nodes: list[onnx.NodeProto]) -> str:
        """a and b joined; b alone where there is no a yet."""
        if not a:
            return b

        def make(name: str) -> onnx.NodeProto:
            return helper.make_node(kind, [a, b], [name], name)

        return self._once((kind, a, b), f"fuse_dim_{kind.lower()}", make, nodes)

    def _once(
        self,
        key: tuple[object, ...],
        wanted: str,
        make: Callable[[str], onnx.NodeProto],
        nodes: list[onnx.NodeProto],
    ) -> str:
        name = self._written.get(key)
        if name is None:
            name = self._written[key] = self._fresh(wanted)
            nodes.append(make(name))
        return name


def _integers(values: list[int], output: str, name: str) -> onnx.NodeProto:
    tensor = helper.make_tensor("", onnx.TensorProto.INT64, [len(values)], values)
    return helper.make_node("Constant", [], [output], name, value=tensor)
