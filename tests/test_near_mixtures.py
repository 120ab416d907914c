"""What is nearly a mixture, a shared expert or a block of both: told where it is, and never fused."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from mixture_models import mixture
from onnx import TensorProto, helper
from test_mixtures import built, misses, optimized

import reference


def changed(model: onnx.ModelProto, kind: str, which: int = 0, to: str = "", **attrs: Any) -> onnx.ModelProto:
    """One operator of a kind with another attribute, or another operator."""
    node = [node for node in model.graph.node if node.op_type == kind][which]
    node.op_type = to or kind
    kept = [attr for attr in node.attribute if attr.name not in attrs]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(name, value) for name, value in attrs.items())])
    return model


@pytest.mark.parametrize(
    ("kind", "which", "attrs"),
    [
        ("ScatterElements", 0, {"reduction": "mul"}),
        ("TopK", 0, {"largest": 0}),
        ("TopK", 1, {"largest": 0}),
    ],
)
def test_another_choice_of_groups_is_a_choice_of_its_own(
    kind: str, which: int, attrs: dict[str, Any]
) -> None:
    model = changed(mixture(routing="grouped"), kind, which, **attrs)
    found = optimized(model)
    assert built(found, "moe").attrs["selection"] == "separate"
    assert reference.check(found.before, found.graph).bit_equal


def before(model: onnx.ModelProto, kind: str, which: int, operand: int, *made: str) -> onnx.ModelProto:
    """Operators of one operand before an operand of one of a kind; a type means a cast to it."""
    nodes = model.graph.node
    at = [number for number, node in enumerate(nodes) if node.op_type == kind][which]
    value = nodes[at].input[operand]
    for number, name in enumerate(made):
        cast = {"to": getattr(TensorProto, name)} if name.isupper() else {}
        node = helper.make_node("Cast" if cast else name, [value], [f"made_{number}"], **cast)
        nodes.insert(at + number, node)
        value = f"made_{number}"
    nodes[at + len(made)].input[operand] = value
    return model


ROUNDED = ("FLOAT16", "FLOAT")


def test_rounded_scores_are_scores_of_their_own() -> None:
    """The choice may fall on another expert: the rounding is no part of the mixture."""
    found = optimized(before(mixture(), "Softmax", 0, 0, *ROUNDED))
    assert built(found, "moe").inputs[1] == "made_0"
    assert not found.report.fired("moe_block")


def test_rounded_weights_are_told() -> None:
    found = optimized(before(mixture(), "Mul", -1, 1, *ROUNDED))
    assert not found.report.fired("moe")
    assert misses(found, "moe") == ["attribute"]


@pytest.mark.parametrize(
    ("model", "rule", "reason"),
    [
        (lambda m: changed(m, "Add", -1, "Sub"), "moe_shared", ("op", "Add", "Sub")),
        (lambda m: changed(m, "Mul", -1, "Div"), "moe_shared", ("op", "Mul", "Div")),
        (lambda m: before(m, "Add", -1, 0, "Abs"), "moe_shared", ("op", "no operator", "Abs")),
        (lambda m: before(m, "Add", -1, 1, "Abs"), "moe_shared", ("op", "no operator", "Abs")),
        (lambda m: before(m, "Gemm", 0, 0, "Abs"), "moe_block", ("op", "no operator", "Abs")),
        (lambda m: before(m, "Softmax", 0, 0, "Abs"), "moe_block", ("op", "no operator", "Abs")),
        (
            lambda m: changed(m, "Gemm", 0, alpha=0.5), "moe_block",
            ("attribute", "alpha=1, beta=1", "alpha=0.5, beta=1.0"),
        ),
        (lambda m: before(m, "ReduceSum", -1, 0, "Abs"), "moe", ("op", "Mul", "Abs")),
    ],
)  # fmt: skip
def test_one_thing_changed_around_a_mixture(model: Any, rule: str, reason: tuple[str, str, str]) -> None:
    plain = mixture(shared="gated") if rule == "moe_shared" else mixture()
    (row,) = optimized(model(plain)).report.near(rule)
    assert [(one.code, one.want, one.got) for one in row.reasons] == [reason]


@pytest.mark.parametrize("form", ["newer", "two"])
def test_weights_that_change_at_run_time_are_told(form: str) -> None:
    """Each stack of weights in turn, and the router's, as an input of the graph."""
    stacks = [t.name for t in mixture(form=form).graph.initializer if len(t.dims) == 3]
    router = next(t.name for t in mixture().graph.initializer if t.name.startswith("router"))
    for name in (*stacks, router):
        model = mixture(form=form)
        tensor = next(t for t in model.graph.initializer if t.name == name)
        model.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
        rows = optimized(model).report.near("moe_block" if name == router else "moe")
        assert [(row.reasons[0].code, row.reasons[0].at) for row in rows] == [("operand", name)]


def test_a_fault_of_the_routing_is_one_for_all_experts_of_a_loop() -> None:
    (row,) = optimized(changed(mixture(form="looped"), "Div", 0, "Mul")).report.near("moe")
    assert [(one.code, one.want, one.got) for one in row.reasons] == [("op", "Div", "Mul")]
