"""Where a constant's values lie: in the model, or in the data file that is written beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from fuse.ir import Tensor
from fuse.types import DTYPE_NUMBERS, FuseError

#: Gives the tensor that the file has for a constant: its name there, and the constant.
Place = Callable[[str, Tensor], onnx.TensorProto]

#: Weights from this size on start at a page, so that a runtime can map them.
_PAGED_BYTES = 1 << 20
_PAGE, _WORD = 4096, 64
#: Inline weights below this stay in the model even when the others move out.
_SMALL_BYTES = 1024


def keep(name: str, tensor: Tensor) -> onnx.TensorProto:
    """The constant as the file had it, under its name here; a folded one is encoded now.

    Never decodes: external data stays where it is, and the raw proto is used again as it stands.
    """
    proto = tensor.proto
    if not isinstance(proto, onnx.TensorProto):
        return _encoded(name, tensor)
    if proto.name == name:
        return proto
    renamed = onnx.TensorProto()
    renamed.CopyFrom(proto)
    renamed.name = name
    return renamed


def sparse(name: str, proto: onnx.SparseTensorProto) -> onnx.SparseTensorProto:
    """A sparse constant under its name here."""
    if is_external(proto.values) or is_external(proto.indices):
        raise FuseError(f"sparse constant {name} has external data, which no runtime reads")
    renamed = onnx.SparseTensorProto()
    renamed.CopyFrom(proto)
    renamed.values.name = name
    return renamed


def is_external(proto: object) -> bool:
    return isinstance(proto, onnx.TensorProto) and proto.data_location == onnx.TensorProto.EXTERNAL


def _encoded(name: str, tensor: Tensor) -> onnx.TensorProto:
    array = tensor.array()
    want = DTYPE_NUMBERS[tensor.dtype]
    proto = numpy_helper.from_array(np.ascontiguousarray(array).reshape(tensor.dims), name)
    if proto.data_type != want:
        got = onnx.TensorProto.DataType.Name(proto.data_type).lower()
        raise FuseError(f"constant {tensor.name} is {tensor.dtype} and its values are {got}")
    return proto


class Piece(NamedTuple):
    """Bytes of the data file: `offset` there; from a file at `start`, or of an inline constant."""

    name: str
    offset: int
    length: int
    source: Path | None = None
    start: int = 0
    tensor: onnx.TensorProto | None = None


class DataFile:
    """The weights that will lie beside the model. `place` decides where each constant goes.

    location: the file's name. folder: of the model that was loaded, for its external data.
    spill: move inline weights out too (a model over 2 GB cannot hold them).
    """

    def __init__(self, location: str, folder: str | None, *, spill: bool = False) -> None:
        self.location, self.spill = location, spill
        self._folder = None if folder is None else Path(folder)
        self.pieces: list[Piece] = []
        self.size = 0
        self._shared: dict[tuple[Path, int, int], int] = {}

    def place(self, name: str, tensor: Tensor) -> onnx.TensorProto:
        proto = tensor.proto
        if isinstance(proto, onnx.TensorProto) and is_external(proto):
            return self._moved(name, proto, tensor)
        kept = keep(name, tensor)
        movable = tensor.nbytes >= _SMALL_BYTES and kept.data_type != onnx.TensorProto.STRING
        if not (self.spill and movable):
            return kept
        offset = self._reserve(tensor.nbytes)
        self.pieces.append(Piece(name, offset, tensor.nbytes, tensor=kept))
        return self._stub(name, kept, offset, tensor.nbytes)

    def sources(self) -> list[Path]:
        """The files that weights are copied from."""
        return list(dict.fromkeys(p.source for p in self.pieces if p.source is not None))

    def _moved(self, name: str, proto: onnx.TensorProto, tensor: Tensor) -> onnx.TensorProto:
        """A tensor of the source's external data, pointing into the new file; the copy comes later."""
        entries = {entry.key: entry.value for entry in proto.external_data}
        if self._folder is None:
            raise FuseError(f"weight {name} lies in {entries.get('location')}, of a model without a folder")
        source = self._folder / entries["location"]
        start, length = int(entries.get("offset", 0)), int(entries.get("length", tensor.nbytes))
        key = (source, start, length)
        offset = self._shared.get(key)
        if offset is None:
            offset = self._shared[key] = self._reserve(length)
            self.pieces.append(Piece(name, offset, length, source, start))
        return self._stub(name, proto, offset, length)

    def _reserve(self, length: int) -> int:
        step = _PAGE if length >= _PAGED_BYTES else _WORD
        offset = -(-self.size // step) * step
        self.size = offset + length
        return offset

    def _stub(self, name: str, proto: onnx.TensorProto, offset: int, length: int) -> onnx.TensorProto:
        stub = onnx.TensorProto(name=name, data_type=proto.data_type, dims=proto.dims)
        stub.doc_string = proto.doc_string
        stub.metadata_props.extend(proto.metadata_props)
        stub.data_location = onnx.TensorProto.EXTERNAL
        entries = {"location": self.location, "offset": str(offset), "length": str(length)}
        for key, value in entries.items():
            stub.external_data.add(key=key, value=value)
        return stub


def raw_bytes(tensor: onnx.TensorProto) -> bytes:
    """The values of an inline tensor as the data file holds them (little-endian, packed)."""
    if tensor.HasField("raw_data"):
        return bytes(tensor.raw_data)
    return bytes(numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data)
