"""Named conditions of kernels. Each docstring is the sentence a refusal shows as `want`, with the
chip's own figures for {want}, and the row of the support table.

A constraint looks at a candidate's operands and answers None where it holds, else what is there
instead: a sentence (it fails), or `Unknown` (a shape or type that nobody knows decides it).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from chips import constraints_attention as attention
from chips import constraints_epilogues as epilogues
from chips import constraints_mixture as mixture
from chips import constraints_quantized as quantized
from chips import constraints_recurrence as recurrence
from chips import constraints_rope as rope
from chips.answers import Answer, Unknown, last, number, same, undecided, unknown, without_unit_lead
from chips.operands import Operands
from chips.schema import Limits, Number
from chips.sentences import words
from fuse.shim import Limit
from fuse.types import FLOATS, Dim, Dims, Expr, add, nbytes, product, spans


# ---- element types ------------------------------------------------------------------------------
def dtypes(at: Operands, want: tuple[str, ...]) -> Answer:
    """element type {want}"""
    untyped = None
    for name, value in at.computed():
        dtype = at.type_of(value).dtype
        if not dtype:
            untyped = unknown(f"element type of {name}")
        elif dtype not in want and not (dtype == "bool" and name.startswith("mask")):
            return f"{name} is {dtype}"
    return untyped


def one_dtype(at: Operands, want: bool) -> Answer:
    """float operands of one element type"""
    seen: dict[str, str] = {}
    for name, value in at.computed():
        dtype = at.type_of(value).dtype
        if dtype in FLOATS:
            seen.setdefault(dtype, name)
    return ", ".join(f"{name} is {dtype}" for dtype, name in seen.items()) if len(seen) > 1 else None


def compute(at: Operands, want: tuple[str, ...]) -> Answer:
    """computes in the type of {main}{want}"""
    key = "rope_compute" if at.kind == "rope" else "compute"
    dtype = at.attr(key) or ""
    return f"computes in {dtype}" if dtype and dtype not in (at.type(at.main).dtype, *want) else None


# ---- shapes -------------------------------------------------------------------------------------
def known_dims(at: Operands, want: bool) -> Answer:
    """every shape known"""
    for name, value in at.computed():
        dims = at.type_of(value).dims
        if dims is None:
            return unknown(f"shape of {name}")
        for dim in dims:
            if isinstance(dim, Expr):
                return unknown(f"an axis of {name}", dim)
    return None


def rank(at: Operands, want: Number) -> Answer:
    """rank of {main} {want}"""
    dims = at.dims(at.main)
    return number(want, None if dims is None else len(dims), f"rank of {at.main}")


def weight_rank(at: Operands, want: Number) -> Answer:
    """rank of each weight {want}, leading unit axes aside"""
    for value in at.by_name.get("weight", ()):
        dims = at.type_of(value).dims
        if value and dims is None:
            return unknown("rank of the weight")
        if value and dims is not None:
            found = number(want, len(without_unit_lead(dims)), "rank of the weight")
            if found is not None:
                return found
    return None


def width(at: Operands, want: Number) -> Answer:
    """last axis of {main} {want}"""
    return number(want, last(at.dims(at.main)), f"last axis of {at.main}")


def batch_rows(at: Operands, want: Number) -> Answer:
    """rows of {main} over its whole batch {want}"""
    dims = at.dims(at.main)
    return number(want, None if dims is None else product(dims[:-1]), f"rows of {at.main}")


def contraction(at: Operands, want: Number) -> Answer:
    """contracted width {want}"""
    dims = at.dims("x")
    if dims is None or len(dims) < 2:
        return unknown("contracted width")
    return number(want, dims[-2] if at.attr("trans_x") else dims[-1], "contracted width")


def rows(at: Operands, want: tuple[str, ...]) -> Answer:
    """{want}: one row as long as the last axis"""
    open_question = None
    whole = _row_length(at)
    for name in want:
        value = at.value(name)
        if not value:
            continue
        dims = at.type_of(value).dims
        if dims is None:
            open_question = unknown(f"shape of {name}")
            continue
        row = without_unit_lead(dims)
        if len(row) == 1 and row[0] == whole:
            continue
        if len(row) != 1 or (isinstance(row[0], int) and isinstance(whole, int)):
            return f"{name} is {at.type_of(value)}"
        open_question = unknown(f"length of {name}", row[0] if isinstance(row[0], Expr) else whole)
    return open_question


def _row_length(at: Operands) -> Dim | None:
    """The last axis of what the row is applied to: of the product where there is one, else of x."""
    weight = at.dims("weight")
    if not at.kind.startswith("matmul"):
        return last(at.dims(at.main))
    if weight is None or len(weight) < 2:
        return None
    return weight[-2] if at.attr("trans_weight") else weight[-1]


def known_width(at: Operands, want: bool) -> Answer:
    """a known last axis of {main} where the weight is absent"""
    if at.value("weight"):
        return None
    columns = last(at.dims(at.main))
    return None if isinstance(columns, int) else unknown(f"last axis of {at.main}", columns)


def residual(at: Operands, want: tuple[str, ...]) -> Answer:
    """residual shaped like x, {want}"""
    names = ("x", "y") if at.kind == "norm_add_norm" else ("x", "residual")
    first, second = at.dims(names[0]), at.dims(names[1])
    if first is None or second is None:
        return unknown(f"shape of {names[0] if first is None else names[1]}")
    kinds = [_shape_kind(first, second, want), _shape_kind(second, first, want)]
    if True in kinds:
        return None
    text = f"{at.type(names[0])} and {at.type(names[1])}"
    return undecided(text, first + second) if None in kinds else text


def _shape_kind(whole: Dims, other: Dims, want: tuple[str, ...]) -> bool | None:
    """Whether `other` has one of the shapes wanted beside `whole`; None where symbols decide."""
    lead = len(whole) - len(other)
    if lead < 0 or len(other) < 2:
        return whole == other and "same" in want
    equal = [_equal_if_added(a, b) for a, b in zip(whole[lead:], other, strict=True)]
    if lead:
        fits = "rows" in want and lead == 1 and len(whole) == 3
    elif other[0] == 1 and equal[0] is not True and len(whole) == 3 and "one_batch" in want:
        fits, equal = True, equal[1:]
    else:
        fits = "same" in want
    if not fits or False in equal:
        return False
    return None if None in equal else True


def _equal_if_added(a: Dim, b: Dim) -> bool | None:
    """Whether two axes that are added are equal. `min(64, rows)`, of a table of 64 rows cut to
    `rows`, adds to `rows` only where it is `rows`: else the model itself cannot run."""
    equal = same(a, b)
    for cut, whole in ((str(a), b), (str(b), a)):
        limit = re.fullmatch(r"min\((\d+), (.+)\)", cut)
        if equal is None and limit and int(limit[1]) > 1 and limit[2] == str(whole):
            return True
    return equal


def residual_fits(at: Operands, want: bool) -> Answer:
    """residual that broadcasts to the product"""
    product, added = at.type_of(at.op.outputs[0]).dims, at.dims("residual")
    if product is None or added is None:
        return unknown("shape of the " + ("product" if product is None else "residual"))
    if spans(added, product):
        return None
    text = f"residual {at.type('residual')} of a product {at.type_of(at.op.outputs[0])}"
    settled = all(isinstance(dim, int) for dim in added + product) or len(added) > len(product)
    return text if settled else undecided(text, added + product)


# ---- norms and products -------------------------------------------------------------------------
def norm(at: Operands, want: tuple[str, ...]) -> Answer:
    """norm {want}"""
    kind = at.attr("norm")
    return None if kind in want else str(kind)


def inner_norm(at: Operands, want: tuple[str, ...]) -> Answer:
    """inner norm {want}"""
    kind = at.attr("inner_norm")
    return None if kind in want else str(kind)


def eps_at(at: Operands, want: tuple[str, ...]) -> Answer:
    """place of eps {want}"""
    place = at.attr("eps_at")
    return None if place in want else f"eps {at.attr('eps'):g} ({place})"


def offset(at: Operands, want: str) -> Answer:
    """offset of the weight: {want}"""
    shift = at.attr("offset") or 0.0
    if not shift or (want == "constant" and at.constant(at.value("weight")) is not None):
        return None
    return f"offset {shift:g}" if want == "none" else f"offset {shift:g} of a weight that changes at run time"


def bias(at: Operands, want: bool) -> Answer:
    """no bias"""
    present = [value for value in at.by_name.get("bias", ()) if value]
    return None if not present else f"bias {present[0]}"


def scales(at: Operands, want: bool) -> Answer:
    """no factor on the product or the bias"""
    found = [f"{name} {at.attr(name):g}" for name in ("alpha", "beta") if at.attr(name) not in (None, 1.0)]
    return ", ".join(found) or None


def transposed(at: Operands, want: tuple[str, ...]) -> Answer:
    """no operand transposed but {want}"""
    flags = {"x": at.attr("trans_x"), "weight": at.attr("trans_weight")}
    found = [name for name, flag in flags.items() if flag and name not in want]
    return f"{found[0]} is transposed" if found else None


def constant(at: Operands, want: tuple[str, ...]) -> Answer:
    """constant {want}"""
    for name in want:
        for value in at.by_name.get(name, ()):
            if value and at.constant(value) is None:
                return f"{name} {value} changes at run time"
    return None


def max_members(at: Operands, want: int) -> Answer:
    """at most {want} products"""
    count = len(at.by_name["weight"])
    return None if count <= want else str(count)


def max_weight_bytes(at: Operands, want: int) -> Answer:
    """at most {want} bytes of weights in all"""
    total: Dim = 0
    for value in at.by_name["weight"]:
        size = nbytes(at.type_of(value))
        if size is None:
            return unknown("bytes of the weights")
        total = add(total, size)
    return number(Number(at_most=want), total, "bytes of the weights")


# ---- activations --------------------------------------------------------------------------------
def activation(at: Operands, want: tuple[str, ...]) -> Answer:
    """activation {want}"""
    act = at.attr("act")
    return None if act in want else str(act)


def slope(at: Operands, want: tuple[float, ...]) -> Answer:
    """slope of the activation {want}"""
    value = at.attr("act_alpha" if at.kind == "matmul_bias_act" else "alpha")
    return None if value in want else f"{value:g}"


# ---- the table ----------------------------------------------------------------------------------
CONSTRAINTS: Mapping[str, Callable[[Operands, Any], Answer]] = {
    function.__name__: function
    for function in (
        dtypes, one_dtype, compute, known_dims, rank, weight_rank, width, batch_rows, contraction, rows,
        known_width, residual, residual_fits, norm, inner_norm, eps_at, offset, bias, scales,
        transposed, constant, max_members, max_weight_bytes, activation, slope, rope.form, rope.tables,
        rope.table_axes, rope.position_ids, rope.partial, attention.head_dim, attention.mask,
        attention.mask_folded, attention.softcap, attention.positive_scale, attention.groups,
        attention.q_len, attention.q_len_groups, attention.kv_len, attention.q_within_kv,
        attention.layouts, epilogues.plus_residual, epilogues.result_codes, epilogues.ids,
        mixture.scoring, mixture.selection, mixture.plain_weights, mixture.gating, mixture.limited,
        mixture.stacked, quantized.float_types, quantized.codes, quantized.code_pairs, quantized.bits,
        quantized.storage, quantized.granularity, quantized.block_size, quantized.x_rounded,
        recurrence.key_width, recurrence.value_width, recurrence.head_pairs, recurrence.decay_space,
        recurrence.decay_of_heads, recurrence.state_layout, recurrence.update, recurrence.unscaled,
        recurrence.gates, recurrence.state_columns,
    )
}  # fmt: skip

_ATTENTION = frozenset({"q", "k", "v", "q_layout"})
#: What a class must have (operands, attributes) for a constraint to say something about it.
NEEDS: Mapping[str, frozenset[str]] = {name: frozenset() for name in CONSTRAINTS} | {
    "weight_rank": frozenset({"weight"}),
    "batch_rows": frozenset({"x"}),
    "contraction": frozenset({"x", "weight"}),
    "known_width": frozenset({"weight"}),
    "residual": frozenset({"x", "norm"}),
    "residual_fits": frozenset({"residual", "trans_weight"}),
    "norm": frozenset({"norm"}),
    "inner_norm": frozenset({"inner_norm"}),
    "eps_at": frozenset({"eps_at"}),
    "offset": frozenset({"offset"}),
    "bias": frozenset({"bias"}),
    "plus_residual": frozenset({"residual"}),
    "result_codes": frozenset({"code_scale"}),
    "ids": frozenset({"word_ids"}),
    "scales": frozenset({"alpha", "beta"}),
    "transposed": frozenset({"trans_x", "trans_weight"}),
    **dict.fromkeys(("max_members", "max_weight_bytes"), frozenset({"biases"})),
    "activation": frozenset({"act"}),
    **dict.fromkeys(("form", "tables", "table_axes", "position_ids", "partial"), frozenset({"form", "cos"})),
    **dict.fromkeys(
        ("head_dim", "mask", "mask_folded", "softcap", "positive_scale", "groups", "q_len", "q_len_groups",
         "kv_len", "q_within_kv", "layouts"),
        _ATTENTION,
    ),
    **dict.fromkeys(
        ("scoring", "selection", "plain_weights", "gating", "limited", "stacked"), frozenset({"experts"})
    ),
    **dict.fromkeys(
        ("float_types", "codes", "code_pairs", "bits", "storage", "granularity", "block_size", "x_rounded"),
        frozenset({"codes", "bits"}),
    ),
    **dict.fromkeys(
        ("key_width", "value_width", "head_pairs", "decay_space", "decay_of_heads", "state_layout", "update",
         "unscaled"),
        frozenset({"decay", "state_layout"}),
    ),
    **dict.fromkeys(("gates", "state_columns"), frozenset({"x_gate", "dilation"})),
}  # fmt: skip


def sentence(name: str, want: Any, main: str = "x") -> str:
    """The docstring of a constraint with a chip's figures."""
    text = CONSTRAINTS[name].__doc__ or ""
    return text.format(want=words(want, name), main=main)


def given(limits: Limits) -> dict[str, Any]:
    """The constraints that a chip file sets, by name, in the order of the schema."""
    return {name: value for name in Limits.model_fields if (value := getattr(limits, name)) is not None}


def check(at: Operands, name: str, want: Any) -> Limit | None:
    """The limit that a candidate fails, None where the constraint holds. A limit that an unknown
    shape or type decides has the code `unknown_shape`."""
    answer = CONSTRAINTS[name](at, want)
    if answer is None:
        return None
    said = sentence(name, want, at.main)
    if isinstance(answer, Unknown):
        return Limit("unknown_shape", said, answer.got, answer.help)
    return Limit(f"chip:{name}", said, answer)
