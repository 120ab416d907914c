"""Each named constraint, broken alone, refuses with its own code, what it wants and what it got."""

# ruff: noqa: E501  (a table of cases reads best with a case a line)

from __future__ import annotations

import numpy as np
import pytest
from candidates import candidate, constant

from chips.constraints import CONSTRAINTS, NEEDS, check, given
from chips.operands import Operands
from chips.schema import Limits
from fuse.classes import CLASSES
from fuse.ir import Op
from fuse.shim import Candidate, Limit
from fuse.types import Type, symbol

NORM = ({"x": "f32[2,3,8]", "weight": "= f32[8]"}, {"eps": 1e-5})
ADD = ({"x": "f32[B,3,8]", "residual": "f32[B,3,8]", "weight": "= f32[8]"}, {"eps": 1e-5})
PRODUCT = ({"x": "f32[4,8]", "weight": "= f32[8,6]", "bias": "= f32[6]"}, {})
MERGED = (
    {"x": "f32[4,8]", "weight.1": "= f32[8,6]", "weight.2": "= f32[8,2]"},
    {"biases": (0, 0), "trans_weights": (0, 0)},
)
ATTENTION = (
    {"q": "f32[B,8,S,64]", "k": "f32[B,2,P + S,64]", "v": "f32[B,2,P + S,64]", "mask.1": "f32[B,1,S,P + S]"},
    {
        "q_layout": "b h s d", "k_layout": "b h s d", "v_layout": "b h s d", "out_layout": "b h s d",
        "heads": 8, "groups": 4, "scale": 0.125, "mask": ("add",),
    },
)  # fmt: skip
ROPE = ({"x": "f32[B,4,S,8]", "cos": "f32[S,4]", "sin": "f32[S,4]"}, {"tables": "half"})
MIXTURE = (
    {"x": "f32[N,8]", "scores": "f32[N,4]", "first.1": "= f32[4,32,8]", "down.1": "= f32[4,8,16]"},
    {"experts": 4, "k": 2, "gating": "lanes", "trans_first": 1, "trans_down": 1},
)
QUANTIZED = (
    {"x": "f32[4,64]", "codes": "= u8[8,2,16]", "scales": "= f32[16]"},
    {"bits": 4, "storage": "blocks", "granularity": "block", "block_size": 32},
)
IN_CODES = (
    {
        "x": "u8[4,64]", "codes": "= u8[64,16]", "scales": "= f32[]", "x_scale": "= f32[]",
        "x_zero_point": "= u8[]", "code_scale": "= f32[]", "code_zero_point": "= u8[]",
    },
    {"bits": 8, "activation": "static", "y_codes": "u8"},
)  # fmt: skip

DELTA = (
    {"q": "f32[B,S,16,128]", "k": "f32[B,S,16,128]", "v": "f32[B,S,32,128]", "decay": "f32[B,S,32]", "beta": "f32[B,S,32]", "state": "f32[B,32,128,128]"},
    {
        "q_layout": "b s h d", "k_layout": "b s h d", "v_layout": "b s h d", "out_layout": "b s h d", "decay_layout": "b s h",
        "beta_layout": "b s h", "heads": 32, "key_heads": 16,
    },
)  # fmt: skip
SHORT = ({"x": "f32[B,8,S]", "weight": "= f32[8,1,4]", "state": "f32[B,8,3]"}, {})


def made(
    kind: str, base: tuple, operands: dict | None = None, attrs: dict | None = None, **more
) -> Candidate:
    """The candidate of a class with some operands or attributes changed (None takes one out)."""
    types = {k: v for k, v in (base[0] | (operands or {})).items() if v is not None}
    return candidate(kind, types, base[1] | (attrs or {}), **more)


