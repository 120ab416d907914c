"""What commands read: models, reports, dims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fuse.commands.output import reason
from fuse.types import LARGEST_SIZE, FuseError

if TYPE_CHECKING:
    from fuse.report import Decision, Report

#: Words of the command line -> outcome kinds.
OUTCOMES = {"fired": "fired", "held": "held", "refused": "refused", "near": "near_miss"}


def dims(texts: Sequence[str]) -> dict[str, int]:
    """`batch=1` texts as sizes by symbol."""
    sizes: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        name = name.strip()
        if not equals or not name:
            raise FuseError(f"--dim {text}: want NAME=SIZE, as in batch=1")
        if not number.strip().isdecimal() or int(number) < 1:
            raise FuseError(f"--dim {text}: want a whole number of at least 1, got {number!r}")
        if int(number) > LARGEST_SIZE:
            raise FuseError(f"--dim {text}: want at most {LARGEST_SIZE}")
        if sizes.get(name, int(number)) != int(number):
            raise FuseError(f"--dim {text}: {name} is {sizes[name]} already")
        sizes[name] = int(number)
    return sizes


def outcomes(text: str) -> tuple[str, ...]:
    """`fired,near` as outcome kinds."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in OUTCOMES:
            raise FuseError(f"--outcome {word}: want some of {', '.join(OUTCOMES)}")
    return tuple(OUTCOMES[word] for word in words)


def report_in(path: Path) -> Report | None:
    """The report in a file, None where it is a model. Raises FuseError where it cannot be read."""
    try:
        with _opened(path) as file:
            head = file.read(64)
            if head.lstrip()[:1] == b"{":
                return _parsed(path, head + file.read())
    except OSError as error:
        raise FuseError(f"cannot read {path}: {reason(error)}") from error
    if not path.is_file():
        raise FuseError(f"{path} is a pipe: want a report in it, or a model in a file")
    return None


def report(path: Path) -> Report:
    """The report in a file. Raises FuseError where it is none, naming what is wrong first."""
    try:
        with _opened(path) as file:
            return _parsed(path, file.read())
    except OSError as error:
        raise FuseError(f"cannot read {path}: {reason(error)}") from error


def _opened(path: Path) -> BinaryIO:
    if path.is_char_device() or path.is_block_device():
        raise FuseError(f"cannot read {path}: it is a device")
    return open(path, "rb")


def _parsed(path: Path, text: bytes) -> Report:
    from pydantic import ValidationError

    from fuse.report import Report

    try:
        return Report.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].splitlines()[0]
        raise FuseError(f"{path} is no fuse report: {where + ': ' if where else ''}{said.lower()}") from error


def check_rule(report: Report, name: str) -> None:
    """Raises FuseError for a rule or class that nothing has, naming the nearest."""
    from fuse.report import known_names, nearest

    names = known_names(report)
    if name not in names:
        near = nearest(name, names)
        raise FuseError(f"no rule or class {name}" + (f"; nearest: {', '.join(near)}" if near else ""))


def told(report: Report, name: str) -> list[Decision]:
    """The decisions that a name is about: an id, an op, or what of a rule or class did not fire.

    Raises FuseError where it is none of them.
    """
    from fuse.report import known_names, nearest

    by_id = [row for row in report.decisions if row.id == name]
    if by_id:
        return by_id
    names = known_names(report)
    if name in names:
        rows = [row for row in report.decisions if name in (row.rule, row.builds)]
        return [row for row in rows if row.kind != "fired" and row.absorbed_by is None] or rows
    rows = list(report.at(name))
    if rows:
        return rows
    near = nearest(name, names | {op for row in report.decisions for op in (*row.ops, *row.names)})
    raise FuseError(f"no rule, op or decision {name}" + (f"; nearest: {', '.join(near)}" if near else ""))
