"""Running the command in tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable


class Said:
    """What a run of the command left: exit code, standard output, standard error."""

    def __init__(self, code: object, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Run = Callable[..., Said]


def command(*words: object) -> subprocess.CompletedProcess[str]:
    """`fuse` in a process of its own."""
    line = [sys.executable, "-m", "fuse.cli", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, check=False)
