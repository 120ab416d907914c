"""Products, convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fuse.types import FuseError
from reference.ops.call import Array, Call, Implementation, ints, wide


def summed(x: Array) -> Array:
    """x in the type its products are summed in: f64 for f32, f32 for what is narrower.

    A sum is then rounded once and does not hang on its order, so a quantized value that lies between
    two steps falls on the same side as in any runtime whose integer products are exact.
    """
    return x.astype(np.float64) if x.dtype == np.float32 else wide(x)


def product(a: Array, b: Array) -> Array:
    """a times b as matrices over the leading axes."""
    return np.asarray(np.matmul(summed(a), summed(b)), a.dtype)


def matmul(call: Call, a: Array, b: Array) -> Array:
    return product(a, b)


def gemm_product(call: Call, a: Array, b: Array, c: Array | None = None) -> Array:
    """alpha a b + beta c in the type of the sum, before it is rounded."""
    left, right = summed(a), summed(b)
    y = (left.T if call.get("transA", 0) else left) @ (right.T if call.get("transB", 0) else right)
    alpha, beta = float(call.get("alpha", 1.0)), float(call.get("beta", 1.0))
    if alpha != 1.0:
        y = y * y.dtype.type(alpha)
    if c is not None and beta:  # what is taken nought times is not read: it may be no number
        y = y + (summed(c) if beta == 1.0 else summed(c) * y.dtype.type(beta))
    return np.asarray(y)


def gemm(call: Call, a: Array, b: Array, c: Array | None = None) -> Array:
    return np.asarray(gemm_product(call, a, b, c), a.dtype)


def einsum(call: Call, *operands: Array) -> Array:
    return np.asarray(
        np.einsum(call.attrs["equation"].replace(" ", ""), *map(wide, operands), optimize=len(operands) > 2),
        operands[0].dtype,
    )


def window_pads(call: Call, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> list[tuple[int, int]]:
    """Padding before and after each spatial axis, from `pads` or `auto_pad`."""
    strides = ints(call.get("strides")) or (1,) * len(kernel)
    dilations = ints(call.get("dilations")) or (1,) * len(kernel)
    auto = call.get("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        pads = ints(call.get("pads")) or (0,) * (2 * len(kernel))
        return [(pads[i], pads[i + len(kernel)]) for i in range(len(kernel))]
    if auto == "VALID":
        return [(0, 0)] * len(kernel)
    found = []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        need = max(0, (-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size)
        small = need // 2
        found.append((small, need - small) if auto == "SAME_UPPER" else (need - small, small))
    return found


def windows(x: Array, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]) -> Array:
    """A view [N, C, *out, *kernel] of the windows of a padded x [N, C, *space]."""
    spread = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    space = tuple(range(2, x.ndim))
    if any(s > n for s, n in zip(spread, x.shape[2:], strict=True)):
        raise FuseError(f"a window of {list(spread)} does not fit {list(x.shape[2:])}")
    view = np.lib.stride_tricks.sliding_window_view(x, spread, axis=space)
    steps = tuple(slice(None, None, s) for s in strides)
    inside = tuple(slice(None, None, d) for d in dilations)
    return np.asarray(view[(slice(None), slice(None), *steps, *inside)])


#: A convolution is taken by parts of the output whose windows have at most so many elements.
_WINDOW_ELEMENTS = 1 << 22


def conv_product(call: Call, x: Array, w: Array, b: Array | None = None) -> Array:
    """The convolution in the type of its sums. x [N, C, *space], w [M, C/group, *kernel]."""
    kernel = w.shape[2:]
    rank = len(kernel)
    strides = ints(call.get("strides")) or (1,) * rank
    dilations = ints(call.get("dilations")) or (1,) * rank
    padded = np.pad(summed(x), [(0, 0), (0, 0), *window_pads(call, x.shape[2:], kernel)])
    groups, batch, filters = int(call.get("group", 1)), x.shape[0], w.shape[0]
    view = windows(padded, kernel, strides, dilations)
    out = view.shape[2 : 2 + rank]
    view = view.transpose(0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    weights = summed(w).reshape(groups, filters // groups, -1)
    y = np.empty((batch, filters, *out), padded.dtype)
    rows = max(1, _WINDOW_ELEMENTS // max(1, math.prod(view.shape[1:]) // max(1, out[0])))
    for n in range(batch):
        for at in range(0, out[0], rows):
            rest: tuple[Any, ...] = (slice(None),) * (rank - 1)
            part = view[(n, ..., slice(at, at + rows), *rest)]
            columns = part.reshape(groups, -1, math.prod(part.shape[1 + rank :]))
            y[n, :, at : at + rows] = np.matmul(weights, columns).reshape(filters, -1, *out[1:])
    if b is not None:
        y = y + summed(b).reshape(1, -1, *(1,) * rank)
    return np.asarray(y)


def conv(call: Call, x: Array, w: Array, b: Array | None = None) -> Array:
    return np.asarray(conv_product(call, x, w, b), x.dtype)


def conv_transpose(call: Call, x: Array, w: Array, b: Array | None = None) -> Array:
    """The transposed convolution. x [N, C, *space], w [C, M/group, *kernel].

    Each element of x lays a kernel over the output: its taps one after another, each `stride` apart.
    """
    kernel, rank, groups = w.shape[2:], x.ndim - 2, int(call.get("group", 1))
    strides = ints(call.get("strides")) or (1,) * rank
    dilations = ints(call.get("dilations")) or (1,) * rank
    extra = ints(call.get("output_padding")) or (0,) * rank
    whole = [
        (n - 1) * s + (k - 1) * d + 1 + e
        for n, k, s, d, e in zip(x.shape[2:], kernel, strides, dilations, extra, strict=True)
    ]
    pads = _transposed_pads(call, x.shape[2:], whole, strides)
    y = np.zeros((x.shape[0], groups, w.shape[1], *whole), summed(x).dtype)
    rows = summed(x).reshape(x.shape[0], groups, x.shape[1] // groups, -1)
    taps = summed(w).reshape(groups, x.shape[1] // groups, w.shape[1], *kernel)
    for tap in np.ndindex(*kernel):
        place: Any = (..., *tap)
        at: Any = (
            ...,
            *(
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(tap, dilations, x.shape[2:], strides, strict=True)
            ),
        )
        y[at] += (taps[place].swapaxes(1, 2) @ rows).reshape(*y.shape[:3], *x.shape[2:])
    y = y.reshape(x.shape[0], -1, *whole)
    y = np.pad(y, [(0, 0), (0, 0), *((max(0, -before), max(0, -after)) for before, after in pads)])
    kept: Any = (slice(max(0, b), n - max(0, a)) for (b, a), n in zip(pads, y.shape[2:], strict=True))
    y = y[(..., *kept)]
    return np.asarray(y if b is None else y + summed(b).reshape(1, -1, *(1,) * rank), x.dtype)


def _transposed_pads(
    call: Call, sizes: tuple[int, ...], whole: list[int], strides: tuple[int, ...]
) -> list[tuple[int, int]]:
    """What is cut off before and after each spatial axis; below zero where zeros are added."""
    auto, wanted = call.get("auto_pad", "NOTSET"), ints(call.get("output_shape"))[-len(sizes) :]
    if not wanted and str(auto).startswith("SAME"):
        wanted = tuple(n * s for n, s in zip(sizes, strides, strict=True))
    if not wanted:
        pads = ints(call.get("pads")) if auto in ("NOTSET", "") else ()
        return list(zip(pads[: len(sizes)], pads[len(sizes) :], strict=True)) or [(0, 0)] * len(sizes)
    found = []
    for have, want in zip(whole, wanted, strict=True):
        small = (have - want) // 2 if have > want else 0
        rest = have - want - small
        found.append((small, rest) if auto == "SAME_UPPER" or have < want else (rest, small))
    return found


class _Pool(NamedTuple):
    """Windows of a pool: its padding before and after each axis, and what a last window overhangs that."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: list[tuple[int, int]]
    beyond: list[int]

    def views(self, x: Array, fill: Any, beyond: Any) -> Array:
        """The windows of x [N, C, *out, *kernel], padded with `fill` and then with `beyond`."""
        padded = np.pad(x, [(0, 0), (0, 0), *self.pads], constant_values=fill)
        padded = np.pad(padded, [(0, 0), (0, 0), *((0, n) for n in self.beyond)], constant_values=beyond)
        return windows(padded, self.kernel, self.strides, self.dilations)

    @property
    def over(self) -> tuple[int, ...]:
        return tuple(range(-len(self.kernel), 0))


