"""Why it did not fuse: the closed set of codes, each with its cause and what to change.

Two families have a member for each named condition: `guard:<name>` (the guards of the rules) and
`chip:<name>` (the constraints of the chips); the sentence of a member is that condition's own.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import NamedTuple

from fuse.types import FuseError


class Code(NamedTuple):
    """One code.

    cause: in plain words. at: what the place in the report names. change: what to change in the
    model or in the export call. want, got: an example, empty where the cause says it all. hint: one
    short line for the report, empty where nothing general helps.
    """

    code: str
    cause: str
    at: str
    change: str
    want: str
    got: str
    hint: str = ""


_TABLE = (
    Code(
        "op",
        "another operator stands where the pattern wants one",
        "the operator that stands there",
        "If both compute the same, use the usual spelling in the model's source, or export with "
        "another opset: decompositions differ from one opset to the next. If they do not, the "
        "place is another function, and leaving it alone is right.",
        "ReduceMean",
        "ReduceMax",
        "spell it the usual way in the model, or export with another opset",
    ),
    Code(
        "attribute",
        "the right operator has another attribute or axis, also where the axis is an input",
        "that operator",
        "Reduce and normalize over the last axis and keep the reduced axis (dim=-1, keepdim=True). "
        "Where the axis really is another one, a transpose before and after costs two copies and "
        "is seldom worth it.",
        "axes=-1",
        "axes=1",
        "work on the last axis and keep reduced axes (dim=-1, keepdim=True)",
    ),
    Code(
        "operand",
        "an operand is not what the pattern wants: not a constant, another number, rank, type or shape",
        "the operand, or the operator that takes it",
        "A weight, a scale or an epsilon must be known when the model loads. Export with parameters "
        "as initializers and not as inputs (export_params=True, keep_initializers_as_inputs=False); "
        "an initializer that is a graph input too can be overridden, so it is no constant. Where "
        "the number differs, the place is another function.",
        "eps: a constant of one value",
        "a value that changes at run time",
        "export weights and scalars as constants, not as inputs",
    ),
    Code(
        "same_value",
        "two places of the pattern must be one value, and are two",
        "the operator whose operand differs",
        "Compute the shared value once and use it twice. If an exporter repeated the computation, "
        "let it eliminate common subexpressions, or take the value from one variable in the source.",
        "x",
        "y",
        "compute the shared value once in the model and use it twice",
    ),
    Code(
        "arity",
        "an operator has more or fewer operands or outputs than the pattern has",
        "that operator",
        "Drop outputs that nobody reads (the mask of a dropout, running statistics): export in "
        "inference mode (model.eval(), training=TrainingMode.EVAL).",
        "2 operands",
        "3 operands",
        "export in inference mode, without outputs that nobody reads",
    ),
    Code(
        "read_elsewhere",
        "a value inside the match is read outside it, so it must be written anyway",
        "that value, or its operator; got names the reader",
        "Let the outside reader take an input or a result of the pattern instead, or compute the "
        "value a second time for it. Where the value is a residual sum, a class with two outputs "
        "exists and fires by itself (add_norm).",
        "read only inside the match",
        "also read by /l/Add_7",
        "let the other reader take an input or the result of the pattern",
    ),
    Code(
        "graph_output",
        "a value inside the match is an output of the model",
        "that value",
        "Drop the output if nobody needs it (output_hidden_states=False, output_attentions=False), "
        "or compute it outside the pattern before exporting.",
        "read only inside the match",
        "also read by the graph output 't27'",
        "drop the output, or compute it apart before exporting",
    ),
    Code(
        "captured",
        "a value inside the match is read by the body of an If, Loop or Scan",
        "that value; got names the operator that owns the body",
        "Pass the body what it needs as an input of the loop, or trace the model with the branch "
        "already chosen, so that the body is inlined.",
        "read only inside the match",
        "captured by the body of /decoder/If_0",
        "choose the branch when exporting, so that its body is inlined",
    ),
    Code(
        "order",
        "the fused operator has no slot after all its inputs and before all readers of its results",
        "the input that is made too late",
        "Make the late input earlier: it depends on something that reads the match's other result, "
        "or the model interleaves two chains. Computing masks, positions and tables once, before "
        "the first layer, is the usual cure.",
        "made before /l/Add_7 reads the result",
        "made after it",
        "compute masks, positions and tables before the first layer",
    ),
    Code(
        "written_between",
        "something between the operators of the match writes what one of them reads",
        "the writer",
        "Read the buffer before it is written, or write to another one: a cache that is updated "
        "between a product and its reader keeps them apart.",
        "nothing writes the cache between",
        "written by /l/ScatterND_2",
        "write the buffer before or after the pattern, not inside it",
    ),
    Code(
        "unknown_shape",
        "a shape decides it, and nobody knows the shape",
        "the value",
        "Bind the dimension (fuse optimize --dim batch=1, or dims={'batch': 1}), export it static, "
        "or give it a name: dimensions that are named alike are equal. A shape that depends on "
        "data (NonZero, a computed Reshape) stays unknown.",
        "batch x seq at most 64",
        "batch unknown: try --dim batch=1",
        "bind the dimension with --dim NAME=SIZE",
    ),
    Code(
        "chip:not_linked",
        "the chip has no kernel for the class",
        "the place that would be fused",
        "Nothing in the model: choose a chip that has one (fuse chips NAME lists them). Larger "
        "classes built on this one can still fire.",
        "one kernel for rms_norm",
        "m3 has none",
    ),
    Code(
        "chip:not_preferred",
        "the chip has a kernel for the class, and it was measured to lose against the parts",
        "the place that would be fused",
        "Nothing: leaving the parts is the faster way here. want and got carry the measurement.",
        "a gain over the parts",
        "0.8 times the speed of the parts",
    ),
)

#: Every code that is not a member of a family, by name.
CODES: Mapping[str, Code] = {code.code: code for code in _TABLE}

_GUARD_CHANGE = (
    "The operators match and this condition between two or more places does not hold. Make the "
    "places agree in the model's source: widths, halves, axes and element types that belong "
    "together come from one variable."
)
_CHIP_CHANGE = (
    "The match is whole and the chip's kernel does not take it. Change the model's figure to one "
    "the kernel takes, bind a symbolic dimension (--dim NAME=SIZE), or choose another chip. "
    "fuse chips NAME shows what its kernels want, each number with its source."
)


def known(guards: Mapping[str, str], limits: Mapping[str, str]) -> dict[str, str]:
    """Code -> its cause, for every code and every member of the families.

    guards, limits: name of a condition -> its sentence.
    """
    table = {code.code: code.cause for code in _TABLE}
    table.update((f"guard:{name}", text) for name, text in sorted(guards.items()))
    table.update((f"chip:{name}", text) for name, text in sorted(limits.items()))
    return table


def page(code: str, guards: Mapping[str, str], limits: Mapping[str, str]) -> Code:
    """What a code means. Raises FuseError for an unknown one, naming the nearest."""
    if code in CODES:
        return CODES[code]
    family, _, name = code.partition(":")
    if family == "guard" and name in guards:
        at = "the value or operator that the condition speaks of"
        return Code(code, guards[name], at, _GUARD_CHANGE, "", "")
    if family == "chip" and name in limits:
        at = "the place that would be fused"
        return Code(code, limits[name], at, _CHIP_CHANGE, "", "")
    names = known(guards, limits)
    near = difflib.get_close_matches(code, names, n=3, cutoff=0.4)
    raise FuseError(f"no code {code}; nearest: {', '.join(near or list(CODES)[:3])}")


def hint(code: str) -> str:
    """One line on what to try; empty where nothing general helps."""
    found = CODES.get(code)
    return found.hint if found else ""
