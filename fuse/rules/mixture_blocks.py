"""Around a mixture: the router's product, the rows gathered inside the experts' products, and the whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fuse import forms
from fuse.forms.mixtures import Mixture, gated, mixture
from fuse.guards import dims_text
from fuse.ir import Graph, Op
from fuse.match import Fault, Match
from fuse.match.plausible import STRAY, too_many
from fuse.rule import Built, Rule, Wrong, guard
from fuse.rules.mixture_facts import picks_experts
from fuse.rules.mixture_patterns import FLAT_KINDS, member
from fuse.rules.mixture_walks import reached
from fuse.rules.mixtures import origin, would_be
from fuse.types import product


# ---- the router's product and the shared gate's as one -----------------------------------------------
def _products(graph: Graph, value: str) -> tuple[forms.Product, list[Op]] | None:
    """The plain product that makes a value, perhaps flattened, and the ops passed."""
    base, ops = origin(graph, value, only_same=True)
    op = graph.producer(base)
    found = forms.product(graph, op) if op is not None and op.kind in forms.product.kinds else None
    if found is None or not found.plain or found.trans_x or found.alpha != 1.0 or found.beta != 1.0:
        return None
    return found, ops


def find_router_and_gate(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """Of a mixture with a gated shared expert: two products of one x that give both scores."""
    mix = mixture(graph, op)
    if mix is None or not mix.shared_gate:
        return
    router, gate = _products(graph, mix.scores), _products(graph, mix.shared_gate)
    if router is None or gate is None or router[0].op is gate[0].op:
        return
    members = (router[0], gate[0])
    below = [origin(graph, member.x, only_same=True) for member in members]
    if below[0][0] != below[1][0]:
        return
    m = Match(graph, budget)
    m.root = members[0].out
    own = {member.op.slot for member in members}
    views = [view for _, ops in below for view in ops if set(graph.readers(view.outputs[0])) <= own]
    m.ops = [*(member.op for member in members), *views, op]
    m.bound = {"members": members, "x": below[0][0], "views": views}
    yield m


def _router_and_gate(m: Match) -> Built:
    members: tuple[forms.Product, ...] = m["members"]
    m.ops = [*(member.op for member in members), *m["views"]]
    attrs = {
        "biases": tuple(int(bool(member.bias)) for member in members),
        "trans_weights": tuple(member.trans_weight for member in members),
    }
    biases = (member.bias for member in members if member.bias)
    operands = (m["x"], *(member.weight for member in members), *biases)
    return Built("router_shared_gate_merge", operands, attrs, outputs=tuple(member.out for member in members))


router_shared_gate_merge = Rule(
    "router_shared_gate_merge",
    """a router's product and the product of a shared expert's gate, of one x, as one

    The gate's product has one column: alone it is a launch that reads all of x for one number a row.""",
    finds=find_router_and_gate,
    marks=("moe_shared",),
    builds=_router_and_gate,
    reads=tuple(sorted(forms.product.kinds)),
)


# ---- rows gathered inside an expert's product ----------------------------------------------------------
class Gathered(NamedTuple):
    """Rows of x by the weights that indices name. times: the product; rows: its other operand."""

    stack: str
    indices: str
    gather: Op
    times: Op
    rows: str
    trans: int


def _gathered(graph: Graph, op: Op) -> Gathered | None:
    """A product that reads weights gathered for each row."""
    dims = graph.dims(op.inputs[0])
    readers = graph.readers(op.outputs[0])
    times = graph.slots[readers[0]] if len(readers) == 1 else None
    if not graph.is_constant(op.inputs[0]) or dims is None or len(dims) != 3 or times is None:
        return None
    if times.kind != "MatMul":
        return None
    side = times.inputs.index(op.outputs[0])
    return Gathered(op.inputs[0], op.inputs[1], op, times, times.inputs[1 - side], 1 - side)


