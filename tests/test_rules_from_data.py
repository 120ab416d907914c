"""Each rule from its own data: it fires on the graphs grown from its pattern, every guard broken alone
gives its own code, and a value inside that becomes an output is never lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import onnx
import pytest
from grow import Grower, Grown, Seeds, grown
from onnx import helper, numpy_helper
from rule_seeds import SEEDS, WIDTH, lanes

import chips
import fuse
import reference
from fuse.engine.compiler import Optimized
from fuse.engine.explain import MOVES
from fuse.pattern import Pattern
from fuse.rule import Rule
from fuse.rules.table import RULES

SHIM = chips.load("any")
BY_NAME = {rule.name: rule for rule in RULES}
#: Ways of a pattern that are there for a guard to refuse: (rule, what the way holds) -> the code.
REFUSED = {
    ("attention", "~probabilities=4"): "guard:zeroed_where_dropped",
    ("rope", "Add.0/Mul.0~|=1"): "guard:halves_make_the_whole",
    ("rope", "Unsqueeze.0|=1"): "guard:halves_make_the_whole",
    ("rope", "Unsqueeze.0/Neg.0|=1"): "guard:halves_make_the_whole",
}


def finds(rule: Rule) -> Pattern:
    assert isinstance(rule.finds, Pattern)
    return rule.finds


@cache
def ways(rule: str) -> tuple[Grown, ...]:
    return tuple(grown(finds(BY_NAME[rule]), SEEDS[rule]))


def optimized(model: onnx.ModelProto) -> Optimized:
    return fuse.optimize(fuse.load(model), shim=SHIM)


def fired(found: Optimized, rule: str) -> bool:
    return any(d.rule == rule for d in found.report.decisions if d.outcome.kind == "fired")


def near(found: Optimized, rule: str) -> dict[str, str]:
    """code -> at of the near misses of a rule."""
    return {d.outcome.miss.code: d.outcome.miss.at for d in found.report.near() if d.rule == rule}


# ---- it fires on what is grown from it -------------------------------------------------------------
@pytest.mark.parametrize("rule", SEEDS)
def test_a_rule_fires_on_every_graph_grown_from_its_pattern(rule: str) -> None:
    for one in ways(rule):
        found = optimized(one.model)
        found.graph.verify()
        code = next((code for (name, way), code in REFUSED.items() if name == rule and way in one.way), None)
        if code is None:
            assert fired(found, rule), f"{one.way}: {near(found, rule)}"
            assert not near(found, rule), one.way
        else:
            assert not fired(found, rule), one.way
            assert code in near(found, rule), one.way


@pytest.mark.parametrize("rule", SEEDS)
def test_what_fires_on_a_grown_graph_keeps_its_values(rule: str) -> None:
    for one in ways(rule)[:: max(1, len(ways(rule)) // 6)]:
        found = optimized(one.model)
        assert reference.check(found.before, found.graph).bit_equal, one.way


# ---- every guard, broken alone ---------------------------------------------------------------------
def changed(rule: str, way: str = "as it stands", **seeds: object) -> onnx.ModelProto:
    """The model grown one way with other seeds."""
    base = SEEDS[rule]
    merged = {name: {**getattr(base, name), **value} for name, value in seeds.items()}  # type: ignore[dict-item]
    other = Seeds(**{**vars(base), **merged})  # type: ignore[arg-type]
    return next(one.model for one in grown(finds(BY_NAME[rule]), other) if way in one.way)


def retyped(model: onnx.ModelProto, hint: str, dtype: type) -> onnx.ModelProto:
    """An initializer, found by what its name begins with, in another type."""
    tensor = next(t for t in model.graph.initializer if t.name.startswith(hint))
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    return model


def cast_to_integers(model: onnx.ModelProto) -> onnx.ModelProto:
    """The first cast goes to integers."""
    node = next(node for node in model.graph.node if node.op_type == "Cast")
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("to", onnx.TensorProto.INT32))
    return model


def inserted(
    model: onnx.ModelProto, kind: str, before: str, *more: np.ndarray, **attrs: object
) -> onnx.ModelProto:
    """An operator on the first operand of the first node of a kind."""
    index, node = next((i, n) for i, n in enumerate(model.graph.node) if n.op_type == before)
    names = [f"extra_{i}" for i in range(len(more))]
    model.graph.initializer.extend(map(numpy_helper.from_array, more, names))
    model.graph.node.insert(index, helper.make_node(kind, [node.input[0], *names], ["inserted"], **attrs))
    node.input[0] = "inserted"
    return model


def uneven(grower: Grower, path: str, operands: list[str]) -> str:
    """Parts of which one is a lane too long."""
    width = grower.type(operands[0])[1][-1]
    middle = width // 2 + 1
    return lanes(grower, operands[0], *((middle, width) if "Neg" in path else (0, middle)))


def other_rest(grower: Grower, path: str, operands: list[str]) -> str:
    """What passes leaves a lane out."""
    if operands[0] == "whole":
        return lanes(grower, operands[0], 5, WIDTH)
    return SEEDS["rope"].nodes["Slice"](grower, path, operands)


def wide_product(grower: Grower, path: str) -> str:
    weight = grower.array(np.full((4, 1), 0.5, np.float32), "narrow")
    return grower.node("MatMul", grower.input("x", (2, 3, 4)), weight)


def product_of_another(grower: Grower, path: str) -> str:
    weight = grower.array(np.full((4, 4), 0.5, np.float32), "other")
    return grower.node("MatMul", grower.input("other_x", (2, 3, 4)), weight)


def width_moved(grower: Grower, path: str, operands: list[str]) -> str:
    return grower.node("Transpose", operands[0], perm=[0, 1, 3, 2])


SQUARE_HEADS = (2, 3, WIDTH, WIDTH)


def square_heads(grower: Grower, path: str, operands: dict[str, str]) -> str:
    scale = grower.array(np.linspace(0.5, 1.5, WIDTH).astype(np.float32), "scale")
    return grower.node("LayerNormalization", grower.input("x", SQUARE_HEADS), scale, epsilon=1e-3)


def square_rotation(grower: Grower, path: str, operands: dict[str, str]) -> str:
    angles = [grower.input(name, (2, WIDTH, WIDTH // 2)) for name in ("cos", "sin")]
    return grower.node("RotaryEmbedding", operands["x"], *angles)


DOUBLE, INTEGER, HALF = onnx.TensorProto.DOUBLE, onnx.TensorProto.INT32, np.float16
BY_SUMS = "|=4"
#: Where a smaller rule whose place it is too says it: a cap is a place of its own.
TOLD_BY = {("attention", "caps_agree"): ("softcap", "cap_is_again")}
#: (rule, guard) -> a model in which that condition alone does not hold.
BROKEN: dict[tuple[str, str], Callable[[], onnx.ModelProto]] = {
    ("rms_norm", "narrower_than_f64"): lambda: changed("rms_norm", types={"x": DOUBLE}),
    ("rms_norm", "eps_type_is_x_type"): lambda: retyped(changed("rms_norm"), "eps", HALF),
    ("rms_norm", "weight_spans_last_axis"): lambda: changed("rms_norm", weights={"weight": (3, 1)}),
    ("rms_norm", "casts_to_float"): lambda: cast_to_integers(changed("rms_norm", "Mul.0~casts=1")),
    ("layer_norm", "narrower_than_f64"): lambda: changed("layer_norm", types={"x": DOUBLE}),
    ("layer_norm", "eps_type_is_x_type"): lambda: retyped(changed("layer_norm"), "eps", HALF),
    ("layer_norm", "weight_spans_last_axis"): lambda: changed("layer_norm", weights={"weight": (3, 1)}),
    ("layer_norm", "bias_spans_last_axis"): lambda: changed("layer_norm", weights={"bias": (3, 1)}),
    ("layer_norm", "casts_to_float"): lambda: cast_to_integers(changed("layer_norm", "Mul.0~casts=1")),
    ("layer_norm", "average_is_over_the_width"): lambda: changed(
        "layer_norm", BY_SUMS, numbers={"per_width": 0.2}
    ),
    ("layer_norm", "sums_are_put_back"): lambda: sums_beside_lanes(),
    ("l2_norm", "narrower_than_f64"): lambda: changed("l2_norm", types={"x": DOUBLE}),
    ("l2_norm", "eps_type_is_x_type"): lambda: retyped(changed("l2_norm"), "eps", HALF),
    **{
        (rule, "float_type"): (lambda rule=rule: changed(rule, types={"x": INTEGER}))
        for rule in ("gelu", "fast_gelu", "quick_gelu", "silu", "mish", "hard_swish", "softcap")
    },
    ("hard_swish", "slope_is_one_sixth"): lambda: changed(
        "hard_swish", "|=1", nodes={"HardSigmoid": lambda g, path, x: g.node("HardSigmoid", *x, alpha=0.2)}
    ),
    ("softcap", "cap_is_again"): lambda: changed("softcap", numbers={"again": 20.0}),
    ("rope", "halves_make_the_whole"): lambda: changed("rope", "|=1", nodes={"Slice": uneven}),
    ("rope", "rest_completes"): lambda: changed("rope", nodes={"Slice": other_rest}),
    ("rope", "tables_broadcast"): lambda: tables_of_each_batch(),
    ("rope", "casts_to_float"): lambda: cast_to_integers(changed("rope", "~casts=1")),
    ("attention", "casts_to_float"): lambda: cast_to_integers(changed("attention", "~scores=7")),
    ("attention", "floor_stands_above_masks"): lambda: inserted(
        changed("attention", "~scores=10"), "Add", "Softmax", np.zeros((5, 5), np.float32)
    ),
    ("attention", "masks_lie_over_the_scores"): lambda: changed(
        "attention", "~scores=9", dims={"mask": (1, 1, 1, 5, 7)}
    ),
    ("attention", "softmax_runs_over_the_keys"): lambda: turned_back(),
    ("attention", "products_fit"): lambda: changed("attention", dims={"k": (3, 8, 7)}),
    ("attention", "scale_stands_below_masks"): lambda: inserted(
        changed("attention", "~scores=9"), "Mul", "Softmax", np.array(0.5, np.float32)
    ),
    ("attention", "caps_agree"): lambda: changed("attention", "~scores=4", numbers={"c2": 10.0}),
    ("attention", "sink_is_cut_off"): lambda: sink_left(),
    ("attention", "factor_is_of_unit_vectors"): lambda: inserted(
        changed("attention"), "Mul", "Softmax", np.linspace(0.5, 1, 3, dtype=np.float32).reshape(3, 1, 1)
    ),
    ("attention", "zeroed_where_dropped"): lambda: changed("attention", "~probabilities=4"),
    ("matmul_bias", "bias_has_one_axis"): lambda: changed("matmul_bias", weights={"bias": (1,)}),
    ("matmul_bias", "bias_is_a_row"): lambda: changed("matmul_bias", weights={"bias": (3, 1)}),
    ("matmul_bias", "layout_leaves_rows"): lambda: changed(
        "matmul_bias",
        "layout=2",
        nodes={"Transpose": lambda g, path, x: g.node("Transpose", *x, perm=[0, 2, 1])},
        weights={"bias": (4,)},
        dims={"x": (2, 4, 4)},
    ),
    ("matmul_bias_act", "bias_is_of_the_products_width"): lambda: changed(
        "matmul_bias_act", "|=1", weights={"bias": (1,)}
    ),
    ("gated_act", "halves_are_one_width"): lambda: changed("gated_act", made={"up": wide_product}),
    ("gated_act", "halves_are_of_one_activation"): lambda: changed(
        "gated_act", made={"up": product_of_another}
    ),
    ("matmul_residual", "residual_has_the_shape"): lambda: changed(
        "matmul_residual", dims={"residual": (1, 3, 4)}
    ),
    ("add_norm", "one_addend_is_the_sum"): lambda: changed("add_norm", dims={"a": (2, 1, 4), "b": (1, 3, 4)}),
    ("kv_append", "past_stands_first"): lambda: past_joined_last(),
    ("kv_append", "rows_join_on_the_sequence_axis"): lambda: heads_joined_as_rows(),
    ("qk_norm_rope", "transpose_keeps_width"): lambda: changed(
        "qk_norm_rope",
        "between=1",
        nodes={"Transpose": width_moved},
        forms={"norm": square_heads, "rope": square_rotation},
    ),
}


def heads_joined_as_rows() -> onnx.ModelProto:
    """A cache that grows along its heads, read by an attention that calls another axis its rows."""
    make = Grower(Seeds(), {})
    return cached(make, make.input("past", (2, 3, 4, 8)), make.input("new", (2, 3, 4, 8)), 1, (2, 6, 4, 8))


def past_joined_last() -> onnx.ModelProto:
    """New rows joined before those of the cache."""
    make = Grower(Seeds(), {})
    new = make.node("Abs", make.input("new", (2, 3, 4, 8)))
    return cached(make, new, make.input("past", (2, 3, 4, 8)), 2, (2, 3, 8, 8))


def cached(make: Grower, one: str, two: str, axis: int, dims: tuple[int, ...]) -> onnx.ModelProto:
    """An attention over the keys that two values are joined to, along an axis."""
    key = make.node("Concat", one, two, axis=axis)
    q, v = make.input("q", (*dims[:2], 5, 8)), make.input("v", dims)
    scores = make.node("MatMul", q, make.node("Transpose", key, perm=[0, 1, 3, 2]))
    return make.model(make.node("MatMul", make.node("Softmax", scores, axis=-1), v), key)


def sums_beside_lanes() -> onnx.ModelProto:
    """Sums that dropped their axis and meet the lanes of a square x."""

    def dropping(grower: Grower, path: str, operands: list[str]) -> str:
        axes = grower.array(np.array([-1], np.int64), "axes")
        return grower.node("ReduceSum", *operands, axes, keepdims=0)

    return changed("layer_norm", BY_SUMS, dims={"x": (4, 4)}, nodes={"ReduceSum": dropping})


def tables_of_each_batch() -> onnx.ModelProto:
    return changed("rope", made={"cos": lambda g, path: g.input("cos", (1, 2, 3, 5, 4))})


def turned_back() -> onnx.ModelProto:
    """A softmax over the last axis but one, of scores that are not turned after it."""
    model = changed("attention")
    node = next(node for node in model.graph.node if node.op_type == "Softmax")
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("axis", -2))
    return model


def sink_left() -> onnx.ModelProto:
    """A column joined to the scores that stays among the probabilities, and a row of v for it."""
    sinks = np.zeros((2, 3, 5, 1), np.float32)
    return inserted(changed("attention", dims={"v": (2, 3, 8, 8)}), "Concat", "Softmax", sinks, axis=-1)


#: Guards that a test of another file breaks, with the rules they belong to.
ELSEWHERE = frozenset({"weights_are_rows"})


def guards() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        if rule.name in SEEDS:
            yield from ((rule.name, guard.name) for guard in rule.needs)


@pytest.mark.parametrize(("rule", "name"), BROKEN)
def test_a_guard_broken_alone_gives_its_own_code(rule: str, name: str) -> None:
    model = BROKEN[rule, name]()
    rule, name = TOLD_BY.get((rule, name), (rule, name))
    guard = next(guard for guard in BY_NAME[rule].needs if guard.name == name)
    found = optimized(model)
    said = [d.outcome.miss for d in found.report.near() if d.rule == rule]
    assert [(miss.code, miss.want) for miss in said] == [(guard.code, guard.want)], said


def test_no_guard_is_left_out() -> None:
    ours = {(rule, name) for rule, name in guards() if name not in ELSEWHERE}
    others = {(rule, name) for rule, name in ours if rule in ("ada_norm", "gated_norm", "gated_residual")}
    assert ours - others == set(BROKEN)


# ---- every value inside as an output ---------------------------------------------------------------
@pytest.mark.parametrize("rule", SEEDS)
def test_an_inner_value_as_an_output_is_never_lost(rule: str) -> None:
    """Each in turn: the outputs keep their values bit for bit; the rule says why it does not fire
    there, or a smaller form of it fires, or another rule that needs less."""
    model = ways(rule)[0].model
    clean = optimized(model)
    whole = next(d for d in clean.report.decisions if d.rule == rule and d.outcome.kind == "fired")
    ops = (op for op in clean.before.base.lifted if op.path in whole.ops and op.kind not in MOVES)
    inner = [op.path for op in ops if op.path != whole.root]
    for value in inner:
        marked = onnx.ModelProto()
        marked.CopyFrom(model)
        marked.graph.output.add().name = value
        found = optimized(marked)
        assert reference.check(found.before, found.graph).bit_equal, value
        assert value in found.graph.outputs
        smaller = [d for d in found.report.decisions if d.outcome.kind == "fired" and d.rule == rule]
        told = near(found, rule)
        assert told.get("graph_output") == value or smaller or others_need_less(found, whole.ops), value


def others_need_less(found: Optimized, ops: tuple[str, ...]) -> bool:
    """Whether another rule took most of the place."""
    taken = [d for d in found.report.decisions if d.outcome.kind == "fired" and set(d.ops) & set(ops)]
    return bool(taken)
