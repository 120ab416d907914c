"""Public bug reports of other optimizers about attention, rotations and caches.

Each is a small model of its own, and what a right one does; a docstring says what goes wrong elsewhere, and
where it was reported."""

from __future__ import annotations

import numpy as np
import pytest
from building import Building
from holding import built, counts, held, missed, nothing
from onnx import TensorProto


def test_sdpa_custom_scale() -> None:
    """The scores are divided by less than one; the form carries the scale.

    pytorch/pytorch#174049, #174361
    """
    g = Building(opset=17)
    q, k, v = (g.input(name, 2, 2, 5, 4) for name in "qkv")
    mask = g.input("mask", 1, 1, 5, 5)
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.op("Add", g.op("Div", scores, g.constant(0.5)), mask)
    found = held(g.model(g.op("MatMul", g.op("Softmax", scores, axis=-1), v)))
    assert built(found, "attention").attrs["scale"] == pytest.approx(2.0)


def test_softmax12_flattens() -> None:
    """In opset 12 a softmax without axis is over all but the batch.

    apache/tvm#19420, microsoft/onnxruntime#17833
    """
    g = Building(opset=12)
    q, k, v = (g.input(name, 2, 2, 5, 4) for name in "qkv")
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    weights = g.op("Softmax", g.op("Mul", scores, g.constant(0.5)))
    found = held(g.model(g.op("MatMul", weights, v)))
    nothing(found, "attention", "attention_block")
    (row,) = found.report.near("attention")
    assert row.reasons[0].code == "attribute"
    assert getattr(row.reasons[0], "at", "") == weights


def test_rope_interleaved() -> None:
    """Even and odd lanes are the pairs, not halves.

    microsoft/onnxruntime#29261, microsoft/onnxscript#2450
    """
    g = Building(opset=17)
    x = g.input("x", 1, 3, 5, 4)
    end, axis, step = g.ints(2**62), g.ints(3), g.ints(2)
    even, odd = (g.op("Slice", x, g.ints(start), end, axis, step) for start in (0, 1))
    pairs = [g.op("Unsqueeze", lanes, g.ints(4)) for lanes in (g.op("Neg", odd), even)]
    turned = g.op("Reshape", g.op("Concat", *pairs, axis=4), g.ints(1, 3, 5, 4))
    angles = np.repeat(np.outer(np.arange(5), [1.0, 0.1]), 2, axis=1)[None, None]
    cos, sin = (g.constant(table.astype(np.float32)) for table in (np.cos(angles), np.sin(angles)))
    found = held(g.model(g.op("Add", g.op("Mul", x, cos), g.op("Mul", turned, sin))))
    assert built(found, "rope").attrs["form"] == "interleaved"
    nothing(found, "qk_norm_rope")


def test_kv_concat_is_output() -> None:
    """The joined rows go to the caller as well.

    microsoft/onnxscript#2634, #2632
    """
    g = Building(opset=17)
    pasts = [g.input(name, 1, 2, "past", 4) for name in ("past_k", "past_v")]
    q, *new = (g.input(name, 1, 2, 1, 4) for name in ("q", "k_new", "v_new"))
    k, v = (g.op("Concat", past, rows, axis=2) for past, rows in zip(pasts, new, strict=True))
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    weights = g.op("Softmax", g.op("Mul", scores, g.constant(0.5)), axis=-1)
    found = held(g.model(k, v, g.op("MatMul", weights, v)), dims={"past": 3})
    assert counts(found)["kv_append"] == 2
    assert counts(found)["attention"] == 1
    assert found.graph.outputs[:2] == (k, v)


def plain(g: Building, *more: str, axis: int = -1) -> tuple[str, str]:
    """Scores of q and k through an Add for each more, their softmax; and v."""
    q, k, v = (g.input(name, 1, 2, 5, 4) for name in "qkv")
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.op("Mul", scores, g.constant(0.5))
    for mask in more:
        scores = g.op("Add", scores, mask)
    return g.op("Softmax", scores, axis=axis), v


def test_a_softmax_over_the_rows() -> None:
    """Over the last axis but one each key's weights sum to one, not each row's.

    apache/tvm#19420
    """
    g = Building(opset=17)
    found = held(g.model(g.op("MatMul", *plain(g, axis=-2))))
    nothing(found, "attention")
    (row,) = found.report.near("attention")
    assert (row.reasons[0].code, getattr(row.reasons[0], "got", "")) == ("attribute", "axis=-2")


