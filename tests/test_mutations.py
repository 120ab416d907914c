"""Models with one thing changed at random: what fuses computes what the changed model computes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import graph_files
import onnx
import pytest
from faults.draft import Draft
from faults.judge import Clean, clean_model, compiled, values_differ
from faults.mutations import MUTATIONS

from fuse.types import FuseError

#: Changes planted in each small graph.
CHANGES = 8


def mutated(model: Clean, rng: random.Random) -> Iterator[tuple[str, Draft]]:
    """What was changed, and the model with it; some changes do not apply where they fall."""
    for _ in range(6 * CHANGES):
        place = rng.choice(model.places)
        op = rng.choice(place.ops)
        draft = Draft.of(model.model)
        try:
            done = rng.choice(MUTATIONS)(draft, place, op, rng)
        except LookupError:
            continue
        if done:
            yield f"{done} at {op.outputs[0]}", draft


def outcome(model: Clean, draft: Draft) -> str:
    """Why what is fused is not the function of the model; "" where it is, "-" where it is no model."""
    try:
        graph, optimized = compiled(draft)
    except FuseError:
        return "-"
    wrong = values_differ(graph, optimized, {**model.feeds, **draft.feeds})
    return "-" if wrong.startswith("not run") else wrong


@pytest.mark.parametrize("name", graph_files.NAMES)
def test_nothing_wrong_is_fused(name: str) -> None:
    model = clean_model(onnx.ModelProto.FromString(graph_files.read(name)), name)
    if not model.places:
        return
    rng, ran = random.Random(name), 0
    for what, draft in mutated(model, rng):
        found = outcome(model, draft)
        assert found in ("", "-"), (what, found)
        ran += not found
        if ran == CHANGES:
            break
    assert ran >= CHANGES // 2
