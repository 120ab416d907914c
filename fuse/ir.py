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

from collections.abc import Iterable, Iterator

from fuse.operators import SMALL_CONSTANT_BYTES, Content, Element, Op, Owned, Tensor, lands_in, leaves
from fuse.placement import Alias
from fuse.tables import Base, Model, captures, make_base
from fuse.types import UNKNOWN, Dims, Expr, FuseError, Type

__all__ = [
    "SMALL_CONSTANT_BYTES",
    "Base",
    "Content",
    "Element",
    "Graph",
    "Model",
    "Op",
    "Tensor",
    "captures",
    "lands_in",
    "leaves",
    "make_base",
    "unfuse",
]

#: Operators that read the shape of a value and not what is in it.
SHAPE_ONLY = frozenset({"Shape", "Size", "fuse.Dims"})


class Graph(Owned):
    """One state of a graph. Copies share the tables; only `replace` and `dissolve` change it."""

    __slots__ = ("base", "built", "into", "landed", "slots")

    def __init__(self, base: Base) -> None:
        self.base = base
        self.slots: list[Op | None] = list(base.lifted)
        self.into: list[int] = list(range(len(base.lifted)))
        #: class -> the slots where an op of it was ever put (some may have gone since).
        self.built: dict[str, list[int]] = {}
        #: value -> the slot where an op that writes over its memory was last put (it may have gone).
        self.landed: dict[str, int] = {}

    def __repr__(self) -> str:
        number, name = len(self.ops), self.base.model.name
        return (
            f"<graph{name and ' of ' + name}: {number} ops, {len(self.inputs)} in, {len(self.outputs)} out>"
        )

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

    def writer(self, value: str) -> Op | None:
        """The op that writes over the memory of a value, in place; None where none does."""
        slot = self.landed.get(value)
        op = None if slot is None else self.slots[slot]
        return op if op is not None and value in lands_in(op) else None

    def lookers(self, value: str) -> list[int]:
        """The lifted slots that read what is in a value (not just its shape), under any of its names."""
        found: list[int] = []
        for lifted in self.base.readers.get(value, ()):
            op = self.slots[self.into[lifted]]
            if op is not None and any(isinstance(placement, Alias) for placement in op.placements):
                found += [slot for name in op.outputs if name for slot in self.lookers(name)]
            elif self.base.lifted[lifted].kind not in SHAPE_ONLY:
                found.append(lifted)
        return found

    def memory(self, value: str) -> str:
        """The value in whose memory a value lies: itself, but for names of parts that are read in place."""
        op = self.producer(value)
        while op is not None and op.placements:
            bases = [p.base for p in op.placements if isinstance(p, Alias)]
            if not bases:
                break
            value = bases[0]
            op = self.producer(value)
        return value

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
            if op is not None and op.kind == kind and op.parts and self.base.lifted[slot].kind != kind:
                yield op

    # ---- changing ------------------------------------------------------------------------------
    def copy(self) -> Graph:
        """A graph of its own over the same tables; bodies are copied too."""
        twin = Graph.__new__(Graph)
        twin.base, twin.slots, twin.into = self.base, self.slots.copy(), self.into.copy()
        twin.built = {kind: slots.copy() for kind, slots in self.built.items()}
        twin.landed = self.landed.copy()
        for slot in self.base.owners:
            op = twin.slots[twin.into[slot]]
            if op is not None:
                twin.slots[twin.into[slot]] = _own_bodies(op, slot)
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
        self.landed.update((value, slot) for value in lands_in(op))
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
            for leaf in leaves(part):
                into[leaf.slot] = part.slot
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
                self.landed.update((value, slot) for value in lands_in(part))
            slots[part.slot] = part
            for leaf in leaves(part):
                into[leaf.slot] = part.slot
            back.append(part)
        return back

    # ---- checking ------------------------------------------------------------------------------
    def verify(self) -> None:
        """Raise where an op reads a value before it is made or after it is written over, or an
        output is lost."""
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
            for value in lands_in(op):
                self._verify_landing(op, value)
            for leaf in leaves(op):
                for body in leaf.bodies.values():
                    body.verify()

    def _verify_landing(self, op: Op, value: str) -> None:
        """Raise where a value is read after an op has landed in its memory."""
        if self.is_output(value):
            raise FuseError(f"{op.kind} {op.path} lands in {value}, an output of the graph")
        for lifted in self.lookers(value):
            reader = self.slots[self.into[lifted]]
            if reader is not None and reader.slot > op.slot:
                raise FuseError(f"{reader.kind} {reader.path} reads {value} after {op.path} lands in it")


def _own_bodies(op: Op, owner: int) -> Op:
    """An op with copies of the bodies of the leaf lifted at a slot, in the op itself or in its parts."""
    if op.parts:
        return op._replace(parts=tuple(_own_bodies(part, owner) for part in op.parts))
    if op.slot != owner:
        return op
    attrs = {k: v.copy() if isinstance(v, Graph) else v for k, v in op.attrs.items()}
    return op._replace(attrs=attrs)


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
        one.built, one.landed = {}, {}
    return plain
