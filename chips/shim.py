"""A chip: answers whether it runs a candidate as one kernel, from the data of its file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from chips import in_place
from chips.constraints import check, given
from chips.load import Loaded
from chips.operands import Operands
from chips.own_rules import chip_rule
from chips.schema import Case, ChipFile, Entry, Number, Preference
from fuse.classes import CLASSES
from fuse.shim import Candidate, ChipRule, Limit, Refused, Whole

UNKNOWN_SHAPE = "unknown_shape"


class Way(NamedTuple):
    """One kernel of a class: when it is the one that runs, and what it then wants."""

    kernel: str
    when: dict[str, Any]
    limits: dict[str, Any]
    note: str


class Trial(NamedTuple):
    """A way held against a candidate: its `when` conditions that unknown shapes leave open, by
    constraint, and its limits that fail."""

    way: Way
    open: dict[str, Limit]
    failed: tuple[Limit, ...]


class Chip:
    """One chip; implements fuse.shim.Shim. `spec` is its file, `sha256` of the file and its bases."""

    def __init__(self, loaded: Loaded) -> None:
        self.spec: ChipFile = loaded.spec
        self.name: str = loaded.spec.name
        self.sha256: str = loaded.sha256
        self.chip_rules: tuple[ChipRule, ...] = ()
        self._ways = {name: ways(entry) for name, entry in self.spec.classes.items() if not entry.lacks}
        self.chip_rules = tuple(chip_rule(rule, self.judge) for rule in self.spec.rules)

    def __repr__(self) -> str:
        return f"Chip({self.name})"

    def entry(self, name: str) -> Entry | None:
        """What the chip's file says of a class."""
        return self.spec.classes.get(name) or self.spec.every_class

    def caps(self, name: str) -> Mapping[str, int]:
        """Bounds that a search for a class keeps (of an elementwise region)."""
        entry = self.entry(name)
        return {} if entry is None else {str(cap): bound for cap, bound in entry.caps.items()}

    def links(self, name: str) -> bool:
        """Whether the chip has any kernel of the class."""
        entry = self.entry(name)
        return entry is not None and entry.lacks is None

    def judge(self, candidate: Candidate) -> Whole | Refused:
        """Whole, or every limit that refuses. A kernel that exists and loses by measure is refused
        with the single limit `chip:not_preferred`."""
        limits = in_place.refusals(self.spec, candidate)
        below = in_place.beneath(candidate)
        found = self._of_class(below) if below.op.kind in CLASSES else None
        if limits or isinstance(found, Refused):
            return Refused(limits + (found.limits if isinstance(found, Refused) else ()))
        row = in_place.row_of(self.spec, below.op.kind) if candidate.op.placements else None
        if row is not None and (row.kernel or found is None):
            return Whole(row.kernel or below.op.kind, row.note, row.evidence)
        return found or Whole("no kernel: a name for what others read", "", "docs")

    def _of_class(self, candidate: Candidate) -> Whole | Refused:
        """What the limits of its class say of a candidate."""
        kind = candidate.op.kind
        entry = self.entry(kind)
        if entry is None or entry.lacks is not None:
            reason = entry.lacks if entry is not None and entry.lacks else f"none known on {self.name}"
            return Refused((Limit("chip:not_linked", f"one kernel for {kind}", reason),))
        ways_of = self._ways.get(kind)
        if ways_of is None:
            ways_of = self._ways.setdefault(kind, ways(entry))
        if (
            kind not in self.spec.prefer
            and not entry.prepares
            and all(not w.when and not w.limits for w in ways_of)
        ):
            return Whole(
                ways_of[0].kernel, "; ".join(filter(None, (entry.note, ways_of[0].note))), entry.evidence
            )
        at = Operands(candidate)
        found = _try_ways(at, ways_of)
        if isinstance(found, Refused):
            return found
        preference = self.spec.prefer.get(kind)
        if preference is not None and _applies(at, preference):
            return Refused((Limit("chip:not_preferred", preference.want, preference.got),))
        notes = (entry.note, found.note, _empty_rows(at, entry), _prepared(at, entry))
        return Whole(found.kernel, "; ".join(filter(None, notes)), entry.evidence)


