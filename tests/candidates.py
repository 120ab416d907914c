"""Candidates made by hand: a class over operands of given types, in a graph that holds just them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from fuse.classes import CLASSES
from fuse.ir import Graph, Model, Op, Tensor, make_base
from fuse.shim import Candidate
from fuse.types import Type, parse_dim

MODEL = Model(name="m", sha256="", opsets={"": 23}, ir_version=10, nodes=0)


def type_of(text: str) -> Type:
    """`f32[B,4]` as a Type; `f32[*]` has no dims, `?` nothing."""
    found = re.fullmatch(r"(\w+|\?)(?:\[(.*)\])?", text)
    assert found, text
    dtype, dims = found.groups()
    if dims is None or dims == "*":
        return Type("" if dtype == "?" else dtype, None)
    sizes = tuple(int(d) if d.isdigit() else parse_dim(d) for d in dims.split(",") if d)
    return Type("" if dtype == "?" else dtype, sizes)


def constant(name: str, array: np.ndarray, dtype: str = "f32") -> Tensor:
    return Tensor(name, dtype, array.shape, array.nbytes, lambda: array)


def candidate(
    kind: str,
    operands: Mapping[str, str],
    attrs: Mapping[str, Any] | None = None,
    constants: Mapping[str, Tensor] | None = None,
    out: str = "?",
    ops: tuple[Op, ...] = (),
    more: Mapping[str, str] | None = None,
    types: Mapping[str, Type] | None = None,
) -> Candidate:
    """operands: operand (`weight.1`, `weight.2` where it stands for several) -> its type, or
    `= type` for a constant; a value is named as its operand. more: types of other values;
    types: types that cannot be written so."""
    inputs: list[str] = []
    for name in CLASSES[kind].operands:
        bare = name.removesuffix("*")
        many = [given for given in operands if given.startswith(f"{bare}.")]
        inputs += many if name.endswith("*") else [bare if bare in operands else ""]
    written = dict(operands) | dict(more or {})
    known = {name: type_of(text.removeprefix("= ")) for name, text in written.items()} | dict(types or {})
    held = {
        name: constant(name, np.ones([d for d in known[name].dims or () if isinstance(d, int)], np.float32))
        for name, text in operands.items()
        if text.startswith("= ")
    } | dict(constants or {})
    base = make_base(
        model=MODEL,
        prefix="",
        inputs=[v for v in inputs if v and v not in held],
        outputs=["y"],
        ops=ops,
        types=known | {"y": type_of(out)},
        contents={},
        constants=held,
    )
    op = Op(kind, tuple(inputs), ("y",), dict(attrs or {}))
    return Candidate(kind, op, Graph(base))
