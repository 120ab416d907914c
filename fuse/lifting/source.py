"""What was given to `load`, as one ModelProto: reading a file and saying what is wrong with it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import onnx
from google.protobuf.message import DecodeError, EncodeError, Message

from fuse.types import FuseError

#: First bytes of files that are often handed over by mistake -> what they are.
_SIGNATURES = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"PK\x03\x04": "a zip archive (a torch checkpoint?)",
    b"\x1f\x8b": "a gzip archive",
    b"\x89HDF": "an HDF5 file",
    b"%PDF": "a PDF",
    b"version https://git-lfs": "a Git LFS pointer; the model itself is not fetched",
}
#: A protobuf of a model starts with one of these fields: ir_version, opset_import, producer_name,
#: graph (field numbers 1, 8, 2, 7).
_FIRST_BYTES = frozenset(b"\x08\x42\x12\x3a")
#: Bytes of the largest message that protobuf reads.
LARGEST = 2**31 - 1
#: Input in the textual forms of onnx's own readers, by file ending.
_TEXT_ENDINGS = frozenset({".onnxtxt", ".onnxtext"})


class Source(NamedTuple):
    """A model as it was given.

    sha256: of the bytes of the file, or of the serialized proto. folder: where external data is
    looked for, None where nobody knows. real_folders: the folders its files may really lie in, symbolic
    links followed. path: of the file, None where it is none.
    """

    proto: onnx.ModelProto
    name: str
    sha256: str
    folder: str | None = None
    real_folders: tuple[str, ...] = ()
    path: str | None = None


def read_source(source: object) -> Source:
    """The model of a path, an onnx.ModelProto or an onnx_ir.Model."""
    if isinstance(source, onnx.ModelProto):
        return _of_proto(source, None)
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        return _of_file(Path(os.fsdecode(path) if isinstance(path, bytes) else path))
    if type(source).__module__.partition(".")[0] == "onnx_ir":
        return _of_onnx_ir(source)
    raise FuseError(f"a model is a path, a ModelProto or an onnx_ir.Model, not {type(source).__name__}")


def _of_proto(proto: onnx.ModelProto, folder: str | None) -> Source:
    try:
        data = proto.SerializeToString(deterministic=True)
    except (EncodeError, ValueError) as error:
        raise FuseError("the ModelProto holds over 2 GB; keep its weights as external data") from error
    real = (os.path.realpath(folder),) if folder is not None else ()
    return Source(proto, str(proto.graph.name or "model"), hashlib.sha256(data).hexdigest(), folder, real)


def _of_onnx_ir(model: object) -> Source:
    import onnx_ir

    if not isinstance(model, onnx_ir.Model):
        raise FuseError(f"of onnx_ir only a Model can be loaded, not {type(model).__name__}")
    values = (value.const_value for value in model.graph.initializers.values())
    folders = {os.fspath(value.base_dir) for value in values if isinstance(value, onnx_ir.ExternalTensor)}
    if len(folders) > 1:
        raise FuseError("the onnx_ir model has external data in more than one folder")
    folder = next(iter(folders), None)
    return _of_proto(onnx_ir.to_proto(model), os.path.abspath(folder) if folder is not None else None)


def _of_file(path: Path) -> Source:
    if os.path.isdir(path):
        raise FuseError(f"{path} is a folder, not a model file")
    try:
        found = path.stat()
        if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
            raise FuseError(f"{path} is a device, not a model file")
        if found.st_size > LARGEST:
            raise FuseError(
                f"{path} is over 2 GB, which protobuf cannot hold; keep its weights as external data"
            )
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FuseError(f"cannot read {path}: {reason.lower()}") from error
    if not data:
        raise FuseError(f"{path} is empty")
    proto = _parse(path, data)
    if not proto.HasField("graph"):
        raise FuseError(f"{path} has no graph")
    folder = os.path.abspath(path.parent)
    real = (os.path.realpath(folder), os.path.dirname(os.path.realpath(path)))
    name = os.fsencode(path.stem).decode("utf-8", "replace")
    return Source(proto, name, hashlib.sha256(data).hexdigest(), folder, real, os.path.abspath(path))


def _parse(path: Path, data: bytes) -> onnx.ModelProto:
    if path.suffix in _TEXT_ENDINGS:
        try:
            return onnx.parser.parse_model(data.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise FuseError(f"{path} is not text") from error
        except onnx.parser.ParseError as error:
            said = error.args[0] if error.args else b""
            said = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
            raise FuseError(f"{path} is not ONNX text: {' '.join(said.split())}") from error
    for signature, what in _SIGNATURES.items():
        if data.startswith(signature):
            raise FuseError(f"{path} is not an ONNX model but {what}")
    if data[4:8] == b"ORTM":
        raise FuseError(f"{path} is in onnxruntime's own format (.ort), not ONNX")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        if data[0] in _FIRST_BYTES:
            raise FuseError(f"{path} is damaged or cut short: its protobuf does not parse") from error
        raise FuseError(f"{path} is not an ONNX model") from error
    if not proto.HasField("graph") and not proto.ir_version and not proto.opset_import:
        raise FuseError(f"{path} is not an ONNX model")
    return proto


def refuse_undecodable(proto: Message) -> None:
    """Raise if any text in a model is not utf-8, and say which field has it."""
    waiting: list[Message] = [proto]
    while waiting:
        for field, value in waiting.pop().ListFields():
            values = (
                value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else (value,)
            )
            if field.type == field.TYPE_STRING:
                bad = next((text for text in values if isinstance(text, bytes)), None)
                if bad is not None:
                    raise FuseError(f"{field.containing_type.name}.{field.name} {bad!r} is not utf-8")
            elif field.type == field.TYPE_MESSAGE:
                waiting.extend(values)
