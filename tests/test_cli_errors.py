"""Bad input to the command: one line, exit code 2, and nothing touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Run
from made_reports import mixed

import fuse
from fuse.commands.examples import EXAMPLES, HERE

LLAMA = HERE / EXAMPLES["llama"].file


def bad_report(folder: Path) -> Path:
    path = folder / "bad.json"
    path.write_text('{"version": 7}')
    return path


BAD: dict[str, tuple[list[object], str]] = {
    "no model": (["optimize", "--chip", "any"], "no model: give a file, or --example llama"),
    "no chip": (["optimize", LLAMA], "no chip: give --chip NAME; `fuse chips` lists them"),
    "no such file": (["optimize", "nope.onnx", "--chip", "any"], "nope.onnx"),
    "a folder": (["optimize", "{tmp}", "--chip", "any"], "{tmp}"),
    "no model in it": (["optimize", "{tmp}/text.onnx", "--chip", "any"], "text.onnx"),
    "unknown chip": (["optimize", LLAMA, "--chip", "ort-cpv"], "ort-cpv"),
    "unknown rule held": (["optimize", LLAMA, "--chip", "any", "--hold", "rms_nrm"], "rms_norm"),
    "dim without size": (
        ["optimize", LLAMA, "--chip", "any", "--dim", "batch"],
        "--dim batch: want NAME=SIZE",
    ),
    "dim of no number": (["optimize", LLAMA, "--chip", "any", "--dim", "batch=x"], "got 'x'"),
    "dim of zero": (["optimize", LLAMA, "--chip", "any", "--dim", "batch=0"], "at least 1"),
    "dim twice": (["optimize", LLAMA, "--chip", "any", "--dim", "b=1", "--dim", "b=2"], "b is 1 already"),
    "dim of no size": (["optimize", LLAMA, "--chip", "any", "--dim", f"batch={1 << 63}"], "want at most"),
    "unknown dim": (["optimize", LLAMA, "--chip", "any", "--dim", "batsch=1"], "batsch"),
    "unknown example": (["optimize", "--example", "lama", "--chip", "any"], "did you mean llama"),
    "two models": (["optimize", LLAMA, "--example", "llama", "--chip", "any"], "want one of them"),
    "onto the input": (["optimize", "{tmp}/m.onnx", "--chip", "any", "-o", "{tmp}/m.onnx"], "would replace"),
    "report onto input": (
        ["optimize", "{tmp}/m.onnx", "--chip", "any", "--report", "{tmp}/m.onnx"],
        "would replace",
    ),
    "report onto out": (
        ["optimize", LLAMA, "--chip", "any", "-o", "{tmp}/a", "--report", "{tmp}/a"],
        "would replace",
    ),
    "out in no folder": (["optimize", LLAMA, "--chip", "any", "-o", "{tmp}/no/a.onnx"], "no folder"),
    "out without a name": (["optimize", LLAMA, "--chip", "any", "-o", ""], "want the name of a file"),
    "out is a folder": (["optimize", LLAMA, "--chip", "any", "-o", "{tmp}"], "it is a folder"),
    "report is a folder": (["optimize", LLAMA, "--chip", "any", "--report", "{tmp}"], "it is a folder"),
    "report to a device": (["optimize", LLAMA, "--chip", "any", "--report", "/dev/null"], "no regular file"),
    "out to a device": (["optimize", LLAMA, "--chip", "any", "-o", "/dev/null"], "no regular file"),
    "a model that is a device": (["optimize", "/dev/zero", "--chip", "any"], "/dev/zero is a device"),
    "a report that is a device": (["report", "/dev/zero"], "cannot read /dev/zero: it is a device"),
    "report onto the weights": (
        ["optimize", LLAMA, "--chip", "any", "-o", "{tmp}/a", "--report", "{tmp}/a.data"],
        "would replace",
    ),
    "too long a name": (["optimize", LLAMA, "--chip", "any", "-o", "{tmp}/" + "n" * 300], "name too long"),
    "no report": (["report", "nope.json"], "cannot read nope.json: no such file or directory"),
    "not a report": (["report", "{tmp}/text.onnx"], "is no fuse report"),
    "another version": (["report", "{tmp}/bad.json"], "version: input should be 1"),
    "unknown form": (["report", "{tmp}/r.json", "--form", "pdf"], "want one of text, concise, json, jsonl"),
    "unknown outcome": (["report", "{tmp}/r.json", "--outcome", "lost"], "fired, held, refused, near"),
    "unknown rule": (["report", "{tmp}/r.json", "--rule", "rms_nrm"], "nearest: rms_norm"),
    "unknown op": (["report", "{tmp}/r.json", "--at", "square9"], "square9"),
    "why of nothing": (["why", "{tmp}/r.json", "square99"], "nearest: square"),
    "why with a chip": (["why", "{tmp}/r.json", "rms_norm", "--chip", "m3"], "--chip has nothing to do"),
    "rules of nothing": (["rules", "rms_nrm"], "nearest: rms_norm"),
    "chips of nothing": (["chips", "anny"], "any"),
    "codes of nothing": (["codes", "oprand"], "nearest: operand"),
    "steps of no chip": (["steps"], "no chip"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "text.onnx").write_text("this is no model\n" * 9)
    (tmp_path / "m.onnx").write_bytes(LLAMA.read_bytes())
    (tmp_path / "r.json").write_text(mixed().report().model_dump_json())
    bad_report(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    words, wanted = BAD[name]
    said = run(*(str(word).replace("{tmp}", str(tmp_path)) for word in words))
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert wanted.replace("{tmp}", str(tmp_path)) in said.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "words",
    [["optimize", "--frob"], ["frob"], ["why", "r.json"], ["report"], ["optimize", LLAMA, "--seed", "-1"]],
)
def test_usage_errors_are_exit_code_2(run: Run, words: list[str]) -> None:
    said = run(*words)
    assert said.code == 2
    assert "Usage: fuse" in said.err


def test_a_folder_that_may_not_be_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o500)
    if os.geteuid() == 0:  # root may write everywhere: the system's answer is given in its place

        def refuse(path: object, *_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr("fuse.commands.output.open", refuse, raising=False)
    said = run("optimize", LLAMA, "--chip", "any", "--report", tmp_path / "r.json")
    assert (said.code, said.out) == (2, "")
    assert "permission denied" in said.err


def test_nothing_is_left_where_writing_fails(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "out.onnx")

    monkeypatch.setattr(fuse, "save", full, raising=False)
    (tmp_path / "r.json").write_text("old")
    said = run(
        "optimize", LLAMA, "--chip", "any", "-o", tmp_path / "out.onnx", "--report", tmp_path / "r.json"
    )
    assert said.code == 2
    assert "no space left on device" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    assert (tmp_path / "r.json").read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_no_model_is_written_where_its_report_finds_no_room(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> object:
        return open("/dev/full", "w")

    monkeypatch.setattr("fuse.commands.output.open", full, raising=False)
    said = run("optimize", LLAMA, "--chip", "any", "-o", tmp_path / "m.onnx", "--report", tmp_path / "r.json")
    assert (said.code, said.out) == (2, "")
    assert "r.json: no space left on device" in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_standard_output_without_room_is_named() -> None:
    with open("/dev/full", "w") as full:
        line = [sys.executable, "-m", "fuse.cli", "rules"]
        said = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert said.returncode == 2
    assert said.stderr == "error: cannot write standard output: no space left on device\n"


def test_python_without_docstrings_is_refused() -> None:
    """A report quotes them: without them every refusal would want nothing."""
    line = [sys.executable, "-OO", "-m", "fuse.cli", "optimize", "--example", "bert", "--chip", "any"]
    said = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (2, "")
    assert "python -OO drops them" in said.stderr
    assert said.stderr.count("\n") == 1
