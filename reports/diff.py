"""The difference of two reports as text or Markdown: a row for changes that repeat over layers."""

from __future__ import annotations

from fuse.report import Decision
from fuse.report.diff import KINDS, ChangeGroup, Diff
from reports.text import folded
from reports.words import cause, clean, clip, short_code

_TITLES = ("", "places", "rule", "place", "before", "after")


def render(found: Diff, form: str = "text", width: int | None = None) -> str:
    """The header, what differs between the compiles, and a row a group. form: text or md."""
    groups = found.groups()
    if form == "md":
        return _markdown(found, groups)
    lines = [_head(found), *(f"  {line}" for line in found.differences())]
    if groups:
        cells = [_TITLES, *map(_cells, groups)]
        lines += ["", *folded(cells, "<><<<<", ("before  ", "after   "), width)]
    else:
        lines.append("every place is the same")
    return "".join(clip(line.rstrip(), width) + "\n" for line in lines)


def _head(found: Diff) -> str:
    before, after = found.before, found.after
    counts = [f"{len(found.of(kind)):,} {kind}" for kind in KINDS if found.of(kind)]
    one, two = clean(before.chip.name), clean(after.chip.name)
    chips = one if one == two else f"{one} -> {two}"
    same = "same model" if before.model.sha256 == after.model.sha256 else "another model"
    launches = f"launches {before.after.launches:,} -> {after.after.launches:,}"
    return "   ".join([chips, same, ", ".join(counts) or "no change", launches])


def _markdown(found: Diff, groups: tuple[ChangeGroup, ...]) -> str:
    lines = [f"**{_head(found)}**", "", *(f"- {line}" for line in found.differences())]
    if groups:
        lines += ["", "| | places | rule | place | before | after |", "|---|---:|---|---|---|---|"]
        lines += [
            "| " + " | ".join(cell.replace("|", "\\|") for cell in _cells(group)) + " |" for group in groups
        ]
    return "".join(f"{line}\n" for line in lines)


def _cells(group: ChangeGroup) -> tuple[str, ...]:
    first = group.changes[0]
    return (
        group.kind,
        f"{len(group.changes):,}x",
        clean(group.rule),
        clean(group.place or first.row.root),
        _state(first.before, short=first.after is not None),
        _state(first.after, short=False),
    )


def _state(row: Decision | None, short: bool) -> str:
    """An outcome with its reasons; of the side that is past only their codes."""
    if row is None:
        return "-"
    word = "near" if row.kind == "near_miss" else row.kind
    if row.kind == "fired":
        return f"{word} {row.builds}" if row.builds != row.rule else word
    if not row.reasons:
        return word
    if short:
        return f"{word}({', '.join(short_code(reason.code) for reason in row.reasons)})"
    return f"{word}  {cause(row.reasons)}"
