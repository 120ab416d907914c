"""Operators that make a tensor from sizes, attributes or counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuse.ir import Tensor
from fuse.shape_functions import content_arithmetic as arithmetic
from fuse.shape_functions import content_movement as content
from fuse.shape_functions.call import (
    Call,
    Row,
    Sketch,
    Unclear,
    as_dim,
    blank,
    difference,
    element_size,
    normal_axis,
    quotient,
)
from fuse.shape_functions.elementwise import attribute_dtype
from fuse.types import Dim, add, sub


def shape(call: Call) -> Sequence[Sketch | None]:
    dims = call.dims(0)
    if dims is None:
        return (blank(1),)
    if not call.attrs:
        return ((len(dims),),)
    return ((len(dims[call.integer("start", 0) : call.integer("end", len(dims))]),),)


def scalar(call: Call) -> Sequence[Sketch | None]:
    return ((),)


def sized(call: Call) -> Sequence[Sketch | None]:
    """The operand's elements are the dims."""
    sizes = call.content(0)
    if sizes is None:
        rank = call.count(0)
        if rank is None:
            raise Unclear
        return (blank(rank),)
    return (tuple(map(element_size, sizes)),)


def from_attribute(call: Call) -> Sequence[Sketch | None]:
    return (call.integers("shape"),)


def multinomial(call: Call) -> Sequence[Sketch | None]:
    return ((*call.need(0)[:1], call.integer("sample_size", 1)),)


def arange(call: Call) -> Sequence[Sketch | None]:
    """The number of steps: ceil((limit - start) / delta), never negative."""
    found = [call.content(i) for i in range(3)]
    if any(one is None or len(one) != 1 for one in found):
        return (blank(1),)
    start, limit, delta = (one[0] for one in found if one is not None)
    if isinstance(start, float) and isinstance(limit, float) and isinstance(delta, float):
        steps = (limit - start) / delta if delta else math.inf
        return ((max(math.ceil(steps), 0) if math.isfinite(steps) else None,),)
    return ((_steps(as_dim(start), as_dim(limit), as_dim(delta)),),)


def _steps(start: Dim | None, limit: Dim | None, delta: Dim | None) -> Dim | None:
    if start is None or limit is None or not isinstance(delta, int) or delta == 0:
        return None
    span = difference(limit, start) if delta > 0 else difference(start, limit)
    if span is None or abs(delta) == 1:
        return span
    return quotient(add(span, abs(delta) - 1), abs(delta))


def one_hot(call: Call) -> Sequence[Sketch | None]:
    dims = call.need(0)
    depth = call.content(1)
    size = depth[0] if depth is not None and len(depth) == 1 else None
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    axis = normal_axis(call.integer("axis", -1), len(dims) + 1)
    return ((*dims[:axis], as_dim(size), *dims[axis:]),)


def window(call: Call) -> Sequence[Sketch | None]:
    size = call.content(0)
    return ((as_dim(size[0]) if size is not None and len(size) == 1 else None,),)


def mel_matrix(call: Call) -> Sequence[Sketch | None]:
    """[floor(dft_length / 2) + 1, num_mel_bins]"""
    bins, length = call.content(0), call.content(1)
    width = as_dim(length[0]) if length is not None and len(length) == 1 else None
    half = None if width is None else quotient(width, 2)
    return (
        (
            None if half is None else add(half, 1),
            as_dim(bins[0]) if bins is not None and len(bins) == 1 else None,
        ),
    )


def affine_grid(call: Call) -> Sequence[Sketch | None]:
    """[n, spatial axes, how many of them]"""
    size = call.content(1)
    if size is None or len(size) < 3:
        raise Unclear
    sizes = tuple(map(as_dim, size))
    return ((sizes[0], *sizes[2:], len(sizes) - 2),)


def constant(call: Call) -> Sequence[Sketch | None]:
    value = call.attrs.get("value")
    if isinstance(value, Tensor):
        return (value.dims,)
    return (None,)


def _constant_dtype(call: Call) -> str:
    value = call.attrs.get("value")
    return value.dtype if isinstance(value, Tensor) else ""


def _fill_dtype(call: Call) -> str:
    value = call.attrs.get("value")
    return "f32" if value is None else value.dtype if isinstance(value, Tensor) else ""


def stft(call: Call) -> Sequence[Sketch | None]:
    """[batch, frames, bins, 2]: frames = 1 + floor((length - frame) / step)."""
    dims = call.need(0)
    step, frame = call.content(1), call.content(3)
    width: Dim | None = as_dim(frame[0]) if frame is not None and len(frame) == 1 else None
    window_dims = call.dims(2) if call.given(2) else None
    if width is None and window_dims is not None and len(window_dims) == 1:
        width = window_dims[0]
    hop = as_dim(step[0]) if step is not None and len(step) == 1 else None
    if len(dims) < 2 or width is None or hop is None or hop == 0:
        return ((*dims[:1], None, None, 2),)
    frames = quotient(add(sub(dims[1], width), hop), hop)
    half = quotient(width, 2)
    bins = width if not call.integer("onesided", 1) else None if half is None else add(half, 1)
    return ((dims[0], frames, bins, 2),)


def dft(call: Call) -> Sequence[Sketch | None]:
    """The dims of the signal with 2 numbers an element; the transformed axis may change its size."""
    dims = call.need(0)
    if len(dims) < 2:
        raise Unclear
    changed = call.given(1) or call.given(2) or call.integer("onesided", 0)
    if not changed:
        return ((*dims[:-1], 2),)
    return ((*blank(len(dims) - 1), 1 if call.integer("inverse", 0) and call.integer("onesided", 0) else 2),)


ROWS: dict[str, Row] = {
    "Shape": Row(("i64",), shape, arithmetic.dims_as_content),
    "Size": Row(("i64",), scalar, arithmetic.size),
    "Constant": Row((_constant_dtype,), constant),
    "ConstantOfShape": Row((_fill_dtype,), sized, content.filled),
    "Range": Row(((0, 1, 2),), arange, content.counting),
    "OneHot": Row((2,), one_hot, content.one_hot),
    "RandomNormal": Row((attribute_dtype("dtype", 1),), from_attribute),
    "RandomUniform": Row((attribute_dtype("dtype", 1),), from_attribute),
    "Multinomial": Row((attribute_dtype("dtype", 6),), multinomial),
    "HannWindow": Row((attribute_dtype("output_datatype", 1),), window),
    "HammingWindow": Row((attribute_dtype("output_datatype", 1),), window),
    "BlackmanWindow": Row((attribute_dtype("output_datatype", 1),), window),
    "MelWeightMatrix": Row((attribute_dtype("output_datatype", 1),), mel_matrix),
    "AffineGrid": Row((0,), affine_grid),
    "STFT": Row((0,), stft),
    "DFT": Row((0,), dft),
}