@pytest.mark.parametrize("dims", [(1, 1, 1, 5, 5), (3, 1, 1, 5, 5), (3, 1, 5, 5), (1, 4, 5, 5)])
@pytest.mark.parametrize("known", [True, False])
def test_a_mask_that_widens_the_scores(dims: tuple[int, ...], known: bool) -> None:
    """More axes, more batches or more heads than q has: the result has them too.

    hyunwoongko/transformer#32, inisis/OnnxSlim#323
    """
    g = Building(opset=17)
    if dims == (1, 4, 5, 5):
        q, k, v = (g.input(name, 1, 1, 5, 4) for name in "qkv")
    else:
        q, k, v = (g.input(name, 1, 2, 5, 4) for name in "qkv")
    mask = g.weight(*dims) if known else g.input("mask", *dims)
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    weights = g.op("Softmax", g.op("Add", g.op("Mul", scores, g.constant(0.5)), mask), axis=-1)
    found = held(g.model(g.op("MatMul", weights, v)))
    nothing(found, "attention")
    (row,) = found.report.near("attention")
    assert (row.reasons[0].code, getattr(row.reasons[0], "at", "")) == ("operand", mask)


@pytest.mark.parametrize("place", ["keep", "fill"])
def test_a_choice_that_widens_the_scores(place: str) -> None:
    """The condition has more batches than q, or the fill is a number of five axes.

    hyunwoongko/transformer#32, inisis/OnnxSlim#323
    """
    g = Building(opset=17)
    q, k, v = (g.input(name, 1, 2, 5, 4) for name in "qkv")
    keep = g.input("keep", 3 if place == "keep" else 1, 1, 5, 5, dtype=TensorProto.BOOL)
    fill = g.constant(np.full((1,) * (5 if place == "fill" else 0), -1e9, np.float32))
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    weights = g.op("Softmax", g.op("Where", keep, scores, fill), axis=-1)
    found = held(g.model(g.op("MatMul", weights, v)))
    nothing(found, "attention")
    (row,) = found.report.near("attention")
    at = getattr(row.reasons[0], "at", "")
    assert (row.reasons[0].code, at) == ("operand", keep if place == "keep" else fill)


def test_no_keys_at_all() -> None:
    """The first step of a decoder without a prompt: nothing is weighed, and the result is 0.

    microsoft/onnxruntime#26878
    """
    g = Building(opset=17)
    q, k, v = g.input("q", 1, 2, 3, 4), g.input("k", 1, 2, 0, 4), g.input("v", 1, 2, 0, 6)
    weights = g.op("Softmax", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
    assert counts(held(g.model(g.op("MatMul", weights, v))))["attention"] == 1


def test_padding_anywhere_in_the_row() -> None:
    """A mask of 0 and 1 with holes is no count of keys from the left.

    microsoft/onnxruntime#18945, #4889
    """
    g = Building(opset=17)
    keep = g.input("keep", 1, 5, dtype=TensorProto.INT64)
    wide = g.op("Cast", g.op("Unsqueeze", keep, g.ints(1, 2)), to=TensorProto.FLOAT)
    mask = g.op("Mul", g.op("Sub", g.constant(1.0), wide), g.constant(-10000.0))
    model = g.model(g.op("MatMul", *plain(g, mask)))
    fed = {
        n: np.random.default_rng(i).normal(size=(1, 2, 5, 4)).astype(np.float32) for i, n in enumerate("qkv")
    }
    op = built(held(model, feeds={**fed, "keep": np.array([[0, 1, 1, 0, 1]])}), "attention")
    assert op.attrs["mask"] == ("add",)
    assert not op.attrs.get("causal")


@pytest.mark.parametrize("window", [False, True])
def test_a_mask_is_not_causal_for_being_there(window: bool) -> None:
    """Of a vision encoder, or of a decoder that looks back two rows only: the mask stays an operand.

    microsoft/onnxruntime#25360
    """
    g = Building(opset=17)
    seen = np.tril(np.ones((5, 5))) * np.triu(np.ones((5, 5)), -1) if window else np.triu(np.ones((5, 5)))
    mask = g.constant(np.where(seen > 0, 0, -np.inf).astype(np.float32))
    op = built(held(g.model(g.op("MatMul", *plain(g, mask)))), "attention")
    assert mask in op.inputs
    assert not op.attrs.get("causal")


def test_two_masks_that_overflow_together() -> None:
    """The lowest number twice is minus infinity, so rows with every key hidden are no numbers.

    robertknight/rten#1321, pytorch/pytorch#41508, #160064, ml-explore/mlx#2608, pytorch/pytorch#100318
    """
    g = Building(opset=17)
    masks = [g.input(name, 1, 1, 5, 5) for name in ("one", "two")]
    model = g.model(g.op("MatMul", *plain(g, *masks)))
    lowest = np.zeros((1, 1, 5, 5), np.float32)
    lowest[..., 1, 2:] = lowest[..., 3, :] = np.finfo(np.float32).min
    fed = {
        n: np.random.default_rng(i).normal(size=(1, 2, 5, 4)).astype(np.float32) for i, n in enumerate("qkv")
    }
    found = held(model, feeds={**fed, "one": lowest, "two": lowest})
    assert len(built(found, "attention").attrs["mask"]) == 2


def test_probabilities_that_are_handed_out() -> None:
    """A caller asks for the attentions: they must be written.

    huggingface/optimum#325
    """
    g = Building(opset=17)
    weights, v = plain(g)
    found = held(g.model(g.op("MatMul", weights, v), weights))
    nothing(found, "attention")
    assert missed(found, "attention") == {"graph_output"}


def test_scores_scaled_after_their_mask() -> None:
    """The mask is scaled with them, which no attention operator does.

    pytorch/pytorch#174049
    """
    g = Building(opset=17)
    q, k, v = (g.input(name, 1, 2, 5, 4) for name in "qkv")
    scores = g.op("Add", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), g.input("mask", 5, 5))
    weights = g.op("Softmax", g.op("Mul", scores, g.constant(0.5)), axis=-1)
    found = held(g.model(g.op("MatMul", weights, v)))
    nothing(found, "attention")
    assert missed(found, "attention") == {"guard:scale_stands_below_masks"}


