"""Random graphs grown from what exporters write: norms, activations, products, attention, rotations.

Every move adds a few operators to a stack of values of one shape and reads any values before it, inner
ones too, so that readers outside a match, shared operands and outputs inside a match all occur.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

#: All values are [batch, ROWS, WIDTH].
ROWS, WIDTH = 3, 8


@dataclass
class Growing:
    """A graph that grows; `values` are those of the one shape, the inner ones of each move too."""

    dtype: type
    nodes: list[object] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    values: list[str] = field(default_factory=lambda: ["x", "r"])
    results: list[str] = field(default_factory=lambda: ["x", "r"])

    def op(self, kind: str, *inputs: str, shaped: bool = True, **attrs: object) -> str:
        out = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=f"n{len(self.nodes)}", **attrs))
        if shaped:
            self.values.append(out)
        return out

    def split(self, wide: str, shaped: bool = True) -> tuple[str, str]:
        """The two halves of the last axis."""
        outs = f"split_{len(self.nodes)}_0", f"split_{len(self.nodes)}_1"
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node("Split", [wide], outs, name=name, axis=-1, num_outputs=2))
        self.values += outs if shaped else ()
        return outs

    def number(self, value: float) -> str:
        return self.constant(np.array(value, self.dtype))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = array
        return name

    def weight(self, *dims: int) -> str:
        draw = np.random.default_rng(len(self.weights))
        return self.constant(draw.normal(0.1, 0.3, dims).astype(self.dtype))


def _root(g: Growing, x: str, way: int) -> str:
    square = g.op("Pow", x, g.number(2)) if way % 2 else g.op("Mul", x, x)
    mean = g.op("ReduceMean", square, g.ints(-1), shaped=False)
    return g.op("Sqrt", g.op("Add", mean, g.number(1e-3), shaped=False), shaped=False)


def _over(g: Growing, x: str, root: str, way: int) -> str:
    if way & 2:
        return g.op("Mul", x, g.op("Reciprocal", root, shaped=False))
    return g.op("Div", x, root)


def rms(g: Growing, x: str, other: str, way: int) -> str:
    normed = _over(g, x, _root(g, x, way), way)
    return g.op("Mul", normed, g.weight(WIDTH)) if way & 4 else normed


def layer(g: Growing, x: str, other: str, way: int) -> str:
    centred = g.op("Sub", x, g.op("ReduceMean", x, g.ints(-1), shaped=False))
    scaled = g.op("Mul", _over(g, centred, _root(g, centred, way), way), g.weight(WIDTH))
    return g.op("Add", scaled, g.weight(WIDTH)) if way & 4 else scaled


def native_norm(g: Growing, x: str, other: str, way: int) -> str:
    return g.op("LayerNormalization", x, g.weight(WIDTH), g.weight(WIDTH), axis=-1, epsilon=1e-3)


def add(g: Growing, x: str, other: str, way: int) -> str:
    return g.op("Add", x, other)


def activation(g: Growing, x: str, other: str, way: int) -> str:
    if way < 2:
        return g.op("Mul", x, g.op("Sigmoid", x))
    if way < 4:
        return g.op("Mul", g.op("Sigmoid", g.op("Mul", x, g.number(1.702))), x)
    if way < 6:
        erf = g.op("Erf", g.op("Div", x, g.number(2**0.5)))
        return g.op("Mul", g.op("Mul", x, g.op("Add", erf, g.number(1))), g.number(0.5))
    return g.op("Mul", g.op("Tanh", g.op("Div", x, g.number(5))), g.number(5 if way == 6 else 4))


def plain(g: Growing, x: str, other: str, way: int) -> str:
    return g.op(("Tanh", "Relu", "Neg", "Abs")[way % 4], x)


def gate(g: Growing, x: str, other: str, way: int) -> str:
    if way & 1:
        x, other = g.op("MatMul", x, g.weight(WIDTH, WIDTH)), g.op("MatMul", x, g.weight(WIDTH, WIDTH))
    act = g.op("Relu", x) if way & 2 else g.op("Mul", x, g.op("Sigmoid", x))
    return g.op("Mul", act, other) if way & 4 else g.op("Mul", other, act)


def product(g: Growing, x: str, other: str, way: int) -> str:
    out = g.op("MatMul", x, g.weight(WIDTH, WIDTH))
    dims: tuple[tuple[int, ...], ...] = ((), (WIDTH,), (1, 1, WIDTH), (1,))
    return g.op("Add", out, g.weight(*dims[way % 4])) if way % 4 else out


def attention(g: Growing, x: str, other: str, way: int) -> str:
    q, k, v = (g.op("MatMul", x, g.weight(WIDTH, WIDTH)) for _ in range(3))
    keys = g.op("Transpose", k, shaped=False, perm=[0, 2, 1])
    scores = g.op("Mul", g.op("MatMul", q, keys, shaped=False), g.number(WIDTH**-0.5), shaped=False)
    if way & 1:
        scores = g.op("Add", scores, g.weight(ROWS, ROWS), shaped=False)
    return g.op("MatMul", g.op("Softmax", scores, shaped=False, axis=-1), v)


def rotation(g: Growing, x: str, other: str, way: int) -> str:
    half = WIDTH // 2
    lower = g.op("Slice", x, g.ints(0), g.ints(half), g.ints(2), shaped=False)
    upper = g.op("Slice", x, g.ints(half), g.ints(WIDTH), g.ints(2), shaped=False)
    turned = g.op("Concat", g.op("Neg", upper, shaped=False), lower, axis=-1)
    return g.op("Add", g.op("Mul", x, g.weight(ROWS, WIDTH)), g.op("Mul", turned, g.weight(ROWS, WIDTH)))


def fast_gelu(g: Growing, x: str, other: str, way: int) -> str:
    cube = g.op("Pow", x, g.number(3)) if way & 1 else g.op("Mul", g.op("Mul", x, x), x)
    inner = g.op("Add", x, g.op("Mul", cube, g.number(0.044715)))
    tanh = g.op("Tanh", g.op("Mul", inner, g.number(0.7978846)))
    return g.op("Mul", g.op("Mul", x, g.number(0.5)), g.op("Add", tanh, g.number(1)))


def parts(g: Growing, x: str, other: str, way: int) -> str:
    """Parts of one wider product, gated, added or joined again in the other order."""
    wide = g.op("MatMul", x, g.weight(WIDTH, 2 * WIDTH), shaped=False)
    first, second = g.split(wide)
    if way & 1:
        return g.op("Mul", g.op("Mul", first, g.op("Sigmoid", first)), second)
    if way & 2:
        return g.op("Add", native_norm(g, first, other, way), second)
    joined = g.op("Concat", second, first, shaped=False, axis=-1)
    return g.op("MatMul", joined, g.weight(2 * WIDTH, WIDTH))


def heads(g: Growing, x: str, other: str, way: int) -> str:
    """Heads of x, normed, moved, rotated or not, moved back and joined."""
    units = g.op("Reshape", x, g.ints(0, 0, 2, WIDTH // 2), shaped=False)
    mean = g.op("ReduceMean", g.op("Pow", units, g.number(2), shaped=False), g.ints(-1), shaped=False)
    root = g.op("Sqrt", g.op("Add", mean, g.number(1e-3), shaped=False), shaped=False)
    normed = g.op("Mul", g.op("Div", units, root, shaped=False), g.weight(WIDTH // 2), shaped=False)
    if way & 1:
        normed = g.op("Transpose", normed, shaped=False, perm=[0, 2, 1, 3])
    if way & 2:
        tables = (1, 1, ROWS, WIDTH // 2) if way & 1 else (1, ROWS, 1, WIDTH // 2)
        lower, upper = g.split(normed, shaped=False)
        turned = g.op("Concat", g.op("Neg", upper, shaped=False), lower, shaped=False, axis=-1)
        cos = g.op("Mul", normed, g.weight(*tables), shaped=False)
        normed = g.op("Add", cos, g.op("Mul", turned, g.weight(*tables), shaped=False), shaped=False)
    if way & 1:
        normed = g.op("Transpose", normed, shaped=False, perm=[0, 2, 1, 3])
    return g.op("Reshape", normed, g.ints(0, 0, WIDTH))


def rows(g: Growing, x: str, other: str, way: int) -> str:
    """Rows of two values joined, and the last ones cut out again."""
    joined = g.op("Concat", other, x, shaped=False, axis=1)
    last = g.op("Slice", joined, g.ints(ROWS), g.ints(2 * ROWS), g.ints(1))
    return g.op("MatMul", last, g.weight(WIDTH, WIDTH)) if way & 1 else last


Move = Callable[[Growing, str, str, int], str]
MOVES: Mapping[str, Move] = {
    move.__name__: move
    for move in (
        *(rms, layer, native_norm, add, activation, fast_gelu, plain, gate, product, attention, rotation),
        *(parts, heads, rows),
    )
}


@dataclass(frozen=True)
class Recipe:
    """A graph to grow: moves with their two operands, counted back from the last value, and a way."""

    moves: tuple[tuple[str, int, int, int], ...]
    outputs: tuple[int, ...]
    half: bool

    def model(self) -> ModelProto:
        dtype = np.float16 if self.half else np.float32
        g = Growing(dtype)
        for name, first, second, way in self.moves:
            g.results.append(MOVES[name](g, _back(g, first), _back(g, second), way))
        outputs = dict.fromkeys([g.results[-1], *(g.values[n % len(g.values)] for n in self.outputs)])
        number = TensorProto.FLOAT16 if self.half else TensorProto.FLOAT
        kinds = [
            helper.make_tensor_value_info(name, number, ["batch", ROWS, WIDTH])
            for name in ("x", "r", *(name for name in outputs if name not in ("x", "r")))
        ]
        graph = helper.make_graph(
            g.nodes,
            "grown",
            kinds[:2],
            kinds[2:],
            [numpy_helper.from_array(array, name) for name, array in g.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _back(g: Growing, n: int) -> str:
    """The result of a move lately made, or for larger numbers any value, inner ones too."""
    return g.results[-1 - n % len(g.results)] if n < 6 else g.values[n % len(g.values)]


_MOVE = st.tuples(st.sampled_from(sorted(MOVES)), st.integers(0, 8), st.integers(0, 30), st.integers(0, 7))
RECIPES = st.builds(
    Recipe,
    moves=st.lists(_MOVE, min_size=1, max_size=7).map(tuple),
    outputs=st.lists(st.integers(0, 60), max_size=2).map(tuple),
    half=st.booleans(),
)
