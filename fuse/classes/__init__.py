"""Every fused class, declared once: its operands, its attributes, one sentence.

Four things key off this table and a test holds them together: the rules that build a class, its
definition in `reference/definitions`, the chips that link it, and how a runtime runs it.

Operands stand first in `op.inputs`, in this order, "" where absent; an operand ending in `*` takes
all that the attributes count. Attributes with a default are left out of an op where they have it.
"""

from __future__ import annotations

from fuse.classes.declare import MERGED, declare
from fuse.classes.declare import REQUIRED as REQUIRED
from fuse.classes.declare import Attr as Attr
from fuse.classes.declare import FusedClass as FusedClass
from fuse.classes.mixtures import MIXTURES
from fuse.classes.mixtures import expert_counts as expert_counts
from fuse.classes.sequences import ATTENTION, SEQUENCES

_RMS = {
    "eps": Attr(REQUIRED, "added to the mean square before the root"),
    "offset": Attr(0.0, "added to the weight before it scales (1.0 for weights stored as w - 1)"),
    "compute": Attr("", "element type the norm computes in; empty: the type of x"),
}
_NORM = {"norm": Attr("rms", "rms or layer: what the norm is"), **_RMS}
_ROPE = {
    "form": Attr(
        "half",
        "half: the two halves of the width are the pairs; interleaved: even and odd lanes; pairs_to_halves: "
        "reads even and odd lanes, writes halves; halves_to_pairs: the reverse",
    ),
    "rotary_dim": Attr(0, "lanes that are rotated, the rest pass; 0: all"),
    "rotary_from": Attr(0, "first of the lanes that are rotated"),
    "tables": Attr("full", "full: cos and sin span the rotated width; half: one entry a pair"),
    "tables_from": Attr(
        "computed",
        "computed: made in the graph from positions, or given; table: constants, or cut from them; gathered: "
        "rows of constants, by position (recorded; the operands stand)",
    ),
    "position_ids": Attr(False, "cos and sin are tables of rows that position_ids selects"),
    "rope_compute": Attr("", "element type the rotation computes in; empty: the type of x"),
    "rope_unsqueeze": Attr(
        -1, "axis where selected cos and sin get a head axis of 1; -1: they broadcast as they are"
    ),
    "rope_heads": Attr(0, "heads in the last axis of a rank-3 x; 0: x has a head axis"),
}
_PRODUCT = {
    "trans_x": Attr(0, "1: x is transposed (its last two axes)"),
    "trans_weight": Attr(0, "1: the weight is [out, in]"),
    "alpha": Attr(1.0, "scales the product"),
    "beta": Attr(1.0, "scales the bias"),
}
_QUANTIZED = _PRODUCT | {
    "bits": Attr(REQUIRED, "bits of a code"),
    "storage": Attr(
        "values",
        "values: codes is a matrix, one code an element; blocks: packed rows [out, blocks, bytes]; fp4, nf4: "
        "the whole matrix packed, each code an index of a table of 16 values",
    ),
    "granularity": Attr(
        "tensor",
        "tensor: one scale; output: one for each; block: one for each block of inputs of an output; flat: "
        "one for each block of the whole matrix, row behind row",
    ),
    "block_size": Attr(0, "inputs that share a scale (block)"),
    "activation": Attr(
        "none",
        "what x is rounded to: none; dynamic (u8, by its range as the op runs); static (by x_scale and "
        "x_zero_point). An x of integers is in codes already",
    ),
    "x_codes": Attr("", "element type that a float x is rounded to (static)"),
    "y_codes": Attr("", "element type that the result is rounded to, where there is a code_scale"),
    "accuracy_level": Attr(
        0,
        "kernel attribute: the least that a kernel computes in: 1 f32, 2 f16, 3 bf16, 4 x rounded to 8 bits; "
        "0: its own choice",
    ),
}
_CONV = {
    "strides": Attr((), "steps of the window along each axis of space; empty: 1"),
    "pads": Attr((), "zeros before each axis of space, then behind each; empty: none"),
    "dilations": Attr((), "gaps between the places of the kernel, 1 where they touch; empty: 1"),
    "group": Attr(1, "groups of channels that are convolved apart"),
    "auto_pad": Attr("NOTSET", "NOTSET: pads; VALID: none; SAME_UPPER, SAME_LOWER: out is in over stride"),
    "eps": Attr(1e-5, "added to the variance before its root, where there is one"),
}
_PERM = {"perm": Attr((), "the transpose between norm and rotation (none: they touch)")}
#: The tables that are looked up before a model's first norm.
_TABLES = ("word", "position", "type")
_AXIS = {"axis": Attr(REQUIRED, "the sequence axis the rows are joined on, from the end (negative)")}


