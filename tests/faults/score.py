"""Plants every kind of fault in every model of a folder and prints how true the near misses are.

python -m tests.faults.score FOLDER [--only TEXT] [--kind TEXT] [--places 1] [--check] [--harmless] [-v]
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .judge import Clean, Outcome, changes, clean, harmless, judge, plants


def feeds_beside(path: Path) -> dict[str, np.ndarray] | None:
    """The `in:NAME` arrays of an .npz beside a model, if there is one."""
    beside = path.with_suffix(".npz")
    if not beside.exists():
        return None
    with np.load(beside) as data:
        return {key[3:]: data[key] for key in data if key.startswith("in:")}


def sampled(model: Clean, places: int, seed: int) -> Iterator[tuple[str, object, object]]:
    """At most so many places of each kind, chosen by a seed."""
    by_kind: dict[str, list[tuple[str, object, object]]] = defaultdict(list)
    for item in plants(model):
        by_kind[item[0]].append(item)
    rng = random.Random(seed)
    for items in by_kind.values():
        yield from rng.sample(items, min(places, len(items)))


def score(folder: Path, options: argparse.Namespace) -> int:
    outcomes: list[Outcome] = []
    clean_misses = clean_ops = 0
    for path in sorted(folder.rglob("*.onnx")):
        if options.only and options.only not in str(path):
            continue
        model = clean(path, feeds_beside(path))
        clean_misses += len(model.misses)
        clean_ops += len(model.optimized.before.slots)
        found = _harmless(model, options) if options.harmless else _faults(model, options)
        outcomes += found
    return report(outcomes, clean_misses, clean_ops, options)


def _faults(model: Clean, options: argparse.Namespace) -> list[Outcome]:
    found = []
    for name, place, plant in sampled(model, options.places, options.seed):
        if options.kind and options.kind not in name:
            continue
        outcome = judge(model, name, place, plant, options.check)
        if outcome is not None:
            found.append(outcome)
            _say(outcome, options)
    return found


def _harmless(model: Clean, options: argparse.Namespace) -> list[Outcome]:
    by_kind: dict[str, list[object]] = defaultdict(list)
    for item in changes(model):
        by_kind[item[0]].append(item)
    found = []
    rng = random.Random(options.seed)
    for items in by_kind.values():
        for name, place, change in rng.sample(items, min(options.places, len(items))):
            if options.kind and options.kind not in name:
                continue
            outcome = harmless(model, name, place, change, options.check)
            if outcome is not None:
                found.append(outcome)
                _say(outcome, options)
    return found


def _say(outcome: Outcome, options: argparse.Namespace) -> None:
    fine = outcome.right if options.harmless else outcome.right and len(outcome.misses) == 1
    if outcome.wrong or (options.verbose and not fine and (outcome.reported or options.silent)):
        print(f"{outcome.model} | {outcome.kind} | {outcome.place} | {outcome.wrong}")
        for miss in outcome.misses:
            print("      said ", *miss)
        if outcome.answers is not None:
            print("      truth", sorted(outcome.answers.rules), sorted(outcome.answers.answers))


def report(outcomes: list[Outcome], clean_misses: int, clean_ops: int, options: argparse.Namespace) -> int:
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_kind[outcome.kind.split(" value ")[0] + (" value" if " value " in outcome.kind else "")].append(
            outcome
        )
    for kind, found in sorted(by_kind.items()):
        reported = [o for o in found if o.reported]
        right = [o for o in reported if o.right]
        flag = "" if len(right) == len(found) else "  <" if len(right) == len(reported) else "  <<"
        print(f"{len(found):5} planted {len(reported):5} reported {len(right):5} right  {kind}{flag}")
    reported = [o for o in outcomes if o.reported]
    right = [o for o in reported if o.right]
    said = sum(len(o.misses) for o in outcomes)
    wrong = [o for o in outcomes if o.wrong and not o.wrong.startswith("not run")]
    print(
        f"{len(outcomes)} planted, {len(reported)} reported, {len(right)} right"
        f" ({100 * len(right) / max(1, len(reported)):.1f} %), {said} near misses in all, {len(wrong)} wrong;"
        f" clean: {clean_misses} near misses in {clean_ops} operators"
    )
    return len(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="models whose path holds this")
    parser.add_argument("--kind", default="", help="kinds whose name holds this")
    parser.add_argument("--places", type=int, default=1, help="places of each kind in each model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="compare values too")
    parser.add_argument("--harmless", action="store_true", help="harmless changes instead of faults")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what was reported wrongly")
    parser.add_argument("--silent", action="store_true", help="with -v: also what was not reported")
    return min(1, score(parser.parse_args().folder, parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(main())
