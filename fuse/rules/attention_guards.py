"""What must hold of the steps between an attention's two products."""

from __future__ import annotations

from fuse.guards import dims_text
from fuse.ir import Graph
from fuse.match import Match, Taken
from fuse.rule import Wrong
from fuse.rules.attention_masks import first_lanes, one_condition
from fuse.types import add

#: Steps that a factor of the scores must stand below.
INNER = frozenset({"add", "keep", "drop", "cap", "bound", "divide", "sink", "hide"})


def softmax_runs_over_the_keys(m: Match) -> Wrong | None:
    """the softmax runs over the keys of each row"""
    turns = [step for step in m.taken("probabilities") if step.step == "turn"]
    columns = m.get("columns")
    if bool(columns) == bool(len(turns) % 2):
        return None
    return Wrong(columns.out, "axis=-2") if columns else Wrong(turns[0].value, "exchanged after it")


def masks_lie_over_the_scores(m: Match) -> Wrong | None:
    """a mask has at most the axes of the scores"""
    graph = m.graph
    for step in m.taken("scores"):
        masks = [step.bound[name] for name in _MASKS.get(step.step, ()) if name in step.bound]
        op = graph.producer(step.value) if masks else None
        over = [graph.dims(v) for v in op.inputs if v not in masks] if op is not None else []
        for mask in masks:
            dims, axes = graph.dims(mask), min((len(d) for d in over if d is not None), default=0)
            if dims is not None and None not in over and over and len(dims) > axes:
                return Wrong(mask, f"{dims_text(dims)} over {axes} axes")
    return None


#: Steps of the scores -> the operands that mask them.
_MASKS = {"add": ("mask",), "keep": ("keep", "fill"), "drop": ("drop", "fill")}


def scale_stands_below_masks(m: Match) -> Wrong | None:
    """every scalar factor of the scores stands below the masks"""
    inner: list[Taken] = []
    for step in reversed(m.taken("scores")):
        if step.step in INNER:
            inner.append(step)
        elif step.step not in ("scale", "unscale") or m.graph.scalar(step.bound["s"]) == 1:
            continue
        elif inner and not scales_a_sum_of_products(m, step):
            return Wrong(step.value, "a factor of masked scores")
    return None


def scales_a_sum_of_products(m: Match, step: Taken) -> bool:
    """Whether a factor is the only one, and of the scores and terms of positions that are products too."""
    taken = m.taken("scores")
    below = taken[taken.index(step) + 1 :]
    if any(one.step in INNER - {"add"} or one.step in ("scale", "unscale") for one in below):
        return False
    terms = [one.bound["mask"] for one in below if one.step == "add"]
    return bool(terms) and all(_is_product(m.graph, term) for term in terms)


_MOVES = frozenset(
    "Reshape Transpose Slice Pad Squeeze Unsqueeze Expand Gather GatherElements Concat".split()
)


def _is_product(graph: Graph, value: str) -> bool:
    """Whether a value is a product of two activations, moved about or not."""
    for _ in range(16):
        op = graph.producer(value)
        if op is None or op.kind not in _MOVES:
            return op is not None and op.kind in ("MatMul", "Einsum")
        value = next((v for v in op.inputs if not _is_filling(graph, v)), "")
    return False


def _is_filling(graph: Graph, value: str) -> bool:
    op = graph.producer(value)
    return graph.is_constant(value) or (op is not None and op.kind == "ConstantOfShape")


def factor_is_of_unit_vectors(m: Match) -> Wrong | None:
    """a factor of each head, where it is known, scales products of unit vectors"""
    for step in m.taken("scores"):
        if step.step != "multiply" or not m.graph.is_constant(step.bound["factor"]):
            continue
        if not (_is_unit(m.graph, m["q"]) and _is_unit(m.graph, m["k"])):
            return Wrong(step.bound["factor"], "a number for each head")
    return None


def _is_unit(graph: Graph, value: str) -> bool:
    for _ in range(8):
        op = graph.producer(value)
        if op is None or op.kind not in _MOVES | {"Cast"}:
            return op is not None and op.kind == "l2_norm"
        value = op.inputs[0]
    return False


def floor_stands_above_masks(m: Match) -> Wrong | None:
    """a floor under the scores stands above the masks"""
    steps = [step.step for step in m.taken("scores")]
    if "floor" not in steps or set(steps[: steps.index("floor")]) <= {"cast", "reshape", "shift", "floor"}:
        return None
    at = next(step.value for step in m.taken("scores") if step.step == "floor")
    return Wrong(at, "a floor below a mask")


def caps_agree(m: Match) -> Wrong | None:
    """the two constants of the cap are one number"""
    for step in m.taken("scores"):
        if step.step == "cap" and "c" in step.bound:
            one, two = m.graph.scalar(step.bound["c"]), m.graph.scalar(step.bound["c2"])
            if one is None or two is None or abs(float(one) - float(two)) > 1e-3 * abs(float(one)):
                return Wrong(step.value, f"{one} and {two}")
    return None


def sink_is_cut_off(m: Match) -> Wrong | None:
    """the column of sinks joined to the scores, one number a head, is the one cut off after the softmax"""
    joined = [step for step in m.taken("scores") if step.step == "sink"]
    cut = [step for step in m.taken("probabilities") if step.step == "without_sink"]
    if not joined and not cut:
        return None
    if len(joined) != 1 or len(cut) != 1:
        return Wrong((joined or cut)[0].value, f"{len(joined)} columns of sinks, {len(cut)} cuts")
    graph, at = m.graph, joined[0]
    above = [step.step for step in m.taken("scores")[: m.taken("scores").index(at)]]
    if set(above) - {"shift", "cast"}:
        return Wrong(at.value, f"{above[-1]} of scores and sinks together")
    op = graph.producer(at.value)
    scores, left = graph.dims(op.inputs[0]) if op is not None else None, graph.dims(cut[0].value)
    sink = graph.dims(at.bound["sink"])
    whole = graph.dims(at.value)
    one = whole is not None and scores is not None and whole[-1] == add(scores[-1], 1)
    column = one and sink is not None and len(sink) == 4 and sink[-1] == 1
    if not column or scores is None or len(scores) != 4 or left is None or left[-1] != scores[-1]:
        return Wrong(at.value, f"sinks {dims_text(sink)}, {dims_text(left)} left")
    return None if first_lanes(graph, cut[0].value) else Wrong(cut[0].value, "another cut")


def zeroed_where_dropped(m: Match) -> Wrong | None:
    """what is set to zero after the softmax is what was dropped before it"""
    drops = [step.bound["drop"] for step in m.taken("scores") if step.step == "drop"]
    for step in m.taken("probabilities"):
        if step.step == "zeroed" and not any(one_condition(m.graph, step.bound["gone"], d) for d in drops):
            return Wrong(step.value, "another condition")
    return None
