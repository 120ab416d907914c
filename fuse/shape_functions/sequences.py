"""Recurrent layers, attention, and the operators that own a body."""

from __future__ import annotations

from collections.abc import Sequence

from fuse.ir import Content, Graph
from fuse.shape_functions.call import Call, Row, Sketch, Unclear, normal_axis, plus, quotient
from fuse.types import UNKNOWN, Dim, Dims, Type, mul, sub


def recurrent(call: Call) -> Sequence[Sketch | None]:
    """Every step's state [steps, directions, batch, hidden], then the last states."""
    x, weight = call.need(0), call.dims(2)
    hidden: Dim | None = call.integer("hidden_size", 0) or (weight[-1] if weight else None)
    directions = 2 if call.text("direction", "forward") == "bidirectional" else 1
    if len(x) != 3:
        raise Unclear
    if call.integer("layout", 0):
        last: Sketch = (x[0], directions, hidden)
        return (x[0], x[1], directions, hidden), last, last
    last = (directions, x[1], hidden)
    return (x[0], directions, x[1], hidden), last, last


def attention(call: Call) -> Sequence[Sketch | None]:
    """ai.onnx Attention: the result, both caches, the scores; heads split or joined to the width."""
    q, k, v = call.need(0), call.need(1), call.need(2)
    if len(q) != len(v) or len(q) not in (3, 4) or len(k) != len(q):
        raise Unclear
    heads, kv_heads = call.integer("q_num_heads", 0), call.integer("kv_num_heads", 0)
    if len(q) == 3:
        if heads < 1 or kv_heads < 1:
            raise Unclear
        k = (k[0], kv_heads, k[1], quotient(k[2], kv_heads))  # type: ignore[assignment]
        width = quotient(v[2], kv_heads)
        v = (v[0], kv_heads, v[1], width)  # type: ignore[assignment]
        result: Sketch = (q[0], q[1], None if width is None else mul(width, heads))
        rows: Sketch = (q[0], heads, q[1])
    else:
        result, rows = (*q[:3], v[3]), q[:3]
    past_k, past_v = call.dims(4), call.dims(5)
    total: Dim | None = k[2]
    if call.given(4):
        total = plus(past_k[2], k[2]) if past_k is not None and len(past_k) == 4 else None
    total_v: Dim | None = v[2]
    if call.given(5):
        total_v = plus(past_v[2], v[2]) if past_v is not None and len(past_v) == 4 else None
    return result, (*k[:2], total, k[3]), (*v[:2], total_v, v[3]), (*rows, total)


def linear_attention(call: Call) -> Sequence[Sketch | None]:
    """[b, t, heads times width] and the state [b, key heads, key width, value width]."""
    q, k, v = call.need(0), call.need(1), call.need(2)
    heads, kv_heads = call.integer("q_num_heads", 0), call.integer("kv_num_heads", 0)
    if len(q) != 3 or len(k) != 3 or len(v) != 3 or heads < 1 or kv_heads < 1:
        raise Unclear
    key_width, value_width = quotient(k[2], kv_heads), quotient(v[2], kv_heads)
    out = None if value_width is None else mul(value_width, max(heads, kv_heads))
    state: Sketch | None = call.dims(3) if call.given(3) else (q[0], kv_heads, key_width, value_width)
    return (q[0], q[1], out), state


def causal_conv(call: Call) -> Sequence[Sketch | None]:
    """The convolved rows [b, c, t], and the last rows, which the next call needs [b, c, kernel - 1].

    onnxruntime's form has more attributes; with those that change the layout only the rows are known.
    """
    dims, weight = call.need(0), call.need(1)
    if any(call.attrs.get(name) for name in ("input_channels", "input_channel_offset")):
        raise Unclear
    moved = any(call.attrs.get(name) for name in ("channels_last", "state_length", "state_channels_last"))
    if len(dims) != 3 or len(weight) != 3 or moved:
        return dims, call.dims(3)
    return dims, (dims[0], dims[1], mul(call.integer("dilation", 1), sub(weight[2], 1)))


# ---- bodies -------------------------------------------------------------------------------------
def _agreed(types: list[Type]) -> Sketch | None:
    """The dims that all of them have; None inside where they differ."""
    dims = [type.dims for type in types]
    first = dims[0]
    if first is None or any(one is None or len(one) != len(first) for one in dims):
        return None
    return tuple(
        size if all(one is not None and one[axis] == size for one in dims) else None
        for axis, size in enumerate(first)
    )


