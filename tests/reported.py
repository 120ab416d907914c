"""What the models of public bug reports share."""

from __future__ import annotations

from typing import Any

import numpy as np
from building import Building


def layer_norm_of(
    g: Building, x: str, gamma: str, beta: str, keepdims: int = 1, first: bool = True
) -> tuple[str, str]:
    """A layer norm from primitives: the scaled value and the result. first: gamma and beta come second."""
    axes: dict[str, Any] = {"axes": [-1], "keepdims": keepdims}
    centred = g.op("Sub", x, g.op("ReduceMean", x, **axes))
    square = g.op("Pow", centred, g.constant(np.float32(2), f"two_{len(g.nodes)}"))
    eps = g.constant(np.float32(1e-5), f"eps_{len(g.nodes)}")
    root = g.op("Sqrt", g.op("Add", g.op("ReduceMean", square, **axes), eps))
    normed = g.op("Div", centred, root)
    scaled = g.op("Mul", *((normed, gamma) if first else (gamma, normed)))
    return scaled, g.op("Add", *((scaled, beta) if first else (beta, scaled)))


def rms_of(g: Building, x: str, weight: str, square: str = "") -> tuple[str, str]:
    """An RMS norm from primitives: the root and the result."""
    square = square or g.op("Pow", x, g.constant(2.0))
    mean = g.op("ReduceMean", square, axes=[-1], keepdims=1)
    root = g.op("Sqrt", g.op("Add", mean, g.constant(1e-5)))
    return root, g.op("Mul", g.op("Div", x, root), weight)


def erf_of(g: Building, x: str) -> str:
    return g.op("Erf", g.op("Div", x, g.constant(2**0.5)))
