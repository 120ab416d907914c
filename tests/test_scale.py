"""The model that the benchmark makes: every layer of it fuses, however many there are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import chips
import fuse
import reference


def bench_model() -> ModuleType:
    path = Path(__file__).parent / "bench" / "scale_model.py"
    spec = importlib.util.spec_from_file_location("scale_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("layers", [1, 3])
def test_every_layer_fuses(layers: int) -> None:
    graph = fuse.load(bench_model().scale_model(layers))
    found = fuse.optimize(graph, shim=chips.load("any"))
    counts = {name: len(found.report.fired(name)) for name in ("rms_norm", "rope", "attention", "swiglu")}
    wanted = {"rms_norm": 2 * layers + 1, "rope": 2 * layers, "attention": layers, "swiglu": layers}
    assert counts == wanted
    assert len(found.report.fired("add_norm")) == 2 * layers
    assert reference.check(graph, found.graph).bit_equal
