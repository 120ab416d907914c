"""Faults of mixtures of experts: the routing, the rows, the experts and their sum."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from fuse.ir import Op

from .draft import Draft, Place, Planted
from .general import (
    Plant,
    an_output,
    attribute,
    before,
    kind,
    number,
    run_time,
    through,
    told,
)

_ALL = "moe moe_shared moe_block gated_act"
_GATHERS = "GatherND Gather"
_GUARD = "attribute operand op guard:"


def total(place: Place) -> Op | None:
    """What sums the weights of the chosen."""
    top = next(iter(place.of("TopK")), None)
    values = [] if top is None else place.readers(top.outputs[0])
    return next((op for op in values if op.kind == "ReduceSum"), None)


def weights_kept(draft: Draft, place: Place) -> Planted | None:
    """The sum of the chosen goes over all rows."""
    op = total(place)
    if op is None or len(op.inputs) < 2:
        return None
    node = draft.node(op.outputs[0])
    node.input[1] = draft.constant(np.array([0], np.int64))
    return told(place, _GUARD, node.output[0], node.input[1], rules=_ALL)


def sum_without_keepdims(draft: Draft, place: Place) -> Planted | None:
    op = total(place)
    if op is None:
        return None
    node = draft.node(op.outputs[0])
    node.op_type = "ReduceMax"
    return told(place, "op", node.output[0], rules=_ALL)


def weights_of_another_choice(draft: Draft, place: Place) -> Planted | None:
    """The weights are the scores of another choice: of the smallest."""
    top = next(iter(place.of("TopK")), None)
    if top is None or len(place.of("TopK")) != 1 or not top.outputs[0]:
        return None
    node = draft.node(top.outputs[0])
    copied = type(node)()
    copied.CopyFrom(node)
    copied.output[0], copied.output[1] = draft.fresh("weights"), draft.fresh("places")
    draft.set_attribute(copied, "largest", 0)
    draft.insert(copied, node.output[0])
    for reader in place.readers(top.outputs[0]):
        made = draft.node(reader.outputs[0])
        for at, value in enumerate(made.input):
            if value == top.outputs[0]:
                made.input[at] = copied.output[0]
    return told(
        place, "guard: same_value attribute", *copied.output, node.output[0], node.output[1], rules=_ALL
    )


def halves_swapped_in_one(draft: Draft, place: Place) -> Planted | None:
    """Gate and up both are the first half."""
    split = next((op for op in place.of("Split") if place.graph.dtype(op.outputs[0]).startswith("f")), None)
    if split is None or len(split.outputs) != 2:
        return None
    readers = place.readers(split.outputs[1])
    if len(readers) != 1:
        return None
    node = draft.node(readers[0].outputs[0])
    node.input[list(readers[0].inputs).index(split.outputs[1])] = split.outputs[0]
    return told(
        place,
        "guard: same_value operand op",
        node.output[0],
        split.outputs[0],
        place.op.outputs[0],
        rules=_ALL,
    )


MOE: dict[str, Plant] = {
    "Tanh for Sigmoid": kind("Sigmoid", "Tanh", rules=_ALL + " silu quick_gelu"),
    "the smallest chosen": attribute("TopK", "largest", 0, rules=_ALL),
    "chosen over the rows": attribute("TopK", "axis", 0, rules=_ALL),
    "k at run time": run_time("TopK", 1, rules=_ALL),
    "k overridable": run_time("TopK", 1, "default", rules=_ALL),
    "ReduceMax of the chosen": sum_without_keepdims,
    "weights summed over the rows": weights_kept,
    "weights of another choice": weights_of_another_choice,
    "Mul for the Div by the sum": kind("Div", "Mul", rules=_ALL),
    "Sub for the Div by the sum": kind("Div", "Sub", rules=_ALL),
    "Add for the Mul by the weights": kind("Mul", "Add", which=-1, rules=_ALL),
    "Div for the Mul by the weights": kind("Mul", "Div", which=-1, rules=_ALL),
    "ReduceMean for the last sum": kind("ReduceSum", "ReduceMean", which=-1, rules=_ALL),
    "ReduceMax for the last sum": kind("ReduceSum", "ReduceMax", which=-1, rules=_ALL),
    "the last sum over the rows": number(
        "ReduceSum", 1, lambda a: np.zeros_like(a), which=-1, rules=_ALL, codes=_GUARD
    ),
    "the last sum keeps its axis": attribute("ReduceSum", "keepdims", 1, which=-1, rules=_ALL),
    "first weights at run time": run_time(_GATHERS, 0, which=0, rules=_ALL),
    "last weights at run time": run_time(_GATHERS, 0, which=-1, rules=_ALL),
    "last weights overridable": run_time(_GATHERS, 0, "default", which=-1, rules=_ALL),
    "weights rounded": through(TensorProto.FLOAT16, "Mul", 1, which=-1, rules=_ALL),
    "rows of an expert rounded": through(TensorProto.FLOAT16, "MatMul", 1, which=-1, rules=_ALL),
    "Abs before the first product": before("Abs", "MatMul", 1, rules=_ALL),
    "Abs before the last product": before("Abs", "MatMul", 1, which=-1, rules=_ALL),
    "Relu before the first product": before("Relu", "MatMul", 1, rules=_ALL),
    "Tanh for the activation": kind("Sigmoid", "Tanh", which=-1, rules=_ALL + " silu quick_gelu"),
    "Abs before the last sum": before("Abs", "ReduceSum", which=-1, rules=_ALL),
    "gate and up one half": halves_swapped_in_one,
    "values of the choice an output": an_output("TopK", rules=_ALL),
    "choice an output": an_output("TopK", output=1, rules=_ALL),
    "result of the first product an output": an_output("MatMul", rules=_ALL),
    "result of the last product an output": an_output("MatMul", which=-1, rules=_ALL),
    "the scatter adds nothing": attribute(
        "ScatterElements ScatterND", "reduction", "none", rules=_ALL, codes=_GUARD
    ),
    "the scatter multiplies": attribute(
        "ScatterElements ScatterND", "reduction", "mul", rules=_ALL, codes=_GUARD
    ),
    "the scatter on another axis": attribute("ScatterElements", "axis", 1, rules=_ALL, codes=_GUARD),
    "another perm of the table": attribute("Transpose", "perm", [1, 2, 0], rules=_ALL, codes=_GUARD),
    "OneHot on another axis": attribute("OneHot", "axis", 1, rules=_ALL, codes=_GUARD),
    "OneHot of two": number("OneHot", 2, lambda a: a * 2, rules=_ALL, codes=_GUARD),
}
SHARED: dict[str, Plant] = {
    "Sub for the sum with the shared": kind("Add", "Sub", which=-1, rules=_ALL),
    "Mul for the sum with the shared": kind("Add", "Mul", which=-1, rules=_ALL),
    "Max for the sum with the shared": kind("Add", "Max", which=-1, rules=_ALL),
    "Add for the shared gate's product": kind("Mul", "Add", which=-1, rules=_ALL),
    "Div for the shared gate's product": kind("Mul", "Div", which=-1, rules=_ALL),
    "Abs before the shared sum": before("Abs", "Add", 1, which=-1, rules=_ALL),
    "mixture Abs before the shared sum": before("Abs", "Add", 0, which=-1, rules=_ALL),
    "gate's sigmoid an output": an_output("Sigmoid", which=-1, rules=_ALL + " silu"),
    "gated shared an output": an_output("Mul", which=-1, rules=_ALL),
}
MERGE: dict[str, Plant] = {
    "router weight at run time": run_time("Gemm MatMul", 1, rules="merged_products moe_block"),
    "gate weight at run time": run_time("Gemm MatMul", 1, which=1, rules="merged_products moe_block"),
    "gate weight overridable": run_time(
        "Gemm MatMul", 1, "default", which=1, rules="merged_products moe_block"
    ),
    "alpha of the router": attribute("Gemm", "alpha", 0.5, rules="merged_products moe_block"),
    "alpha of the gate": attribute("Gemm", "alpha", 0.5, which=1, rules="merged_products moe_block"),
    "Abs before the gate's product": before(
        "Abs", "Gemm MatMul", 0, which=1, rules="merged_products moe_block"
    ),
    "Abs before the router": before("Abs", "Gemm MatMul", 0, rules="merged_products moe_block"),
}
BLOCK: dict[str, Plant] = {
    "router weight at run time": run_time("Gemm MatMul", 1, rules="router_shared_gate_merge"),
    "router weight overridable": run_time("Gemm MatMul", 1, "default", rules="router_shared_gate_merge"),
    "alpha of the router": attribute("Gemm", "alpha", 0.5, rules="router_shared_gate_merge"),
    "Abs before the router": before("Abs", "Gemm MatMul", 0, rules="router_shared_gate_merge"),
    "scores an output": an_output("Gemm MatMul", rules="router_shared_gate_merge"),
    "Abs on the scores": before("Abs", "Softmax", 0, rules="moe router_shared_gate_merge"),
}
GATHERED: dict[str, Plant] = {
    "weights at run time": run_time(_GATHERS, 0),
    "Abs between": before("Abs", "MatMul", 0),
    "picked along another axis": attribute("Gather", "axis", 1, codes=_GUARD),
    "gathered weights an output": an_output(_GATHERS),
}
