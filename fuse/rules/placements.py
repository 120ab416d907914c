"""Placements: nothing new is computed, a copy is saved.

An operand that is only a part of a wider value, or that value in another order, is read where it lies;
a result that is only copied into a wider tensor is written there. A placed op keeps its kind, its
parts are the layout operators and the op that computes, and a chip says which ops it places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import NamedTuple

from fuse import forms
from fuse.classes import CLASSES
from fuse.ir import Graph, Op
from fuse.match import Fault, Match
from fuse.placement import Alias, Read
from fuse.placing import seen
from fuse.rule import Built, Rule, Wrong, guard
from fuse.types import FLOATS
from fuse.views import COPYING, FREE, Views, strided, views

#: Classes whose operands are read element by element by whatever takes them in.
_ELEMENTWISE = frozenset("gelu fast_gelu quick_gelu silu mish hard_swish softcap elementwise_region".split())
_BLOCKS = frozenset(name for name, declared in CLASSES.items() if declared.composite)
#: What may read an operand in place: norms, products, rotations, attention, gates, caches, mixtures.
READERS = (
    (frozenset(CLASSES) - _ELEMENTWISE - _BLOCKS)
    | forms.norm.kinds
    | forms.product.kinds
    | forms.rope.kinds
    | forms.attention.kinds
    | forms.add_norm.kinds
)
#: A layout operator and its views.
Step = tuple[Op, Views]
#: How many layout operators lie between a value and who reads it, at most.
_LONGEST = 8


class Chain(NamedTuple):
    """Layout operators from a wider value up to an operand, and what they do together."""

    base: str
    ops: tuple[Op, ...]
    views: Views


def _layout(graph: Graph, value: str) -> Op | None:
    """The layout operator that makes a float value when the model runs."""
    op = graph.producer(value) if value else None
    if op is None or op.parts or op.kind not in COPYING | FREE or graph.is_constant(value):
        return None
    return op if graph.dtype(value) in FLOATS else None


def layout_below(graph: Graph, value: str) -> list[Step]:
    """The layout operators under a value, nearest first, each with its views."""
    found: list[Step] = []
    while len(found) < _LONGEST:
        op = _layout(graph, value)
        how = None if op is None else views(graph, op, value)
        if op is None or how is None:
            break
        found.append((op, how))
        value = op.inputs[0]
    return found


def _chain(graph: Graph, steps: list[Step], within: dict[int, Op]) -> Chain | None:
    """The longest chain of these layout operators that is a strided access and saves a copy."""
    steps = list(takewhile(lambda step: step[0].slot in within, steps))
    for count in range(len(steps), 0, -1):
        taken = steps[:count][::-1]
        if not any(op.kind in COPYING for op, _ in taken):
            return None
        base = taken[0][0].inputs[0]
        dims = graph.dims(base)
        how = tuple(view for _, some in taken for view in some)
        if dims is not None and strided(dims, how):
            return Chain(base, tuple(op for op, _ in taken), how)
    return None


def chains(graph: Graph, reader: Op) -> dict[int, Chain]:
    """Operand number -> the chain it can be read through, where nothing else needs the copies."""
    operands = seen(reader).inputs
    placed = {p.operand for p in reader.placements if isinstance(p, Read)}
    below = {n: layout_below(graph, value) for n, value in enumerate(operands) if value and n not in placed}
    region = {op.slot: op for steps in below.values() for op, _ in steps}
    while region:
        _prune(graph, reader, region)
        found = {n: chain for n in below if (chain := _chain(graph, below[n], region)) is not None}
        used = {op.slot: op for chain in found.values() for op in chain.ops}
        if used.keys() == region.keys():
            return found
        region = used
    return {}


def _prune(graph: Graph, reader: Op, region: dict[int, Op]) -> None:
    """Leave only operators all of whose results are read by the reader and each other alone."""
    while True:
        lost = [op.slot for op in region.values() if _read_elsewhere(graph, op, region, reader)]
        if not lost:
            return
        for slot in lost:
            del region[slot]


def _read_elsewhere(graph: Graph, op: Op, region: dict[int, Op], reader: Op) -> bool:
    """Whether a result has another reader; the first that is met tells, of tables that all layers read."""
    into, readers = graph.into, graph.base.readers
    for value in op.outputs:
        if graph.is_output(value):
            return True
        for lifted in readers.get(value, ()):
            slot = into[lifted]
            if slot not in region and slot != reader.slot:
                return True
    return False


def _together(found: dict[int, Chain]) -> Iterator[dict[int, Chain]]:
    """All chains, then, for a chip that places less, each set of chains that share operators."""
    yield found
    groups: list[dict[int, Chain]] = []
    for number, chain in found.items():
        slots = {op.slot for op in chain.ops}
        group = next((g for g in groups if any(op.slot in slots for c in g.values() for op in c.ops)), None)
        if group is None:
            groups.append({number: chain})
        else:
            group[number] = chain
    if len(groups) > 1:
        yield from groups


def _consumers(graph: Graph, mark: Op) -> list[Op]:
    """The ops that read a layout operator's results, through others of its kind."""
    found: dict[int, Op] = {}
    todo = [(value, 0) for value in mark.outputs if value]
    while todo:
        value, depth = todo.pop()
        for slot in graph.readers(value):
            op = graph.slots[slot]
            if op is None:
                continue
            if not op.parts and op.kind in COPYING | FREE and op.inputs[0] == value and depth < _LONGEST:
                todo += [(out, depth + 1) for out in op.outputs if out]
            else:
                found[slot] = op
    return list(found.values())


