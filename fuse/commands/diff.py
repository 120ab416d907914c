"""`fuse diff`: what changed from one report to another."""

from __future__ import annotations

from pathlib import Path

from fuse.commands import inputs
from fuse.commands.output import say, width
from fuse.types import FuseError

#: What `--fail-on` takes.
FAILURES = ("lost", "refused", "any")
FORMS = ("text", "md")


def run(before: Path, after: Path, fail_on: str | None, form: str) -> int:
    """The exit code: 1 where there is a change that --fail-on names."""
    if fail_on is not None and fail_on not in FAILURES:
        raise FuseError(f"--fail-on {fail_on}: want one of {', '.join(FAILURES)}")
    if form not in FORMS:
        raise FuseError(f"--form {form}: want one of {', '.join(FORMS)}")
    from reports.diff import render

    found = inputs.report(before).diff(inputs.report(after))
    say(render(found, form, width()))
    changes = {"lost": found.lost, "refused": found.refused, "any": found.changes, None: ()}
    return int(bool(changes[fail_on]))
