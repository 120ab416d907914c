"""The named conditions of rules. A guard's docstring is the sentence a report shows as `want`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fuse.ir import Graph, Op
from fuse.match import Fault, Match
from fuse.rule import Guard, Wrong, guard
from fuse.types import FLOATS, Dims, Expr, spans


def dims_text(dims: Dims | None) -> str:
    return "unknown" if dims is None else "[" + ",".join(map(str, dims)) + "]"


def squeezed(dims: Dims) -> Dims:
    """Dims without leading ones."""
    first = next((i for i, dim in enumerate(dims) if dim != 1), len(dims))
    return dims[first:]


def agree(dims: Dims | None, whole: Dims | None) -> bool:
    """Whether dims are those of a broadcast result, where an undecided axis (two symbols met) counts:
    such operands are equal there, or one of them is 1, which broadcasting allows."""
    return (
        dims is not None
        and whole is not None
        and len(dims) == len(whole)
        and all(a == b or (a != 1 and _undecided(a, b)) for a, b in zip(dims, whole, strict=True))
    )


def _undecided(a: object, b: object) -> bool:
    """Whether an operand's axis may still be that of the result: one of the two is not known."""
    if isinstance(b, Expr):
        return any(symbol.startswith("broadcast(") for symbol in b.symbols)
    return isinstance(a, Expr)


def unknown(dims: Dims | None) -> bool:
    """Whether a condition on these dims cannot be decided."""
    return dims is None or any(
        isinstance(d, Expr) and any(s.startswith("?") for s in d.symbols) for d in dims
    )


def branches_off(graph: Graph, value: str, taker: Op) -> bool:
    """Whether another branch of the model reads a value too, so that it has to be written: a sum, or more
    than a reader whose result the model hands out."""
    others = [graph.slots[slot] for slot in graph.readers(value) if slot != taker.slot]
    return any(
        op is not None and (op.kind == "Add" or not all(map(graph.is_output, op.outputs))) for op in others
    )


def regroups_rows(graph: Graph, reshape: Op) -> bool:
    """Whether a reshape leaves the last axis alone: the same rows under other leading axes."""
    inner, outer = graph.dims(reshape.inputs[0]), graph.dims(reshape.outputs[0])
    if not inner or not outer:
        return False
    return isinstance(inner[-1], int) and inner[-1] == outer[-1]


def float_narrower_than_f64(name: str) -> Guard:
    """A guard that a value is f32, f16 or bf16: kernels have no wider form."""

    def narrow(m: Match) -> Wrong | None:
        dtype = m.graph.dtype(m[name])
        return None if dtype in FLOATS - {"f64"} or not dtype else Wrong(m[name], dtype)

    return guard(narrow, name="narrower_than_f64", want=f"{name}: f32, f16 or bf16", code="operand")


def float_type(name: str) -> Guard:
    def is_float(m: Match) -> Wrong | None:
        dtype = m.graph.dtype(m[name])
        return None if dtype in FLOATS or not dtype else Wrong(m[name], dtype)

    return guard(is_float, name="float_type", want=f"{name}: a float", code="operand")


def casts_to_float(star: str) -> Guard:
    """A guard that every cast on the way goes from float to float, and none rounds more than an end of
    the way does: a kernel would not round there."""

    def fine(m: Match) -> Wrong | None:
        casts = [step.value for step in m.taken(star) if step.step == "cast"]
        bottom = ""
        for value in reversed(casts):
            op, dtype = m.graph.producer(value), m.graph.dtype(value)
            inside = m.graph.dtype(op.inputs[0]) if op else ""
            bottom = bottom or inside
            if dtype not in FLOATS or (inside and inside not in FLOATS):
                return Wrong(value, f"a cast to {dtype}")
            ends = (FRACTION_BITS.get(bottom, 0), FRACTION_BITS.get(m.graph.dtype(m.root), 0))
            if FRACTION_BITS[dtype] < min(ends):
                return Wrong(value, f"a cast to {dtype} and back")
        return None

    return guard(fine, name="casts_to_float", want="casts only between float types", code="attribute")


#: Bits of the fraction of a float type.
FRACTION_BITS = {"f64": 52, "f32": 23, "f16": 10, "bf16": 7}


