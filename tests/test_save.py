"""Saving: whole or not at all, weights beside the model, the loaded file never touched."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from lowering_models import NORMS, fused, parse, run, same

from fuse import lower
from fuse.lift import load
from fuse.lower import save, to_proto
from fuse.lowering import files
from fuse.types import FuseError

ROWS = 4096
X = {"x": np.random.default_rng(0).standard_normal((2, 64), np.float32)}


def weighted(folder: Path, *, external: bool = True) -> Path:
    """A model of four products; two weights are the same bytes of its data file, one is not read."""
    random = np.random.default_rng(2)
    weights = {name: random.standard_normal((64, 64), np.float32) for name in ("a", "b", "unread", "c")}
    info = onnx.helper.make_tensor_value_info
    steps = [("x", "a", "p"), ("p", "b", "q"), ("q", "c", "r"), ("r", "tied", "y")]
    nodes = [onnx.helper.make_node("MatMul", [x, w], [y], f"step_{y}") for x, w, y in steps]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    tensors.append(onnx.numpy_helper.from_array(weights["a"], "tied"))
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, ["B", 64])], [info("y", 1, ["B", 64])], tensors)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    path = folder / "model.onnx"
    if external:
        data = b"".join(array.tobytes().ljust(ROWS * 5, b"\x11") for array in weights.values())
        (folder / "weights.bin").write_bytes(data)
        for tensor, place in zip(model.graph.initializer, (0, 1, 2, 3, 0), strict=True):
            onnx.external_data_helper.set_external_data(tensor, "weights.bin", place * ROWS * 5, 64 * 64 * 4)
            tensor.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_small_model_is_one_file(tmp_path: Path):
    graph = load(parse(NORMS))
    save(graph, tmp_path / "out.onnx")
    assert os.listdir(tmp_path) == ["out.onnx"]
    assert onnx.load(tmp_path / "out.onnx") == to_proto(graph)


def test_initializers_are_written_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "BATCH_BYTES", 20_000)
    graph = load(weighted(tmp_path, external=False))
    save(graph, tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx") == to_proto(graph)


def test_external_weights_move_to_one_file_beside_the_target(tmp_path: Path):
    source, target = weighted(tmp_path), tmp_path / "sub" / "out.onnx"
    target.parent.mkdir()
    before = {path.name: path.read_bytes() for path in (source, tmp_path / "weights.bin")}
    graph = load(source)
    fused(graph, "pair", "p q", outputs="q")
    save(graph, target)
    assert sorted(os.listdir(target.parent)) == ["out.onnx", "out.onnx.data"]
    saved = onnx.load(target, load_external_data=False)
    places = {t.name: {e.key: e.value for e in t.external_data} for t in saved.graph.initializer}
    assert {place["location"] for place in places.values()} == {"out.onnx.data"}
    assert set(places) == {"a", "b", "c", "tied"}
    assert places["a"] == places["tied"]
    assert (target.parent / "out.onnx.data").stat().st_size < 4 * 64 * 64 * 4
    same(run(str(target), X), run(str(source), X))
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    save(load(target), target.parent / "again.onnx")
    same(run(str(target.parent / "again.onnx"), X), run(str(source), X))


def test_to_proto_leaves_external_weights_where_they_are(tmp_path: Path):
    graph = load(weighted(tmp_path))
    assert {
        e.value for t in to_proto(graph).graph.initializer for e in t.external_data if e.key == "location"
    } == {"weights.bin"}


@pytest.mark.parametrize("system", ["copy_file_range", "chunks", "no holes"])
def test_every_way_of_copying_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str):
    source = weighted(tmp_path)
    if system == "chunks":
        monkeypatch.delattr(os, "copy_file_range", raising=False)
        monkeypatch.setattr(files, "CHUNK_BYTES", 1000)
    elif system == "no holes":
        monkeypatch.delattr(os, "SEEK_DATA", raising=False)
    save(load(source), tmp_path / "out.onnx")
    same(run(str(tmp_path / "out.onnx"), X), run(str(source), X))


def test_inline_weights_move_out_of_a_model_that_would_be_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = weighted(tmp_path, external=False)
    monkeypatch.setattr(lower, "MODEL_LIMIT_BYTES", 10_000)
    save(load(source), tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").stat().st_size < 10_000
    assert (tmp_path / "out.onnx.data").exists()
    same(run(str(tmp_path / "out.onnx"), X), run(str(source), X))
    monkeypatch.setattr(lower, "MODEL_LIMIT_BYTES", 100)
    with pytest.raises(FuseError, match="without its weights is over 2 GB"):
        save(load(source), tmp_path / "other.onnx")


def test_typed_data_is_packed_when_it_moves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    numbers = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT16, [16, 64], np.linspace(-1, 1, 1024))
    words = onnx.helper.make_tensor("s", onnx.TensorProto.STRING, [2], ["left", "right"])
    info = onnx.helper.make_tensor_value_info
    nodes = [
        onnx.helper.make_node("Cast", ["w"], ["y"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Identity", ["s"], ["z"]),
    ]
    outputs = [info("y", 1, [16, 64]), info("z", 8, [2])]
    graph = onnx.helper.make_graph(nodes, "g", [], outputs, [numbers, words])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    monkeypatch.setattr(lower, "MODEL_LIMIT_BYTES", 1200)
    save(load(model), tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").stat().st_size == 2048
    same(run(str(tmp_path / "out.onnx"), {}), run(model, {}))


@pytest.mark.parametrize("name", ["model.onnx", "link.onnx", "weights.bin"])
def test_what_was_loaded_is_never_written(tmp_path: Path, name: str):
    source = weighted(tmp_path)
    (tmp_path / "link.onnx").symlink_to(source)
    before = contents(tmp_path)
    with pytest.raises(FuseError, match=f"cannot write .*{name}: .*loaded"):
        save(load(source), tmp_path / name)
    assert contents(tmp_path) == before


def test_data_beside_the_target_may_not_be_the_weights_loaded(tmp_path: Path):
    source = weighted(tmp_path)
    (tmp_path / "weights.bin").rename(tmp_path / "out.onnx.data")
    model = onnx.load(source, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = "out.onnx.data"
    source.write_bytes(model.SerializeToString())
    before = contents(tmp_path)
    with pytest.raises(FuseError, match=r"out.onnx.data: it holds the weights of the model that was loaded"):
        save(load(source), tmp_path / "out.onnx")
    assert contents(tmp_path) == before


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path):
    graph = load(parse(NORMS))
    with pytest.raises(FuseError, match=r"cannot write .*nowhere/out.onnx: .*nowhere is not a folder"):
        save(graph, tmp_path / "nowhere" / "out.onnx")
    with pytest.raises(FuseError, match="it is a folder"):
        save(graph, tmp_path)


@pytest.mark.parametrize("name", ["/dev/null", "pipe"])
def test_a_target_that_is_no_file_is_never_replaced(tmp_path: Path, name: str):
    os.mkfifo(tmp_path / "pipe")
    target = tmp_path / name
    kind = target.stat().st_mode
    with pytest.raises(FuseError, match=f"cannot write .*{name}: it is no regular file"):
        save(load(parse(NORMS)), target)
    assert target.stat().st_mode == kind


def test_a_name_as_long_as_can_be(tmp_path: Path):
    save(load(parse(NORMS)), tmp_path / ("n" * 250 + ".onnx"))
    with pytest.raises(FuseError, match=r"cannot write .*nnn: file name too long"):
        save(load(parse(NORMS)), tmp_path / ("n" * 256))
    assert [len(path.name) for path in tmp_path.iterdir()] == [255]


def test_another_name_of_the_loaded_model_is_the_loaded_model(tmp_path: Path):
    """A hard link is; a file of that stem is not, nor what stands at the path once the model moved on."""
    source = weighted(tmp_path, external=False)
    graph = load(source)
    os.link(source, tmp_path / "other.onnx")
    with pytest.raises(FuseError, match=r"other.onnx: the model was loaded from there"):
        save(graph, tmp_path / "other.onnx")
    (tmp_path / "model.pb").write_bytes(b"old")
    save(graph, tmp_path / "model.pb")
    os.replace(source, tmp_path / "moved.onnx")
    save(graph, source)
    same(run(str(source), X), run(str(tmp_path / "moved.onnx"), X))


@pytest.mark.parametrize("old", [True, False])
def test_weights_stay_with_their_model_where_it_cannot_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool
):
    target = tmp_path / "sub" / "out.onnx"
    target.parent.mkdir()
    if old:
        target.write_bytes(b"old model")
        target.with_name("out.onnx.data").write_bytes(b"old weights")
    before = contents(target.parent)
    plain = os.replace

    def refuse(source: Path, place: Path) -> None:
        if place == target:
            raise PermissionError(1, "Operation not permitted")
        plain(source, place)

    graph = load(weighted(tmp_path))
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(FuseError, match=r"cannot write .*out.onnx: operation not permitted"):
        save(graph, target)
    assert contents(target.parent) == before
    monkeypatch.undo()
    save(graph, target)
    assert sorted(contents(target.parent)) == ["out.onnx", "out.onnx.data"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = weighted(tmp_path)
    target = tmp_path / "sub" / "out.onnx"
    target.parent.mkdir()
    target.write_bytes(b"old")
    graph = load(source)

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FuseError, match=r"cannot write .*out.onnx: no space left on device"):
        save(graph, target)
    monkeypatch.undo()
    assert contents(target.parent) == {"out.onnx": b"old"}

    (tmp_path / "weights.bin").write_bytes(b"cut short")
    with pytest.raises(FuseError, match=r"weights .*weights.bin end before weight a, at byte 16384"):
        save(graph, target)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(FuseError, match=r"cannot read weights .*weights.bin: no such file"):
        save(graph, target)
    assert contents(target.parent) == {"out.onnx": b"old"}


def test_external_weights_of_a_model_without_a_folder_cannot_be_copied(tmp_path: Path):
    model = onnx.load(weighted(tmp_path), load_external_data=False)
    with pytest.raises(FuseError, match=r"weight a lies in weights.bin, of a model without a folder"):
        save(load(model), tmp_path / "out.onnx")
