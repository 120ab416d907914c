"""Public names beside load, optimize and save: what rules build, what an op is, what a chip says."""

from __future__ import annotations

import inspect

import graph_files
import pytest

import chips
import fuse
from fuse.classes import CLASSES
from fuse.engine.compiler import Optimized
from fuse.shim import Refused, Whole
from fuse.types import FuseError


def optimized(name: str, chip: str = "any") -> Optimized:
    return fuse.optimize(graph_files.graph(name), shim=chips.load(chip))


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in fuse.__all__:
        found = getattr(fuse, name)
        if inspect.isfunction(found) or inspect.isclass(found):
            assert (found.__doc__ or "").strip(), name
    with pytest.raises(AttributeError, match="module 'fuse' has no attribute 'nothing'"):
        fuse.nothing  # noqa: B018


def test_classes_built_names_every_rule_in_order_and_only_classes() -> None:
    built = fuse.classes_built()
    assert tuple(built) == fuse.rule_names()
    placing = {"read_in_place", "land_in_rows", "land_in_units"}
    assert {rule: names for rule, names in built.items() if rule in placing} == {
        rule: (rule,) for rule in placing
    }
    assert {name for rule, names in built.items() if rule not in placing for name in names} == CLASSES.keys()


def test_rules_fire_only_what_they_say_they_build() -> None:
    built = fuse.classes_built()
    for name in ("rms_norm", "gated_act", "attention", "qk_norm_rope", "conv_act"):
        for row in optimized(name).records:
            if row.outcome == "fired" and row.rule not in ("read_in_place", "land_in_rows", "land_in_units"):
                assert row.builds in built[row.rule]


def test_realizes_is_the_class_what_it_is_composed_of_and_its_members() -> None:
    graph = optimized("norm_add_norm").graph
    (op,) = [op for op in graph.ops if op.kind == "norm_add_norm"]
    assert fuse.realizes(op)[:2] == ("norm_add_norm", "add_norm")
    assert fuse.realizes(fuse.leaves(op)[0]) == ()


def test_leaves_are_the_lifted_ops_in_order() -> None:
    found = optimized("norm_add_norm")
    (op,) = [op for op in found.graph.ops if op.parts]
    assert [leaf.slot for leaf in fuse.leaves(op)] == [leaf.slot for leaf in found.before.ops]
    (plain, *_) = found.before.ops
    assert list(fuse.leaves(plain)) == [plain]


# ---- candidate -----------------------------------------------------------------------------------
def test_a_candidate_of_parts_is_what_a_rule_would_build() -> None:
    graph = graph_files.graph("rms_norm")
    found = fuse.candidate("rms_norm", graph.ops, graph, ["x", "weight"], {"eps": 1e-6})
    assert (found.op.kind, found.op.inputs, found.op.outputs) == ("rms_norm", ("x", "weight"), ("y",))
    (built,) = optimized("rms_norm").graph.ops
    assert (found.op.inputs, found.op.outputs) == (built.inputs, built.outputs)
    assert found.op.attrs == pytest.approx(built.attrs)
    assert isinstance(chips.load("m3").judge(found), Whole)
    assert isinstance(chips.load("none").judge(found), Refused)


def test_what_parts_read_and_others_read_of_them_is_found() -> None:
    graph = graph_files.graph("mean_is_read_elsewhere")
    norm = [op for op in graph.ops if op.kind in ("Pow", "ReduceMean")]
    found = fuse.candidate("layer_norm", reversed(norm), graph, attrs={"eps": 1e-5})
    assert [part.slot for part in found.op.parts] == sorted(part.slot for part in norm)
    assert "x" in found.op.inputs
    assert found.op.outputs == ("mean",)


def test_a_fused_op_is_a_candidate_as_it_is() -> None:
    graph = optimized("rms_norm").graph
    assert fuse.candidate("rms_norm", graph.ops[0], graph).op is graph.ops[0]


def test_bad_candidates_are_named() -> None:
    graph = graph_files.graph("rms_norm")
    with pytest.raises(FuseError, match="unknown class rms_nrom; nearest: rms_norm"):
        fuse.candidate("rms_nrom", graph.ops, graph)
    with pytest.raises(FuseError, match="a candidate of rms_norm has no parts"):
        fuse.candidate("rms_norm", [], graph)
    with pytest.raises(FuseError, match="a candidate of rms_norm has no attribute eps"):
        fuse.candidate("rms_norm", graph.ops, graph)
