"""Times fuse beside onnxruntime's own optimizer on models that it makes, and compares.

    python tests/bench/side_by_side.py [--layers 4,16,64,256] [--chip any] [--repeats 3]

CPU seconds of load, optimize and save: the median, each optimizer in a process of its own after a
warm-up on the smallest model. What counts are ratios: fuse to onnxruntime on one machine, and the cost a
node of the largest model to that of the smallest of over 800 nodes. Exit code 1 where that growth is 1.3
or more.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

#: How much more a node may cost in the largest model than in the smallest.
GROWTH = 1.3
#: Models of fewer nodes are all start-up.
LEAST_NODES = 800

Run = Callable[[str, str], None]


def fuse_run(chip: str) -> Run:
    import chips
    import fuse

    shim = chips.load(chip)
    return lambda source, target: fuse.save(fuse.optimize(fuse.load(source), shim=shim), target)


def onnxruntime_run() -> Run:
    import onnxruntime

    def run(source: str, target: str) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = target
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    return run


def work(who: str, chip: str, source: str, warm: str, repeats: int) -> None:
    """What a process of its own does: the times of one optimizer on one model, as JSON."""
    run = fuse_run(chip) if who == "fuse" else onnxruntime_run()
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder) / "out.onnx")
        run(warm, target)
        times = []
        for _ in range(repeats):
            started = time.process_time()
            run(source, target)
            times.append(time.process_time() - started)
    print(json.dumps({"seconds": statistics.median(times), "peak": peak_mb()}))


def peak_mb() -> int:
    """The peak memory of this process itself; getrusage counts that of the parent it started from too."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 20
    lines = status.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10


def measured(who: str, chip: str, source: Path, warm: Path, repeats: int) -> dict[str, float]:
    words = [sys.executable, __file__, "--work", who, str(source), str(warm), "--chip", chip]
    done = subprocess.run([*words, "--repeats", str(repeats)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def told(who: str, found: dict[str, float], nodes: int) -> str:
    return f"{who} {1000 * found['seconds'] / nodes:.3f} ms a node, {found['peak']} MB"


def compare(layers: list[int], chip: str, repeats: int) -> int:
    import onnx
    from scale_model import scale_model

    costs: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        files: list[tuple[Path, int]] = []
        for number in layers:
            model = scale_model(number)
            path = Path(folder) / f"llama-{number}.onnx"
            onnx.save(model, path)
            files.append((path, len(model.graph.node)))
        for number, (path, nodes) in zip(layers, files, strict=True):
            ours = measured("fuse", chip, path, files[0][0], repeats)
            theirs = measured("onnxruntime", chip, path, files[0][0], repeats)
            if nodes >= LEAST_NODES:
                costs.append(ours["seconds"] / nodes)
            cells = [f"{number:4d} layers  {nodes:6d} nodes", told("fuse", ours, nodes)]
            cells += [told("onnxruntime", theirs, nodes), f"ratio {ours['seconds'] / theirs['seconds']:.2f}"]
            print("   ".join(cells), flush=True)
    growth = costs[-1] / costs[0] if costs else 1.0
    print(f"cost a node, largest to smallest: {growth:.2f} (under {GROWTH})")
    return int(growth >= GROWTH)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", default="4,16,64,256")
    parser.add_argument("--chip", default="any")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        who, source, warm = asked.work
        work(who, asked.chip, source, warm, asked.repeats)
        return 0
    return compare([int(number) for number in asked.layers.split(",")], asked.chip, asked.repeats)


if __name__ == "__main__":
    sys.exit(main())
