"""Faults of quantized products, lookups, recurrences, modulated norms, caches and what is placed."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from .draft import Draft, Place, Planted
from .general import (
    Plant,
    an_output,
    attribute,
    before,
    kind,
    number,
    other,
    run_time,
    swapped,
    through,
    told,
)

_GUARD = "attribute operand op guard:"
_DECODES = "DequantizeLinear"
_NBITS = "com.microsoft.MatMulNBits"


# ---- quantized products --------------------------------------------------------------------------
def along_the_inputs(draft: Draft, place: Place) -> Planted | None:
    """A scale for each input of the product instead of each output."""
    op = next((op for op in place.of(_DECODES) if place.constant(op.inputs[0])), None)
    dims = () if op is None else place.dims(op.inputs[0])
    if op is None or len(dims) != 2 or any(place.dims(v)[:1] != dims[:1] for v in op.inputs[1:] if v):
        return None
    node = draft.node(op.outputs[0])
    for index in range(1, len(node.input)):
        array = draft.array(draft.below(node.input[index]))
        if array is None:
            return None
        node.input[index] = draft.constant(np.resize(array, (int(dims[1]),)))  # type: ignore[call-overload]
    draft.set_attribute(node, "axis", 1)
    return told(place, "guard: attribute operand", node.output[0], *node.input)


def codes_of_many_bits(draft: Draft, place: Place) -> Planted | None:
    """The weight is stored in more bits than a quantized weight has."""
    op = next((op for op in place.of(_DECODES) if place.constant(op.inputs[0])), None)
    if op is None or draft.opset < 13:
        return None
    node = draft.node(op.outputs[0])
    for index in (0, 2):
        if len(node.input) <= index:
            continue
        array = draft.array(draft.below(node.input[index]))
        if array is None or array.dtype not in (np.int8, np.uint8):
            return None
        if index == 2:
            del node.input[2]
        else:
            node.input[0] = draft.constant(array.astype(np.int32))
    return told(place, "operand attribute", node.output[0], *node.input)


def _numbers(kinds: str, index: int, name: str) -> dict[str, Plant]:
    return {
        f"{name} an input": run_time(kinds, index),
        f"{name} overridable": run_time(kinds, index, "default"),
    }


QUANTIZED: dict[str, Plant] = {
    **_numbers(_DECODES, 0, "codes"),
    **_numbers(_DECODES, 1, "scales"),
    **_numbers(_DECODES, 2, "zeros"),
    **_numbers(_NBITS, 1, "blocks"),
    **_numbers(_NBITS, 2, "scales of blocks"),
    **_numbers(_NBITS, 3, "zeros of blocks"),
    **_numbers("MatMulInteger", 1, "integers"),
    **_numbers("MatMulInteger", 3, "zeros of integers"),
    "scales along the inputs": along_the_inputs,
    "codes of 32 bits": codes_of_many_bits,
    "Abs on the decoded": before("Abs", "MatMul Gemm", 1),
    "decoded an output": an_output(_DECODES),
    "product of integers an output": an_output("MatMulInteger"),
    "scaled by a sum": kind("Mul", "Add", which=-1),
    "scaled by a quotient": kind("Mul", "Div", which=-1),
    "scales summed": kind("Mul", "Add"),
    "Abs on the cast": before("Abs", "Cast"),
    "Abs on the product": before("Abs", "Mul", which=-1),
    "Sub for the bias": kind("Add", "Sub", which=-1),
    "Max for the bias": kind("Add", "Max", which=-1),
    "rounded on the way": through(TensorProto.FLOAT16, "MatMul Gemm", 1),
}

# ---- lookups --------------------------------------------------------------------------------------
EMBED: dict[str, Plant] = {
    "table an input": run_time("Gather", 0),
    "table overridable": run_time("Gather", 0, "default"),
    "second table an input": run_time("Gather", 0, which=1),
    "last table an input": run_time("Gather", 0, which=-1),
    "looked up on another axis": attribute("Gather", "axis", 1),
    "Sub for the first sum": kind("Add", "Sub", rules="add_norm"),
    "Mul for the first sum": kind("Add", "Mul", rules="add_norm"),
    "Max for the last sum": kind("Add", "Max", which=-1, rules="add_norm"),
    "Abs on the sum": before("Abs", "LayerNormalization", rules="add_norm"),
    "Abs on a row": before("Abs", "Add", rules="add_norm"),
    "Tanh on a row": before("Tanh", "Add", 1, which=-1, rules="add_norm"),
    "rows rounded": through(TensorProto.FLOAT16, "Add", rules="add_norm"),
    "rows an output": an_output("Gather"),
    "last rows an output": an_output("Gather", which=-1),
    "sum an output": an_output("Add"),
}

# ---- recurrences ----------------------------------------------------------------------------------
DELTA: dict[str, Plant] = {
    "CumSum on another axis": number("CumSum", 1, lambda a: a * 0 + 2),
    "CumSum in reverse": attribute("CumSum", "reverse", 1),
    "CumSum exclusive": attribute("CumSum", "exclusive", 1),
    "Trilu upper": attribute("Trilu", "upper", 1),
    "diagonal kept": number("Trilu", 1, lambda a: a * 0),
    "Tanh for the first Exp": kind("Exp", "Tanh"),
    "Tanh for the last Exp": kind("Exp", "Tanh", which=-1),
    "Abs for Neg": kind("Neg", "Abs"),
    "Add for the first Sub": kind("Sub", "Add"),
    "Add for the last Sub": kind("Sub", "Add", which=-1),
    "Sub for the first Add": kind("Add", "Sub"),
    "Sub for the last Add": kind("Add", "Sub", which=-1),
    "Add for the first Mul": kind("Mul", "Add"),
    "Add for the last Mul": kind("Mul", "Add", which=-1),
    "rows padded in front": number("Pad", 1, lambda a: np.roll(a, a.size // 2)),
    "last rows padded in front": number("Pad", 1, lambda a: np.roll(a, a.size // 2), which=-1),
    "padded by edges": attribute("Pad", "mode", "edge"),
    "written on another axis": attribute("ScatterElements", "axis", 1, codes=_GUARD),
    "written by adding": attribute("ScatterElements", "reduction", "add", codes=_GUARD),
    "last written by adding": attribute("ScatterElements", "reduction", "add", which=-1, codes=_GUARD),
    "row written by adding": attribute("ScatterND", "reduction", "add", codes=_GUARD),
    "another perm": attribute("Transpose", "perm", [0, 1, 3, 2, 4], codes=_GUARD),
    "sum of the first product on another axis": number("ReduceSum", 1, lambda a: a - 1, codes=_GUARD),
    "sum keeps its axis": attribute("ReduceSum", "keepdims", 1),
    "ReduceMax for ReduceSum": kind("ReduceSum", "ReduceMax"),
    "ReduceMean for the last ReduceSum": kind("ReduceSum", "ReduceMean", which=-1),
    "products swapped": swapped("MatMul", codes=_GUARD + " same_value"),
    "last product swapped": swapped("MatMul", which=-1, codes=_GUARD + " same_value"),
    "Abs before the first product": before("Abs", "MatMul"),
    "Abs before the last product": before("Abs", "MatMul", which=-1),
    "decay an output": an_output("Exp"),
    "solved an output": an_output("ScatterND", which=-1),
    "result of the last product an output": an_output("MatMul", which=-1),
    "mask at run time": run_time("Where", 0),
    "in the other direction": attribute("Scan", "scan_input_directions", [1, 1, 1, 1, 1], codes=_GUARD),
    "written in the other direction": attribute("Scan", "scan_output_directions", [1], codes=_GUARD),
}
CONV: dict[str, Plant] = {
    "one group": attribute("Conv", "group", 2, codes="attribute guard:"),
    "weight an input": run_time("Conv", 1),
    "strided": attribute("Conv", "strides", [2], codes="attribute guard:"),
    "dilated": attribute("Conv", "dilations", [2], codes="attribute guard:"),
    "pads behind": attribute("Conv", "pads", [0, 6], codes="attribute guard:"),
    "one pad less": attribute("Conv", "pads", [2, 3], codes="attribute guard:"),
    "cut from the second": number("Slice", 1, lambda a: a + 1, codes=_GUARD),
    "cut a column later": number("Slice", 2, lambda a: a + 1, codes=_GUARD),
    "cut in steps": number("Slice", 4, lambda a: a + 1, codes=_GUARD),
    "cut on another axis": number("Slice", 3, lambda a: a * 0, codes=_GUARD),
    "Tanh for Sigmoid": kind("Sigmoid", "Tanh", rules="silu"),
    "Abs on the result": before("Abs", "Slice"),
    "Abs before the gate": before("Abs", "Mul", 1, which=-1),
    "result an output": an_output("Conv"),
    "cut an output": an_output("Slice"),
    "Add for the gate": kind("Mul", "Add", which=-1, rules="silu"),
    "Div for the gate": kind("Mul", "Div", which=-1, rules="silu"),
    "Sub for the gate": kind("Mul", "Sub", which=-1, rules="silu"),
}

# ---- modulated norms -------------------------------------------------------------------------------
ADA: dict[str, Plant] = {
    "one off": number("Add", 1, lambda a: a * 1.5),
    "one off, first": number("Add", 0, lambda a: a * 1.5),
    "one at run time": run_time("Add", 1, rules="layer_norm rms_norm"),
    "Sub for the sum with one": kind("Add", "Sub", rules="layer_norm rms_norm"),
    "Sub for the shift": kind("Add", "Sub", which=-1),
    "Max for the shift": kind("Add", "Max", which=-1),
    "Mul for the shift": kind("Add", "Mul", which=-1),
    "Add for the scale": kind("Mul", "Add", which=-1),
    "Div for the scale": kind("Mul", "Div", which=-1),
    "Abs on the norm": before("Abs", "Mul", which=-1),
    "Abs on the scaled": before("Abs", "Add", which=-1),
    "Tanh on the scale": before("Tanh", "Mul", 1, which=-1),
    "norm rounded": through(TensorProto.FLOAT16, "Mul", which=-1, rules="layer_norm rms_norm"),
    "norm an output": an_output("LayerNormalization"),
    "scaled an output": an_output("Mul", which=-1),
    "norm's axis": attribute("LayerNormalization", "axis", 1),
    "norm weighted": number("LayerNormalization", 1, lambda a: a + 0.5, rules="add_norm"),
}
GATED: dict[str, Plant] = {
    "Add for the gate": kind("Mul", "Add", which=-1),
    "Div for the gate": kind("Mul", "Div", which=-1),
    "Abs on the branch": before("Abs", "Mul", 1),
    "Abs on the gated": before("Abs", "Add", 1, which=-1),
    "gated an output": an_output("Mul", which=-1),
    "gated rounded": through(TensorProto.FLOAT16, "Add", 1, which=-1),
}
GATED_NORM: dict[str, Plant] = {
    "Tanh for Sigmoid": kind("Sigmoid", "Tanh", rules="silu"),
    "Add for the gate": kind("Mul", "Add", which=-1, rules="silu rms_norm"),
    "Abs on the norm": before("Abs", "Mul", 0, which=-1, rules="rms_norm"),
    "Abs on the gate": before("Abs", "Mul", 1, which=-1, rules="silu"),
    "gate rounded": through(TensorProto.FLOAT16, "Mul", 1, which=-1),
}

# ---- convolutions ----------------------------------------------------------------------------------
CONV_ACT: dict[str, Plant] = {
    "weight an input": run_time("Conv", 1),
    "weight overridable": run_time("Conv", 1, "default"),
    "upper bound an input": run_time("Clip", 2, rules="hard_swish"),
    "lower bound an input": run_time("Clip", 1, rules="hard_swish"),
    "bias an input": run_time("Add", 1, rules="hard_swish"),
    "bias along the width": number("Add", 1, lambda a: a.reshape(a.shape[::-1])),
    "bias raises the rank": number("Add", 1, lambda a: a.reshape((1, *a.shape)), codes=_GUARD),
    "Sub for the sum": kind("Add", "Sub", rules="hard_swish"),
    "Mul for the sum": kind("Add", "Mul", rules="hard_swish"),
    "Max for the sum": kind("Add", "Max", rules="hard_swish"),
    "Abs on the result": before("Abs", "Relu Sigmoid Clip Tanh LeakyRelu HardSigmoid"),
    "Neg on the result": before("Neg", "Relu Clip LeakyRelu HardSigmoid"),
    "result rounded": through(TensorProto.FLOAT16, "Relu Clip LeakyRelu HardSigmoid"),
    "result an output": an_output("Conv"),
    "Exp for Relu": kind("Relu", "Exp"),
    "Sin for Relu": kind("Relu", "Sin"),
}
CONV_AFFINE: dict[str, Plant] = {
    "weight an input": run_time("Conv", 1),
    "scale an input": run_time("BatchNormalization", 1),
    "shift an input": run_time("BatchNormalization", 2),
    "mean an input": run_time("BatchNormalization", 3),
    "variance overridable": run_time("BatchNormalization", 4, "default"),
    "in training": attribute("BatchNormalization", "training_mode", 1, codes="attribute arity"),
    "scale by a quotient": kind("Mul", "Div"),
    "scale by a sum": kind("Mul", "Add"),
    "scale of one row": number("Mul", 1, lambda a: a.reshape(a.shape[::-1]), codes=_GUARD),
    "scale at run time": run_time("Mul", 1),
    "shift at run time": run_time("Add", 1),
    "Sub for the shift": kind("Add", "Sub"),
    "result an output": an_output("Conv"),
    "result rounded": through(TensorProto.FLOAT16, "BatchNormalization"),
}

# ---- caches, blocks, heads ---------------------------------------------------------------------------
APPEND: dict[str, Plant] = {
    "joined on the width": attribute("Concat", "axis", -1, codes="attribute guard: operand"),
    "joined on the heads": attribute("Concat", "axis", 1, codes="attribute guard: operand"),
    "past rounded": through(TensorProto.FLOAT16, "Concat"),
    "past of zeros": number("Concat", 0, lambda a: a * 0),
}
LAYER: dict[str, Plant] = {
    "another residual": other(
        "Add", 0, which=-1, rules="add_norm transformer_layer", codes="same_value operand guard:"
    ),
    "other residual": other(
        "Add", 1, which=-1, rules="add_norm transformer_layer", codes="same_value operand guard:"
    ),
}
NORM_RESHAPE: dict[str, Plant] = {
    "flattens the last axis": number("Reshape", 1, lambda a: np.roll(a, 1), codes=_GUARD),
    "Abs on the norm": before("Abs", "Reshape", which=-1, rules="add_norm rms_norm"),
    "norm an output": an_output("Mul LayerNormalization", which=-1),
}
ROPE_APPEND: dict[str, Plant] = {
    "Abs on the rotated": before("Abs", "Concat", 1, which=-1, rules="kv_append rope land_in_rows"),
    "rotated rounded": through(
        TensorProto.FLOAT16, "Concat", 1, which=-1, rules="kv_append rope land_in_rows"
    ),
}
NORM_ROPE: dict[str, Plant] = {
    "another perm": attribute("Transpose", "perm", [0, 3, 1, 2], codes=_GUARD),
    "Abs between": before("Abs", "Transpose", rules="rms_norm qk_norm"),
    "rounded between": through(TensorProto.FLOAT16, "Transpose", rules="rms_norm qk_norm"),
    "normed an output": an_output("Transpose"),
}
MERGED: dict[str, Plant] = {
    "weight an input": run_time("MatMul Gemm", 1, rules="matmul_bias attention_block"),
    "last weight an input": run_time("MatMul Gemm", 1, which=-1, rules="matmul_bias attention_block"),
    "last weight overridable": run_time(
        "MatMul Gemm", 1, "default", which=-1, rules="matmul_bias attention_block"
    ),
    "alpha": attribute("Gemm", "alpha", 0.5, rules="matmul_bias attention_block"),
    "transA": attribute("Gemm", "transA", 1, rules="matmul_bias attention_block"),
    "Abs on x of the first": before("Abs", "MatMul Gemm", rules="attention_block mlp_block gated_act"),
    "Abs on x of the last": before(
        "Abs", "MatMul Gemm", which=-1, rules="attention_block mlp_block gated_act"
    ),
    "another x": other(
        "MatMul Gemm",
        0,
        which=-1,
        rules="attention_block mlp_block gated_act",
        codes="same_value operand guard:",
    ),
}
