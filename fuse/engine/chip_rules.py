"""A chip's own rules: how a class is run, never what it computes.

They come from the chip's file. Each sets kernel attributes (`pad_head_to`) on ops of one class that
meet its condition; the definition ignores these, lowering honours them. Nothing is added to a graph.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuse.ir import Graph, Op
from fuse.match import Match
from fuse.rule import Built, Rule
from fuse.shim import Candidate, ChipRule


def rule_of(chip_rule: ChipRule) -> Rule:
    """The chip's rule as a line of the table."""
    sets = dict(chip_rule.sets)

    def walk(graph: Graph, op: Op, budget: int) -> Iterator[Match]:
        """The op itself, where the condition holds and the attributes are not set yet."""
        if budget or not op.parts or any(name in op.attrs for name in sets):
            return
        if chip_rule.applies(Candidate(op.kind, op, graph)):
            match = Match(graph)
            match.ops = [op]
            match.root = op.path
            yield match

    def build(m: Match) -> Built:
        op = m.ops[0]
        return Built(op.kind, op.inputs, {**op.attrs, **sets}, outputs=op.outputs)

    return Rule(
        chip_rule.name,
        chip_rule.why,
        finds=walk,
        marks=(chip_rule.builds,),
        builds=build,
        classes=(chip_rule.builds,),
        only_whole=True,
    )
