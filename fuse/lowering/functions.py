"""Fused ops as ONNX local functions: one function for every structure, however often it occurs.

A function body cannot see initializers, so every constant that the parts read becomes an input:
then two layers of one structure share a function whatever their weights and numbers are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import onnx
from onnx import helper

from fuse.classes import CLASSES
from fuse.ir import Op
from fuse.lowering import dims
from fuse.types import FuseError

DOMAIN = "fuse"
DOMAIN_VERSION = 1
#: Local functions are part of the format from this version of the IR on.
IR_VERSION = 8

Labels = tuple[str, ...]


class Part(NamedTuple):
    """A leaf as its file has it: the op, its node, and the values the node reads by position."""

    op: Op
    node: onnx.NodeProto
    reads: tuple[str, ...]


class Call(NamedTuple):
    """A use of a function: its name and the value paths it reads ("" for an absent operand)."""

    function: str
    inputs: tuple[str, ...]


class _Line(NamedTuple):
    """A node of a body over labels: what makes two nodes the same."""

    kind: str
    attrs: bytes
    inputs: Labels
    outputs: Labels


class _Structure(NamedTuple):
    name: str
    inputs: Labels
    outputs: Labels
    lines: tuple[_Line, ...]


class Functions:
    """The functions of one model, by structure. opsets: the versions their bodies import."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = opsets
        self._names: dict[_Structure, str] = {}
        self._used: set[str] = set()
        self.protos: list[onnx.FunctionProto] = []

    def call(self, op: Op, parts: Sequence[Part]) -> Call:
        """The function that computes a fused op from its leaves, made if it is the first of its kind."""
        structure, inputs = _structure(op, parts)
        name = self._names.get(structure)
        if name is None:
            name = self._names[structure] = self._name(structure)
            self.protos.append(self._function(name, structure, parts))
        return Call(name, inputs)

    def _name(self, structure: _Structure) -> str:
        """The class and as much of the structure's digest as tells it from the ones before."""
        digest = hashlib.sha256(repr(structure).encode()).hexdigest()
        stem = re.sub(r"\W", "_", structure.name)
        name = next(n for length in range(4, 65) if (n := f"{stem}_{digest[:length]}") not in self._used)
        self._used.add(name)
        return name

    def _function(self, name: str, structure: _Structure, parts: Sequence[Part]) -> onnx.FunctionProto:
        nodes: list[onnx.NodeProto] = []
        domains: dict[str, None] = {"": None}
        labels = {label for line in structure.lines for label in line.outputs} | set(structure.inputs)
        shapes = dims.DimsWriter(lambda wanted: _free(wanted, labels))
        for line, part in zip(structure.lines, parts, strict=True):
            if line.kind == dims.KIND:
                nodes += shapes.expand(part.op._replace(name=""), line.inputs, line.outputs[0])
                continue
            domain = "" if part.node.domain == "ai.onnx" else part.node.domain
            domains[domain] = None
            node = onnx.NodeProto(op_type=part.node.op_type, domain=domain)
            node.input.extend(line.inputs)
            node.output.extend(line.outputs)
            node.attribute.extend(part.node.attribute)
            nodes.append(node)
        # onnxruntime runs a model that uses its own domain and does not import it, but no such function.
        opsets = [helper.make_opsetid(d, self._opsets.get(d, 1)) for d in domains]
        return helper.make_function(DOMAIN, name, structure.inputs, structure.outputs, nodes, opsets)


def _free(wanted: str, taken: set[str]) -> str:
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name


def _structure(op: Op, parts: Sequence[Part]) -> tuple[_Structure, tuple[str, ...]]:
    """What a fused op computes, free of the names of its values, and what its call reads."""
    inputs = stripped(op.inputs)
    formals = _operand_names(op.kind, len(inputs))
    labels: dict[str, str] = {"": ""}
    for value, formal in zip(inputs, formals, strict=True):
        labels.setdefault(value, formal)
    lines: list[_Line] = []
    locals_made = 0
    for part in parts:
        for value in part.reads:
            if value not in labels:
                labels[value] = f"c{len(inputs)}"
                inputs.append(value)
                formals.append(labels[value])
        for value in part.op.outputs:
            if value in labels and value:
                raise FuseError(f"{op.kind} {op.path} reads {value} before it is made")
            if value:
                labels[value] = f"t{locals_made}"
                locals_made += 1
        lines.append(_line(part, labels))
    outputs = tuple(labels[value] for value in op.outputs if value)
    return _Structure(op.kind, tuple(formals), outputs, tuple(lines)), tuple(inputs)


def _line(part: Part, labels: Mapping[str, str]) -> _Line:
    op = part.op
    reads = tuple([labels[value] for value in stripped(part.reads)])
    writes = tuple([labels[value] for value in op.outputs])
    attrs = b""
    if op.kind == dims.KIND:
        attrs = repr((op.attrs["dims"], op.attrs["homes"])).encode()
    elif op.attrs:
        attrs = b"".join(sorted([a.SerializeToString(deterministic=True) for a in part.node.attribute]))
    return _Line(op.kind, attrs, reads, writes)


def stripped(inputs: Sequence[str]) -> list[str]:
    """Inputs without the absent ones at the end: a trailing empty input crashes some runtimes."""
    kept = list(inputs)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _operand_names(kind: str, count: int) -> list[str]:
    """Names of a function's first inputs: the class's operands where their number is fixed."""
    operands = CLASSES[kind].operands if kind in CLASSES else ()
    if any(operand.endswith("*") for operand in operands):
        operands = ()
    return [operands[i] if i < len(operands) else f"c{i}" for i in range(count)]
