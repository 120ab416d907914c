"""SkipLayerNormalization of onnxruntime's CPU provider beside Add and LayerNormalization, as ratios.

    python tests/bench/skip_layer_norm.py

One thread; the processor time of the calling thread is read, so other work on the machine does not count.
Each figure is the median of pairs run in turn, with the tenth and the ninetieth percentile. What it prints is
the source of `prefer: add_norm` in chips/ort-cpu.yaml.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

WIDTHS = (256, 768, 1024, 4096)
ROWS = (8, 128, 512)
PAIRS = 21
#: How long one measurement of a side takes at least, in seconds.
LEAST = 2e-3


class Ratio(NamedTuple):
    """Processor time of the fused kernel over that of its parts."""

    low: float
    median: float
    high: float


def session(rows: int, width: int, fused: bool, rms: bool = False) -> Callable[[], object]:
    """A run of one of the two sides."""
    weights = ["gamma"] if rms else ["gamma", "beta"]
    kind = "RMSNormalization" if rms else "LayerNormalization"
    skip = "SkipSimplifiedLayerNormalization" if rms else "SkipLayerNormalization"
    if fused:
        nodes = [helper.make_node(skip, ["x", "r", *weights], ["y"], domain="com.microsoft", epsilon=1e-5)]
    else:
        nodes = [
            helper.make_node("Add", ["x", "r"], ["sum"]),
            helper.make_node(kind, ["sum", *weights], ["y"], epsilon=1e-5),
        ]
    shape = [1, rows, width]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "r")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.ones(width, np.float32), name) for name in weights],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(0)
    feeds = {name: draw.standard_normal(shape).astype(np.float32) for name in ("x", "r")}
    return lambda: made.run(None, feeds)


def ratio(rows: int, width: int, rms: bool = False, pairs: int = PAIRS) -> Ratio:
    """The fused kernel over its parts, for one shape."""
    fused, parts = (session(rows, width, side, rms) for side in (True, False))
    times = max(1, int(LEAST / max(min(_time(parts, 1) for _ in range(5)), 1e-7)))
    found = [_time(fused, times) / _time(parts, times) for _ in range(pairs)]
    tenths = statistics.quantiles(found, n=10)
    return Ratio(tenths[0], statistics.median(found), tenths[-1])


def _time(run: Callable[[], object], times: int) -> float:
    start = time.thread_time()
    for _ in range(times):
        run()
    return time.thread_time() - start


def main() -> None:
    print(f"onnxruntime {ort.__version__}: SkipLayerNormalization over Add and LayerNormalization")
    for width in WIDTHS:
        for rows in ROWS:
            found = ratio(rows, width)
            said = f"{found.median:.1f} ({found.low:.1f} to {found.high:.1f})"
            print(f"  {rows:>3} rows of {width:>4}: {said}")


if __name__ == "__main__":
    main()
