"""Classes over a sequence: what attention carries, gates of it, recurrences with a state."""

from __future__ import annotations

from fuse.classes.declare import REQUIRED, Attr, declare

ATTENTION = {
    "q_layout": Attr(
        REQUIRED,
        "axes of q as letters: b batch, h heads, s rows, d width; joined letters are one axis",
    ),
    "k_layout": Attr(REQUIRED, "axes of k (h: key heads)"),
    "v_layout": Attr(REQUIRED, "axes of v (h: key heads)"),
    "out_layout": Attr(REQUIRED, "axes of the result"),
    "heads": Attr(REQUIRED, "query heads; 0 where nothing needs them (a batch of products)"),
    "groups": Attr(1, "query heads a key head"),
    "scale": Attr(REQUIRED, "product of every scalar factor of the scores"),
    "mask": Attr(
        (),
        "what happens to the scores, outermost first: add (operand), hide (the operand times a fill is "
        "taken off), keep (operand true keeps), drop (operand true drops), cap, divide (operand divides), "
        "multiply (operand is a factor of each head), "
        "sink (operand is one more score a head, which takes its share of the softmax and gives nothing). "
        "One operand each, but cap has none",
    ),
    "fill": Attr(
        (),
        "for each keep, drop or hide, in order, what replaces a dropped score (-inf or very negative), or is "
        "taken off a hidden one",
    ),
    "mask_layouts": Attr(
        (),
        "for each operand of mask: empty, or the axes it has where the scores are folded then (bh s t, or "
        "with rows and keys of pixels apart: s4 S4 t4 T4, each with its size)",
    ),
    "causal": Attr(False, "the mask is exactly the lower triangle (recorded; the operand stands)"),
    "softcap": Attr(0.0, "cap of the scores, 0: none"),
    "empty_rows": Attr("nan", "a row whose every score is -inf gives: nan, zero (guarded) or average"),
    "empty_at": Attr(0.0, "where below 0: a row whose every score is at most this gives zero too"),
    "compute": Attr("", "element type the softmax computes in; empty: the type of the scores"),
    "pad_head_to": Attr(
        0, "kernel attribute: head width that q, k and v are padded to with zeros, the result cut; 0: none"
    ),
}
_DELTA = {
    "q_layout": Attr(
        REQUIRED, "axes of q as letters: b batch, h heads, s rows, d width; joined letters are one axis"
    ),
    "k_layout": Attr(REQUIRED, "axes of k"),
    "v_layout": Attr(REQUIRED, "axes of v"),
    "decay_layout": Attr("", "axes of decay (none of width: one number a head; d: one a lane of k)"),
    "beta_layout": Attr("", "axes of beta"),
    "out_layout": Attr(REQUIRED, "axes of the result; c: chunks, where it stays cut into them"),
    "heads": Attr(REQUIRED, "heads of v, of the state and of the result"),
    "key_heads": Attr(0, "heads of q and k, each shared by equally many heads of v; 0: as many as v has"),
    "scale": Attr(1.0, "scales the result"),
    "update": Attr(
        "gated_delta", "gated_delta; delta (no decay); gated (k v^T is added whole); linear (neither)"
    ),
    "decay_space": Attr("log", "log: the state is scaled by exp(decay); linear: by decay itself"),
    "state_layout": Attr("b h k v", "axes of the state: k key width, v value width (b h v k: values first)"),
    "chunk": Attr(0, "rows of a chunk that the result is cut into, padded with zeros; 0: not cut"),
    "chunks": Attr(
        0, "chunks that are computed, the rest is zeros (an export unrolls those of its example); 0: all"
    ),
}
_CONV_STATE = {
    "dilation": Attr(1, "columns from one tap to the next"),
    "heads": Attr(0, "heads whose lanes are divided by their length; 0: the result is not"),
    "out_layout": Attr("b c s", "axes of a result in heads as letters: b batch, h heads, d lanes, s columns"),
    "length_eps": Attr(0.0, "keeps the length from zero"),
    "length_eps_at": Attr("none", "where: none, inside, outside or clip, as in l2_norm"),
}

SEQUENCES = (
    declare(
        "attn_output_gate",
        "q k v gate mask*",
        "attention, its result times sigmoid(gate)",
        attrs=ATTENTION,
        composed_of=("attention",),
    ),
    declare(
        "values_in_keys",
        "q k mask*",
        "attention that reads its values in lanes of its key rows",
        attrs=ATTENTION
        | {
            "v_from": Attr(0, "the lane of a key row where its value begins"),
            "v_width": Attr(REQUIRED, "lanes of a value"),
        },
        composed_of=("attention",),
    ),
    declare(
        "gated_delta",
        "q k v decay beta state",
        "row by row: the state S decays, takes k (beta (v - S^T k))^T, and gives scale S^T q",
        "y last_state",
        attrs=_DELTA,
    ),
    declare(
        "conv_state",
        "x weight bias state x_gate gate",
        "each channel of x against its own few taps, over past columns and its own, never later ones",
        "y last_state",
        attrs=_CONV_STATE,
    ),
    declare(
        "conv_silu",
        "x weight bias state x_gate gate",
        "silu of a causal depthwise convolution",
        "y last_state",
        attrs=_CONV_STATE,
        composed_of=("conv_state",),
    ),
)
