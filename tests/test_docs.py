"""What the documents say is so: generated pages are current, examples run, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from command_line import command

import chips
import fuse
from fuse.commands.examples import EXAMPLES, find
from fuse.engine import compiler
from fuse.engine.compiling import Step
from fuse.rule import Rule

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
README = (ROOT / "README.md").read_text()


def fenced(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_current() -> None:
    made = generator()
    assert [path.name for path in made.stale(dict(made.pages()))] == [], "run make docs"


def test_a_page_that_is_not_current_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("values within 1.5e-07\n")
    assert generator().stale({page: "values within 2e-08\n"}) == []
    assert generator().stale({page: "values within a bound\n", tmp_path / "none.md": ""}) == [
        page,
        tmp_path / "none.md",
    ]


def test_readme_in_python(tmp_path: Path) -> None:
    """The example of the interface, on the model that comes with fuse."""
    (code,) = [text for text in fenced("python") if "fuse.load" in text]
    shutil.copy(find("llama"), tmp_path / "model.onnx")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "model.ort-cpu.onnx").exists()


def test_readme_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule that README adds fires on its pattern, and explains the place that nearly is."""
    (code,) = [text for text in fenced("python") if "Rule(" in text]
    names: dict[str, Rule] = {}
    exec(code, names)
    rule = names["squared_relu"]
    assert len(code.split("squared_relu = ")[1].splitlines()) <= 15
    monkeypatch.setattr(compiler, "steps", lambda shim: (Step(rule.name, rule),))

    def report(body: str) -> fuse.Report:
        from onnx import parser

        head = '<ir_version: 10, opset_import: ["" : 20]> g (float[N] x) => (float[N] y) '
        graph = fuse.load(parser.parse_model(head + body))
        return fuse.optimize(graph, shim=chips.load("any")).report

    assert report("{ a = Relu(x) y = Mul(a, a) }").fired("squared_relu")
    assert not report("{ a = Tanh(x) y = Mul(a, a) }").fired("squared_relu")


def test_readme_chip(tmp_path: Path) -> None:
    (text,) = fenced("yaml")
    path = tmp_path / "our-npu.yaml"
    path.write_text(text)
    report = fuse.optimize(fuse.load(find("llama")), shim=chips.load(path)).report
    assert report.chip.name == "our-npu"
    assert {limit.code for row in report.refused("rms_norm") for limit in row.reasons} == {"chip:dtypes"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_decision_is_listed() -> None:
    listed = re.findall(r"\((decisions/[^)]+)\)", (ROOT / "docs" / "README.md").read_text())
    found = sorted(f"decisions/{path.name}" for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert listed == found
    assert [name.split("/")[1][:3] for name in found] == [f"{n:03}" for n in range(1, len(found) + 1)]


def test_contributing_is_ten_steps_or_fewer() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for title in ("Add a rule", "Add a chip", "Add a code"):
        section = text.split(f"## {title}\n")[1].split("\n## ")[0]
        steps = [int(number) for number in re.findall(r"^(\d+)\. ", section, re.MULTILINE)]
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) <= 10


def test_readme_names_what_there_is() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z]+) ", README):
        assert f"\n{target}:" in makefile
    for name in re.findall(r"`fuse\.([a-z_]+)\(", README):
        assert hasattr(fuse, name), name
    for folder in re.findall(r"^\| `([a-z]+)/` \|", README, re.MULTILINE):
        assert (ROOT / folder).is_dir()


def test_readme_names_every_command() -> None:
    helped = command("--help").stdout
    commands = re.findall(r"^  ([a-z]+) +[A-Z]", helped.split("Commands:")[1], re.MULTILINE)
    assert commands
    table = README.split("## On the command line")[1].split("\n## ")[0]
    assert [name for name in commands if name not in table] == []


def test_examples_are_package_data() -> None:
    assert all(find(name).is_file() for name in EXAMPLES)