def spans_last_axis(name: str, x: str = "x", code_name: str = "") -> Guard:
    """A guard that a weight lies along the last axis of x only, or per head along the last two.

    A rank-1 weight can broadcast along another axis after a transpose, and a one-element weight is
    a scale: both are other functions.
    """

    def along(m: Match) -> Wrong | None:
        weight = m.get(name)
        if not weight:
            return None
        dims, whole = m.graph.dims(weight), m.graph.dims(m[x])
        if dims is None or whole is None or not whole:
            return Wrong(weight, "unknown dims")
        own = squeezed(dims)
        width = whole[-1]
        if len(own) == 1 and (own[0] == width or (_unknown_dim(width) and len(dims) <= len(whole))):
            return None
        if len(own) == 2 and len(whole) >= 2 and own == whole[-2:]:
            return None
        if dims == (1,) * len(dims) and width == 1 and dims:
            return None
        return Wrong(weight, f"{dims_text(dims)} beside {dims_text(whole)}")

    called = code_name or f"{name}_spans_last_axis"
    return guard(along, name=called, want=f"{name} lies along the last axis of {x}")


def _unknown_dim(dim: object) -> bool:
    return isinstance(dim, Expr) and any(s.startswith("?") for s in dim.symbols)


def same_type(a: str, b: str) -> Guard:
    def same(m: Match) -> Wrong | None:
        first, second = m.get(a), m.get(b)
        if not first or not second:
            return None
        one, two = m.graph.dtype(first), m.graph.dtype(second)
        return None if one == two or not one or not two else Wrong(second, f"{two} beside {one}")

    return guard(same, name=f"{b}_type_is_{a}_type", want=f"{b} has the type of {a}")


def broadcasts(name: str, whole: str) -> Guard:
    def fine(m: Match) -> Wrong | None:
        small, big = m.graph.dims(m[name]), m.graph.dims(m[whole])
        if small is None or big is None or spans(small, big):
            return None
        if len(small) <= len(big) and all(
            x in (1, y) or _unknown_dim(x) or _unknown_dim(y)
            for x, y in zip(small, big[len(big) - len(small) :], strict=True)
        ):
            return None
        return Wrong(m[name], f"{dims_text(small)} over {dims_text(big)}")

    return guard(fine, name=f"{name}_broadcasts_over_{whole}", want=f"{name} broadcasts over {whole}")


#: Operators whose result has the axes of their widest operand.
_BROADCASTING = frozenset(
    ("Add Sub Mul Div Pow Max Min Where Equal Less Greater LessOrEqual GreaterOrEqual And Or Xor Mod").split()
)


def widened(graph: Graph, ops: Sequence[Op]) -> Fault | None:
    """The constant that has more axes than what it meets and than what comes from outside, so that the
    result has its rank: a number too is a tensor, and no class gives its result the axes of a constant."""
    for op in ops:
        if op.kind not in _BROADCASTING:
            continue
        known = [v for v in op.inputs if graph.is_constant(v)]
        if not known or len(known) == len(op.inputs):
            continue
        axes = _rank(graph, (v for v in op.inputs if v not in known))
        for value in known:
            dims = graph.dims(value)
            if dims is None or len(dims) <= axes:
                continue
            made = {v for one in ops for v in one.outputs}
            axes = max(axes, _rank(graph, (v for one in ops for v in one.inputs if v not in made)))
            if len(dims) > axes:
                want = f"a constant of at most {axes} axes, as what it meets"
                return Fault("operand", value, want, f"a constant of {graph.type(value)}")
    return None


def _rank(graph: Graph, values: Iterable[str]) -> int:
    """The most axes that any of these has, of those that are no constants; a vector where one is unknown."""
    dims = [graph.dims(v) for v in values if v and not graph.is_constant(v)]
    return max((1 if one is None else len(one) for one in dims), default=0)


def reader_fault(graph: Graph, value: str, parts: Mapping[int, Op]) -> Fault | None:
    """Why a value is no part's own: an output of the graph, or read outside these parts, by slot."""
    if graph.is_output(value):
        return Fault("graph_output", value, "read only inside the match", f"also the graph output {value}")
    captured = graph.base.captured.get(value)
    for slot in graph.readers(value):
        if slot not in parts:
            reader = graph.slots[slot]
            assert reader is not None
            called = reader.name or reader.outputs[0]
            if captured and any(graph.into[c] == slot for c in captured):
                return Fault(
                    "captured", value, "read only inside the match", f"also read by a subgraph of {called}"
                )
            return Fault("read_elsewhere", value, "read only inside the match", f"also read by {called}")
    return None
