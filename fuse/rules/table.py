"""The rule table: each rule runs to its fixed point over the slots before the next begins.

Names and order are API: `report.fired("add_norm")` stands in people's tests for years.
"""

from __future__ import annotations

from fuse.rule import Rule
from fuse.rules.activations import fast_gelu, gelu, hard_swish, mish, quick_gelu, silu, softcap
from fuse.rules.advance import advance
from fuse.rules.attention import attention
from fuse.rules.attention_composites import attn_output_gate, values_in_keys
from fuse.rules.blocks import attention_block, mlp_block, transformer_layer
from fuse.rules.caches import kv_append, qk_norm_rope_kv_append, rope_kv_append
from fuse.rules.conv_state import conv_state
from fuse.rules.convolutions import conv_act, conv_affine
from fuse.rules.delta import gated_delta
from fuse.rules.embeddings import embed_norm, norm_reshape
from fuse.rules.gates import gated_act
from fuse.rules.group_norm import group_norm
from fuse.rules.landings import land_in_rows, land_in_units
from fuse.rules.late import fused_quant, late_gated_act, late_merged_gate_up, quant_shared
from fuse.rules.merged import merged_gate_up, merged_products, merged_qkv
from fuse.rules.mixture_blocks import moe_block, moe_gather_in_operand, router_shared_gate_merge
from fuse.rules.mixtures import moe, moe_shared
from fuse.rules.modulation import ada_norm, gated_norm, gated_residual
from fuse.rules.norm_composites import add_norm, norm_add_norm, qk_norm, qk_norm_rope
from fuse.rules.norms import l2_norm, layer_norm, rms_norm
from fuse.rules.placements import read_in_place
from fuse.rules.products import matmul_bias, matmul_bias_act, matmul_residual
from fuse.rules.quantized import quantized_matmul
from fuse.rules.regions import elementwise_region
from fuse.rules.rotation import rope

RULES: tuple[Rule, ...] = (
    # what exporters write as primitives
    rms_norm,
    layer_norm,
    l2_norm,
    group_norm,
    gelu,
    fast_gelu,
    quick_gelu,
    silu,
    mish,
    hard_swish,
    softcap,
    rope,
    attention,
    # products
    quantized_matmul,
    matmul_bias,
    merged_qkv,
    merged_gate_up,
    merged_products,
    gated_act,
    matmul_bias_act,
    matmul_residual,
    # norms with what stands around them
    add_norm,
    norm_add_norm,
    ada_norm,
    gated_residual,
    gated_norm,
    qk_norm,
    norm_reshape,
    embed_norm,
    qk_norm_rope,
    # caches
    kv_append,
    rope_kv_append,
    qk_norm_rope_kv_append,
    # gates, recurrences
    attn_output_gate,
    values_in_keys,
    gated_delta,
    conv_state,
    # convolutions
    conv_affine,
    conv_act,
    # mixtures
    moe,
    moe_shared,
    router_shared_gate_merge,
    moe_gather_in_operand,
    moe_block,
    # placement: nothing new computed, a copy saved
    read_in_place,
    land_in_rows,
    land_in_units,
    # blocks and regions
    attention_block,
    mlp_block,
    transformer_layer,
    elementwise_region,
    # numerics
    fused_quant,
)

#: After the shared rules: what becomes possible once a product's activation is quantized where it is read.
LATE: tuple[Rule, ...] = (quant_shared, late_merged_gate_up, late_gated_act)

#: Always the last step: the choice of the next token moves the step on.
ADVANCE: tuple[Rule, ...] = (advance,)