def ways(entry: Entry) -> tuple[Way, ...]:
    """The kernels of an entry, each with the entry's limits under its own."""
    return tuple(_way(entry, case) for case in (entry.cases or (Case(),)))


def _way(entry: Entry, case: Case) -> Way:
    dtypes = case.dtypes or entry.dtypes
    limits = ({"dtypes": dtypes} if dtypes else {}) | given(entry.limits) | given(case.limits)
    return Way(case.kernel or entry.kernel or "", given(case.when), limits, case.note)


def _fails(at: Operands, limits: dict[str, Any]) -> dict[str, Limit]:
    """The limits that fail, by constraint."""
    found = ((name, check(at, name, want)) for name, want in limits.items())
    return {name: limit for name, limit in found if limit is not None}


def _unknown(limits: Iterable[Limit]) -> bool:
    return all(limit.code == UNKNOWN_SHAPE for limit in limits)


def _try_ways(at: Operands, all_ways: tuple[Way, ...]) -> Way | Refused:
    """The first way that surely runs the candidate, or the limits of the nearest.

    Where shapes leave open which way runs, the ways that may run must all hold, and between them
    cover every value.
    """
    possible: list[Trial] = []
    ruled_out: list[tuple[Limit, ...]] = []
    for way in all_ways:
        when = _fails(at, way.when)
        failed = tuple(_fails(at, way.limits).values())
        if not _unknown(when.values()):
            ruled_out.append((*when.values(), *failed))
        elif not when and not failed:
            return way
        else:
            possible.append(Trial(way, when, failed))
    if not possible:
        return Refused(_once(sorted(ruled_out, key=_distance)[0]))
    passing = [trial for trial in possible if not trial.failed]
    if len(passing) == len(possible) and _cover(possible):
        return passing[0].way
    if not passing:
        nearest = min(possible, key=lambda trial: _distance(trial.failed))
        left_open = () if _cover(possible) else nearest.open.values()
        return Refused(_once((*nearest.failed, *left_open)))
    doubtful = [trial.failed for trial in possible if trial.failed and _unknown(trial.failed)]
    return Refused(_once(doubtful[0] if doubtful else passing[0].open.values()))


def _distance(limits: tuple[Limit, ...]) -> tuple[int, int]:
    """How far a way is from running: limits that fail, and of equally many how much they name."""
    return len(limits), sum(limit.got.count(",") for limit in limits)


def _once(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    return tuple(dict.fromkeys(limits))


def _cover(trials: list[Trial]) -> bool:
    """Whether the conditions left open, on one number, leave no value of it out."""
    keys = {key for trial in trials for key in trial.open}
    if len(keys) != 1:
        return False
    key = keys.pop()
    numbers = [trial.way.when[key] for trial in trials if key in trial.open]
    if not all(isinstance(n, Number) and n.one_of is None and n.multiple_of is None for n in numbers):
        return False
    reach = -1
    for low, high in sorted((n.at_least or 0, n.at_most) for n in numbers):
        if low > reach + 1:
            return False
        if high is None:
            return True
        reach = max(reach, high)
    return False


def _applies(at: Operands, preference: Preference) -> bool:
    return not _fails(at, given(preference.when))


def _empty_rows(at: Operands, entry: Entry) -> str:
    """What the kernel gives for a row that is masked whole, where the graph gives another thing."""
    own = at.attr("empty_rows")
    if entry.empty_rows is None or not at.attr("mask") or own == entry.empty_rows:
        return ""
    return f"a fully masked row gives {entry.empty_rows} here, {own} in the graph"


def _prepared(at: Operands, entry: Entry) -> str:
    """What lowering makes once, beside the kernel, of operands that all layers share."""
    texts = []
    if "mask" in entry.prepares and at.value("mask"):
        mask, rows, keys = at.dims("mask"), at.extent("q", "s"), at.extent("k", "s")
        if "drop" in at.attr("mask"):
            texts.append("the mask is negated once, beside it")
        if mask is None or mask[-2:] != (rows, keys):
            texts.append("the mask is expanded once to rows and keys, beside it")
    if "tables" in entry.prepares and at.attr("tables") == "full":
        texts.append("cos and sin are cut to one entry a pair once, beside it")
    return "; ".join(texts)
