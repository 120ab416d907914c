"""What an operator cannot do without: operands, results, attributes and their kinds, from its schema."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import onnx

from fuse.lifting.draft import Node
from fuse.types import FuseError

#: Operators that onnx has no schema of -> the numbers of the operands they cannot do without
#: (onnxruntime 1.32, its operators' schemas).
_OTHERS = {
    "SimplifiedLayerNormalization": (0, 1),
    "com.microsoft.Attention": (0, 1),
    "com.microsoft.BiasAdd": (0, 1, 2),
    "com.microsoft.BiasGelu": (0, 1),
    "com.microsoft.BiasSplitGelu": (0, 1),
    "com.microsoft.CausalConvWithState": (0, 1),
    "com.microsoft.DequantizeLinear": (0, 1),
    "com.microsoft.DynamicQuantizeLSTM": (0, 1, 2, 8, 9, 10, 11),
    "com.microsoft.DynamicQuantizeMatMul": (0, 1, 2),
    "com.microsoft.EmbedLayerNormalization": (0, 2, 3, 5, 6),
    "com.microsoft.FastGelu": (0,),
    "com.microsoft.FusedConv": (0, 1),
    "com.microsoft.FusedGemm": (0, 1),
    "com.microsoft.FusedMatMul": (0, 1),
    "com.microsoft.GatedDeltaNet": (0,),
    "com.microsoft.GatherBlockQuantized": (0, 1, 2),
    "com.microsoft.Gelu": (0,),
    "com.microsoft.GroupQueryAttention": (0, 5, 6),
    "com.microsoft.LinearAttention": (0, 1, 2),
    "com.microsoft.MatMulIntegerToFloat": (0, 1, 2, 3),
    "com.microsoft.MatMulNBits": (0, 1, 2),
    "com.microsoft.MoE": (0, 1, 2, 4),
    "com.microsoft.MultiHeadAttention": (0,),
    "com.microsoft.QLinearAdd": (0, 1, 3, 4, 6),
    "com.microsoft.QLinearMul": (0, 1, 3, 4, 6),
    "com.microsoft.QMoE": (0, 1, 2, 5),
    "com.microsoft.QuantizeLinear": (0, 1),
    "com.microsoft.QuickGelu": (0,),
    "com.microsoft.RotaryEmbedding": (0, 1, 2, 3),
    "com.microsoft.SkipLayerNormalization": (0, 1, 2),
    "com.microsoft.SkipSimplifiedLayerNormalization": (0, 1, 2),
    "com.microsoft.TransposeMatMul": (0, 1),
}


class Wanted(NamedTuple):
    """operands: number -> name, of those that must be given. least, results: how many operands and results
    there are at least. attributes: name -> its kind. required: attributes that must be given."""

    operands: Mapping[int, str]
    least: int
    results: int
    attributes: Mapping[str, onnx.defs.OpSchema.AttrType]
    required: tuple[str, ...]


@lru_cache(maxsize=1024)
def wanted(kind: str, opset: int) -> Wanted | None:
    """What an operator of a version cannot do without; None for one that is not known."""
    domain, _, name = kind.rpartition(".")
    try:
        schema = onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError:
        numbers = _OTHERS.get(kind)
        return None if numbers is None else Wanted({n: f"number {n}" for n in numbers}, 0, 1, {}, ())
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    return Wanted(
        {n: one.name for n, one in enumerate(schema.inputs) if one.option != optional and one.min_arity},
        schema.min_input,
        schema.min_output,
        {name: one.type for name, one in schema.attributes.items()},
        tuple(name for name, one in schema.attributes.items() if one.required),
    )


def check(node: Node, opset: int) -> None:
    """Raise where a node has not what its operator cannot do without."""
    want = wanted(node.kind, opset)
    if want is None:
        return
    inputs, outputs = node.inputs, node.outputs
    for number, name in want.operands.items():
        if number >= len(inputs) or not inputs[number]:
            raise FuseError(f"{node} has no operand {name}")
    if len(inputs) < want.least:
        raise FuseError(f"{node} has too few operands: want at least {want.least}, got {len(inputs)}")
    if len(outputs) < want.results:
        raise FuseError(f"{node} has too few results: want at least {want.results}, got {len(outputs)}")
    for name in want.required:
        if name not in node.attrs:
            raise FuseError(f"{node} has no attribute {name}")
    for attribute in node.proto.attribute if node.attrs else ():
        kind = want.attributes.get(attribute.name)
        if kind is not None and attribute.type and attribute.type != kind.value:
            got = onnx.AttributeProto.AttributeType.Name(attribute.type)
            raise FuseError(f"{node}: attribute {attribute.name} is of kind {got}, want {kind.name}")
