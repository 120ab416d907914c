"""`fuse rules`, `chips`, `codes`, `steps`: what there is, generated from the tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from inspect import cleandoc
from typing import TYPE_CHECKING

from fuse.commands.output import say, width
from fuse.types import FuseError

if TYPE_CHECKING:
    from chips import Chip
    from chips.schema import OwnRule

_WIDTH = 100


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows as columns two spaces apart, the last one free and wrapped under itself."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    indent = sum(widths) + 2 * len(widths)
    room = max((width() or _WIDTH) - indent, 30)
    lines = []
    for row in rows:
        head = "".join(f"{cell:<{w}}  " for cell, w in zip(row, widths, strict=False))
        text = textwrap.wrap(row[-1], room) or [""]
        lines.append((head + text[0]).rstrip())
        lines += [" " * indent + line for line in text[1:]]
    return "".join(f"{line}\n" for line in lines)


def _paragraph(label: str, text: str) -> str:
    """A labelled paragraph of a page, wrapped under itself."""
    indent = " " * 12
    columns = width() or _WIDTH
    return textwrap.fill(text, columns, initial_indent=f"  {label:<10}", subsequent_indent=indent) + "\n"


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of a docstring, indented and wrapped."""
    columns = width() or _WIDTH
    return [
        textwrap.fill(" ".join(part.split()), columns, initial_indent="  ", subsequent_indent="  ")
        for part in cleandoc(text).split("\n\n")
    ]


def rules(name: str | None) -> int:
    """The table of rules, or the page of one."""
    from fuse.rules.table import ADVANCE, LATE, RULES

    every = (*RULES, *LATE, *ADVANCE)
    if name is None:
        say(_columns([(rule.name, rule.doc) for rule in every]))
        return 0
    rule = next((rule for rule in every if rule.name == name), None)
    if rule is None:
        say(_own_rule(name, [rule.name for rule in every]))
        return 0
    from fuse.classes import CLASSES

    parts = [f"{rule.name}\n", *(f"{text}\n\n" for text in _paragraphs(rule.why))]
    parts.append(_paragraph("starts at", ", ".join(rule.marks)))
    if rule.places:
        parts.append(_paragraph("builds", "the same class, which reads or writes in place"))
    for built in () if rule.places else rule.builds_classes:
        parts.append(_paragraph("builds", f"{built}: {CLASSES[built].meaning}"))
    for guard in rule.guards:
        parts.append(_paragraph("needs", f"{guard.want}  [{guard.code}]"))
    running = _placing(rule.name) if rule.places else _linking(rule.builds_classes)
    parts.append(_paragraph("chips", ", ".join(running) or "none of those that come with fuse"))
    parts.append(_paragraph("since", rule.since))
    parts.append(_example(rule.name))
    say("".join(parts))
    return 0


@cache
def _shipped() -> tuple[Chip, ...]:
    """The chips that come with fuse, but the two that link everything and nothing."""
    import chips as shipped

    return tuple(shipped.load(name) for name in shipped.names() if name not in ("any", "none"))


def _placing(rule: str) -> list[str]:
    """The chips some of whose kernels read, or land, in place as a rule wants; under limits always."""
    unit = rule.removeprefix("land_in_")
    having = [
        chip.name
        for chip in _shipped()
        if any(
            row.reads if rule == "read_in_place" else unit in row.lands for row in chip.spec.in_place.values()
        )
    ]
    return [f"{name} (limits)" for name in having]


def _linking(classes: Sequence[str]) -> list[str]:
    """The chips that run one of these classes whole; with `limits` where only under conditions."""
    import chips as shipped

    found = []
    for chip in _shipped():
        if not any(chip.links(built) for built in classes):
            continue
        rows = [row for row in shipped.support_table(chip) if row.name in classes and row.kernel]
        limited = all(row.limits or row.when for row in rows)
        found.append(f"{chip.name} (limits)" if limited else chip.name)
    return found