@pytest.mark.parametrize(("keys", "values"), [(2, 2), (1, 1), (2, 1)])
def test_heads_repeated_each_or_as_a_whole(keys: int, values: int) -> None:
    """k k l l are other heads than k l k l; keys in one order and values in the other are a third thing.

    microsoft/onnxruntime#19200
    """
    g = Building(opset=17)
    q = g.input("q", 1, 4, 5, 4)

    def repeated(name: str, axis: int) -> str:
        opened = g.op("Unsqueeze", g.input(name, 1, 2, 5, 4), g.ints(axis))
        return g.op("Reshape", g.op("Expand", opened, g.ints(1, 2, 2, 5, 4)), g.ints(1, 4, 5, 4))

    k, v = repeated("k", keys), repeated("v", values)
    weights = g.op("Softmax", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
    op = built(held(g.model(g.op("MatMul", weights, v))), "attention")
    assert op.attrs.get("groups", 1) == (2 if (keys, values) == (2, 2) else 1)


def rotation(g: Building, first: tuple[int, ...], second: tuple[int, ...], negated: int = 1) -> str:
    x = g.input("x", 1, 2, 3, 4)
    halves = [
        g.op("Slice", x, *(g.ints(bound) for bound in (*bounds[:2], -1, *bounds[2:])))
        for bounds in (first, second)
    ]
    halves[negated] = g.op("Neg", halves[negated])
    turned = g.op("Concat", halves[1], halves[0], axis=-1)
    angles = [g.input(name, 3, 4) for name in ("cos", "sin")]
    return g.op("Add", g.op("Mul", x, angles[0]), g.op("Mul", turned, angles[1]))


def test_halves_counted_from_the_end() -> None:
    """Bounds below zero, and a last one beyond the end.

    microsoft/onnxruntime#19423
    """
    g = Building(opset=17)
    assert counts(held(g.model(rotation(g, (0, -2, 1), (-2, 2**62, 1)))))["rope"] == 1


@pytest.mark.parametrize("case", ["backwards", "uneven", "minus"])
def test_halves_that_are_none(case: str) -> None:
    """The second half read backwards, one lane and three, the minus on the first half.

    apple/coreai-models#66, inisis/OnnxSlim#277, alibaba/heterogeneity-aware-lowering-and-optimization#275
    """
    g = Building(opset=17)
    bounds = {"backwards": ((0, 2, 1), (3, 1, -1)), "uneven": ((0, 1, 1), (1, 4, 1))}
    first, second = bounds.get(case, ((0, 2, 1), (2, 4, 1)))
    found = held(g.model(rotation(g, first, second, negated=int(case != "minus"))))
    nothing(found, "rope")
    assert missed(found, "rope") == {"guard:halves_make_the_whole"}


def test_a_split_with_an_empty_operand() -> None:
    """The sizes of the parts are optional: an empty name is none.

    microsoft/onnxruntime#7075
    """
    g = Building(opset=17)
    x = g.input("x", 1, 2, 3, 4)
    first, second = g.op("Split", x, "", outputs=2, axis=-1)
    turned = g.op("Concat", g.op("Neg", second), first, axis=-1)
    angles = [g.input(name, 3, 4) for name in ("cos", "sin")]
    y = g.op("Add", g.op("Mul", x, angles[0]), g.op("Mul", turned, angles[1]))
    assert counts(held(g.model(y)))["rope"] == 1


def test_a_mask_of_more_batches_than_the_file_says() -> None:
    """Their sizes have two names, and are one and three when the model runs.

    hyunwoongko/transformer#32
    """
    g = Building(opset=17)
    q, k, v = (g.input(name, "batch", 2, 5, 4) for name in "qkv")
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    weights = g.op("Softmax", g.op("Add", scores, g.input("mask", "masks", 1, 5, 5)), axis=-1)
    held(g.model(g.op("MatMul", weights, v)), dims={"batch": 1, "masks": 3})
