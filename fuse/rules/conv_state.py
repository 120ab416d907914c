"""Short causal convolutions: each channel against its own few taps, past columns kept as a state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from fuse import forms
from fuse import layout as lay
from fuse.forms.recurrences import causal_conv
from fuse.guards import dims_text
from fuse.ir import Graph, Op
from fuse.match import Fault, Match
from fuse.pattern import HOLE, Mul, Reshape, Slice, Transpose, anything, form, form_of, star
from fuse.rule import Built, Rule, Wrong, guard
from fuse.rules.attention_axes import result_layout
from fuse.rules.delta_solve import integers
from fuse.types import Dim, Dims, add, sub

#: Taps of a short convolution.
MOST_TAPS = 64


class Taps(NamedTuple):
    """A convolution along one axis. before, after: zeros beside x; reach: columns from its first to its
    last tap; groups, channels: as it has them."""

    x: str
    weight: str
    bias: str
    before: int
    after: int
    dilation: int
    reach: int
    groups: int
    channels: Dim
    out: str
    op: Op


@form_of("Conv")
def taps(graph: Graph, op: Op) -> Taps | None:
    """A convolution of few taps along one axis, one column after the other."""
    dims, weight = graph.dims(op.inputs[0]), graph.dims(op.inputs[1])
    if dims is None or weight is None or len(weight) != 3 or not isinstance(weight[2], int):
        return None
    a = op.attrs
    before, after = tuple(a.get("pads") or (0, 0))
    dilation = next(iter(a.get("dilations") or (1,)))
    strided = tuple(a.get("strides") or (1,)) != (1,)
    if strided or a.get("auto_pad", "NOTSET") != "NOTSET" or not 1 < weight[2] <= MOST_TAPS:
        return None
    bias = op.inputs[2] if len(op.inputs) > 2 else ""
    reach = (weight[2] - 1) * dilation
    sizes = before, after, dilation, reach, a.get("group", 1), dims[1]
    return Taps(op.inputs[0], op.inputs[1], bias, *sizes, op.outputs[0], op)


class Unit(NamedTuple):
    """x over its own length along the last axis."""

    x: str
    attrs: dict[str, Any]
    out: str


@form_of("l2_norm")
def unit_length(graph: Graph, op: Op) -> Unit | None:
    """A norm by length that a rule built, with eps as the class of it says."""
    places = {"eps": "length_eps", "eps_at": "length_eps_at"}
    attrs = {to: op.attrs[name] for name, to in places.items() if name in op.attrs}
    return Unit(op.inputs[0], attrs, op.outputs[0]) if "compute" not in op.attrs else None


class Around(NamedTuple):
    """What stands around a causal convolution. ahead: how many columns it looks ahead (negative: it
    misses as many of the latest), None where that is not known."""

    x: str
    state: str
    ahead: int | None
    trimmed: bool
    ops: tuple[Op, ...]


def around(m: Match) -> Around | None:
    """The past that is joined to x, or the zeros, and what is kept of the result."""
    graph, found = m.graph, m["taps"]
    ops: list[Op] = []
    x, state, zeros, past = found.x, "", found.before, 0
    op = graph.producer(x)
    if op is not None and op.kind == "Pad":
        lead = _leading_zeros(graph, op)
        if lead is not None:
            zeros, x = zeros + lead, op.inputs[0]
            ops.append(op)
    elif op is not None and op.kind in ("Concat", "kv_append") and _two_along_the_last(graph, op):
        columns = (graph.dims(op.inputs[0]) or (0,))[-1]
        if isinstance(columns, int) and not graph.is_constant(op.inputs[0]):
            state, x, past = op.inputs[0], op.inputs[1], columns
            ops.append(op)
    begin, kept = _kept(m)
    own, trimmed = graph.dims(x), any(op.kind == "Slice" for op in m.ops)
    if own is None or begin is None or kept != own[-1]:
        return Around(x, state, None, trimmed, tuple(ops))
    ahead = add(begin, found.reach - zeros - past)
    known = ahead if isinstance(ahead, int) and not (state and zeros) else None
    return Around(x, state, known, trimmed, tuple(ops))


def _two_along_the_last(graph: Graph, op: Op) -> bool:
    last = op.attrs.get("axis") in (-1, len(graph.dims(op.outputs[0]) or ()) - 1)
    return last and (op.kind == "kv_append" or len(op.inputs) == 2)


def _leading_zeros(graph: Graph, op: Op) -> int | None:
    """How many zeros a Pad puts before the last axis, if it does nothing else."""
    dims, amounts = graph.dims(op.outputs[0]), graph.content(op.inputs[1]) if len(op.inputs) > 1 else None
    if dims is None or amounts is None or len(amounts) != 2 * len(dims) or len(op.inputs) > 3:
        return None
    if len(op.inputs) == 3 and op.inputs[2] and graph.scalar(op.inputs[2]) != 0:
        return None
    at = len(dims) - 1
    rest = [e for i, e in enumerate(amounts) if i != at]
    lead = amounts[at]
    plain = op.attrs.get("mode", "constant") == "constant" and not any(e != 0 for e in rest)
    return lead if plain and isinstance(lead, int) and lead >= 0 else None


def _kept(m: Match) -> tuple[Dim | None, Dim | None]:
    """The first column of the result that is kept, and how many are."""
    graph, found = m.graph, m["taps"]
    whole = graph.dims(found.out)
    if whole is None:
        return None, None
    op = next((op for op in m.ops if op.kind == "Slice"), None)
    if op is None:
        return 0, whole[-1]
    dims = graph.dims(op.outputs[0])
    begin = graph.content(op.inputs[1])
    axes, steps = integers(graph, op.inputs[3]), integers(graph, op.inputs[4]) if len(op.inputs) > 4 else (1,)
    if dims is None or begin is None or len(begin) != 1 or axes not in ((-1,), (len(dims) - 1,)):
        return None, None
    if steps != (1,) or begin[0] is None or isinstance(begin[0], float | bool):
        return None, None
    first: Dim = begin[0]
    if not isinstance(first, int) or first < 0:
        first = add(whole[-1], first)
    return first, dims[-1]


# ---- guards ------------------------------------------------------------------------------------------
def _causal(m: Match) -> bool:
    found = around(m)
    return found is not None and found.ahead == 0


def _one_each(m: Match) -> bool:
    found = m["taps"]
    return bool(found.groups == found.channels and (m.graph.dims(found.weight) or (0,))[0] == found.channels)


def each_channel_has_its_own_taps(m: Match) -> Wrong | None:
    """as many groups as channels"""
    if "native" in m.bound or _one_each(m) or not _causal(m):
        return None
    return Wrong(m["taps"].out, f"{m['taps'].groups} groups of {m['taps'].channels} channels")


def no_column_looks_ahead(m: Match) -> Wrong | None:
    """a column of the result reads the columns up to its own, and that too"""
    if "native" in m.bound or not _one_each(m) or _causal(m):
        return None
    found = around(m)
    if found is None or not (found.trimmed or found.state) or found.ahead is None:
        return None
    return Wrong(m["taps"].out, f"reads {found.ahead} columns ahead" if found.ahead > 0 else "reads too few")


def gate_has_the_dims_of_the_result(m: Match) -> Wrong | None:
    """the gate has the result's dims"""
    if not m.get("gate") or m.graph.is_constant(m["gate"]):
        return None
    gate, whole = m.graph.dims(m["gate"]), m.graph.dims(m.root)
    same = gate is not None and gate == whole
    return None if same else Wrong(m["gate"], f"{dims_text(gate)} beside {dims_text(whole)}")