def _example(rule: str) -> str:
    """A firing of the rule in a small graph, before and after."""
    from importlib.resources import files

    text = (files("fuse.rules") / "examples" / f"{rule}.txt").read_text()
    columns = width() or _WIDTH
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += textwrap.wrap(
            line.strip(),
            columns,
            initial_indent=indent,
            subsequent_indent=indent + "    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n" + "".join(f"{line}\n" for line in lines)


def _own_rule(name: str, shared: Sequence[str]) -> str:
    """The page of a chip's own rule. Raises FuseError where no chip that comes with fuse has it."""
    loaded = _shipped()
    own = {rule.name: rule for chip in loaded for rule in chip.spec.rules}
    if name not in own:
        raise FuseError(f"no rule {name}{_nearest(name, [*shared, *own])}")
    rule = own[name]
    having = [chip.name for chip in loaded if any(one.name == name for one in chip.spec.rules)]
    beside = f"{rule.place} {rule.beside}" if rule.beside else rule.place
    parts = [f"{name}\n  {rule.reason}\n\n", _paragraph("of", ", ".join(having)), _paragraph("place", beside)]
    parts.append(_paragraph("sets", f"{_settings(rule.sets)} on {rule.builds}"))
    parts += [_paragraph("where", text) for text in _conditions(rule)]
    parts.append(_paragraph("source", "; ".join(rule.source)))
    return "".join(parts)


def _settings(sets: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in sets.items())


def _conditions(rule: OwnRule) -> list[str]:
    from chips.constraints import given, sentence
    from fuse.classes import CLASSES

    main = CLASSES[rule.builds].operands[0]
    texts = [sentence(key, want, main) for key, want in given(rule.when).items()]
    return [*texts, *(["the chip does not run it as it stands"] if rule.where_refused else [])]


def chips(name: str | None) -> int:
    """The chips that come with fuse, or what one runs."""
    import chips as shipped

    if name is None:
        loaded = [shipped.load(each) for each in shipped.names()]
        say(_columns([(chip.name, chip.spec.about) for chip in loaded]))
        return 0
    chip = shipped.load(name)
    linked = [row for row in shipped.support_table(chip) if row.kernel]
    parts = [f"{chip.name}: {chip.spec.about}\n", "\n" if linked else ""]
    for row in linked:
        parts.append(f"{row.name}: {row.kernel}\n")
        for label, texts in (("when", row.when), ("types", row.dtypes), ("wants", row.limits)):
            if texts:
                parts.append(_paragraph(label, (", " if label == "types" else "; ").join(texts)))
        if row.note:
            parts.append(_paragraph("note", row.note))
        parts.append(_paragraph("evidence", f"{row.evidence}: {'; '.join(row.source)}"))
    without = [row for row in shipped.support_table(chip) if not row.kernel]
    lacking = [(row.name, row.note) for row in without if row.source]
    if lacking:
        parts += ["\nnot whole\n", _columns(lacking)]
    unsaid = [row.name for row in without if not row.source]  # the file says nothing of these
    if unsaid:
        columns = width() or _WIDTH
        names = textwrap.fill(", ".join(unsaid), columns, initial_indent="  ", subsequent_indent="  ")
        parts.append(f"\nnot linked\n{names}\n")
    for rule in chip.spec.rules:
        parts.append(f"\n{rule.name}: sets {_settings(rule.sets)} on {rule.builds}\n")
        parts += [_paragraph("where", text) for text in _conditions(rule)]
        parts.append(_paragraph("because", rule.reason))
    for built, preference in chip.spec.prefer.items():
        parts.append(f"\n{built}: not preferred\n")
        parts += [_paragraph("want", preference.want), _paragraph("got", preference.got)]
        parts.append(_paragraph("source", "; ".join(preference.source)))
    parts += [_paragraph("note", note) for note in chip.spec.notes]
    say("".join(parts))
    return 0


def codes(code: str | None) -> int:
    """The codes with their causes, or the page of one."""
    from chips.constraints import CONSTRAINTS
    from fuse.codes import known, page
    from fuse.rules.table import ADVANCE, LATE, RULES

    guards = {
        guard.code.removeprefix("guard:"): guard.want
        for rule in (*RULES, *LATE, *ADVANCE)
        for guard in rule.guards
        if guard.code.startswith("guard:")
    }
    limits = {name: _condition(check.__doc__ or name) for name, check in CONSTRAINTS.items()}
    if code is None:
        say(_columns(list(known(guards, limits).items())))
        return 0
    found = page(code, guards, limits)
    parts = [f"{found.code}\n"]
    for label, text in (
        ("cause", found.cause),
        ("at", found.at),
        ("want", found.want),
        ("got", found.got),
        ("change", found.change),
    ):
        if text:
            parts.append(_paragraph(label, text))
    asked = _asked(found.code.removeprefix("chip:")) if found.code.startswith("chip:") else {}
    parts += [_paragraph("asked by", f"{', '.join(who)}: {what}") for what, who in asked.items()]
    say("".join(parts))
    return 0


def _asked(limit: str) -> dict[str, list[str]]:
    """What shipped chips want of a constraint -> the chip and class that want it."""
    import chips as shipped
    from chips.constraints import sentence
    from chips.shim import ways
    from fuse.classes import CLASSES

    table: dict[str, list[str]] = {}
    for name in shipped.names():
        chip = shipped.load(name)
        for built, declared in CLASSES.items():
            entry = chip.entry(built)
            for way in ways(entry) if entry is not None and entry.lacks is None else ():
                if limit in way.limits:
                    said = sentence(limit, way.limits[limit], declared.operands[0])
                    who = table.setdefault(said, [])
                    who.extend([f"{name} {built}"] * (f"{name} {built}" not in who))
    return table


def _condition(text: str) -> str:
    """A constraint's sentence, with dots for the figures of a chip."""
    return text.format(want="...", main="x")


def steps(chip: str | None) -> int:
    """The steps of a compile in order."""
    if chip is None:
        raise FuseError("no chip: give --chip NAME; `fuse chips` lists them")
    import chips as shipped
    import fuse

    say("".join(f"{step.name}\n" for step in fuse.steps(shipped.load(chip))))
    return 0


def _nearest(name: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, list(names), n=3, cutoff=0.4)
    return f"; nearest: {', '.join(near)}" if near else ""
