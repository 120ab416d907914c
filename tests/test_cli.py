"""The command line: what it prints, its exit codes, and that nothing is half written."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import onnx
import pytest
from command_line import Run, command
from made_reports import mixed

import fuse
import reference
from fuse.codes import CODES
from fuse.commands.examples import EXAMPLES, HERE, find
from fuse.report import Report
from reports.text import PAGE

LLAMA = HERE / EXAMPLES["llama"].file


# ---- optimize -----------------------------------------------------------------------------------
def test_optimize_prints_the_page_and_writes_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = run("optimize", LLAMA, "--chip", "any")
    assert said.code == 0
    assert said.out.startswith("llama on any   287 ops   launches 210 -> ")
    assert len(said.out.splitlines()) <= PAGE
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_need_no_file(run: Run, name: str) -> None:
    said = run("optimize", "--example", name, "--chip", "any")
    assert said.code == 0
    assert "attention" in said.out
    assert f"fuse why --example {name} --chip any RULE|OP|ID" in said.out


def test_optimize_writes_model_and_report(run: Run, tmp_path: Path) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "r.json"
    said = run("optimize", LLAMA, "--chip", "any", "-o", out, "--report", report)
    assert said.code == 0
    onnx.checker.check_model(onnx.load(out))
    read = Report.model_validate_json(report.read_text())
    assert read.fired("rms_norm")
    assert read.chip.name == "any"
    assert f"fuse why {report} RULE|OP|ID" in said.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.onnx", "r.json"]


def test_two_runs_write_equal_bytes(run: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(
            "optimize",
            LLAMA,
            "--chip",
            "any",
            "-o",
            tmp_path / f"{name}.onnx",
            "--report",
            tmp_path / f"{name}.json",
        )
    for ending in ("onnx", "json"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_held_rules_and_dims_reach_the_report(run: Run, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    words = ("--hold", "rms_norm", "--dim", "batch=1", "--dim", "seq=8", "--report", report)
    assert run("optimize", LLAMA, "--chip", "any", *words).code == 0
    read = Report.model_validate_json(report.read_text())
    assert read.held_rules == ("rms_norm",)
    assert len(read.held("rms_norm")) == 5
    assert not read.fired("rms_norm")


def test_check_is_said_and_kept(run: Run, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    said = run("optimize", LLAMA, "--chip", "any", "--check", "--seed", 3, "--report", report)
    assert said.code == 0
    assert "values checked, bit-equal (seed 3" in said.out
    check = Report.model_validate_json(report.read_text()).check
    assert check is not None
    assert (check.ok, check.seed, check.dtype, check.differs) == (True, 3, "f32", None)


def test_a_check_that_fails_is_exit_code_1_and_writes_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = reference.Check(False, 0, "f32", False, "inf", "t27")

    def differ(*_: object, **__: object) -> None:
        raise reference.Mismatch("add_norm t27 differs by parts", found)

    monkeypatch.setattr(reference, "check", differ)
    out, report = tmp_path / "out.onnx", tmp_path / "r.json"
    said = run("optimize", LLAMA, "--chip", "any", "--check", "-o", out, "--report", report)
    assert said.code == 1
    assert "values differ (seed 0), first at t27" in said.out
    assert said.err == "error: add_norm t27 differs by parts (seed 0); nothing written\n"
    assert list(tmp_path.iterdir()) == []


def test_report_of_a_real_model_is_true() -> None:
    """Ids unique, every op of the file, savings add up to before less after."""
    import chips

    graph = fuse.load(LLAMA)
    paths = {op.path for op in graph.base.lifted}
    nodes = {node.name for node in onnx.load(LLAMA).graph.node}
    ids: dict[str, set[str]] = {}
    for chip in ("any", "none"):
        report = fuse.optimize(graph, shim=chips.load(chip)).report
        assert len({row.id for row in report.decisions}) == len(report.decisions)
        for row in report.decisions:
            assert paths.issuperset(row.ops)
            assert nodes.issuperset(row.names)
        fired = [row.saves.launches or 0 for row in report.decisions if row.kind == "fired"]
        assert sum(fired) == report.before.launches - report.after.launches
        ids[chip] = {row.id for row in report.decisions if row.kind in ("fired", "refused")}
    assert ids["any"] & ids["none"]


def test_a_link_stays_a_link(run: Run, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "r.json")
    assert run("optimize", LLAMA, "--chip", "any", "--report", tmp_path / "link.json").code == 0
    assert (tmp_path / "link.json").is_symlink()
    assert Report.model_validate_json((tmp_path / "r.json").read_text()).decisions


def test_an_interrupt_is_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fuse, "load", stop, raising=False)
    said = run("optimize", LLAMA, "--chip", "any")
    assert said.code not in (0, None)
    assert "Traceback" not in said.err


def test_a_termination_while_writing_leaves_no_file(tmp_path: Path) -> None:
    """The process ends itself where the first file is open, as a job's time limit would."""
    script = (
        "import os, signal, fuse.lowering.files as files\n"
        "from fuse.cli import main\n"
        "files._put = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"main(['optimize', {str(LLAMA)!r}, '--chip', 'any', '-o', 'out.onnx'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


# ---- why and report -----------------------------------------------------------------------------
def test_why_of_a_rule_tells_what_did_not_fire(run: Run, saved: Path) -> None:
    said = run("why", saved, "rms_norm")
    assert said.code == 0
    assert said.out.startswith("rms_norm: fired 2") or "rms_norm fired 2 times" in said.out
    assert "near miss  rms_norm" in said.out
    assert "refused  rms_norm" in said.out
    assert "fired  rms_norm" not in said.out


def test_why_of_a_rule_that_fired(run: Run, saved: Path) -> None:
    assert run("why", saved, "add_norm").out.startswith("fired  add_norm")


def test_why_of_a_rule_without_decision_explains(run: Run, saved: Path) -> None:
    said = run("why", saved, "gelu")
    assert (said.code, said.out) == (0, "gelu: fired 0; no place of the model nearly matches\n")


def test_why_of_an_id_and_of_an_op(run: Run, saved: Path) -> None:
    row = mixed().report().fired("add_norm")[0]
    assert run("why", saved, row.id).out.startswith("fired  add_norm")
    by_op = run("why", saved, "/model/layers.0/norm/Pow").out
    assert "fired  add_norm" in by_op
    assert "fired  rms_norm" in by_op


def test_why_of_a_model(run: Run) -> None:
    said = run("why", LLAMA, "rms_norm", "--chip", "none")
    assert said.code == 0
    assert "not_linked" in said.out
    assert run("why", "--example", "llama", "--chip", "none", "rms_norm").out == said.out


@pytest.mark.parametrize("form", ["text", "concise", "json", "jsonl"])
def test_report_forms_to_a_file(run: Run, saved: Path, form: str) -> None:
    out = saved.with_name("out")
    printed = run("report", saved, "--form", form, "--every")
    assert printed.code == 0
    said = run("report", saved, "--form", form, "--every", "-o", out)
    assert (said.code, said.out) == (0, "")
    assert out.read_text() == printed.out


def test_report_flags_narrow(run: Run, saved: Path) -> None:
    words = ("report", saved, "--form", "jsonl", "--rule", "rms_norm", "--outcome", "near,refused")
    kinds = [json.loads(line)["outcome"]["kind"] for line in run(*words).out.splitlines()]
    assert kinds == ["refused", "near_miss"]
    assert "1 of 2 groups" in run("report", saved, "--top", 1).out


# ---- listings -----------------------------------------------------------------------------------
def test_rules_lists_and_tells(run: Run) -> None:
    said = run("rules")
    assert [line.split()[0] for line in said.out.splitlines() if not line.startswith(" ")] == list(
        fuse.rule_names()
    )
    page = run("rules", "rms_norm").out
    assert page.startswith("rms_norm\n")
    assert "guard:" in page


def test_every_rule_has_a_page(run: Run) -> None:
    for name in fuse.rule_names():
        assert run("rules", name).code == 0


def test_chips_lists_and_tells(run: Run) -> None:
    assert "any " in run("chips").out
    assert run("chips", "any").out.startswith("any: ")
    assert "not whole\nl2_norm " in run("chips", "m3").out
    none = run("chips", "none").out
    assert "\n\nnot linked\n  rms_norm, layer_norm, " in none
    assert "\n\n\n" not in none


def test_every_code_has_a_page(run: Run) -> None:
    listed = [line.split()[0] for line in run("codes").out.splitlines() if not line.startswith(" ")]
    assert set(CODES) < set(listed)
    assert any(code.startswith("guard:") for code in listed)
    shown = [code for code in listed if not code.startswith("chip:")]
    for code in [*shown, "chip:not_linked", "chip:head_dim"]:
        page = run("codes", code)
        assert page.code == 0
        assert page.out.startswith(f"{code}\n")
        assert "change" in page.out
    asked = run("codes", "chip:head_dim").out
    assert "m3 attention" in asked
    assert "head width one of" in asked


def test_every_code_the_tables_can_give_is_listed(run: Run) -> None:
    from chips.constraints import CONSTRAINTS
    from fuse.rules.table import RULES

    listed = {line.split()[0] for line in run("codes").out.splitlines() if not line.startswith(" ")}
    assert {guard.code for rule in RULES for guard in rule.guards} <= listed
    assert {f"chip:{name}" for name in CONSTRAINTS} <= listed


def test_steps_in_order(run: Run) -> None:
    import chips

    names = [step.name for step in fuse.steps(chips.load("any"))]
    assert run("steps", "--chip", "any").out.split() == names


def test_version(run: Run) -> None:
    assert run("--version").out == f"fuse {fuse.__version__}\n"


def test_examples_are_small_and_there() -> None:
    for name in EXAMPLES:
        assert 0 < find(name).stat().st_size < 1_000_000


# ---- in a process of its own --------------------------------------------------------------------
def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from fuse.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(*({'onnx', 'numpy', 'pydantic', 'rich', 'yaml'} & set(sys.modules)), file=sys.stderr)"
    )
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert time.perf_counter() - started < 2  # 0.3 s where nothing else runs
    assert done.stderr.strip() == ""
    assert "optimize" in done.stdout


def test_piped_output_is_plain_and_whole() -> None:
    done = command("optimize", "--example", "llama", "--chip", "none")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "..." not in done.stdout


def test_a_closed_pipe_is_no_traceback(saved: Path) -> None:
    script = f"{sys.executable} -m fuse.cli report {saved} --form jsonl | head -c 1"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("{", "")


def test_a_terminal_gets_colour_unless_told(saved: Path) -> None:
    def on_terminal(**more: str) -> str:
        words = [sys.executable, "-m", "fuse.cli", "report", str(saved)]
        environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"} | more
        leader, follower = pty.openpty()
        with subprocess.Popen(words, stdout=follower, stderr=follower, env=environment) as child:
            os.close(follower)
            said = b""
            with suppress(OSError):
                while part := os.read(leader, 4096):
                    said += part
        os.close(leader)
        assert child.returncode == 0
        return said.decode()

    assert "\x1b[31mrefused" in on_terminal()
    plain = on_terminal(NO_COLOR="1")
    assert "\x1b" not in plain
    assert "refused" in plain


def test_errors_in_a_process() -> None:
    done = command("optimize", "--example", "nope", "--chip", "any")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: no example nope; there are {', '.join(EXAMPLES)}\n"


# ---- how it is started ---------------------------------------------------------------------------
def test_the_package_is_the_command() -> None:
    line = [sys.executable, "-m", "fuse", "--version"]
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout.startswith("fuse ")


@pytest.mark.parametrize(("stream", "words", "code"), [(1, "codes op", 0), (2, "codes oprand", 2)])
def test_a_closed_stream_is_nobody_to_tell(stream: int, words: str, code: int) -> None:
    line = ["sh", "-c", f'exec "$0" -m fuse {words} {stream}>&-', sys.executable]
    said = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout, said.stderr) == (code, "", "")


def test_a_report_may_come_through_a_pipe(saved: Path) -> None:
    for words in ("report /dev/stdin", "why /dev/stdin rms_norm", "diff /dev/stdin /dev/stdin"):
        line = [sys.executable, "-m", "fuse", *words.split()]
        said = subprocess.run(line, input=saved.read_bytes(), capture_output=True, check=False)
        assert said.returncode == (2 if words.startswith("diff") else 0), said.stderr


def test_a_model_through_a_pipe() -> None:
    for words, code in (("optimize /dev/stdin", 0), ("why /dev/stdin rms_norm", 2)):
        line = [sys.executable, "-m", "fuse", *words.split(), "--chip", "any"]
        said = subprocess.run(line, input=LLAMA.read_bytes(), capture_output=True, check=False)
        assert said.returncode == code, said.stderr
        assert said.stderr.count(b"\n") == code // 2


def test_a_name_that_is_no_text(run: Run, tmp_path: Path) -> None:
    """A file system may hold names that are not utf-8."""
    model = tmp_path / os.fsdecode(b"bad\xff.onnx")
    model.write_bytes(LLAMA.read_bytes())
    assert run("optimize", model, "--chip", "any", "--report", tmp_path / "r.json").code == 0
    assert Report.model_validate_json((tmp_path / "r.json").read_bytes()).model.name == "bad\ufffd"
