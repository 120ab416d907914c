"""A model with 8 GB of weights is rewritten and saved without holding any of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

LAYERS, WIDTH = 32, 8192
WEIGHT_BYTES = WIDTH * WIDTH * 4
LIMIT_MB = 300
#: Kilobytes where ru_maxrss counts them, bytes on macOS.
RSS_UNIT = 1 if sys.platform == "darwin" else 1024

SCRIPT = """
import resource, sys
from fuse.lift import load
from fuse.lower import save
sys.path.insert(0, {tests!r})
from lowering_models import fused
graph = load({source!r})
for layer in range({layers}):
    value = f"v{{layer - 1}}" if layer else "x"
    fused(graph, "matmul_bias", f"p{{layer}} v{{layer}}", f"{{value}} w{{layer}} b")
save(graph, {target!r})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def sparse_model(folder: Path) -> Path:
    """Products of 8192 x 8192; the data file is holes but for a mark at each end of each weight."""
    info = onnx.helper.make_tensor_value_info
    nodes, tensors, value = [], [], "x"
    with open(folder / "weights.bin", "wb") as data:
        data.truncate(LAYERS * WEIGHT_BYTES)
        for layer in range(LAYERS):
            tensor = onnx.TensorProto(name=f"w{layer}", data_type=onnx.TensorProto.FLOAT, dims=[WIDTH, WIDTH])
            _external(tensor, layer)
            tensors.append(tensor)
            nodes.append(
                onnx.helper.make_node("MatMul", [value, tensor.name], [f"p{layer}"], f"product{layer}")
            )
            nodes.append(onnx.helper.make_node("Add", [f"p{layer}", "b"], [f"v{layer}"], f"bias{layer}"))
            value = f"v{layer}"
            for at in (layer * WEIGHT_BYTES, (layer + 1) * WEIGHT_BYTES - 4):
                data.seek(at)
                data.write(mark(layer, at))
    tensors.append(onnx.helper.make_tensor("b", onnx.TensorProto.FLOAT, [1], [0.5]))
    graph = onnx.helper.make_graph(
        nodes, "big", [info("x", 1, ["B", WIDTH])], [info(value, 1, ["B", WIDTH])], tensors
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    path = folder / "big.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _external(tensor: onnx.TensorProto, layer: int) -> None:
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entries = {"location": "weights.bin", "offset": layer * WEIGHT_BYTES, "length": WEIGHT_BYTES}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))


def mark(layer: int, at: int) -> bytes:
    return (layer * 2 + 1 + (at % WEIGHT_BYTES > 0)).to_bytes(4, "little")


@pytest.mark.skipif(not hasattr(os, "SEEK_HOLE"), reason="without sparse files this takes 16 GB of disk")
def test_8_gb_of_weights_are_saved_in_300_mb(tmp_path: Path):
    source, target = sparse_model(tmp_path), tmp_path / "saved.onnx"
    tests = Path(__file__).parent
    script = SCRIPT.format(tests=str(tests), source=str(source), target=str(target), layers=LAYERS)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tests.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * RSS_UNIT < LIMIT_MB << 20

    saved = onnx.load(target, load_external_data=False)
    assert len(saved.functions) == 1
    assert {node.op_type for node in saved.graph.node} == {saved.functions[0].name}
    data = tmp_path / "saved.onnx.data"
    assert data.stat().st_size == LAYERS * WEIGHT_BYTES
    assert data.stat().st_blocks * 512 < 64 << 20, "the copy is not sparse"
    weights = [tensor for tensor in saved.graph.initializer if tensor.external_data]
    assert len(weights) == LAYERS
    with open(data, "rb") as file:
        for tensor in weights:
            layer = int(tensor.name.removeprefix("w"))
            offset = int(next(e.value for e in tensor.external_data if e.key == "offset"))
            for at in (0, WEIGHT_BYTES - 4):
                file.seek(offset + at)
                assert file.read(4) == mark(layer, at)
