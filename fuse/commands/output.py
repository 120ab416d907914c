"""How commands write: to the terminal with colour only where wanted, to files whole or not at all."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from fuse.types import FuseError

#: What a terminal shows in colour: a name -> the words.
_STYLES = {
    "fuse.fired": "green",
    "fuse.near": "yellow",
    "fuse.refused": "red",
    "fuse.held": "cyan",
    "fuse.want": "bold",
}
_WORDS = (
    r"(?P<fired>\bfired\b)",
    r"(?P<near>\bnear(?: miss)?\b)",
    r"(?P<refused>\brefused\b)",
    r"(?P<held>\bheld\b)",
    r"(?P<want>\b(?:want|got)\b)",
)


def styled() -> bool:
    """Whether standard output is a terminal that wants colour."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def width() -> int | None:
    """Columns of the terminal; None where standard output is none, so that nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def say(text: str) -> None:
    """Write text that ends in a newline to standard output."""
    if not styled():
        sys.stdout.write(text)
        return
    from rich.console import Console
    from rich.highlighter import RegexHighlighter
    from rich.theme import Theme

    class Outcomes(RegexHighlighter):
        base_style = "fuse."
        highlights = list(_WORDS)  # noqa: RUF012  rich reads it from the class

    console = Console(theme=Theme(_STYLES), highlighter=Outcomes(), soft_wrap=True)
    console.print(text, markup=False, end="")


def complain(message: str) -> None:
    """One line on standard error."""
    line = " ".join(message.split())
    sys.stderr.write(f"error: {line}\n")


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int, str], None] | None]:
    """A function (done, in all, what) that draws a bar on standard error; None where it is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


@contextmanager
def written(target: Path | None, text: str) -> Iterator[None]:
    """A text that is the target's when the block ends well; nothing is written for None. A link keeps
    pointing where it does.

    Raises FuseError where the target cannot be written; where there is no room for the text, before the
    block begins.
    """
    if target is None:
        yield
        return
    real = Path(os.path.realpath(target))
    beside = real.with_name(f".fuse-{token_hex(6)}.tmp")
    try:
        with open(beside, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        yield
        os.replace(beside, real)
    except OSError as error:
        raise FuseError(f"cannot write {target}: {reason(error)}") from error
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()


def check_target(target: Path, apart_from: tuple[Path | None, ...]) -> None:
    """Raises FuseError for a target that is a folder or a device, in no folder, or another file of the
    command."""
    if not target.name:  # an empty word of the command line
        raise FuseError(f"cannot write {str(target)!r}: want the name of a file")
    if target.is_dir():
        raise FuseError(f"cannot write {target}: it is a folder")
    if target.exists() and not target.is_file():
        raise FuseError(f"cannot write {target}: it is no regular file")
    if not target.parent.is_dir():
        raise FuseError(f"cannot write {target}: no folder {target.parent}")
    for other in apart_from:
        if other is not None and same_file(target, other):
            raise FuseError(f"cannot write {target}: it would replace {other}")


def same_file(a: Path, b: Path) -> bool:
    """Whether two paths are one file, also where neither exists yet."""
    if a.exists() and b.exists():
        return a.samefile(b)
    return a.resolve() == b.resolve()


def reason(error: OSError) -> str:
    """What the system says, without number and path."""
    return (error.strerror or type(error).__name__).lower()