#: constraint -> (class, a good candidate, its figures, what breaks it, want, got)
CASES = {
    "dtypes": ("rms_norm", NORM, ["f32", "f16"], ({"x": "f64[2,3,8]"}, {}), "element type one of f32, f16", "x is f64"),
    "one_dtype": ("rms_norm", NORM, True, ({"x": "f16[2,3,8]"}, {}), "float operands of one element type", "x is f16, weight is f32"),
    "compute": ("rms_norm", NORM, ["f32"], ({}, {"compute": "f64"}), "computes in the type of x or f32", "computes in f64"),
    "known_dims": ("rms_norm", NORM, True, None, "every shape known", "an axis of x unknown (D): try --dim D=1"),
    "rank": ("rms_norm", NORM, {"one_of": [2, 3]}, ({"x": "f32[1,2,3,8]"}, {}), "rank of x one of 2, 3", "4"),
    "weight_rank": ("matmul_bias", PRODUCT, {"one_of": [2]}, ({"weight": "= f32[2,8,6]"}, {}), "rank of each weight 2, leading unit axes aside", "3"),
    "width": ("rms_norm", NORM, {"at_most": 8}, ({"x": "f32[2,16]"}, {}), "last axis of x at most 8", "16"),
    "batch_rows": ("rms_norm", NORM, {"at_most": 6}, ({"x": "f32[2,4,8]"}, {}), "rows of x over its whole batch at most 6", "8"),
    "contraction": ("matmul_bias", PRODUCT, {"multiple_of": 4}, ({"x": "f32[4,6]"}, {}), "contracted width a multiple of 4", "6"),
    "rows": ("rms_norm", NORM, ["weight"], ({"weight": "f32[3,8]"}, {}), "weight: one row as long as the last axis", "weight is f32[3,8]"),
    "known_width": ("rms_norm", NORM, True, None, "a known last axis of x where the weight is absent", "last axis of x unknown (D): try --dim D=1"),
    "residual": ("add_norm", ADD, ["same", "rows", "one_batch"], ({"residual": "f32[8]"}, {}), "residual shaped like x, one of same, rows, one batch", "f32[B,3,8] and f32[8]"),
    "residual_fits": ("matmul_residual", PRODUCT, True, ({"residual": "f32[2,4,6]"}, {}), "residual that broadcasts to the product", "residual f32[2,4,6] of a product f32[4,6]"),
    "norm": ("add_norm", ADD, ["rms"], ({}, {"norm": "layer"}), "norm rms", "layer"),
    "inner_norm": ("norm_add_norm", ADD, ["rms"], ({}, {"inner_norm": "layer"}), "inner norm rms", "layer"),
    "eps_at": ("l2_norm", NORM, ["none"], ({}, {"eps_at": "clip"}), "place of eps none", "eps 1e-05 (clip)"),
    "offset": ("rms_norm", NORM, "constant", ({"weight": "f32[8]"}, {"offset": 1.0}), "offset of the weight: none, or of a constant weight", "offset 1 of a weight that changes at run time"),
    "bias": ("matmul_residual", ({"x": "f32[4,8]", "weight": "f32[8,6]"}, {}), False, ({"bias": "f32[6]"}, {}), "no bias", "bias bias"),
    "scales": ("matmul_bias", PRODUCT, False, ({}, {"alpha": 0.5}), "no factor on the product or the bias", "alpha 0.5"),
    "transposed": ("matmul_bias", PRODUCT, ["weight"], ({}, {"trans_x": 1}), "no operand transposed but weight", "x is transposed"),
    "constant": ("matmul_bias", PRODUCT, ["weight"], ({"weight": "f32[8,6]"}, {}), "constant weight", "weight weight changes at run time"),
    "max_members": ("merged_products", MERGED, 2, ({"weight.3": "= f32[8,2]"}, {"biases": (0, 0, 0)}), "at most 2 products", "3"),
    "max_weight_bytes": ("merged_products", MERGED, 256, ({"weight.2": "= f32[8,3]"}, {}), "at most 256 bytes of weights in all", "288"),
    "activation": ("swiglu", ({"gate": "f32[8]", "up": "f32[8]"}, {}), ["silu"], ({}, {"act": "gelu"}), "activation silu", "gelu"),
    "slope": ("quick_gelu", ({"x": "f32[8]"}, {"alpha": 1.0}), [1.0, 1.702], ({}, {"alpha": 2.0}), "slope of the activation one of 1, 1.702", "2"),
    "form": ("rope", ROPE, ["half"], ({}, {"form": "interleaved"}), "pairs of lanes taken as half", "interleaved"),
    "tables": ("rope", ROPE, "half", ({}, {"tables": "full"}), "angles given as tables of one entry a pair", "tables that span the rotated width"),
    "table_axes": ("rope", ROPE, ["for_all_batches"], ({"cos": "f32[S,1,4]"}, {}), "cos and sin given for all batches", "cos f32[S,1,4] of x f32[B,4,S,8]"),
    "position_ids": ("rope", ROPE, False, ({"position_ids": "i64[B,S]"}, {"position_ids": True}), "rows of cos and sin already selected", "rows selected by position_ids"),
    "partial": ("rope", ROPE, False, ({}, {"rotary_dim": 4}), "rotation of the whole width", "4 of 8 lanes"),
    "head_dim": ("attention", ATTENTION, {"one_of": [64, 80], "pairs": [[96, 64]]}, ({"q": "f32[B,8,S,88]", "k": "f32[B,2,S,88]", "v": "f32[B,2,S,88]"}, {}), "head width one of 64, 80, or 96 with v 64", "88"),
    "mask": ("attention", ATTENTION, ["none", "additive"], ({}, {"mask": ("keep",)}), "mask one of none, additive", "bool"),
    "mask_folded": ("attention", ATTENTION, False, ({}, {"mask_layouts": ("bh s t",)}), "mask with batch and heads on axes of their own", "mask of axes bh s t"),
    "softcap": ("attention", ATTENTION, "before_mask", ({}, {"softcap": 30.0, "mask": ("cap", "add")}), "softcap of the scores: before the mask", "after the mask"),
    "positive_scale": ("attention", ATTENTION, True, ({}, {"scale": -0.125}), "scale of the scores above 0", "-0.125"),
    "groups": ("attention", ATTENTION, {"at_most": 4}, ({}, {"groups": 8}), "query heads a key head at most 4", "8"),
    "q_len": ("attention", ATTENTION, {"at_least": 0}, None, "rows of q at most 8", "rows of q unknown (S): try --dim S=1"),
    "q_len_groups": ("attention", ATTENTION, {"at_least": 0}, None, "rows of q times query heads a key head at most 8", "rows of q times heads unknown (4*S): try --dim S=1"),
    "kv_len": ("attention", ATTENTION, {"at_least": 0}, None, "rows of k at most 8", "rows of k unknown (P + S): try --dim P=1 --dim S=1"),
    "q_within_kv": ("attention", ATTENTION, True, ({"q": "f32[1,8,9,64]", "k": "f32[1,2,7,64]"}, {}), "no more rows of q than of k", "9 rows of q, 7 of k"),
    "scoring": ("moe", MIXTURE, ["softmax"], ({}, {"scoring": "softmax_chosen"}), "weights of the experts by softmax", "softmax chosen"),
    "selection": ("moe", MIXTURE, ["scores"], ({}, {"selection": "separate"}), "experts chosen by scores", "separate"),
    "plain_weights": ("moe", MIXTURE, True, ({}, {"route_scale": 2.5, "sum_eps": 1e-20}), "no factor on the experts' weights and nothing added to their sum", "factor 2.5, 1e-20 added"),
    "gating": ("moe", MIXTURE, ["none", "lanes"], ({}, {"gating": "halves"}), "gate and up of an expert given as one of none, lanes", "halves"),
    "limited": ("moe", MIXTURE, False, ({}, {"limit": 7.0, "up_offset": 1.0}), "no limit on gate and up and nothing added to up", "limit 7, 1 added to up"),
    "stacked": ("moe", MIXTURE, True, ({}, {"trans_down": 0}), "the experts' weights stacked, an expert's [out, in]", "down weight [in, out]"),
    "float_types": ("quantized_matmul", QUANTIZED, ["f32"], ({"x": "f16[4,64]"}, {}), "x, scales and bias in floats of element type f32", "x is f16"),
    "codes": ("quantized_matmul", QUANTIZED, ["u8"], ({"codes": "= i4[8,64]"}, {}), "codes of element type u8", "codes are i4"),
    "code_pairs": ("quantized_matmul", IN_CODES, [["u8", "i8"], ["u8", "u8"]], ({"codes": "= i8[64,16]"}, {"y_codes": "i8"}), "x and weight in codes of one of u8 and i8, u8 and u8, a result in codes in those of x", "u8 and i8, the result in i8"),
    "bits": ("quantized_matmul", QUANTIZED, {"one_of": [4, 8]}, ({}, {"bits": 2}), "bits of a code: one of 4, 8", "2"),
    "storage": ("quantized_matmul", QUANTIZED, ["blocks"], ({}, {"storage": "values"}), "codes stored as blocks", "values"),
    "granularity": ("quantized_matmul", QUANTIZED, ["block"], ({}, {"granularity": "tensor"}), "a scale for each block", "tensor"),
    "block_size": ("quantized_matmul", QUANTIZED, {"multiple_of": 32}, ({}, {"block_size": 16}), "inputs that share a scale: a multiple of 32", "16"),
    "x_rounded": ("quantized_matmul", QUANTIZED, ["none"], ({"x": "u8[4,64]"}, {}), "what x is rounded to: none", "codes"),
    "plus_residual": ("ada_norm", NORM, False, ({"residual": "f32[2,3,8]"}, {}), "no residual added", "residual residual"),
    "result_codes": ("conv_act", ({"x": "f32[1,2,8]"}, {"act": "relu"}), False, ({"code_scale": "= f32[1]"}, {"codes": "u8"}), "a result that is not rounded to codes", "rounded to u8"),
    "ids": ("embed_norm", ({"word_ids": "i32[1,3]", "word": "= f32[9,8]"}, {"eps": 1e-5}), ["i32"], ({"word_ids": "i64[1,3]"}, {}), "ids of element type i32", "word ids are i64"),
    "key_width": ("gated_delta", DELTA, {"one_of": [128]}, ({"q": "f32[B,S,16,64]", "k": "f32[B,S,16,64]"}, {}), "width of a key 128", "64"),
    "value_width": ("gated_delta", DELTA, {"one_of": [128]}, ({"v": "f32[B,S,8192]"}, {"v_layout": "b s hd"}), "width of a value 128", "256"),
    "head_pairs": ("gated_delta", DELTA, [[16, 32]], ({}, {"key_heads": 0}), "heads of keys and of values one of 16 and 32", "32 and 32"),
    "decay_space": ("gated_delta", DELTA, ["log"], ({}, {"decay_space": "linear"}), "decay given as its logarithm", "itself"),
    "decay_of_heads": ("gated_delta", DELTA, True, ({"decay": "f32[B,S,32,128]"}, {"decay_layout": "b s h d"}), "one decay a head", "one a lane of a key"),
    "state_layout": ("gated_delta", DELTA, ["b h k v"], ({}, {"state_layout": "b h v k"}), "axes of the state b h k v", "b h v k"),
    "update": ("gated_delta", DELTA, ["gated_delta"], ({}, {"update": "delta"}), "update of the state gated delta", "delta"),
    "unscaled": ("gated_delta", DELTA, True, ({}, {"scale": 0.25}), "no factor of the result", "0.25"),
    "gates": ("conv_silu", SHORT, False, ({"x_gate": "f32[B,8,S]", "gate": "f32[B,8,S]"}, {}), "no gate of x or of the result, no heads divided by their length", "x gate and gate"),
    "state_columns": ("conv_silu", SHORT, "reach", ({"state": "f32[B,8,4]"}, {}), "a state of as many columns as the taps reach back", "4"),
    "layouts": ("attention", ATTENTION, {"q": ["b h s d"], "k": ["b h s d"]}, ({}, {"k_layout": "b h d s"}), "axes of q, k: b h s d", "k b h d s"),
}  # fmt: skip


