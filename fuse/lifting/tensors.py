"""Constants of a file as lazy tensors: inline, sparse, or in files beside the model."""

from __future__ import annotations

import math
import os
import struct
from functools import partial

import numpy as np
import onnx
from onnx import numpy_helper

from fuse.ir import Content, Tensor
from fuse.types import BITS, DTYPES, FLOATS, INTEGERS, FuseError

#: Contents are kept of integer and boolean tensors up to this many elements, of single floats, and of
#: vectors of a few (the factors of a Resize, one an axis).
SMALL_CONTENT = 16
SMALL_FLOATS = 6
_EXTERNAL = onnx.TensorProto.EXTERNAL
#: Element type -> how `struct` reads one element of raw data.
_FORMATS = {
    "f16": "e", "f32": "f", "f64": "d", "bool": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H",
    "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
}  # fmt: skip


class Weights:
    """The files beside a model that hold its large constants; they are only measured here.

    folder: where locations are looked up, None for a model that came without one.
    real_folders: what a file's real path must lie in. `sizes` has each file seen, by location.
    """

    def __init__(self, folder: str | None, real_folders: tuple[str, ...]) -> None:
        self.folder, self.real_folders = folder, real_folders
        self.sizes: dict[str, int] = {}

    def place(self, proto: onnx.TensorProto, name: str, nbytes: int) -> tuple[str | None, str, int]:
        """(path or None without a folder, location, offset) of a tensor's bytes, checked to be there."""
        entries = {entry.key: entry.value for entry in proto.external_data}
        location = entries.get("location", "")
        if not location:
            raise FuseError(f"initializer {name!r} has external data without a location")
        offset = _count(entries, "offset", name)
        length = _count(entries, "length", name) if "length" in entries else nbytes
        if length != nbytes:
            raise FuseError(f"initializer {name!r} needs {nbytes} bytes and its external data gives {length}")
        if self.folder is None:
            self.sizes.setdefault(location, -1)
            return None, location, offset
        path = os.path.join(self.folder, location)
        if location not in self.sizes:
            self.sizes[location] = self._measure(location, path, name)
        if offset + nbytes > self.sizes[location]:
            raise FuseError(
                f"initializer {name!r} needs bytes {offset} to {offset + nbytes} of {location!r}, "
                f"which has {self.sizes[location]}"
            )
        return path, location, offset

    def _measure(self, location: str, path: str, name: str) -> int:
        if "\0" in location:  # no path at all: the system's own calls refuse to take it
            raise FuseError(f"external data {location!r} of {name!r} is not a file")
        parts = location.replace("\\", "/").split("/")
        real = os.path.realpath(path)
        if os.path.isabs(location) or ".." in parts or not self._inside(real):
            raise FuseError(f"external data {location!r} of {name!r} lies outside the model's folder")
        try:
            status = os.stat(path)
        except OSError as error:
            raise FuseError(f"external data {location!r} of {name!r} is missing") from error
        if not os.path.isfile(path):
            raise FuseError(f"external data {location!r} of {name!r} is not a file")
        return status.st_size

    def _inside(self, real: str) -> bool:
        # A download cache keeps the model and its data side by side behind symbolic links, so the
        # folder that the model file really lies in counts too.
        return any(os.path.commonpath((real, folder)) == folder for folder in self.real_folders)


def _count(entries: dict[str, str], key: str, name: str) -> int:
    text = entries.get(key) or "0"
    if not text.isdecimal():
        raise FuseError(f"initializer {name!r} has external data with {key} {text!r}")
    return int(text)


def _array(proto: onnx.TensorProto, name: str) -> np.ndarray:
    try:
        array: np.ndarray = numpy_helper.to_array(proto)
    except (ValueError, TypeError) as error:
        raise FuseError(f"constant {name!r} cannot be read: {' '.join(str(error).split())}") from error
    return array


def _external(
    proto: onnx.TensorProto, name: str, dtype: str, dims: tuple[int, ...], place: tuple[str | None, str, int]
) -> np.ndarray:
    path, location, offset = place
    if path is None:
        raise FuseError(f"constant {name!r} lies in {location!r}, and the model was given without a folder")
    numpy_type = onnx.helper.tensor_dtype_to_np_dtype(proto.data_type)
    count = math.prod(dims)
    try:
        if count and numpy_type.itemsize * 8 == BITS[dtype]:
            return np.asarray(np.memmap(path, numpy_type.newbyteorder("<"), "r", offset, dims))
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(math.ceil(count * BITS[dtype] / 8))
    except (OSError, ValueError) as error:
        raise FuseError(f"constant {name!r} cannot be read from {location!r}: {error}") from error
    packed = onnx.TensorProto(data_type=proto.data_type, dims=dims, raw_data=data)
    return _array(packed, name)


