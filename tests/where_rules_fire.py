"""Where each rule fires: on the example exports, on the tests' own graphs, on a folder of models.

    python -m tests.where_rules_fire FOLDER > docs/where_rules_fire.md

writes the page again (FOLDER holds real exports, at any depth); without FOLDER it counts what comes
with the project. A model that does not load is named on stderr and left out.

    python -m tests.where_rules_fire --keep FOLDER

is for who has other exports than the page: it writes the page with these beside those it has.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import onnx

import chips
import fuse
from fuse.engine.compiler import rule_names
from fuse.types import FuseError

EXAMPLES = Path(fuse.__file__).parent / "examples"
GRAPHS = Path(__file__).parent / "graphs"
PAGE = Path(__file__).parent.parent / "docs" / "where_rules_fire.md"
_COUNT = re.compile(r"`([^`]+)` (\d+)")

#: Model -> rule -> how often it fired there.
Fired = Mapping[str, Mapping[str, int]]


class Export(NamedTuple):
    """What a rule is for that no export at hand has: the export, and a test of its shape (file::test)."""

    export: str
    test: str


#: The rules that fire on no export of the page's folder.
SHAPES: Mapping[str, Export] = {
    "mish": Export("YOLOv4", "tests/test_absent_exports.py::test_yolov4_stage"),
    "ada_norm": Export("DiT, PixArt, Stable Diffusion 3", "tests/test_absent_exports.py::test_dit_blocks"),
    "gated_residual": Export(
        "DiT, PixArt, Stable Diffusion 3", "tests/test_absent_exports.py::test_dit_blocks"
    ),
    "values_in_keys": Export(
        "DeepSeek V2 and V3 with its up projections moved to queries and results",
        "tests/test_absent_exports.py::test_deepseek_attention_over_latent_rows",
    ),
    "advance": Export(
        "a decoder whose forward ends in its greedy choice, logits[:, -1].argmax(-1)",
        "tests/test_absent_exports.py::test_decoder_with_its_greedy_choice",
    ),
}
#: What takes in the places of smaller classes: held, those fire on their own.
LARGER = ("moe", "moe_shared", "moe_block", "attention_block", "mlp_block", "transformer_layer")


def fired(model: str | onnx.ModelProto, chip: str = "any", held: tuple[str, ...] = ()) -> dict[str, int]:
    """Rule -> how often it fires on a model."""
    found = fuse.optimize(fuse.load(model), chips.load(chip), held)
    return Counter(record.rule for record in found.records if record.outcome == "fired")


def over(folder: Path, held: tuple[str, ...] = ()) -> dict[str, dict[str, int]]:
    """The same for every model of a folder, by its path in it without the suffix."""
    counts = {}
    for path in sorted(folder.rglob("*.onnx")):
        name = path.relative_to(folder).with_suffix("").as_posix()
        try:
            counts[name] = fired(str(path), held=held)
        except FuseError as error:
            print(f"{name}: {error}", file=sys.stderr)
    return counts


def own_graphs() -> dict[str, dict[str, int]]:
    """The same for the graphs of tests/graphs."""
    import graph_files

    return {name: fired(onnx.ModelProto.FromString(graph_files.read(name))) for name in graph_files.NAMES}


def page(exports: Fired, own: Fired, elsewhere: Fired) -> str:
    """The page, as Markdown. elsewhere: the same exports, larger classes held."""
    return "\n".join(_lines(exports, own, elsewhere)) + "\n"


def _lines(exports: Fired, own: Fired, elsewhere: Fired) -> Iterator[str]:
    yield "# Where each rule fires"
    yield ""
    counted = f"{len(exports)} real exports and the {len(own)} graphs of `tests/graphs`"
    yield f"Over {counted}, on a chip that links every class."
    yield "Written by `python -m tests.where_rules_fire FOLDER > docs/where_rules_fire.md`."
    yield ""
    yield "| rule | firings | exports | graphs of the tests |"
    yield "|---|---:|---:|---:|"
    for rule in rule_names():
        total = sum(counts.get(rule, 0) for counts in exports.values())
        yield f"| [{rule}](#{rule}) | {total} | {_having(exports, rule)} | {_having(own, rule)} |"
    for rule in rule_names():
        yield from ("", f"## {rule}", "", _on_exports(rule, exports, elsewhere))
        if _having(own, rule):
            yield from ("", f"Graphs of the tests: {_listed(own, rule)}.")


def read(page: str) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """The exports of a page and what fires on them, and the same where larger classes are held."""
    exports: dict[str, dict[str, int]] = {}
    elsewhere: dict[str, dict[str, int]] = {}
    for section in page.split("\n## ")[1:]:
        rule, _, rest = section.partition("\n")
        for line in rest.splitlines():
            table = exports if line.startswith("Exports: ") else elsewhere
            if table is exports or line.startswith("Where no larger class"):
                for name, number in _COUNT.findall(line):
                    table.setdefault(name, {})[rule] = int(number)
    return dict(sorted(exports.items())), elsewhere


def _on_exports(rule: str, exports: Fired, elsewhere: Fired) -> str:
    if _having(exports, rule):
        return f"Exports: {_listed(exports, rule)}."
    if _having(elsewhere, rule):
        return (
            f"Where no larger class takes the place (blocks and mixtures held): {_listed(elsewhere, rule)}."
        )
    shape = SHAPES.get(rule)
    return f"For {shape.export}; its shape: `{shape.test}`." if shape else "On no export."


def _having(table: Fired, rule: str) -> int:
    return sum(rule in counts for counts in table.values())


def _listed(table: Fired, rule: str) -> str:
    return ", ".join(f"`{name}` {counts[rule]}" for name, counts in table.items() if rule in counts)


def nowhere(page: str) -> list[str]:
    """The rules that a page has on no export, and for none, in its order."""
    sections = page.split("\n## ")[1:]
    return [section.partition("\n")[0] for section in sections if "\nOn no export." in section]


def main(folder: Path, before: str = "") -> str:
    """The page of a folder's exports, beside those of the page before."""
    exports, elsewhere = read(before)
    return page({**exports, **over(folder)}, own_graphs(), {**elsewhere, **over(folder, LARGER)})


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent))
    words = [word for word in sys.argv[1:] if word != "--keep"]
    counted = Path(words[0]) if words else EXAMPLES
    if "--keep" in sys.argv:
        PAGE.write_text(main(counted, PAGE.read_text()))
    else:
        print(main(counted), end="")
