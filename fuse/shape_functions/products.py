"""Matrix products, in every form that ONNX has them."""

from __future__ import annotations

from collections.abc import Sequence

from fuse.shape_functions.call import Call, Row, Sketch, Unclear, join, spread
from fuse.types import Dims


def product_dims(a: Dims, b: Dims) -> Sketch:
    """numpy's matmul: a vector counts as a row on the left, as a column on the right."""
    if not a or not b:
        raise Unclear
    if len(a) == 2 == len(b):
        return _checked(a[1], b[0], (a[0], b[1]))
    if len(a) == 1:
        return _checked(a[0], b[-2] if len(b) > 1 else b[0], b[:-2] + b[-1:] if len(b) > 1 else ())
    if len(b) == 1:
        return _checked(a[-1], b[0], a[:-1])
    lead = a[:-2] if len(b) == 2 else spread(a[:-2], b[:-2])
    return _checked(a[-1], b[-2], (*lead, a[-2], b[-1]))


def _checked(inner: object, other: object, dims: Sketch) -> Sketch:
    """The dims, where the summed axes do not contradict each other."""
    if isinstance(inner, int) and isinstance(other, int) and inner != other:
        raise Unclear
    return dims


def matmul(call: Call) -> Sequence[Sketch | None]:
    return (product_dims(call.need(0), call.need(1)),)


def qlinear_matmul(call: Call) -> Sequence[Sketch | None]:
    return (product_dims(call.need(0), call.need(3)),)


def swapped(dims: Dims) -> Dims:
    """The last two axes swapped."""
    return (*dims[:-2], dims[-1], dims[-2]) if len(dims) > 1 else dims


def gemm(call: Call) -> Sequence[Sketch | None]:
    a, b = call.need(0), call.need(1)
    if len(a) != 2 or len(b) != 2:
        raise Unclear
    if call.attrs.get("transA"):
        a = swapped(a)
    if call.attrs.get("transB"):
        b = swapped(b)
    return (_checked(a[1], b[0], (a[0], b[1])),)


def einsum(call: Call) -> Sequence[Sketch | None]:
    """Letters name axes; an ellipsis stands for axes that broadcast."""
    equation = call.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(call.inputs):
        raise Unclear
    sizes: dict[str, object] = {}
    middle: Sketch = ()
    for i, term in enumerate(terms):
        dims = call.need(i)
        before, dots, after = term.partition("...")
        extra = len(dims) - len(before) - len(after)
        if extra < 0 or (extra and not dots):
            raise Unclear
        middle = spread(middle, dims[len(before) : len(before) + extra])
        named_dims = dims[: len(before)] + dims[len(before) + extra :]
        for letter, dim in zip(before + after, named_dims, strict=True):
            sizes[letter] = join(sizes[letter], dim) if letter in sizes else dim  # type: ignore[arg-type]
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        right = ("..." if "..." in left else "") + "".join(
            sorted(c for c in set(letters) if letters.count(c) == 1)
        )
    before, dots, after = right.partition("...")
    if any(letter not in sizes for letter in before + after):
        raise Unclear
    head = tuple([sizes[letter] for letter in before])
    return (head + (middle if dots else ()) + tuple([sizes[letter] for letter in after]),)  # type: ignore[return-value]


def determinant(call: Call) -> Sequence[Sketch | None]:
    dims = call.need(0)
    if len(dims) < 2:
        raise Unclear
    return (dims[:-2],)


ROWS: dict[str, Row] = {
    "MatMul": Row(((0, 1),), matmul),
    "MatMulInteger": Row(("i32",), matmul),
    "QLinearMatMul": Row((7,), qlinear_matmul),
    "Gemm": Row(((0, 1),), gemm),
    "Einsum": Row((0,), einsum),
    "Det": Row((0,), determinant),
}