def _pool(call: Call, x: Array) -> _Pool:
    kernel = ints(call.attrs["kernel_shape"])
    strides = ints(call.get("strides")) or (1,) * len(kernel)
    dilations = ints(call.get("dilations")) or (1,) * len(kernel)
    pads = window_pads(call, x.shape[2:], kernel)
    beyond = [0] * len(kernel)
    for axis, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True)):
        length = x.shape[2 + axis] + sum(pads[axis]) - (k - 1) * d - 1
        if -s < length < 0:
            # onnxruntime divides towards zero: a window that overhangs by less than a stride counts.
            beyond[axis] = -length
        elif call.get("ceil_mode", 0):
            steps = -(-length // s)
            if steps * s >= x.shape[2 + axis] + pads[axis][0]:
                steps -= 1
            beyond[axis] = max(0, steps * s - length)
    return _Pool(kernel, strides, dilations, pads, beyond)


def max_pool(call: Call, x: Array) -> Array:
    low = -np.inf if x.dtype.kind in "fV" else np.iinfo(x.dtype).min
    pool = _pool(call, x)
    return np.asarray(pool.views(x, low, low).max(axis=pool.over), x.dtype)


def average_pool(call: Call, x: Array) -> Array:
    """The mean of the elements of each window that count: those padded only with `count_include_pad`."""
    pool = _pool(call, x)
    counted = pool.views(np.ones((1, 1, *x.shape[2:])), float(call.get("count_include_pad", 0)), 0.0)
    total = pool.views(wide(x), 0.0, 0.0).sum(axis=pool.over)
    return np.asarray(total / counted.sum(axis=pool.over), x.dtype)


def global_pool(function: Any) -> Implementation:
    return lambda call, x: np.asarray(function(wide(x), axis=tuple(range(2, x.ndim)), keepdims=True), x.dtype)


PRODUCTS: Mapping[str, Implementation] = {
    "MatMul": matmul, "Gemm": gemm, "Einsum": einsum, "Conv": conv, "ConvTranspose": conv_transpose,
    "GlobalAveragePool": global_pool(np.mean), "GlobalMaxPool": global_pool(np.max),
}  # fmt: skip
