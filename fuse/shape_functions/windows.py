"""Convolutions, pools and resizing: operators whose sizes follow from windows over an image."""

from __future__ import annotations

from collections.abc import Sequence

from fuse.shape_functions.call import (
    Call,
    Row,
    Sketch,
    Unclear,
    as_dim,
    blank,
    normal_axes,
    quotient,
    with_axis,
)
from fuse.types import Dim, Dims, add, as_size, divide, mul, sub


def _spread(call: Call, name: str, count: int, default: int) -> tuple[int, ...]:
    """An attribute with one entry a spatial axis."""
    values = call.integers(name)
    if values is None or not values:
        return (default,) * count
    if len(values) != count:
        raise Unclear
    return values


def window_sizes(call: Call, spatial: Dims, kernel: Dims, ceil: bool = False) -> Sketch:
    """How many places a window has along each axis.

    floor((size + pads - (dilation (kernel - 1) + 1)) / stride) + 1, or ceil; SAME: ceil(size / stride).
    """
    count = len(spatial)
    if len(kernel) != count:
        raise Unclear
    strides, dilations = _spread(call, "strides", count, 1), _spread(call, "dilations", count, 1)
    pads = _spread(call, "pads", 2 * count, 0)
    auto = call.text("auto_pad", "NOTSET")
    if min(strides, default=1) < 1 or auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise Unclear
    result: list[Dim | None] = []
    for axis in range(count):
        size, stride = spatial[axis], strides[axis]
        if auto.startswith("SAME"):
            result.append(quotient(add(size, stride - 1), stride))
            continue
        around = pads[axis] + pads[axis + count] if auto == "NOTSET" else 0
        reach = add(mul(dilations[axis], sub(kernel[axis], 1)), 1)
        room = sub(add(size, around), reach)
        if isinstance(room, int) and room < 0:
            raise Unclear
        places = quotient(add(room, stride), stride)
        if ceil and (not isinstance(room, int) or room % stride):
            places = _ceiled(room, stride, size, pads[axis])
        # A window wider than one element has to fit once.
        result.append(None if places is None else as_size(places, 1 if reach != 1 else 0))
    return tuple(result)


