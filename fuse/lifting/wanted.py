"""What an operator cannot do without: operands, results, attributes and their kinds, from its schema."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import onnx

from fuse.lifting.draft import Node
from fuse.types import FuseError

#: Operators of com.microsoft, of which onnx has no schema, by the numbers of the operands that they cannot
#: do without (the schemas of onnxruntime 1.32).
_MICROSOFT = {
    "0": "FastGelu GatedDeltaNet Gelu MultiHeadAttention QuickGelu Trilu Unique",
    "0 1": (
        "Attention BiasDropout BiasGelu BiasSplitGelu CausalConvWithState "
        "DequantizeLinear FusedConv FusedGemm FusedMatMul FusedMatMulActivation GatherND "
        "GridSample MatMulInteger16 NhwcConv NhwcFusedConv Pad QLinearConcat "
        "QuantizeLinear Range TransposeMatMul"
    ),
    "0 1 2": (
        "BiasAdd DynamicQuantizeMatMul GatherBlockQuantized LinearAttention MatMulBnb4 "
        "MatMulNBits SkipLayerNormalization SkipSimplifiedLayerNormalization"
    ),
    "0 1 2 3": "MatMulIntegerToFloat RotaryEmbedding SkipGroupNorm",
    "0 1 2 3 4": "QAttention QLinearGlobalAveragePool",
    "0 1 2 3 4 5": "GatedRelativePositionBias QGemm",
    "0 1 2 3 4 5 6 7": "QLinearConv",
    "0 1 2 3 4 5 6 7 8": "QLinearWhere",
    "0 1 2 4": "MoE",
    "0 1 2 5": "QMoE",
    "0 1 2 8 9 10 11": "DynamicQuantizeLSTM",
    "0 1 3": "QLinearAveragePool QLinearSigmoid",
    "0 1 3 4": "QLinearSoftmax",
    "0 1 3 4 6": "QLinearAdd QLinearMul",
    "0 2 3 5 6": "EmbedLayerNormalization",
    "0 2 3 5 6 8 9 11 12 13 14 16 17": "QEmbedLayerNormalization",
    "0 5 6": "GroupQueryAttention",
}
_OTHERS = {
    f"com.microsoft.{kind}": tuple(map(int, numbers.split()))
    for numbers, kinds in _MICROSOFT.items()
    for kind in kinds.split()
} | {"SimplifiedLayerNormalization": (0, 1)}


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
