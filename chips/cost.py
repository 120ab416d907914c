"""What a launch and a byte cost on a chip, read from its file, for times that are predicted."""

from __future__ import annotations

from typing import NamedTuple

from chips.load import nearest
from chips.shim import Chip
from fuse.types import FuseError


class Rates(NamedTuple):
    """bandwidth_gbs: 1e9 bytes a second of memory; launch_us: microseconds a launch. None where the
    chip's file has no figure. sources: where each figure that is there is written."""

    bandwidth_gbs: float | None
    launch_us: float | None
    sources: tuple[str, ...]


def rates(chip: Chip, variant: str | None = None) -> Rates:
    """The figures of a chip, or of one member of its family (base, pro, max, ultra).

    Raises FuseError for a variant that the chip's file does not have.
    """
    spec = chip.spec
    launch = spec.launch_us
    launch_us = None
    if launch is not None:
        launch_us = launch.value if isinstance(launch.value, float) else launch.value[1]
    launch_sources = launch.source if launch else ()
    if variant is not None:
        if variant not in spec.variants:
            raise FuseError(f"{chip.name} has no variant {variant}; {nearest(variant, tuple(spec.variants))}")
        member = spec.variants[variant]
        return Rates(member.bandwidth_gbs, launch_us, member.source + launch_sources)
    if spec.memory is None:
        return Rates(None, launch_us, launch_sources)
    return Rates(spec.memory.bandwidth_gbs, launch_us, spec.memory.source + launch_sources)


def predicted_us(at: Rates, launches: int, nbytes: int) -> float | None:
    """Microseconds that so many launches and bytes of memory traffic take, predicted and not
    measured; None where the chip has neither figure. A figure that is missing counts nothing."""
    if at.bandwidth_gbs is None and at.launch_us is None:
        return None
    moved = 0.0 if at.bandwidth_gbs is None else nbytes / (at.bandwidth_gbs * 1e3)
    return moved + launches * (at.launch_us or 0.0)
