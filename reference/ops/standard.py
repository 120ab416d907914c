"""Operators by onnx's own reference implementation: one prepared evaluator for each distinct node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fuse.ir import Tensor
from fuse.types import FuseError
from reference.ops.call import Call, Value, dtype_number

#: The file format version of the models of one node that are made here.
_IR_VERSION = 10


def schema_version(domain: str, op_type: str, opset: int) -> int | None:
    """The version of the operator that an opset holds, or None where onnx does not know it."""
    try:
        return int(defs.get_schema(op_type, opset, domain).since_version)
    except defs.SchemaError:
        return None


def _attribute(name: str, value: Any, schema: Any) -> onnx.AttributeProto:
    if isinstance(value, (Tensor, np.ndarray)):
        return helper.make_attribute(
            name, numpy_helper.from_array(value.array() if isinstance(value, Tensor) else value, name)
        )
    declared = schema.attributes.get(name)
    return helper.make_attribute(name, value, attr_type=None if declared is None else int(declared.type))


@lru_cache(maxsize=4096)
def _evaluator(node: bytes, domain: str, opset: int, dtypes: tuple[int, ...]) -> ReferenceEvaluator:
    """dtypes: of each present operand, 0 where it is a sequence."""
    proto = onnx.NodeProto.FromString(node)
    inputs = [
        helper.make_tensor_value_info(name, dtype, None) if dtype else onnx.ValueInfoProto(name=name)
        for name, dtype in zip((n for n in proto.input if n), dtypes, strict=True)
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output if name]
    graph = helper.make_graph([proto], "one", inputs, outputs)
    opsets = [helper.make_opsetid(domain, opset)]
    if domain:
        opsets.append(helper.make_opsetid("", defs.onnx_opset_version()))
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION))


#: What an attribute was called before the opset from which onnx.reference reads it.
_OLD_WORDS = {"GridSample": ("mode", "bilinear", {"bilinear": "linear", "bicubic": "cubic"})}


def _in_new_words(op_type: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as onnx.reference reads them: it knows an operator by its newest words only."""
    if op_type not in _OLD_WORDS:
        return dict(attrs)
    name, default, words = _OLD_WORDS[op_type]
    value = attrs.get(name, default)
    return {**attrs, name: words.get(value, value)}


def run(call: Call, operands: Sequence[Value]) -> tuple[Value, ...]:
    """One operator by onnx.reference, at the version its opset holds.

    Raises FuseError where onnx does not know the operator.
    """
    domain, _, op_type = call.kind.rpartition(".")
    version = schema_version(domain, op_type, call.opset)
    if version is None:
        raise FuseError(f"no implementation for {domain or 'ai.onnx'} {op_type}")
    schema = defs.get_schema(op_type, call.opset, domain)
    node = helper.make_node(
        op_type,
        [f"x{i}" if value is not None else "" for i, value in enumerate(operands)],
        [f"y{i}" if wanted else "" for i, wanted in enumerate(call.outputs)],
        domain=domain,
    )
    attrs = _in_new_words(op_type, call.attrs)
    for name in sorted(attrs):
        if attrs[name] is not None:
            node.attribute.append(_attribute(name, attrs[name], schema))
    present = {f"x{i}": value for i, value in enumerate(operands) if value is not None}
    dtypes = tuple(dtype_number(v) if isinstance(v, np.ndarray) else 0 for v in present.values())
    evaluator = _evaluator(node.SerializeToString(deterministic=True), domain, call.opset, dtypes)
    results = iter(evaluator.run(None, present))
    return tuple(next(results) if wanted else None for wanted in call.outputs)
