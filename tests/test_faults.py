"""Faults planted in models that fuse: nothing wrong is fused, and the report says what is wrong, and where.

The whole corpus is scored by `python -m tests.faults.score FOLDER`; this is a sample that takes seconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import graph_files
import onnx
import pytest
from faults.judge import Clean, Outcome, changes, clean, clean_model, harmless, judge, plants
from faults.kinds import BY_CLASS, READERS

from fuse.commands.examples import EXAMPLES, find

#: Small graphs of one rule each, that every kind of fault is planted in.
GRAPHS = (
    "rms_norm", "layer_norm", "l2_norm", "gelu", "fast_gelu", "quick_gelu", "silu", "softcap", "rope_half",
    "attention", "attention_nan_guard", "attention_softcap", "matmul_bias", "matmul_residual",
    "matmul_bias_act", "add_norm", "gated_act", "rope_kv_append", "qk_norm_rope_kv_append",
    "rms_norm_cast_sandwich", "attention_grouped", "qk_norm", "conv_act", "conv_act_residual", "conv_affine",
    "gated_norm", "attn_output_gate", "diffusion_block",
)  # fmt: skip
#: Faults and changes taken from each real export.
SAMPLE = 45


@cache
def model(name: str) -> Clean:
    if name in EXAMPLES:
        return clean(find(name))
    return clean_model(onnx.ModelProto.FromString(graph_files.read(name)), name)


def sample(name: str, items: list[tuple[str, object, object]]) -> list[tuple[str, object, object]]:
    """All of a small graph; of an export one place of each kind, and of those so many."""
    if name not in EXAMPLES:
        return items
    rng = random.Random(name)
    rng.shuffle(items)
    once = list({kind: item for item in items if (kind := item[0])}.values())
    return once[:SAMPLE]


@cache
def outcomes(name: str) -> tuple[Outcome, ...]:
    found = []
    for number, (kind, place, plant) in enumerate(sample(name, list(plants(model(name))))):
        one = judge(model(name), kind, place, plant, check=name not in EXAMPLES or number % 4 == 0)  # type: ignore[arg-type]
        if one is not None:
            found.append(one)
    return tuple(found)


@pytest.mark.parametrize("name", [*GRAPHS, *EXAMPLES])
def test_nothing_wrong_is_fused(name: str) -> None:
    wrong = [
        (o.kind, o.place, o.wrong) for o in outcomes(name) if o.wrong and not o.wrong.startswith("not run")
    ]
    assert outcomes(name)
    assert wrong == []


def test_near_misses_are_true() -> None:
    """Of the faults that are reported, code and place are right in 95 of 100; most are reported."""
    everything = [o for name in (*GRAPHS, *EXAMPLES) for o in outcomes(name)]
    reported = [o for o in everything if o.reported]
    false = [(o.model, o.kind, o.misses) for o in reported if not o.right]
    assert len(false) <= 0.05 * len(reported), false
    silent = [(o.model, o.kind) for o in everything if not o.reported]
    assert len(silent) <= 0.15 * len(everything), silent
    assert len({o.kind.split(" value ")[0] for o in everything}) >= 100


def test_one_fault_is_told_once() -> None:
    everything = [o for name in (*GRAPHS, *EXAMPLES) for o in outcomes(name)]
    told = sum(len(o.misses) for o in everything)
    assert told <= 1.03 * sum(o.reported for o in everything)


@pytest.mark.parametrize("name", [*GRAPHS, *EXAMPLES])
def test_harmless_changes_still_fire(name: str) -> None:
    """Operands commuted, a square as a product, axes from the front, rows [1, 1, N], constants as nodes."""
    done = 0
    for number, (kind, place, change) in enumerate(sample(name, list(changes(model(name))))):
        check = name not in EXAMPLES or number % 8 == 0
        one = harmless(model(name), kind, place, change, check)  # type: ignore[arg-type]
        if one is not None:
            done += 1
            assert one.right, (one.kind, one.place, one.wrong, one.misses)
    assert done > 3


@pytest.mark.parametrize("name", [*GRAPHS, *EXAMPLES])
def test_a_clean_model_shows_none(name: str) -> None:
    assert model(name).misses == frozenset()


def test_there_are_kinds_of_faults_for_every_rule_that_writes_out_primitives() -> None:
    kinds: set[Callable[..., object]] = {plant for faults in BY_CLASS.values() for plant in faults.values()}
    assert len(kinds) + len(READERS) > 100
