"""What one shape function sees of an op, and the few helpers that all of them share.

A shape function takes a `Call` and returns one entry an output: dims in which None stands for a size
that is not known (`fuse.shapes` names it), or None where not even the rank is known. It raises
`Unclear` where operands contradict each other; then the rank of every output is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fuse.ir import Content, Element, Op
from fuse.types import (
    UNKNOWN,
    Dim,
    Dims,
    Expr,
    Type,
    add,
    as_size,
    broadcast_dim,
    floor_divide,
    minimum,
    roots,
    sub,
)

#: Dims where None is a size that is not known.
Sketch = tuple[Dim | None, ...]
#: Contents are kept of tensors of at most this many elements.
MAX_ELEMENTS = 16
#: A symbol named by a computation is not kept longer than this; the size is fresh instead.
MAX_NAME = 240
#: A polynomial of more terms than this is not kept.
MAX_TERMS = 64


class Unclear(Exception):
    """The operands contradict each other, or an attribute is not of its type: nothing can be said."""


class Call:
    """One op with the types and contents known before it. `output` is the output asked for now."""

    __slots__ = ("attrs", "contents", "inputs", "op", "opset", "output", "types")

    def __init__(
        self, op: Op, types: Mapping[str, Type], contents: Mapping[str, Content], opset: int
    ) -> None:
        self.op, self.types, self.contents, self.opset = op, types, contents, opset
        self.inputs, self.attrs = op.inputs, op.attrs
        self.output = 0

    def given(self, i: int) -> bool:
        """Whether the op has that input."""
        return i < len(self.inputs) and self.inputs[i] != ""

    def dims(self, i: int) -> Dims | None:
        return self.types.get(self.inputs[i], UNKNOWN).dims if i < len(self.inputs) else None

    def need(self, i: int) -> Dims:
        """The dims of an input; Unclear where its rank is not known."""
        dims = self.types.get(self.inputs[i], UNKNOWN).dims if i < len(self.inputs) else None
        if dims is None:
            raise Unclear
        return dims

    def dtype(self, i: int) -> str:
        return self.types.get(self.inputs[i], UNKNOWN).dtype if i < len(self.inputs) else ""

    def content(self, i: int) -> Content | None:
        return self.contents.get(self.inputs[i]) if i < len(self.inputs) else None

    def count(self, i: int) -> int | None:
        """The length of a vector operand, where it is a known number."""
        dims = self.dims(i)
        if dims is None or len(dims) != 1 or not isinstance(dims[0], int):
            return None
        return dims[0]

    def integer(self, name: str, default: int) -> int:
        value = self.attrs.get(name, default)
        if not isinstance(value, int):
            raise Unclear
        return value

    def text(self, name: str, default: str) -> str:
        value = self.attrs.get(name, default)
        if not isinstance(value, str):
            raise Unclear
        return value

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An attribute that is a list of ints; None where it is absent."""
        value = self.attrs.get(name)
        if value is None:
            return None
        if not isinstance(value, tuple | list):
            raise Unclear
        for number in value:
            if not isinstance(number, int):
                raise Unclear
        return tuple(value)

    def vector(self, name: str, i: int) -> tuple[int, ...] | None:
        """What was an attribute in old opsets and is an input now, where it is wholly known."""
        if name in self.attrs:
            return self.integers(name)
        content = self.content(i)
        return known_integers(content) if content is not None else None

    def partial(self, name: str, i: int) -> tuple[Element, ...] | None:
        """As `vector`, but elements may be symbols or unknown."""
        if name in self.attrs:
            return self.integers(name)
        return self.content(i)


class Row(NamedTuple):
    """How one kind of op is typed.

    dtypes: one entry an output (the last stands for all that follow): the number of the input whose
    dtype it has, several numbers (the first that is known), a dtype, or a function of the call.
    dims: the shape function. content: what is known of the elements of output `call.output`.
    """

    dtypes: tuple[DtypeOf, ...]
    dims: ShapeFunction
    content: ContentFunction | None = None


