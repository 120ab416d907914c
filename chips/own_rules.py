"""A chip file's own rules, as the engine takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from chips.constraints import check, given
from chips.operands import Operands
from chips.schema import OwnRule
from fuse.shim import Candidate, ChipRule, Refused, Whole


def chip_rule(rule: OwnRule, judge: Callable[[Candidate], Whole | Refused]) -> ChipRule:
    """A rule of the file. judge: the chip's, for a rule that takes only what the chip refuses."""
    return ChipRule(
        name=rule.name,
        place=rule.place,
        beside=rule.beside,
        builds=rule.builds,
        sets=dict(rule.sets),
        applies=partial(_applies, given(rule.when), rule.where_refused, judge),
        why=rule.reason,
    )


def _applies(
    when: Mapping[str, Any],
    where_refused: bool,
    judge: Callable[[Candidate], Whole | Refused],
    candidate: Candidate,
) -> bool:
    at = Operands(candidate)
    if any(check(at, name, want) is not None for name, want in when.items()):
        return False
    return not where_refused or isinstance(judge(candidate), Refused)