def find_reads(graph: Graph, mark: Op, budget: int) -> Iterator[Match]:
    """An op whose operands are copies that only it reads; or a copy that several ops each read in place."""
    if mark.parts or not any(_layout(graph, value) for value in mark.outputs if value):
        return
    consumers = _consumers(graph, mark)
    if budget:
        # rows that a GatherND looks up are no copy of a part
        if mark.kind != "GatherND" or views(graph, mark, mark.outputs[0]) is not None:
            yield from _almost(graph, mark, consumers)
        return
    if len(consumers) == 1 and consumers[0].kind in READERS:
        found = chains(graph, consumers[0])
        if any(op.slot == mark.slot for chain in found.values() for op in chain.ops):
            for some in _together(found):
                copies = [op for chain in some.values() for op in chain.ops]
                yield _match(graph, consumers[0], copies, some)
    direct = {slot for value in mark.outputs if value for slot in graph.readers(value)}
    if len(direct) > 1 and all((op := graph.slots[s]) and op.kind in READERS for s in direct):
        how = [views(graph, mark, value) for value in mark.outputs if value]
        if all(how) and not any(graph.is_output(value) for value in mark.outputs):
            yield _match(graph, mark, [], {})


def _match(graph: Graph, root: Op, copies: Iterable[Op], found: dict[int, Chain]) -> Match:
    match = Match(graph)
    match.ops = list({op.slot: op for op in (*copies, root)}.values())
    match.bound = {"reader": root, "chains": found}
    match.root = root.path
    return match


def _almost(graph: Graph, mark: Op, consumers: list[Op]) -> Iterator[Match]:
    """A copy beside one that could read it in place: the engine says what stands in the way."""
    for slot in {slot for value in mark.outputs if value for slot in graph.readers(value)}:
        reader = graph.slots[slot]
        if reader is not None and reader.kind in READERS and reader in consumers:
            yield _match(graph, reader, [mark], _direct(graph, mark, reader))


def _direct(graph: Graph, mark: Op, reader: Op) -> dict[int, Chain]:
    """The operands that are results of one layout operator, as far as it is known what they read."""
    base = mark.inputs[0]
    return {
        number: Chain(base, (mark,), how)
        for number, value in enumerate(seen(reader).inputs)
        if value in mark.outputs and value and (how := views(graph, mark, value)) is not None
    }


#: What says that others need the copied value as well.
COPY_IS_NEEDED = frozenset({"read_elsewhere", "graph_output", "captured", "order"})


def is_whole(m: Match, fault: Fault) -> bool:
    """Whether a place is almost one: all of it is there, and what is in the way is not another need of
    the copy itself. A copy that others read too, that is an output or that has no slot is just a copy."""
    return m.fault is None and fault.code not in COPY_IS_NEEDED


def dims_are_known(m: Match) -> Wrong | None:
    """dims that are known"""
    for op in _not_followed(m):
        for value in (op.inputs[0], *op.outputs):
            if value and m.graph.dims(value) is None:
                return Wrong(value, "unknown dims")
    return None


def bounds_are_known(m: Match) -> Wrong | None:
    """the parts, or the rows of a table, that are read: known when the model loads"""
    for op in _not_followed(m):
        for value in op.outputs:
            if value and views(m.graph, op, value) is None:
                return Wrong([*op.inputs, op.path][1], "a place known at run time only")
    return None


def _not_followed(m: Match) -> list[Op]:
    """The copies of a match that no chain goes through."""
    followed = {op.slot for chain in m["chains"].values() for op in chain.ops}
    return [op for op in m.ops if op.kind in COPYING and not op.parts and op.slot not in followed]


def _reading(m: Match) -> Built:
    reader, found = m["reader"], m["chains"]
    if reader.kind in COPYING and not reader.parts:
        names = (
            Alias(number, reader.inputs[0], how)
            for number, value in enumerate(reader.outputs)
            if m.graph.readers(value) and (how := views(m.graph, reader, value)) is not None
        )
        return Built(reader.kind, reader.inputs, dict(reader.attrs), reader.outputs, placements=tuple(names))
    sight = seen(reader)
    reads = tuple(Read(n, sight.inputs[n], chain.base, chain.views) for n, chain in found.items())
    return Built(reader.kind, sight.inputs, dict(reader.attrs), reader.outputs, placements=reads)


read_in_place = Rule(
    "read_in_place",
    """a slice, split, gather or transpose read where it lies instead of copied

    The parts of a merged product, rows of a table and heads are a strided access of what holds them:
    the launch and the copy go, nothing is computed anew.""",
    finds=find_reads,
    marks=tuple(sorted(COPYING)),
    needs=(guard(dims_are_known, code="unknown_shape"), guard(bounds_are_known, code="operand")),
    builds=_reading,
    almost=is_whole,
    reads=tuple(sorted(READERS)),
    again=True,
    places=True,
    from_the_end=True,
)