def judged(name: str, figures: object, one: Candidate) -> Limit | None:
    want = given(Limits.model_validate({name: figures}))[name]
    return check(Operands(one), name, want)


def test_every_constraint_has_a_sentence_a_place_in_the_schema_and_a_case() -> None:
    assert set(CONSTRAINTS) == set(Limits.model_fields) == set(NEEDS) == set(CASES)
    for function in CONSTRAINTS.values():
        sentence = function.__doc__ or ""
        assert sentence, function.__name__
        assert "\n" not in sentence
        assert sentence[0] in "{abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize("name", CASES)
def test_a_good_candidate_passes_and_a_broken_one_says_what_is_wanted_and_got(name: str) -> None:
    kind, base, figures, broken, want, got = CASES[name]
    out = "f32[4,6]" if kind == "matmul_residual" else "?"
    extra = (
        {"residual": "f32[4,6]"}
        if kind == "matmul_residual"
        else {"y": "f32[B,3,8]"}
        if kind == "norm_add_norm"
        else {}
    )
    assert judged(name, figures, made(kind, base, extra, out=out)) is None
    if broken is None:
        one, figures = _unknown_shape(name)
        assert judged(name, figures, one) == Limit(
            "unknown_shape", want, got, judged(name, figures, one).help
        )
        return
    found = judged(name, figures, made(kind, base, extra | broken[0], broken[1], out=out))
    assert found == Limit(f"chip:{name}", want, got)
    assert len(found.want) < 100
    assert len(found.got) < 100


