"""Square models, where every axis has one length: whatever is transposed, reduced, sliced or broadcast
along the wrong axis still lines up, and must not be taken for the right one."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import chips
import fuse
import reference

SHIM = chips.load("any")
N = 4
square = settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
perms = st.permutations(range(4)).map(tuple)
SHAPES = ((N,), (N, 1), (1, N), (N, N), (1,), (), (1, 1, N), (1, N, 1), (N, 1, 1), (1, 1, 1), (N, N, N))


class Maker:
    """Nodes over inputs of f32[4, 4, ..]."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: dict[str, tuple[int, ...]] = {}

    def input(self, name: str, rank: int) -> str:
        self.inputs[name] = (N,) * rank
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, shape: tuple[int, ...]) -> str:
        drawn = np.random.default_rng(len(self.initializers)).normal(0.7, 0.4, shape)
        return self.constant(np.asarray(drawn, np.float32))

    def number(self, number: float) -> str:
        return self.constant(np.array(number, np.float32))

    def __call__(self, kind: str, *inputs: str, **attrs: object) -> str:
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], **attrs))
        return out

    def check(self, *outputs: str) -> list[str]:
        """The classes fused; raises where the fused model is another function."""
        infos = [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)
            for name, dims in self.inputs.items()
        ]
        results = [helper.make_tensor_value_info(out, onnx.TensorProto.FLOAT, None) for out in outputs]
        graph = helper.make_graph(self.nodes, "square", infos, results, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        lifted = fuse.load(model)
        found = fuse.optimize(lifted, shim=SHIM)
        assert reference.check(lifted, found.graph).bit_equal
        return [op.kind for op in found.graph.ops if op.parts]


@square
@given(perms, perms, perms, perms, st.booleans(), st.sampled_from(SHAPES), st.sampled_from((-1, 3, 2, 1, 0)))
def test_attention(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], out: tuple[int, ...],
    scaled_q: bool, mask: tuple[int, ...], axis: int,
) -> None:  # fmt: skip
    make = Maker()
    query, key, value = (
        make("Transpose", make.input(name, 4), perm=perm) for name, perm in (("q", q), ("k", k), ("v", v))
    )
    if scaled_q:
        query = make("Mul", query, make.number(0.7))
    scores = make("Add", make("MatMul", query, key), make.weight(mask))
    weights = make("Softmax", scores, axis=axis)
    kinds = make.check(make("Transpose", make("MatMul", weights, value), perm=out))
    assert "attention" not in kinds or axis in (-1, 3)


@square
@given(perms, st.lists(st.sampled_from((2, 4, N * N)), min_size=1, max_size=3), st.booleans())
def test_attention_through_reshapes(perm: tuple[int, ...], cuts: list[int], both: bool) -> None:
    """Heads cut from rows, lanes or both, in whatever order, beside a key that has them as usual."""
    make = Maker()
    wide = make.input("x", 3)
    shapes = {2: (N, N, 2, 2), 4: (N, 2, 2, N), N * N: (2, 2, N, N)}
    query = wide
    for cut in cuts:
        query = make("Reshape", query, make.constant(np.array(shapes[cut], np.int64)))
    query = make("Transpose", query, perm=perm)
    query = make("Reshape", query, make.constant(np.array((2, 2, N, N), np.int64)))
    key = make(
        "Reshape", make.input("y", 3) if both else wide, make.constant(np.array((2, 2, N, N), np.int64))
    )
    scores = make("MatMul", query, make("Transpose", key, perm=(0, 1, 3, 2)))
    result = make("MatMul", make("Softmax", scores, axis=-1), key)
    result = make("Transpose", result, perm=perm)
    make.check(make("Reshape", result, make.constant(np.array((N, N, N), np.int64))))


axes = st.sampled_from((-1, -1, 2, 1, 0, -2))
keep = st.sampled_from((1, 1, 0))


@square
@given(
    axes, keep, axes, keep, st.sampled_from(SHAPES), st.sampled_from(SHAPES), st.booleans(), st.integers(0, 3)
)
def test_norms(
    axis: int, kept: int, centre_axis: int, centre_kept: int,
    weight: tuple[int, ...], bias: tuple[int, ...], centred: bool, spelling: int,
) -> None:  # fmt: skip
    make = Maker()
    x = make.input("x", 3)
    if centred:
        x = make("Sub", x, make("ReduceMean", x, axes=[centre_axis], keepdims=centre_kept))
    squares = make("Mul", x, x) if spelling % 2 else make("Pow", x, make.number(2))
    root = make(
        "Sqrt", make("Add", make("ReduceMean", squares, axes=[axis], keepdims=kept), make.number(1e-3))
    )
    normed = make("Div", x, root) if spelling < 2 else make("Mul", make("Reciprocal", root), x)
    kinds = make.check(make("Add", make("Mul", normed, make.weight(weight)), make.weight(bias)))
    whole = axis in (-1, 2) and kept == 1
    assert not {"rms_norm", "layer_norm"} & set(kinds) or whole
    if whole and weight in ((N,), (1, N), (1, 1, N)):
        assert {"rms_norm", "layer_norm"} & set(kinds)