def make_tensor(proto: onnx.TensorProto, name: str, weights: Weights) -> Tensor:
    """The constant of a TensorProto, its data left where it is."""
    number = proto.data_type
    dtype = DTYPES.get(number)
    if dtype is None:
        raise FuseError(f"constant {name!r} has element type {number}, which is none of ONNX")
    dims = tuple(proto.dims)
    if dims and min(dims) < 0:
        raise FuseError(f"constant {name!r} has a negative dimension: {list(dims)}")
    if dtype == "str":
        return Tensor(
            name, dtype, dims, sum(map(len, proto.string_data)), partial(_array, proto, name), proto
        )
    nbytes = (math.prod(dims) * BITS[dtype] + 7) // 8
    if proto.data_location == _EXTERNAL:
        place = weights.place(proto, name, nbytes)
        return Tensor(name, dtype, dims, nbytes, partial(_external, proto, name, dtype, dims, place), proto)
    # Counting the elements would copy raw data; the size of the message is a bound that costs nothing.
    if nbytes > 64 and proto.HasField("raw_data") and proto.ByteSize() < nbytes:
        raise FuseError(f"constant {name!r} has less data than its {list(dims)} of {dtype} need")
    return Tensor(name, dtype, dims, nbytes, partial(_array, proto, name), proto)


def make_sparse(proto: onnx.SparseTensorProto, name: str, weights: Weights) -> Tensor:
    """The dense constant of a sparse tensor, built when it is read."""
    values = make_tensor(proto.values, name, weights)
    indices = make_tensor(proto.indices, name, weights)
    dims = tuple(proto.dims)
    count = math.prod(values.dims)
    if indices.dtype != "i64" or indices.dims not in ((count,), (count, len(dims))):
        raise FuseError(f"sparse constant {name!r} has {count} values and indices {indices.dims}")

    def dense() -> np.ndarray:
        data, at = values.array(), indices.array()
        whole = np.zeros(dims, data.dtype)
        if not count:
            return whole
        size = whole.shape if at.ndim == 2 else (whole.size,)
        if (at < 0).any() or (at >= np.asarray(size)).any():
            raise FuseError(f"sparse constant {name!r} has an index outside {list(dims)}")
        if at.ndim == 2:
            whole[tuple(at.T)] = data
        else:
            whole.reshape(-1)[at] = data
        return whole

    nbytes = (math.prod(dims) * BITS.get(values.dtype, 64) + 7) // 8
    return Tensor(name, values.dtype, dims, nbytes, dense, proto)


def content_of(tensor: Tensor, weights: Weights) -> Content | None:
    """The elements of a small tensor, flat: integers and booleans, single floats, and short vectors.

    None for what is larger, and for external data of a model that came without a folder.
    """
    dtype, count = tensor.dtype, math.prod(tensor.dims)
    floating = dtype in FLOATS
    most = (SMALL_FLOATS if len(tensor.dims) == 1 else 1) if floating else SMALL_CONTENT
    if count > most or not (floating or dtype == "bool" or dtype in INTEGERS):
        return None
    if floating and not count:
        return None
    proto = tensor.proto
    lies_here = isinstance(proto, onnx.TensorProto) and not _is_external(proto)
    if floating and count > 1 and not lies_here:
        return None
    if isinstance(proto, onnx.TensorProto) and dtype in _FORMATS and proto.HasField("raw_data"):
        raw, form = proto.raw_data, f"<{count}{_FORMATS[dtype]}"
        if len(raw) != struct.calcsize(form):
            raise FuseError(
                f"constant {tensor.name!r} has {len(raw)} bytes for {list(tensor.dims)} of {dtype}"
            )
        return struct.unpack(form, raw)
    if weights.folder is None and _is_external(proto):
        return None
    as_python = float if floating else bool if dtype == "bool" else int
    return tuple(map(as_python, tensor.array().reshape(-1).tolist()))


def _is_external(proto: object) -> bool:
    if isinstance(proto, onnx.SparseTensorProto):
        return _is_external(proto.values) or _is_external(proto.indices)
    return isinstance(proto, onnx.TensorProto) and proto.data_location == _EXTERNAL
