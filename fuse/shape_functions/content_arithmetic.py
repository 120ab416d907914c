"""Known elements through arithmetic, comparisons and casts.

Integers are exact and may be symbolic. A float is computed in the tensor's own dtype, so a constant
found here is the constant a runtime finds; only tensors of one float are followed. A result outside
the range of its integer dtype is unknown.
"""

from __future__ import annotations

import numpy as np

from fuse.ir import Content, Element
from fuse.shape_functions.call import MAX_ELEMENTS, Call, Sketch
from fuse.shape_functions.elements import (
    COMPARISONS,
    FLOAT_TYPES,
    FOLDS,
    INTEGER_FUNCTIONS,
    LOGIC,
    UNARY_FLOATS,
    cast_element,
    in_range,
    on_floats,
    on_integer,
    on_integers,
    product_of,
)
from fuse.types import DTYPES, FLOATS, INTEGERS, Dims


def element_count(dims: Sketch) -> int | None:
    """The number of elements where it is known and small enough to follow them."""
    total = 1
    for dim in dims:
        if not isinstance(dim, int) or dim < 0:
            return None
        total *= dim
    return total if total <= MAX_ELEMENTS else None


def aligned(call: Call, i: int, dims: Sketch, count: int) -> Content | None:
    """The elements of an operand broadcast to `dims`; None where they are not known."""
    content = call.content(i)
    if content is None:
        return None
    if len(content) == count:
        return content
    if len(content) == 1:
        return content * count
    own = call.dims(i)
    if own is None or element_count(own) != len(content):
        return None
    try:
        places = np.broadcast_to(np.arange(len(content)).reshape(own), dims)  # type: ignore[arg-type]
    except ValueError:
        return None
    return tuple(content[place] for place in places.ravel().tolist())


def binary(call: Call, dims: Sketch) -> Content | None:
    """Arithmetic and comparisons of two operands."""
    contents = call.contents
    inputs = call.inputs
    if len(inputs) != 2 or inputs[0] not in contents or inputs[1] not in contents:
        return None
    count = element_count(dims)
    if count is None:
        return None
    a, b = aligned(call, 0, dims, count), aligned(call, 1, dims, count)
    if a is None or b is None:
        return None
    kind, dtype = call.op.kind, call.dtype(0)
    if dtype in FLOATS:
        if count != 1 or (kind in ("Mod", "Pow") and not _same_kind(call)):
            return None
        return (on_floats(kind, dtype, a[0], b[0]),) if a[0] is not None and b[0] is not None else None
    if dtype == "bool":
        logic = LOGIC.get(kind)
        return None if logic is None else tuple(map(logic, a, b))
    if dtype not in INTEGERS or (kind == "Mod" and call.attrs.get("fmod", 0)):
        return None
    function = INTEGER_FUNCTIONS[kind]
    if call.dtype(1) not in INTEGERS:
        return None
    found = tuple([on_integers(function, x, y) for x, y in zip(a, b, strict=True)])
    return found if kind in COMPARISONS else tuple([in_range(x, dtype) for x in found])


def _same_kind(call: Call) -> bool:
    """Mod of floats by fmod; Pow of two floats of one dtype."""
    if call.op.kind == "Mod":
        return bool(call.attrs.get("fmod", 0))
    return call.dtype(0) == call.dtype(1)


def where(call: Call, dims: Sketch) -> Content | None:
    """Elements chosen by a condition; where it is unknown, what both sides agree on."""
    if not (call.content(1) or call.content(2)):
        return None
    count = element_count(dims)
    if count is None or (call.dtype(1) in FLOATS and count != 1):
        return None
    unknown: Content = (None,) * count
    chosen, a, b = (aligned(call, i, dims, count) or unknown for i in range(3))
    if len(chosen) != count or len(a) != count or len(b) != count:
        return None
    found = tuple(
        x if keep is True else y if keep is False else x if x is not None and x == y else None
        for keep, x, y in zip(chosen, a, b, strict=True)
    )
    return found if any(x is not None for x in found) else None


def unary(call: Call, dims: Sketch) -> Content | None:
    content = call.content(0)
    if content is None:
        return None
    kind, dtype = call.op.kind, call.dtype(0)
    if dtype in FLOATS:
        scalar, function = FLOAT_TYPES.get(dtype), UNARY_FLOATS.get(kind)
        if len(content) != 1 or scalar is None or function is None or not isinstance(content[0], float | int):
            return None
        with np.errstate(all="ignore"):
            return (float(scalar(function(scalar(content[0])))),)  # type: ignore[arg-type]
    found = tuple([on_integer(kind, a) for a in content])
    return found if kind == "Not" else tuple([in_range(a, dtype) for a in found])


def cast_to(call: Call, target: str) -> Content | None:
    content = call.content(0)
    if content is None:
        return None
    source = call.dtype(0)
    if (target in FLOATS and len(content) != 1) or (
        source not in FLOATS and source not in INTEGERS and source != "bool"
    ):
        return None
    found = tuple([cast_element(a, source, target) for a in content])
    return None if found == (None,) else found


def cast(call: Call, dims: Sketch) -> Content | None:
    number = call.attrs.get("to", 0)
    return cast_to(call, DTYPES.get(number, "")) if isinstance(number, int) else None


def cast_like(call: Call, dims: Sketch) -> Content | None:
    return cast_to(call, call.dtype(1))


def keep(call: Call, dims: Sketch) -> Content | None:
    """The elements in the same order: Identity, Reshape, Squeeze, Unsqueeze, Flatten."""
    return call.content(0)


def dims_of_elements(call: Call, i: int) -> Dims | None:
    """The dims of an operand whose elements are known; None where the two do not fit."""
    content, dims = call.content(i), call.dims(i)
    if content is None or dims is None or element_count(dims) != len(content):
        return None
    return dims


def reduction(call: Call, dims: Sketch) -> Content | None:
    """All elements folded into one."""
    content = call.content(0)
    if content is None or element_count(dims) != 1 or not content:
        return None
    if len(content) == 1:
        return content if call.op.kind in FOLDS or call.op.kind == "ReduceMean" else None
    function, dtype = FOLDS.get(call.op.kind), call.dtype(0)
    if function is None or dtype not in INTEGERS:
        return None
    total: Element = content[0]
    for element in content[1:]:
        total = in_range(on_integers(function, total, element), dtype)
    return None if total is None else (total,)


def dims_as_content(call: Call, dims: Sketch) -> Content | None:
    """Shape: the sizes of the operand from `start` to `end`."""
    own = call.dims(0)
    if own is None:
        return None
    found = own[call.integer("start", 0) : call.integer("end", len(own))] if call.attrs else own
    return found if len(found) <= MAX_ELEMENTS else None


def size(call: Call, dims: Sketch) -> Content | None:
    own = call.dims(0)
    if own is None:
        return None
    total: Element = 1
    for dim in own:
        total = in_range(on_integers(product_of, total, dim), "i64")
    return None if total is None else (total,)
