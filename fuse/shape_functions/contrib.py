"""The operators of onnxruntime's `com.microsoft` domain that model files carry."""

from __future__ import annotations

from collections.abc import Sequence

from fuse.shape_functions.call import (
    Call,
    Row,
    Sketch,
    Unclear,
    kinds,
    normal_axis,
    plus,
    quotient,
    with_axis,
)
from fuse.shape_functions.elementwise import (
    broadcasted,
    dequantized_dtype,
    layer_norm,
    quantized_dtype,
    same,
)
from fuse.shape_functions.products import gemm, matmul, product_dims, swapped
from fuse.shape_functions.sequences import causal_conv, linear_attention, recurrent
from fuse.shape_functions.windows import channels_last_conv, conv, global_pool, pool, qlinear_conv
from fuse.types import Dim, Dims, mul


def skip_norm(call: Call) -> Sequence[Sketch | None]:
    """The norm, the mean and inverse deviation of each row, the sum."""
    dims = call.need(0)
    rows = (*dims[:-1], 1)
    return dims, rows, rows, dims


def embed_norm(call: Call) -> Sequence[Sketch | None]:
    """[b, s, width], the mask index [b], the sum of the embeddings."""
    ids, words = call.need(0), call.need(2)
    if len(ids) != 2 or len(words) != 2:
        raise Unclear
    found = (*ids, words[1])
    return found, (ids[0],), found


def fused_attention(call: Call) -> Sequence[Sketch | None]:
    """Attention over packed weights: [b, s, value width], and both caches in one [2, b, h, t, d]."""
    x, weight = call.need(0), call.need(1)
    sizes, heads = call.integers("qkv_hidden_sizes"), call.integer("num_heads", 0)
    if len(x) != 3 or len(weight) != 2 or heads < 1:
        raise Unclear
    width: Dim | None = sizes[2] if sizes and len(sizes) == 3 else quotient(weight[1], 3)
    past = call.dims(8 if call.op.kind.endswith("QAttention") else 4)
    steps: Dim | None = x[1]
    if past is not None and len(past) == 5:
        steps = past[3] if call.attrs.get("past_present_share_buffer") else plus(past[3], x[1])
    head = None if width is None else quotient(width, heads)
    return (x[0], x[1], width), (2, x[0], heads, steps, head)


def multi_head(call: Call) -> Sequence[Sketch | None]:
    """[b, s, value width] and the caches; q may be packed [b, s, h, 3, d], k and v may be split."""
    q, heads = call.need(0), call.integer("num_heads", 0)
    if heads < 1:
        raise Unclear
    if len(q) == 5:
        width: Dim | None = mul(q[2], q[4])
        return ((q[0], q[1], width),)
    key, value = call.dims(1), call.dims(2)
    if len(q) != 3:
        raise Unclear
    if value is None:
        packed = key is not None and len(key) == 5
        return ((q[0], q[1], q[2] if packed or not call.given(2) else None),)
    if len(value) == 4:
        width, rows = mul(value[1], value[3]), value[2]
    else:
        width, rows = value[-1], value[1]
    past = call.dims(6)
    steps = plus(past[2], rows) if past is not None and len(past) == 4 else None if call.given(6) else rows
    if key is None:
        return ((q[0], q[1], width),)
    present_key = (q[0], heads, steps, quotient(key[-1], heads) if len(key) == 3 else key[-1])
    present_value = (q[0], heads, steps, None if width is None else quotient(width, heads))
    return (q[0], q[1], width), present_key, present_value, (q[0], heads, q[1], steps)


def grouped_query(call: Call) -> Sequence[Sketch | None]:
    """[b, s, heads times width] and the caches; q, k and v may be packed in q."""
    q = call.need(0)
    heads, kv_heads = call.integer("num_heads", 0), call.integer("kv_num_heads", 0)
    if len(q) != 3 or heads < 1 or kv_heads < 1:
        raise Unclear
    width: Dim | None = q[2]
    head = quotient(q[2], heads)
    if not call.given(1):
        head = quotient(q[2], heads + 2 * kv_heads)
        width = None if head is None else mul(head, heads)
    past = call.dims(3)
    total = call.content(6)
    steps: Dim | None = None
    if past is not None and len(past) == 4 and total is not None and total[0] == past[2]:
        steps = past[2]
    elif not call.given(3):
        steps = q[1]
    bits = call.integer("kv_cache_bit_width", 0)
    cache: Sketch = (q[0], kv_heads, steps, head if bits in (0, 8) else None)
    return (q[0], q[1], width), cache, cache


