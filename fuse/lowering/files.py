"""Files written whole or not at all, and weights copied without holding them.

Everything is written under a temporary name in the target's folder and renamed at the end, so a
reader sees the old file or the new one, and a failure leaves the old one.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import onnx

from fuse.lowering.model import Lowered, copy_field
from fuse.lowering.tensors import Piece, raw_bytes
from fuse.types import FuseError

#: How much is held at a time where the system cannot copy between files itself.
CHUNK_BYTES = 8 << 20
#: How many bytes of inline weights are encoded at a time.
BATCH_BYTES = 64 << 20
#: What copy_file_range says on file systems that cannot.
_CANNOT_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})
_GRAPH_FIELD = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_LENGTH_DELIMITED = 2


@contextmanager
def replacing(*targets: Path) -> Iterator[list[BinaryIO]]:
    """Files open for writing that become the targets, in order, when the block ends without an error."""
    temporary: list[Path] = []
    files: list[BinaryIO] = []
    try:
        for target in targets:
            temporary.append(_hidden(target))
            files.append(open(temporary[-1], "xb"))  # noqa: SIM115  closed below, before the rename
        yield files
        for file in files:
            file.close()
        _put(temporary, targets)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise FuseError(f"cannot write {targets[-1]}: {reason}") from error
    finally:
        for file in files:
            with suppress(OSError):
                file.close()
        for path in temporary:
            path.unlink(missing_ok=True)


def _hidden(target: Path) -> Path:
    """A name beside a target that nothing has; as short as it can be, since the target's may be long."""
    return target.with_name(f".fuse-{secrets.token_hex(6)}.tmp")


def _put(temporary: Sequence[Path], targets: Sequence[Path]) -> None:
    """Rename each file to its target. Where one cannot be, all targets are as they were."""
    aside = {target: _hidden(target) for target in targets[:-1] if target.exists()}
    put: list[Path] = []
    try:
        for target, old in aside.items():
            os.replace(target, old)
        for path, target in zip(temporary, targets, strict=True):
            os.replace(path, target)
            put.append(target)
    finally:
        whole = len(put) == len(targets)
        for target in () if whole else put:
            target.unlink()
        for target, old in aside.items():
            if whole:
                old.unlink()
            elif old.exists():
                os.replace(old, target)


def write_model(file: BinaryIO, lowered: Lowered) -> None:
    """Write a model as ModelProto, its initializers a batch at a time.

    The fields of a protobuf message may stand in any order, so the weights can follow the rest of
    the graph, and only a batch of them is held twice.
    """
    model, tensors = lowered
    rest = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            copy_field(rest, field.name, value)
    file.write(rest.SerializeToString(deterministic=True))
    graph = model.graph.SerializeToString(deterministic=True)
    batches = list(_batches(tensors))
    length = len(graph) + sum(_packed(batch).ByteSize() for batch in batches)
    file.write(_varint(_GRAPH_FIELD << 3 | _LENGTH_DELIMITED) + _varint(length) + graph)
    for batch in batches:
        file.write(_packed(batch).SerializeToString(deterministic=True))


def _batches(tensors: Sequence[onnx.TensorProto]) -> Iterator[list[onnx.TensorProto]]:
    batch: list[onnx.TensorProto] = []
    size = 0
    for tensor in tensors:
        batch.append(tensor)
        size += tensor.ByteSize()
        if size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _packed(tensors: Sequence[onnx.TensorProto]) -> onnx.GraphProto:
    """A graph of initializers alone: its bytes are those they take in the whole graph."""
    graph = onnx.GraphProto()
    graph.initializer.extend(tensors)
    return graph


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def write_data(file: BinaryIO, pieces: Sequence[Piece], size: int) -> None:
    """Fill the data file. Holes of the source stay holes; what no piece covers is zero."""
    file.truncate(size)
    for piece in pieces:
        if piece.tensor is not None:
            data = raw_bytes(piece.tensor)
            if len(data) != piece.length:
                raise FuseError(f"constant {piece.name} has {len(data)} bytes, want {piece.length}")
            file.seek(piece.offset)
            file.write(data)
    file.flush()
    for source in dict.fromkeys(piece.source for piece in pieces if piece.source is not None):
        try:
            weights = open(source, "rb")  # noqa: SIM115  the error of opening is not one of writing
        except OSError as error:
            raise FuseError(f"cannot read weights {source}: {(error.strerror or '').lower()}") from error
        with weights:
            for piece in pieces:
                if piece.source == source:
                    _copy(weights, piece, file)


def _copy(source: BinaryIO, piece: Piece, target: BinaryIO) -> None:
    """Copy a piece of a file, extent by extent."""
    end = piece.start + piece.length
    if os.fstat(source.fileno()).st_size < end:
        raise FuseError(f"weights {piece.source} end before weight {piece.name}, at byte {end}")
    shift = piece.offset - piece.start
    for start, stop in _extents(source.fileno(), piece.start, end):
        _copy_range(source.fileno(), target.fileno(), start, stop, shift)


def _extents(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a file between two offsets that hold data; all of it where holes are not told."""
    if not hasattr(os, "SEEK_DATA"):
        yield start, end
        return
    while start < end:
        try:
            begin = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: holes to the end; else this system does not tell
                yield start, end
            return
        if begin >= end:
            return
        stop = min(os.lseek(descriptor, begin, os.SEEK_HOLE), end)
        yield begin, stop
        start = stop


def _copy_range(source: int, target: int, start: int, stop: int, shift: int) -> None:
    """Copy bytes between files inside the system where it can, else in chunks."""
    inside = hasattr(os, "copy_file_range")
    while start < stop:
        if inside:
            try:
                count = os.copy_file_range(source, target, stop - start, start, start + shift)
            except OSError as error:
                if error.errno not in _CANNOT_COPY:
                    raise
                count = 0
            # 0 within a file: some file systems say so where they cannot.
            inside = count > 0
            start += count
            continue
        data = os.pread(source, min(CHUNK_BYTES, stop - start), start)
        if not data:
            raise FuseError("weights were cut short while they were copied")
        written = 0
        while written < len(data):
            written += os.pwrite(target, data[written:], start + shift + written)
        start += len(data)
