"""RNN, GRU and LSTM in one or both directions, and LSTM over quantized weights.

x [rows, batch, size]; w [directions, gates * hidden, size]; r [directions, gates * hidden, hidden];
bias [directions, 2 * gates * hidden]; y [rows, directions, batch, hidden]. With `layout` 1 batch
comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fuse.types import FuseError
from reference.ops.call import Array, Call, Implementation
from reference.ops.elementwise import ELEMENTWISE

Activation = Callable[[Array], Array]
#: How many activations each direction has, by operator.
_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}


def _activations(call: Call, kind: str, directions: int) -> list[list[Activation]]:
    names = list(call.get("activations") or _DEFAULTS[kind] * directions)
    alphas, betas = list(call.get("activation_alpha") or ()), list(call.get("activation_beta") or ())
    limit = call.get("clip")

    def one(number: int, name: str) -> Activation:
        kinds = {known.lower(): known for known in ELEMENTWISE}
        if name.lower() not in kinds:
            raise FuseError(f"no implementation for the activation {name} of {kind}")
        attrs: dict[str, Any] = {}
        if number < len(alphas):
            attrs["alpha"] = alphas[number]
        if number < len(betas):
            attrs["beta"] = betas[number]
        inner = Call(kinds[name.lower()], attrs, 99, (True,))
        function = ELEMENTWISE[inner.kind]

        def run(x: Array) -> Array:
            bounded = x if limit is None else np.clip(x, -x.dtype.type(limit), x.dtype.type(limit))
            return np.asarray(function(inner, bounded))

        return run

    each = len(_DEFAULTS[kind])
    made = [one(number, str(name)) for number, name in enumerate(names)]
    return [made[i * each : (i + 1) * each] for i in range(directions)]


def _rnn_step(
    x: Array, h: Array, c: Array, r: Array, rb: Array, f: list[Activation], call: Call
) -> tuple[Array, Array]:
    return f[0](x + h @ r.T + rb), c


def _gru_step(
    x: Array, h: Array, c: Array, r: Array, rb: Array, f: list[Activation], call: Call
) -> tuple[Array, Array]:
    """Gates in the order update, reset, hidden."""
    xz, xr, xh = np.split(x, 3, axis=-1)
    rz, rr, rh = np.split(r, 3, axis=0)
    bz, br, bh = np.split(rb, 3)
    update, reset = f[0](xz + h @ rz.T + bz), f[0](xr + h @ rr.T + br)
    if call.get("linear_before_reset", 0):
        hidden = f[1](xh + reset * (h @ rh.T + bh))
    else:
        hidden = f[1](xh + (reset * h) @ rh.T + bh)
    return (1 - update) * hidden + update * h, c


def _lstm_step(
    x: Array, h: Array, c: Array, r: Array, rb: Array, f: list[Activation], call: Call, peep: Array | None
) -> tuple[Array, Array]:
    """Gates in the order input, output, forget, cell."""
    gi, go, gf, gc = np.split(x + h @ r.T + rb, 4, axis=-1)
    pi, po, pf = (0, 0, 0) if peep is None else np.split(peep, 3)
    enter, forget = f[0](gi + pi * c), f[0](gf + pf * c)
    if call.get("input_forget", 0):
        forget = 1 - enter
    cell = forget * c + enter * f[1](gc)
    return f[0](go + po * cell) * f[2](cell), cell


def _recurrent(kind: str) -> Implementation:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]

    def run(
        call: Call,
        x: Array,
        w: Array,
        r: Array,
        bias: Array | None = None,
        lengths: Array | None = None,
        h0: Array | None = None,
        c0: Array | None = None,
        peepholes: Array | None = None,
    ) -> tuple[Array, ...]:
        batch_first = bool(call.get("layout", 0))
        if batch_first:
            x = x.swapaxes(0, 1)
            h0, c0 = (None if v is None else v.swapaxes(0, 1) for v in (h0, c0))
        directions, hidden = r.shape[0], r.shape[2]
        functions = _activations(call, kind, directions)
        rows, batch = x.shape[:2]
        ends = np.full(batch, rows) if lengths is None else lengths.astype(np.int64)
        ys, hs, cs = [], [], []
        for d in range(directions):
            backward = call.get("direction", "forward") == "reverse" or d == 1
            wb, rb = (np.zeros(gates * hidden, x.dtype),) * 2 if bias is None else np.split(bias[d], 2)
            start = [np.zeros((batch, hidden), x.dtype) if v is None else v[d] for v in (h0, c0)]
            peep = None if peepholes is None else peepholes[d]

            def step(
                row: Array, h: Array, c: Array, d: int = d, rb: Array = rb, peep: Array | None = peep
            ) -> Any:
                if kind == "LSTM":
                    return _lstm_step(row, h, c, r[d], rb, functions[d], call, peep)
                return (_gru_step if kind == "GRU" else _rnn_step)(row, h, c, r[d], rb, functions[d], call)

            y, h, c = _sweep(x @ w[d].T + wb, start, ends, backward, step)
            ys.append(y)
            hs.append(h)
            cs.append(c)
        y, h, c = np.stack(ys, axis=1), np.stack(hs), np.stack(cs)
        if batch_first:
            y, h, c = y.transpose(2, 0, 1, 3), h.swapaxes(0, 1), c.swapaxes(0, 1)
        y, h, c = (v.astype(x.dtype) for v in (y, h, c))
        return (y, h, c) if kind == "LSTM" else (y, h)

    return run


def _sweep(
    x: Array, start: list[Array], ends: Array, backward: bool, step: Any
) -> tuple[Array, Array, Array]:
    """One direction over the rows; past a batch's end the state stands and y is zero."""
    h, c = start
    y = np.zeros((x.shape[0], *h.shape), x.dtype)
    for at in range(x.shape[0] - 1, -1, -1) if backward else range(x.shape[0]):
        inside = (at < ends)[:, None]
        new_h, new_c = step(x[at], h, c)
        h, c = np.where(inside, new_h, h), np.where(inside, new_c, c)
        y[at] = np.where(inside, h, 0)
    return y, h, c


def dynamic_quantize_lstm(call: Call, x: Array, w: Array, r: Array, *rest: Array | None) -> tuple[Array, ...]:
    """com.microsoft DynamicQuantizeLSTM, its weights [directions, size, 4 hidden] dequantized.

    The operator also rounds activations to 8 bits on the way in; here they stay as they are.
    """
    operands = [*rest, *(None,) * (9 - len(rest))]
    ws, wz, rs, rz = operands[5:9]

    def restored(v: Array, scale: Array | None, zero: Array | None) -> Array:
        if scale is None:
            raise FuseError("com.microsoft.DynamicQuantizeLSTM has no weight scale")
        lanes = [v.shape[0], 1, -1] if scale.ndim == 2 else [-1, 1, 1]
        point = 0 if zero is None else zero.astype(np.float32).reshape(lanes)
        return np.asarray((v.astype(np.float32) - point) * scale.reshape(lanes)).transpose(0, 2, 1)

    return _LSTM(call, x, restored(w, ws, wz), restored(r, rs, rz), *operands[:5])  # type: ignore[no-any-return]


_LSTM = _recurrent("LSTM")
RECURRENT: Mapping[str, Implementation] = {
    "RNN": _recurrent("RNN"), "GRU": _recurrent("GRU"), "LSTM": _LSTM,
    "com.microsoft.DynamicQuantizeLSTM": dynamic_quantize_lstm,
}  # fmt: skip
