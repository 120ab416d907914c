"""Mixtures of experts as exporters write them, made from the definitions of the operators.

batched: torch's batched products, by the dynamo exporter (GatherND, Split, Expand) or the older one
(Gather, Slice, Tile). looped: a loop over the experts, as optimum exports it. Both take the ways that
mixtures differ as arguments, and what a test breaks as `wrong`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

EXPERTS, K, WIDTH, INNER = 4, 2, 8, 6


class Draft:
    """Nodes and constants under way."""

    def __init__(self, dtype: Any = np.float32, opset: int = 18, seed: int = 0) -> None:
        self.dtype, self.opset = dtype, opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(seed)
        #: Bounds by `Min` and `Max`, as newer exports write those of one side, not by `Clip`.
        self.one_sided = False

    def new(self, stem: str) -> str:
        return f"{stem.lower()}_{len(self.nodes) + len(self.constants)}"

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attrs: Any) -> Any:
        names = [self.new(kind) if n == 0 else f"{self.new(kind)}_{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attrs))
        return names[0] if outputs == 1 else names

    def const(self, value: Any, stem: str = "c") -> str:
        name = self.new(stem)
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def number(self, value: float) -> str:
        return self.const(np.array(value, self.dtype))

    def weight(self, *dims: int, stem: str = "w") -> str:
        return self.const((self.rng.standard_normal(dims) * 0.5).astype(self.dtype), stem)

    def model(self, inputs: dict[str, list[Any]], outputs: dict[str, list[Any] | None]) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        graph = helper.make_graph(
            self.nodes,
            "mixture",
            [helper.make_tensor_value_info(name, kind, dims) for name, dims in inputs.items()],
            [helper.make_tensor_value_info(name, kind, dims) for name, dims in outputs.items()],
            self.constants,
        )
        domains = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=domains, ir_version=8)


# ---- routing ---------------------------------------------------------------------------------------
def route(
    d: Draft,
    logits: str,
    routing: str = "softmax",
    renormalize: bool | str = True,
    wrong: str = "",
    scale: float = 0.0,
) -> Any:
    """The weights and places of the k chosen, [rows, k] each.

    routing: softmax, softmax_chosen, sigmoid, none, biased or grouped (DeepSeek V3).
    renormalize: "sizes" by the sum of their sizes (DBRX).
    """
    k = "k" if wrong == "k at run time" else d.ints(K)
    attrs = {"axis": -1, "largest": 0 if wrong == "smallest" else 1, "sorted": 1}
    scores = logits
    if routing == "softmax":
        scores = d.op("Softmax", logits, axis=-1)
    elif routing not in ("softmax_chosen", "none"):
        scores = d.op("Sigmoid", logits)
    choice = scores
    if routing in ("biased", "grouped"):
        choice = d.op("Add", scores, d.weight(EXPERTS, stem="bias"))
    if routing == "grouped":
        choice = _best_groups(d, choice)
    weights, places = d.op("TopK", choice, k, outputs=2, **attrs)
    if wrong == "other choice":
        weights, _ = d.op("TopK", d.op("Softmax", d.op("Neg", logits), axis=-1), k, outputs=2, axis=-1)
    if routing in ("biased", "grouped"):
        weights = d.op("GatherElements", scores, places, axis=1)
    if routing == "softmax_chosen":
        weights = d.op("Softmax", weights, axis=-1)
    if wrong == "scaled before the sum":
        weights = d.op("Mul", weights, d.number(2.5))
    if renormalize:
        axes = d.ints(0 if wrong == "weights over rows" else -1)
        total = d.op("ReduceL1" if renormalize == "sizes" else "ReduceSum", weights, axes, keepdims=1)
        weights = d.op("Div", weights, total)
    if scale:
        weights = d.op("Mul", weights, d.number(scale))
    if wrong == "rounded weights":
        whole = d.op("Cast", weights, to=TensorProto.INT32)
        weights = d.op("Cast", whole, to=helper.np_dtype_to_tensor_dtype(np.dtype(d.dtype)))
    return weights, places


def _best_groups(d: Draft, choice: str, groups: int = 2, kept: int = 1) -> str:
    """Scores of experts outside the best groups replaced by 0."""
    each = d.op("Reshape", choice, d.ints(-1, groups, EXPERTS // groups))
    best, _ = d.op("TopK", each, d.ints(2), outputs=2, axis=-1)
    values = d.op("ReduceSum", best, d.ints(-1), keepdims=0)
    _, places = d.op("TopK", values, d.ints(kept), outputs=2, axis=-1)
    ones = d.op("Expand", d.number(1.0), d.op("Shape", places))
    zeros = d.op(
        "ConstantOfShape", d.op("Shape", values), value=numpy_helper.from_array(np.zeros(1, d.dtype))
    )
    mask = d.op("Unsqueeze", d.op("ScatterElements", zeros, places, ones, axis=1), d.ints(-1))
    spread = d.op("Expand", mask, d.ints(1, groups, EXPERTS // groups))
    flags = d.op("Cast", d.op("Reshape", spread, d.ints(-1, EXPERTS)), to=TensorProto.BOOL)
    return str(d.op("Where", d.op("Not", flags), d.number(0.0), choice))


# ---- experts ---------------------------------------------------------------------------------------
def batched(
    d: Draft,
    x: str,
    routed: Any,
    older: bool = False,
    gpt_oss: bool = False,
    wrong: str = "",
    two: bool = False,
    wide: bool = False,
    squared: str = "",
) -> str:
    """The weighted sum of k experts a row, [rows, width]; x is [rows, width]. wide: weighted in f32.

    squared: Mul or Pow, an expert's relu is squared and no gate (Nemotron-H).

    gpt_oss: rows before weights [in, out], biases, gate and up in turn, bounded, (up + 1).
    """
    weights, places = routed
    flat = d.op("Reshape", places, d.ints(-1))
    in_blocks = wrong == "copies in blocks"
    unit = d.op("Unsqueeze", x, d.ints(0 if in_blocks else 1))
    copies = (K, 1, 1) if in_blocks else (1, K, 1)
    if older:
        rows = d.op("Flatten", d.op("Tile", unit, d.ints(*copies)), axis=2)
    else:
        rows = d.op("Reshape", d.op("Expand", unit, d.ints(*copies)), d.ints(-1, WIDTH))

    def pick(stack: str) -> str:
        if older:
            return str(d.op("Gather", stack, flat, axis=0))
        return str(d.op("GatherND", stack, d.op("Unsqueeze", flat, d.ints(-1)), batch_dims=0))

    def linear(value: str, n: int, m: int, experts: int = EXPERTS) -> str:
        if gpt_oss:
            axis = 0 if wrong == "each row meets all" and n == WIDTH else 1
            unit = (
                value
                if wrong == "each row meets all" and n != WIDTH
                else d.op("Unsqueeze", value, d.ints(axis))
            )
            made = d.op("MatMul", unit, pick(d.weight(experts, n, m)))
            y = made if wrong == "each row meets all" else d.op("Squeeze", made, d.ints(1))
            return str(d.op("Add", y, pick(d.weight(experts, m))))
        made = d.op("MatMul", pick(d.weight(experts, m, n)), d.op("Unsqueeze", value, d.ints(-1)))
        return str(d.op("Squeeze", made, d.ints(-1)))

    if gpt_oss:
        inner = _clamped(d, linear(rows, WIDTH, 2 * INNER), wrong)
    elif squared:
        act = d.op("Relu", linear(rows, WIDTH, INNER))
        inner = d.op("Mul", act, act) if squared == "Mul" else d.op("Pow", act, d.number(2.0))
    elif two:
        gate = linear(rows, WIDTH, INNER)
        inner = d.op("Mul", _silu(d, gate), linear(rows, WIDTH, INNER))
    else:
        inner = _halves(d, linear(rows, WIDTH, 2 * INNER), older, wrong)
    made = linear(inner, INNER, WIDTH, 3 if wrong == "fewer experts" else EXPERTS)
    column = d.op(
        "Unsqueeze", d.op("Reshape", weights, d.ints(-1)), d.ints(0 if wrong == "a row of weights" else -1)
    )
    scaled = d.op("Mul", d.op("Cast", made, to=TensorProto.FLOAT) if wide else made, column)
    shape = (K, -1, WIDTH) if wrong == "rows before the chosen" else (-1, K, WIDTH)
    grouped = d.op("Reshape", scaled, d.ints(*shape))
    kind = "ReduceMean" if wrong == "mean" else "ReduceSum"
    total = d.op(kind, grouped, d.ints(0 if wrong == "sum over rows" else 1), keepdims=0)
    return str(d.op("Cast", total, to=TensorProto.FLOAT16) if wide else total)


def _silu(d: Draft, x: str) -> str:
    return str(d.op("Mul", x, d.op("Sigmoid", x)))


def _halves(d: Draft, both: str, older: bool, wrong: str) -> str:
    if older:
        axes = d.ints(1)
        gate = d.op("Slice", both, d.ints(0), d.ints(INNER), axes)
        start, end = (1, INNER + 1) if wrong == "other part" else (INNER, 2 * INNER)
        up = d.op("Slice", both, d.ints(start), d.ints(end), axes)
    else:
        gate, up = d.op("Split", both, outputs=2, axis=1, num_outputs=2)
    return str(d.op("Mul", _silu(d, gate), up))


def _clamped(d: Draft, both: str, wrong: str) -> str:
    """(up + 1) gate sigmoid(1.702 gate), gate at most 7 and up within 7 of 0."""
    end, axes, step = d.ints(np.iinfo(np.int64).max), d.ints(1), d.ints(2)
    gate = d.op("Slice", both, d.ints(0), end, axes, step)
    up = d.op("Slice", both, d.ints(1), end, axes, step)
    bound = 6.0 if wrong == "other limit" else 7.0
    if d.one_sided:
        gate = d.op("Min", gate, d.number(7.0))
        up = d.op("Min", d.op("Max", d.number(-bound), up), d.number(bound))
    else:
        gate = d.op("Clip", gate, "", d.number(7.0))
        up = d.op("Clip", up, d.number(-bound), d.number(bound))
    glu = d.op("Mul", gate, d.op("Sigmoid", d.op("Mul", gate, d.number(1.702))))
    return str(d.op("Mul", d.op("Add", up, d.number(1.0)), glu))


def looped(d: Draft, x: str, routed: Any, wrong: str = "", adding: bool = False) -> str:
    """The sum of each expert's results in its rows' places, [rows, width].

    adding: by scatters that add, without zeros of each expert's own.
    """
    weights, places = routed
    hot = d.op(
        "OneHot", places, d.const(np.array(EXPERTS)), d.ints(0, 2 if wrong == "marked by two" else 1), axis=-1
    )
    perm = [2, 0, 1] if wrong == "other places" else [2, 1, 0]
    table = d.op("Transpose", hot, perm=perm)
    fill = 1.0 if wrong == "from ones" else 0.0
    shape = d.op("Shape", x)
    total = d.op("ConstantOfShape", shape, value=numpy_helper.from_array(np.full(1, fill, d.dtype)))
    unit = d.op("Unsqueeze", x, d.ints(0))
    for expert in range(EXPERTS):
        number = 0 if (wrong, expert) == ("twice", 1) else expert
        inner = INNER + 1 if (wrong, expert) == ("another width", 2) else INNER
        mask = d.op("Cast", d.op("Gather", table, d.const(np.array(number)), axis=0), to=TensorProto.BOOL)
        pairs = d.op("Transpose", d.op("NonZero", mask), perm=[1, 0])
        first, second = d.op("Split", pairs, d.ints(1, 1), outputs=2, axis=1)
        if (wrong, expert) == ("places of two", 1):
            other = d.op("Gather", table, d.const(np.array(0)), axis=0)
            apart = d.op("Transpose", d.op("NonZero", d.op("Cast", other, to=TensorProto.BOOL)), perm=[1, 0])
            first, _ = d.op("Split", apart, d.ints(1, 1), outputs=2, axis=1)
        lane, row = (d.op("Squeeze", v, d.ints(1)) for v in (first, second))
        rows = d.op("Reshape", d.op("Gather", unit, row, axis=1), d.ints(-1, WIDTH))
        gate = d.op("MatMul", rows, d.weight(WIDTH, inner))
        up = d.op("MatMul", rows, d.weight(WIDTH, inner))
        made = d.op("MatMul", d.op("Mul", _silu(d, gate), up), d.weight(inner, WIDTH))
        flat = d.op("Flatten", d.op("Unsqueeze", weights, d.ints(2)), axis=2)
        place = d.op("Add", lane, d.op("Mul", row, d.ints(3 if wrong == "three choices" else K)))
        column = d.op("Reshape", d.op("Gather", flat, place, axis=0), d.ints(-1, 1))
        scaled = d.op("Mul", made, column)
        if adding:
            index = d.op("Unsqueeze", row, d.ints(-1))
            total = d.op(
                "ScatterND", total, index, scaled, reduction="mul" if wrong == "multiplied" else "add"
            )
            continue
        one = d.op("Slice", total, d.ints(0), d.ints(1), d.ints(0))
        update = d.op("Expand", scaled, d.op("Shape", one))
        index = d.op("Expand", d.op("Unsqueeze", row, d.ints(-1)), d.op("Shape", update))
        zeros = d.op("ConstantOfShape", d.op("Shape", x), value=numpy_helper.from_array(np.zeros(1, d.dtype)))
        total = d.op("Add", total, d.op("ScatterElements", zeros, index, update, axis=0))
    return str(total)


def traced(d: Draft, x: str, routed: Any, wrong: str = "", biased: bool = False) -> str:
    """The loop over the experts that any row chose, as a trace with all of them chosen has it, [rows, width].

    biased: rows before weights [in, out] and biases (gpt_oss), else gate and up in one product.
    """
    weights, places = routed
    hot = d.op("OneHot", places, d.const(np.array(EXPERTS + 1)), d.ints(0, 1), axis=-1)
    table = d.op("Transpose", hot, perm=[2, 1, 0])
    axes = (-1,) if wrong == "each choice" else (-1, -2)
    often = d.op("ReduceSum", table, d.ints(*axes), keepdims=0)
    hits = d.op("NonZero", d.op("Greater", often, d.const(np.array(0))))
    each = d.op(
        "Split", d.op("Transpose", hits, perm=[1, 0]), d.ints(*[1] * EXPERTS), outputs=EXPERTS, axis=0
    )
    shape = d.op("Shape", x)
    zero = numpy_helper.from_array(np.zeros(1, d.dtype))
    total = d.op("ConstantOfShape", shape, value=zero)
    first = d.weight(EXPERTS, *((WIDTH, 2 * INNER) if biased else (2 * INNER, WIDTH)))
    down = d.weight(EXPERTS, *((INNER, WIDTH) if biased else (WIDTH, INNER)))
    first_bias, down_bias = d.weight(EXPERTS, 2 * INNER), d.weight(EXPERTS, WIDTH)
    apart = d.weight(EXPERTS, WIDTH, INNER)
    for at in range(EXPERTS - 1 if wrong == "not the last" else EXPERTS):
        number = d.op("Gather", d.op("Squeeze", each[at], d.ints(0)), d.const(np.array(0)), axis=0)
        mask = d.op("Cast", d.op("Gather", table, number, axis=0), to=TensorProto.BOOL)
        pairs = d.op("Transpose", d.op("NonZero", mask), perm=[1, 0])
        lane, row = (
            d.op("Squeeze", v, d.ints(1)) for v in d.op("Split", pairs, d.ints(1, 1), outputs=2, axis=1)
        )
        rows = d.op("Gather", x, row, axis=0)
        of = d.const(np.array(at)) if wrong == "weights by place" else number

        def linear(value: str, stack: str, bias: str, of: str = of) -> str:
            weight = d.op("Gather", stack, of, axis=0)
            if biased:
                made = d.op("MatMul", value, weight)
                return str(d.op("Add", made, d.op("Gather", bias, of, axis=0)))
            return str(d.op("MatMul", value, d.op("Transpose", weight, perm=[1, 0])))

        both = linear(rows, first, first_bias)
        inner = _clamped(d, both, wrong) if biased else _halves(d, both, True, wrong)
        made = linear(inner, apart if (wrong, at) == ("other stacks", 1) else down, down_bias)
        flat = d.op("Flatten", d.op("Unsqueeze", weights, d.ints(2)), axis=2)
        place = d.op("Add", lane, d.op("Mul", row, d.ints(K)))
        column = d.op("Reshape", d.op("Gather", flat, place, axis=0), d.ints(-1, 1))
        scaled = d.op("Mul", made, column)
        one = d.op("Slice", total, d.ints(0), d.ints(1), d.ints(0))
        update = d.op("Expand", scaled, d.op("Shape", one))
        index = d.op("Expand", d.op("Unsqueeze", row, d.ints(-1)), d.op("Shape", update))
        scattered = d.op("ScatterElements", d.op("ConstantOfShape", shape, value=zero), index, update, axis=0)
        total = d.op("Add", total, scattered)
    return str(total)


def shared_expert(d: Draft, x: str, mixed: str, gated: bool = True, wrong: str = "") -> str:
    """Qwen3-Next: the mixture plus sigmoid(x w) times an expert that every row is given to."""
    gate = d.op("Gemm", x, d.weight(INNER, WIDTH), transB=1)
    up = d.op("Gemm", x, d.weight(INNER, WIDTH), transB=1)
    width = 1 if wrong == "narrow" else WIDTH
    made = d.op("Gemm", d.op("Mul", _silu(d, gate), up), d.weight(width, INNER), transB=1)
    if gated:
        lanes = WIDTH if wrong == "wide gate" else 1
        score = d.op("Gemm", x, d.weight(lanes, WIDTH), transB=1)
        made = d.op("Mul", d.op("Sigmoid", score), made)
    return str(d.op("Add", mixed, made))


def mixture(
    form: str = "newer",
    dtype: Any = np.float32,
    routing: str = "softmax",
    renormalize: bool | str = True,
    shared: str = "",
    wrong: str = "",
    seed: int = 0,
    rows: Any = "rows",
    own_view: bool | str = False,
    scale: float = 0.0,
    wide: bool = False,
    squared: str = "",
) -> onnx.ModelProto:
    """x [2, rows, width] through a mixture to y. form: newer, older, gpt_oss, gpt_oss_min, two, looped,
    adding, traced, traced_gpt_oss. wide: f16 rows are routed and weighted in f32.
    shared: "", plain or gated. own_view: the router reads a reshape of its own, of the
    rows (Qwen3-Next) or, "of x", of what they are flattened from (GLM-4).
    rows: a number makes x [rows, width], which nothing lays out again."""
    d = Draft(dtype, seed=seed)
    flat = isinstance(rows, int)
    x = "x" if flat else d.op("Reshape", "x", d.ints(-1, WIDTH))
    seen = d.op("Reshape", "x" if own_view == "of x" else x, d.ints(-1, WIDTH)) if own_view else x
    d.one_sided = form == "gpt_oss_min"
    if wide:
        seen, d.dtype = d.op("Cast", seen, to=TensorProto.FLOAT), np.float32
    logits = d.op("Gemm", seen, d.weight(EXPERTS, WIDTH, stem="router"), transB=1)
    routed = route(d, logits, routing, renormalize, wrong, scale)
    d.dtype = dtype
    if form in ("looped", "adding"):
        y = looped(d, x, routed, wrong, adding=form == "adding")
    elif form.startswith("traced"):
        y = traced(d, x, routed, wrong, biased=form != "traced")
    else:
        y = batched(
            d, x, routed, form == "older", form.startswith("gpt_oss"), wrong, form == "two", wide, squared
        )
    if shared:
        y = shared_expert(d, x, y, shared == "gated", wrong)
    if not flat:
        d.op("Reshape", y, d.ints(2, -1, WIDTH))
    d.nodes[-1].output[0] = "y"
    dims = [rows, WIDTH] if flat else [2, rows, WIDTH]
    made = d.model({"x": dims}, {"y": None if wrong else dims})
    if wrong == "k at run time":
        made.graph.input.append(helper.make_tensor_value_info("k", TensorProto.INT64, [1]))
    return made
