"""What a person would still call "almost": which single changes a near miss may assume."""

from __future__ import annotations

from collections.abc import Collection

from fuse.ir import Graph, Op

#: Operators that are written for one another by mistake: same operands, another function.
FAMILIES: tuple[frozenset[str], ...] = tuple(
    frozenset(names.split())
    for names in (
        "Add Sub Mul Div Pow Max Min",
        "Sqrt Reciprocal Exp Log Abs Neg Erf Tanh Sigmoid Relu Sin Cos Softplus Softsign Elu Selu "
        "HardSigmoid Ceil Floor Round Sign Gelu Swish HardSwish Mish LeakyRelu",
        "ReduceMean ReduceSum ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceProd ReduceSumSquare "
        "ReduceLogSumExp ReduceLogSum",
        "Softmax LogSoftmax Hardmax",
        "IsNaN IsInf",
    )
)
#: Operators of one operand that keep every element in its place.
UNARY = FAMILIES[1]


def kin(kind: str) -> frozenset[str]:
    """The operators that are written for one another by mistake, of which this is one."""
    return next((family for family in FAMILIES if kind in family), frozenset({kind}))


def substitutes(op: Op, kinds: Collection[str], operands: int) -> bool:
    """Whether an op may stand where a pattern wants one of these kinds over so many operands."""
    if len(op.inputs) < operands:
        return False
    return any(op.kind in family and not family.isdisjoint(kinds) for family in FAMILIES)


def constant_like(graph: Graph, value: str, scalar: bool) -> bool:
    """Whether a run-time value looks like the constant that a pattern wants there.

    A default that can be overridden, or a graph input, with the dims of a constant: all known, and
    no more than one axis wider than 1 (none for a scalar). Anything else is another tensor, not a
    constant that was made an input.
    """
    if value in graph.base.overridable:
        return True
    dims = graph.dims(value)
    if dims is None or value in graph.base.producer or not all(isinstance(dim, int) for dim in dims):
        return False
    wide = sum(dim != 1 for dim in dims)
    return wide == 0 if scalar else wide <= 1


def run_time(graph: Graph, value: str) -> str:
    """What a reason says of a value that is no constant."""
    if value in graph.base.overridable:
        return "a graph input with a default, which can be overridden"
    return "a value that changes at run time"


def truer(graph: Graph, one: str, other: str) -> bool:
    """Whether of two values, where one stands for the other by mistake, the first is the one meant.

    What was put on the other for this one reader is the odd one; else the value made later is what
    the place is about, and the other an older one that was taken in its stead.
    """
    first, second = graph.producer(one), graph.producer(other)
    if second is not None and one in second.inputs and len(graph.readers(other)) == 1:
        return True
    if first is not None and other in first.inputs and len(graph.readers(one)) == 1:
        return False
    base = graph.base.producer
    return base.get(one, -1) > base.get(other, -1)
