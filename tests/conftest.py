"""What all tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Run, Said
from made_reports import mixed

from fuse.cli import main

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="write the golden files instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with a file of tests/golden; --bless writes it, a missing one fails."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--bless"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no {path.name}: run pytest with --bless"
        assert text == path.read_text()

    return compare


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `fuse` in this process."""

    def call(*words: object) -> Said:
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        return Said(stop.value.code, *capsys.readouterr())

    return call


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "r.json"
    path.write_text(mixed().report().model_dump_json())
    return path