@square
@given(
    axes, keep, st.sampled_from(("ReduceSum", "ReduceL2", "ReduceSumSquare", "ReduceMean")), st.integers(0, 3)
)
def test_lengths(axis: int, kept: int, reduction: str, eps_at: int) -> None:
    make = Maker()
    x = make.input("x", 3)
    squares = make("Mul", x, x) if reduction in ("ReduceSum", "ReduceMean") else x
    if reduction == "ReduceSum":
        total = make(reduction, squares, make.constant(np.array([axis], np.int64)), keepdims=kept)
    else:
        total = make(reduction, squares, axes=[axis], keepdims=kept)
    if eps_at == 1:
        total = make("Add", total, make.number(0.1))
    length = total if reduction == "ReduceL2" else make("Sqrt", total)
    if eps_at == 2:
        length = make("Add", length, make.number(0.1))
    if eps_at == 3:
        length = make("Max", length, make.number(0.1))
    kinds = make.check(make("Div", x, length))
    assert "l2_norm" not in kinds or (axis in (-1, 2) and kept == 1)


@square
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 2)), min_size=2, max_size=2),
    st.booleans(), st.booleans(), st.sampled_from((-1, 2, 1)),
    st.sampled_from(SHAPES), st.sampled_from(SHAPES),
    st.sampled_from(((0, 2, 2, 4), None)),
)  # fmt: skip
def test_rotations(
    bounds: list[tuple[int, int, int]], minus_first: bool, commuted: bool, axis: int,
    cos: tuple[int, ...], sin: tuple[int, ...], plain: tuple[int, int, int, int] | None,
) -> None:  # fmt: skip
    make = Maker()
    x = make.input("x", 4)
    if plain is not None:
        bounds = [(plain[2], plain[3], 1), (plain[0], plain[1], 1)]
    parts = []
    for start, stop, step in bounds:
        stop = max(stop, start + 1)
        what = [make.constant(np.array([n], np.int64)) for n in (start, stop, axis, step)]
        parts.append(make("Slice", x, *what))
    parts[not minus_first] = make("Neg", parts[not minus_first])
    turned = make("Concat", *parts, axis=axis)
    sizes = [len(range(start, max(stop, start + 1), step)) for start, stop, step in bounds]
    if sum(sizes) != N:
        return
    one, two = make("Mul", x, make.weight(cos)), make("Mul", turned, make.weight(sin))
    make.check(make("Add", *((two, one) if commuted else (one, two))))


@square
@given(
    st.sampled_from((2, 3, 4)), st.sampled_from((*SHAPES, (1, 1, 1, N))), st.booleans(), perms, st.booleans(),
    st.sampled_from(("Relu", "Tanh", "")),
)  # fmt: skip
def test_products_with_a_bias(
    rank: int, bias: tuple[int, ...], first: bool, perm: tuple[int, ...], between: bool, act: str
) -> None:
    make = Maker()
    y = make("MatMul", make.input("x", rank), make.weight((N, N)))
    if between and rank == 4:
        y = make("Transpose", y, perm=perm)
    elif between and rank == 3 and (len(bias) < 3 or bias[-3] == 1):
        y = make("Reshape", y, make.constant(np.array((2, 2, N, N), np.int64)))
    operands = (make.weight(bias), y) if first else (y, make.weight(bias))
    y = make("Add", *operands)
    kinds = make.check(make(act, y) if act else y)
    if bias == (N,) and not between:
        assert {"matmul_bias", "matmul_bias_act"} & set(kinds)


@square
@given(st.sampled_from(SHAPES), st.sampled_from(SHAPES), st.booleans())
def test_sums_before_a_norm(one: tuple[int, ...], two: tuple[int, ...], also: bool) -> None:
    make = Maker()
    x = make.input("x", 3)
    first = make("Mul", x, make.weight(one)) if len(one) > 2 else make.weight(one)
    total = make("Add", first, make("Abs", make.input("y", 3)) if also else make.weight(two))
    if not also and max(len(one), len(two)) < 3:
        return
    y = make("LayerNormalization", total, make.weight((N,)), axis=-1)
    kinds = make.check(y, *((total,) if also else ()))
    assert kinds is not None


@square
@given(st.sampled_from(("Sigmoid", "Relu", "Tanh")), st.integers(0, 2), st.integers(0, 2), st.booleans())
def test_gates(act: str, gate_part: int, up_part: int, halves: bool) -> None:
    """Parts of one product, some of them the same part twice, or of products of other values."""
    make = Maker()
    x, other = make.input("x", 3), make.input("y", 3)
    if halves:
        whole = make("MatMul", x, make.weight((N, 3 * N)))
        parts = [
            make("Slice", whole, *(make.constant(np.array([n], np.int64)) for n in (i * N, i * N + N, -1)))
            for i in range(3)
        ]
    else:
        parts = [make("MatMul", value, make.weight((N, N))) for value in (x, x, other)]
    gate = parts[gate_part]
    activated = make("Mul", gate, make("Sigmoid", gate)) if act == "Sigmoid" else make(act, gate)
    make.check(make("MatMul", make("Mul", activated, parts[up_part]), make.weight((N, N))))
