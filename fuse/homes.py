"""Where dimensions are read from: a symbol's home is an axis of a graph input that is that symbol.

`Shape(v)` keeps v alive and read by one more op, which stands in the way of every pattern around v.
Where all its dims can be told from graph inputs, it reads those instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fuse.ir import Op
from fuse.types import Dim, Dims, Expr, Type, substitute, symbol

#: The kind of an op that makes a vector of dims, read off graph inputs.
KIND = "fuse.Dims"


class Homes:
    """The homes of a model, over the inputs of its outermost graph."""

    def __init__(self, inputs: Iterable[tuple[str, Type]]) -> None:
        #: symbol -> (input, axis)
        self.axes: dict[str, tuple[str, int]] = {}
        #: dims -> the first input that has exactly them
        self.exact: dict[Dims, str] = {}
        self.inputs: set[str] = set()
        for path, type in inputs:
            self.inputs.add(path)
            if type.dims is None:
                continue
            self.exact.setdefault(type.dims, path)
            for axis, dim in enumerate(type.dims):
                if isinstance(dim, Expr) and len(dim.symbols) == 1:
                    (name,) = dim.symbols
                    if dim == symbol(name):
                        self.axes.setdefault(name, (path, axis))

    def rewritten(self, op: Op, dims: Dims | None) -> Op | None:
        """A `Shape` of a value with these dims that reads graph inputs instead, or None.

        The result is `Shape` of an input with the same dims, else `fuse.Dims`: attribute dims has
        the elements (after start and end), homes has (symbol, which input of the op, axis).
        """
        if dims is None or op.inputs[0] in self.inputs:
            return None
        symbols = {name for dim in dims if isinstance(dim, Expr) for name in dim.symbols}
        if not symbols <= self.axes.keys():
            return None
        if dims in self.exact:
            return op._replace(inputs=(self.exact[dims],))
        shown = dims[slice(op.attrs.get("start", 0), op.attrs.get("end"))]
        return dims_op(op, shown, self.axes)


def dims_op(op: Op, dims: Dims, axes: Mapping[str, tuple[str, int]]) -> Op:
    """The `fuse.Dims` that makes these dims in place of an op. axes: symbol -> (input, axis)."""
    needed = dict.fromkeys(name for dim in dims if isinstance(dim, Expr) for name in sorted(dim.symbols))
    inputs = tuple(dict.fromkeys(axes[name][0] for name in needed))
    homes = tuple((name, inputs.index(axes[name][0]), axes[name][1]) for name in needed)
    return op._replace(kind=KIND, inputs=inputs, attrs={"dims": dims, "homes": homes})


def substituted_dims(op: Op, values: Mapping[str, Dim]) -> Op:
    """A `fuse.Dims` with symbols replaced by numbers; it reads only the inputs it still needs."""
    axes = {name: (op.inputs[at], axis) for name, at, axis in op.attrs["homes"]}
    return dims_op(op, tuple(substitute(dim, values) for dim in op.attrs["dims"]), axes)
