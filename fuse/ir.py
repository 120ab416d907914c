"""The graph: static tables made once at lift, and two lists that a rewrite changes.

`Base` holds what never changes after lifting and is shared by every copy. A `Graph` adds `slots`
(an op or nothing) and `into` (lifted slot -> the slot that now holds it). Every op keeps for ever
the slot it was lifted at; a fused op stands in a slot of one of its leaves. So a copy costs two
list copies, and undoing a fusion is exact.

Names are paths: a value of a body is `owner/then_branch:value`, where `owner` is the path of the
owning op's first output. The tables of types, contents and constants are one for the whole model,
so a body sees the constants of the graphs around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fuse.types import UNKNOWN, Dims, Expr, FuseError, Type

#: A constant larger than this is never read to decide a match; it answers "unknown".
SMALL_CONSTANT_BYTES = 64 * 1024

#: Operators that only rearrange or decode: what they make of constants is a constant too, though it
#: is never computed here (a slice of packed weights, a transposed embedding, dequantized weights).
FROM_CONSTANTS = frozenset(
    ["Transpose", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze", "Flatten", "Cast", "CastLike", "Identity", "Concat", "Expand", "Neg", "Gather", "DequantizeLinear", "Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal"]
)

#: One known element of a small tensor; None where that element is not known.
Element = int | float | bool | Expr | None
#: The elements of a small tensor, flat, whatever its rank.
Content = tuple[Element, ...]
Attribute = Any


class Tensor:
    """A constant that is read only when asked. `dims` are ints; `proto` is kept for lowering."""

    __slots__ = ("_load", "dims", "dtype", "name", "nbytes", "proto")

    def __init__(
        self,
        name: str,
        dtype: str,
        dims: tuple[int, ...],
        nbytes: int,
        load: Callable[[], np.ndarray],
        proto: object = None,
    ) -> None:
        self.name, self.dtype, self.dims, self.nbytes = name, dtype, dims, nbytes
        self._load, self.proto = load, proto

    def __repr__(self) -> str:
        return f"Tensor({self.name}: {Type(self.dtype, self.dims)})"

    def array(self) -> np.ndarray:
        """The values, read now (from the external file where they lie outside the model)."""
        return self._load()

    def small(self) -> np.ndarray | None:
        """The values if they take at most 64 KiB, else None."""
        return self._load() if self.nbytes <= SMALL_CONSTANT_BYTES else None


class Op(NamedTuple):
    """One operator, lifted or fused.

    kind: "Add", "com.microsoft.SkipLayerNormalization", or a class that a rule built ("rms_norm").
    inputs, outputs: value paths, "" for an absent one. A fused op lists its class's operands first,
    then whatever else its parts read at run time; constants that only parts read are not listed.
    parts: what a fused op is made of, in slot order; its meaning is these run in that order.
    slot: where it stands (a lifted op: for ever). placements: reads and writes in place.
    """

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attribute]
    parts: tuple[Op, ...] = ()
    name: str = ""
    slot: int = -1
    placements: tuple[Attribute, ...] = ()

    @property
    def path(self) -> str:
        """What identifies the op: the path of its first output that is not absent."""
        return self.outputs[0] or next(filter(None, self.outputs), "")

    @property
    def bodies(self) -> dict[str, Graph]:
        """The subgraphs of an If, Loop or Scan by attribute name."""
        return {key: value for key, value in self.attrs.items() if isinstance(value, Graph)}


def leaves(op: Op) -> list[Op]:
    """The lifted ops that an op is made of, in slot order within each part."""
    if not op.parts:
        return [op]
    found: list[Op] = []
    for part in op.parts:
        if part.parts:
            found += leaves(part)
        else:
            found.append(part)
    return found


@dataclass(frozen=True)
class Model:
    """What the file says beside its graph.

    opsets: domain ("" for ai.onnx) -> version. conflicts: contradictions in the file whose meaning
    is clear all the same. lifting: how many nodes each normalization of the lift touched.
    """

    name: str
    sha256: str
    opsets: Mapping[str, int]
    ir_version: int
    nodes: int
    proto: object = None
    folder: str | None = None
    conflicts: tuple[str, ...] = ()
    lifting: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Base:
    """The tables of one graph, made at lift and shared by every copy of it."""

    model: Model
    prefix: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    lifted: tuple[Op, ...]
    types: Mapping[str, Type]
    contents: Mapping[str, Content]
    constants: Mapping[str, Tensor]
    overridable: Mapping[str, Tensor]
    nodes: tuple[object, ...]
    producer: Mapping[str, int]
    readers: Mapping[str, tuple[int, ...]]
    captured: Mapping[str, tuple[int, ...]]
    by_kind: Mapping[str, tuple[int, ...]]
    owners: tuple[int, ...]
    derived: frozenset[str]
    output_set: frozenset[str]


def make_base(
    *,
    model: Model,
    prefix: str,
    inputs: Iterable[str],
    outputs: Iterable[str],
    ops: Iterable[Op],
    types: Mapping[str, Type],
    contents: Mapping[str, Content],
    constants: Mapping[str, Tensor],
    overridable: Mapping[str, Tensor] | None = None,
    nodes: Iterable[object] = (),
) -> Base:
    """Index lifted ops, given in topological order; each gets its slot here.

    A value that a body captures is read by the op that owns the body. overridable: graph inputs
    that have a default, by name; they are not constants. nodes: what each op was lifted from, kept
    for lowering.
    """
    ops, nodes, derived = _constants_first(list(ops), list(nodes), constants)
    lifted = tuple(op._replace(slot=slot) for slot, op in enumerate(ops))
    producer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    captured: dict[str, list[int]] = {}
    by_kind: dict[str, list[int]] = {}
    owners: list[int] = []
    for slot, op in enumerate(lifted):
        by_kind.setdefault(op.kind, []).append(slot)
        for value in op.outputs:
            if value:
                producer[value] = slot
        for value in op.inputs:
            if value and value not in constants:
                slots = readers.setdefault(value, [])
                if not slots or slots[-1] != slot:
                    slots.append(slot)
        bodies = op.bodies if op.attrs else {}
        if bodies:
            owners.append(slot)
            for value in dict.fromkeys(v for body in bodies.values() for v in captures(body)):
                if value in constants:
                    continue
                captured.setdefault(value, []).append(slot)
                slots = readers.setdefault(value, [])
                if not slots or slots[-1] != slot:
                    slots.append(slot)
    outputs = tuple(outputs)
    return Base(
        model=model,
        prefix=prefix,
        inputs=tuple(inputs),
        outputs=outputs,
        lifted=lifted,
        types=types,
        contents=contents,
        constants=constants,
        overridable=overridable or {},
        nodes=tuple(nodes),
        producer=producer,
        readers={value: tuple(slots) for value, slots in readers.items()},
        captured={value: tuple(slots) for value, slots in captured.items()},
        by_kind={kind: tuple(slots) for kind, slots in by_kind.items()},
        owners=tuple(owners),
        derived=derived,
        output_set=frozenset(outputs),
    )


def _constants_first(
    ops: list[Op], nodes: list[object], constants: Mapping[str, Tensor]
) -> tuple[list[Op], list[object], frozenset[str]]:
    """Ops that only rearrange constants come first, the order else kept; and what they make.

    A weight transposed just before its product would otherwise stand in the way of every fusion
    that runs earlier than that.
    """
    derived: set[str] = set()
    first: list[int] = []
    rest: list[int] = []
    for index, op in enumerate(ops):
        fixed = op.kind in FROM_CONSTANTS and any(op.inputs)
        if fixed and all(v in constants or v in derived or not v for v in op.inputs):
            derived.update(v for v in op.outputs if v)
            first.append(index)
        else:
            rest.append(index)
    if not first:
        return ops, nodes, frozenset()
    order = first + rest
    return [ops[i] for i in order], [nodes[i] for i in order] if nodes else [], frozenset(derived)


def captures(body: Graph) -> dict[str, None]:
    """The values of enclosing graphs that a body (or a body inside it) reads, in order."""
    base = body.base
    found: dict[str, None] = {}
    own = set(base.inputs)
    for op in base.lifted:
        for value in op.inputs:
            if value and value not in own and value not in base.producer:
                found[value] = None
        for inner in op.bodies.values():
            found.update((v, None) for v in captures(inner) if v not in own and v not in base.producer)
    found.update((v, None) for v in base.outputs if v not in own and v not in base.producer)
    return found


class Graph:
    """One state of a graph. Copies share the tables; only `replace` and `dissolve` change it."""

    __slots__ = ("base", "built", "into", "slots")

    def __init__(self, base: Base) -> None:
        self.base = base
        self.slots: list[Op | None] = list(base.lifted)
        self.into: list[int] = list(range(len(base.lifted)))
        #: class -> the slots where an op of it was ever put (some may have gone since).
        self.built: dict[str, list[int]] = {}

    def __str__(self) -> str:
        """One op a line (`fuse.text`)."""
        from fuse.text import text

        return text(self)

    # ---- reading -------------------------------------------------------------------------------
    @property
    def ops(self) -> list[Op]:
        """The ops that stand, in order."""
        return [op for op in self.slots if op is not None]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Graph inputs, in the file's order (initializers that are inputs too included)."""
        return self.base.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.base.outputs

    def producer(self, value: str) -> Op | None:
        """The op that makes a value now; None for inputs, constants and values of outer graphs."""
        slot = self.base.producer.get(value)
        return None if slot is None else self.slots[self.into[slot]]

    def readers(self, value: str) -> list[int]:
        """The slots of the ops that read a value now, in lifted order, each once."""
        lifted = self.base.readers.get(value)
        if not lifted:
            return []
        into = self.into
        if len(lifted) == 1:
            return [into[lifted[0]]]
        return list(dict.fromkeys([into[slot] for slot in lifted]))

    def is_output(self, value: str) -> bool:
        return value in self.base.output_set

    def type(self, value: str) -> Type:
        return self.base.types.get(value, UNKNOWN)

    def dims(self, value: str) -> Dims | None:
        return self.base.types.get(value, UNKNOWN).dims

    def dtype(self, value: str) -> str:
        return self.base.types.get(value, UNKNOWN).dtype

    def content(self, value: str) -> Content | None:
        """The known elements of a small tensor, flat; None where nothing is known."""
        return self.base.contents.get(value)

    def scalar(self, value: str) -> int | float | bool | None:
        """The value of a constant of one element, whatever its rank; None for anything else."""
        if value not in self.base.constants:
            return None
        content = self.base.contents.get(value)
        if content is None or len(content) != 1 or isinstance(content[0], Expr):
            return None
        return content[0]

    def constant(self, value: str) -> Tensor | None:
        """The constant of that name, of this graph or one around it; None if it is not one."""
        return self.base.constants.get(value)

    def is_constant(self, value: str) -> bool:
        """Known when the model loads: a constant, or made of constants only."""
        base = self.base
        return value in base.constants or value in base.derived

    def bodies(self) -> Iterator[Graph]:
        """The bodies of this graph's ops, deepest first."""
        for slot in self.base.owners:
            op = self.slots[self.into[slot]]
            if op is None:
                continue
            owner = next(leaf for leaf in leaves(op) if leaf.slot == slot)
            for body in owner.bodies.values():
                yield from body.bodies()
                yield body

    def of_kind(self, kind: str) -> Iterator[Op]:
        """The ops of one kind that stand, by slot."""
        for slot in self.base.by_kind.get(kind, ()):
            op = self.slots[slot]
            if op is not None and op.kind == kind and op.slot == slot:
                yield op
        for slot in sorted(set(self.built.get(kind, ()))):
            op = self.slots[slot]
            if op is not None and op.kind == kind and op.parts:
                yield op

    # ---- changing ------------------------------------------------------------------------------
    def copy(self) -> Graph:
        """A graph of its own over the same tables; bodies are copied too."""
        twin = Graph.__new__(Graph)
        twin.base, twin.slots, twin.into = self.base, self.slots.copy(), self.into.copy()
        twin.built = {kind: slots.copy() for kind, slots in self.built.items()}
        for slot in self.base.owners:
            op = twin.slots[twin.into[slot]]
            if op is not None and not op.parts:
                attrs = {k: v.copy() if isinstance(v, Graph) else v for k, v in op.attrs.items()}
                twin.slots[twin.into[slot]] = op._replace(attrs=attrs)
        return twin

    def replace(self, op: Op, slot: int) -> Op:
        """Put a fused op, whose parts stand in the graph now, into one of their slots."""
        slots, into = self.slots, self.into
        for part in op.parts:
            slots[part.slot] = None
            for leaf in leaves(part):
                into[leaf.slot] = slot
        op = op._replace(slot=slot)
        slots[slot] = op
        self.built.setdefault(op.kind, []).append(slot)
        return op

    def window(self, parts: Iterable[Op], inputs: Iterable[str], outputs: Iterable[str]) -> list[int]:
        """The slots of the parts that a fused op may take, lowest first.

        After every producer of its inputs and before every outside reader of its results, both
        where they stand now and where they were lifted: so a fusion nearby may be undone later.
        """
        base, into = self.base, self.into
        own = {leaf.slot for part in parts for leaf in leaves(part)}
        low, high = -1, len(self.slots)
        for value in inputs:
            made = base.producer.get(value)
            if made is not None and made not in own:
                low = max(low, made, into[made])
        for value in outputs:
            for reader in base.readers.get(value, ()):
                if reader not in own:
                    high = min(high, reader, into[reader])
        return sorted(slot for slot in own if low < slot < high)

    def dissolve(self, op: Op) -> list[Op]:
        """Undo a fusion by one level: its parts stand again. Returns the parts that are put back."""
        slots, into = self.slots, self.into
        slots[op.slot] = None
        back: list[Op] = []
        for part in op.parts:
            if part.parts:
                window = self.window((part,), part.inputs, part.outputs)
                if not window:
                    slots[part.slot] = None
                    back += self.dissolve(part)
                    continue
                slot = part.slot if part.slot in window else window[-1]
                part = part._replace(slot=slot)
                self.built.setdefault(part.kind, []).append(slot)
            slots[part.slot] = part
            for leaf in leaves(part):
                into[leaf.slot] = part.slot
            back.append(part)
        return back

    # ---- checking ------------------------------------------------------------------------------
    def verify(self) -> None:
        """Raise where an op reads a value before it is made, or an output is lost."""
        base = self.base
        made = set(base.inputs) | {""}
        inside = bool(base.prefix)
        for slot, op in enumerate(self.slots):
            if op is None:
                continue
            if op.slot != slot:
                raise FuseError(f"op {op.path} says slot {op.slot} and stands in {slot}")
            reads = list(op.inputs)
            for leaf in leaves(op):
                if self.into[leaf.slot] != slot:
                    raise FuseError(f"leaf {leaf.path} is not where its op {op.path} stands")
                reads += [v for body in leaf.bodies.values() for v in captures(body)]
            own = {v for leaf in leaves(op) for v in leaf.outputs} if op.parts else set()
            for value in reads:
                outer = inside and value not in base.producer
                if value not in made and value not in base.constants and value not in own and not outer:
                    raise FuseError(f"{op.kind} {op.path} reads {value} before it is made")
            made.update(op.outputs)
        for value in base.outputs:
            known = value in made or value in base.constants
            if not known and not (inside and value not in base.producer):
                raise FuseError(f"output {value} is made by no op")
        for op in self.ops:
            for leaf in leaves(op):
                for body in leaf.bodies.values():
                    body.verify()


def unfuse(graph: Graph) -> Graph:
    """The graph as it was lifted: every fusion undone, in its bodies too."""
    plain = graph.copy()
    for one in (*plain.bodies(), plain):
        for slot, op in enumerate(one.base.lifted):
            now = one.slots[one.into[slot]]
            if op.bodies and now is not None:
                kept = next(leaf for leaf in leaves(now) if leaf.slot == slot)
                op = op._replace(attrs=kept.attrs)
            one.slots[slot] = op
            one.into[slot] = slot
        one.built = {}
    return plain
