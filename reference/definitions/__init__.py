"""One closed form a class, written from the mathematics and not from the parts.

A definition takes the class's attributes (defaults filled in), the types of the results as far as
they are known, and the operands; it computes in f64 and gives one array, or one for each output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fuse.classes import CLASSES, REQUIRED, expert_counts
from fuse.ir import Op
from fuse.types import FuseError, Type
from reference.definitions.activations import ACTIVATIONS
from reference.definitions.attention import ATTENTION
from reference.definitions.caches import CACHES
from reference.definitions.case import Array, Case, Definition
from reference.definitions.convolutions import CONVOLUTIONS
from reference.definitions.decoding import DECODING
from reference.definitions.mixtures import MIXTURES
from reference.definitions.modulation import MODULATION
from reference.definitions.norms import NORMS
from reference.definitions.products import PRODUCTS
from reference.definitions.quantized import QUANTIZED
from reference.definitions.recurrences import RECURRENCES
from reference.definitions.rotations import ROTATIONS
from reference.ops.call import NUMPY

#: Class -> its definition.
DEFINITIONS: Mapping[str, Definition] = {
    **ACTIVATIONS, **NORMS, **ROTATIONS, **ATTENTION, **PRODUCTS, **CACHES, **QUANTIZED,
    **CONVOLUTIONS, **MODULATION,
    **MIXTURES, **RECURRENCES, **DECODING,
}  # fmt: skip


def operand_names(op: Op) -> tuple[str, ...]:
    """The operands of a fused op in its class's order, "" where absent; without what only parts read."""
    declared = CLASSES.get(op.kind)
    if declared is None or op.kind not in DEFINITIONS:
        raise FuseError(f"no definition of class {op.kind} at {op.path}")
    if "mask" in declared.attrs:
        single = sum(not name.endswith("*") for name in declared.operands)
        count = single + sum(entry != "cap" for entry in op.attrs.get("mask", ()))
    elif "experts" in declared.attrs:
        single = sum(not name.endswith("*") for name in declared.operands)
        count = single + sum(expert_counts(op.attrs).values())
    elif any(name.endswith("*") for name in declared.operands):
        biases = op.attrs["biases"]
        count = 1 + len(biases) + sum(map(bool, biases))
    else:
        count = len(declared.operands)
    return (*op.inputs[:count], *("",) * (count - len(op.inputs)))


def composite(op: Op) -> bool:
    """Whether an op is defined by its members in order, not by one closed form: a block, a region, or
    a placed op, whose members are the layout operators and the op that computes."""
    declared = CLASSES.get(op.kind)
    return bool(op.placements) or (declared is not None and declared.composite)


def define(op: Op, operands: Sequence[Array | None], types: Sequence[Type]) -> tuple[Array, ...]:
    """The results of a fused op by its class's definition, in the types of its outputs.

    operands: the arrays of `operand_names(op)`. types: of each output; where the element type is not
    known the first operand's is taken.
    """
    attrs = {name: attr.default for name, attr in CLASSES[op.kind].attrs.items()} | dict(op.attrs)
    missing = [name for name, value in attrs.items() if value is REQUIRED]
    if missing:
        raise FuseError(f"{op.kind} {op.path} has no attribute {missing[0]}")
    case = Case(attrs, tuple(types))
    try:
        with np.errstate(all="ignore"):
            found = DEFINITIONS[op.kind](case, *operands)
    except (ValueError, IndexError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FuseError(f"the definition of {op.kind} does not run at {op.path}: {reason}") from error
    results = found if isinstance(found, tuple) else (found,)
    first = next(operand for operand in operands if operand is not None)
    return tuple(
        _typed(array, types[at] if at < len(types) else None, first) for at, array in enumerate(results)
    )[: len(op.outputs)]


def _typed(array: Array, type: Type | None, operand: Array) -> Array:
    dtype = NUMPY[type.dtype] if type is not None and type.dtype else operand.dtype
    return np.asarray(array, dtype)


__all__ = ["DEFINITIONS", "Case", "composite", "define", "operand_names"]