def _bodies(call: Call) -> list[Graph]:
    return list(call.op.bodies.values())


def _taken(call: Call) -> list[Graph]:
    """The branches that may run: one where the condition is known."""
    bodies, condition = call.op.bodies, call.content(0)
    if condition is not None and len(condition) == 1 and isinstance(condition[0], bool):
        name = "then_branch" if condition[0] else "else_branch"
        return [bodies[name]] if name in bodies else []
    return list(bodies.values())


def branches(call: Call) -> Sequence[Sketch | None]:
    """If: what the branches that may run agree on."""
    bodies = _taken(call)
    if not bodies or len({len(body.outputs) for body in bodies}) != 1:
        raise Unclear
    made = zip(*(body.outputs for body in bodies), strict=True)
    return [_agreed([call.types.get(path, UNKNOWN) for path in paths]) for paths in made]


def branch_content(call: Call, dims: Sketch) -> Content | None:
    """If: the elements that the branches that may run make alike."""
    found = {call.contents.get(body.outputs[call.output]) for body in _taken(call)}
    return found.pop() if len(found) == 1 else None


def branch_dtype(call: Call) -> str:
    return _dtype_made(call, _taken(call), call.output)


def _dtype_made(call: Call, bodies: list[Graph], number: int) -> str:
    """The dtype of a body output, by number; "" where bodies differ."""
    made = [body.outputs[number] for body in bodies if number < len(body.outputs)]
    found = {call.types.get(path, UNKNOWN).dtype for path in made}
    return found.pop() if len(found) == 1 else ""


def loop_dtype(call: Call) -> str:
    """The body's first output is its condition."""
    return _dtype_made(call, _bodies(call), call.output + 1)


def scan_dtype(call: Call) -> str:
    return _dtype_made(call, _bodies(call), call.output)


def loop(call: Call) -> Sequence[Sketch | None]:
    """Loop: carried values keep a size only where start and body agree; scans get the step axis."""
    body = _only_body(call)
    carried = len(call.inputs) - 2
    result: list[Sketch | None] = []
    for number, path in enumerate(body.outputs[1:]):
        made = call.types.get(path, UNKNOWN)
        if number < carried:
            result.append(_agreed([call.types.get(call.inputs[number + 2], UNKNOWN), made]))
        else:
            result.append(None if made.dims is None else (None, *_lasting(made.dims)))
    return result


def scan(call: Call) -> Sequence[Sketch | None]:
    """Scan: final states, then one slice a step stacked on an axis as long as the scanned one."""
    body = _only_body(call)
    scanned = call.integer("num_scan_inputs", 0)
    states = len(call.inputs) - scanned
    if call.opset < 9 or scanned < 1 or states < 0:
        raise Unclear
    steps = _steps(call, states)
    axes = call.integers("scan_output_axes")
    result: list[Sketch | None] = []
    for number, path in enumerate(body.outputs):
        made = call.types.get(path, UNKNOWN)
        if number < states:
            result.append(_agreed([call.types.get(call.inputs[number], UNKNOWN), made]))
        elif made.dims is None:
            result.append(None)
        else:
            dims = _lasting(made.dims)
            at = number - states
            axis = normal_axis(axes[at] if axes and at < len(axes) else 0, len(dims) + 1)
            result.append((*dims[:axis], steps, *dims[axis:]))
    return result


def _steps(call: Call, states: int) -> Dim | None:
    dims = call.dims(states)
    axes = call.integers("scan_input_axes")
    return None if dims is None else dims[normal_axis(axes[0] if axes else 0, len(dims))]


def _lasting(dims: Dims) -> Sketch:
    """The sizes that do not differ from step to step: those that no body value names."""
    return tuple(
        dim if isinstance(dim, int) or not any(s.startswith("?") for s in dim.symbols) else None
        for dim in dims
    )


def _only_body(call: Call) -> Graph:
    bodies = _bodies(call)
    if len(bodies) != 1:
        raise Unclear
    return bodies[0]


ROWS: dict[str, Row] = {
    "LSTM": Row((0,), recurrent),
    "GRU": Row((0,), recurrent),
    "RNN": Row((0,), recurrent),
    "Attention": Row((0, 1, 2, 0), attention),
    "LinearAttention": Row((0, (3, 0)), linear_attention),
    "CausalConvWithState": Row((0,), causal_conv),
    "If": Row((branch_dtype,), branches, branch_content),
    "Loop": Row((loop_dtype,), loop),
    "Scan": Row((scan_dtype,), scan),
}
