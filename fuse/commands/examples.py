"""Small real exports with random weights that come with fuse, to try it without a model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fuse.types import FuseError

HERE = Path(__file__).parent.parent / "examples"


class Example(NamedTuple):
    file: str
    about: str


EXAMPLES: Mapping[str, Example] = {
    "llama": Example(
        "llama.onnx", "a two-layer Llama with a cache, by torch.onnx's tracing exporter, opset 17"
    ),
    "llama-dynamo": Example(
        "llama-dynamo.onnx", "a two-layer Llama, by torch.onnx's dynamo exporter, opset 18"
    ),
    "bert": Example("bert.onnx", "a two-layer BERT encoder, by torch.onnx's dynamo exporter, opset 18"),
}


def find(name: str) -> Path:
    """The file of an example. Raises FuseError that lists the names for any other."""
    if name not in EXAMPLES:
        near = difflib.get_close_matches(name, EXAMPLES, n=1, cutoff=0.5)
        meant = f", did you mean {near[0]}" if near else ""
        raise FuseError(f"no example {name}{meant}; there are {', '.join(EXAMPLES)}")
    return HERE / EXAMPLES[name].file
