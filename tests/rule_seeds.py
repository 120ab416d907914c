"""What the patterns of rules do not say, for growing models from them: dims, numbers, parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from grow import (
    Grower,
    Seeds,
    gemm,
    outer_axes_exchanged,
    product,
    rms_normalization,
    with_attributes,
)
from onnx import TensorProto


def put_back(grower: Grower, path: str, operands: list[str]) -> str:
    """A reshape that puts an axis back that a sum dropped, or leaves the dims."""
    dims = grower.type(operands[0])[1]
    dims = dims if len(dims) > 2 else (*dims, 1)
    return grower.node("Reshape", operands[0], grower.array(np.array(dims, np.int64), "shape"))


def spread(grower: Grower, path: str, operands: list[str]) -> str:
    dims = np.array(grower.type(operands[0])[1], np.int64)
    return grower.node("Expand", operands[0], grower.array(dims, "shape"))


NORM = Seeds(
    numbers={"eps": 1e-3, "offset": 1.0, "per_width": 0.25, "width": 4.0},
    nodes={"Reshape": put_back, "Expand": spread},
    forms={
        "inner": rms_normalization,
        "pooled": lambda g, path, operands: g.node("GlobalAveragePool", operands["x"]),
    },
)
HALF = {
    "half": lambda g, path: g.node("Mul", g.input("x", g.seeds.default), g.array(np.array(0.5, np.float32)))
}


def gelu_or_one_relu(grower: Grower, path: str, operands: dict[str, str]) -> str:
    """Of what is squared, one relu."""
    if "|1" not in path and "|2" not in path:
        return grower.node("Gelu", product(grower))
    made = (node.output[0] for node in grower.nodes if node.op_type == "Relu")
    return next(made, None) or grower.node("Relu", product(grower))


#: Lanes of a head, and how many of them are rotated where the rest passes.
WIDTH, ROTATED = 8, 4


def lanes(grower: Grower, value: str, start: int, stop: int, step: int = 1) -> str:
    bounds = [grower.array(np.array([b], np.int64), "bound") for b in (start, stop, -1, step)]
    return grower.node("Slice", value, *bounds)


def turns_last(path: str) -> bool:
    """Whether the lanes that pass stand first, in the ways of `partial` that join them so."""
    return path.startswith(("|0~|1", "|0~|2"))


def half(grower: Grower, path: str, operands: list[str]) -> str:
    """The half of x that a place in the pattern takes; pairs where they are joined one beside another."""
    width = grower.type(operands[0])[1][-1]
    pairs, second = "Unsqueeze" in path, "Neg" in path
    if "rest" in path or operands[0] == "whole":
        return lanes(grower, operands[0], *((0, width - ROTATED) if turns_last(path) else (ROTATED, width)))
    if "Squeeze" in path:
        return one_of_two(grower, "Slice", operands[0], pairs, second)
    if pairs:
        return lanes(grower, operands[0], int(second), width, 2)
    return lanes(grower, operands[0], *((width // 2, width) if second else (0, width // 2)))


def split(grower: Grower, path: str, operands: list[str]) -> str:
    """Both halves of x from one operator, or what is rotated and the rest."""
    rest = operands[0] == "whole"
    second = not turns_last(path) if rest else "Neg" in path
    if "Squeeze" in path:
        return one_of_two(grower, "Split", operands[0], "Unsqueeze" in path, second)
    made = grower.node("Split", operands[0], outputs=2, num_outputs=2, axis=-1)
    return grower.nodes[-1].output[1] if second else made


def rotated(grower: Grower, path: str) -> str:
    """x, or the lanes of a whole that are rotated (the pattern's first way)."""
    dims = (2, 3, 5, WIDTH)
    if not path.startswith("|0"):
        return grower.input("x", dims)
    first = WIDTH - ROTATED if turns_last(path) else 0
    return lanes(grower, grower.input("whole", dims), first, first + ROTATED)


def cast_shares(grower: Grower, path: str, operands: list[str]) -> str:
    """A cast of scores or probabilities; those that weigh values on their left keep the type of these."""
    single = grower.type(operands[0])[0] == TensorProto.FLOAT
    narrow = single and "MatMul.1" not in path
    return grower.node("Cast", operands[0], to=TensorProto.FLOAT16 if narrow else TensorProto.FLOAT)


def cast_alone(grower: Grower, path: str, operands: list[str]) -> str:
    """A cast of the result; what is joined with lanes that pass, or multiplied, keeps its type."""
    to = TensorProto.FLOAT if "Concat" in path or "Mul" in path else TensorProto.FLOAT16
    return grower.node("Cast", operands[0], to=to)


def apart(second: bool) -> Callable[[Grower, str], str]:
    """One of the two lane sets of x, where they are rotated apart."""

    def make(grower: Grower, path: str) -> str:
        if "x" not in grower.bound:
            grower.bound["x"] = rotated(grower, path)
        name = "Neg" if second else ""
        return half(grower, f"{path}{name}", [grower.bound["x"]])

    return make


def table(name: str) -> Callable[[Grower, str], str]:
    """Angles: one a lane, or one a pair where the lanes are rotated apart."""

    def make(grower: Grower, path: str) -> str:
        width = ROTATED if path.startswith("|0") else WIDTH
        return grower.input(name, (5, width // 2 if "Sub" in path else width))

    return make


def one_of_two(grower: Grower, kind: str, value: str, pairs: bool, second: bool) -> str:
    """A row or a column of what a reshape cut in two."""
    axis = -1 if pairs else -2
    if kind == "Split":
        grower.node("Split", value, outputs=2, num_outputs=2, axis=axis)
        return str(grower.nodes[-1].output[int(second)])
    if kind == "Gather":
        return grower.node("Gather", value, grower.array(np.array(int(second), np.int64)), axis=axis)
    bounds = [grower.array(np.array([b], np.int64), "bound") for b in (int(second), int(second) + 1, axis)]
    return grower.node("Slice", value, *bounds)


def without_one(grower: Grower, path: str, operands: list[str]) -> str:
    axis = grower.array(np.array([-1 if "Unsqueeze" in path else -2], np.int64), "axes")
    return grower.node("Squeeze", operands[0], axis)


def row_of_two(grower: Grower, path: str, operands: list[str]) -> str:
    return one_of_two(grower, "Gather", operands[0], "Unsqueeze" in path, "Neg" in path)


def pairs_joined(grower: Grower, path: str, operands: list[str]) -> str:
    """Two axes joined in one; or, inside a part, one cut in two."""
    if "Squeeze" in path or "Gather" in path:
        *lead, width = grower.type(operands[0])[1]
        cut = (width // 2, 2) if "Unsqueeze" in path else (2, width // 2)
        return grower.node("Reshape", operands[0], grower.array(np.array((*lead, *cut), np.int64), "shape"))
    *lead, pairs, two = grower.type(operands[0])[1]
    shape = np.array((*lead, pairs * two), np.int64)
    return grower.node("Reshape", operands[0], grower.array(shape, "shape"))


HEADS = (2, 3, 5, WIDTH)


def rotary_embedding(grower: Grower, path: str, operands: dict[str, str]) -> str:
    x = operands.get("x") or grower.input("x", HEADS)
    angles = [grower.input(name, (2, 5, WIDTH // 2)) for name in ("cos", "sin")]
    return grower.node("RotaryEmbedding", x, *angles)


def rotation_of_some(grower: Grower, path: str, operands: dict[str, str]) -> str:
    angles = [grower.input(name, (2, 5, ROTATED // 2)) for name in ("cos", "sin")]
    return grower.node("RotaryEmbedding", rotated(grower, path), *angles)


def normed_heads(grower: Grower, path: str = "", operands: dict[str, str] | None = None) -> str:
    scale = grower.array(np.linspace(0.5, 1.5, WIDTH).astype(np.float32), "scale")
    rows_first = any(path.endswith("~between") for path in grower.choices)
    dims = (2, 5, 3, WIDTH) if rows_first else HEADS
    return grower.node("LayerNormalization", grower.input("x", dims), scale, epsilon=1e-3)


def joined_to_a_cache(grower: Grower, path: str, operands: dict[str, str]) -> str:
    return grower.node("Concat", grower.input("past", (2, 3, 4, WIDTH)), operands["new"], axis=2)


def normed_and_rotated(grower: Grower, path: str, operands: dict[str, str]) -> str:
    return rotary_embedding(grower, path, {"x": normed_heads(grower)})


def cut_into_heads(grower: Grower, path: str, operands: list[str]) -> str:
    return grower.node("Reshape", operands[0], grower.array(np.array((2, 5, 3, WIDTH), np.int64)))


def plain_norm(grower: Grower, path: str, operands: dict[str, str]) -> str:
    ones = grower.array(np.ones(4, np.float32), "scale")
    return grower.node("LayerNormalization", grower.input("x", (2, 3, 4)), ones, epsilon=1e-3)


def one_plus_a_row(grower: Grower, path: str) -> str:
    """One plus a row of each batch, under the axes of what it scales."""
    more = grower.node("Add", grower.input("rows", (2, 4)), grower.array(np.ones((), np.float32), "one"))
    return grower.node("Unsqueeze", more, grower.array(np.array([1], np.int64), "axes"))


def gate_of_z(grower: Grower, path: str, operands: dict[str, str]) -> str:
    return grower.node("Swish", grower.input("z", (2, 3, 4)))


#: The way of an attention whose values stand before the turned shares.
COLUMNS = "|3/MatMul"


def values(grower: Grower, path: str) -> str:
    *batch, rows, width = grower.seeds.dims["v"]
    return grower.input("v", (*batch, width, rows) if COLUMNS in path else (*batch, rows, width))


def turned_shares(grower: Grower, path: str, operands: list[str]) -> str:
    """The transpose of the shares, or one of the result's."""
    if COLUMNS not in path:
        return outer_axes_exchanged(grower, path, operands)
    return grower.node("Transpose", operands[0], perm=[0, 1, 3, 2])


def one_row(grower: Grower, path: str) -> str:
    """A part of a product of a condition, one row for all."""
    row = product(grower, path, {"x": grower.input("condition", (2, 1, 4))})
    return lanes(grower, row, 0, 4)


SEEDS: dict[str, Seeds] = {
    "rms_norm": NORM,
    "layer_norm": NORM,
    "l2_norm": NORM,
    "gelu": Seeds(made=HALF),
    "fast_gelu": Seeds(),
    "quick_gelu": Seeds(numbers={"alpha": 1.702}),
    "silu": Seeds(),
    "mish": Seeds(),
    "hard_swish": Seeds(nodes={"HardSigmoid": with_attributes("HardSigmoid", alpha=1 / 6, beta=0.5)}),
    "softcap": Seeds(numbers={"cap": 30.0, "again": 30.0, "inverse": 1 / 30}),
    "matmul_bias": Seeds(),
    "matmul_residual": Seeds(dims={"residual": (2, 3, 4)}),
    "matmul_bias_act": Seeds(
        forms={"product": lambda g, path, x: product(g, path, x) if "|1" in path else gemm(g, path, x)}
    ),
    "gated_act": Seeds(forms={"act": gelu_or_one_relu}, made={"up": lambda g, path: product(g)}),
    "add_norm": Seeds(
        forms={
            "regrouped": lambda g, path, operands: g.node(
                "Reshape",
                g.node("Add", g.input("a", (2, 3, 4)), g.input("b", (2, 3, 4))),
                g.array(np.array([6, 4], np.int64)),
            )
        }
    ),
    "rope": Seeds(
        nodes={
            "Slice": half,
            "Split": split,
            "Reshape": pairs_joined,
            "Squeeze": without_one,
            "Gather": row_of_two,
            "Cast": cast_alone,
        },
        made={
            "x": rotated,
            "first": apart(False),
            "second": apart(True),
            "cos": table("cos"),
            "sin": table("sin"),
        },
        forms={"native": rotation_of_some},
        dims={"whole": (2, 3, 5, WIDTH)},
        weights={},
        skip=frozenset({"raise"}),
    ),
    "qk_norm": Seeds(dims={"wide": (2, 5, 3 * WIDTH)}, nodes={"Reshape": cut_into_heads}),
    "qk_norm_rope": Seeds(forms={"rope": rotary_embedding, "norm": normed_heads}),
    "kv_append": Seeds(
        dims={"past": (2, 3, 4, WIDTH), "new": HEADS},
        nodes={"Concat": with_attributes("Concat", axis=2)},
    ),
    "rope_kv_append": Seeds(forms={"append": joined_to_a_cache, "rope": rotary_embedding}),
    "qk_norm_rope_kv_append": Seeds(forms={"append": joined_to_a_cache, "normed": normed_and_rotated}),
    "ada_norm": Seeds(
        dims={"scale": (2, 1, 4), "shift": (2, 1, 4)},
        forms={"norm": plain_norm},
        made={"factor": one_plus_a_row},
    ),
    "gated_norm": Seeds(dims={"z": (2, 3, 4)}, forms={"act": gate_of_z}, skip=frozenset({"cast"})),
    "gated_residual": Seeds(dims={"x": (2, 3, 4), "y": (2, 3, 4)}, made={"gate": one_row}),
    "attention": Seeds(
        dims={
            "q": (2, 3, 5, 8),
            "k": (2, 3, 8, 7),
            "v": (2, 3, 7, 8),
            "mask": (2, 1, 5, 7),
            "keep": (5, 7),
            "drop": (5, 7),
            "gone": (5, 7),
            "hidden": (2, 1, 5, 7),
        },
        types={"keep": 9, "drop": 9, "gone": 9},
        numbers={"s": 0.5, "c": 20.0, "c2": 20.0, "fill": -1e9, "much": 1e9, "lowest": -1e30},
        nodes={
            "Einsum": with_attributes("Einsum", equation="bhij,bhjk->bhik"),
            "Transpose": turned_shares,
            "Cast": cast_shares,
        },
        made={"v": values},
        # What only fires together with another step is built by hand (tests/test_other_converters.py).
        forms={"columns": lambda g, path, operands: g.node("Softmax", operands["x"], axis=-1)},
        skip=frozenset({"sink", "without_sink", "bound", "turn", "again"}),
    ),
}
