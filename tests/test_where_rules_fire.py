"""The page of where rules fire: each rule has a place; the counts of the example exports stand."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import where_rules_fire
from where_rules_fire import PAGE, SHAPES, fired, main, nowhere, over, own_graphs, page, read

from fuse.engine.compiler import rule_names

ROOT = Path(__file__).parent.parent


def test_every_rule_is_on_the_page() -> None:
    """In table order, each on a real export, or for one that a test has the shape of."""
    text = PAGE.read_text()
    sections = [part.partition("\n")[0] for part in text.split("\n## ")[1:]]
    assert sections == list(rule_names()), "write docs/where_rules_fire.md again"
    assert nowhere(text) == []


@pytest.mark.parametrize("rule", SHAPES)
def test_the_test_of_a_shape_is_there_and_fires_the_rule(rule: str) -> None:
    file, _, name = SHAPES[rule].test.partition("::")
    source = (ROOT / file).read_text()
    (function,) = [
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    assert f'"{rule}"' in ast.unparse(function).replace("'", '"')


def test_the_page_is_of_real_exports_and_says_how_to_make_it() -> None:
    text = PAGE.read_text()
    assert "python -m tests.where_rules_fire" in text
    assert "`exp/llama__ts17k_tf5`" in text


def test_a_page_of_the_examples() -> None:
    """The llama export: both exporters give the same counts of what its layers are."""
    counts = over(where_rules_fire.EXAMPLES)
    assert set(counts) == {"bert", "llama", "llama-dynamo"}
    for rule, number in {"rms_norm": 5, "rope": 4, "attention": 2, "gated_act": 2, "add_norm": 4}.items():
        assert counts["llama"][rule] == counts["llama-dynamo"][rule] == number
    for rule, number in {"gelu": 2, "attention": 2, "embed_norm": 1, "matmul_bias": 12}.items():
        assert counts["bert"][rule] == number
    made = page(counts, own_graphs(), {})
    assert "Exports: `llama-dynamo` 5, `llama` 5." in made


def test_exports_beside_those_of_the_page() -> None:
    """What a contributor without its exports adds: every count that the page has stays."""
    text = PAGE.read_text()
    exports, elsewhere = read(text)
    assert page(exports, own_graphs(), elsewhere) == text
    more = main(where_rules_fire.EXAMPLES, text)
    assert read(more)[0] == {**exports, **over(where_rules_fire.EXAMPLES)}


def test_a_model_that_does_not_load_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    assert over(tmp_path) == {}
    assert capsys.readouterr().err.startswith("broken: ")


def test_a_rule_fires_on_the_graph_of_its_name() -> None:
    """Every graph of tests/graphs that has the name of a rule fires it."""
    counts = own_graphs()
    assert [name for name in rule_names() if name in counts and not counts[name].get(name)] == []


def test_counts_are_of_firings_only() -> None:
    llama = str(where_rules_fire.EXAMPLES / "llama.onnx")
    assert fired(llama, "none") == {}
