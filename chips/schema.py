"""The format of a chip file. Unknown keys are refused; every number stands beside its source."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

Sentence = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Sources = Annotated[tuple[Sentence, ...], Field(min_length=1)]
#: ran: a probe ran it on that chip. emulated: our kernel ran in an emulation of it. source: read in
#: the runtime's source or shipped binary. docs: read in documentation.
Evidence = Literal["ran", "emulated", "source", "docs"]
Dtype = Literal["f16", "bf16", "f32", "f64", "f8e4m3fn", "f8e5m2", "i8", "u8", "i32", "i64"]
MaskKind = Literal["none", "causal", "bool", "additive", "sinks"]
RopeForm = Literal["half", "interleaved", "pairs_to_halves", "halves_to_pairs"]
Scoring = Literal["softmax", "softmax_chosen", "sigmoid", "none"]
Selection = Literal["scores", "biased", "grouped", "separate"]
Gating = Literal["none", "two", "halves", "lanes", "halves_up_first", "lanes_up_first"]
ResidualShape = Literal["same", "rows", "one_batch"]


def _is_order(order: tuple[int, ...]) -> tuple[int, ...]:
    if sorted(order) != list(range(len(order))):
        raise ValueError("want every axis once, counted from 0")
    return order


#: Axes in the order that a transpose has them.
Order = Annotated[tuple[int, ...], AfterValidator(_is_order)]


class Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class Number(Row):
    """A condition on a whole number; every part that is given must hold."""

    one_of: tuple[int, ...] | None = None
    at_least: int | None = None
    at_most: int | None = None
    multiple_of: Annotated[int, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Number:
        if not self.model_fields_set:
            raise ValueError("want one_of, at_least, at_most or multiple_of")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("at_least is above at_most, which no number meets")
        return self


class HeadDim(Number):
    """Widths of a head. The condition is on q and v of one width; `pairs` are further widths of
    (q, v); `v_differs`: v may have any width."""

    pairs: tuple[tuple[int, int], ...] = ()
    v_differs: bool = False


class Layouts(Row):
    """Axes of the operands of attention that need no copy: letters as in fuse.classes, axes apart
    by spaces. An operand that is not named may have any."""

    q: tuple[str, ...] = ()
    k: tuple[str, ...] = ()
    v: tuple[str, ...] = ()
    out: tuple[str, ...] = ()


class Limits(Row):
    """Conditions of a kernel, by the name of the constraint (chips/constraints.py says each)."""

    dtypes: tuple[Dtype, ...] | None = None
    one_dtype: Literal[True] | None = None
    compute: tuple[Dtype, ...] | None = None
    eps_at: tuple[Literal["none", "inside", "outside", "clip"], ...] | None = None
    offset: Literal["none", "constant"] | None = None
    rows: tuple[str, ...] | None = None
    known_width: Literal[True] | None = None
    known_dims: Literal[True] | None = None
    rank: Number | None = None
    weight_rank: Number | None = None
    width: Number | None = None
    batch_rows: Number | None = None
    contraction: Number | None = None
    residual: tuple[ResidualShape, ...] | None = None
    residual_fits: Literal[True] | None = None
    norm: tuple[Literal["rms", "layer"], ...] | None = None
    inner_norm: tuple[Literal["rms", "layer"], ...] | None = None
    head_dim: HeadDim | None = None
    mask: tuple[MaskKind, ...] | None = None
    mask_folded: Literal[False, "heads", "as_scores"] | None = None
    softcap: Literal[False, "before_mask", "after_mask"] | None = None
    positive_scale: Literal[True] | None = None
    groups: Number | None = None
    q_len: Number | None = None
    q_len_groups: Number | None = None
    kv_len: Number | None = None
    q_within_kv: Literal[True] | None = None
    layouts: Layouts | None = None
    activation: tuple[str, ...] | None = None
    slope: tuple[float, ...] | None = None
    form: tuple[RopeForm, ...] | None = None
    tables: Literal[False, "half", "half_or_repeated"] | None = None
    table_axes: tuple[Literal["for_all_batches", "for_each_batch", "selected"], ...] | None = None
    position_ids: Literal[False] | None = None
    partial: Literal[False] | None = None
    bias: Literal[False] | None = None
    plus_residual: Literal[False] | None = None
    result_codes: Literal[False] | None = None
    ids: tuple[Dtype, ...] | None = None
    scales: Literal[False] | None = None
    transposed: tuple[Literal["x", "weight"], ...] | None = None
    constant: tuple[str, ...] | None = None
    scoring: tuple[Scoring, ...] | None = None
    selection: tuple[Selection, ...] | None = None
    plain_weights: Literal[True] | None = None
    gating: tuple[Gating, ...] | None = None
    limited: Literal[False] | None = None
    stacked: Literal[True] | None = None
    float_types: tuple[Dtype, ...] | None = None
    codes: tuple[Literal["i8", "u8", "i4", "u4", "i2", "u2"], ...] | None = None
    code_pairs: tuple[tuple[Literal["i8", "u8"], Literal["i8", "u8"]], ...] | None = None
    bits: Number | None = None
    storage: tuple[Literal["values", "blocks"], ...] | None = None
    granularity: tuple[Literal["tensor", "output", "block"], ...] | None = None
    block_size: Number | None = None
    x_rounded: tuple[Literal["none", "dynamic", "static", "codes"], ...] | None = None
    max_members: Annotated[int, Field(gt=1)] | None = None
    max_weight_bytes: Annotated[int, Field(gt=0)] | None = None
    key_width: Number | None = None
    value_width: Number | None = None
    head_pairs: tuple[tuple[int, int], ...] | None = None
    decay_space: tuple[Literal["log", "linear"], ...] | None = None
    decay_of_heads: Literal[True] | None = None
    state_layout: tuple[Literal["b h k v", "b h v k"], ...] | None = None
    update: tuple[Literal["gated_delta", "delta", "gated", "linear"], ...] | None = None
    unscaled: Literal[True] | None = None
    gates: Literal[False] | None = None
    state_columns: Literal["reach"] | None = None


class Case(Row):
    """One way a class runs. What it leaves out it takes from its class; its limits are added."""

    when: Limits = Limits()
    kernel: Sentence | None = None
    dtypes: tuple[Dtype, ...] | None = None
    limits: Limits = Limits()
    note: str = ""


class Entry(Row):
    """A class on a chip: the kernel that runs it whole, or the reason why none does (`lacks`).

    prepares: side operands, one for all layers, that lowering brings into the kernel's form once
    and beside it: a mask expanded to the rows of q or negated, tables cut to one entry a pair.
    empty_rows: what the kernel gives for a row of scores that is masked whole.
    caps: bounds that the search for a region keeps, so that no region is ever found too large.
    """

    kernel: Sentence | None = None
    lacks: Sentence | None = None
    dtypes: tuple[Dtype, ...] | None = None
    limits: Limits = Limits()
    cases: tuple[Case, ...] = ()
    empty_rows: Literal["nan", "zero", "average"] | None = None
    prepares: tuple[Literal["mask", "tables"], ...] = ()
    caps: dict[Literal["max_depth", "max_inputs", "max_buffers"], Annotated[int, Field(gt=0)]] = {}
    note: str = ""
    evidence: Evidence
    source: Sources

    @model_validator(mode="after")
    def _kernel_or_reason(self) -> Entry:
        kernels = self.kernel is not None or (self.cases and all(case.kernel for case in self.cases))
        if bool(kernels) == (self.lacks is not None):
            raise ValueError("want either kernel or lacks")
        return self


class InPlace(Row):
    """What an op of a class or operator reads and writes in place, without a copy before or behind it.

    reads: the views between a packed value and an operand. orders: the orders of axes that it reads
    transposed, any where none is given. lands: what of a wider tensor its result is written as.
    kernel: what runs it, where that is not the kernel of its class.
    """

    reads: tuple[Literal["slice", "item", "rows", "transpose"], ...] = ()
    orders: tuple[Order, ...] = ()
    lands: tuple[Literal["rows", "units"], ...] = ()
    dtypes: tuple[Dtype, ...] | None = None
    kernel: Sentence | None = None
    note: str = ""
    evidence: Evidence
    source: Sources


class Preference(Row):
    """A kernel that exists and loses: where (`when`, everywhere if empty) and by what measure."""

    when: Limits = Limits()
    want: Sentence
    got: Sentence
    source: Sources


class OwnRule(Row):
    """A rule of the chip's own: kernel attributes set on ops of one class, and why that is right.

    place, beside: before or after a shared rule, or closing (after all of them, beside none).
    builds (`class` in the file): the class. when: where it applies. where_refused: only where the chip
    does not run the op as it stands. sets (`set` in the file): kernel attributes, which the definition
    of the class ignores. An op that the chip does not run with them either is left as it is.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
    place: Literal["before", "after", "closing"]
    beside: str = ""
    builds: str = Field(alias="class")
    when: Limits = Limits()
    where_refused: bool = False
    sets: Annotated[dict[str, bool | int | float | str], Field(min_length=1, alias="set")]
    reason: Sentence
    source: Sources

    @model_validator(mode="after")
    def _beside_a_rule(self) -> OwnRule:
        if (self.place == "closing") == bool(self.beside):
            raise ValueError("want beside with before and after, and none with closing")
        return self


