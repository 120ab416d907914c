"""The gated delta rule, from the chunks that an export unrolls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fuse.guards import dims_text
from fuse.ir import Graph, Op
from fuse.match import Match
from fuse.match.plausible import near_kinds
from fuse.rule import Built, Guard, Rule, Wrong, guard
from fuse.rules import delta_patterns as patterns
from fuse.rules.delta_results import NAMES, build_chunks
from fuse.rules.delta_solve import Solve, from_end, index_ops, inserted, repeated
from fuse.rules.delta_step import build_row, find_repeated, find_row, forward, row_dims_fit
from fuse.rules.delta_zeros import zeros

#: How far the start of the solve, and the rows of a chunk, may be from what leads to them, in ops.
MOST_OPS = 64
Check = Callable[[Match], Wrong | None]
_STARTS, _SUMS = frozenset({"Neg", "Where"}), frozenset({"Add"})


class Chunks(NamedTuple):
    """What was found beside the bindings of the match.

    begin: what the first chunk is written into. written: the chunk that each write names, in order.
    follows: whether each chunk begins with the state that the one before left. bounds: the bindings of
    each chunk, results: its rows. last_state: "" where nothing computes it.
    """

    rows: int
    begin: str
    written: tuple[int, ...]
    follows: tuple[bool, ...]
    bounds: tuple[dict[str, Any], ...]
    results: tuple[str, ...]
    last_state: str
    solve: Solve


def find(graph: Graph, mark: Op, budget: int) -> Iterator[Match]:
    """The unrolled chunks whose decays one CumSum adds up."""
    through, starts = (
        (patterns.NEAR_TO_START, near_kinds(_STARTS)) if budget else (patterns.TO_START, _STARTS)
    )
    for begin in forward(graph, mark.outputs[0], through, starts, MOST_OPS):
        m = Match(graph, budget)
        if not patterns.match_start(m, begin):
            continue
        solve = Solve(graph, begin)
        if not solve.read():
            continue
        m.ops += solve.ops
        m.bound = {**m.bound, "solved": solve.result}
        if _solved_products(m) and _chunks(m, solve):
            yield m


def _solved_products(m: Match) -> bool:
    """The values and keys that the inverse of the triangle gives."""
    graph = m.graph
    for slot in graph.readers(m["solved"]):
        inverse = graph.slots[slot]
        if inverse is None or inverse.kind != "Add":
            continue
        found: dict[str, str] = {}
        for reader in (graph.slots[s] for s in graph.readers(inverse.outputs[0])):
            if reader is None:
                continue
            for name, matcher in (("values", patterns.match_values), ("keys", patterns.match_keys)):
                mark = m.save()
                if name not in found and matcher(m, reader.outputs[0]):
                    found[name] = reader.outputs[0]
                    break
                m.restore(mark)
        if len(found) == 2:
            m.bound = {**m.bound, **found}
            return True
    return False


def _chunks(m: Match, solve: Solve) -> bool:
    """Every chunk that is computed, in order, and where its rows are written."""
    graph, shared = m.graph, m.bound
    found: list[tuple[int, str, dict[str, Any]]] = []
    through, sums = (patterns.NEAR_TO_ROWS, near_kinds(_SUMS)) if m.explains else (patterns.TO_ROWS, _SUMS)
    for value in forward(graph, m["values"], through, sums, MOST_OPS):
        m.bound = shared
        mark = m.save()
        if patterns.match_rows(m, value):
            found.append((int(m.number("chunk")), value, m.bound))
        else:
            m.restore(mark)
    m.bound = shared
    found.sort(key=lambda chunk: chunk[0])
    writes = _writes(graph, [value for _, value, _ in found])
    if not found or writes is None:
        return False
    m.ops += writes + index_ops(graph, solve.ops)
    follows, last = [True], ""
    for number, (_, _, bound) in enumerate(found):
        last = _left_behind(m, bound, solve.rows)
        if number + 1 < len(found):
            follows.append(last == found[number + 1][2]["state"])
    scatters = [op for op in writes if op.kind == "ScatterElements"]
    if tuple(at for at, _, _ in found) != tuple(range(len(found))):
        return False
    written = tuple(_index(m, op.inputs[1]) for op in scatters)
    bounds, results = tuple(bound for _, _, bound in found), tuple(value for _, value, _ in found)
    facts = Chunks(solve.rows, scatters[0].inputs[0], written, tuple(follows), bounds, results, last, solve)
    m.bound = {**bounds[0], "facts": facts}
    if any(bound["q_rows"] != m["q_rows"] for bound in bounds) or not patterns.match_q(m, m["q_rows"]):
        return False
    m.root = scatters[-1].outputs[0]
    return _zeros_taken(m, facts.begin, m["state"])


def _left_behind(m: Match, bound: dict[str, Any], rows: int) -> str:
    """The state after a chunk, "" where nothing computes it."""
    before, kept = bound["state"], m.bound
    for slot in m.graph.readers(before):
        op = m.graph.slots[slot]
        if op is None or op.kind != "Mul":
            continue
        for above in m.graph.readers(op.outputs[0]):
            total = m.graph.slots[above]
            m.bound, mark = bound, m.save()
            if total is not None and total.kind == "Add" and patterns.match_next_state(m, total.outputs[0]):
                exponents = [step for step in m.steps[mark[1] :] if step.step == "exp"]
                last = m.number("last_row") in (-1, rows - 1)
                m.bound = kept
                return total.outputs[0] if len(exponents) == 1 and last else ""
            m.restore(mark)
    m.bound = kept
    return ""


def _writes(graph: Graph, values: list[str]) -> list[Op] | None:
    """The ops that write each chunk's rows into the result, and those that make what they write into."""
    ops: list[Op] = []
    into = ""
    for value in values:
        found = _write(graph, value)
        if found is None or (into and found[1].inputs[0] != into):
            return None
        spread, writer = found
        begin = graph.producer(writer.inputs[0])
        ops += [op for op in (spread, begin) if op is not None and op not in ops] + [writer]
        into = writer.outputs[0]
    return ops


