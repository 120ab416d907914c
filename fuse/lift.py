"""Lifting: an ONNX model as a graph, with types, contents, and little left that multiplies patterns.

What lifting does to the file's nodes is counted in `Model.lifting`; nothing is renamed and no two
equal nodes are joined. Weights are not read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fuse.engine.collecting import no_collecting
from fuse.ir import Graph
from fuse.lifting.draft import read_graph
from fuse.lifting.finish import finish
from fuse.lifting.functions import inline
from fuse.lifting.opsets import read_opsets
from fuse.lifting.source import Source, read_source, refuse_undecodable
from fuse.lifting.tensors import Weights
from fuse.lifting.walk import Lift
from fuse.types import FuseError

if TYPE_CHECKING:
    import onnx
    import onnx_ir


def load(source: str | os.PathLike[str] | onnx.ModelProto | onnx_ir.Model) -> Graph:
    """The graph of an ONNX model, opset 7 to the newest.

    External data is only looked at (is the file there, is it long enough), never read, except
    for tensors of at most 16 elements, which shapes may depend on.

    Errors (FuseError, one line that names the thing): what cannot be read as an ONNX model, a
    value nobody makes, one made twice, a cycle, an opset before 7, missing external data or some
    outside the model's folder.
    """
    with no_collecting():
        given = read_source(source)
        try:
            return _lifted(given)
        except TypeError:
            # Protobuf hands over text that is no utf-8 as bytes. To look at every text beforehand
            # would take as long as lifting does.
            refuse_undecodable(given.proto)
            raise


def _lifted(given: Source) -> Graph:
    if not given.proto.HasField("graph"):
        raise FuseError(f"{given.name} has no graph")
    proto, inlined = inline(given.proto)
    weights = Weights(given.folder, given.real_folders)
    opsets = read_opsets(proto)
    draft = read_graph(proto.graph, weights)
    if not draft.outputs:
        raise FuseError(f"the graph of {given.name} has no outputs")
    lift = Lift(proto, opsets, draft, weights)
    lift.counts["functions"] = inlined
    graph = lift.graph(draft, None, ())
    return finish(graph, given, proto, opsets, weights, lift)
