"""Inference against others: what the reference computes, what onnx infers, and what odd models hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fuse.ir import Content, Op
from fuse.shape_functions import ROWS
from fuse.shapes import infer
from fuse.types import DTYPE_NUMBERS, DTYPES, UNKNOWN, Dim, Type, add, mul, substitute, symbol

# ---- random chains, symbolic, against the values the reference computes ------------------------------
SIZES = {"b": 5, "s": 12}


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[Op], dict[str, Type], dict[str, Content]]:
    """A chain of views, joins and products of one input f32[b, s, 4]."""
    types = {"x": Type("f32", (symbol("b"), symbol("s"), 4))}
    contents: dict[str, Content] = {}
    ops: list[Op] = []
    value = "x"

    def constant(*elements: Dim) -> str:
        name = f"c{len(contents)}"
        types[name], contents[name] = Type("i64", (len(elements),)), elements
        return name

    for step in range(draw(st.integers(1, 6))):
        made, dims = f"y{step}", types[value].dims
        assert dims is not None
        rank = len(dims)
        kind = draw(st.sampled_from(["Reshape", "Transpose", "Slice", "Concat", "MatMul", "Shape"]))
        if kind == "Transpose":
            op = Op(kind, (value,), (made,), {"perm": tuple(draw(st.permutations(range(rank))))})
        elif kind == "Slice":
            axis = draw(st.integers(0, rank - 1))
            start, end = draw(st.integers(-3, 3)), draw(st.sampled_from([-2, -1, 1, 3, 2**63 - 1]))
            stride = draw(st.integers(1, 3))
            operands = (constant(start), constant(end), constant(axis), constant(stride))
            op = Op(kind, (value, *operands), (made,), {})
        elif kind == "Concat":
            op = Op(kind, (value, value), (made,), {"axis": draw(st.integers(-rank, rank - 1))})
        elif kind == "Reshape":
            target = draw(st.sampled_from([(-1,), (0, -1), (-1, *dims), (*dims[:-1], -1, 1), (*dims[::-1],)]))
            op = Op(kind, (value, constant(*target)), (made,), {})
        elif kind == "MatMul":
            turned = f"t{step}"
            perm = (*range(rank - 2), rank - 1, rank - 2) if rank > 1 else (0,)
            ops.append(Op("Transpose", (value,), (turned,), {"perm": perm}))
            infer(ops[-1], types, contents, 18)
            op = Op(kind, (value, turned), (made,), {})
        else:
            # The exporters' way: the shape of a value, read element by element, is the new shape.
            shape, target_name = f"s{step}", f"r{step}"
            ops.append(Op("Shape", (value,), (shape,), {}))
            ops.append(Op("Concat", (shape, constant(1)), (target_name,), {"axis": 0}))
            for one in ops[-2:]:
                infer(one, types, contents, 18)
            op = Op("Reshape", (value, target_name), (made,), {})
        infer(op, types, contents, 18)
        ops.append(op)
        if not types[made].dims or len(types[made].dims or ()) > 6:
            break
        value = made
    return ops, types, contents


def evaluated(ops: list[Op], contents: dict[str, Content]) -> dict[str, np.ndarray]:
    """The values of a chain at SIZES."""
    made = {value for op in ops for value in op.outputs}
    constants = [
        numpy_helper.from_array(np.array([substitute(e, SIZES) for e in elements], np.int64), name)  # type: ignore[arg-type]
        for name, elements in contents.items()
        if name not in made
    ]
    nodes = [helper.make_node(op.kind, op.inputs, op.outputs, **op.attrs) for op in ops]
    outputs = [
        helper.make_tensor_value_info(v, TensorProto.UNDEFINED, None) for op in ops for v in op.outputs
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    names = [v for op in ops for v in op.outputs]
    found = ReferenceEvaluator(model).run(names, {"x": np.zeros((SIZES["b"], SIZES["s"], 4), np.float32)})
    return dict(zip(names, found, strict=True))


@settings(max_examples=60, deadline=None)
@given(chains())
def test_inferred_sizes_are_those_of_the_values(made: tuple[Any, ...]) -> None:
    ops, types, contents = made
    # -1 has no meaning where there are no elements.
    assume(all(substitute(dim, SIZES) != 0 for type in types.values() for dim in type.dims or ()))
    values = evaluated(ops, contents)
    for name, value in values.items():
        assert types[name].dims is not None
        got = [substitute(dim, SIZES) for dim in types[name].dims or ()]
        known = [not isinstance(dim, int) or dim == size for dim, size in zip(got, value.shape, strict=True)]
        assert all(known), (name, str(types[name]), value.shape)
        for element, actual in zip(contents.get(name, ()), value.ravel().tolist(), strict=name in contents):
            known_element = None if element is None else substitute(element, SIZES)  # type: ignore[arg-type]
            assert not isinstance(known_element, int) or known_element == actual


# ---- one-node models, against onnx's own inference ---------------------------------------------------
Operand = tuple[str, tuple[int | str, ...]] | np.ndarray | None
X4 = ("f32", ("n", 4, 8, 8))
X3 = ("f32", ("b", "s", 64))
ROW = np.array


def i64(*elements: int) -> np.ndarray:
    return np.array(elements, np.int64)


def f32(*dims: int) -> np.ndarray:
    return np.ones(dims, np.float32)


ONE_NODE: list[tuple[str, int, list[Operand], dict[str, Any]]] = [
    ("Add", 14, [X3, ("f32", (64,))], {}),
    ("Where", 16, [("bool", (1, 1, 5)), ("f32", ("b", 4, 1)), ("f32", ())], {}),
    ("PRelu", 16, [X4, ("f32", (4, 1, 1))], {}),
    ("Cast", 13, [X3], {"to": TensorProto.FLOAT16}),
    ("CastLike", 19, [X3, ("f16", (1,))], {}),
    ("IsNaN", 13, [X3], {}),
    ("Reshape", 14, [X3, i64(0, 0, 4, -1)], {}),
    ("Reshape", 14, [("f32", (2, 3, 4)), i64(-1, 6)], {}),
    ("Transpose", 13, [X4], {"perm": (0, 2, 3, 1)}),
    ("Squeeze", 13, [("f32", (1, "b", 1)), i64(0, 2)], {}),
    ("Squeeze", 11, [("f32", (1, "b", 1))], {"axes": (0, -1)}),
    ("Unsqueeze", 13, [X3, i64(-1, 0)], {}),
    ("Flatten", 13, [X4], {"axis": 2}),
    ("Concat", 13, [("f32", ("b", 3)), ("f32", ("b", 4))], {"axis": -1}),
    ("Split", 13, [("f32", ("b", 7)), i64(3, 4)], {"axis": 1, "outputs": 2}),
    ("Split", 18, [("f32", ("b", 7))], {"axis": 1, "num_outputs": 3, "outputs": 3}),
    ("Split", 11, [("f32", (6, "b"))], {"outputs": 3}),
    ("Slice", 13, [("f32", ("b", 10)), i64(-3), i64(2**63 - 1), i64(1)], {}),
    ("Slice", 13, [("f32", ("b", 10)), i64(8), i64(-(2**63)), i64(1), i64(-3)], {}),
    ("Slice", 9, [("f32", (4, 10))], {"starts": (1, 2), "ends": (3, -1)}),
    ("Gather", 13, [("f32", (300, 64)), ("i64", ("b", "s"))], {}),
    ("GatherElements", 13, [("f32", (3, 4)), ("i64", (3, 2))], {"axis": 1}),
    ("GatherND", 13, [("f32", (2, 3, 4)), ("i64", (2, 5, 1))], {"batch_dims": 1}),
    ("ScatterND", 18, [("f32", (4, 5)), ("i64", (2, 1)), ("f32", (2, 5))], {}),
    ("Expand", 13, [("f32", (3, 1)), i64(2, 1, 6)], {}),
    ("Tile", 13, [("f32", (3, 2)), i64(2, 3)], {}),
    ("Pad", 18, [("f32", (3, 2)), i64(1, 0, 2, 4)], {}),
    ("Pad", 10, [("f32", (3, 2))], {"pads": (1, 0, 2, 4)}),
    ("Range", 11, [np.array(1, np.int64), np.array(8, np.int64), np.array(3, np.int64)], {}),
    ("ConstantOfShape", 9, [i64(2, 3)], {}),
    ("OneHot", 11, [("i64", ("b", 3)), np.array(5, np.int64), ("f32", (2,))], {"axis": 1}),
    ("NonZero", 13, [("f32", (3, 2))], {}),
    ("EyeLike", 9, [("f32", (3, 2))], {"dtype": TensorProto.DOUBLE}),
    ("MatMul", 13, [("f32", ("b", 4, 5, 6)), ("f32", (4, 6, 7))], {}),
    ("MatMul", 13, [("f32", (6,)), ("f32", ("b", 6, 7))], {}),
    ("MatMulInteger", 10, [("u8", ("b", 4)), ("i8", (4, 3))], {}),
    ("Gemm", 13, [("f32", (6, 5)), ("f32", (7, 6)), ("f32", (7,))], {"transA": 1, "transB": 1}),
    ("Einsum", 12, [("f32", ("b", 4, 5)), ("f32", (5, 6))], {"equation": "bij,jk->bik"}),
    ("ReduceMean", 13, [X4], {"axes": (-1, 1), "keepdims": 0}),
    ("ReduceMean", 18, [X4, i64(-1)], {}),
    ("ReduceMax", 18, [X4], {"keepdims": 0}),
    ("ArgMin", 13, [X4], {"axis": -1}),
    ("TopK", 11, [X3, i64(3)], {"outputs": 2}),
    ("CumSum", 14, [X3, np.array(1, np.int64)], {}),
    ("Softmax", 11, [X3], {}),
    ("LayerNormalization", 17, [X3, f32(64), f32(64)], {"outputs": 3}),
    ("BatchNormalization", 15, [X4, f32(4), f32(4), f32(4), f32(4)], {}),
    ("InstanceNormalization", 6, [X4, f32(4), f32(4)], {}),
    ("Conv", 11, [X4, f32(6, 2, 3, 3)], {"group": 2, "pads": (1, 0, 1, 2), "strides": (2, 1)}),
    ("Conv", 11, [X4, f32(6, 4, 3, 3)], {"auto_pad": "SAME_LOWER", "strides": (3, 3)}),
    ("Conv", 11, [X4, f32(6, 4, 3, 3)], {"auto_pad": "VALID", "dilations": (2, 2)}),
    ("ConvInteger", 10, [("u8", (1, 4, 8)), ("u8", (6, 4, 3))], {}),
    ("ConvTranspose", 11, [X4, f32(4, 3, 3, 3)], {"group": 2, "strides": (2, 2), "output_padding": (1, 1)}),
    ("ConvTranspose", 11, [X4, f32(4, 3, 3, 3)], {"output_shape": (20, 20)}),
    ("MaxPool", 12, [X4], {"kernel_shape": (3, 3), "strides": (2, 2), "outputs": 2}),
    ("AveragePool", 11, [X4], {"kernel_shape": (2, 2), "ceil_mode": 1, "strides": (2, 2)}),
    ("GlobalAveragePool", 1, [X4], {}),
    ("Resize", 13, [X4, None, np.array([1, 1, 2, 1.6], np.float32)], {}),
    ("Resize", 13, [X4, None, None, i64(2, 4, 5, 6)], {}),
    ("Resize", 18, [X4, None, None, i64(5, 6)], {"axes": (2, 3)}),
    ("Upsample", 9, [X4, np.array([1, 1, 2, 3], np.float32)], {}),
    ("DepthToSpace", 13, [X4], {"blocksize": 2}),
    ("SpaceToDepth", 13, [X4], {"blocksize": 4}),
    ("GridSample", 16, [X4, ("f32", ("n", 5, 6, 2))], {}),
    ("LSTM", 14, [("f32", ("s", "b", 3)), f32(1, 32, 3), f32(1, 32, 8)], {"hidden_size": 8, "outputs": 3}),
    (
        "GRU",
        14,
        [("f32", ("s", "b", 3)), f32(2, 24, 3), f32(2, 24, 8)],
        {"hidden_size": 8, "direction": "bidirectional", "outputs": 2},
    ),
    ("QuantizeLinear", 13, [X3, np.array(1, np.float32), np.array(0, np.int8)], {}),
    ("DequantizeLinear", 13, [("u8", ("b", 3)), np.array(1, np.float32)], {}),
    ("DynamicQuantizeLinear", 11, [X3], {"outputs": 3}),
    (
        "QLinearMatMul",
        10,
        [
            ("u8", (2, 3)),
            f32(1),
            np.zeros(1, np.uint8),
            ("u8", (3, 4)),
            f32(1),
            np.zeros(1, np.uint8),
            f32(1),
            np.zeros(1, np.uint8),
        ],
        {},
    ),
    (
        "Attention",
        23,
        [("f32", ("b", 4, "s", 16)), ("f32", ("b", 4, "t", 16)), ("f32", ("b", 4, "t", 16))],
        {},
    ),
    (
        "Attention",
        23,
        [("f32", (2, 5, 64)), ("f32", (2, 7, 32)), ("f32", (2, 7, 32))],
        {"q_num_heads": 4, "kv_num_heads": 2, "outputs": 1},
    ),
    ("RotaryEmbedding", 23, [("f32", ("b", 4, "s", 16)), ("f32", ("b", "s", 8)), ("f32", ("b", "s", 8))], {}),
    ("NonMaxSuppression", 11, [("f32", (1, 6, 4)), ("f32", (1, 1, 6))], {}),
    ("RandomNormal", 1, [], {"shape": (2, 3)}),
    ("RandomUniformLike", 1, [X3], {"dtype": TensorProto.FLOAT16}),
    ("Multinomial", 7, [("f32", ("b", 5))], {"sample_size": 3}),
    ("Compress", 11, [X3, ("bool", (3,))], {"axis": 1}),
    ("Unique", 11, [("f32", (5,))], {"outputs": 4}),
    ("Det", 11, [("f32", ("b", 3, 3))], {}),
    ("Col2Im", 18, [("f32", (1, 12, 20)), i64(5, 8), i64(2, 2)], {}),
    ("CenterCropPad", 18, [("f32", (5, 6, 7)), i64(3, 9)], {"axes": (0, 2)}),
    ("AffineGrid", 20, [("f32", (2, 2, 3)), i64(2, 3, 5, 6)], {}),
    ("RoiAlign", 16, [X4, ("f32", (9, 4)), ("i64", (9,))], {"output_height": 2, "output_width": 3}),
    ("HannWindow", 17, [np.array(7, np.int64)], {}),
    # onnx reads an absent onesided as 0, though its default is 1 (and its reference computes that).
    ("STFT", 17, [("f32", (2, 64, 1)), np.array(8, np.int64), None, np.array(16, np.int64)], {"onesided": 1}),
    ("DFT", 17, [("f32", (2, 16, 1))], {}),
]


@pytest.mark.parametrize("case", ONE_NODE, ids=[f"{case[0]}-{case[1]}" for case in ONE_NODE])
def test_what_onnx_infers_is_inferred_too(case: tuple[str, int, list[Operand], dict[str, Any]]) -> None:
    kind, opset, operands, attrs = case[0], case[1], case[2], dict(case[3])
    made = [f"y{i}" for i in range(attrs.pop("outputs", 1))]
    types, contents, inputs, constants, names = {}, {}, [], [], []
    for i, operand in enumerate(operands):
        name = "" if operand is None else f"x{i}"
        names.append(name)
        if isinstance(operand, np.ndarray):
            constants.append(numpy_helper.from_array(operand, name))
            types[name] = Type(DTYPES[constants[-1].data_type], operand.shape)
            if operand.size <= 16:
                contents[name] = tuple(operand.ravel().tolist())
        elif operand is not None:
            dtype, dims = operand
            types[name] = Type(dtype, tuple(symbol(d) if isinstance(d, str) else d for d in dims))
            inputs.append(helper.make_tensor_value_info(name, DTYPE_NUMBERS[dtype], dims))
    infer(Op(kind, tuple(names), tuple(made), attrs), types, contents, opset)
    outputs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in made]
    graph = helper.make_graph([helper.make_node(kind, names, made, **attrs)], "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    oracle = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    for output in oracle.graph.output:
        theirs, ours = output.type.tensor_type, types[output.name]
        assert ours.dtype == DTYPES[theirs.elem_type]
        if not theirs.HasField("shape"):
            continue
        assert ours.dims is not None
        assert len(ours.dims) == len(theirs.shape.dim)
        for mine, dim in zip(ours.dims, theirs.shape.dim, strict=True):
            if dim.HasField("dim_value"):
                assert mine == dim.dim_value
            elif dim.dim_param in ("n", "b", "s", "t"):
                assert mine == symbol(dim.dim_param)


# ---- odd models --------------------------------------------------------------------------------------
ODD_DIMS = st.one_of(
    st.none(),
    st.lists(
        st.one_of(
            st.integers(0, 9),
            st.sampled_from([symbol("b"), symbol("?q.0"), add(symbol("b"), -3), mul(2, symbol("s"))]),
        ),
        max_size=5,
    ).map(tuple),
)
ODD_ELEMENT = st.one_of(
    st.none(), st.integers(-3, 9), st.booleans(), st.just(2**63 - 1), st.just(symbol("s")), st.floats()
)
ODD_ATTRIBUTE = st.one_of(
    st.integers(-3, 40),
    st.lists(st.integers(-3, 9), max_size=5).map(tuple),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.floats(), max_size=3).map(tuple),
    st.just(b"\xff"),
)
ATTRIBUTES = sorted(
    {name for schema in onnx.defs.get_all_schemas() for name in schema.attributes}
    | {"num_heads", "N", "bits"}
)


@st.composite
def odd_calls(draw: st.DrawFn) -> tuple[Op, dict[str, Type], dict[str, Content], int]:
    """An op of any kind over operands and attributes that make no sense together."""
    kind = draw(st.sampled_from(sorted(ROWS)))
    types, contents = {}, {}
    names = draw(st.lists(st.sampled_from(["", "a", "b", "c", "d", "e"]), max_size=8))
    for name in filter(None, names):
        if draw(st.booleans()):
            types[name] = Type(draw(st.sampled_from([*DTYPE_NUMBERS, ""])), draw(ODD_DIMS))
        if draw(st.booleans()):
            contents[name] = tuple(draw(st.lists(ODD_ELEMENT, max_size=6)))
    schema = kind if onnx.defs.has(kind) else None
    known = sorted(onnx.defs.get_schema(schema).attributes) if schema else ATTRIBUTES
    attrs = draw(st.dictionaries(st.sampled_from([*known, "axis"]), ODD_ATTRIBUTE, max_size=6))
    outputs = tuple(f"o{i}" for i in range(draw(st.integers(1, 4))))
    return Op(kind, tuple(names), outputs, attrs), types, contents, draw(st.integers(1, 26))


@settings(max_examples=400, deadline=None)
@given(odd_calls())
def test_no_op_is_too_odd(call: tuple[Op, dict[str, Type], dict[str, Content], int]) -> None:
    op, types, contents, opset = call
    infer(op, types, contents, opset)
    for name in op.outputs:
        assert all(isinstance(dim, int) is (not hasattr(dim, "terms")) for dim in types[name].dims or ())
        assert len(contents.get(name, ())) <= 16


def test_text_holds_no_numbers() -> None:
    types, contents = {"a": Type("str", ())}, {"a": (7,)}
    infer(Op("Abs", ("a",), ("y",), {}), types, contents, 17)
    assert contents.get("y", (None,)) == (None,)


@pytest.mark.parametrize("kind", ["BiasSplitGelu", "BiasAdd", "BiasGelu"])
def test_a_scalar_has_no_halves(kind: str) -> None:
    types = {"a": Type("f32", ())}
    infer(Op(f"com.microsoft.{kind}", ("a",), ("y",), {}), types, {}, 1)


#: Operators whose operands or results are no tensors, so have no type here.
NO_TENSORS = {
    "ConcatFromSequence",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "SplitToSequence",
}


def test_every_operator_of_onnx_has_a_row() -> None:
    all_kinds = {s.name for s in onnx.defs.get_all_schemas() if s.domain == "" and not s.deprecated}
    assert all_kinds - ROWS.keys() - NO_TENSORS == set()


def test_an_unknown_kind_gives_unknown_types() -> None:
    types: dict[str, Type] = {}
    infer(Op("acme.Mystery", ("x",), ("y", "", "z"), {}), types, {}, 1)
    assert types == {"y": UNKNOWN, "z": UNKNOWN}
