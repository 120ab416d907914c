"""What other optimizers learned the hard way, an entry a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import export_shapes as shapes
import numpy as np
import pytest
from building import Building
from export_shapes import HIDDEN
from holding import built, counts, held, missed, nothing, refused
from onnx import ModelProto, TensorProto, helper

import chips
import fuse
import reference
from fuse.engine.compiler import Optimized
from fuse.engine.rewriter import Sweep, compile_rule
from fuse.rules.table import RULES
from reference.compare import difference


def encoder(rows: int = 3) -> ModelProto:
    g = Building(opset=17)
    return g.model(shapes.encoder_layer(g, g.input("x", 1, rows, HIDDEN)))


def decoder(rows: int = 5, layers: int = 2) -> ModelProto:
    g = Building(opset=17)
    x = g.input("x", 1, rows, HIDDEN)
    for _ in range(layers):
        x = shapes.decoder_layer(g, x, rows)
    return g.model(shapes.rms(g, x))


def chip_file(folder: Path, text: str) -> str:
    """A chip that links every class and has what the text says of some."""
    path = folder / "small.yaml"
    path.write_text(
        "name: small\nabout: a chip with limits of its own\nextends: any\nruntime: {name: reference}\n" + text
    )
    return str(path)


def test_use_counts_count_graph_outputs() -> None:
    """Every value inside an encoder layer as an output in turn: it is kept, and no value changes."""
    model = encoder()
    whole = held(model)
    assert counts(whole)["attention"] == counts(whole)["gelu"] == 1
    fused = {value for op in whole.graph.ops for leaf in fuse.leaves(op) for value in leaf.outputs}
    inner = sorted(fused - set(whole.graph.outputs))
    assert len(inner) > 40
    for value in inner:
        twin = ModelProto.FromString(model.SerializeToString())
        twin.graph.output.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, None))
        assert value in held(twin).graph.outputs


def test_a_residual_sum_that_others_read_is_written_on() -> None:
    """A pre-norm decoder: each sum is the next residual too, and add_norm gives both."""
    found = held(decoder())
    sums = [op.outputs for op in _standing(found) if op.kind == "add_norm"]
    assert counts(found)["add_norm"] == 4
    # The last sum has no other reader.
    assert sorted(len(outputs) for outputs in sums) == [1, 2, 2, 2]


def _standing(found: Optimized) -> list[Any]:
    """Every fused op that stands or is a member of one that does."""
    todo, standing = list(found.graph.ops), []
    while todo:
        op = todo.pop()
        standing.append(op)
        todo += op.parts
    return standing


@pytest.mark.parametrize("dims", [(), (1,), (1, 1), (6, 1)])
def test_a_bias_of_one_number_or_a_column_is_no_row(dims: tuple[int, ...]) -> None:
    """Read as a row it puts the numbers into wrong columns, and the cosine stays above 0.99."""
    g = Building(opset=17)
    x = g.input("x", 6, 6)
    product = g.op("MatMul", x, g.constant(g.draw.normal(0, 4, (6, 6)).astype(np.float32)))
    bias = g.weight(*dims)
    found = held(g.model(g.op("Add", product, bias)))
    nothing(found, "matmul_bias", "matmul_bias_act")
    assert missed(found, "matmul_bias") == ({"guard:bias_is_a_row"} if dims == (6, 1) else {"operand"})


def test_a_wrong_row_is_seen_by_values_and_not_by_cosine() -> None:
    draw = np.random.default_rng(0)
    product, column = draw.normal(0, 10, (6, 6)), draw.normal(0, 0.5, (6, 1))
    right, wrong = product + column, product + column.T
    cosine = np.vdot(right, wrong) / np.linalg.norm(right) / np.linalg.norm(wrong)
    assert cosine > 0.99
    assert difference(wrong.astype(np.float32), right.astype(np.float32)).reason


def test_a_chip_is_asked_the_type_of_each_candidate(tmp_path: Path) -> None:
    """One graph with norms in three types, on a chip whose kernel is of f32."""
    chip = chip_file(
        tmp_path, "classes: {rms_norm: {kernel: k, dtypes: [f32], evidence: docs, source: [none]}}"
    )
    g = Building(opset=17)
    results = []
    for name, dtype in (("single", np.float32), ("half", np.float16), ("double", np.float64)):
        g.dtype = dtype
        results.append(shapes.rms(g, g.input(name, 2, HIDDEN)))
    elements = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
    model = g.model(*results, elements=elements)
    found = held(model, chip)
    (fired,) = found.report.fired("rms_norm")
    assert fired.root == results[0]
    (row,) = found.report.refused("rms_norm")
    assert (row.root, [limit.code for limit in row.reasons]) == (results[1], ["chip:dtypes"])
    assert {row.reasons[0].code for row in found.report.near("rms_norm")} == {"operand"}
    assert counts(held(model))["rms_norm"] == 2


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_one_matcher_finds_and_explains(name: str) -> None:
    """The run that may take one fault finds, where there is none, exactly what the other finds."""
    graph = fuse.load(Path(fuse.__file__).parent / "examples" / f"{name}.onnx")
    seen = 0
    for rule in RULES:
        compiled = compile_rule(rule)
        if compiled.matcher is None:
            continue
        sweep = Sweep(compiled, graph, lambda graph, op: pytest.fail("asked"), lambda *_: pytest.fail("put"))
        for mark in (op for kind in rule.marks for op in graph.of_kind(kind)):
            for root in sweep._roots(mark, compiled.roots):
                for match in sweep.matches(root, mark, 0):
                    again = next(sweep.matches(root, mark, 1))
                    assert again.fault is None
                    assert {op.slot for op in again.ops} == {op.slot for op in match.ops}
                    seen += 1
    assert seen > 5


def test_the_fault_that_is_named_is_the_one(tmp_path: Path) -> None:
    """What a near miss says is wrong, put right, fires."""
    wrong, right = (_norm_over(axis) for axis in (1, -1))
    (row,) = held(wrong).report.near("rms_norm")
    assert (row.reasons[0].code, row.reasons[0].want) == ("attribute", "axes=-1")
    assert counts(held(right))["rms_norm"] == 1


def _norm_over(axis: int) -> ModelProto:
    g = Building(opset=17)
    x = g.input("x", 2, 6, 6)
    mean = g.op("ReduceMean", g.op("Mul", x, x), axes=[axis], keepdims=1)
    root = g.op("Sqrt", g.op("Add", mean, g.constant(1e-5)))
    return g.model(g.op("Mul", g.op("Div", x, root), g.weight(6)))


def test_a_size_limit_is_part_of_the_search() -> None:
    """A long chain of many operands on a chip with caps: every region keeps them, nothing dangles."""
    caps = chips.load("m3").caps("elementwise_region")
    assert (caps["max_depth"], caps["max_inputs"]) == (11, 24)
    g = Building(opset=17)
    value = g.input("x", 2, 8)
    for n in range(40):
        value = g.op(("Add", "Mul", "Sub")[n % 3], value, g.input(f"a{n}", 2, 8))
    wide = g.input("wide", 2, 8)
    terms = [g.op("Mul", wide, g.input(f"b{n}", 2, 8)) for n in range(32)]
    while len(terms) > 1:
        terms = [g.op("Add", *pair) for pair in zip(terms[::2], terms[1::2], strict=True)]
    found = held(g.model(value, terms[0]), "m3")
    regions = [op for op in found.graph.ops if op.kind == "elementwise_region"]
    assert len(regions) >= 5
    for op in regions:
        assert len(op.inputs) <= 24
        assert _depth(op) <= 11
    assert counts(held(g.model(value, terms[0])))["elementwise_region"] == 2


def _depth(region: Any) -> int:
    """Ops on the longest way through a region."""
    made: dict[str, int] = {}
    for leaf in fuse.leaves(region):
        made[leaf.outputs[0]] = 1 + max((made.get(value, 0) for value in leaf.inputs), default=0)
    return max(made.values())


def test_biases_of_shape_one_one_n_are_rows() -> None:
    """As an exporter that unsqueezes every bias writes a layer: all six land in their products."""
    g = Building(opset=17)
    x = g.input("x", 2, 3, HIDDEN)
    results = []
    for bias in ((1, 1, 8), (1, 8), (8,)):
        product = g.op("MatMul", x, g.weight(HIDDEN, 8))
        results += [g.op("Add", product, g.weight(*bias)), g.op("Add", g.weight(*bias), product)]
    found = held(g.model(*results[::2]))
    assert counts(found)["matmul_bias"] == 3
    found = held(g.model(*results[1::2]))
    assert counts(found)["matmul_bias"] == 3


def test_can_but_not_preferred_is_an_answer(tmp_path: Path) -> None:
    """A whole layer that was measured slower is refused with the measurement; what it is made of stays."""
    chip = chip_file(
        tmp_path,
        "prefer: {transformer_layer: {want: a gain over blocks, got: 0.93 times their speed, source: [t]}}",
    )
    found = held(encoder(), chip)
    nothing(found, "transformer_layer")
    (row,) = found.report.refused("transformer_layer")
    (limit,) = row.reasons
    assert (limit.code, limit.got) == ("chip:not_preferred", "0.93 times their speed")
    assert counts(found)["attention_block"] == counts(found)["mlp_block"] == 1
    assert counts(held(encoder()))["transformer_layer"] == 1


def test_caps_keep_products_apart(tmp_path: Path) -> None:
    """23 small products of one activation: how many may run as one, and how large, is the chip's to say."""
    g = Building(opset=17)
    x = g.input("x", 2, HIDDEN)
    model = g.model(*(g.op("MatMul", x, g.weight(HIDDEN, 8)) for _ in range(23)))
    op = built(held(model), "merged_products")
    assert len(op.outputs) == 23
    source = "evidence: docs, source: [t]"
    for cap in ("max_members: 8", f"max_weight_bytes: {8 * 4 * HIDDEN * 22}"):
        text = f"classes: {{merged_products: {{kernel: k, limits: {{{cap}}}, {source}}}}}"
        found = held(model, chip_file(tmp_path, text))
        nothing(found, "merged_products")
        assert refused(found, "merged_products") == {"chip:" + cap.split(":")[0]}