def find_gathered(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """Each row by the gathered weights of its expert; with the copies of a row taken in, else without."""
    found = _gathered(graph, op)
    if found is None:
        return
    out = found.times.outputs[0]
    below = [graph.slots[slot] for slot in graph.readers(out)]
    flat = below[0] if len(below) == 1 else None
    x, views = origin(graph, found.rows)
    if flat is None or flat.kind not in FLAT_KINDS - {"Cast"} or not views:
        return
    x = views[0].inputs[0]
    for base, ops, repeats in _rows(graph, x):
        m = Match(graph, budget)
        m.root = flat.outputs[0]
        m.ops = [op, found.times, flat, views[0], *ops]
        m.bound = {"found": found, "x": base, "repeats": repeats, "rows": x}
        yield m


def _rows(graph: Graph, rows: str) -> Iterator[tuple[str, list[Op], int]]:
    """What the rows are copies of, the ops that copy them, and how many of each; then the rows themselves."""
    base, ops = origin(graph, rows)
    spread = graph.producer(base)
    if spread is not None and spread.kind in ("Expand", "Tile"):
        unit = graph.producer(spread.inputs[0])
        wide, narrow = graph.dims(base), graph.dims(spread.inputs[0])
        if unit is not None and unit.kind in FLAT_KINDS and wide and narrow:
            x, count = unit.inputs[0], wide[-2]
            dims = graph.dims(x)
            in_turn = dims is not None and [narrow, wide] == [(*dims[:-1], n, dims[-1]) for n in (1, count)]
            if in_turn and isinstance(count, int):
                yield x, [*ops, spread, unit], count
    yield rows, [], 1


def each_row_meets_one_expert(m: Match) -> Wrong | None:
    """x has a row for each index, and each row meets one expert's weights"""
    graph, found = m.graph, m["found"]
    rows, column, out = graph.dims(m["rows"]), graph.dims(found.rows), graph.dims(m.root)
    index, stack = graph.dims(found.indices), graph.dims(found.stack)
    width = stack[2 if found.trans else 1] if stack else None
    fine = (
        rows is not None and column is not None and index is not None and out is not None
        and len(rows) == 2 and len(out) == 2 and len(column) == 3 and rows[1] == width
        and column[-1 if found.trans else -2] == 1 and product(index) == rows[0] == out[0]
    )  # fmt: skip
    return None if fine else Wrong(found.rows, f"{dims_text(column)} by {dims_text(stack)}")


def experts_are_the_first_axis(m: Match) -> Wrong | None:
    """the chosen experts are picked from the first axis of their weights"""
    op = m["found"].gather
    if picks_experts(m.graph, op):
        return None
    return Wrong(op.outputs[0], f"indices {dims_text(m.graph.dims(op.inputs[1]))} along another axis")


def _gather_product(m: Match) -> Built:
    found: Gathered = m["found"]
    attrs = {"repeats": m["repeats"]} if m["repeats"] != 1 else {}
    if found.trans:
        attrs["trans_weight"] = 1
    return Built("moe_gather_in_operand", (m["x"], found.stack, found.indices), attrs)


moe_gather_in_operand = Rule(
    "moe_gather_in_operand",
    """each row times the weights of the expert that its index names, read in place

    Gathered weights are a copy of an expert for every row: the product reads them where they lie.
    Where a chip runs no whole mixture, this is what it can run of one.""",
    finds=find_gathered,
    marks=("Gather", "GatherND"),
    needs=(guard(experts_are_the_first_axis), guard(each_row_meets_one_expert)),
    # a stack of weights picked from and multiplied by is all there is to it
    almost=lambda match, fault: fault.code.startswith("guard:"),
    builds=_gather_product,
    again=True,
)


# ---- router, mixture and shared expert as one -------------------------------------------------------------
class Router(NamedTuple):
    """What gives a mixture its scores: weight [in, experts] (trans: [experts, in]); gate: weight, trans."""

    x: str
    weight: str
    bias: str
    trans: int
    gate: tuple[str, int] | None
    ops: list[Op]


#: Several products of one x as one.
_MERGES = ("merged_products", "router_shared_gate_merge")


def _router(graph: Graph, op: Op, mix: Mixture) -> Router | None:
    if op.kind in _MERGES:
        if len(op.outputs) != 2 or set(op.outputs) != {mix.scores, mix.shared_gate}:
            return None
        scores, gate_score = (member(op.outputs.index(v))(graph, op) for v in (mix.scores, mix.shared_gate))
        if gate_score.bias:
            return None
        gate = (gate_score.weight, gate_score.trans_weight)
        return Router(scores.x, scores.weight, scores.bias, scores.trans_weight, gate, [op])
    found = forms.product(graph, op)
    if found is None or not found.plain or found.trans_x or found.alpha != 1.0 or found.beta != 1.0:
        return None
    router = Router(found.x, found.weight, found.bias, found.trans_weight, None, [op])
    if not mix.shared_gate:
        return router
    beside = _products(graph, mix.shared_gate)
    if beside is None or beside[0].bias:
        return None
    (x, ops), (rows, views) = (origin(graph, v, only_same=True) for v in (beside[0].x, found.x))
    if x != rows:
        return None
    own = [op, beside[0].op, *beside[1], *ops, *views]
    return router._replace(gate=(beside[0].weight, beside[0].trans_weight), ops=own)


def find_block(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
    """The mixture that reads a product as its scores; the reshapes around both taken in where they can be."""
    if budget:
        yield from find_near_block(graph, op) if op.kind in ("MatMul", "Gemm", "matmul_bias") else ()
    for mix, own in _mixtures_above(graph, op):
        if mix.scores not in op.outputs or mix.attrs.get("selection") == "separate":
            continue
        router = _router(graph, op, mix)
        if router is None:
            continue
        (x, views), (rows, more) = (origin(graph, v, only_same=True) for v in (mix.x, router.x))
        wide = _cast_up(graph, rows, router)
        if wide is not None:
            rows, below = origin(graph, wide.inputs[0], only_same=True)
            router = router._replace(ops=[*router.ops, wide])
            more = [*more, *below]
        if x != rows:
            apart = _flattened_apart(graph, x, rows, router)
            if apart is None:
                continue
            more = [*more, *apart]
        for base, root, around in _around(graph, mix, x):
            m = Match(graph, budget)
            m.root = root
            m.ops = [*router.ops, *own, *views, *more, *around]
            m.bound = {"mixture": mix, "router": router, "x": base}
            yield m


def find_near_block(graph: Graph, op: Op) -> Iterator[Match]:
    """A mixture whose router is a product but for one thing: its weight changes at run time, it is scaled,
    or an operator that no model means stands before or after it."""
    almost = forms.product.almost(graph, op)
    found = forms.product(graph, op) if almost is None else almost.form
    if found is None or not found.plain or found.trans_x or not op.outputs[0]:
        return
    fault = None if almost is None else Fault(*almost[1:])
    if (found.alpha, found.beta) != (1.0, 1.0):
        scaled = f"alpha={found.alpha}, beta={found.beta}"
        fault = fault or Fault("attribute", op.outputs[0], "alpha=1, beta=1", scaled)
    for value, passed in _scores_above(graph, op.outputs[0]):
        for mix in _reading(graph, value):
            (x, views), (rows, more) = (origin(graph, v, only_same=True) for v in (mix.x, found.x))
            made = graph.producer(rows)
            stray = made is not None and made.kind in STRAY and origin(graph, made.inputs[0])[0]
            told = [fault] if fault is not None else []
            told += [Fault("op", one.outputs[0], "no operator", one.kind) for one in passed[-1:]]
            if made is not None and stray == origin(graph, x)[0]:
                told.append(Fault("op", rows, "no operator", made.kind))
            elif origin(graph, x)[0] != origin(graph, rows)[0]:
                continue
            if len(told) == 1:
                m = Match(graph)
                m.root, m.fault = mix.out, told[0]
                m.ops = list({one.slot: one for one in (op, *passed, *views, *more, mix.op)}.values())
                yield m


def _scores_above(graph: Graph, value: str) -> Iterator[tuple[str, list[Op]]]:
    """A product's result, and what an operator too many on it, or casts and back, make of it."""
    yield value, []
    for reader in (graph.slots[slot] for slot in graph.readers(value)):
        above = reader
        for _ in range(2):
            passed = too_many(graph, above) if above is not None and above.kind in STRAY else []
            if above is not None and passed and passed[-1].inputs[0] == value:
                yield above.outputs[0], passed
                break
            readers = graph.readers(above.outputs[0]) if above is not None else []
            above = graph.slots[readers[0]] if len(readers) == 1 else None


def _reading(graph: Graph, scores: str) -> Iterator[Mixture]:
    """The mixtures that stand and choose by these scores."""
    for reader in (graph.slots[slot] for slot in graph.readers(scores)):
        mix = mixture(graph, reader) if reader is not None and reader.kind in mixture.kinds else None
        if mix is not None and mix.scores == scores:
            yield mix


def _cast_up(graph: Graph, rows: str, router: Router) -> Op | None:
    """The cast to a wider type that a router alone reads its rows through."""
    op, own = graph.producer(rows), {op.slot for op in router.ops}
    if op is None or op.kind != "Cast" or not own.issuperset(graph.readers(rows)):
        return None
    return op if graph.dtype(op.inputs[0]) in ("f16", "bf16") and graph.dtype(rows) == "f32" else None


def _flattened_apart(graph: Graph, x: str, rows: str, router: Router) -> list[Op] | None:
    """Where the router flattens the rows again: the reshapes that only it reads; None for other rows."""
    (base, _), (other, views) = origin(graph, x), origin(graph, rows)
    if base != other or graph.dims(x) is None or graph.dims(x) != graph.dims(rows):
        return None
    own = {op.slot for op in router.ops}
    taken: list[Op] = []
    for view in views:
        if not own.issuperset(graph.readers(view.outputs[0])):
            break
        own.add(view.slot)
        taken.append(view)
    return taken


#: What may stand between a router's product and the choice by its scores.
_SCORING = FLAT_KINDS | {"Softmax", "Sigmoid", "Add"}


def _mixtures_above(graph: Graph, op: Op) -> Iterator[tuple[Mixture, list[Op]]]:
    """The mixtures that read a product, and what they are made of: one op, or all of it where a chip
    that refuses a bare mixture left none to stand."""
    for out in filter(None, op.outputs):
        for reader in (graph.slots[slot] for slot in graph.readers(out)):
            mix = mixture(graph, reader) if reader is not None and reader.kind in mixture.kinds else None
            if reader is not None and mix is not None:
                yield mix, [reader]
        for top in reached(graph, out, _SCORING, ("TopK",)):
            yield from would_be(graph, top)


def _around(graph: Graph, mix: Mixture, x: str) -> Iterator[tuple[str, str, list[Op]]]:
    """x, the result and the reshapes around them: rows flattened before and laid out again after, or not."""
    view = graph.producer(x)
    if view is not None and view.kind in FLAT_KINDS - {"Cast"}:
        base = view.inputs[0]
        dims, rows = graph.dims(base), graph.dims(x)
        if dims and rows and dims[-1] == rows[-1]:
            if mix.shared and graph.dims(mix.out) == dims:
                yield base, mix.out, [view]
            readers = [graph.slots[slot] for slot in graph.readers(mix.out)]
            last = readers[0] if len(readers) == 1 and not mix.shared else None
            if last is not None and last.kind in FLAT_KINDS and graph.dims(last.outputs[0]) == dims:
                yield base, last.outputs[0], [view, last]
    yield x, mix.out, []


def _block(m: Match) -> Built:
    mix: Mixture = m["mixture"]
    router: Router = m["router"]
    gate, trans_gate = router.gate or ("", 0)
    attrs = dict(mix.attrs)
    attrs |= {"trans_router": 1} if router.trans else {}
    attrs |= {"trans_shared_gate": 1} if trans_gate else {}
    operands = (m["x"], router.weight, router.bias, mix.choice, mix.shared, gate, *mix.weights)
    return Built("moe_block", operands, attrs)


moe_block = Rule(
    "moe_block",
    """the router's product, the mixture it chooses for and what a shared expert gives, as one

    The scores never leave the kernel. It is found from the product, whether the mixture stands or not:
    what refuses a bare mixture may run the block, or else the experts' products one by one.""",
    finds=find_block,
    marks=(*sorted(forms.product.kinds), *_MERGES),
    builds=_block,
    # a mixture that stands and what gives its scores are telling
    almost=lambda match, fault: True,
    # no mixture among these: one that was refused is undone before rows are gathered in place
    reads=tuple(sorted(forms.activation.kinds | gated.kinds | member(0).kinds)),
)
