"""Bad chip files: each is one line that names the file, the line and the bad thing."""

from __future__ import annotations

from pathlib import Path

import pytest

import chips
from fuse.types import FuseError

GOOD = """
name: mine
about: a chip of this test
runtime: {name: own}
classes:
  rms_norm:
    kernel: k
    dtypes: [f32]
    limits: {width: {at_most: 8}}
    evidence: docs
    source: [a page]
"""


def write(folder: Path, text: str, name: str = "mine") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "clases: {}\n", r"mine\.yaml:12: clases: unknown key; nearest: classes"),
        (
            GOOD.replace("width", "widht"),
            r"mine\.yaml:9: classes\.rms_norm\.limits\.widht: unknown key; nearest: width",
        ),
        (GOOD.replace("at_most: 8", "most: 8"), r"mine\.yaml:9: .*most: unknown key"),
        (
            GOOD.replace("at_most: 8", "at_most: wide"),
            r"mine\.yaml:9: classes\.rms_norm\.limits\.width\.at_most: .*integer",
        ),
        (
            GOOD.replace("{at_most: 8}", "{}"),
            r"mine\.yaml:9: .*want one_of, at_least, at_most or multiple_of",
        ),
        (GOOD + "name: again\n", r"mine\.yaml:12: key given twice: name"),
        (GOOD + "x: [1\n", r"mine\.yaml:1\d: not yaml: "),
        ("- a\n- b\n", r"mine\.yaml:1: want a mapping"),
        ("", r"mine\.yaml:1: want a mapping"),
        ("[a]: b\n", r"mine\.yaml:1: a key is not a plain name"),
        (GOOD.replace("about: a chip of this test\n", ""), r"mine\.yaml:\d+: about: missing"),
        (GOOD.replace("rms_norm", "rms_nrom"), r"mine\.yaml:6: unknown class rms_nrom; nearest: rms_norm"),
        (GOOD.replace("width", "head_dim"), r"mine\.yaml:9: limit head_dim says nothing about rms_norm"),
        (GOOD.replace("width: {at_most: 8}", "rows: [wait]"), r"mine\.yaml:9: rms_norm has no operand wait"),
        (
            GOOD.replace("kernel: k", "kernel: k\n    lacks: it"),
            r"mine\.yaml:6: .*want either kernel or lacks",
        ),
        (GOOD.replace("evidence: docs", "evidence: hope"), r"mine\.yaml:10: classes\.rms_norm\.evidence: "),
        (GOOD.replace("source: [a page]", "source: []"), r"mine\.yaml:11: classes\.rms_norm\.source: "),
        (GOOD + "extends: m33\n", r"mine\.yaml:12: extends: no chip file m33; nearest: m3"),
        (GOOD + "extends: [m3]\n", r"mine\.yaml:12: extends: want the name of one chip file"),
        (GOOD + "extends: mine\n", r"mine\.yaml:12: extends: goes in a circle through mine"),
        (GOOD + "extends: ''\n", r"mine\.yaml:12: extends: no chip file"),
        (GOOD.replace("at_most: 8", "at_most: 8, at_least: 9"), r"mine\.yaml:9: .*at_least is above at_most"),
        (GOOD.replace("{width: {at_most: 8}}", "3"), r"mine\.yaml:9: .*limits: want a mapping of keys"),
        (GOOD.replace("[f32]", "f32"), r"mine\.yaml:8: .*dtypes: want a list"),
        (
            GOOD.replace("kernel: k", "kernel: k\n    caps: {max_depth: 3}"),
            r"mine\.yaml:8: no search for rms_norm",
        ),
        (GOOD + "memory: {bandwidth_gbs: .nan, source: [a]}\n", r"mine\.yaml:12: .*finite"),
        (
            GOOD + "in_place: {rope: {reads: [transpose], orders: [[0, 2]], evidence: docs, source: [a]}}\n",
            r"mine\.yaml:12: .*want every axis once",
        ),
        (GOOD + "notes: &a [*a]\n", r"mine\.yaml: nested too deep, or in itself"),
        (GOOD + f"notes: {'[' * 3000}{']' * 3000}\n", r"mine\.yaml: nested too deep, or in itself"),
        (GOOD + "notes: [2001-99-99]\n", r"mine\.yaml:12: not yaml: '2001-99-99' cannot be read"),
        (GOOD + "notes: [!!bool maybe]\n", r"mine\.yaml:12: not yaml: 'maybe' cannot be read as bool"),
        (GOOD + "notes: [!!timestamp x]\n", r"mine\.yaml:12: not yaml: 'x' cannot be read as timestamp"),
        (GOOD + "notes: [!!int '']\n", r"mine\.yaml:12: not yaml: '' cannot be read as int"),
        (GOOD.replace("at_most: 8", f"at_most: {'9' * 5000}"), r"mine\.yaml:9: .*'9{20}' cannot be read"),
        (GOOD + "about: !!python/object:os.system x\n", r"mine\.yaml:12: key given twice"),
        (GOOD + "notes: [!!python/name:os.system x]\n", r"mine\.yaml:12: not yaml: "),
    ],
)
def test_a_bad_file_is_one_line_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FuseError, match=rf"^{message}") as caught:
        chips.load(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_aliases_that_repeat_each_other_are_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(FuseError, match=r"^mine\.yaml:\d+: more than 100,000 values"):
        chips.load(write(tmp_path, "\n".join(lines)))


def test_a_longer_circle_of_bases(tmp_path: Path) -> None:
    write(tmp_path, GOOD + "extends: two\n", "one")
    write(tmp_path, GOOD + "extends: one\n", "two")
    with pytest.raises(FuseError, match=r"^two\.yaml:12: extends: goes in a circle through one"):
        chips.load(tmp_path / "one.yaml")


def test_an_error_in_a_base_names_the_base(tmp_path: Path) -> None:
    write(tmp_path, GOOD.replace("at_most: 8", "at_most: wide"), "base")
    path = write(tmp_path, "name: mine\nextends: base\nabout: over it\n")
    with pytest.raises(FuseError, match=r"^base\.yaml:9: "):
        chips.load(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FuseError, match=r"^no chip m6; nearest: m\d, m\d, m\d"):
        chips.load("m6")
    with pytest.raises(FuseError, match=r"^no chip file "):
        chips.load(tmp_path / "gone.yaml")
    with pytest.raises(FuseError, match=r"^no chip file "):
        chips.load(tmp_path / ("n" * 300 + ".yaml"))
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FuseError, match=r"^b\.yaml: not a text file"):
        chips.load(binary)
    binary.write_bytes(b"a: \x07")
    with pytest.raises(FuseError, match=r"^b\.yaml:1: not yaml"):
        chips.load(binary)
