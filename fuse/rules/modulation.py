"""Norms and residuals that a condition scales: adaptive norms, gated residuals, gated norms."""

from __future__ import annotations

from typing import Any

from fuse import forms
from fuse.forms.modulations import affine_operand, gated_branch, narrower, one_plus
from fuse.guards import FRACTION_BITS, agree, casts_to_float, dims_text
from fuse.ir import Graph, Op
from fuse.match import Fault, Match
from fuse.match.plausible import NO_SUM, STRAY
from fuse.pattern import HOLE, Add, Cast, Mul, anything, constant, form, form_of, star
from fuse.rule import Built, Rule, Wrong, guard
from fuse.rules.norm_composites import norm_attrs

scale, factor, shift = anything("scale"), anything("factor"), anything("shift")


@form_of(*(forms.norm.kinds | forms.add_norm.kinds))
def _any_norm(graph: Graph, op: Op) -> Any:
    """A norm, or one with the residual add before it."""
    return forms.add_norm(graph, op) if op.kind in forms.add_norm.kinds else forms.norm(graph, op)


norm = form(_any_norm, "norm")
scaled = Mul(norm, Add(scale, constant(1)))
#: One plus the scale was put under the axes of the norm, or is read by several norms.
scaled_whole = Mul(norm, factor)


def _rows(m: Match) -> list[str]:
    return [m[name] for name in ("scale", "factor", "shift") if m.get(name)]


def scale_and_shift_are_rows_of_each_batch(m: Match) -> Wrong | None:
    """scale and shift are one row for all rows of a batch"""
    whole = m.graph.dims(m["norm"].out)
    for value in _rows(m):
        dims = m.graph.dims(value)
        if not narrower(dims, whole) and not (whole is not None and len(whole) == 2 and dims == whole):
            return Wrong(value, f"{dims_text(dims)} beside {dims_text(whole)}")
        if dims is not None and any(dim != 1 for dim in dims[1:-1]):
            return Wrong(value, f"{dims_text(dims)} beside {dims_text(whole)}")
    return None


def _is_scaled_so(m: Match) -> bool:
    """Whether what scales is one plus a run-time value, and no weight or gate; without a shift, a row of
    each batch."""
    graph, by = m.graph, m.get("scale") or m.get("factor")
    if not by or (not m.get("shift") and len(graph.dims(by) or ()) < 2):
        return False
    return one_plus(graph, by) if m.get("factor") else not graph.is_constant(by)


def _ada_norm(m: Match) -> Built | None:
    found, graph = m["norm"], m.graph
    added = isinstance(found, forms.AddNorm)
    if (added and found.add_bias) or not _is_scaled_so(m):
        return None
    attrs = norm_attrs(found)
    weight, bias = found.weight, found.bias
    if not affine_operand(graph, found):
        weight = bias = ""
    if not weight:
        attrs.pop("offset", None)
    if m.get("factor"):
        attrs["scale_offset"] = 0.0
    operands = (
        found.x, m.get("scale") or m["factor"], m.get("shift"), found.residual if added else "", weight, bias
    )  # fmt: skip
    return Built("ada_norm", operands, attrs, outputs=(m.root, found.total if added else ""))


ada_norm = Rule(
    "ada_norm",
    """a norm times one plus a scale, plus a shift, both made of a condition

    Four kernels become one: diffusion transformers norm every branch so, some without a shift.""",
    finds=Add(scaled, shift)
    | Add(Add(norm, Mul(norm, scale)), shift)
    | Add(scaled_whole, shift)
    | scaled
    | scaled_whole,
    marks=tuple(sorted(_any_norm.kinds)),
    needs=(guard(scale_and_shift_are_rows_of_each_batch),),
    place=_is_scaled_so,
    builds=_ada_norm,
)

x, gate, y = anything("x"), anything("gate"), anything("y")


def gate_is_narrower(m: Match) -> Wrong | None:
    """the gate is as wide as y and has fewer rows"""
    graph = m.graph
    if not _is_gated(m) or gated_branch(graph, _branch(m)) is not None:
        return None
    return Wrong(m["gate"], f"{dims_text(graph.dims(m['gate']))} beside {dims_text(graph.dims(m['y']))}")


def _branch(m: Match) -> str:
    add = m.graph.producer(m.root)
    assert add is not None
    return next((v for v in add.inputs if v != m["x"]), m["x"]) if m["x"] in add.inputs else add.inputs[0]


def _is_gated(m: Match) -> bool:
    """Whether the place is a gate's: a branch times a run-time value or a row, not a number, not itself."""
    graph = m.graph
    gate_dims, dims = graph.dims(m["gate"]), graph.dims(m["y"])
    wide = gate_dims is not None and dims is not None and gate_dims[-1:] == dims[-1:] and len(dims) > 2
    if _is_shift(m) or m["gate"] == m["y"] or graph.is_constant(m["x"]) or (dims and dims[-1] == 1):
        return False
    # A full-sized gate beside a part of something is a step of a recurrence.
    step = gate_dims == dims and _from_condition(graph, m["x"])
    return wide and not step and _from_condition(graph, m["gate"])


