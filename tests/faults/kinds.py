"""Every kind of fault, by the class that its place was fused into."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import activations, attention, norms, products, readers, rotation
from .draft import Draft, Place, Planted

Plant = Callable[[Draft, Place], "Planted | None"]

BY_CLASS: dict[str, dict[str, Plant]] = {
    "rms_norm": norms.FAULTS,
    "layer_norm": norms.FAULTS,
    "l2_norm": norms.FAULTS,
    "gelu": activations.GELU,
    "fast_gelu": activations.FAST_GELU,
    "quick_gelu": activations.QUICK_GELU,
    "silu": activations.SILU,
    "softcap": activations.SOFTCAP,
    "rope": rotation.FAULTS,
    "attention": attention.FAULTS,
    "matmul_bias": products.MATMUL_BIAS,
    "matmul_residual": products.RESIDUAL,
    "add_norm": products.ADD_NORM,
    "swiglu": activations.GATE,
    "geglu": activations.GATE,
    "reglu": activations.GATE,
}
READERS = {
    "also an output": readers.graph_output,
    "read elsewhere": readers.read_elsewhere,
    "captured": readers.captured,
}


#: Classes whose interior values have one owner each: a reader outside is one fault at one value.
READ_INSIDE = (
    *(name for name in BY_CLASS if name != "add_norm"),
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
