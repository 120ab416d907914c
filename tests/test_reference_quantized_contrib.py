"""Operators of com.microsoft over codes, against onnxruntime without its optimizations: code for code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.test_reference_ops import MS, close, normal, positive, run_ort, run_own, whole

F = np.float32
ONE, TWO, OUT = np.asarray(0.013, F), np.asarray(0.02, F), np.asarray(0.017, F)
NONE = np.asarray(0, np.int8)
POINT, OTHER = np.asarray(7, np.uint8), np.asarray(130, np.uint8)


def codes(*shape: int) -> np.ndarray:
    return whole(0, 256, *shape, dtype=np.uint8)


def signed(*shape: int) -> np.ndarray:
    return whole(-128, 128, *shape, dtype=np.int8)


IMAGE = codes(1, 3, 6, 5)
CASES: list[tuple[str, dict[str, Any], list[np.ndarray | None], int]] = [
    ("QLinearAdd", {}, [codes(9, 40), ONE, POINT, codes(40), TWO, OTHER, OUT, POINT], 1),
    ("QLinearAdd", {}, [signed(9, 40), ONE, NONE, signed(9, 40), TWO, NONE, OUT, NONE], 1),
    ("QLinearMul", {}, [codes(9, 40), ONE, POINT, codes(9, 1), TWO, OTHER, OUT, OTHER], 1),
    ("QLinearSigmoid", {}, [codes(3, 40), np.asarray(0.05, F), OTHER, np.asarray(1 / 256, F),
                            np.asarray(0, np.uint8)], 1),
    ("QLinearLeakyRelu", {"alpha": 0.1}, [codes(3, 40), ONE, OTHER, OUT, POINT], 1),
    ("QLinearSoftmax", {"opset": 17, "axis": -1},
     [codes(4, 30), np.asarray(0.06, F), OTHER, np.asarray(0.0037, F), np.asarray(0, np.uint8)], 1),
    ("QLinearSoftmax", {"opset": 13, "axis": 1},
     [signed(2, 5, 4), np.asarray(0.06, F), NONE, np.asarray(0.009, F), NONE], 1),
    ("QLinearSoftmax", {"opset": 12, "axis": 1},
     [codes(2, 5, 4), np.asarray(0.06, F), OTHER, np.asarray(0.004, F), np.asarray(0, np.uint8)], 1),
    ("QLinearConcat", {"axis": 1}, [OUT, POINT, codes(2, 3), ONE, POINT, codes(2, 5), TWO, OTHER], 1),
    ("QLinearWhere", {}, [whole(0, 2, 4, 5) > 0, codes(4, 5), ONE, POINT, codes(4, 5), TWO, OTHER, OUT,
                          POINT], 1),
    ("QLinearAveragePool", {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]},
     [IMAGE, ONE, POINT, OUT, OTHER], 1),
    ("QLinearGlobalAveragePool", {}, [IMAGE, ONE, POINT, TWO, OTHER], 1),
    ("QGemm", {"transB": 1, "alpha": 0.5}, [codes(4, 24), ONE, POINT, signed(9, 24), TWO,
                                            NONE, whole(-999, 999, 9, dtype=np.int32),
                                            np.asarray(0.7, F), OTHER], 1),
    ("QGemm", {}, [codes(4, 24), ONE, POINT, signed(24, 9), TWO, NONE], 1),
    *(("MatMulBnb4", {"K": 24, "N": 6, "block_size": 16, "quant_type": kind},
       [normal(3, 24), codes(72), positive(9)], 1) for kind in (0, 1)),
    ("QAttention", {"num_heads": 2, "unidirectional": 1},
     [codes(2, 3, 8), signed(8, 24), normal(24), ONE, TWO, np.asarray([[1, 1, 0], [1, 1, 1]], np.int32),
      POINT, NONE], 1),
    ("QEmbedLayerNormalization", {"epsilon": 1e-6},
     [whole(0, 7, 2, 5, dtype=np.int32), whole(0, 2, 2, 5, dtype=np.int32), codes(7, 8), codes(9, 8),
      codes(2, 8), codes(8), codes(8), np.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
      *[np.asarray(0.02, F)] * 5, *[OTHER] * 5], 2),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_codes_are_those_of_onnxruntime(case: tuple[Any, ...]) -> None:
    kind, attrs, operands, outputs = case
    wanted = run_ort(f"{MS}.{kind}", 17, attrs, operands, outputs)
    for got, want in zip(run_own(f"{MS}.{kind}", 17, attrs, operands, outputs), wanted, strict=True):
        if "Pool" in kind:
            # A mean that lies between two codes goes to either, by the order in which it was summed.
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            apart = np.abs(got.astype(int) - want.astype(int))
            assert np.sum(apart) <= 1, (got, want)
        else:
            close(got, want, 1e-4)


def test_sums_of_integers_are_scaled_in_f32() -> None:
    """A code hangs on the type that the scale is applied in, where a sum lies between two steps."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        a, b = (
            rng.integers(0, 256, (64, 96)).astype(np.uint8),
            rng.integers(-128, 128, (96, 48)).astype(np.int8),
        )
        scales = [np.asarray(s, F) for s in (*rng.uniform(0.005, 0.05, 2), rng.uniform(0.2, 2))]
        operands: list[np.ndarray | None] = [a, scales[0], POINT, b, scales[1], NONE, scales[2],
                                             OTHER]  # fmt: skip
        (want,) = run_ort("QLinearMatMul", 17, {}, operands, 1)
        np.testing.assert_array_equal(run_own("QLinearMatMul", 17, {}, operands, 1)[0], want)
