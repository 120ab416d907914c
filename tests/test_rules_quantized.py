"""Products of quantized weights: every way they are written, guards, inner outputs, definitions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from building import Building, codes, drawn, each_interior_as_an_output, fired, near, optimized
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

import reference

DTYPE = st.sampled_from([np.float32, np.float16])
K, N = 8, 6
PACKED = {"u4": TensorProto.UINT4, "i4": TensorProto.INT4}


def ints(g: Building, kind: str, *dims: int) -> str:
    """Random codes; of 4 bits they are packed in pairs."""
    low, high = {"i8": (-128, 128), "u8": (0, 256), "i4": (-8, 8), "u4": (0, 16), "i32": (-9, 9)}[kind]
    values = g.draw.integers(low, high, dims)
    if kind not in PACKED:
        dtype = {"i8": np.int8, "u8": np.uint8, "i32": np.int32}[kind]
        return g.constant(values.astype(dtype))
    held = values.astype(ml_dtypes.uint4 if kind == "u4" else ml_dtypes.int4)
    return g.constant(helper.make_tensor("codes", PACKED[kind], dims, held.reshape(-1).tolist()))


def scales(g: Building, *dims: int) -> str:
    return g.constant(g.draw.uniform(0.01, 0.1, dims).astype(g.dtype))


def decoded(g: Building, kind: str, way: str, turned: bool = False, zero: bool = True, block: int = 4) -> str:
    """A weight [K, N] (turned: [N, K]) in floats, from codes."""
    dims = (N, K) if turned else (K, N)
    outputs, inputs = (0, 1) if turned else (1, 0)
    code = ints(g, kind, *dims)
    if way == "tensor":
        parts, attrs = [scales(g), *([ints(g, kind)] if zero else [])], {}
    elif way == "output":
        parts, attrs = [scales(g, N), *([ints(g, kind, N)] if zero else [])], {"axis": outputs}
    else:
        shape = tuple(n // block if axis == inputs else n for axis, n in enumerate(dims))
        parts = [scales(g, *shape), *([ints(g, kind, *shape)] if zero else [])]
        attrs = {"axis": inputs, "block_size": block}
    return g.op("DequantizeLinear", code, *parts, **attrs)


def product(
    dtype: Any = np.float32,
    kind: str = "i8",
    way: str = "output",
    form: str = "MatMul",
    zero: bool = True,
    seed: int = 0,
    bias: bool = False,
) -> ModelProto:
    g = Building(dtype, seed=seed)
    x = g.input("x", 3, K) if form == "Gemm" else g.input("x", 2, 3, K)
    weight = decoded(g, kind, way, form in ("Gemm", "Transpose"), zero)
    if form == "Gemm":
        y = g.op("Gemm", x, weight, *([g.weight(N)] if bias else []), transB=1, alpha=0.5)
        return g.model(y)
    if form == "Transpose":
        weight = g.op("Transpose", weight, perm=[1, 0])
    y = g.op("MatMul", x, weight)
    return g.model(g.op("Add", g.weight(N), y) if bias else y)


@drawn(
    st.integers(0, 99),
    DTYPE,
    st.sampled_from(["i8", "u8", "i4", "u4"]),
    st.sampled_from(["tensor", "output", "block"]),
    st.sampled_from(["MatMul", "Transpose", "Gemm"]),
    st.booleans(),
    st.booleans(),
)
def test_decoded_weights_agree_with_the_definition(
    seed: int, dtype: Any, kind: str, way: str, form: str, zero: bool, bias: bool
) -> None:
    op = fired(product(dtype, kind, way, form, zero, seed, bias), "quantized_matmul", seed)
    assert op.attrs["bits"] == int(kind[1:])
    assert op.attrs.get("granularity", "tensor") == way
    assert op.attrs.get("trans_weight", 0) == int(form != "MatMul")
    assert bool(op.inputs[3]) == zero
    assert bool(op.inputs[4]) == bias


@drawn(st.integers(0, 99), DTYPE, st.booleans(), st.booleans())
def test_a_cast_and_a_scale(seed: int, dtype: Any, shifted: bool, turned: bool) -> None:
    g = Building(dtype, seed=seed)
    x = g.input("x", 3, K)
    weight = g.op("Cast", ints(g, "i8", *((N, K) if turned else (K, N))), to=10 if dtype == np.float16 else 1)
    if shifted:
        weight = g.op("Sub", weight, g.weight(N, 1) if turned else g.weight(N))
    weight = g.op("Mul", weight, scales(g, N, 1) if turned else scales(g, N))
    if turned:
        weight = g.op("Transpose", weight, perm=[1, 0])
    op = fired(g.model(g.op("MatMul", x, weight)), "quantized_matmul", seed)
    assert op.attrs["granularity"] == "output"


# ---- activations ---------------------------------------------------------------------------------
def dynamic(
    seed: int = 0, shared: bool = False, nested: bool = False, each: bool = True, bias: bool = True
) -> ModelProto:
    g = Building(seed=seed)
    x, x_scale, x_zero = g.op("DynamicQuantizeLinear", g.input("x", 2, 3, K), outputs=3)
    results = []
    for _ in range(2 if shared else 1):
        scale = scales(g, N) if each else scales(g)
        y = g.op("MatMulInteger", x, ints(g, "i8", K, N), x_zero, ints(g, "i8", N) if each else ints(g, "i8"))
        y = g.op("Cast", y, to=1)
        if nested:
            y = g.op("Mul", g.op("Mul", y, x_scale), scale)
        else:
            y = g.op("Mul", y, g.op("Mul", x_scale, scale))
        results.append(g.op("Add", y, g.weight(N)) if bias else y)
    return g.model(*results)


@drawn(st.integers(0, 99), st.booleans(), st.booleans(), st.booleans())
def test_dynamic_integers_agree_with_the_definition(seed: int, nested: bool, each: bool, bias: bool) -> None:
    op = fired(dynamic(seed, False, nested, each, bias), "quantized_matmul", seed)
    assert op.attrs["activation"] == "dynamic"
    assert op.inputs[0] == "x"
    assert not any(op.inputs[5:])


def test_one_quantization_for_several_products_is_an_input_of_each() -> None:
    model = dynamic(shared=True)
    found = [r.op for r in optimized(model).records if r.builds == "quantized_matmul"]
    assert len(found) == 2
    for op in found:
        assert op.attrs["activation"] == "dynamic"
        assert op.inputs[0].startswith("DynamicQuantizeLinear")
        assert all(op.inputs[5:7])
    fired(model, "quantized_matmul")


def static(seed: int = 0, upto: str = "both", kind: str = "u8", again: bool = False) -> ModelProto:
    """Codes around x: rounded here (both), given as codes (back), or read by others too (shared)."""
    g = Building(seed=seed)
    scale, zero = scales(g), ints(g, kind)
    if upto == "back":
        x = g.input("x", 3, K, dtype=2 if kind == "u8" else 3)
    else:
        x = g.op("QuantizeLinear", g.input("x", 3, K), scale, zero)
    x = g.op("DequantizeLinear", x, scale, ints(g, kind) if again else zero)
    y = g.op("MatMul", x, decoded(g, "i8", "output"))
    return g.model(y, g.op("Neg", x)) if upto == "shared" else g.model(y)


@drawn(st.integers(0, 99), st.sampled_from(["both", "back", "shared"]), st.sampled_from(["u8", "i8"]))
def test_static_activations_agree_with_the_definition(seed: int, upto: str, kind: str) -> None:
    op = fired(static(seed, upto, kind), "quantized_matmul", seed)
    want = {"both": ("static", kind), "back": ("static", ""), "shared": ("none", "")}[upto]
    assert (op.attrs.get("activation", "none"), op.attrs.get("x_codes", "")) == want
    assert bool(op.inputs[5]) == (upto != "shared")


def test_codes_read_back_by_other_points_are_taken_as_they_are() -> None:
    op = fired(static(3, again=True), "quantized_matmul")
    assert op.inputs[0].startswith("QuantizeLinear")


# ---- contrib operators ---------------------------------------------------------------------------
def blocks(
    dtype: Any = np.float32,
    bits: int = 4,
    size: int = 16,
    depth: int = 24,
    zero: str = "packed",
    bias: str = "",
    order: bool = False,
    seed: int = 0,
) -> ModelProto:
    g = Building(dtype, seed=seed)
    count = -(-depth // size)
    code = g.constant(g.draw.integers(0, 256, (N, count, size * bits // 8)).astype(np.uint8))
    parts = [g.input("x", 2, 3, depth), code, scales(g, N * count)]
    if zero == "packed":
        parts.append(g.constant(g.draw.integers(0, 256, N * (-(-count * bits // 8))).astype(np.uint8)))
    elif zero == "floats":
        parts.append(g.weight(N * count))
    elif bias == "inside" or order:
        parts.append("")
    if order:
        parts.append(g.constant(np.arange(depth, dtype=np.int32)[::-1].copy() // size))
    if bias == "inside":
        parts += ["", g.weight(N)]
    attrs = {"K": depth, "N": N, "bits": bits, "block_size": size}
    y = g.op("com.microsoft.MatMulNBits", *parts, **attrs)
    return g.model(g.op("Add", y, g.weight(N)) if bias == "outside" else y)


@drawn(
    st.integers(0, 99),
    DTYPE,
    st.sampled_from([2, 4, 8]),
    st.sampled_from(["", "packed", "floats"]),
    st.sampled_from(["", "inside", "outside"]),
)
def test_packed_blocks_agree_with_the_definition(
    seed: int, dtype: Any, bits: int, zero: str, bias: str
) -> None:
    model = blocks(dtype, bits, zero=zero, bias=bias, seed=seed)
    op = fired(model, "quantized_matmul", seed)
    assert (op.attrs["storage"], op.attrs["bits"], op.attrs["block_size"]) == ("blocks", bits, 16)
    assert bool(op.inputs[4]) == bool(bias)


@pytest.mark.parametrize("kind", ["MatMulIntegerToFloat", "DynamicQuantizeMatMul"])
def test_contrib_products_of_integers(kind: str) -> None:
    g = Building()
    code, zero, bias = ints(g, "i8", K, N), ints(g, "i8", N), g.weight(N)
    if kind == "DynamicQuantizeMatMul":
        parts = [g.input("x", 2, 3, K), code, scales(g, N), zero, bias]
    else:
        parts = [g.input("x", 2, 3, K, dtype=2), code, scales(g), scales(g, N), ints(g, "u8"), zero, bias]
    op = fired(g.model(g.op(f"com.microsoft.{kind}", *parts)), "quantized_matmul")
    assert op.attrs["activation"] == ("dynamic" if kind == "DynamicQuantizeMatMul" else "static")


def test_two_biases_are_two_operators() -> None:
    g = Building()
    code = g.constant(g.draw.integers(0, 256, (N, 2, 8)).astype(np.uint8))
    parts = [g.input("x", 2, 3, 24), code, scales(g, N * 2), "", "", g.weight(N)]
    y = g.op("com.microsoft.MatMulNBits", *parts, K=24, N=N, bits=4, block_size=16)
    model = g.model(g.op("Add", y, g.weight(N)))
    assert [op.kind for op in optimized(model).graph.ops] == ["quantized_matmul", "Add"]
    fired(model, "quantized_matmul")


def in_codes(
    seed: int = 0, kind: str = "u8", each: bool = False, rounded: str = "here", shared: bool = False
) -> ModelProto:
    """x rounded to codes (here, before, or at another scale), times a weight in codes, as codes."""
    g = Building(seed=seed)
    scale, zero = scales(g), ints(g, kind)
    if rounded == "before":
        x = g.input("x", 2, 3, K, dtype=2 if kind == "u8" else 3)
    else:
        again = scales(g) if rounded == "elsewhere" else scale
        x = g.op("QuantizeLinear", g.input("x", 2, 3, K), again, zero)
    out, point = g.constant(np.asarray(0.3, np.float32)), ints(g, kind)
    results = []
    for _ in range(2 if shared else 1):
        weight = [ints(g, "i8", K, N), scales(g, N) if each else scales(g), ints(g, "i8", N if each else 1)]
        codes_out = g.op("QLinearMatMul", x, scale, zero, *weight, out, point)
        results.append(g.op("DequantizeLinear", codes_out, out, point))
    return g.model(*results)


@drawn(
    st.integers(0, 99),
    st.sampled_from(["u8", "i8"]),
    st.booleans(),
    st.sampled_from(["here", "before", "elsewhere"]),
)
def test_products_from_codes_to_codes(seed: int, kind: str, each: bool, rounded: str) -> None:
    op = fired(in_codes(seed, kind, each, rounded), "quantized_matmul", seed)
    assert op.attrs["y_codes"] == kind
    assert op.attrs["activation"] == "static"
    assert op.attrs.get("x_codes", "") == (kind if rounded == "here" else "")
    assert op.attrs.get("granularity", "tensor") == ("output" if each else "tensor")
    assert all(op.inputs[5:9])


def test_products_of_the_same_codes_share_them() -> None:
    found = optimized(in_codes(shared=True)).report
    assert len(found.fired("quantized_matmul")) == 2
    assert len(found.fired("quant_shared")) == 1
    fired(in_codes(shared=True), "quant_shared")


@drawn(st.integers(0, 99), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_a_gemm_of_codes(seed: int, turned: bool, bias: bool, coded: bool, each: bool) -> None:
    g = Building(seed=seed)
    x = [g.input("x", 3, K, dtype=2), scales(g), ints(g, "u8")]
    weight = [ints(g, "i8", *((N, K) if turned else (K, N))), scales(g, N) if each else scales(g)]
    parts = [*x, *weight, ints(g, "i8", N if each else 1), ints(g, "i32", N) if bias else ""]
    parts += [g.constant(np.asarray(0.3, np.float32)), ints(g, "u8")] if coded else []
    y = g.op("com.microsoft.QGemm", *parts, transB=int(turned), alpha=0.5)
    op = fired(g.model(y, elements=(2 if coded else 1,)), "quantized_matmul", seed)
    assert op.attrs.get("y_codes", "") == ("u8" if coded else "")
    assert op.attrs.get("trans_weight", 0) == int(turned)
    assert bool(op.inputs[4]) == bias


@drawn(st.integers(0, 99), st.integers(0, 1), st.booleans())
def test_packed_indices_of_a_table(seed: int, table: int, bias: bool) -> None:
    g = Building(seed=seed)
    packed = g.constant(g.draw.integers(0, 256, 16 * N // 2).astype(np.uint8))
    attrs = {"K": 16, "N": N, "block_size": 16, "quant_type": table}
    y = g.op("com.microsoft.MatMulBnb4", g.input("x", 2, 3, 16), packed, scales(g, N), **attrs)
    op = fired(g.model(g.op("Add", y, g.weight(N)) if bias else y), "quantized_matmul", seed)
    assert (op.attrs["storage"], op.attrs["granularity"]) == (("fp4", "nf4")[table], "flat")
    assert bool(op.inputs[4]) == bias


def feed_forward() -> ModelProto:
    """Two products of codes, each decoded and biased, with an activation between."""
    g = Building()
    x = g.input("x", 2, 3, K)
    for inner, width in ((K, N), (N, K)):
        scale, zero, out = scales(g), ints(g, "u8"), g.constant(np.asarray(0.3, np.float32))
        weight = [ints(g, "i8", inner, width), scales(g), ints(g, "i8")]
        x = g.op("QLinearMatMul", g.op("QuantizeLinear", x, scale, zero), scale, zero, *weight, out, zero)
        x = g.op("Add", g.op("DequantizeLinear", x, out, zero), g.weight(width))
        x = g.op("Relu", x) if width == N else x
    return g.model(x)


def test_a_block_reaches_over_codes_and_the_bias_behind_them() -> None:
    op = fired(feed_forward(), "mlp_block")
    assert op.inputs[0] == "x"
    assert [o.kind for o in optimized(feed_forward()).graph.ops] == ["mlp_block"]


def test_a_gate_reaches_over_codes() -> None:
    g = Building()
    scale, zero, out = scales(g), ints(g, "u8"), g.constant(np.asarray(0.3, np.float32))
    x = g.op("QuantizeLinear", g.input("x", 2, 3, K), scale, zero)
    sides = []
    for _ in range(2):
        weight = [ints(g, "i8", K, N), scales(g), ints(g, "i8")]
        side = g.op("QLinearMatMul", x, scale, zero, *weight, out, zero)
        sides.append(g.op("DequantizeLinear", side, out, zero))
    y = g.op("Mul", g.op("Mul", sides[0], g.op("Sigmoid", sides[0])), sides[1])
    fired(g.model(y), "swiglu")


# ---- guards --------------------------------------------------------------------------------------
def weight_at_run_time() -> ModelProto:
    g = Building()
    code = g.overridable(ints(g, "i8", K, N))
    return g.model(g.op("MatMul", g.input("x", 3, K), g.op("DequantizeLinear", code, scales(g))))


def codes_of_the_caller() -> ModelProto:
    g = Building()
    code = g.input("code", K, N, dtype=TensorProto.INT8)
    return g.model(g.op("MatMul", g.input("x", 3, K), g.op("DequantizeLinear", code, scales(g))))


def integers_of_the_caller() -> ModelProto:
    g = Building()
    x, scale, zero = g.op("DynamicQuantizeLinear", g.input("x", 3, K), outputs=3)
    code = g.input("code", K, N, dtype=TensorProto.INT8)
    y = g.op("Cast", g.op("MatMulInteger", x, code, zero), to=1)
    return g.model(g.op("Mul", y, g.op("Mul", scale, scales(g))))


def blocks_of_the_caller() -> ModelProto:
    g = Building()
    code = g.input("code", N, 1, 8, dtype=2)
    kind = "com.microsoft.MatMulNBits"
    return g.model(g.op(kind, g.input("x", 3, 16), code, scales(g, N), K=16, N=N, bits=4, block_size=16))


def packed_at_run_time() -> ModelProto:
    g = Building()
    code = g.input("code", N, 1, 8, dtype=2)
    y = g.op(
        "com.microsoft.MatMulNBits", g.input("x", 3, 16), code, scales(g, N), K=16, N=N, bits=4, block_size=16
    )
    return g.model(g.op("Add", y, g.weight(N)))


def wide_codes() -> ModelProto:
    g = Building()
    weight = g.op("DequantizeLinear", ints(g, "i32", K, N), scales(g))
    return g.model(g.op("MatMul", g.input("x", 3, K), weight))


def scales_along_inputs() -> ModelProto:
    g = Building()
    weight = g.op("DequantizeLinear", ints(g, "i8", K, N), scales(g, K), axis=0)
    return g.model(g.op("MatMul", g.input("x", 3, K), weight))


def blocks_along_outputs() -> ModelProto:
    g = Building()
    weight = g.op("DequantizeLinear", ints(g, "i8", K, N), scales(g, K, 2), axis=1, block_size=3)
    return g.model(g.op("MatMul", g.input("x", 3, K), weight))


def zero_points_elsewhere() -> ModelProto:
    g = Building()
    weight = g.op("Sub", g.op("Cast", ints(g, "i8", K, N), to=1), g.weight(K, 1))
    weight = g.op("Mul", weight, scales(g, N))
    return g.model(g.op("MatMul", g.input("x", 3, K), weight))


def scales_of_rows_of_x() -> ModelProto:
    g = Building()
    x, x_scale = g.input("x", 3, K, dtype=3), g.input("x_scale", 3, 1)
    y = g.op("Cast", g.op("MatMulInteger", x, ints(g, "i8", K, N)), to=1)
    return g.model(g.op("Mul", g.op("Mul", y, x_scale), scales(g, N)))


GUARDS = {
    weight_at_run_time: "operand",
    packed_at_run_time: "operand",
    codes_of_the_caller: "operand",
    integers_of_the_caller: "operand",
    blocks_of_the_caller: "operand",
    wide_codes: "operand",
    scales_along_inputs: "guard:scales_run_along_the_outputs",
    blocks_along_outputs: "guard:blocks_run_along_the_contraction",
    zero_points_elsewhere: "guard:zero_points_stand_by_the_scales",
    scales_of_rows_of_x: "operand",
}


@pytest.mark.parametrize("build", GUARDS, ids=lambda build: build.__name__)
def test_what_is_no_quantized_product(build: Any) -> None:
    assert codes(build(), "quantized_matmul") == {GUARDS[build]}


def test_blocks_whose_inputs_are_reordered() -> None:
    assert codes(blocks(order=True, zero="", bias="outside"), "quantized_matmul") == {"operand"}


def test_a_bias_of_another_axis_stays_outside() -> None:
    g = Building()
    y = g.op("MatMul", g.input("x", 2, 3, K), decoded(g, "i8", "output"))
    model = g.model(g.op("Add", y, g.weight(3, 1)))
    assert fired(model, "quantized_matmul").inputs[4] == ""
    assert near(model, "quantized_matmul") == {"guard:bias_is_a_row"}


def test_a_weight_that_two_products_decode_is_no_part_of_either() -> None:
    g = Building()
    weight = decoded(g, "i8", "output")
    model = g.model(g.op("MatMul", g.input("x", 3, K), weight), g.op("MatMul", g.input("z", 3, K), weight))
    assert codes(model, "quantized_matmul") == {"read_elsewhere"}


@pytest.mark.parametrize("model", [product(bias=True), dynamic(), static(), blocks(bias="outside")])
def test_outputs_inside_a_quantized_product(model: ModelProto) -> None:
    assert each_interior_as_an_output(model, "quantized_matmul", skip=("DynamicQuantizeLinear_0_2",)) > 0


def test_each_product_alone_agrees_with_its_definition() -> None:
    for model in (product(), dynamic(), static(), blocks(), in_codes()):
        assert all(one.error is not None for one in reference.check_each(optimized(model)))