def fused_matmul(call: Call) -> Sequence[Sketch | None]:
    """A product with flags that swap the last two axes, or bring the first axis before the last."""
    a, b = call.need(0), call.need(1)
    return (product_dims(_turned(call, a, "A"), _turned(call, b, "B")),)


def _turned(call: Call, dims: Dims, side: str) -> Dims:
    if call.attrs.get(f"transBatch{side}") and len(dims) > 2:
        dims = (*dims[1:-1], dims[0], dims[-1])
    return swapped(dims) if call.attrs.get(f"trans{side}") else dims


def packed_matmul(call: Call) -> Sequence[Sketch | None]:
    """A product with a packed weight of N columns."""
    return ((*call.need(0)[:-1], call.integer("N", 0)),)


def gather_blocks(call: Call) -> Sequence[Sketch | None]:
    """Gather of packed rows: below 8 bits in u8 the quantized axis holds several elements a byte."""
    dims, at = call.need(0), call.need(1)
    axis = normal_axis(call.integer("gather_axis", 0), len(dims))
    packed = normal_axis(call.integer("quantize_axis", 1), len(dims))
    each = 8 // max(call.integer("bits", 4), 1) if call.dtype(0) == "u8" else 1
    if axis == packed:
        raise Unclear
    wide = with_axis(dims, packed, mul(dims[packed], each))
    return (wide[:axis] + at + wide[axis + 1 :],)


def quantized_binary(call: Call) -> Sequence[Sketch | None]:
    """a, scale, zero point, b, scale, zero point, scale, zero point."""
    return broadcasted(
        Call(call.op._replace(inputs=call.inputs[0:4:3]), call.types, call.contents, call.opset)
    )


def quantized_concat(call: Call) -> Sequence[Sketch | None]:
    """The result's scale and zero point, then a tensor, a scale and a zero point an operand."""
    operands = [call.need(i) for i in range(2, len(call.inputs), 3)]
    if not operands or any(len(dims) != len(operands[0]) for dims in operands):
        raise Unclear
    axis = normal_axis(call.integer("axis", 0), len(operands[0]))
    total: Dim | None = 0
    for dims in operands:
        total = plus(total, dims[axis])
    return (with_axis(operands[0], axis, total),)


def quantized_where(call: Call) -> Sequence[Sketch | None]:
    """A condition, then two tensors with scale and zero point each."""
    inputs = (*call.inputs[:1], *call.inputs[1:5:3])
    return broadcasted(Call(call.op._replace(inputs=inputs), call.types, call.contents, call.opset))


def quantized_gemm(call: Call) -> Sequence[Sketch | None]:
    """a, scale, zero point, b, scale, zero point, c, scale, zero point."""
    return gemm(Call(call.op._replace(inputs=call.inputs[0:4:3]), call.types, call.contents, call.opset))


def quantized_gemm_dtype(call: Call) -> str:
    """Floats where nothing scales the result, else the type of its zero point."""
    if not call.given(7):
        return "f32"
    return call.dtype(8) if call.given(8) else call.dtype(0)


def dynamic_lstm(call: Call) -> Sequence[Sketch | None]:
    """As LSTM; the weights lie transposed, so only the attribute tells the hidden size."""
    if not call.attrs.get("hidden_size"):
        raise Unclear
    return recurrent(call)


def position_bias(call: Call) -> Sequence[Sketch | None]:
    """[b, heads, s, s]"""
    q = call.need(0)
    if len(q) != 3 or call.given(6):
        raise Unclear
    return ((q[0], call.integer("num_heads", 0), q[1], q[1]),)


def split_gelu(call: Call) -> Sequence[Sketch | None]:
    dims = call.need(0)
    if not dims:
        raise Unclear
    return ((*dims[:-1], quotient(dims[-1], 2)),)


def two_same(call: Call) -> Sequence[Sketch | None]:
    return call.dims(0), call.dims(0)


def global_pool_q(call: Call) -> Sequence[Sketch | None]:
    dims = call.need(0)
    return (
        ((dims[0], *(1,) * (len(dims) - 2), dims[-1]),)
        if call.attrs.get("channels_last")
        else global_pool(call)
    )


def reordered_input(call: Call) -> Sequence[Sketch | None]:
    """[n, blocks of channels, spatial]; how wide a block is, only the machine that wrote the file knows."""
    dims = call.need(0)
    last = bool(call.attrs.get("channels_last"))
    return ((dims[0], None, *(dims[1:-1] if last else dims[2:])),)


