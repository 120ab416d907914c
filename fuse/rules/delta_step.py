"""The gated delta rule row by row: one row's arithmetic, and the Scan or Loop that repeats it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from fuse.guards import dims_text
from fuse.ir import Graph, Op
from fuse.match import Match, compile_pattern
from fuse.match.plausible import near_kinds
from fuse.pattern import LAST, Add, MatMul, Mul, ReduceSum, Sub, Transpose, Unsqueeze, anything
from fuse.rule import Built, Wrong
from fuse.rules.delta_zeros import zeros
from fuse.types import Dims

# ---- one row, as data --------------------------------------------------------------------------------
_SECOND_LAST = frozenset({2, -2})
#: What is left of the state where it decays, else the state.
_kept = anything("kept")
_k_column = Unsqueeze(anything("k"), axes=LAST)
_seen = ReduceSum(Mul(_kept, _k_column), axes=_SECOND_LAST, keepdims=0)
_added = Unsqueeze(Mul(Sub(anything("v"), _seen), anything("rate")), axes=_SECOND_LAST)
_by_sums = Add(_kept, Mul(_k_column, _added) | MatMul(_k_column, _added))
_one_row = Mul(Sub(anything("v"), MatMul(anything("k"), _kept)), anything("rate"))
_by_products = Add(_kept, MatMul(Transpose(anything("k")), _one_row))
match_sums, match_products = compile_pattern(_by_sums), compile_pattern(_by_products)
_next = anything("next")
match_asked_by_sum = compile_pattern(
    ReduceSum(Mul(_next, Unsqueeze(anything("q"), axes=LAST)), axes=_SECOND_LAST, keepdims=0)
)
match_asked_by_product = compile_pattern(MatMul(anything("q"), _next))
_TO_STATE = frozenset("Mul Unsqueeze MatMul Add".split())
_TO_RESULT = frozenset("Mul MatMul ReduceSum".split())
#: The same, and what is written for them by mistake.
_NEAR_STATE, _NEAR_RESULT = near_kinds(_TO_STATE), near_kinds(_TO_RESULT)
#: How far the new state and the result may be from the difference of v and what is seen, in ops.
_MOST_OPS = 24


class Step(NamedTuple):
    """One row of the recurrence as found: products says that rows are matrices of one row."""

    products: bool


def forward(
    graph: Graph, value: str, through: frozenset[str], kinds: frozenset[str], most: int
) -> Iterator[str]:
    """Values of these kinds of operator that are made of a value through others, nearest first."""
    level, seen = [value], {value}
    while level and len(seen) <= most:
        higher: list[str] = []
        for at in level:
            for slot in graph.readers(at):
                op = graph.slots[slot]
                if op is None or op.outputs[0] in seen or op.kind not in through:
                    continue
                seen.add(op.outputs[0])
                higher.append(op.outputs[0])
                if op.kind in kinds:
                    yield op.outputs[0]
        level = higher


def find_row(graph: Graph, mark: Op, budget: int) -> Iterator[Match]:
    """One row of the recurrence around the difference of v and what the state gives for k."""
    through, sums = (_NEAR_STATE, near_kinds(["Add"])) if budget else (_TO_STATE, frozenset({"Add"}))
    for value in forward(graph, mark.outputs[0], through, sums, _MOST_OPS):
        m = Match(graph, budget)
        products = False
        if not match_sums(m, value):
            m, products = Match(graph, budget), True
            if not match_products(m, value):
                continue
        m.bound = {**m.bound, "next": value}
        asked = match_asked_by_product if products else match_asked_by_sum
        kinds = frozenset({"MatMul"}) if products else frozenset({"ReduceSum"})
        through, kinds = (_NEAR_RESULT, near_kinds(kinds)) if budget else (_TO_RESULT, kinds)
        m.effort = 0
        for result in forward(graph, value, through, kinds, _MOST_OPS):
            mark_here = m.save()
            if asked(m, result):
                m.bound = {**_with_decay(m), "step": Step(products)}
                m.root = result
                yield m
                return
            m.restore(mark_here)


def _with_decay(m: Match) -> dict[str, Any]:
    """The bindings with the state, and the factor it decays by where this match alone reads the product."""
    graph, kept = m.graph, m["kept"]
    op, dims = graph.producer(kept), graph.dims(kept)
    own = {part.slot for part in m.ops}
    alone = not graph.is_output(kept) and all(slot in own for slot in graph.readers(kept))
    if op is not None and op.kind == "Mul" and alone and dims is not None:
        for at in (0, 1):
            factor = graph.dims(op.inputs[1 - at])
            if graph.dims(op.inputs[at]) == dims and factor in ((*dims[:2], 1, 1), (*dims[:3], 1)):
                m.ops.append(op)
                return {**m.bound, "state": op.inputs[at], "factor": op.inputs[1 - at]}
    return {**m.bound, "state": kept}


def row_dims_fit(m: Match) -> Wrong | None:
    """q, k and v are one row of the same heads, beta is one number a head"""
    if "step" not in m.bound:
        return None
    graph, rank = m.graph, 4 if m["step"].products else 3
    state = graph.dims(m["state"])
    if state is None or len(state) != 4:
        return Wrong(m["state"], dims_text(state))
    for name, width in (("q", state[2]), ("k", state[2]), ("v", state[3])):
        dims = graph.dims(m[name])
        want = (*state[:2], 1, width) if rank == 4 else (*state[:2], width)
        if dims != want:
            return Wrong(m[name], f"{dims_text(dims)} beside a state {dims_text(state)}")
    rate = graph.dims(m["rate"])
    if rate != ((*state[:2], 1, 1) if rank == 4 else (*state[:2], 1)):
        return Wrong(m["rate"], f"{dims_text(rate)} beside a state {dims_text(state)}")
    return None


def build_row(m: Match) -> Iterator[Built]:
    """The row with its scale and the exponential of its decay taken in, then with less of either."""
    tried: list[tuple[str, ...]] = []
    for exponent, scale in ((True, True), (True, False), (False, False)):
        built = _build_row(m, exponent, scale)
        if built is not None and built.operands not in tried:
            tried.append(built.operands)
            yield built


def _build_row(m: Match, exponent: bool, scale: bool) -> Built | None:
    graph, also = m.graph, list[Op]()
    heads = (graph.dims(m["state"]) or (0, 0))[1]
    if not isinstance(heads, int):
        return None
    rows = "b h s d" if m["step"].products else "b h d"
    attrs: dict[str, Any] = {f"{name}_layout": rows for name in ("q", "k", "v", "out")} | {"heads": heads}
    beta, layout, _ = _peeled(m, m["rate"], also, exponent=False)
    attrs["beta_layout"] = layout
    decay = ""
    if m.get("factor"):
        decay, attrs["decay_layout"], logarithm = _peeled(m, m["factor"], also, exponent)
        attrs |= {} if logarithm else {"decay_space": "linear"}
    else:
        attrs["update"] = "delta"
    q, factor = scaled(m, m["q"], also) if scale else (m["q"], 1.0)
    attrs |= {"scale": factor} if factor != 1.0 else {}
    state = "" if zeros(graph, m["state"]) else m["state"]
    operands = (q, m["k"], m["v"], decay, beta, state)
    return Built("gated_delta", operands, attrs, (m.root, m["next"]), also)


def _peeled(m: Match, value: str, also: list[Op], exponent: bool) -> tuple[str, str, bool]:
    """Below the axes of one behind a value, and below an exponential: the value, its axes, whether
    there was one."""
    graph, logarithm = m.graph, False
    own = {op.slot for op in (*m.ops, *also)}
    while True:
        op, dims = graph.producer(value), graph.dims(value)
        if op is None or dims is None or graph.is_output(value):
            break
        if any(slot not in own for slot in graph.readers(value)):
            break
        inner = graph.dims(op.inputs[0]) if op.inputs else None
        drops = op.kind in ("Unsqueeze", "Reshape") and inner is not None and _ends_in_ones(dims, inner)
        raises = op.kind == "Exp" and exponent and not logarithm
        if not drops and not raises:
            break
        logarithm = logarithm or raises
        also.append(op)
        own.add(op.slot)
        value = op.inputs[0]
    dims = graph.dims(value) or ()
    letters = ["b", "h", *("d" if dim != 1 else "1" for dim in dims[2:])]
    return value, " ".join(letters), logarithm


def _ends_in_ones(dims: Dims, inner: Dims) -> bool:
    return len(inner) >= 2 and dims[: len(inner)] == inner and all(dim == 1 for dim in dims[len(inner) :])


def scaled(m: Match, value: str, also: list[Op]) -> tuple[str, float]:
    """Below a product of a value and one number that only the match reads, and the number."""
    op = m.graph.producer(value)
    own = {part.slot for part in (*m.ops, *also)}
    if op is None or op.kind != "Mul" or m.graph.is_output(value):
        return value, 1.0
    if any(slot not in own for slot in m.graph.readers(value)):
        return value, 1.0
    for at in (0, 1):
        number = m.graph.scalar(op.inputs[at])
        if number is not None and m.graph.dims(op.inputs[1 - at]) == m.graph.dims(value):
            also.append(op)
            return op.inputs[1 - at], float(number)
    return value, 1.0


# ---- repeated by a Scan or a Loop ---------------------------------------------------------------------
_ROWS = ("q", "k", "v", "decay", "beta")


def find_repeated(graph: Graph, mark: Op, budget: int) -> Iterator[Match]:
    """A Scan or Loop whose body is one row of the recurrence."""
    if budget or mark.parts or len(mark.bodies) != 1 or len(mark.outputs) != 2:
        return
    body = next(iter(mark.bodies.values()))
    rows = [op for op in body.ops if op.kind == "gated_delta"]
    if len(rows) != 1 or len(rows[0].outputs) != 2:
        return
    read = _scanned if mark.kind == "Scan" else _looped
    found = read(graph, mark, body, rows[0])
    if found is not None:
        m = Match(graph, budget)
        m.root, m.ops = mark.outputs[1], [mark]
        m.bound = {"repeated": found}
        yield m


def _scanned(graph: Graph, scan: Op, body: Graph, row: Op) -> Built | None:
    a = scan.attrs
    if len(body.ops) != 1 or any((*a.get("scan_input_directions", ()), *a.get("scan_output_directions", ()))):
        return None
    if len(body.inputs) != len(scan.inputs) or body.outputs != (row.outputs[1], row.outputs[0]):
        return None
    if row.inputs[5] != body.inputs[0] or a.get("num_scan_inputs") != len(scan.inputs) - 1:
        return None
    axes = tuple(a.get("scan_input_axes") or (0,) * (len(scan.inputs) - 1))
    operands: list[str] = []
    attrs = dict(row.attrs)
    for name, value in zip(_ROWS, row.inputs[:5], strict=True):
        if not value:
            operands.append("")
            continue
        if value not in body.inputs[1:]:
            return None
        at = body.inputs.index(value)
        operands.append(scan.inputs[at])
        attrs[f"{name}_layout"] = _with_rows(attrs[f"{name}_layout"], axes[at - 1])
    out = (a.get("scan_output_axes") or (0,))[0]
    attrs["out_layout"] = _with_rows(attrs["out_layout"], out)
    return _repeated(graph, scan, operands, attrs, scan.inputs[0])


def _looped(graph: Graph, loop: Op, body: Graph, row: Op) -> Built | None:
    """A Loop that gathers the rows of values around it by its own count."""
    if len(loop.inputs) != 3 or len(body.inputs) != 3 or len(body.outputs) != 3:
        return None
    count, going, state = body.inputs
    endless = not loop.inputs[1] or graph.scalar(loop.inputs[1]) is True
    goes_on = body.outputs[0] == going or body.scalar(body.outputs[0]) is True
    if not endless or not goes_on or body.outputs[1:] != (row.outputs[1], row.outputs[0]):
        return None
    trips = graph.content(loop.inputs[0]) if loop.inputs[0] else None
    operands: list[str] = []
    attrs, taken = dict(row.attrs), {row.slot}
    for name, value in zip(_ROWS, row.inputs[:5], strict=True):
        op = body.producer(value) if value else None
        if not value:
            operands.append("")
            continue
        if op is None or op.kind != "Gather" or op.inputs[1] != count or op.inputs[0] in body.base.producer:
            return None
        dims, axis = graph.dims(op.inputs[0]), int(op.attrs.get("axis", 0))
        if dims is None or trips is None or len(trips) != 1 or dims[axis] != trips[0]:
            return None
        taken.add(op.slot)
        operands.append(op.inputs[0])
        attrs[f"{name}_layout"] = _with_rows(attrs[f"{name}_layout"], axis)
    if row.inputs[5] != state or any(op.slot not in taken for op in body.ops):
        return None
    attrs["out_layout"] = _with_rows(attrs["out_layout"], 0)
    return _repeated(graph, loop, operands, attrs, loop.inputs[2])


def _with_rows(layout: str, axis: int) -> str:
    """A row's axes with an axis of rows put in; a row that is a matrix of one row keeps that axis of 1."""
    letters = layout.replace("s", "1").split()
    letters.insert(axis if axis >= 0 else len(letters) + 1 + axis, "s")
    return " ".join(letters)


def _repeated(graph: Graph, op: Op, operands: list[str], attrs: dict[str, Any], state: str) -> Built:
    begin = "" if zeros(graph, state) else state
    return Built("gated_delta", (*operands, begin), attrs, (op.outputs[1], op.outputs[0]))
