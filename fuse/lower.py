"""From a graph back to an ONNX model that any runtime can run, and onto disk.

A fused op becomes a call of a local function over its parts (domain `fuse`), one function for each
structure; `onnx.inliner.inline_local_functions` gives the parts back. Everything else is what the
file had. What a fused node stands for is in its metadata:

fuse.fused   op type and name of each node it replaces, the root first, separated by ", "
fuse.rule    the rule that made it
fuse.class   the class it is of
fuse.kernel  what a chip's own rules set for its kernel, as `name=value`, separated by ", "; where they did
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import onnx

from fuse.engine.collecting import no_collecting
from fuse.ir import Graph, Model
from fuse.lowering.files import replacing, write_data, write_model
from fuse.lowering.model import Lowered, lowered
from fuse.lowering.tensors import DataFile, Place, keep
from fuse.types import FuseError
from fuse.version import VERSION

#: A protobuf message, and so a model with its inline weights, is smaller than this.
MODEL_LIMIT_BYTES = (1 << 31) - 1


class HasGraph(Protocol):
    """What `optimize` gives: a graph, and the rule that built each fused op of it, by path."""

    @property
    def graph(self) -> Graph: ...

    @property
    def rules(self) -> Mapping[str, str]: ...


def to_proto(source: Graph | HasGraph, rules: Mapping[str, str] | None = None) -> onnx.ModelProto:
    """The model of a graph. External weights stay where they are: their locations are relative to
    the folder of the model that was loaded.

    rules: path of a fused op -> the rule that made it, in place of what `optimize` says.
    Raises FuseError for a graph that has no form in ONNX.
    """
    model, initializers = _lowered(source, keep, rules)
    model.graph.initializer.extend(initializers)
    return model


@no_collecting()
def save(source: Graph | HasGraph, path: str | bytes | os.PathLike[str]) -> None:
    """Write a graph, or what `optimize` gave, as an ONNX file, whole or not at all.

    External weights that are still read are copied into one file beside it, `<name>.data`; so are
    inline ones where the model would be 2 GB or more. Where it needs none, an older one stays: another
    model may read it. Raises FuseError where the target cannot be
    written, or is the model that was loaded or holds its weights: those are never touched.
    """
    target = Path(os.fsdecode(path))
    graph = _graph(source)
    _check_target(target, graph.base.model)
    beside = target.with_name(target.name + ".data")
    for spill in (False, True):
        data = DataFile(beside.name, graph.base.model.folder, spill=spill)
        result = _lowered(source, data.place, None)
        if _size(result) < MODEL_LIMIT_BYTES:
            break
    else:
        raise FuseError(f"cannot write {target}: the graph without its weights is over 2 GB")
    if not data.pieces:
        with replacing(target) as (file,):
            write_model(file, result)
        return
    _check_target(beside, graph.base.model)
    for weights in data.sources():
        for written in (target, beside):
            if written.exists() and weights.exists() and written.samefile(weights):
                raise FuseError(f"cannot write {written}: it holds the weights of the model that was loaded")
    with replacing(beside, target) as (data_file, file):
        write_data(data_file, data.pieces, data.size)
        write_model(file, result)


def _graph(source: Graph | HasGraph) -> Graph:
    return source if isinstance(source, Graph) else source.graph


def _lowered(source: Graph | HasGraph, place: Place, rules: Mapping[str, str] | None) -> Lowered:
    if rules is None:
        rules = {} if isinstance(source, Graph) else source.rules
    return lowered(_graph(source), rules, place, VERSION)


def _size(result: Lowered) -> int:
    """Bytes of the model as it will be written; a bound from above."""
    total = 16 * (len(result.initializers) + 1)
    for message in (result.model, *result.initializers):
        total += int(message.ByteSize())
    return total


def _check_target(target: Path, model: Model) -> None:
    """Refuse a target that cannot be a file, or that is the model itself."""
    if not os.path.isdir(target.parent):
        raise FuseError(f"cannot write {target}: {target.parent} is not a folder")
    if os.path.isdir(target):
        raise FuseError(f"cannot write {target}: it is a folder")
    if not os.path.exists(target):
        return
    if not os.path.isfile(target):
        raise FuseError(f"cannot write {target}: it is no regular file")
    if model.path is not None and os.path.exists(model.path) and os.path.samefile(target, model.path):
        raise FuseError(f"cannot write {target}: the model was loaded from there")