DtypeOf = int | str | tuple[int, ...] | Callable[[Call], str]
ShapeFunction = Callable[[Call], Sequence[Sketch | None]]
ContentFunction = Callable[[Call, Sketch], "Content | None"]


def known_integers(content: Content) -> tuple[int, ...] | None:
    """The elements as ints where every one is a known integer."""
    for element in content:
        if not isinstance(element, int):
            return None
    return content  # type: ignore[return-value]


def as_dim(element: Element) -> Dim | None:
    """An element read as a size; None where it is no known integer."""
    return element if isinstance(element, int | Expr) else None


def element_size(element: Element) -> Dim | None:
    """An element that stands as a size, so is not negative."""
    return element if isinstance(element, int) else as_size(element) if isinstance(element, Expr) else None


def normal_axis(axis: Any, rank: int) -> int:
    """The axis counted from the front; Unclear where there is none of that number."""
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise Unclear
    return axis + rank if axis < 0 else axis


def normal_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    found = tuple([normal_axis(axis, rank) for axis in axes])
    if len(found) > 1 and len(set(found)) != len(found):
        raise Unclear
    return found


def blank(rank: int) -> Sketch:
    """Dims of a known rank and no known size."""
    return (None,) * rank


def kept(dim: Dim) -> Dim | None:
    """The size, unless it is too long to carry through a model."""
    if isinstance(dim, int):
        return dim
    if len(dim.terms) > MAX_TERMS or any(len(s) > MAX_NAME for product, _ in dim.terms for s in product):
        return None
    return dim


def unknown_symbol(dim: Dim) -> bool:
    """Whether a size depends on one that nothing tells."""
    return any(name.startswith("?") for name in roots(dim))


def join(a: Dim | None, b: Dim | None) -> Dim | None:
    """One axis of a broadcast; None where the two contradict each other or neither tells."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if a is None or b is None:
        return None
    if isinstance(a, int):
        return None if isinstance(b, int) else a
    if isinstance(b, int):
        return b
    return kept(broadcast_dim(a, b))


def spread(a: Sketch, b: Sketch) -> Sketch:
    """The dims of two operands broadcast together."""
    if a == b:
        return a
    if len(a) < len(b):
        a, b = b, a
    lead = len(a) - len(b)
    tail = a[lead:] if lead else a
    if tail == b:
        return a
    return a[:lead] + tuple([x if x is y or y == 1 else join(x, y) for x, y in zip(tail, b, strict=True)])


def same_size(a: Dim | None, b: Dim | None) -> Dim | None:
    """One size told twice: the better of the two; None where they contradict each other."""
    if a is None or a == b:
        return b
    if b is None:
        return a
    if isinstance(a, int):
        return None if isinstance(b, int) else a
    if isinstance(b, int) or unknown_symbol(a):
        return b
    return a


def difference(a: Dim, b: Dim) -> Dim | None:
    """max(a - b, 0), the size of what is left of `a` past `b`, as what min(a, b) leaves of a."""
    return kept(sub(a, minimum(a, b)))


def smaller(a: Dim, b: Dim) -> Dim | None:
    """min(a, b) of two sizes."""
    return kept(minimum(a, b))


def quotient(a: Dim, b: Dim) -> Dim | None:
    """Floor of a / b where b is not zero."""
    return None if b == 0 else kept(floor_divide(a, b))


def plus(a: Dim | None, b: Dim | None) -> Dim | None:
    """a + b; None where either is unknown or the sum would be too long."""
    if a is None or b is None:
        return None
    return kept(add(a, b))


def with_axis(dims: Sketch, axis: int, size: Dim | None) -> Sketch:
    """The dims with one size replaced."""
    return (*dims[:axis], size, *dims[axis + 1 :])


def kinds(names: str) -> list[str]:
    """A list of kinds, written as words."""
    return names.split()
