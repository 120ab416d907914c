"""Find, read, merge and check chip files."""

from __future__ import annotations

import difflib
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from chips.constraints import NEEDS, given
from chips.lines import Document, Place, Where, read
from chips.schema import ChipFile, Entry, Limits, OwnRule
from fuse.classes import CLASSES
from fuse.rules.landings import ROW_WRITERS
from fuse.rules.placements import READERS
from fuse.rules.table import RULES
from fuse.types import FuseError

#: Classes and operators that may read or write in place.
PLACEABLE = READERS | ROW_WRITERS
#: Classes whose search keeps a chip's bounds.
CAPPED = tuple(sorted(name for rule in RULES if rule.capped for name in rule.builds_classes))
HERE = Path(__file__).parent
#: What pydantic finds -> what is said of it, where its own words are those of Python.
_SAID = {
    "missing": "missing",
    "model_type": "want a mapping of keys",
    "dict_type": "want a mapping of keys",
    "tuple_type": "want a list",
    "too_short": "want at least 1 entry",
}
#: How deep `extends` may go.
DEEPEST = 8


class Loaded(NamedTuple):
    """A chip file with its bases merged in. sha256: of the file and its bases, file first."""

    spec: ChipFile
    sha256: str
    places: dict[Where, Place]


def load_file(name: str | Path) -> Loaded:
    """The chip of a shipped name or of the YAML file at a path.

    Raises FuseError: an unknown name with the nearest ones, a bad file with file and line.
    """
    path = _find(name)
    document, texts = _merged(path, ())
    digest = hashlib.sha256()
    for text in texts:
        digest.update(hashlib.sha256(text).digest())
    loaded = Loaded(_validate(document, path), digest.hexdigest(), dict(document.places))
    _check_meaning(loaded, path)
    if loaded.spec.abstract:
        raise FuseError(f"{path.name}: {loaded.spec.name} is a base of other chips, not a chip")
    return loaded


@cache
def names() -> tuple[str, ...]:
    """The shipped chips, sorted; bases are not chips."""
    return tuple(sorted(p.stem for p in HERE.glob("*.yaml") if read(p).data.get("abstract") is not True))