def reordered_output(call: Call) -> Sequence[Sketch | None]:
    """Back to `channels` channels, perhaps behind."""
    dims, channels = call.need(0), call.integer("channels", 0)
    if channels < 1:
        raise Unclear
    return (
        (dims[0], *dims[2:], channels) if call.attrs.get("channels_last") else (dims[0], channels, *dims[2:]),
    )


def upsampled(call: Call) -> Sequence[Sketch | None]:
    dims, scales = call.need(0), call.integers("scales")
    if scales is None or len(scales) != len(dims):
        raise Unclear
    return (tuple(mul(dim, scale) for dim, scale in zip(dims, scales, strict=True)),)


_SAME = kinds(
    "Gelu BiasGelu FastGelu QuickGelu RotaryEmbedding MRotaryEmbedding MoE QMoE BiasSoftmax BiasAdd "
    "GroupNorm GatedRMSNorm GatedAdd ScaledSiLU BranchwiseRMSNorm SparseAttention Inverse Trilu "
    "QLinearSigmoid QLinearLeakyRelu QLinearSoftmax"
)

_MICROSOFT: dict[str, Row] = {
    **{kind: Row((0,), same) for kind in _SAME},
    "SkipLayerNormalization": Row((0, "f32", "f32", 0), skip_norm),
    "SkipSimplifiedLayerNormalization": Row((0, "f32", "f32", 0), skip_norm),
    "LayerNormalization": Row((0, "f32"), layer_norm),
    "SimplifiedLayerNormalization": Row((0, "f32"), layer_norm),
    "SkipGroupNorm": Row((0,), two_same),
    "EmbedLayerNormalization": Row((2, "i32", 2), embed_norm),
    "QEmbedLayerNormalization": Row(("f32", "i32"), embed_norm),
    "Attention": Row((0,), fused_attention),
    "QAttention": Row((3,), fused_attention),
    "MultiHeadAttention": Row((0,), multi_head),
    "GroupQueryAttention": Row((0, (3, 0), (4, 0), 0), grouped_query),
    "FusedMatMul": Row((0,), fused_matmul),
    "TransposeMatMul": Row((0,), fused_matmul),
    "FusedMatMulActivation": Row((0,), fused_matmul),
    "FusedGemm": Row((0,), gemm),
    "FusedConv": Row((0,), conv),
    "NhwcFusedConv": Row((0,), channels_last_conv),
    "NhwcConv": Row((0,), channels_last_conv),
    "MatMulNBits": Row((0,), packed_matmul),
    "MatMulBnb4": Row((0,), packed_matmul),
    "MatMulIntegerToFloat": Row((2,), matmul),
    "MatMulInteger16": Row(("i32",), matmul),
    "DynamicQuantizeMatMul": Row((0,), matmul),
    "DynamicQuantizeLSTM": Row((0,), dynamic_lstm),
    "QuantizeLinear": Row((quantized_dtype,), same),
    "DequantizeLinear": Row((dequantized_dtype,), same),
    "QLinearAdd": Row((0,), quantized_binary),
    "QLinearMul": Row((0,), quantized_binary),
    "QLinearConcat": Row((2,), quantized_concat),
    "QLinearConv": Row((7,), qlinear_conv),
    "QLinearWhere": Row((1,), quantized_where),
    "QGemm": Row((quantized_gemm_dtype,), quantized_gemm),
    "QLinearAveragePool": Row((0,), pool),
    "QLinearGlobalAveragePool": Row((0,), global_pool_q),
    "GatherBlockQuantized": Row((2,), gather_blocks),
    "CausalConvWithState": Row((0,), causal_conv),
    "LinearAttention": Row((0, (3, 0)), linear_attention),
    "BiasSplitGelu": Row((0,), split_gelu),
    "GatedRelativePositionBias": Row((0,), position_bias),
    "BiasDropout": Row((0, "bool"), two_same),
}

#: The operators of onnxruntime's own image layout, in which channels come in blocks of one width: a file
#: saved after its hardware's optimizations holds them. Dims are those of whole blocks.
_BLOCKED: dict[str, Row] = {
    "Conv": Row((0,), conv),
    "ReorderInput": Row((0,), reordered_input),
    "ReorderOutput": Row((0,), reordered_output),
    "MaxPool": Row((0,), pool),
    "AveragePool": Row((0,), pool),
    "GlobalMaxPool": Row((0,), global_pool),
    "GlobalAveragePool": Row((0,), global_pool),
    "Upsample": Row((0,), upsampled),
}

#: The same by full kind.
ROWS: dict[str, Row] = {
    **{f"com.microsoft.{kind}": row for kind, row in _MICROSOFT.items()},
    **{f"com.microsoft.nchwc.{kind}": row for kind, row in _BLOCKED.items()},
}