def _gate_is_of_another(m: Match) -> bool:
    """Whether the gate is not made of the result itself: that would be an activation, whatever it is."""
    made = m.graph.producer(m["gate"]) if m.get("gate") else None
    return made is None or not any(value in op.outputs for op in m.ops for value in made.inputs if value)


def trimmed_or_with_a_state(m: Match, fault: Fault) -> bool:
    """What is put before x or cut from the result tells a causal convolution, whatever guard fails."""
    if "native" in m.bound or not fault.code.startswith("guard:"):
        return False
    found = around(m)
    return found is not None and (found.trimmed or bool(found.ops))


# ---- building ----------------------------------------------------------------------------------------
def build(m: Match) -> Iterator[Built]:
    """The convolution with the product that makes its x, where there is one, then without."""
    parts = _native(m) if "native" in m.bound else _written(m)
    if parts is None or (m.get("gate") and m.graph.is_constant(m["gate"])):
        return
    x, weight, bias, state, attrs, outputs, also = parts
    unit = _unit_heads(m) if "unit" in m.bound else {}
    if unit is None:
        return
    attrs = attrs | unit
    silu = "act" in m.bound or ("native" in m.bound and m["native"].silu)
    kind, gate = "conv_silu" if silu else "conv_state", m.get("gate")
    product = _product(m, x, also)
    if product is not None:
        one, two = product.inputs
        yield Built(kind, (one, weight, bias, state, two, gate), attrs, outputs, [*also, product])
    if product is None or len(m.ops) + len(also) > 1:
        yield Built(kind, (x, weight, bias, state, "", gate), attrs, outputs, also)


