"""What must hold of the steps between an attention's two products."""

from __future__ import annotations

from fuse.guards import dims_text
from fuse.match import Match
from fuse.rule import Wrong
from fuse.rules.attention_masks import first_lanes, one_condition
from fuse.types import add

#: Steps that a factor of the scores must stand below.
INNER = frozenset({"add", "keep", "drop", "cap", "bound", "divide", "sink"})


def scale_stands_below_masks(m: Match) -> Wrong | None:
    """every scalar factor of the scores stands below the masks"""
    outside = False
    for step in reversed(m.taken("scores")):
        if step.step in INNER:
            outside = True
        elif step.step in ("scale", "unscale") and outside and m.graph.scalar(step.bound["s"]) != 1:
            return Wrong(step.value, "a factor of masked scores")
    return None


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
