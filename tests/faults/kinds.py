"""Every kind of fault, by the class that its place was fused into."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import activations, attention, composites, mixtures, norms, others, products, readers, rotation
from .draft import Draft, Place, Planted

Plant = Callable[[Draft, Place], "Planted | None"]

BY_CLASS: dict[str, dict[str, Plant]] = {
    "rms_norm": norms.FAULTS | composites.NORM,
    "layer_norm": norms.FAULTS | composites.NORM,
    "l2_norm": norms.FAULTS | composites.ROUNDED,
    "gelu": activations.GELU | composites.ROUNDED,
    "fast_gelu": activations.FAST_GELU | composites.ROUNDED,
    "quick_gelu": activations.QUICK_GELU | composites.ROUNDED,
    "silu": activations.SILU | composites.ROUNDED,
    "softcap": activations.SOFTCAP | composites.ROUNDED,
    "rope": rotation.FAULTS | composites.ROPE,
    "attention": attention.FAULTS | composites.ROUNDED_LAST,
    "matmul_bias": products.MATMUL_BIAS | composites.BIAS | composites.ROUNDED,
    "matmul_residual": products.RESIDUAL | composites.RESIDUAL | composites.ROUNDED,
    "add_norm": products.ADD_NORM,
    "swiglu": activations.GATE | composites.GATE,
    "geglu": activations.GATE | composites.GATE,
    "reglu": activations.GATE | composites.GATE,
    "qk_norm": composites.QK_NORM,
    "kv_append": composites.CACHE | others.APPEND,
    "conv_act": composites.CONV_ACT | others.CONV_ACT | composites.ROUNDED,
    "conv_affine": composites.CONV_AFFINE | others.CONV_AFFINE,
    "gated_residual": composites.GATED_RESIDUAL | others.GATED,
    "gated_norm": composites.GATED_NORM | others.GATED_NORM,
    "attn_output_gate": composites.OUTPUT_GATE,
    "mlp_block": composites.BLOCK,
    "attention_block": composites.BLOCK,
    "quantized_matmul": others.QUANTIZED,
    "embed_norm": others.EMBED,
    "gated_delta": others.DELTA,
    "conv_state": others.CONV,
    "conv_silu": others.CONV,
    "ada_norm": others.ADA,
    "norm_reshape": others.NORM_RESHAPE,
    "rope_kv_append": others.ROPE_APPEND,
    "qk_norm_rope": others.NORM_ROPE,
    "merged_qkv": others.MERGED,
    "merged_gate_up": others.MERGED,
    "merged_products": others.MERGED,
    "transformer_layer": others.LAYER,
    "moe": mixtures.MOE,
    "moe_shared": mixtures.SHARED,
    "router_shared_gate_merge": mixtures.MERGE,
    "moe_block": mixtures.BLOCK,
    "moe_gather_in_operand": mixtures.GATHERED,
}
READERS = {
    "also an output": readers.graph_output,
    "read elsewhere": readers.read_elsewhere,
    "captured": readers.captured,
}


#: Classes whose interior values have one owner each: a reader outside is one fault at one value.
READ_INSIDE = (
    *(name for name in BY_CLASS if name not in ("add_norm", "attention_block")),
    "matmul_bias_act",
    "qk_norm_rope",
    "rope_kv_append",
    "qk_norm_rope_kv_append",
)


def kinds_at(place: Place) -> Iterator[tuple[str, Plant]]:
    """(name, plant) for every fault that can be planted at a place."""
    for name, plant in BY_CLASS.get(place.builds, {}).items():
        yield f"{place.builds}: {name}", plant
    for number, value in enumerate(readers.interior(place) if place.builds in READ_INSIDE else ()):
        for name, reader in READERS.items():

            def at_value(
                draft: Draft, where: Place, value: str = value, reader: object = reader
            ) -> Planted | None:
                return reader(draft, where, value)  # type: ignore[operator]

            yield f"{place.builds}: value {number} {name}", at_value