def _is_shift(m: Match) -> bool:
    """Whether x is a row for many rows too: scale and shift, with no residual."""
    graph = m.graph
    return narrower(graph.dims(m["x"]), graph.dims(m.root)) and _from_condition(graph, m["x"])


#: What a row of a condition passes on its way to the gate; some models squash it.
_PARTS_OF_ROWS = frozenset("Unsqueeze Reshape Split Slice Gather Squeeze Cast Tanh Sigmoid".split())
_CONDITIONS = forms.product.kinds | {"Add"}


def _from_condition(graph: Graph, value: str) -> bool:
    """Whether a value is a part of a product's result, or a constant row: what gates are made of.

    A row of a table, or an input, may take the product's place; a decay (an `Exp`) may not.
    """
    if graph.is_constant(value):
        return True
    cut = False
    for _ in range(6):
        op = graph.producer(value)
        if op is None or op.kind not in _PARTS_OF_ROWS:
            return cut and (op is None or op.kind in _CONDITIONS)
        cut = cut or op.kind in ("Split", "Slice", "Gather")
        value = op.inputs[0]
    return cut


def residual_has_the_dims_of_the_sum(m: Match) -> Wrong | None:
    """x has exactly the dims of the sum"""
    dims, whole = m.graph.dims(m["x"]), m.graph.dims(m.root)
    if not _is_gated(m) or agree(dims, whole):
        return None
    return Wrong(m["x"], f"{dims_text(dims)} for {dims_text(whole)}")


def _gated_residual(m: Match) -> Built | None:
    graph = m.graph
    branch = gated_branch(graph, _branch(m))
    if branch is None or graph.is_constant(m["x"]) or graph.is_constant(branch.y):
        return None
    # Two scaled values are a rotation; a row added to scaled rows is a shift.
    if gated_branch(graph, m["x"]) is not None or not agree(graph.dims(m["x"]), graph.dims(m.root)):
        return None
    return Built("gated_residual", (m["x"], branch.gate, branch.y), {})


def _no_sum(m: Match, fault: Fault) -> bool:
    """Whether what stands for the sum, or on the branch, is no other use of a gate."""
    if fault.code != "op" or fault.got not in NO_SUM | STRAY or not _is_gated(m):
        return False
    return gated_branch(m.graph, m["x"]) is None  # two scaled values are a rotation


gated_residual = Rule(
    "gated_residual",
    """x plus a gate times y, the gate one row for many rows of y

    Two kernels become one; the gated branch is never written.""",
    finds=Add(Mul(gate, y), x),
    marks=("Mul",),
    needs=(guard(gate_is_narrower), guard(residual_has_the_dims_of_the_sum)),
    almost=_no_sum,
    builds=_gated_residual,
)

CASTS = {"cast": Cast(HOLE)}
z = star("casts", CASTS, anything("z"))
activated = form(forms.activation, "act", where=lambda a: a.name in ("silu", "sigmoid"))
plain_norm = form(forms.norm, "norm")


def z_has_the_dims_of_the_norm(m: Match) -> Wrong | None:
    """z has the dims of the norm"""
    own, whole, out = (m.graph.dims(value) for value in (m["act"].x, m["norm"].out, m.root))
    if agree(own, out) and agree(whole, out):
        return None
    return Wrong(m.root, f"{dims_text(own)} beside {dims_text(whole)}")


def norm_is_not_rounded(m: Match) -> Wrong | None:
    """the norm's result is no narrower than what it reads or what the gate gives"""
    bits = [FRACTION_BITS.get(m.graph.dtype(v), 0) for v in (m["norm"].out, m["norm"].x, m.root)]
    return (
        Wrong(m["norm"].out, f"a cast to {m.graph.dtype(m['norm'].out)}") if bits[0] < min(bits[1:]) else None
    )


def _told(m: Match, fault: Fault) -> bool:
    """Whether what stands for the gate's product, or on the way to it, tells: a norm times an activation."""
    return fault.code == "attribute" or (fault.code == "op" and fault.got in NO_SUM | STRAY | {"Div"})


def _gated_norm(m: Match) -> Built:
    found, act = m["norm"], m["act"]
    attrs = norm_attrs(found) | ({} if act.name == "silu" else {"act": act.name})
    return Built("gated_norm", (found.x, found.weight, found.bias, act.x), attrs)


gated_norm = Rule(
    "gated_norm",
    """a norm times silu(z) or sigmoid(z)

    Three kernels become one where linear attention gates what it normed.""",
    finds=star("casts", CASTS, Mul(star("casts", CASTS, plain_norm), star("casts", CASTS, activated))),
    marks=tuple(sorted(forms.norm.kinds)),
    needs=(
        guard(z_has_the_dims_of_the_norm),
        casts_to_float("casts"),
        guard(norm_is_not_rounded, code="attribute"),
    ),
    almost=_told,
    builds=_gated_norm,
    reads=tuple(sorted(forms.activation.kinds)),
)
