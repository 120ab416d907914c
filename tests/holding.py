"""Holds what the table makes of a model: values by the reference and on onnxruntime, outputs as they were."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lowering_models
import numpy as np
import onnx
from onnx import ModelProto

import chips
import fuse
import reference
from fuse.engine.compiler import Optimized
from fuse.ir import Op
from reference.compare import difference


def held(
    model: ModelProto,
    chip: str = "any",
    feeds: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    runtime: bool = True,
    close: bool = True,
) -> Optimized:
    """The model optimized for a chip, its values kept: by parts bit for bit, by definition within the
    tolerance of the type, and on onnxruntime, whose results the saved file gives bit for bit.

    dims: sizes of symbolic dims in the feeds. runtime: False where onnxruntime cannot run the model.
    close: False where its kernels compute another thing than the operators' definitions say.
    """
    found = fuse.optimize(fuse.load(model), shim=chips.load(chip))
    found.graph.verify()
    given = reference.feeds(found.before, 0, dims) if feeds is None else dict(feeds)
    assert reference.check(found.before, found.graph, given).bit_equal
    saved = _saved(found)
    assert [o.name for o in saved.graph.output] == [o.name for o in model.graph.output]
    for new, old in zip(saved.graph.output, model.graph.output, strict=True):
        assert new.type.tensor_type.elem_type == old.type.tensor_type.elem_type
        if old.type.tensor_type.HasField("shape"):
            assert new.type.tensor_type.shape == old.type.tensor_type.shape
    if runtime:
        fed = {name: value for name, value in given.items() if value is not None}
        wanted = lowering_models.run(model, fed)
        lowering_models.same(lowering_models.run(saved, fed), wanted)
        for name, value in reference.eval(found.graph, given).items() if close else ():
            apart = difference(np.asarray(value), wanted[name])
            assert not apart.reason, f"{name}: the reference and onnxruntime: {apart.reason}"
    return found


def _saved(found: Optimized) -> ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        fuse.save(found, path)
        return onnx.load(path)


def counts(found: Optimized) -> Counter[str]:
    """Class -> how often it fired."""
    return Counter(record.builds for record in found.records if record.outcome == "fired")


def nothing(found: Optimized, *names: str) -> None:
    """None of these rules or classes fired."""
    for name in names:
        assert not found.report.fired(name), found.report.fired(name)


def missed(found: Optimized, rule: str) -> set[str]:
    """The codes of a rule's near misses."""
    return {row.reasons[0].code for row in found.report.near(rule)}


def refused(found: Optimized, name: str) -> set[str]:
    """The codes of every limit by which the chip refuses a rule or class."""
    return {reason.code for row in found.report.refused(name) for reason in row.reasons}


def built(found: Optimized, kind: str) -> Op:
    """The first op of a class that fired."""
    rows = [r for r in found.records if r.outcome == "fired" and r.builds == kind]
    assert rows, found.report.fired(kind)
    op = rows[0].op
    assert op is not None
    return op


def inside(op: Op, value: str) -> bool:
    """Whether a fused op computes a value."""
    return any(value in leaf.outputs for leaf in fuse.leaves(op))
