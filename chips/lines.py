"""YAML read with the line of every key, so that an error can say where it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fuse.types import FuseError

#: How many values a file may have, each as often as its aliases repeat it: many times the largest here,
#: and few enough that a file of nested aliases is refused at once.
MOST_VALUES = 100_000
#: The keys and list positions from the top of a file down to a value.
Where = tuple[str | int, ...]


class Place(NamedTuple):
    """A line of a file, counted from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Document(NamedTuple):
    """A file's content as plain data, and where each part of it stands."""

    data: dict[str, Any]
    places: Mapping[Where, Place]


def read(path: Path) -> Document:
    """Read one YAML file whose top is a mapping.

    Raises FuseError, with file and line, for what is not YAML, for a key given twice, for more values than
    any chip has and for a top that is not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FuseError(f"{path.name}: not a text file in utf-8") from None
    except OSError as error:
        raise FuseError(f"{path.name}: {(error.strerror or 'cannot be read').lower()}") from None
    places: dict[Where, Place] = {}
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        data = None if node is None else _plain(node, (), path.name, places, loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise FuseError(f"{path.name}:{line}: not yaml: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise FuseError(f"{path.name}:{line}: not yaml: {error.reason}") from None
    except RecursionError:
        raise FuseError(f"{path.name}: nested too deep, or in itself") from None
    if not isinstance(data, dict):
        raise FuseError(f"{path.name}:1: want a mapping of keys at the top")
    return Document(data, places)


def _plain(
    node: yaml.Node, where: Where, file: str, places: dict[Where, Place], loader: yaml.SafeLoader
) -> Any:
    """The node as dicts, lists and scalars; writes down the line of each part."""
    here = Place(file, node.start_mark.line + 1)
    places.setdefault(where, here)
    if len(places) > MOST_VALUES:
        raise FuseError(f"{here}: more than {MOST_VALUES:,} values")
    if isinstance(node, yaml.MappingNode):
        table: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            place = Place(file, key_node.start_mark.line + 1)
            if not isinstance(key_node, yaml.ScalarNode):
                raise FuseError(f"{place}: a key is not a plain name")
            if key in table:
                raise FuseError(f"{place}: key given twice: {key}")
            places[(*where, key)] = place
            table[key] = _plain(value_node, (*where, key), file, places, loader)
        return table
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*where, i), file, places, loader) for i, item in enumerate(node.value)]
    try:
        return loader.construct_object(node)
    except (ValueError, LookupError, AttributeError):  # text that does not fit its tag
        kind = node.tag.rpartition(":")[2]
        raise FuseError(f"{here}: not yaml: {node.value[:20]!r} cannot be read as {kind}") from None