def _unit_heads(m: Match) -> dict[str, Any] | None:
    """The attributes of the length that each head's lanes are divided by; None where it is not of them."""
    inner = _below(m)
    if inner is None:
        return None
    layout = result_layout(m, lay.layout_of(inner, "b hd s"))
    if layout is None or not layout or layout[-1][-1].letter not in ("d", "hd"):
        return None
    heads = next((atom.size for axis in layout for atom in axis if atom.letter == "h"), 1)
    whole = layout[-1][-1].letter == "hd"
    if not isinstance(heads, int) or len(layout[-1]) != 1 or whole != (heads == 1):
        return None
    text = lay.text(layout).replace("hd", "d") if whole else lay.text(layout)
    return {"heads": heads, "out_layout": text, **m["unit"].attrs}


def _below(m: Match) -> Dims | None:
    """The dims of the convolution's result, below the layout operators over it."""
    steps = m.taken("out")
    op = m.graph.producer(steps[-1].value) if steps else None
    return m.graph.dims(op.inputs[0] if op is not None else m["unit"].x)


def _written(m: Match) -> tuple[Any, ...] | None:
    """The operands as written with a Conv; None where this is another convolution, or one that nothing
    but its zeros tells from any other."""
    found = around(m)
    if found is None or found.ahead != 0 or not _one_each(m):
        return None
    taps_, also = m["taps"], [op for op in found.ops if op not in m.ops]
    attrs = {"dilation": taps_.dilation} if taps_.dilation != 1 else {}
    kept = _kept_state(m, found) if found.state else None
    outputs = (m.root,) if kept is None else (m.root, kept.outputs[0])
    also += [] if kept is None else [kept]
    return found.x, taps_.weight, taps_.bias, found.state, attrs, outputs, also


def _native(m: Match) -> tuple[Any, ...] | None:
    """The operands of a native operator that a silu or a gate follows; None where nothing does."""
    found = m["native"]
    if m.root == found.out or found.gate or (found.silu and "act" in m.bound):
        return None
    outputs = (m.root, found.last_state) if found.last_state else (m.root,)
    return found.x, found.weight, found.bias, found.state, found.attrs, outputs, []


def _kept_state(m: Match, found: Around) -> Op | None:
    """The op that cuts the latest columns, as many as the state has, from the columns joined."""
    graph = m.graph
    joined = found.ops[0].outputs[0]
    state, whole = graph.dims(found.state), graph.dims(joined)
    for op in (graph.slots[slot] for slot in graph.readers(joined)):
        if op is None or op.kind != "Slice" or state is None or whole is None or len(op.inputs) < 4:
            continue
        dims, begin = graph.dims(op.outputs[0]), graph.content(op.inputs[1])
        axes = integers(graph, op.inputs[3])
        if dims != state or begin is None or len(begin) != 1 or axes not in ((-1,), (len(state) - 1,)):
            continue
        last, first = state[-1], sub(whole[-1], state[-1])
        if begin[0] == first or (isinstance(last, int) and begin[0] == -last):
            return op
    return None


def _product(m: Match, x: str, also: list[Op]) -> Op | None:
    """A product of two values of x's dims that makes x for this convolution alone."""
    graph, op = m.graph, m.graph.producer(x)
    own = {part.slot for part in (*m.ops, *also)}
    if op is None or op.kind != "Mul" or graph.is_output(x) or any(s not in own for s in graph.readers(x)):
        return None
    dims = graph.dims(x)
    whole = all(graph.dims(v) == dims and not graph.is_constant(v) for v in op.inputs)
    return op if whole and op.inputs[0] != op.inputs[1] else None


_convolved = form(taps, "taps")
_trimmed = Slice(_convolved) | _convolved | form(causal_conv, "native")
_act = form(forms.activation, "act", where=lambda a: a.name == "silu", x=_trimmed)
_result = _act | _trimmed
_AXES = {"transpose": Transpose(HOLE), "reshape": Reshape(HOLE)}
_unit = form(unit_length, "unit", x=star("out", _AXES, _result, resizes=tuple(_AXES)))

conv_state = Rule(
    "conv_state",
    """a short causal depthwise convolution whose state is the columns of the past; conv_silu where a
    silu follows

    Three to seven kernels over the whole sequence become one, and a step of one column reads only
    the state. It may take in the product that makes its x, and a gate of its result or a norm of each
    head's lanes by their length.""",
    finds=_unit | Mul(_result, anything("gate")) | _result,
    marks=("Conv", "CausalConvWithState", "com.microsoft.CausalConvWithState"),
    needs=(
        guard(each_channel_has_its_own_taps),
        guard(no_column_looks_ahead),
        guard(gate_has_the_dims_of_the_result),
    ),
    builds=build,
    place=_gate_is_of_another,
    almost=trimmed_or_with_a_state,
    classes=("conv_state", "conv_silu"),
    reads=(*sorted(forms.activation.kinds), "kv_append", "l2_norm"),
)