def _ceiled(room: Dim, stride: int, size: Dim, before: int) -> Dim | None:
    """Ceil mode: a last window that starts past the image does not count (runtimes differ there)."""
    if not isinstance(room, int) or not isinstance(size, int):
        return None
    places = -(-room // stride) + 1
    return None if (places - 1) * stride >= size + before else places


def _kernel(call: Call, weight: Dims) -> Dims:
    given = call.integers("kernel_shape")
    return given if given else weight[2:]


def _convolved(call: Call, dims: Dims, weight: Dims) -> Sketch:
    if len(dims) < 2 or len(weight) != len(dims):
        raise Unclear
    return (dims[0], weight[0], *window_sizes(call, dims[2:], _kernel(call, weight)))


def conv(call: Call) -> Sequence[Sketch | None]:
    return (_convolved(call, call.need(0), call.need(1)),)


def qlinear_conv(call: Call) -> Sequence[Sketch | None]:
    return (_convolved(call, call.need(0), call.need(3)),)


def channels_last_conv(call: Call) -> Sequence[Sketch | None]:
    """As Conv with the channels behind; the weight is [out, spatial, in]."""
    dims, weight = call.need(0), call.need(1)
    if len(dims) < 2 or len(weight) != len(dims):
        raise Unclear
    kernel = call.integers("kernel_shape") or weight[1:-1]
    return ((dims[0], *window_sizes(call, dims[1:-1], kernel), weight[0]),)


def conv_transpose(call: Call) -> Sequence[Sketch | None]:
    """stride (size - 1) + output_padding + reach - pads, unless output_shape says it."""
    dims, weight = call.need(0), call.need(1)
    if len(dims) < 2 or len(weight) != len(dims):
        raise Unclear
    spatial, kernel = dims[2:], _kernel(call, weight)
    count = len(spatial)
    if len(kernel) != count:
        raise Unclear
    head = (dims[0], mul(weight[1], call.integer("group", 1)))
    shape = call.integers("output_shape")
    if shape:
        if len(shape) not in (count, count + 2):
            raise Unclear
        return (head + shape[-count:],)
    strides, dilations = _spread(call, "strides", count, 1), _spread(call, "dilations", count, 1)
    extra, pads = _spread(call, "output_padding", count, 0), _spread(call, "pads", 2 * count, 0)
    auto = call.text("auto_pad", "NOTSET")
    if auto.startswith("SAME"):
        return (head + tuple(map(mul, spatial, strides)),)
    sizes: list[Dim] = []
    for axis in range(count):
        around = pads[axis] + pads[axis + count] if auto == "NOTSET" else 0
        reach = add(mul(dilations[axis], sub(kernel[axis], 1)), 1)
        sizes.append(
            as_size(sub(add(add(mul(strides[axis], sub(spatial[axis], 1)), extra[axis]), reach), around))
        )
    return (head + tuple(sizes),)


def pool(call: Call) -> Sequence[Sketch | None]:
    """The pooled values, and where each came from (MaxPool)."""
    dims, kernel = call.need(0), call.integers("kernel_shape")
    if len(dims) < 2 or kernel is None:
        raise Unclear
    found = dims[:2] + window_sizes(call, dims[2:], kernel, bool(call.attrs.get("ceil_mode", 0)))
    return found, found


def global_pool(call: Call) -> Sequence[Sketch | None]:
    dims = call.need(0)
    return (dims[:2] + (1,) * (len(dims) - 2),)


def roi_pool(call: Call) -> Sequence[Sketch | None]:
    dims, rois, pooled = call.need(0), call.need(1), call.integers("pooled_shape")
    if pooled is None or len(dims) != 4 or not rois:
        raise Unclear
    return ((rois[0], dims[1], *pooled),)


def roi_align(call: Call) -> Sequence[Sketch | None]:
    dims, rois = call.need(0), call.need(1)
    if len(dims) != 4 or not rois:
        raise Unclear
    return ((rois[0], dims[1], call.integer("output_height", 1), call.integer("output_width", 1)),)


def unpool(call: Call) -> Sequence[Sketch | None]:
    dims = call.need(0)
    if call.given(2):
        sizes = call.content(2)
        return (tuple(map(as_dim, sizes)) if sizes is not None else blank(len(dims)),)
    return ((*dims[:2], *blank(len(dims) - 2)),)


def resize(call: Call) -> Sequence[Sketch | None]:
    """By sizes, or by factors: floor(size times factor)."""
    dims = call.need(0)
    axes = normal_axes(call.integers("axes") or range(len(dims)), len(dims))
    if call.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        return (tuple([None if axis in axes else dim for axis, dim in enumerate(dims)]),)
    result: Sketch = dims
    if call.given(3):
        sizes = call.content(3)
        if sizes is not None and len(sizes) != len(axes):
            raise Unclear
        for i, axis in enumerate(axes):
            result = with_axis(result, axis, None if sizes is None else as_dim(sizes[i]))
        return (result,)
    factors = _factors(call)
    for i, axis in enumerate(axes):
        known = factors is not None and len(factors) == len(axes)
        result = with_axis(result, axis, _scaled(dims[axis], factors[i]) if known and factors else None)
    return (result,)


def _factors(call: Call) -> Sequence[object] | None:
    scales = call.attrs.get("scales")
    if isinstance(scales, tuple | list):
        return scales
    return call.content(1 if call.opset < 11 or call.op.kind == "Upsample" else 2)


def _scaled(size: Dim, factor: object) -> Dim | None:
    if not isinstance(factor, float | int) or not factor > 0 or factor > 2**20:
        return None
    if float(factor).is_integer():
        return mul(size, int(factor))
    return int(size * factor) if isinstance(size, int) else None


def depth_to_space(call: Call) -> Sequence[Sketch | None]:
    dims, block = call.need(0), call.integer("blocksize", 0)
    if len(dims) != 4 or block < 1:
        raise Unclear
    return ((dims[0], divide(dims[1], block * block), mul(dims[2], block), mul(dims[3], block)),)


def space_to_depth(call: Call) -> Sequence[Sketch | None]:
    dims, block = call.need(0), call.integer("blocksize", 0)
    if len(dims) != 4 or block < 1:
        raise Unclear
    return ((dims[0], mul(dims[1], block * block), quotient(dims[2], block), quotient(dims[3], block)),)


def grid_sample(call: Call) -> Sequence[Sketch | None]:
    dims, grid = call.need(0), call.need(1)
    return (dims[:2] + grid[1:-1],)


def col2im(call: Call) -> Sequence[Sketch | None]:
    dims, image, block = call.need(0), call.content(1), call.content(2)
    if image is None or len(dims) != 3:
        raise Unclear
    area: Dim | None = 1
    for size in map(as_dim, block or (None,)):
        area = None if size is None or area is None else mul(area, size)
    return ((dims[0], None if area is None else divide(dims[1], area), *map(as_dim, image)),)


def boxes(call: Call) -> Sequence[Sketch | None]:
    return ((None, 3),)


ROWS: dict[str, Row] = {
    "Conv": Row((0,), conv),
    "DeformConv": Row((0,), conv),
    "ConvInteger": Row(("i32",), conv),
    "QLinearConv": Row((7,), qlinear_conv),
    "ConvTranspose": Row((0,), conv_transpose),
    "MaxPool": Row((0, "i64"), pool),
    "AveragePool": Row((0,), pool),
    "LpPool": Row((0,), pool),
    "GlobalAveragePool": Row((0,), global_pool),
    "GlobalMaxPool": Row((0,), global_pool),
    "GlobalLpPool": Row((0,), global_pool),
    "MaxRoiPool": Row((0,), roi_pool),
    "RoiAlign": Row((0,), roi_align),
    "MaxUnpool": Row((0,), unpool),
    "Resize": Row((0,), resize),
    "Upsample": Row((0,), resize),
    "DepthToSpace": Row((0,), depth_to_space),
    "SpaceToDepth": Row((0,), space_to_depth),
    "GridSample": Row((0,), grid_sample),
    "Col2Im": Row((0,), col2im),
    "NonMaxSuppression": Row(("i64",), boxes),
}
