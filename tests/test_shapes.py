"""Types and contents of single ops, by hand: each case says why it is so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuse.ir import Content, Op, Tensor
from fuse.shapes import infer
from fuse.types import Dims, Type, add, floor_divide, minimum, mul, sub, symbol

b, s, p, h = (symbol(name) for name in "bsph")
FAR = 2**63 - 1
Value = tuple[str, Dims | None, Content | None]


def ints(*elements: Any) -> Value:
    """A vector of i64 with these elements."""
    return "i64", (len(elements),), elements


def number(element: Any, dtype: str = "i64") -> Value:
    """A scalar with that element."""
    return dtype, (), (element,)


def of(*dims: Any, dtype: str = "f32") -> Value:
    """A tensor of which only dtype and dims are known."""
    return dtype, dims, None


def run(
    kind: str, *inputs: Value | None, opset: int = 18, outputs: int = 1, **attrs: Any
) -> list[tuple[Type, Content | None]]:
    """Type and content of each output of one op."""
    types: dict[str, Type] = {}
    contents: dict[str, Content] = {}
    names = []
    for i, value in enumerate(inputs):
        names.append("" if value is None else f"i{i}")
        if value is not None:
            types[f"i{i}"] = Type(value[0], value[1])
            if value[2] is not None:
                contents[f"i{i}"] = value[2]
    made = tuple(f"o{i}" for i in range(outputs))
    infer(Op(kind, tuple(names), made, attrs), types, contents, opset)
    return [(types[name], contents.get(name)) for name in made]


def dims(*args: Any, **kwargs: Any) -> Dims | None:
    return run(*args, **kwargs)[0][0].dims


def content(*args: Any, **kwargs: Any) -> Content | None:
    return run(*args, **kwargs)[0][1]


def fresh(*axes: int, output: int = 0) -> Dims:
    return tuple(symbol(f"?o{output}.{axis}") for axis in axes)


def tensor(array: np.ndarray, dtype: str) -> Tensor:
    return Tensor("value", dtype, array.shape, array.nbytes, lambda: array)


DIMS: list[tuple[str, Dims | None, Dims | None]] = [
    # -- broadcasts
    ("a missing axis counts as 1", dims("Add", of(b, s, 64), of(64)), (b, s, 64)),
    ("a symbol against a number is the number, or the op fails", dims("Mul", of(b, 1), of(b, 7)), (b, 7)),
    ("two symbols may differ in that one is 1", dims("Add", of(b), of(s)), (symbol("broadcast(b, s)"),)),
    ("two numbers that differ contradict", dims("Add", of(2), of(3)), fresh(0)),
    ("where broadcasts all three", dims("Where", of(s, 1, dtype="bool"), of(1, 4), of(b, 1, 1)), (b, s, 4)),
    ("an unknown rank stays unknown", dims("Add", ("f32", None, None), of(3)), None),
    # -- views
    ("0 copies", dims("Reshape", of(b, s, 64), ints(0, 0, 4, 16)), (b, s, 4, 16)),
    ("0 is a size where allowzero says so", dims("Reshape", of(0, 3), ints(0, 3), allowzero=1), (0, 3)),
    ("-1 is what is left", dims("Reshape", of(b, s, 64), ints(-1, 16)), (mul(4, mul(b, s)), 16)),
    ("sizes cancel however they are ordered", dims("Reshape", of(b, s, 4, 16), ints(s, -1, 64)), (s, b, 64)),
    ("an unknown element is what is left too", dims("Reshape", of(b, 64), ints(b, None, 16)), (b, 4, 16)),
    ("impossible sizes say nothing", dims("Reshape", of(2, 3), ints(4, -1)), fresh(0, 1)),
    ("a wrong count says nothing", dims("Reshape", of(2, 3), ints(4, 2)), fresh(0, 1)),
    (
        "the length of an unknown target is the rank",
        dims("Reshape", of(b, s), of(3, dtype="i64")),
        fresh(0, 1, 2),
    ),
    ("a target of unknown length leaves no rank", dims("Reshape", of(b, s), of(s, dtype="i64")), None),
    ("no perm turns the axes round", dims("Transpose", of(2, b, 3)), (3, b, 2)),
    ("perm names the axes", dims("Transpose", of(b, s, 4, 16), perm=(0, 2, 1, 3)), (b, 4, s, 16)),
    ("a perm of other length contradicts", dims("Transpose", of(b, s), perm=(0, 2, 1)), None),
    ("axes were an attribute before 13", dims("Unsqueeze", of(b, s), axes=(1, 2), opset=11), (b, 1, 1, s)),
    ("axes count on the result", dims("Unsqueeze", of(b, s), ints(-1)), (b, s, 1)),
    ("a given axis goes", dims("Squeeze", of(b, 1, s), ints(1)), (b, s)),
    ("without axes a symbol may be 1 and go", dims("Squeeze", of(1, s)), None),
    ("without axes numbers decide", dims("Squeeze", of(1, 3, 1)), (3,)),
    ("an axis that is not 1 contradicts", dims("Squeeze", of(2, 3), ints(0)), None),
    ("flatten makes two axes", dims("Flatten", of(b, s, 4, 16), axis=2), (mul(b, s), 64)),
    # -- joins and parts
    (
        "the joined axis is a sum",
        dims("Concat", of(b, 4, p, 16), of(b, 4, s, 16), axis=-2),
        (b, 4, add(p, s), 16),
    ),
    ("other axes agree, so the better size stands", dims("Concat", of(b, 2), of(3, 2), axis=1), (3, 4)),
    ("an even split", dims("Split", of(b, 6), axis=1, outputs=3), (b, 2)),
    ("a symbol that divides", dims("Split", of(mul(2, s)), outputs=2), (s,)),
    ("a symbol that may not divide", dims("Split", of(s), outputs=2), fresh(0)),
    (
        "the front of an axis is no longer than it",
        dims("Slice", of(128, 4), ints(0), ints(s), ints(0)),
        (minimum(s, 128), 4),
    ),
    ("a front that surely is within", dims("Slice", of(add(p, s)), ints(0), ints(s), ints(0)), (s,)),
    ("to the far end", dims("Slice", of(s), ints(0), ints(FAR), ints(0)), (s,)),
    (
        "what is left past a number",
        dims("Slice", of(s), ints(2), ints(FAR), ints(0)),
        (sub(s, minimum(2, s)),),
    ),
    ("what is surely left", dims("Slice", of(add(s, 2)), ints(2), ints(FAR), ints(0)), (s,)),
    ("the last ones", dims("Slice", of(add(s, 1)), ints(-1), ints(FAR), ints(0)), (1,)),
    ("all but the last", dims("Slice", of(add(s, 1)), ints(0), ints(-1), ints(0)), (s,)),
    ("all but the ends", dims("Slice", of(s), ints(1), ints(-1), ints(0)), (sub(s, minimum(2, s)),)),
    ("between two symbols", dims("Slice", of(add(p, s)), ints(p), ints(add(p, s)), ints(0)), (s,)),
    (
        "every other one, rounded up",
        dims("Slice", of(s), ints(0), ints(FAR), ints(0), ints(2)),
        (floor_divide(add(s, 1), 2),),
    ),
    ("backward", dims("Slice", of(s), ints(-1), ints(-FAR), ints(0), ints(-1)), (s,)),
    ("attributes before 10", dims("Slice", of(b, 8), starts=(2,), ends=(6,), axes=(1,), opset=9), (b, 4)),
    ("an unknown end", dims("Slice", of(s, 4), ints(0), ints(None), ints(0)), (*fresh(0), 4)),
    # -- gathers
    ("a number takes the axis away", dims("Gather", of(b, s, 64), of(dtype="i64"), axis=1), (b, 64)),
    ("a matrix of rows", dims("Gather", of(300, 64), of(b, s, dtype="i64")), (b, s, 64)),
    (
        "elements have the dims of the index",
        dims("GatherElements", of(b, 9), of(b, s, dtype="i64"), axis=1),
        (b, s),
    ),
    ("index tuples", dims("GatherND", of(b, s, 64), of(7, 2, dtype="i64")), (7, 64)),
    (
        "index tuples in a batch",
        dims("GatherND", of(b, s, 64), of(b, 7, 1, dtype="i64"), batch_dims=1),
        (b, 7, 64),
    ),
    ("a scatter keeps its operand", dims("ScatterND", of(b, s), of(4, 2, dtype="i64"), of(4)), (b, s)),
    # -- growth
    ("1 becomes the target", dims("Expand", of(1, 1, s), ints(b, 4, s)), (b, 4, s)),
    ("an expand may not shrink", dims("Expand", of(b, 4), ints(1)), (b, 4)),
    ("an unknown size of a number stays the number", dims("Expand", of(1, 4), ints(b, None)), (b, 4)),
    ("tiles multiply", dims("Tile", of(b, 3), ints(2, s)), (mul(2, b), mul(3, s))),
    ("both sides are padded", dims("Pad", of(b, h), ints(0, 1, 0, 2)), (b, add(h, 3))),
    ("pads of named axes", dims("Pad", of(b, h), ints(1, 2), None, ints(-1)), (b, add(h, 3))),
    # -- made
    ("the elements are the dims", dims("ConstantOfShape", ints(b, 1, s)), (b, 1, s)),
    ("a count from 0", dims("Range", number(0), number(s), number(1)), (s,)),
    ("a count from a symbol", dims("Range", number(p), number(add(p, s)), number(1)), (s,)),
    ("steps of 2 rounded up", dims("Range", number(0), number(s), number(2)), (floor_divide(add(s, 1), 2),)),
    ("a count of nothing", dims("Range", number(5), number(2), number(1)), (0,)),
    ("depth is a new axis", dims("OneHot", of(b, s, dtype="i64"), number(10), of(2)), (b, s, 10)),
    ("how many is not known", dims("NonZero", of(b, s)), (2, *fresh(1))),
    # -- products
    ("batches broadcast", dims("MatMul", of(b, 4, s, 16), of(4, 16, p)), (b, 4, s, p)),
    ("a vector on the left", dims("MatMul", of(16), of(b, 16, 8)), (b, 8)),
    ("a vector on the right", dims("MatMul", of(b, s, 16), of(16)), (b, s)),
    ("two vectors", dims("MatMul", of(16), of(16)), ()),
    ("summed axes that differ contradict", dims("MatMul", of(2, 3), of(4, 5)), None),
    ("gemm transposes", dims("Gemm", of(16, b), of(8, 16), transA=1, transB=1), (b, 8)),
    ("letters name axes", dims("Einsum", of(b, s, 4), of(4, 8), equation="bsi, io -> bso"), (b, s, 8)),
    (
        "dots broadcast",
        dims("Einsum", of(b, 1, 3, 4), of(s, 4, 5), equation="...ij,...jk->...ik"),
        (b, s, 3, 5),
    ),
    (
        "without an arrow, letters seen once in order",
        dims("Einsum", of(2, 3), of(3, 4), equation="ba,ac"),
        (2, 4),
    ),
    # -- folds
    ("folded axes stay as 1", dims("ReduceMean", of(b, s, 64), axes=(-1,), opset=13), (b, s, 1)),
    ("axes are an input since 18", dims("ReduceMean", of(b, s, 64), ints(-1), keepdims=0), (b, s)),
    ("no axes means all", dims("ReduceSum", of(b, s), keepdims=0), ()),
    ("no axes may mean none", dims("ReduceSum", of(b, s), noop_with_empty_axes=1), (b, s)),
    ("the place of the greatest", dims("ArgMax", of(b, s), axis=1, keepdims=0), (b,)),
    ("the k greatest", dims("TopK", of(b, 300), ints(5)), (b, 5)),
    # -- windows
    (
        "same padding keeps a stride of 1",
        dims("Conv", of(b, 3, h, h), of(8, 3, 3, 3), pads=(1, 1, 1, 1)),
        (b, 8, h, h),
    ),
    (
        "a patch divides",
        dims("Conv", of(b, 3, h, 32), of(8, 3, 4, 4), strides=(4, 4)),
        (b, 8, floor_divide(h, 4), 8),
    ),
    (
        "same upper rounds up",
        dims("Conv", of(1, 3, h), of(8, 3, 3), strides=(2,), auto_pad="SAME_UPPER"),
        (1, 8, floor_divide(add(h, 1), 2)),
    ),
    ("dilation widens the window", dims("Conv", of(1, 1, 10), of(1, 1, 3), dilations=(2,)), (1, 1, 6)),
    ("a window that does not fit contradicts", dims("Conv", of(1, 1, 2), of(1, 1, 3)), None),
    (
        "a transposed convolution grows",
        dims("ConvTranspose", of(1, 4, 5), of(4, 2, 3), strides=(2,)),
        (1, 2, 11),
    ),
    (
        "a pool in ceil mode",
        dims("MaxPool", of(1, 1, 6), kernel_shape=(3,), strides=(2,), ceil_mode=1),
        (1, 1, 3),
    ),
    ("a global pool", dims("GlobalAveragePool", of(b, 8, h, 7)), (b, 8, 1, 1)),
    (
        "factors",
        dims("Resize", of(b, 3, h, 5), None, ("f32", (4,), (1.0, 1.0, 2.0, 1.5))),
        (b, 3, mul(2, h), 7),
    ),
    ("sizes", dims("Resize", of(b, 3, h, h), None, None, ints(b, 3, 8, s)), (b, 3, 8, s)),
    ("depth to space", dims("DepthToSpace", of(b, 12, h, 5), blocksize=2), (b, 3, mul(2, h), 10)),
    # -- layers
    (
        "attention of split heads",
        dims("Attention", of(b, 8, s, 16), of(b, 2, p, 16), of(b, 2, p, 24), opset=23),
        (b, 8, s, 24),
    ),
    (
        "attention of joined heads",
        dims("Attention", of(b, s, 128), of(b, p, 32), of(b, p, 48), q_num_heads=8, kv_num_heads=2, opset=23),
        (b, s, 192),
    ),
    (
        "quantized heads",
        dims("com.microsoft.MatMulNBits", of(b, s, 64), of(8, 1, 16), of(8), N=8, K=64),
        (b, s, 8),
    ),
    ("an operator nobody knows", dims("acme.Mystery", of(b)), None),
]


@pytest.mark.parametrize(("got", "want"), [case[1:] for case in DIMS], ids=[case[0] for case in DIMS])
def test_dims(got: Dims | None, want: Dims | None) -> None:
    assert got == want


CONTENTS: list[tuple[str, Content | None, Content | None]] = [
    ("a shape is its dims", content("Shape", of(b, 4, s)), (b, 4, s)),
    ("a part of a shape", content("Shape", of(b, 4, s), start=-2), (4, s)),
    ("a size is the product", content("Size", of(b, 4, s)), (mul(4, mul(b, s)),)),
    ("one element", content("Gather", ints(b, 4, s), number(-1)), (s,)),
    ("some elements", content("Gather", ints(b, 4, s), ints(2, 0)), (s, b)),
    ("an index outside says nothing", content("Gather", ints(1, 2), ints(5)), None),
    ("vectors join", content("Concat", ints(b), ints(-1, 64), axis=0), (b, -1, 64)),
    (
        "a part of unknown elements leaves its places",
        content("Concat", ints(b), of(2, dtype="i64"), axis=0),
        (b, None, None),
    ),
    ("a vector of unknown length says nothing", content("Concat", ints(b), of(s, dtype="i64"), axis=0), None),
    ("a cut of a vector", content("Slice", ints(b, 4, s, 16), ints(1), ints(FAR)), (4, s, 16)),
    ("a cut by attributes", content("Slice", ints(b, 4, s), starts=(-2,), ends=(FAR,), opset=9), (4, s)),
    (
        "a reversed vector",
        content("Slice", ints(1, 2, 3), ints(-1), ints(-FAR), ints(0), ints(-1)),
        (3, 2, 1),
    ),
    ("a scalar as a vector", content("Unsqueeze", number(s), ints(0)), (s,)),
    ("sizes multiply", content("Mul", number(b), number(4)), (mul(4, b),)),
    ("a vector and a number", content("Add", ints(b, 2), number(1)), (add(b, 1), 3)),
    (
        "a row and a column",
        content("Add", ("i64", (2, 1), (1, 2)), ("i64", (1, 2), (10, 20))),
        (11, 21, 12, 22),
    ),
    ("a division rounds toward zero", content("Div", number(-7), number(2)), (-3,)),
    ("a size divides as its floor", content("Div", number(s), number(2)), (floor_divide(s, 2),)),
    ("the rest of a size", content("Mod", number(s), number(2)), (sub(s, mul(2, floor_divide(s, 2))),)),
    ("a division by zero says nothing", content("Div", number(3), number(0)), (None,)),
    ("an overflow says nothing", content("Mul", number(2**31, "i32"), number(2, "i32")), (None,)),
    ("a size is not -1", content("Equal", ints(b, -1, s), ints(-1, -1, -1)), (False, True, False)),
    ("two sizes may be equal", content("Equal", number(b), number(s)), (None,)),
    ("a size is not below 0", content("Less", number(b), number(0)), (False,)),
    ("a size may be 0", content("Greater", number(b), number(0)), (None,)),
    (
        "the exporters' expand",
        content("Where", ("bool", (3,), (True, False, False)), ints(1, 1, 1), ints(b, s, 4)),
        (1, s, 4),
    ),
    ("both sides alike need no condition", content("Where", ("bool", (1,), (None,)), ints(s), ints(s)), (s,)),
    ("an integer becomes another", content("Cast", ints(b, 3), to=6), (b, 3)),
    ("a float of a symbol is unknown", content("Cast", number(b), to=1), None),
    ("a float loses its fraction", content("Cast", number(-2.7, "f32"), to=7), (-2,)),
    (
        "a float is rounded to its dtype",
        content("Cast", number(0.1, "f64"), to=10),
        (float(np.float16(0.1)),),
    ),
    ("an integer outside the range says nothing", content("Cast", number(300), to=2), None),
    (
        "f16 is computed in f16",
        content("Mul", number(0.1, "f16"), number(3.0, "f16")),
        (float(np.float16(0.1) * np.float16(3)),),
    ),
    ("f32 is computed in f32", content("Sqrt", number(2.0, "f32")), (float(np.sqrt(np.float32(2))),)),
    ("floats compare", content("Less", number(1.0, "f32"), number(2.0, "f32")), (True,)),
    ("two floats are not followed", content("Add", ("f32", (2,), (1.0, 2.0)), number(1.0, "f32")), None),
    ("a filled vector", content("ConstantOfShape", ints(3), value=tensor(np.array([1]), "i64")), (1, 1, 1)),
    (
        "seventeen are too many",
        content("ConstantOfShape", ints(17), value=tensor(np.array([1]), "i64")),
        None,
    ),
    ("a short count", content("Range", number(1), number(7), number(2)), (1, 3, 5)),
    ("a product of all", content("ReduceProd", ints(b, 2, s)), (mul(2, mul(b, s)),)),
    ("the transpose of a matrix", content("Transpose", ("i64", (2, 2), (1, 2, 3, 4))), (1, 3, 2, 4)),
    ("a number repeated", content("Expand", number(3), ints(2)), (3, 3)),
    ("places overwritten", content("ScatterND", ints(1, 2, 3), ("i64", (1, 1), (1,)), ints(9)), (1, 9, 3)),
    ("an empty shape", content("Shape", of()), ()),
]


@pytest.mark.parametrize(("got", "want"), [case[1:] for case in CONTENTS], ids=[case[0] for case in CONTENTS])
def test_contents(got: Content | None, want: Content | None) -> None:
    assert got == want
    assert [type(x) for x in got or ()] == [type(x) for x in want or ()]


def test_split_of_a_vector_gives_each_part_its_elements() -> None:
    assert [found[1] for found in run("Split", ints(b, 4, s), ints(1, 2), outputs=2)] == [(b,), (4, s)]
    assert [found[1] for found in run("Split", ints(1, 2, 3), outputs=2, num_outputs=2)] == [(1, 2), (3,)]


DTYPES = [
    ("Shape", [of(b)], {}, ["i64"]),
    ("Cast", [of(b)], {"to": 16}, ["bf16"]),
    ("Equal", [of(b), of(b)], {}, ["bool"]),
    ("TopK", [of(b), ints(1)], {}, ["f32", "i64"]),
    ("LayerNormalization", [of(b, 8, dtype="f16"), of(8), of(8)], {}, ["f16", "f32", "f32"]),
    ("DynamicQuantizeLinear", [of(b)], {}, ["u8", "f32", "u8"]),
    ("QuantizeLinear", [of(b), of(), of(dtype="i8")], {}, ["i8"]),
    ("QuantizeLinear", [of(b), of()], {}, ["u8"]),
    ("QuantizeLinear", [of(b), of()], {"output_dtype": 22}, ["i4"]),
    ("DequantizeLinear", [of(b, dtype="u8"), of(dtype="f16")], {}, ["f16"]),
    ("MatMulInteger", [of(2, 2, dtype="u8"), of(2, 2, dtype="i8")], {}, ["i32"]),
    ("ConstantOfShape", [ints(2)], {}, ["f32"]),
    ("OneHot", [of(b, dtype="i64"), number(3), of(2, dtype="f16")], {}, ["f16"]),
    ("Dropout", [of(b)], {}, ["f32", "bool"]),
    ("com.microsoft.SkipLayerNormalization", [of(b, 8, dtype="f16")] * 3, {}, ["f16", "f32", "f32", "f16"]),
]


@pytest.mark.parametrize(("kind", "inputs", "attrs", "want"), DTYPES, ids=[case[0] for case in DTYPES])
def test_dtypes(kind: str, inputs: list[Value], attrs: dict[str, Any], want: list[str]) -> None:
    assert [found.dtype for found, _ in run(kind, *inputs, outputs=len(want), **attrs)] == want


def test_attention_gives_its_caches_and_scores() -> None:
    q, k, past = of(b, 4, s, 16), of(b, 2, s, 16), of(b, 2, p, 16)
    found = run("Attention", q, k, k, None, past, past, outputs=4, opset=23)
    assert [type.dims for type, _ in found[1:]] == [(b, 2, add(p, s), 16)] * 2 + [(b, 4, s, add(p, s))]


def test_an_lstm_gives_every_step_and_the_last() -> None:
    found = run(
        "LSTM", of(s, b, 8), of(2, 64, 8), of(2, 64, 16), hidden_size=16, direction="bidirectional", outputs=3
    )
    assert [type.dims for type, _ in found] == [(s, 2, b, 16), (2, b, 16), (2, b, 16)]


def test_equal_computations_give_equal_sizes() -> None:
    first = dims("Conv", of(b, 1, h), of(4, 1, 3), strides=(2,), pads=(1, 1))
    second = dims("Slice", of(b, 4, h), ints(0), ints(FAR), ints(2), ints(2))
    assert first == second == (b, 4, floor_divide(add(h, 1), 2))


def test_a_size_of_a_convolution_is_known_not_to_be_negative() -> None:
    found = dims("Conv", of(b, 1, h), of(4, 1, 10), strides=(5,))
    assert found is not None
    assert content("Equal", ints(found[2]), ints(-1)) == (False,)
