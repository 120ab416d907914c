"""The operator sets a model is written in."""

from __future__ import annotations

from sys import intern

import onnx

from fuse.types import FuseError

OLDEST = 7


def read_opsets(model: onnx.ModelProto) -> dict[str, int]:
    """Domain ("" for ai.onnx) -> version. Errors: ai.onnx before 7 or newer than onnx knows."""
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else intern(entry.domain)
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise FuseError(
                f"domain {domain or 'ai.onnx'!r} is imported as opset {opsets[domain]} and as {entry.version}"
            )
    newest = onnx.defs.onnx_opset_version()
    version = opsets.get("")
    if version is not None and version < OLDEST:
        raise FuseError(f"opset {version} is not supported, the oldest is {OLDEST}; convert the model first")
    if version is not None and version > newest:
        raise FuseError(f"opset {version} is newer than {newest}, the newest that the installed onnx knows")
    return opsets