def _write(graph: Graph, value: str) -> tuple[Op, Op] | None:
    """The op that gives a chunk's rows the axis of chunks, and the one that writes them there."""
    for spread in (graph.slots[slot] for slot in graph.readers(value)):
        if spread is None or spread.kind not in ("Unsqueeze", "Reshape") or not inserted(graph, spread, -3):
            continue
        for writer in (graph.slots[slot] for slot in graph.readers(spread.outputs[0])):
            if writer is None or writer.kind != "ScatterElements" or writer.inputs[2] != spread.outputs[0]:
                continue
            axis = from_end(graph, writer.inputs[0], writer.attrs.get("axis", 0))
            if axis == -3 and writer.attrs.get("reduction", "none") == "none":
                return spread, writer
    return None


def _index(m: Match, value: str) -> int:
    """The one number that indices repeat, -1 where it is not known."""
    op = m.graph.producer(value)
    if op is not None and op.kind == "Expand":
        m.ops.append(op)
        value = op.inputs[0]
    number = repeated(m.graph, value)
    return -1 if number is None else number


def _zeros_taken(m: Match, *values: str) -> bool:
    """Take in the operators that make zeros."""
    for value in dict.fromkeys(values):
        op = m.graph.producer(value)
        if op is not None and zeros(m.graph, value):
            m.ops.append(op)
    return True


# ---- guards ------------------------------------------------------------------------------------------
def rows_end_in_zeros(m: Match) -> Wrong | None:
    """rows are padded with zeros at their end only"""
    graph = m.graph
    for op in m.ops:
        if op.kind != "Pad":
            continue
        dims, amounts = graph.dims(op.outputs[0]), graph.content(op.inputs[1])
        rows = -1 if op.inputs[0] in (m["decay"], m["beta"]) else -2
        if dims is None or amounts is None or len(amounts) != 2 * len(dims):
            return Wrong(op.outputs[0], "amounts that are not known")
        if any(e != 0 for at, e in enumerate(amounts) if at != 2 * len(dims) + rows):
            return Wrong(op.outputs[0], f"pads {list(amounts)}")
        if op.attrs.get("mode", "constant") != "constant":
            return Wrong(op.outputs[0], f"mode {op.attrs['mode']}")
    return None


def masks_are_triangles(m: Match) -> Wrong | None:
    """each mask is the triangle of rows that come later, and the diagonal added is of ones"""
    rows = m["facts"].rows
    later, whole = np.triu(np.ones((rows, rows), bool), 1), np.triu(np.ones((rows, rows), bool))
    for name, want in (("later", later), ("from_here", whole), ("one", np.eye(rows))):
        for bound in (m.bound, *m["facts"].bounds):
            value = bound.get(name, "")
            tensor = m.graph.constant(value) if value else None
            array = None if tensor is None else tensor.small()
            if value and (array is None or array.size != want.size or not _same(array, want)):
                return Wrong(value, "another matrix")
    for name, wanted in (("below", -1), ("nothing", -np.inf)):
        if m.get(name) and m.number(name) != wanted:
            return Wrong(m[name], str(m.number(name)))
    return None


def _same(array: np.ndarray, want: np.ndarray) -> bool:
    return array.shape[-2:] == want.shape and bool((array.reshape(want.shape) == want).all())