def _unknown_shape(name: str) -> tuple[Candidate, object]:
    if name in ("known_width", "known_dims"):
        return made("rms_norm", NORM, {"x": "f32[2,D]", "weight": None}), True
    return made("attention", ATTENTION), {"at_most": 8}


@pytest.mark.parametrize(
    ("kind", "base", "operands", "name", "figures", "got"),
    [
        ("rms_norm", NORM, {"x": "f32[*]"}, "rank", {"one_of": [3]}, "rank of x unknown"),
        ("rms_norm", NORM, {"x": "?"}, "dtypes", ["f32"], "element type of x unknown"),
        ("rms_norm", NORM, {"weight": "f32[*]"}, "rows", ["weight"], "shape of weight unknown"),
        ("rms_norm", NORM, {"x": "f32[2,D]"}, "rows", ["weight"], "length of weight unknown (D): try --dim D=1"),
        ("add_norm", ADD, {"x": "f32[*]"}, "residual", ["same"], "shape of x unknown"),
        ("matmul_bias", PRODUCT, {"x": "f32[*]"}, "contraction", {"multiple_of": 4}, "contracted width unknown"),
        ("merged_products", MERGED, {"weight.1": "f32[*]"}, "max_weight_bytes", 9, "bytes of the weights unknown"),
        ("attention", ATTENTION, {"q": "f32[*]"}, "head_dim", {"one_of": [64]}, "head width unknown"),
        ("attention", ATTENTION, {"k": "f32[B,2,T,64]"}, "q_within_kv", True,
         "rows of k less rows of q unknown (-S + T): try --dim S=1 --dim T=1"),
        ("rope", ROPE, {"cos": "f32[N,4]"}, "table_axes", ["for_all_batches"],
         "whether cos has a row for each row of x unknown (N): try --dim N=1"),
    ],
)  # fmt: skip
def test_an_unknown_shape_that_decides_has_its_own_code(kind, base, operands, name, figures, got) -> None:
    found = judged(name, figures, made(kind, base, operands))
    assert found is not None
    assert (found.code, found.got) == ("unknown_shape", got)


