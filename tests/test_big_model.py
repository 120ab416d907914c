"""A model with 8 GB of weights is optimized and saved without holding any of them."""

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

#: The peak of the process itself, in KiB: that of getrusage counts its parent's memory too, since it starts
#: as a copy of it.
SCRIPT = """
import sys
import chips, fuse
source, target = sys.argv[1:]
found = fuse.optimize(fuse.load(source), shim=chips.load("any"))
assert len(found.report.fired("matmul_bias")) == LAYERS
fuse.save(found, target)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
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
    tensors.append(onnx.helper.make_tensor("b", onnx.TensorProto.FLOAT, [WIDTH], [0.5] * WIDTH))
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


@pytest.mark.skipif(
    not (hasattr(os, "SEEK_HOLE") and Path("/proc/self/status").exists()),
    reason="without sparse files this takes 16 GB of disk",
)
def test_8_gb_of_weights_are_optimized_and_saved_in_300_mb(tmp_path: Path) -> None:
    source, target = sparse_model(tmp_path), tmp_path / "saved.onnx"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("LAYERS", str(LAYERS)), str(source), str(target)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < LIMIT_MB << 10

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
