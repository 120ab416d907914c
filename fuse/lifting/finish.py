"""What is said of the whole model once every graph of it is lifted."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import onnx

from fuse.ir import Graph, Model
from fuse.lifting.source import Source
from fuse.lifting.tensors import Weights
from fuse.lifting.walk import COUNTED, Lift


def finish(
    graph: Graph, given: Source, proto: onnx.ModelProto, opsets: dict[str, int], weights: Weights, lift: Lift
) -> Graph:
    """The graph with its model, which all bodies share."""
    model = Model(
        name=given.name,
        sha256=_digest(given.sha256, weights),
        opsets=opsets,
        ir_version=proto.ir_version,
        nodes=lift.nodes,
        proto=proto,
        path=given.path,
        folder=given.folder,
        conflicts=tuple(lift.conflicts.lines),
        lifting={name: lift.counts[name] for name in COUNTED},
    )
    for one in (*graph.bodies(), graph):
        one.base = replace(one.base, model=model)
    return graph


def _digest(sha256: str, weights: Weights) -> str:
    """The digest of the model, with the names and sizes of the files beside it (not their bytes)."""
    if not weights.sizes:
        return sha256
    digest = hashlib.sha256(sha256.encode())
    for location, size in sorted(weights.sizes.items()):
        digest.update(f"\n{location}\t{size}".encode())
    return digest.hexdigest()