def test_symbols_that_cannot_break_a_limit_do_not_refuse() -> None:
    one = made("attention", ATTENTION, {"q": "f32[B,8,S + 9,64]", "k": "f32[B,2,S + P + 9,64]"})
    assert judged("q_len", {"at_least": 9}, one) is None
    assert judged("q_within_kv", True, one) is None
    found = judged("q_len", {"at_most": 8}, one)
    assert found is not None
    assert found.code == "chip:q_len"
    assert judged("width", {"multiple_of": 8}, made("rms_norm", NORM, {"x": "f32[2,8*D]"})) is None


@pytest.mark.parametrize(
    ("residual", "kinds", "holds"),
    [
        ("f32[B,3,8]", ["same"], True),
        ("f32[3,8]", ["same"], False),
        ("f32[3,8]", ["same", "rows"], True),
        ("f32[1,3,8]", ["same", "one_batch"], True),
        ("f32[B,1,8]", ["same", "rows", "one_batch"], False),
        ("f32[1,N,8]", ["same", "rows", "one_batch"], None),
        ("f32[N,8]", ["same"], False),
    ],
)
def test_shapes_of_a_residual(residual: str, kinds: list[str], holds: bool | None) -> None:
    code = {True: None, None: "unknown_shape", False: "chip:residual"}[holds]
    for one in ({"residual": residual}, {"residual": "f32[B,3,8]", "x": residual}):
        found = judged("residual", kinds, made("add_norm", ADD, one))
        assert (found.code if found else None) == code


