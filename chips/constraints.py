"""Named conditions of kernels. Each docstring is the sentence a refusal shows as `want`, with the
chip's own figures for {want}, and the row of the support table.

A constraint looks at a candidate's operands and answers None where it holds, else what is there
instead: a sentence (it fails), or `Unknown` (a shape or type that nobody knows decides it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from chips.operands import Operands, symbols_of
from chips.schema import HeadDim, Layouts, Limits, Number
from fuse.shim import Limit
from fuse.types import FLOATS, Dim, Dims, Expr, add, mul, nbytes, non_negative, spans, sub


class Unknown(NamedTuple):
    """What cannot be told: `got` says what, `help` what to give."""

    got: str
    help: str | None = None


Answer = str | Unknown | None


# ---- reading ------------------------------------------------------------------------------------
def _unknown(what: str, dim: Dim | None = None) -> Unknown:
    names = [name for name in symbols_of(dim) if name.isidentifier()]
    if not names:
        return Unknown(f"{what} unknown")
    flags = " ".join(f"--dim {name}=1" for name in names)
    return Unknown(f"{what} unknown ({dim}): try {flags}", f"bind {', '.join(names)} with --dim")


def _surely(number: Number, dim: Expr) -> bool:
    """Whether the condition holds for every value of the symbols (each is at least 0)."""
    if number.one_of is not None or number.at_most is not None:
        return False
    if number.at_least is not None and not non_negative(sub(dim, number.at_least)):
        return False
    return number.multiple_of is None or all(factor % number.multiple_of == 0 for _, factor in dim.terms)


def _holds(number: Number, value: int) -> bool:
    return (
        (number.one_of is None or value in number.one_of)
        and (number.at_least is None or value >= number.at_least)
        and (number.at_most is None or value <= number.at_most)
        and (number.multiple_of is None or value % number.multiple_of == 0)
    )


def _never(number: Number, dim: Expr) -> bool:
    """Whether it fails for every value of the symbols."""
    return number.at_most is not None and non_negative(sub(dim, number.at_most + 1))


def _number(number: Number, dim: Dim | None, what: str) -> Answer:
    if isinstance(dim, int):
        return None if _holds(number, dim) else str(dim)
    if dim is None:
        return _unknown(what)
    if _surely(number, dim):
        return None
    return str(dim) if _never(number, dim) else _unknown(what, dim)


def _last(dims: Dims | None) -> Dim | None:
    return dims[-1] if dims else None


def _without_unit_lead(dims: Dims) -> Dims:
    lead = 0
    while lead < len(dims) - 1 and dims[lead] == 1:
        lead += 1
    return dims[lead:]


# ---- element types ------------------------------------------------------------------------------
def dtypes(at: Operands, want: tuple[str, ...]) -> Answer:
    """element type one of {want}"""
    unknown = None
    for name, value in at.computed():
        dtype = at.type_of(value).dtype
        if not dtype:
            unknown = _unknown(f"element type of {name}")
        elif dtype not in want and not (dtype == "bool" and name.startswith("mask")):
            return f"{name} is {dtype}"
    return unknown


def one_dtype(at: Operands, want: bool) -> Answer:
    """float operands of one element type"""
    seen: dict[str, str] = {}
    for name, value in at.computed():
        dtype = at.type_of(value).dtype
        if dtype in FLOATS:
            seen.setdefault(dtype, name)
    return ", ".join(f"{name} is {dtype}" for dtype, name in seen.items()) if len(seen) > 1 else None


def compute(at: Operands, want: tuple[str, ...]) -> Answer:
    """computes in the type of {main} or in {want}"""
    key = "rope_compute" if at.kind == "rope" else "compute"
    dtype = at.attr(key) or ""
    return f"computes in {dtype}" if dtype and dtype not in (at.type(at.main).dtype, *want) else None


# ---- shapes -------------------------------------------------------------------------------------
def rank(at: Operands, want: Number) -> Answer:
    """rank of {main} {want}"""
    dims = at.dims(at.main)
    return _number(want, None if dims is None else len(dims), f"rank of {at.main}")


def weight_rank(at: Operands, want: Number) -> Answer:
    """rank of each weight {want}, leading unit axes aside"""
    for value in at.by_name.get("weight", ()):
        dims = at.type_of(value).dims
        if value and dims is None:
            return _unknown("rank of the weight")
        if value and dims is not None:
            found = _number(want, len(_without_unit_lead(dims)), "rank of the weight")
            if found is not None:
                return found
    return None


def width(at: Operands, want: Number) -> Answer:
    """last axis of {main} {want}"""
    return _number(want, _last(at.dims(at.main)), f"last axis of {at.main}")


def contraction(at: Operands, want: Number) -> Answer:
    """contracted width {want}"""
    dims = at.dims("x")
    if dims is None or len(dims) < 2:
        return _unknown("contracted width")
    return _number(want, dims[-2] if at.attr("trans_x") else dims[-1], "contracted width")


def rows(at: Operands, want: tuple[str, ...]) -> Answer:
    """{want}: one row as long as the last axis"""
    unknown = None
    whole = _row_length(at)
    for name in want:
        value = at.value(name)
        if not value:
            continue
        dims = at.type_of(value).dims
        if dims is None:
            unknown = _unknown(f"shape of {name}")
            continue
        row = _without_unit_lead(dims)
        if len(row) == 1 and row[0] == whole:
            continue
        if len(row) != 1 or (isinstance(row[0], int) and isinstance(whole, int)):
            return f"{name} is {at.type_of(value)}"
        unknown = _unknown(f"length of {name}", row[0] if isinstance(row[0], Expr) else whole)
    return unknown


def _row_length(at: Operands) -> Dim | None:
    """The last axis of what the row is applied to: of the product where there is one, else of x."""
    weight = at.dims("weight")
    if "trans_weight" not in at.op.attrs and not at.kind.startswith("matmul"):
        return _last(at.dims(at.main))
    if weight is None or len(weight) < 2:
        return None
    return weight[-2] if at.attr("trans_weight") else weight[-1]


def known_width(at: Operands, want: bool) -> Answer:
    """a known last axis of {main} where the weight is absent"""
    if at.value("weight"):
        return None
    last = _last(at.dims(at.main))
    return None if isinstance(last, int) else _unknown(f"last axis of {at.main}", last)


def residual(at: Operands, want: tuple[str, ...]) -> Answer:
    """residual shaped like x: {want}"""
    names = ("x", "y") if at.kind == "norm_add_norm" else ("x", "residual")
    first, second = at.dims(names[0]), at.dims(names[1])
    if first is None or second is None:
        return _unknown(f"shape of {names[0] if first is None else names[1]}")
    large, small = (first, second) if len(first) >= len(second) else (second, first)
    if spans(large, small) and not spans(small, large):
        large, small = small, large
    lead = len(large) - len(small)
    same_tail = small[-2:] == large[-2:] and len(small) >= 2
    kinds = {
        "same": large == small,
        "rows": same_tail and len(large) == 3 and lead == 1,
        "one_batch": same_tail and len(large) == 3 and lead == 0 and small[0] == 1,
    }
    if any(kinds[kind] for kind in want):
        return None
    text = f"{at.type(names[0])} and {at.type(names[1])}"
    settled = all(isinstance(dim, int) for dim in first + second) or not spans(small, large)
    return text if settled or len(small) < 2 or 1 in small else _unknown(f"whether {text} agree")


# ---- norms and products -------------------------------------------------------------------------
def norm(at: Operands, want: tuple[str, ...]) -> Answer:
    """norm one of {want}"""
    kind = at.attr("norm")
    return None if kind in want else str(kind)


def inner_norm(at: Operands, want: tuple[str, ...]) -> Answer:
    """inner norm one of {want}"""
    kind = at.attr("inner_norm")
    return None if kind in want else str(kind)


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
    """transposes of none but {want}"""
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
            return _unknown("bytes of the weights")
        total = add(total, size)
    return _number(Number(at_most=want), total, "bytes of the weights")


# ---- activations --------------------------------------------------------------------------------
def activation(at: Operands, want: tuple[str, ...]) -> Answer:
    """activation one of {want}"""
    act = at.attr("act")
    return None if act in want else str(act)


def slope(at: Operands, want: tuple[float, ...]) -> Answer:
    """slope of the activation one of {want}"""
    value = at.attr("act_alpha" if at.kind == "matmul_bias_act" else "alpha")
    return None if value in want else f"{value:g}"


# ---- rotation -----------------------------------------------------------------------------------
def form(at: Operands, want: tuple[str, ...]) -> Answer:
    """rotation of pairs taken as {want}"""
    pairs = at.attr("form")
    return None if pairs in want else str(pairs)


def tables(at: Operands, want: bool | str) -> Answer:
    """angles given as {want}"""
    if want is False:
        return f"tables of cos and sin ({at.value('cos')})"
    return None if at.attr("tables") == want else "tables that span the rotated width"


def position_ids(at: Operands, want: bool) -> Answer:
    """rows of cos and sin already selected"""
    return f"rows selected by {at.value('position_ids')}" if at.attr("position_ids") else None


def partial(at: Operands, want: bool) -> Answer:
    """rotation of the whole width"""
    lanes = at.attr("rotary_dim")
    last = _last(at.dims("x"))
    return None if not lanes or lanes == last else f"{lanes} of {last if last is not None else '?'} lanes"


# ---- attention ----------------------------------------------------------------------------------
def head_dim(at: Operands, want: HeadDim) -> Answer:
    """head width {want}"""
    q, v = at.extent("q", "d"), at.extent("v", "d")
    if not isinstance(q, int) or (not want.v_differs and not isinstance(v, int)):
        return _unknown("head width", v if isinstance(q, int) else q)
    if (q, v) in want.pairs:
        return None
    if q != v and not want.v_differs:
        return f"{q}, with v {v}"
    return _number(want, q, "head width")


def mask(at: Operands, want: tuple[str, ...]) -> Answer:
    """mask one of {want}"""
    steps = tuple(step for step in at.attr("mask") if step != "cap")
    if len(steps) > 1:
        return f"{len(steps)} masks: {', '.join(steps)}"
    kinds = {"add": "additive", "keep": "bool", "drop": "bool", "divide": "a mask that divides"}
    kind = kinds[steps[0]] if steps else "none"
    return None if kind in want or (at.attr("causal") and "causal" in want) else kind


def mask_folded(at: Operands, want: bool) -> Answer:
    """mask with batch and heads on axes of their own"""
    folded = [layout for layout in at.attr("mask_layouts") if layout]
    return f"mask folded as {folded[0]}" if folded else None


def softcap(at: Operands, want: bool | str) -> Answer:
    """softcap of the scores: {want}"""
    cap, steps = at.attr("softcap"), at.attr("mask")
    if not cap:
        return None
    if want is False:
        return f"softcap {cap:g}"
    masks = [i for i, step in enumerate(steps) if step != "cap"]
    if not masks or "cap" not in steps:
        return None
    order = "after_mask" if steps.index("cap") < masks[0] else "before_mask"
    return None if order == want else order.replace("_", " the ")


def groups(at: Operands, want: Number) -> Answer:
    """query heads a key head {want}"""
    return _number(want, int(at.attr("groups")), "query heads a key head")


def q_len(at: Operands, want: Number) -> Answer:
    """rows of q {want}"""
    return _number(want, at.extent("q", "s"), "rows of q")


def q_len_groups(at: Operands, want: Number) -> Answer:
    """rows of q times query heads a key head {want}"""
    count = at.extent("q", "s")
    total = None if count is None else mul(count, int(at.attr("groups")))
    return _number(want, total, "rows of q")


def kv_len(at: Operands, want: Number) -> Answer:
    """rows of k {want}"""
    return _number(want, at.extent("k", "s"), "rows of k")


def q_within_kv(at: Operands, want: bool) -> Answer:
    """no more rows of q than of k"""
    q, k = at.extent("q", "s"), at.extent("k", "s")
    if q is None or k is None:
        return _unknown("rows of q" if q is None else "rows of k")
    more = sub(k, q)
    if non_negative(more):
        return None
    return f"{q} rows of q, {k} of k" if isinstance(more, int) else _unknown("rows of q and k", more)


def layouts(at: Operands, want: Layouts) -> Answer:
    """axes {want}"""
    found = []
    for name in ("q", "k", "v", "out"):
        allowed = {_letters(text) for text in getattr(want, name)}
        if allowed and at.layout(name) not in allowed:
            found.append(f"{name} {' '.join(at.layout(name))}")
    return ", ".join(found) or None


def _letters(text: str) -> tuple[str, ...]:
    return tuple(text.split()) if " " in text else tuple(text)


# ---- the table ----------------------------------------------------------------------------------
CONSTRAINTS: Mapping[str, Callable[[Operands, Any], Answer]] = {
    function.__name__: function
    for function in (
        dtypes, one_dtype, compute, rank, weight_rank, width, contraction, rows, known_width, residual,
        norm, inner_norm, offset, bias, scales, transposed, constant, max_members, max_weight_bytes,
        activation, slope, form, tables, position_ids, partial, head_dim, mask, mask_folded, softcap,
        groups, q_len, q_len_groups, kv_len, q_within_kv, layouts,
    )
}  # fmt: skip

_ATTENTION = frozenset({"q", "k", "v", "q_layout"})
#: What a class must have (operands, attributes) for a constraint to say something about it.
NEEDS: Mapping[str, frozenset[str]] = {name: frozenset() for name in CONSTRAINTS} | {
    "compute": frozenset(),
    "weight_rank": frozenset({"weight"}),
    "contraction": frozenset({"x", "weight"}),
    "known_width": frozenset({"weight"}),
    "residual": frozenset({"x"}),
    "norm": frozenset({"norm"}),
    "inner_norm": frozenset({"inner_norm"}),
    "offset": frozenset({"offset"}),
    "bias": frozenset({"bias"}),
    "scales": frozenset({"alpha", "beta"}),
    "transposed": frozenset({"trans_x", "trans_weight"}),
    "max_members": frozenset({"biases"}),
    "max_weight_bytes": frozenset({"biases"}),
    "activation": frozenset({"act"}),
    "form": frozenset({"form"}),
    "tables": frozenset({"tables"}),
    "position_ids": frozenset({"position_ids"}),
    "partial": frozenset({"rotary_dim"}),
    **dict.fromkeys(
        ("head_dim", "mask", "mask_folded", "softcap", "groups", "q_len", "q_len_groups", "kv_len",
         "q_within_kv", "layouts"),
        _ATTENTION,
    ),
}  # fmt: skip


def _words(want: Any, name: str) -> str:
    """A chip's figures as words of a sentence."""
    if isinstance(want, Layouts):
        parts = [
            f"{key} {' or '.join(names)}" for key in ("q", "k", "v", "out") if (names := getattr(want, key))
        ]
        return "; ".join(parts)
    if isinstance(want, Number):
        return _number_words(want)
    if want is False:
        return {"softcap": "none", "tables": "a base or divisors and an offset"}.get(name, "no")
    if isinstance(want, tuple):
        return ", ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in want)
    texts = {"constant": "none, or of a constant weight", "half": "tables of one entry a pair"}
    return texts.get(str(want), str(want).replace("_", " the "))


def _number_words(want: Number) -> str:
    parts = []
    if want.one_of is not None:
        parts.append(("one of " if len(want.one_of) > 1 else "") + ", ".join(map(str, want.one_of)))
    if want.at_least is not None:
        parts.append(f"at least {want.at_least}")
    if want.at_most is not None:
        parts.append(f"at most {want.at_most}")
    if want.multiple_of is not None:
        parts.append(f"a multiple of {want.multiple_of}")
    text = " and ".join(parts) or "any"
    if isinstance(want, HeadDim):
        text += "".join(f", or {q} with v {v}" for q, v in want.pairs)
        text += " (v may differ)" if want.v_differs else ""
    return text


def sentence(name: str, want: Any, main: str = "x") -> str:
    """The docstring of a constraint with a chip's figures."""
    text = CONSTRAINTS[name].__doc__ or ""
    return text.format(want=_words(want, name), main=main)


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
