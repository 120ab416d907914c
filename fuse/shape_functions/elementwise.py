"""Operators that keep the dims of an operand, or broadcast them: arithmetic, activations, norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuse.shape_functions import content_arithmetic as arithmetic
from fuse.shape_functions.call import Call, Row, Sketch, kinds, normal_axis, spread
from fuse.types import DTYPES


def same(call: Call) -> Sequence[Sketch | None]:
    return (call.dims(0),)


def broadcasted(call: Call) -> Sequence[Sketch | None]:
    """All operands broadcast together."""
    whole: Sketch = call.need(0)
    for i in range(1, len(call.inputs)):
        whole = spread(whole, call.need(i))
    return (whole,)


def attribute_dtype(name: str, default: int) -> Callable[[Call], str]:
    """The dtype that an attribute names by number; 0 stands for none said."""

    def dtype(call: Call) -> str:
        number = call.attrs.get(name, default)
        return DTYPES.get(number, "") if isinstance(number, int) else ""

    return dtype


def dtype_or_input(name: str, i: int) -> Callable[[Call], str]:
    """The dtype that an attribute names, else the dtype of an input."""

    def dtype(call: Call) -> str:
        number = call.attrs.get(name, 0)
        return DTYPES.get(number, "") if isinstance(number, int) and number else call.dtype(i)

    return dtype


def _stash(call: Call) -> str:
    number = call.attrs.get("stash_type", 1)
    return DTYPES.get(number, "") if isinstance(number, int) else ""


def quantized_dtype(call: Call) -> str:
    """The zero point's dtype, else output_dtype, else u8."""
    if call.given(2):
        return call.dtype(2)
    number = call.attrs.get("output_dtype", 0)
    return DTYPES.get(number, "") if isinstance(number, int) and number else "u8"


def dequantized_dtype(call: Call) -> str:
    number = call.attrs.get("output_dtype", 0)
    return DTYPES.get(number, "") if isinstance(number, int) and number else call.dtype(1)


def dropout(call: Call) -> Sequence[Sketch | None]:
    return (call.dims(0), call.dims(0))


def layer_norm(call: Call) -> Sequence[Sketch | None]:
    """y, and the mean and the inverse deviation of the normalized axes, which they keep as 1."""
    dims = call.need(0)
    axis = normal_axis(call.integer("axis", -1), len(dims))
    rows = dims[:axis] + (1,) * (len(dims) - axis)
    return dims, rows, rows


def batch_norm(call: Call) -> Sequence[Sketch | None]:
    return call.dims(0), call.dims(3), call.dims(4), call.dims(3), call.dims(4)


def dynamic_quantize(call: Call) -> Sequence[Sketch | None]:
    return call.dims(0), (), ()


_SAME = kinds(
    "Relu Sigmoid Tanh Erf Exp Log Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Sign Elu Selu Celu "
    "LeakyRelu ThresholdedRelu HardSigmoid HardSwish Softplus Softsign Mish Gelu Swish PRelu Clip Shrink "
    "Softmax LogSoftmax Hardmax LRN LpNormalization MeanVarianceNormalization InstanceNormalization "
    "GroupNormalization CumSum CumProd RotaryEmbedding BitwiseNot"
)
_FOLLOWED = kinds("Neg Abs Sqrt Reciprocal Floor Ceil Round")
_ARITHMETIC = kinds("Add Sub Mul Div Pow Mod Max Min")
_COMPARISONS = kinds("Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor")
_BROADCAST = kinds("Sum Mean BitShift BitwiseAnd BitwiseOr BitwiseXor SwiGLU")

ROWS: dict[str, Row] = {
    **{kind: Row((0,), same) for kind in _SAME},
    **{kind: Row((0,), same, arithmetic.unary) for kind in _FOLLOWED},
    **{kind: Row(((0, 1),), broadcasted, arithmetic.binary) for kind in _ARITHMETIC},
    **{kind: Row(("bool",), broadcasted, arithmetic.binary) for kind in _COMPARISONS},
    **{kind: Row(((0, 1),), broadcasted) for kind in _BROADCAST},
    "Identity": Row((0,), same, arithmetic.keep),
    "Not": Row(("bool",), same, arithmetic.unary),
    "IsNaN": Row(("bool",), same),
    "IsInf": Row(("bool",), same),
    "Where": Row(((1, 2),), broadcasted, arithmetic.where),
    "Cast": Row((attribute_dtype("to", 0),), same, arithmetic.cast),
    "CastLike": Row((1,), same, arithmetic.cast_like),
    "BitCast": Row((attribute_dtype("to", 0),), same),
    "Dropout": Row((0, "bool"), dropout),
    "QuantizeLinear": Row((quantized_dtype,), same),
    "DequantizeLinear": Row((dequantized_dtype,), same),
    "DynamicQuantizeLinear": Row(("u8", "f32", "u8"), dynamic_quantize),
    "LayerNormalization": Row((0, _stash), layer_norm),
    "RMSNormalization": Row((0,), same),
    "SimplifiedLayerNormalization": Row((0, _stash), layer_norm),
    "BatchNormalization": Row((0, 3, 4, 3, 4), batch_norm),
    "Bernoulli": Row((dtype_or_input("dtype", 0),), same),
    "RandomNormalLike": Row((dtype_or_input("dtype", 0),), same),
    "RandomUniformLike": Row((dtype_or_input("dtype", 0),), same),
    "EyeLike": Row((dtype_or_input("dtype", 0),), same),
}