def every_row_is_solved(m: Match) -> Wrong | None:
    """every row of the triangle is solved, in order"""
    fault = m["facts"].solve.fault
    return None if fault is None else Wrong(fault[1], f"row {fault[0]} is not")


def chunks_follow_each_other(m: Match) -> Wrong | None:
    """each chunk begins with the state that the one before it left and is written in its place"""
    facts = m["facts"]
    if facts.written != tuple(range(len(facts.written))):
        return Wrong(m.root, f"chunks written at {', '.join(map(str, facts.written))}")
    for number, follows in enumerate(facts.follows):
        if not follows:
            return Wrong(facts.results[number], f"another state before chunk {number}")
    return None if zeros(m.graph, facts.begin) else Wrong(facts.begin, "not zeros")


def rows_are_cut_into_chunks(m: Match) -> Wrong | None:
    """rows are cut into chunks in order"""
    rows = m["facts"].rows
    solved = {op.slot for op in m["facts"].solve.ops}
    for op in m.ops:
        outer, inner = m.graph.dims(op.outputs[0]), m.graph.dims(op.inputs[0]) if op.inputs else None
        if op.slot in solved or outer is None or inner is None:
            continue
        cuts = op.kind == "Reshape" and len(outer) == len(inner) + 1 and len(inner) > 2
        if cuts and (outer[:2] != inner[:2] or outer[3] != rows or outer[4:] != inner[3:]):
            return Wrong(op.outputs[0], f"{dims_text(outer)} of {dims_text(inner)}")
    return None


def only_rows_and_columns_change_places(m: Match) -> Wrong | None:
    """a perm that exchanges the last two axes, and a sum along the last"""
    solved = {op.slot for op in m["facts"].solve.ops} if "facts" in m.bound else set()
    for op in m.ops:
        perm = tuple(op.attrs.get("perm") or ())
        last = len(perm) - 1
        turned = op.kind == "Transpose" and op.slot not in solved
        if turned and perm != (*range(last - 1), last, last - 1):
            return Wrong(op.outputs[0], f"perm={list(perm)}")
        if op.kind == "CumSum" and m.number("sum_axis") not in (-1, 3):
            return Wrong(op.outputs[0], f"axis={m.number('sum_axis')}")
    return None


def operands_have_the_same_rows(m: Match) -> Wrong | None:
    """q, k, v, decay and beta have one batch, heads and rows, q and k one width"""
    q = m.graph.dims(m["q"])
    for name in NAMES:
        dims = m.graph.dims(m[name])
        rank = 3 if name in ("decay", "beta") else 4
        if q is None or dims is None or len(dims) != rank or dims[:3] != q[:3]:
            return Wrong(m[name], f"{dims_text(dims)} beside {dims_text(q)}")
        if name == "k" and dims != q:
            return Wrong(m[name], f"{dims_text(dims)} beside {dims_text(q)}")
    state, v = m.graph.dims(m["state"]), m.graph.dims(m["v"])
    if q is None or v is None or state != (*q[:2], q[3], v[3]):
        return Wrong(m["state"], f"a state {dims_text(state)}")
    return None


def find_any(graph: Graph, mark: Op, budget: int) -> Iterator[Match]:
    """The recurrence by any of its spellings, from the operator that tells which it is."""
    if mark.kind == "CumSum":
        yield from find(graph, mark, budget)
    elif mark.kind == "Sub":
        yield from find_row(graph, mark, budget)
    else:
        yield from find_repeated(graph, mark, budget)


def build_any(m: Match) -> Iterator[Built]:
    if "repeated" in m.bound:
        yield m["repeated"]
    elif "step" in m.bound:
        yield from build_row(m)
    else:
        yield from build_chunks(m)


def unrolled(check: Check, code: str = "") -> Guard:
    """A guard of the unrolled spelling only."""
    alone = guard(check, code=code)
    return alone._replace(check=lambda m: check(m) if "facts" in m.bound else None)


gated_delta = Rule(
    "gated_delta",
    """the gated delta rule: a state that decays, is corrected by each row, and is asked by it

    Hundreds of kernels, most of them a triangular solve written row by row, become one that reads
    each row once and keeps the state where it computes.""",
    finds=find_any,
    marks=("CumSum", "Sub", "Scan", "Loop"),
    needs=(
        guard(only_rows_and_columns_change_places, code="attribute"),
        unrolled(rows_are_cut_into_chunks),
        unrolled(rows_end_in_zeros, "attribute"),
        unrolled(operands_have_the_same_rows),
        unrolled(masks_are_triangles, "operand"),
        unrolled(every_row_is_solved),
        unrolled(chunks_follow_each_other),
        guard(row_dims_fit),
    ),
    builds=build_any,
    reads=("gated_delta",),
)