def test_a_table_cut_to_the_rows_it_is_added_to() -> None:
    cut = Type("f32", (1, symbol("min(64, S)"), 8))
    one = made("add_norm", ADD, {"x": "f32[B,S,8]", "residual": "f32[1,N,8]"}, types={"residual": cut})
    assert judged("residual", ["one_batch"], one) is None
    other = made("add_norm", ADD, {"x": "f32[B,S,8]", "residual": "f32[1,N,8]"})
    found = judged("residual", ["one_batch"], other)
    assert found is not None
    assert found.got == "f32[B,S,8] and f32[1,N,8], which may differ: try --dim B=1 --dim N=1 --dim S=1"


def test_width_of_a_head_from_joined_axes() -> None:
    joined = {f"{n}_layout": "b s hd" for n in ("q", "k", "v")}
    one = made(
        "attention", ATTENTION, {"q": "f32[B,S,512]", "k": "f32[B,T,128]", "v": "f32[B,T,128]"}, joined
    )
    at = Operands(one)
    assert (at.extent("q", "d"), at.extent("k", "d"), at.extent("k", "h")) == (64, 64, 2)
    assert str(at.extent("k", "s")) == "T"
    assert judged("head_dim", {"one_of": [64]}, one) is None


def test_head_widths_that_differ() -> None:
    wide = made("attention", ATTENTION, {"v": "f32[B,2,S,48]"})
    found = judged("head_dim", {"one_of": [64]}, wide)
    assert found is not None
    assert found.got == "64, with v 48"
    assert judged("head_dim", {"one_of": [64], "v_differs": True}, wide) is None
    assert judged("head_dim", {"one_of": [80], "pairs": [[64, 48]]}, wide) is None


def test_two_masks_and_a_softcap_in_its_place() -> None:
    two = made("attention", ATTENTION, {"mask.2": "bool[S,S]"}, {"mask": ("add", "keep")})
    found = judged("mask", ["additive", "bool"], two)
    assert found is not None
    assert found.got == "2 masks: add, keep"
    capped = made("attention", ATTENTION, {}, {"mask": ("add", "cap"), "softcap": 30.0})
    assert judged("softcap", "before_mask", capped) is None
    assert judged("softcap", False, capped) == Limit(
        "chip:softcap", "softcap of the scores: none", "softcap 30"
    )
    assert (
        judged("dtypes", ["f32"], made("attention", ATTENTION, {"mask.1": "bool[S,S]"}, {"mask": ("keep",)}))
        is None
    )


