"""What `fuse bisect` can hold two compiles against each other by."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from fuse.commands.output import reason
from fuse.types import FuseError

if TYPE_CHECKING:
    import numpy as np

    from fuse import Graph, Optimized

NAMES = ("definition", "parts", "onnxruntime")
#: Stands for the rewritten model in a command line.
MODEL = "{model}"

#: A compile -> how its values differ from the lifted model's, in a sentence; empty where they agree.
Evaluation = Callable[["Optimized"], str]


def evaluation(
    name: str, command: str | None, graph: Graph, seed: int, tolerance: float | None
) -> Evaluation:
    """The evaluation of a name, or by a command. graph: lifted, its dims bound.

    tolerance: largest difference allowed, relative to the larger of 1 and the largest value; None: that
    of the element type. Raises FuseError for an unknown name or a command that names no model.
    """
    if command is not None:
        return _by_command(command)
    if name not in NAMES:
        raise FuseError(f"--eval {name}: want one of {', '.join(NAMES)}")
    import reference

    feeds = reference.feeds(graph, seed)
    if name == "onnxruntime":
        return _by_onnxruntime(graph, feeds, tolerance)
    wanted = reference.eval(graph, feeds)
    if name == "parts":
        return lambda optimized: _bits(reference.eval(optimized, feeds), wanted)
    return lambda optimized: apart(reference.eval(optimized, feeds, fused="definition"), wanted, tolerance)


def apart(got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], tolerance: float | None) -> str:
    """The first output that is off by more than is allowed, in a sentence."""
    from reference.compare import difference

    for name, want in wanted.items():
        found = difference(got[name], want)
        if tolerance is None and found.reason:
            return f"output {name}: {found.reason}"
        if tolerance is not None and found.error > tolerance:
            return f"output {name}: off by {found.error:.3g}, allowed {tolerance:.3g}"
    return ""


def _bits(got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> str:
    from reference.compare import bit_equal

    return next(
        (f"output {name}: other bits" for name in wanted if not bit_equal(got[name], wanted[name])), ""
    )


def _by_onnxruntime(graph: Graph, feeds: Mapping[str, np.ndarray], tolerance: float | None) -> Evaluation:
    """Both as files, run by onnxruntime without optimizations of its own."""
    wanted = _run(graph, feeds)
    return lambda optimized: apart(_run(optimized, feeds), wanted, tolerance)


def _run(source: Graph | Optimized, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    try:
        import onnxruntime as ort
    except ModuleNotFoundError as error:
        raise FuseError("--eval onnxruntime: onnxruntime is not installed") from error
    import fuse

    failures: tuple[type[Exception], ...] = (*_errors(), ValueError, RuntimeError)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    with TemporaryDirectory(prefix="fuse-") as folder:
        path = Path(folder) / "model.onnx"
        fuse.save(source, path)
        try:
            session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            names = [output.name for output in session.get_outputs()]
            known = {given.name for given in session.get_inputs()}
            results = session.run(names, {name: value for name, value in feeds.items() if name in known})
        except failures as error:
            raise FuseError(f"onnxruntime does not run it: {str(error).splitlines()[0]}") from error
    return dict(zip(names, results, strict=True))


def _errors() -> tuple[type[Exception], ...]:
    """The errors of onnxruntime, which have no base of their own."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return tuple(one for one in vars(state).values() if isinstance(one, type) and issubclass(one, Exception))


def _by_command(command: str) -> Evaluation:
    """A program that takes the model's file and exits with 0 where its values are right."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise FuseError(f"--command {command}: {str(error).lower()}") from error
    if not any(MODEL in word for word in words):
        raise FuseError(f"--command {command}: want {MODEL} where the model's file goes")

    def run(optimized: Optimized) -> str:
        import fuse

        with TemporaryDirectory(prefix="fuse-") as folder:
            path = Path(folder) / "model.onnx"
            fuse.save(optimized, path)
            line = [word.replace(MODEL, str(path)) for word in words]
            try:
                done = subprocess.run(line, capture_output=True, text=True, errors="replace", check=False)
            except OSError as error:
                raise FuseError(f"cannot run {line[0]}: {reason(error)}") from error
        if done.returncode == 0:
            return ""
        said = [text for text in (done.stdout + done.stderr).splitlines() if text.strip()]
        return f"exit {done.returncode}" + (f": {said[-1].strip()}" if said else "")

    return run
