"""The text form of a graph."""

from __future__ import annotations

import math

import numpy as np
import pytest
from lift_models import model, of_nodes
from onnx import helper, numpy_helper

from fuse.ir import Op
from fuse.lift import load
from fuse.placement import Alias, Axes, Item, Land, Part, Read, Rows, Shape
from fuse.text import op_text, short_float, text

NORM = """(f32[B, 8] x, f32[B, 8] r) => (f32[B, 8] y)
<f32 two = {2}, f32 eps = {0.00001}, f32[8] g = {1, 2, 3, 4, 5, 6, 7, 8}> {
    s = Add(x, r)
    p = Pow(s, two)
    m = ReduceMean<axes = [-1], keepdims = 1>(p)
    e = Add(m, eps)
    q = Sqrt(e)
    n = Div(s, q)
    y = Mul(n, g)
}"""


def test_one_op_a_line() -> None:
    assert text(load(model(NORM))).splitlines()[:3] == [
        "s = Add(x, r)",
        "p = Pow(s, two)",
        "m = ReduceMean(p) {axes=[-1], keepdims=1}",
    ]


def test_parts_stand_under_their_op() -> None:
    graph = load(model(NORM))
    norm = Op("rms_norm", ("s", "g"), ("y",), {"eps": float(np.float32(1e-5))}, tuple(graph.ops[1:]))
    graph.replace(norm, 6)
    outer = graph.replace(Op("add_norm", ("x", "r", "g"), ("y",), {"norm": "rms"}, tuple(graph.ops)), 6)
    lines = text(graph).splitlines()
    assert lines[:4] == [
        "y = add_norm(x, r, g) {norm=rms}",
        "  | s = Add(x, r)",
        "  | y = rms_norm(s, g) {eps=1e-05}",
        "  |   | p = Pow(s, two)",
    ]
    assert len(lines) == 9
    assert op_text(outer, graph) == str(graph) == text(graph)


def test_types_where_asked() -> None:
    lines = text(load(model(NORM)), types=True).splitlines()
    assert lines[:3] == ["x: f32[B,8]", "r: f32[B,8]", "s: f32[B,8] = Add(x, r)"]


def test_bodies_are_indented_and_their_names_short() -> None:
    graph = load(
        model(
            """(bool c, f32[2] x) => (f32[2] y) {
                r = Relu(x)
                y = If (c) <
                    then_branch = a () => (f32[2] t) { t = Neg(r) },
                    else_branch = b () => (f32[2] t) { u = Exp(x) t = Add(u, r) }
                >
            }"""
        )
    )
    assert text(graph) == "\n".join(
        [
            "r = Relu(x)",
            "y = If(c)",
            "  then_branch() -> t:",
            "    t = Neg(r)",
            "  else_branch() -> t:",
            "    u = Exp(x)",
            "    t = Add(u, r)",
        ]
    )


def test_absent_values_and_attributes_of_every_kind() -> None:
    node = helper.make_node(
        "Odd",
        ["x", "", "x"],
        ["y", "", "z"],
        domain="acme",
        a=1,
        b=0.1,
        c="linear",
        d="two words",
        e=[1, 2],
        f=[0.5, math.inf],
        g=numpy_helper.from_array(np.int64([7])),
        h=numpy_helper.from_array(np.zeros((2, 2), np.float16)),
        i=["a", ""],
    )
    assert text(load(of_nodes([node], {"x": [2]}, ["y"]))) == (
        "y, _, z = acme.Odd(x, _, x) {a=1, b=0.1, c=linear, d='two words', e=[1,2], f=[0.5,inf], "
        "g=i64[1](7), h=f16[2,2], i=[a,'']}"
    )


def test_dims() -> None:
    body = "(f32[N, P] a, f32[N, S] b) => (i64[2] y) { c = Concat<axis = 1>(a, b) y = Shape(c) }"
    assert text(load(model(body))) == "y = fuse.Dims(a, b) {dims=[N,P + S], homes=[[N,0,0],[P,0,1],[S,1,1]]}"


def test_placements_follow_the_op() -> None:
    graph = load(
        model("(f32[2,4] x, f32[3,4] past) => (f32[5,4] y) { r = Relu(x) y = Concat<axis = 0>(past, r) }")
    )
    landing = Land(0, "r", "y", "past", "rows", -2, 5, ((3, 5),))
    graph.slots[0] = graph.ops[0]._replace(placements=(Read(0, "x", "past", (Part(-2, 0, 2, 3),)), landing))
    assert text(graph).splitlines()[0] == "r = Relu(past[0:2 of 3, :]) -> past[rows 3:5 of 5]"


def test_views_in_words() -> None:
    views = (Rows("ids", (2,)), Item(-1, 1, 3), Axes((1, 0)), Shape((4, 2)), Part(-1, 0, 2, 2, 2))
    assert str(Read(0, "v", "table", views)) == "table[rows ids][1 of 3][axes 1,0][as 4,2][0:2:2 of 2]"
    assert str(Alias(0, "qkv", (Part(-1, 0, 2, 6),))) == "is qkv[0:2 of 6]"
    assert str(Land(0, "r", "wide", "", "units", -1, 9, ((0, 3), (6, 9)))) == "-> wide[units 0:3, 6:9 of 9]"
    assert str(Land(0, "r", "wide", "cache", "rows", -2, 9, (), "at")) == "-> cache[rows at]"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.0, "1.0"),
        (float(np.float32(0.1)), "0.1"),
        (0.1, "0.1"),
        (1 / 3, "0.3333333333333333"),
        (float(np.float32(1e-12)), "1e-12"),
        (1e300, "1e+300"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
    ],
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert short_float(value) == shown