def test_two_norms_of_one_input_both_fuse() -> None:
    """Nothing joins equal means before the norms fuse; where a file has joined them, the report says so."""
    g = Building(opset=17)
    x = g.input("x", 2, 3, HIDDEN)
    found = held(g.model(shapes.layer_norm(g, x), shapes.layer_norm(g, x)))
    assert counts(found)["layer_norm"] == 2
    g = Building(opset=17)
    x = g.input("x", 2, 3, HIDDEN)
    centred = g.op("Sub", x, g.op("ReduceMean", x, axes=[-1], keepdims=1))
    variance = g.op("ReduceMean", g.op("Pow", centred, g.constant(2.0)), axes=[-1], keepdims=1)
    normed = g.op("Div", centred, g.op("Sqrt", g.op("Add", variance, g.constant(1e-5))))
    results = [g.op("Add", g.op("Mul", normed, g.weight(HIDDEN)), g.weight(HIDDEN)) for _ in range(2)]
    found = held(g.model(*results))
    # The shared core is a norm without a weight, and both scales stand after it.
    assert built(found, "layer_norm").outputs == (normed,)


@pytest.mark.parametrize("guarded", [False, True])
def test_fully_masked_rows(guarded: bool) -> None:
    """NaN by primitives, 0 behind a guard: the class records it, and the report where a chip's differs."""
    g = Building(opset=17)
    q, k, v = (g.input(name, 1, 2, 3, 8) for name in "qkv")
    keep = g.input("keep", 1, 1, 3, 3, dtype=TensorProto.BOOL)
    scores = g.op("MatMul", g.op("Mul", q, g.constant(8**-0.5)), g.op("Transpose", k, perm=[0, 1, 3, 2]))
    mask = g.op("Where", keep, g.constant(0.0), g.constant(-np.inf))
    weights = g.op("Softmax", g.op("Add", scores, mask), axis=-1)
    if guarded:
        weights = g.op("Where", g.op("IsNaN", weights), g.constant(0.0), weights)
    model = g.model(g.op("MatMul", weights, v))
    draw = np.random.default_rng(0)
    feeds = {name: draw.normal(size=(1, 2, 3, 8)).astype(np.float32) for name in "qkv"}
    feeds["keep"] = np.array([[[[True, True, True], [False] * 3, [True, False, False]]]])
    found = held(model, feeds=feeds)
    kind = "zero" if guarded else "nan"
    op = built(found, "attention")
    assert op.attrs.get("empty_rows", "nan") == kind
    (value,) = reference.eval(found.graph, feeds, fused="definition").values()
    row = value[:, :, 1]
    assert (row == 0).all() if guarded else np.isnan(row).all()
    (fired,) = held(model, "ort-cpu", feeds).report.fired("attention")
    says = "a fully masked row gives zero here, nan in the graph"
    assert (says in fired.note) == (not guarded)


def test_a_small_side_input_does_not_decide_for_a_block(tmp_path: Path) -> None:
    """A limit on rows looks at the candidate's own; an unknown dim is a reason of its own."""
    limits = "kernel: k, limits: {batch_rows: {at_most: 8}}, evidence: docs, source: [t]"
    chip = chip_file(tmp_path, f"classes: {{attention_block: {{{limits}}}, mlp_block: {{{limits}}}}}")
    cases: list[tuple[int | str, str]] = [(8, ""), (9, "chip:batch_rows"), ("rows", "unknown_shape")]
    for rows, code in cases:
        g = Building(opset=17)
        x, side = g.input("x", 1, rows, HIDDEN), g.input("side", 1, 1)
        found = held(
            g.model(shapes.encoder_layer(g, x), g.op("Neg", side)),
            chip,
            dims={"rows": 4} if rows == "rows" else None,
        )
        for name in ("attention_block", "mlp_block"):
            assert counts(found)[name] == (not code)
            assert refused(found, name) == ({code} if code else set())