def nearest(name: str, known: tuple[str, ...]) -> str:
    """The known names most like a wrong one, as the end of a sentence."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.3) or sorted(known)[:3]
    return f"nearest: {', '.join(close)}"


def _find(name: str | Path) -> Path:
    text = str(name)
    if isinstance(name, Path) or text.endswith((".yaml", ".yml")) or "/" in text:
        path = Path(name)
        if not os.path.isfile(path):
            raise FuseError(f"no chip file {text}")
        return path
    if text not in names():
        raise FuseError(f"no chip {text}; {nearest(text, names())}")
    return HERE / f"{text}.yaml"


def _merged(path: Path, below: tuple[Path, ...]) -> tuple[Document, list[bytes]]:
    """The file's content over that of its bases, and the bytes of each, the file's own first."""
    document = read(path)
    texts = [path.read_bytes()]
    base = document.data.get("extends")
    if base is None:
        return document, texts
    place = document.places[("extends",)]
    if not isinstance(base, str):
        raise FuseError(f"{place}: extends: want the name of one chip file, got {base}")
    found = next((p for p in (path.parent / f"{base}.yaml", HERE / f"{base}.yaml") if p.is_file()), None)
    if found is None:
        known = tuple(p.stem for folder in (path.parent, HERE) for p in folder.glob("*.yaml"))
        raise FuseError(f"{place}: extends: no chip file {base}; {nearest(base, known)}")
    above = (*below, path.resolve())
    if found.resolve() in above or len(above) > DEEPEST:
        raise FuseError(f"{place}: extends: goes in a circle through {base}")
    under, base_texts = _merged(found, above)
    places = dict(under.places)
    inherited = {
        key: value for key, value in under.data.items() if key not in ("abstract", "extends", "name")
    }
    return Document(_overlay(inherited, document, (), places), places), texts + base_texts


def _overlay(base: Any, over: Document, where: Where, places: dict[Where, Place]) -> dict[str, Any]:
    """Mappings are merged key by key, an empty value takes its key out, all else is replaced."""
    top: Any = over.data
    for key in where:
        top = top[key]
    merged = dict(base)
    for key, value in top.items():
        at = (*where, key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _overlay(merged[key], over, at, places)
        else:
            merged[key] = value
        places.update((w, p) for w, p in over.places.items() if w[: len(at)] == at)
    return merged


def _place(places: dict[Where, Place], where: Where, path: Path) -> Place:
    """The line of the deepest part of a location that stands in a file."""
    for end in range(len(where), 0, -1):
        if where[:end] in places:
            return places[where[:end]]
    return places.get((), Place(path.name, 1))


def _validate(document: Document, path: Path) -> ChipFile:
    try:
        return ChipFile.model_validate(document.data)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = problem["loc"]
        keys = ".".join(str(key) for key in where)
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            text = f"unknown key; {nearest(str(where[-1]), _siblings(where))}"
        else:
            text = _SAID.get(problem["type"], f"{text[:1].lower()}{text[1:]}")
        place = _place(dict(document.places), where, path)
        raise FuseError(f"{place}: {keys or 'chip'}: {text}") from None


def _siblings(where: Where) -> tuple[str, ...]:
    """The keys that the schema has where an unknown one stands."""
    if where[-2:-1] in (("limits",), ("when",)):
        return tuple(Limits.model_fields)
    return tuple(ChipFile.model_fields if len(where) == 1 else Entry.model_fields)


def _check_meaning(loaded: Loaded, path: Path) -> None:
    """Every class named exists, and has what each of its limits asks about."""
    spec = loaded.spec
    for section, table in (("classes", spec.classes), ("prefer", spec.prefer)):
        for name in table:
            if name not in CLASSES:
                place = _place(loaded.places, (section, name), path)
                raise FuseError(f"{place}: unknown class {name}; {nearest(name, tuple(CLASSES))}")
    for name, entry in spec.classes.items():
        if entry.caps and name not in CAPPED:
            place = _place(loaded.places, ("classes", name, "caps"), path)
            raise FuseError(f"{place}: no search for {name} keeps caps; those for {', '.join(CAPPED)} do")
        parts: list[tuple[Where, Limits]] = [(("limits",), entry.limits)]
        for i, case in enumerate(entry.cases):
            parts += [(("cases", i, "when"), case.when), (("cases", i, "limits"), case.limits)]
        for where, limits in parts:
            _check_limits(name, limits, ("classes", name, *where), loaded, path)
    for name in spec.in_place:
        if name not in PLACEABLE:
            place = _place(loaded.places, ("in_place", name), path)
            raise FuseError(f"{place}: nothing places {name}; {nearest(name, tuple(sorted(PLACEABLE)))}")
    for number, rule in enumerate(spec.rules):
        _check_rule(number, rule, loaded, path)
    for name, preference in spec.prefer.items():
        _check_limits(name, preference.when, ("prefer", name, "when"), loaded, path)


def _check_rule(number: int, rule: OwnRule, loaded: Loaded, path: Path) -> None:
    """A chip's own rule stands beside a shared rule and sets kernel attributes that its class has."""
    from fuse.engine.compiler import rule_names

    where: Where = ("rules", number)
    shared = rule_names()

    def fail(key: str, text: str) -> FuseError:
        return FuseError(f"{_place(loaded.places, (*where, key), path)}: {text}")

    if rule.name in (*shared, *(other.name for other in loaded.spec.rules[:number])):
        raise fail("name", f"{rule.name} is the name of another rule")
    if rule.beside and rule.beside not in shared:
        raise fail("beside", f"no rule {rule.beside}; {nearest(rule.beside, shared)}")
    if rule.builds not in CLASSES:
        raise fail("class", f"unknown class {rule.builds}; {nearest(rule.builds, tuple(CLASSES))}")
    attrs = CLASSES[rule.builds].kernel_attrs
    for name, value in rule.sets.items():
        if name not in attrs:
            known = f"it has {', '.join(attrs)}" if attrs else "it has none"
            raise fail("set", f"{rule.builds} has no kernel attribute {name}; {known}")
        if type(value) is not type(attrs[name].default):
            raise fail("set", f"{name}: want {type(attrs[name].default).__name__}, got {value}")
    _check_limits(rule.builds, rule.when, (*where, "when"), loaded, path)


def _check_limits(name: str, limits: Limits, where: Where, loaded: Loaded, path: Path) -> None:
    declared = CLASSES[name]
    operands = {operand.removesuffix("*") for operand in declared.operands}
    for key, want in given(limits).items():
        place = _place(loaded.places, (*where, key), path)
        if not NEEDS[key] <= operands | declared.attrs.keys():
            raise FuseError(f"{place}: limit {key} says nothing about {name}")
        if key in ("rows", "constant"):
            for operand in want:
                if operand not in operands:
                    raise FuseError(f"{place}: {name} has no operand {operand}")