def test_masks_that_are_folded_like_the_scores() -> None:
    folded = {"mask_layouts": ("bh s t",)}
    windows = {"mask_layouts": ("b w h s t",)}
    one = made("attention", ATTENTION, {}, folded)
    assert judged("mask_folded", "heads", one) is None
    assert judged("mask_folded", "as_scores", one) is None
    found = judged("mask_folded", "heads", made("attention", ATTENTION, {}, windows))
    assert found is not None
    assert found.got == "mask of axes b w h s t"
    apart = judged("mask_folded", "as_scores", made("attention", ATTENTION))
    assert apart is not None
    assert apart.got == "mask f32[B,1,S,P + S]"
    plain = made("attention", ATTENTION, {"mask.1": "f32[1,1,S,T]"})
    assert judged("mask_folded", "as_scores", plain) is None


def test_tables_whose_halves_repeat_are_cut() -> None:
    full = {"cos": "f32[S,8]", "sin": "f32[S,8]"}
    ops = (
        Op("Concat", ("angle", "angle"), ("both",), {"axis": -1}),
        Op("Cos", ("both",), ("cos",), {}),
        Op("Sin", ("both",), ("sin",), {}),
    )
    more = {"angle": "f32[S,4]", "both": "f32[S,8]"}
    one = made("rope", ROPE, full, {"tables": "full"}, ops=ops, more=more)
    assert judged("tables", "half_or_repeated", one) is None
    other = (ops[0]._replace(inputs=("angle", "turned")), *ops[1:])
    found = judged(
        "tables", "half_or_repeated", made("rope", ROPE, full, {"tables": "full"}, ops=other, more=more)
    )
    assert found is not None
    assert found.code == "chip:tables"
    turned = (
        Op("Concat", ("angle", "angle"), ("both",), {"axis": 0}),
        Op("Transpose", ("both",), ("rows",), {"perm": (1, 0)}),
        Op("Cos", ("rows",), ("cosine",), {}),
        Op("Mul", ("cosine", "scale"), ("cos",), {}),
        Op("Sin", ("rows",), ("sin",), {}),
    )
    more = {
        "angle": "f32[4,S]",
        "both": "f32[8,S]",
        "rows": "f32[S,8]",
        "cosine": "f32[S,8]",
        "scale": "f32[]",
    }
    one = made("rope", ROPE, full, {"tables": "full"}, ops=turned, more=more)
    assert judged("tables", "half_or_repeated", one) is None
    wrong = (turned[0]._replace(attrs={"axis": 1}), *turned[1:])
    one = made("rope", ROPE, full, {"tables": "full"}, ops=wrong, more=more)
    assert judged("tables", "half_or_repeated", one) is not None
    row = np.arange(8, dtype=np.float32)[None] % 4
    equal = {name: constant(name, row) for name in ("cos", "sin")}
    assert (
        judged("tables", "half_or_repeated", made("rope", ROPE, full, {"tables": "full"}, constants=equal))
        is None
    )


@pytest.mark.parametrize(
    ("ids", "attrs", "holds"),
    [
        ("i64[B,S]", {"rope_unsqueeze": 1}, True),
        ("i64[1,S]", {"rope_unsqueeze": 1}, None),
        ("i64[B,S]", {"rope_unsqueeze": 2}, False),
    ],
)
def test_rows_that_position_ids_select(ids: str, attrs: dict, holds: bool | None) -> None:
    one = made("rope", ROPE, {"position_ids": ids, "cos": "f32[99,4]"}, {"position_ids": True} | attrs)
    found = judged("table_axes", ["selected"], one)
    code = {True: None, None: "unknown_shape", False: "chip:table_axes"}[holds]
    assert (found.code if found else None) == code
    assert judged("table_axes", ["for_all_batches"], one) is not None


def test_every_class_of_the_cases_exists() -> None:
    assert {case[0] for case in CASES.values()} <= CLASSES.keys()
