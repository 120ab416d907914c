"""The command `fuse`. Each command imports what it needs when it runs, so `fuse --help` is quick."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import current_thread, main_thread
from typing import Annotated

import typer

from fuse.types import FuseError
from fuse.version import VERSION

app = typer.Typer(
    name="fuse",
    help="Decide which operators of an ONNX model one chip runs as one kernel, and why not the rest.\n\n"
    "Exit codes: 0 fine, 1 an expectation failed, 2 usage or broken input.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Chip = Annotated[
    str | None, typer.Option("--chip", help="A chip by name (`fuse chips`) or its YAML file.", metavar="CHIP")
]
Hold = Annotated[
    list[str] | None,
    typer.Option(
        "--hold", help="A rule that must not fire; where it would have is reported.", metavar="RULE"
    ),
]
Dim = Annotated[
    list[str] | None, typer.Option("--dim", help="The size of a symbolic dim.", metavar="NAME=SIZE")
]
Example = Annotated[
    str | None, typer.Option("--example", help="A small model that comes with fuse.", metavar="NAME")
]


@app.callback(invoke_without_command=True)
def fuse(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        typer.echo(f"fuse {VERSION}")
        raise typer.Exit


@app.command()
def optimize(
    model: Annotated[Path | None, typer.Argument(help="An ONNX model.", metavar="MODEL.onnx")] = None,
    chip: Chip = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the rewritten model.")] = None,
    report: Annotated[Path | None, typer.Option("--report", help="Write every decision as JSON.")] = None,
    hold: Hold = None,
    dim: Dim = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare values before and after; write only if equal.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the values that --check feeds.")] = 0,
    example: Example = None,
) -> None:
    """Rewrite a model for a chip; say what fired and why not the rest."""
    from fuse.commands.optimize import Request, run

    raise typer.Exit(run(Request(model, example, chip, out, report, hold or (), dim or (), check, seed)))


@app.command()
def why(
    words: Annotated[
        list[str],
        typer.Argument(help="R.json or MODEL.onnx, then a rule, an op, or an id.", metavar="FILE NAME"),
    ],
    chip: Chip = None,
    hold: Hold = None,
    dim: Dim = None,
    example: Example = None,
) -> None:
    """One decision in full: want, got, and what to do."""
    from fuse.commands.explain import why as run

    wanted = 1 if example is not None else 2
    if len(words) != wanted:
        raise typer.BadParameter("want a file and a rule, an op or an id" if wanted == 2 else "want one name")
    raise typer.Exit(
        run(Path(words[0]) if wanted == 2 else None, words[-1], example, chip, hold or (), dim or ())
    )


@app.command()
def report(
    path: Annotated[Path, typer.Argument(help="A report of `fuse optimize --report`.", metavar="R.json")],
    rule: Annotated[str | None, typer.Option("--rule", help="Only this rule or class.")] = None,
    outcome: Annotated[
        str, typer.Option("--outcome", help="Only these, with commas: fired, held, refused, near.")
    ] = "",
    at: Annotated[str | None, typer.Option("--at", help="Only decisions with this op.", metavar="OP")] = None,
    top: Annotated[int, typer.Option("--top", min=0, help="How many groups to list.")] = 5,
    every: Annotated[bool, typer.Option("--every", help="Each place, fired ones too.")] = False,
    form: Annotated[str, typer.Option("--form", help="text, concise, json or jsonl.")] = "text",
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write to a file.")] = None,
) -> None:
    """Show a saved report, whole or in part."""
    from fuse.commands.explain import show

    raise typer.Exit(show(path, form, rule, outcome, at, top, every, out))


Name = Annotated[str | None, typer.Argument(help="One of them, in full.")]


@app.command()
def rules(name: Name = None) -> None:
    """List the rules, or show what one needs and builds."""
    from fuse.commands.listing import rules as run

    raise typer.Exit(run(name))


@app.command()
def chips(name: Name = None) -> None:
    """List the chips, or show the kernels of one."""
    from fuse.commands.listing import chips as run

    raise typer.Exit(run(name))


@app.command()
def codes(code: Name = None) -> None:
    """List the codes, or show one's cause and cure."""
    from fuse.commands.listing import codes as run

    raise typer.Exit(run(code))


@app.command()
def steps(chip: Chip = None) -> None:
    """List the steps of a compile for a chip, in order."""
    from fuse.commands.listing import steps as run

    raise typer.Exit(run(chip))


@app.command()
def bisect(
    model: Annotated[Path | None, typer.Argument(help="An ONNX model.", metavar="MODEL.onnx")] = None,
    chip: Chip = None,
    evaluation: Annotated[
        str, typer.Option("--eval", help="What computes: definition, parts or onnxruntime.")
    ] = "definition",
    command: Annotated[
        str | None,
        typer.Option(
            "--command", help="Or a program: {model} is the file, exit code 0 means right.", metavar="CMD"
        ),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option("--tolerance", min=0, help="Largest relative difference allowed.")
    ] = None,
    hold: Hold = None,
    dim: Dim = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the values that are fed.")] = 0,
    example: Example = None,
) -> None:
    """Find the first step that changes what a model computes."""
    from fuse.commands.bisect import Request, run

    raise typer.Exit(
        run(Request(model, example, chip, evaluation, command, tolerance, hold or (), dim or (), seed))
    )


@app.command()
def ablate(
    model: Annotated[Path | None, typer.Argument(help="An ONNX model.", metavar="MODEL.onnx")] = None,
    chip: Chip = None,
    dim: Dim = None,
    example: Example = None,
) -> None:
    """Hold each step alone; show what is lost without it."""
    from fuse.commands.ablate import run

    raise typer.Exit(run(model, example, chip, dim or ()))


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="A report of `fuse optimize --report`.", metavar="A.json")],
    after: Annotated[Path, typer.Argument(help="Another one.", metavar="B.json")],
    fail_on: Annotated[
        str | None, typer.Option("--fail-on", help="Exit 1 where something is lost, refused, or any.")
    ] = None,
    form: Annotated[str, typer.Option("--form", help="text or md.")] = "text",
) -> None:
    """Show what changed from one report to another."""
    from fuse.commands.diff import run

    raise typer.Exit(run(before, after, fail_on, form))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command on the process's arguments or on these; always ends in SystemExit.

    Bad input is one line on standard error and exit code 2.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  open to the end
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    for name in ("SIGTERM", "SIGHUP"):
        _unwind_on(name)
    try:
        app(None if arguments is None else list(arguments), prog_name="fuse")
    except FuseError as error:
        _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        # Files are opened by name; what has none is the page on standard output.
        place = error.filename or "cannot write standard output"
        _fail(f"{place}: {(error.strerror or type(error).__name__).lower()}")


def _unwind_on(name: str) -> None:
    """End by an exception where a signal would end the process: files under way are then removed."""
    number = getattr(signal, name, None)
    if (
        number is not None
        and current_thread() is main_thread()
        and signal.getsignal(number) == signal.SIG_DFL
    ):
        signal.signal(number, lambda which, frame: sys.exit(128 + which))


def _fail(message: str) -> None:
    from fuse.commands.output import complain

    complain(message)
    sys.exit(2)


if __name__ == "__main__":
    main()
