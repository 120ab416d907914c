"""What never changes after lifting: the model's facts, and the tables that every copy of a graph shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuse.operators import Content, Op, Tensor
from fuse.types import Type

if TYPE_CHECKING:
    from fuse.ir import Graph

#: Operators that give other values each time they run: what they make is never known.
RANDOM = frozenset(
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli".split()
)


def _is_fixed(op: Op) -> bool:
    """Whether an op makes the same of the same operands: no body, nothing random, no operator of a domain
    that may keep a state."""
    known = "." not in op.kind or op.kind.startswith("com.microsoft.")
    return known and op.kind not in RANDOM and not op.bodies and any(op.inputs)


@dataclass(frozen=True)
class Model:
    """What the file says beside its graph.

    opsets: domain ("" for ai.onnx) -> version. conflicts: contradictions in the file whose meaning
    is clear all the same. lifting: how many nodes each normalization of the lift touched. path: of the
    file that was loaded. folder: where its external weights are looked for.
    """

    name: str
    sha256: str
    opsets: Mapping[str, int]
    ir_version: int
    nodes: int
    proto: object = None
    path: str | None = None
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
    """Ops over constants alone come first, the order else kept; and what they make, which is known when
    the model loads though it is never computed here.

    A weight transposed just before its product would otherwise stand in the way of every fusion
    that runs earlier than that.
    """
    derived: set[str] = set()
    first: list[int] = []
    rest: list[int] = []
    for index, op in enumerate(ops):
        if _is_fixed(op) and all(v in constants or v in derived or not v for v in op.inputs):
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
