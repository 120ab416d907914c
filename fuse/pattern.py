"""Patterns are data: one definition gives the matcher, the reasons, the documentation and the tests.

A pattern is a tree read from the result down: `Mul(Div(x, root), weight)`. `|` gives alternatives,
the first that holds is taken. The same name twice means the same value. Operands of a commutative
operator match in either order; they are tried as written, so write the most telling one first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from fuse.ir import Graph, Op

#: How many steps a star takes at most, where it does not say.
STAR_REACH = 12


class Pattern:
    """Anything that a value can be matched against."""

    def __or__(self, other: Pattern) -> Alternatives:
        own = self.options if isinstance(self, Alternatives) else (self,)
        return Alternatives((*own, *(other.options if isinstance(other, Alternatives) else (other,))))


@dataclass(frozen=True)
class Anything(Pattern):
    """Any value; every use of one name must be the same value."""

    name: str


@dataclass(frozen=True)
class Hole(Pattern):
    """Where the path goes on inside a step of a `Star`."""


@dataclass(frozen=True)
class Constant(Pattern):
    """A value known when the model loads.

    value: compared within `within` relative. scalar: one element, whatever its rank. test, want: a
    condition on the number and the sentence for it.
    """

    name: str = ""
    value: float | None = None
    scalar: bool = True
    within: float = 1e-3
    test: Callable[[float], bool] | None = None
    want: str = ""


@dataclass(frozen=True)
class Runtime(Pattern):
    """A value of one element that is computed when the model runs.

    heads: one element a head, its last two axes are 1; it may be known when the model loads.
    """

    name: str
    heads: bool = False


@dataclass(frozen=True)
class Alternatives(Pattern):
    options: tuple[Pattern, ...]


@dataclass(frozen=True)
class Node(Pattern):
    """An operator of one of these kinds over operands, with attributes. `output`: which of its outputs
    (ANY: any)."""

    kinds: tuple[str, ...]
    args: tuple[Pattern, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    output: int = 0


@dataclass(frozen=True)
class Times(Pattern):
    """A product written as any tree of Mul, Div by a constant and whole powers.

    factors: what is multiplied; a factor may come several times. constant: the product of all
    constants in the tree, within 1e-3.
    """

    factors: tuple[Pattern, ...]
    constant: float = 1.0


@dataclass(frozen=True)
class Form(Pattern):
    """An operator by what it is (fuse.forms), whatever wrote or built it.

    form: a function of fuse.forms. operands: patterns for fields of the form that are values.
    where: a condition on the form.
    """

    form: Callable[..., Any]
    name: str
    operands: tuple[tuple[str, Pattern], ...] = ()
    where: Callable[[Any], bool] | None = None


@dataclass(frozen=True)
class Step:
    """One thing that may stand on the way: a pattern with a `Hole`."""

    name: str
    pattern: Pattern


@dataclass(frozen=True)
class Star(Pattern):
    """Zero or more steps, in any order, then `inner`. Each step taken is recorded with its bindings.

    resizes: names of steps that may change the number of elements. reach: how many steps at most. once:
    each step stands at most once.
    """

    name: str
    steps: Sequence[Step]
    inner: Pattern
    resizes: frozenset[str] = field(default_factory=frozenset)
    reach: int = STAR_REACH
    once: bool = False


class _Last:
    """The last axis, written from either end."""

    def __repr__(self) -> str:
        return "-1"


LAST = _Last()
#: Any output of an operator.
ANY = -1
HOLE = Hole()
COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Max", "Min"})


def anything(name: str) -> Anything:
    return Anything(name)


def constant(
    name_or_value: str | float,
    *,
    scalar: bool = True,
    test: Callable[[float], bool] | None = None,
    want: str = "",
) -> Constant:
    """A constant by name (any number) or by value."""
    if isinstance(name_or_value, str):
        return Constant(name_or_value, None, scalar, test=test, want=want)
    return Constant("", float(name_or_value))


def kind(*names: str) -> Callable[..., Node]:
    """A constructor of patterns for an operator: `Add = kind("Add")`, then `Add(x, y)`."""

    def make(*args: Pattern, output: int = 0, **attrs: Any) -> Node:
        return Node(names, args, tuple(attrs.items()), output)

    return make


def times(*factors: Pattern, constant: float = 1.0) -> Times:
    return Times(factors, constant)


Read_co = TypeVar("Read_co", covariant=True)


class Reader(Protocol[Read_co]):
    """Reads an op of one of its kinds as a form (a named tuple with `out` and `op`), or gives None."""

    kinds: frozenset[str]

    def __call__(self, graph: Graph, op: Op) -> Read_co | None: ...


def form_of(*kinds: str) -> Callable[[Callable[[Graph, Op], Read_co | None]], Reader[Read_co]]:
    """Make a function a form: say which kinds of op it reads, so that it is asked of no other."""

    def mark(function: Callable[[Graph, Op], Read_co | None]) -> Reader[Read_co]:
        reader = cast("Reader[Read_co]", function)
        reader.kinds = frozenset(kinds)
        return reader

    return mark


def form(
    function: Callable[..., Any], name: str, where: Callable[[Any], bool] | None = None, **operands: Pattern
) -> Form:
    return Form(function, name, tuple(operands.items()), where)


def star(
    name: str,
    steps: Mapping[str, Pattern],
    inner: Pattern,
    resizes: Sequence[str] = (),
    reach: int = STAR_REACH,
    once: bool = False,
) -> Star:
    taken = tuple(Step(key, value) for key, value in steps.items())
    return Star(name, taken, inner, frozenset(resizes), reach, once)


Add, Sub, Mul, Div, Pow = kind("Add"), kind("Sub"), kind("Mul"), kind("Div"), kind("Pow")
Max, Min, Clip, Neg = kind("Max"), kind("Min"), kind("Clip"), kind("Neg")
Sqrt, Reciprocal, Erf, Tanh, Sigmoid = (
    kind("Sqrt"),
    kind("Reciprocal"),
    kind("Erf"),
    kind("Tanh"),
    kind("Sigmoid"),
)
ReduceMean, ReduceSum, ReduceL2 = kind("ReduceMean"), kind("ReduceSum"), kind("ReduceL2")
ReduceSumSquare = kind("ReduceSumSquare")
Cast, Where, IsNaN, Softmax = kind("Cast"), kind("Where"), kind("IsNaN"), kind("Softmax")
Concat, Slice, Split, Transpose = kind("Concat"), kind("Slice"), kind("Split"), kind("Transpose")
Reshape, Unsqueeze, Squeeze = kind("Reshape"), kind("Unsqueeze"), kind("Squeeze")
Expand, Gather = kind("Expand"), kind("Gather")
MatMul, Einsum, FusedMatMul = kind("MatMul"), kind("Einsum"), kind("com.microsoft.FusedMatMul")


def children(pattern: Pattern) -> list[Pattern]:
    """The patterns directly inside a pattern."""
    if isinstance(pattern, Alternatives):
        return list(pattern.options)
    if isinstance(pattern, Node):
        return list(pattern.args)
    if isinstance(pattern, Times):
        return list(pattern.factors)
    if isinstance(pattern, Form):
        return [inner for _, inner in pattern.operands]
    if isinstance(pattern, Star):
        return [*(step.pattern for step in pattern.steps), pattern.inner]
    return []


def all_kinds(pattern: Pattern) -> frozenset[str]:
    """Every operator kind that a match may hold (of forms: those the form reads)."""
    own: frozenset[str] = frozenset()
    if isinstance(pattern, Node):
        own = frozenset(pattern.kinds)
    elif isinstance(pattern, Times):
        own = frozenset({"Mul", "Div", "Pow"})
    elif isinstance(pattern, Form):
        own = frozenset(getattr(pattern.form, "kinds", ()))
    return own.union(*(all_kinds(inner) for inner in children(pattern)))


def constant_names(pattern: Pattern) -> frozenset[str]:
    """The names that a pattern binds to constants."""
    own = frozenset({pattern.name}) if isinstance(pattern, Constant) and pattern.name else frozenset()
    return own.union(*(constant_names(inner) for inner in children(pattern)))


def attributes(pattern: Pattern) -> int:
    """How many operators of a pattern have an attribute that it wants."""
    own = int(isinstance(pattern, Node) and bool(pattern.attrs))
    return own + sum(attributes(inner) for inner in children(pattern))


def root_kinds(pattern: Pattern) -> frozenset[str]:
    """The kinds that may stand at the root of a match."""
    if isinstance(pattern, Alternatives):
        return frozenset().union(*(root_kinds(inner) for inner in pattern.options))
    if isinstance(pattern, Star):
        steps = frozenset().union(*(root_kinds(step.pattern) for step in pattern.steps))
        return steps | root_kinds(pattern.inner)
    if isinstance(pattern, Node):
        return frozenset(pattern.kinds)
    if isinstance(pattern, Times):
        return frozenset({"Mul", "Div"})
    if isinstance(pattern, Form):
        return frozenset(getattr(pattern.form, "kinds", ()))
    return frozenset()


def kinds_above(pattern: Pattern, marks: frozenset[str]) -> frozenset[str]:
    """The kinds that may stand between the root of a match and a mark in it, the root included."""

    def above(at: Pattern, once: Callable[[Pattern], frozenset[str]]) -> frozenset[str]:
        below = frozenset().union(*map(once, children(at)))
        if isinstance(at, Alternatives):
            return below
        own = root_kinds(at) if isinstance(at, Node | Form | Times) else frozenset()
        if isinstance(at, Star) and once(at.inner):
            return below.union(*(all_kinds(step.pattern) for step in at.steps))
        if isinstance(at, Times) and below:
            return below | {"Mul", "Div", "Pow"}
        return below | own if below or own & marks else frozenset()

    return _each_once(above)(pattern)


def depth_of(pattern: Pattern, marks: frozenset[str]) -> int:
    """How many steps a mark can lie below the root; -1 where it does not occur."""

    def depth(at: Pattern, once: Callable[[Pattern], int]) -> int:
        here = 0 if isinstance(at, Node | Form) and root_kinds(at) & marks else -1
        below = max(map(once, children(at)), default=-1)
        if below < 0:
            return here
        extra = at.reach if isinstance(at, Star) else 3 if isinstance(at, Times) else 0
        step = 0 if isinstance(at, Alternatives) else 1
        return max(here, below + step + extra)

    return _each_once(depth)(pattern)


T = TypeVar("T")


def _each_once(compute: Callable[[Pattern, Callable[[Pattern], T]], T]) -> Callable[[Pattern], T]:
    """A computation over a pattern and those inside it; one that stands in several places is done once."""
    known: dict[int, T] = {}

    def once(at: Pattern) -> T:
        if id(at) not in known:
            known[id(at)] = compute(at, once)
        return known[id(at)]

    return once