CLASSES: dict[str, FusedClass] = {
    c.name: c
    for c in (
        declare(
            "rms_norm",
            "x weight",
            "x over the root of its mean square along the last axis, times weight",
            attrs=_RMS,
        ),
        declare(
            "layer_norm",
            "x weight bias",
            "x less its mean, over its standard deviation along the last axis, times weight, plus bias",
            attrs=_RMS,
        ),
        declare(
            "l2_norm",
            "x",
            "x over the root of the sum of its squares along the last axis",
            attrs={
                "eps": Attr(0.0, "keeps the divisor from zero"),
                "eps_at": Attr(
                    "none",
                    "none; inside: sqrt(sum + eps); outside: sqrt(sum) + eps; clip: max(sqrt(sum), eps)",
                ),
                "compute": Attr("", "element type the norm computes in; empty: the type of x"),
            },
        ),
        declare(
            "group_norm",
            "x weight bias",
            "x less its mean, over its standard deviation, over a group of channels and all that lies behind "
            "them; times weight and plus bias, one number a channel",
            attrs={
                "groups": Attr(REQUIRED, "groups of channels"),
                "eps": Attr(REQUIRED, "added to the variance before the root"),
            },
        ),
        declare("gelu", "x", "x times the normal distribution function of x, by erf"),
        declare("fast_gelu", "x", "gelu by tanh: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))"),
        declare(
            "quick_gelu",
            "x",
            "x times sigmoid(alpha x)",
            attrs={"alpha": Attr(REQUIRED, "slope inside the sigmoid")},
        ),
        declare("silu", "x", "x times sigmoid(x)"),
        declare("mish", "x", "x times tanh(log(1 + exp(x)))"),
        declare("hard_swish", "x", "x times x / 6 + 1 / 2 kept between 0 and 1"),
        declare(
            "softcap", "x", "cap times tanh(x / cap)", attrs={"cap": Attr(REQUIRED, "bound of the result")}
        ),
        declare(
            "rope",
            "x cos sin position_ids",
            "rotates pairs of lanes of x by the angles of cos and sin",
            attrs=_ROPE,
        ),
        declare(
            "attention",
            "q k v mask*",
            "softmax(scale q k^T, capped and masked) v, heads by heads",
            attrs=ATTENTION,
        ),
        declare(
            "quantized_matmul",
            "x codes scales zero_points bias x_scale x_zero_point code_scale code_zero_point",
            "x times (codes - zero points) scales, plus a row of bias (rounded to codes where there is a "
            "code_scale); a bias of integers counts steps of both scales",
            attrs=_QUANTIZED,
        ),
        declare(
            "conv_affine",
            "x weight bias scale shift mean variance",
            "a convolution, normalized by mean and variance where given, times scale, plus shift (a channel)",
            attrs=_CONV,
        ),
        declare(
            "conv_act",
            "x weight bias scale shift mean variance code_scale code_zero_point residual",
            "an activation of conv_affine (rounded to codes where there is a code_scale) plus a residual",
            attrs=_CONV
            | {
                "act": Attr(REQUIRED, "relu clip hard_sigmoid hard_swish gelu silu ..."),
                "act_alpha": Attr(1.0, "its slope"),
                "act_beta": Attr(0.0, "its offset (hard_sigmoid)"),
                "act_low": Attr(0.0, "its least value (clip)"),
                "act_high": Attr(0.0, "its greatest value (clip)"),
                "codes": Attr("", "element type that the result is rounded to, where there is a code_scale"),
            },
        ),
        declare(
            "matmul_bias",
            "x weight bias",
            "x times weight, plus a row of bias",
            attrs=_PRODUCT
            | {"perm": Attr((), "a transpose of the rows' axes between product and bias (none: empty)")},
        ),
        declare(
            "merged_qkv",
            "x weight* bias*",
            "the three products that attention reads, of one x, as one",
            "y*",
            MERGED,
        ),
        declare("merged_gate_up", "x weight* bias*", "a gate's two products, of one x, as one", "y*", MERGED),
        declare("merged_products", "x weight* bias*", "products of one x, as one", "y*", MERGED),
        *(
            declare(
                name,
                "gate up",
                meaning,
                attrs={
                    "act": Attr(act, "the activation of the gate"),
                    "alpha": Attr(1.0, "its slope (quick_gelu)"),
                },
            )
            for name, act, meaning in (
                ("swiglu", "silu", "silu(gate) times up"),
                ("geglu", "gelu", "gelu(gate) times up (act: gelu, fast_gelu or quick_gelu)"),
                ("reglu", "relu", "relu(gate) times up (act: relu or squared_relu)"),
            )
        ),
        declare(
            "matmul_bias_act",
            "x weight bias",
            "an activation of x times weight plus bias",
            attrs=_PRODUCT
            | {
                "act": Attr(REQUIRED, "gelu fast_gelu quick_gelu silu relu sigmoid tanh ..."),
                "act_alpha": Attr(1.0, "its slope"),
            },
            composed_of=("matmul_bias",),
        ),
        declare(
            "matmul_residual",
            "x weight bias residual",
            "x times weight, plus bias, plus a residual",
            attrs=_PRODUCT,
        ),
        declare(
            "add_norm",
            "x residual weight bias add_bias",
            "the norm of x plus a residual; the sum is written on where others read it",
            "y sum",
            _NORM
            | {
                "regrouped": Attr(
                    False, "the result, perhaps the sum too, has the rows of x under other leading axes"
                )
            },
        ),
        declare(
            "norm_add_norm",
            "x y inner_weight inner_bias weight bias",
            "the norm of x plus the norm of y; the sum is written on where others read it",
            "y sum",
            _NORM | {"inner_" + k: v for k, v in _NORM.items()},
            composed_of=("add_norm",),
        ),
        declare(
            "ada_norm",
            "x scale shift residual weight bias",
            "the norm of x (plus a residual), times one plus scale, plus shift; the sum is written on where "
            "read",
            "y sum",
            _NORM
            | {"scale_offset": Attr(1.0, "added to scale before it scales (0.0: scale is the whole factor)")},
        ),
        declare("gated_residual", "x gate y", "x plus gate times y, the gate one row for many of y"),
        declare(
            "gated_norm",
            "x weight bias z",
            "a norm of x times an activation of z",
            attrs=_NORM | {"act": Attr("silu", "silu or sigmoid")},
        ),
        declare(
            "norm_reshape",
            "x residual weight bias",
            "the norm of x (plus a residual), flattened to rows; the sum is written on where read",
            "y sum",
            _NORM | {"joins": Attr(REQUIRED, "for each axis of the result, how many axes of x it joins")},
        ),
        declare(
            "embed_norm",
            "word_ids word position_ids position type_ids type weight bias",
            "the norm of the sum of looked-up rows (rows without ids are taken as they are); the sum is "
            "written "
            "on where read",
            "y sum",
            _NORM
            | {f"{name}_scale": Attr(1.0, f"scales the rows of {name}") for name in _TABLES}
            | {f"{name}_zero": Attr(0.0, f"taken off the rows of {name} before") for name in _TABLES},
        ),
        declare(
            "qk_norm",
            "x weight bias",
            "a norm of each head's width of a wider product",
            attrs=_NORM | {"heads": Attr(REQUIRED, "heads of the product")},
        ),
        declare(
            "qk_norm_rope",
            "x weight bias cos sin position_ids",
            "a norm of each head, then its rotation",
            attrs=_NORM | _ROPE | _PERM,
            composed_of=("qk_norm",),
        ),
        declare("kv_append", "past new", "new rows joined to a cache", attrs=_AXIS),
        declare(
            "rope_kv_append",
            "past x cos sin position_ids",
            "a rotation landing in a cache's rows",
            attrs=_ROPE | _AXIS,
            composed_of=("kv_append",),
        ),
        declare(
            "qk_norm_rope_kv_append",
            "past x weight bias cos sin position_ids",
            "a head's norm and rotation landing in a cache's rows",
            attrs=_NORM | _ROPE | _PERM | _AXIS,
            composed_of=("rope_kv_append", "qk_norm_rope", "kv_append"),
        ),
        *SEQUENCES,
        *MIXTURES,
        declare(
            "attention_block",
            "x",
            "the products of x, their attention, and the product of its result",
            "y present*",
            composite=True,
        ),
        declare(
            "mlp_block",
            "x",
            "a product, an activation or a gate of it, and the product of that",
            composite=True,
        ),
        declare(
            "transformer_layer",
            "x",
            "an attention block, add and norm, a feed-forward block, add and norm",
            "y sum present*",
            composite=True,
        ),
        declare(
            "fused_quant",
            "x",
            "a norm, an activation or a gate, and the codes its result is rounded to",
            "y scale zero_point whole*",
            composite=True,
        ),
        declare(
            "quant_shared",
            "x",
            "x rounded to codes, and the products of quantized weights that read them, as one",
            "y*",
            composite=True,
        ),
        declare(
            "quantized_gate_up",
            "x",
            "a gate's two products of quantized weights, of one x, as one",
            "y*",
            composed_of=("merged_gate_up",),
            composite=True,
        ),
        declare(
            "quantized_gate",
            "x",
            "a gate and its two products of quantized weights, of one x, as one",
            composite=True,
        ),
        declare(
            "advance",
            "logits",
            "the index of the largest of the last row's logits",
            attrs={"last": Attr(0, "1: of equals the last is taken, not the first")},
        ),
        declare(
            "elementwise_region",
            "input*",
            "elementwise operators of one shape that only each other read",
            attrs={"inputs": Attr(REQUIRED, "how many arrays the region reads")},
            composite=True,
        ),
    )
}
