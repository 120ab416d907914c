"""The one-way rule of the folders, by the imports in the source; sizes of files; no paths of a machine."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
#: The folders that are packages.
PACKAGES = ("fuse", "chips", "reference", "reports")
#: A file is "under about 400 lines": a tenth more is still about; tests may list a few more cases.
LINES = {"fuse": 440, "chips": 440, "reference": 440, "reports": 440, "tests": 480, "docs": 440}
#: From the bottom up. A module imports from its own line or from lines above it, never from below.
LAYERS = (
    "version collecting polynomials dims types placement",
    "ir operators tables classes codes",
    "text homes folding attributes shim record shape_functions",
    "shapes layout views placing",
    "lift lifting lower lowering binding",
    "pattern match",
    "rule guards forms units",
    "rules chip_rules",
    "rewriter explain",
    "report final",
    "compiling",
    "compiler",
    "ablation bisecting",
    "cli commands",
    "__main__",
)
#: A path of somebody's machine.
MACHINE = re.compile(r"/(?:home|Users|root|work|tmp|mnt|opt|workspace)/(?!someone/)[\w.]|\.\./shared")


class Import(NamedTuple):
    """An import: of what, and whether it runs when the importing module is loaded."""

    module: str
    now: bool


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in files(*PACKAGES)}


def _imports(node: ast.AST, now: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, now) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports name the whole path"
            for alias in child.names:
                inner = f"{child.module}.{alias.name}"
                yield Import(inner if inner in MODULES else str(child.module), now)
        else:
            later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from _imports(child, now and not later and not typing)


def imports(path: Path) -> list[Import]:
    return list(_imports(ast.parse(path.read_text()), True))


def package(module: str) -> str:
    return module.partition(".")[0]


KNOWN = frozenset(name for layer in LAYERS for name in layer.split())


def part(module: str) -> str:
    """What of `fuse` a module belongs to: rules.norms to rules, report.rows to report. The engine is no
    part: its modules stand on layers of their own."""
    path = [name for name in module.split(".")[1:] if name != "engine"]
    return path[0] if path else ""


def composes(module: str) -> bool:
    return part(module) in ("cli", "commands", "__main__")


def test_packages_are_there() -> None:
    assert {package(module) for module in MODULES} == set(PACKAGES)


def test_the_core_imports_no_other_package() -> None:
    """Not even inside a function: the core takes a Shim, and gives a report as data."""
    found = [
        f"{module} imports {one.module}"
        for module, path in MODULES.items()
        if package(module) == "fuse" and not composes(module)
        for one in imports(path)
        if package(one.module) in ("chips", "reference", "reports")
    ]
    assert not found


def test_only_the_command_line_composes_the_packages() -> None:
    allowed = {"chips": {"fuse"}, "reference": {"fuse"}, "reports": {"fuse"}}
    found = [
        f"{module} imports {one.module}"
        for module, path in MODULES.items()
        if package(module) != "fuse"
        for one in imports(path)
        if package(one.module) in PACKAGES
        and package(one.module) not in allowed[package(module)] | {package(module)}
    ]
    assert not found


def test_only_lift_and_lower_import_onnx() -> None:
    found = [
        f"{module} imports {one.module}"
        for module, path in MODULES.items()
        if package(module) in ("fuse", "chips", "reports")
        and part(module) not in ("lift", "lifting", "lower", "lowering")
        for one in imports(path)
        if package(one.module) in ("onnx", "onnx_ir")
    ]
    assert [line for line in found if not line.startswith("chips.runtimes")] == []


def test_reports_need_only_what_a_report_is() -> None:
    """A report opens with no model, no chip and no engine."""
    found = [
        f"{module} imports {one.module}"
        for module, path in MODULES.items()
        if package(module) == "reports"
        for one in imports(path)
        if package(one.module) == "fuse" and part(one.module) not in ("report", "codes", "classes", "types")
    ]
    assert not found


def test_a_report_opens_without_onnx() -> None:
    code = (
        "import sys, reports, fuse.report; "
        "print('onnx' in sys.modules, 'fuse.engine.compiler' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_every_module_has_a_layer() -> None:
    assert {part(module) for module in MODULES if package(module) == "fuse"} - {""} == KNOWN


def test_layers_point_one_way() -> None:
    rank = {name: n for n, layer in enumerate(LAYERS) for name in layer.split()}
    found = [
        f"{module} imports {one.module}"
        for module, path in MODULES.items()
        if package(module) == "fuse" and part(module)
        for one in imports(path)
        if one.now
        and package(one.module) == "fuse"
        and part(one.module)
        and rank[part(one.module)] > rank[part(module)]
    ]
    assert not found


def test_no_import_cycle() -> None:
    graph = {
        module: {one.module for one in imports(path) if one.now and one.module in MODULES} - {module}
        for module, path in MODULES.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


def test_commands_import_the_rest_only_when_they_run() -> None:
    """So that `fuse --help` is quick."""
    light = {"version", "types", "cli", "commands", "polynomials", "dims"}
    found = [
        f"{module} imports {one.module}"
        for module, path in MODULES.items()
        if package(module) == "fuse" and composes(module)
        for one in imports(path)
        if one.now
        and (
            package(one.module)
            in ("chips", "reference", "reports", "numpy", "onnx", "rich", "pydantic", "yaml")
        )
        | (package(one.module) == "fuse" and part(one.module) not in light)
    ]
    assert not found


@pytest.mark.parametrize("folder", sorted(LINES))
def test_files_are_short(folder: str) -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in files(folder)
        if (lines := len(path.read_text().splitlines())) > LINES[folder]
    }
    assert not found, f"over {LINES[folder]} lines: split by theme"


def tracked() -> list[Path]:
    """Every text file of the repository: by git where there is one, else by folder."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]
    return [path for path in paths if path.suffix not in (".onnx", ".data", ".png") and path.exists()]


def test_no_path_of_a_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{n}: {match.group()}"
        for path in tracked()
        for n, line in enumerate(path.read_text().splitlines(), 1)
        if (match := MACHINE.search(line))
    ]
    assert not found


def test_no_unfinished_work() -> None:
    """What is to be done is an issue of the project, not a remark in its source."""
    marks = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XXX)\b|raise NotImplemented" + r"Error")
    found = [
        f"{path.relative_to(ROOT)}:{n}"
        for path in files(*PACKAGES)
        for n, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert not found


def test_bare_and_broad_handlers_are_absent() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in files(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
    ]
    assert not found
