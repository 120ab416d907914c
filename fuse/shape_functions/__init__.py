"""What every ONNX operator makes of the types of its operands, by theme."""

from __future__ import annotations

from fuse.shape_functions import (
    contrib,
    elementwise,
    generators,
    movement,
    products,
    reductions,
    sequences,
    text,
    windows,
)
from fuse.shape_functions.call import Row

#: kind (with its domain, but for ai.onnx) -> how it is typed.
ROWS: dict[str, Row] = {
    **elementwise.ROWS,
    **movement.ROWS,
    **products.ROWS,
    **reductions.ROWS,
    **generators.ROWS,
    **windows.ROWS,
    **sequences.ROWS,
    **text.ROWS,
    **contrib.ROWS,
}
