"""Own inference of dtype, dims and small contents, one op at a time.

`infer` is called in topological order and writes what it finds into two tables. A size that nothing
tells is a symbol of its own, `?{value}.{axis}`; equal computations give equal sizes. What an operator
does is a row of `ROWS`; a kind without a row gives unknown types, never a guess.
"""

from __future__ import annotations

from fuse.ir import Content, Op
from fuse.shape_functions import ROWS
from fuse.shape_functions.call import Call, DtypeOf, Sketch, Unclear
from fuse.types import UNKNOWN, Dims, Type, symbol


def infer(op: Op, types: dict[str, Type], contents: dict[str, Content], opset: int) -> None:
    """Write the type of every output of `op`, and its elements where they are (partly) known.

    types, contents: what is known of the values made before; read and extended. opset: of the op's
    own domain. Operands that contradict each other give unknown dims; nothing is raised for them.
    """
    row = ROWS.get(op.kind)
    if row is None:
        for path in op.outputs:
            if path:
                types[path] = UNKNOWN
        return
    call = Call(op, types, contents, opset)
    dtypes, shape_function, content_function = row
    try:
        sketches = shape_function(call)
    except Unclear:
        sketches = ()
    last = len(dtypes) - 1
    for number, path in enumerate(op.outputs):
        if not path:
            continue
        call.output = number
        which = dtypes[number if number < last else last]
        dtype = call.dtype(which) if which.__class__ is int else _dtype(call, which)
        sketch = sketches[number] if number < len(sketches) else None
        if sketch is None:
            types[path] = Type(dtype, None)
            continue
        types[path] = Type(dtype, _settled(path, sketch))
        if content_function is not None:
            try:
                content = content_function(call, sketch)
            except Unclear:
                continue
            if content is not None:
                contents[path] = content


def _dtype(call: Call, which: DtypeOf) -> str:
    if isinstance(which, int):
        return call.dtype(which)
    if isinstance(which, str):
        return which
    if isinstance(which, tuple):
        return next(filter(None, map(call.dtype, which)), "")
    return which(call)


def _settled(path: str, sketch: Sketch) -> Dims:
    """The dims with a fresh symbol for every size that is unknown or is surely none (negative)."""
    for dim in sketch:
        if dim is None or (dim.__class__ is int and dim < 0):
            return tuple(
                symbol(f"?{path}.{axis}") if dim is None or (isinstance(dim, int) and dim < 0) else dim
                for axis, dim in enumerate(sketch)
            )
    return sketch  # type: ignore[return-value]
