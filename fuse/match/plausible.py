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
#: What may stand on the way without being meant.
PASSING = UNARY | {"Cast"}
#: Those that an activation is made of: where one stands for another, the place is still almost one.
SQUASHING = frozenset(
    (
        "Tanh Sigmoid Erf Exp Relu Softplus Softsign HardSigmoid Sin Cos Elu Gelu Selu Swish HardSwish Mish"
    ).split()
)
#: Those that no model has between two operators of a match, but by mistake.
STRAY = PASSING - SQUASHING
#: What stands for a sum by mistake and is no gate, scale or bias of its own.
NO_SUM = frozenset(("Sub", "Max", "Min", "Pow"))
#: The codes of a value that is read outside a match.
READERS = frozenset(("read_elsewhere", "graph_output", "captured"))


def kin(kind: str) -> frozenset[str]:
    """The operators that are written for one another by mistake, of which this is one."""
    return next((family for family in FAMILIES if kind in family), frozenset({kind}))


def substitutes(op: Op, kinds: Collection[str], operands: int) -> bool:
    """Whether an op may stand where a pattern wants one of these kinds over so many operands."""
    if len(op.inputs) < operands:
        return False
    return any(op.kind in family and not family.isdisjoint(kinds) for family in FAMILIES)


def too_many(graph: Graph, op: Op) -> list[Op]:
    """The operators of one operand that may be too many here: one, or casts that come back to a type."""
    if op.kind in UNARY:
        return [op]
    passed: list[Op] = []
    at: Op | None = op
    while at is not None and at.kind == "Cast":
        passed.append(at)
        at = graph.producer(at.inputs[0])
    back = passed and graph.dtype(passed[-1].inputs[0]) == graph.dtype(op.outputs[0])
    return passed if back else []


def apart_by(graph: Graph, one: str, other: str, kinds: Collection[str]) -> bool:
    """Whether of two values one is made of the other by these operators alone."""

    def below(value: str, wanted: str) -> bool:
        op = graph.producer(value)
        while op is not None and op.kind in kinds and value != wanted:
            value = op.inputs[0]
            op = graph.producer(value)
        return value == wanted

    return below(one, other) or below(other, one)


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


def weight_like(graph: Graph, value: str, rank: int) -> bool:
    """Whether a value looks like a weight that was made an input: of so many dims, all known."""
    dims = graph.dims(value)
    if not value or graph.is_constant(value) or value in graph.base.producer or dims is None:
        return False
    return len(dims) == rank and all(isinstance(dim, int) for dim in dims)


def near_kinds(kinds: Collection[str]) -> frozenset[str]:
    """Kinds and what is written for them by mistake."""
    return frozenset(kinds).union(*(kin(kind) for kind in kinds))


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
