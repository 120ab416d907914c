"""The support table of a chip, generated from its file."""

from __future__ import annotations

from typing import NamedTuple

from chips.constraints import sentence
from chips.schema import Entry
from chips.shim import Chip, Way, ways
from fuse.classes import CLASSES


class SupportRow(NamedTuple):
    """One kernel of a class, or the reason why there is none (`kernel` is "" then).

    when: what makes it the kernel that runs; limits: what it wants then; both as sentences.
    """

    name: str
    kernel: str
    dtypes: tuple[str, ...]
    when: tuple[str, ...]
    limits: tuple[str, ...]
    note: str
    evidence: str
    source: tuple[str, ...]


def support_table(chip: Chip) -> list[SupportRow]:
    """A row for each kernel of each class, in the order of fuse.classes; one row for a class that
    the chip's file says it lacks, or says nothing of."""
    rows: list[SupportRow] = []
    for name in CLASSES:
        entry = chip.entry(name)
        if entry is None:
            rows.append(SupportRow(name, "", (), (), (), "not linked", "", ()))
        elif entry.lacks is not None:
            rows.append(SupportRow(name, "", (), (), (), entry.lacks, entry.evidence, entry.source))
        else:
            rows += [_row(name, entry, way) for way in ways(entry)]
    return rows


def _row(name: str, entry: Entry, way: Way) -> SupportRow:
    main = CLASSES[name].operands[0]
    return SupportRow(
        name,
        way.kernel,
        tuple(way.limits.get("dtypes", ())),
        tuple(sentence(key, want, main) for key, want in way.when.items()),
        tuple(sentence(key, want, main) for key, want in way.limits.items() if key != "dtypes"),
        "; ".join(text for text in (entry.note, way.note) if text),
        entry.evidence,
        entry.source,
    )