class Quantity(Row):
    """A number, or the lowest and highest of its kind, and where it is written."""

    value: Positive | tuple[Positive, Positive]
    source: Sources
    note: str = ""


class Memory(Row):
    bandwidth_gbs: Positive
    source: Sources
    note: str = ""


class Variant(Row):
    """A member of a family. bandwidth_gbs: 1e9 bytes a second; tflops: 1e12 f32 operations a second."""

    gpu_cores: tuple[int, ...] = ()
    bandwidth_gbs: Positive
    fp32_tflops: Positive | None = None
    source: Sources
    note: str = ""


class Runtime(Row):
    """What runs the kernels. opsets: the highest version of each domain it has kernels for."""

    name: Sentence
    version: str = ""
    opsets: dict[str, int] = {}
    source: Sources | None = None


class ChipFile(Row):
    """One chip. `abstract` marks a base that others extend and that is no chip itself."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    about: Sentence
    abstract: bool = False
    extends: str | None = None
    runtime: Runtime
    memory: Memory | None = None
    launch_us: Quantity | None = None
    hardware: dict[str, Quantity] = {}
    variants: dict[str, Variant] = {}
    free_views: tuple[str, ...] = ()
    every_class: Entry | None = None
    classes: dict[str, Entry] = {}
    in_place: dict[str, InPlace] = {}
    rules: tuple[OwnRule, ...] = ()
    prefer: dict[str, Preference] = {}
    notes: tuple[str, ...] = ()
