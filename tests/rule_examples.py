"""The example on each rule's page: a small graph in which it fires, before and after.

`pytest tests/test_rule_pages.py --bless` writes fuse/rules/examples/RULE.txt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import graph_files
import numpy as np
import recurrence_models
import test_mixtures as mixture_tests
import test_rules_attention_spellings as attention_tests
import test_rules_late as late_tests
import test_rules_recurrences as recurrence_tests
from onnx import parser

import chips
import fuse
from fuse.commands.examples import find
from fuse.text import op_text

UNITS = """<ir_version: 10, opset_import: ["" : 23]>
graph (float[B,S,8] x, float[B,S,4] rest) => (float[B,S,12] y)
<float[8] weight = {1, 1, 1, 1, 1, 1, 1, 1}>
{
  normed = RMSNormalization <axis = -1, epsilon = 1e-5> (x, weight)
  y = Concat <axis = -1> (normed, rest)
}"""
#: Rules whose example is not the graph of their own name in tests/graphs.
OTHERS: Mapping[str, str | Callable[[], object]] = {
    "rope": "rope_half",
    "quant_shared": "quantized_matmul_shared",
    "merged_qkv": "attention",
    "merged_gate_up": "gated_act",
    "mlp_block": "gated_act",
    "attention_block": "attention",
    "moe_shared": "moe",
    "router_shared_gate_merge": "moe",
    "moe_block": "moe",
    "moe_gather_in_operand": lambda: mixture_tests.gathering(),
    "transformer_layer": lambda: find("bert"),
    "land_in_units": lambda: parser.parse_model(UNITS),
    "values_in_keys": lambda: attention_tests.shared(np.float32, "slice", 0),
    "gated_delta": lambda: recurrence_models.repeated(),
    "conv_state": lambda: recurrence_tests.short(),
    "fused_quant": lambda: late_tests.produced("rms_norm"),
    "late_merged_gate_up": lambda: late_tests.gate(),
    "late_gated_act": lambda: late_tests.gate(),
    "advance": lambda: late_tests.greedy(),
}
#: Held where they would take in what a rule builds on.
BLOCKS = ("attention_block", "mlp_block", "transformer_layer", "elementwise_region")


def source(rule: str) -> fuse.Graph:
    """The graph of a rule's example."""
    found = OTHERS.get(rule, rule)
    return graph_files.graph(found) if isinstance(found, str) else fuse.load(found())


@cache
def example(rule: str) -> str:
    """The first firing of a rule in its example, as it stood before that step and as it stands after."""
    shim = chips.load("any")
    steps = [step.name for step in fuse.steps(shim)]
    later = steps[steps.index(rule) + 1 :]
    blocks = BLOCKS if rule not in BLOCKS else ()
    found = fuse.optimize(
        source(rule), shim=shim, held=[*later, *(name for name in blocks if name not in later)]
    )
    row = next((row for row in found.records if row.outcome == "fired" and row.rule == rule), None)
    assert row is not None, f"{rule} does not fire in its example: {found.report}"
    graphs = {one.base.prefix: one for one in (*found.graph.bodies(), found.graph)}
    graph = graphs[row.graph]
    op = graph.producer(row.root)
    assert op is not None
    parts = [op_text(part, graph).splitlines()[0] for part in op.parts]
    after = op_text(op, graph).splitlines()[0]
    lines = ["before", *(f"  {line}" for line in parts), "after", f"  {after}"]
    return "".join(f"{line}\n" for line in lines)
