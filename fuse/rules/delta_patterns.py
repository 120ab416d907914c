"""What exporters write of the gated delta rule, as data.

Rows are padded and cut into chunks; within a chunk a triangular system is solved
(`fuse.rules.delta_solve`), and from chunk to chunk the state goes on.
"""

from __future__ import annotations

from fuse.match import Match, Matcher, compile_pattern
from fuse.match.plausible import near_kinds
from fuse.pattern import (
    HOLE,
    LAST,
    Add,
    Mul,
    Pattern,
    Reshape,
    Sub,
    Transpose,
    Unsqueeze,
    Where,
    anything,
    constant,
    kind,
    star,
)

Pad, CumSum, Exp, Trilu, Neg = kind("Pad"), kind("CumSum"), kind("Exp"), kind("Trilu"), kind("Neg")
MatMul, Gather = kind("MatMul"), kind("Gather")

# ---- unrolled: rows in chunks ----------------------------------------------------------------------


def padded(name: str) -> Pattern:
    """Rows with zeros behind them, so that they make whole chunks."""
    x, amounts = anything(name), anything(f"{name}_pads")
    return Pad(x, amounts) | Pad(x, amounts, constant(0)) | x


def last_axis(inner: Pattern) -> Pattern:
    return Unsqueeze(inner, axes=LAST)


FORWARD = frozenset({None, 0})
_rate = last_axis(padded("beta"))
q_rows = Reshape(Mul(padded("q"), constant("q_scale"))) | Reshape(padded("q"))
_q = anything("q_rows")
k_rows = Reshape(padded("k"))
k_rated = Reshape(Mul(padded("k"), _rate))
v_rated = Reshape(Mul(padded("v"), _rate))
#: The logarithm of what is left, at each row, of what the chunk began with.
left = CumSum(Reshape(padded("decay")), constant("sum_axis"), reverse=FORWARD, exclusive=FORWARD)
_apart = Sub(last_axis(left), Unsqueeze(left, axes=frozenset({3, -2})))
#: What is left at a row of what an earlier row brought; nothing of later ones.
between = Exp(Where(constant("later", scalar=False), constant("nothing"), _apart)) | Trilu(
    Exp(Trilu(_apart, upper=0)), upper=0
)
k_columns = Transpose(k_rows)
_likeness = Mul(MatMul(k_rated, k_columns), between)
#: The triangle that the solve begins with, less its diagonal.
start = (
    Neg(Trilu(_likeness, constant("below"), upper=0))
    | Where(constant("from_here", scalar=False), constant(0), Neg(_likeness))
    | Neg(Where(constant("from_here", scalar=False), constant(0), _likeness))
)
_share_left = last_axis(Exp(left))
_inverse = Add(anything("solved"), constant("one", scalar=False))
values = MatMul(_inverse, v_rated)
keys = MatMul(_inverse, Mul(k_rated, _share_left))
_scores = Mul(MatMul(_q, k_columns), between)


def chunk(inner: Pattern) -> Pattern:
    """One chunk of rows in chunks."""
    return Gather(inner, constant("chunk"), axis=2)


_state = anything("state")
_fresh = Sub(chunk(anything("values")), MatMul(chunk(anything("keys")), _state))
_chunk_scores = Where(constant("later", scalar=False), constant(0), chunk(_scores)) | chunk(_scores)
_asked = chunk(Mul(_q, _share_left)) | Mul(chunk(_q), last_axis(Exp(chunk(left))))
#: The rows that a chunk gives.
rows = Add(MatMul(_asked, _state), MatMul(_chunk_scores, _fresh))
_all_left = Gather(chunk(left), constant("last_row"), axis=LAST)
_flat = {"unsqueeze": Unsqueeze(HOLE), "reshape": Reshape(HOLE), "exp": Exp(HOLE)}
_brought = Mul(chunk(k_rows), last_axis(Exp(Sub(last_axis(_all_left), chunk(left)))))
#: What a chunk leaves to the next.
next_state = Add(Mul(_state, star("all_left", _flat, _all_left)), MatMul(Transpose(_brought), _fresh))


def piece(pattern: Pattern) -> Matcher:
    """The matcher of one piece of many: each may look at as many nodes as a pattern alone."""
    inner = compile_pattern(pattern)

    def match(m: Match, value: str) -> bool:
        m.effort = 0
        return inner(m, value)

    return match


match_start, match_values, match_keys, match_rows, match_next_state, match_q = map(
    piece, (start, values, keys, rows, next_state, q_rows)
)
#: Kinds on the way from the sum of decays to the start of the solve, and from there to the rows.
TO_START = frozenset("Unsqueeze Sub Where Trilu Exp Mul Neg".split())
TO_ROWS = frozenset("Gather Sub MatMul Add".split())
#: The same, and what is written for them by mistake.
NEAR_TO_START, NEAR_TO_ROWS = near_kinds(TO_START), near_kinds(TO_ROWS)
