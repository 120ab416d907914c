"""Models that do not lift: one line, which names the bad thing."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from lift_models import external, model, of_nodes, save
from onnx import TensorProto, helper, numpy_helper

from fuse.lift import load
from fuse.types import FuseError

RELU = "(f32[2] x) => (f32[2] y) { y = Relu(x) }"


def message(source: object) -> str:
    """What loading says, which is one line."""
    with pytest.raises(FuseError) as error:
        load(source)  # type: ignore[arg-type]
    text = str(error.value)
    assert "\n" not in text
    return text


# ---- files -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "is not an ONNX model but a PNG image"),
        (b"PK\x03\x04" + bytes(50), "a zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
        (bytes(4) + b"ORTM" + bytes(50), "onnxruntime's own format"),
        (b"just some words\n" * 4, "is not an ONNX model"),
        (bytes(range(255, 0, -1)), "is not an ONNX model"),
        (model(RELU).SerializeToString()[:-5], "is damaged or cut short"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "has no graph"),
    ],
)
def test_files_that_are_no_model(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(data)
    said = message(path)
    assert says in said
    assert str(path) in said


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    assert message(tmp_path) == f"{tmp_path} is a folder, not a model file"
    assert message(tmp_path / "no.onnx") == f"cannot read {tmp_path / 'no.onnx'}: no such file or directory"
    assert message(3) == "a model is a path, a ModelProto or an onnx_ir.Model, not int"
    assert message(onnx.ModelProto()) == "model has no graph"


def test_bad_onnx_text(tmp_path: Path) -> None:
    path = tmp_path / "bad.onnxtxt"
    path.write_text("<ir_version: 8> g (float x) =>")
    assert "is not ONNX text" in message(path)


def test_a_file_over_two_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)
    assert "is over 2 GB" in message(path)


def test_text_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model(RELU).SerializeToString().replace(b"Relu", b"Re\xff\xff"))
    assert message(path) == r"NodeProto.op_type b'Re\xff\xff' is not utf-8"
    path.write_bytes(model(RELU.replace("x)", "name)")).SerializeToString().replace(b"name", b"\xffame"))
    assert message(path) == r"ValueInfoProto.name b'\xffame' is not utf-8"


# ---- operator sets and functions ---------------------------------------------------------------
def test_operator_sets() -> None:
    assert message(model(RELU, opset=6)).startswith("opset 6 is not supported, the oldest is 7")
    assert "newest that the installed onnx knows" in message(model(RELU, opset=999))
    twice = model(RELU)
    twice.opset_import.add(domain="ai.onnx", version=13)
    assert message(twice) == "domain 'ai.onnx' is imported as opset 17 and as 13"
    none = model(RELU)
    del none.opset_import[:]
    assert message(none) == "Relu 'y' is of ai.onnx, of which the model imports no opset"


def functions(*bodies: str) -> onnx.ModelProto:
    head = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]> g (float[2] x) => (float[2] y)'
    head += "{ y = local.f(x) }"
    sets = '<opset_import: ["" : 17, "local" : 1], domain: "local">'
    return onnx.parser.parse_model(head + "".join(f"{sets} {body}" for body in bodies))


def test_functions() -> None:
    assert message(functions("f (a) => (b) { b = local.f(a) }")) == "function 'local.f' calls itself"
    around = functions("f (a) => (b) { b = local.g(a) }", "g (a) => (b) { b = local.f(a) }")
    assert message(around) == "function 'local.f' calls itself"
    twice = functions("f (a) => (b) { b = Relu(a) }")
    twice.functions.append(twice.functions[0])
    assert message(twice) == "function 'local.f' is given twice"


# ---- names -------------------------------------------------------------------------------------
W = numpy_helper.from_array(np.zeros(2, np.float32), "w")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{ a = Neg(b) b = Exp(a) y = Relu(x) }", "the graph has a cycle through Neg 'a'"),
        ("{ y = Add(x, gone) }", "Add 'y' reads 'gone', which no node, input or initializer makes"),
        ("{ a = Relu(x) a = Neg(x) y = Exp(a) }", "Relu 'a' and Neg 'a' both make 'a'"),
        ("{ x = Relu(x) y = Neg(x) }", "Relu 'x' makes 'x', which is a graph input"),
        ("{ a = Relu(x) }", "graph output 'y' is made by no node"),
        ("<f32[2] a = {1, 2}> { a = Relu(x) y = Neg(a) }", "Relu 'a' makes 'a', which is an initializer"),
    ],
)
def test_names(body: str, says: str) -> None:
    assert message(model(f"(f32[2] x) => (f32[2] y) {body}")) == says


def test_a_node_named_on_a_cycle_is_on_it() -> None:
    body = "{ y = Relu(c) a = Add(x, c) b = Neg(a) c = Exp(b) before = Tanh(x) }"
    said = message(model(f"(f32[2] x) => (f32[2] y) {body}"))
    assert said.removeprefix("the graph has a cycle through ") in ("Add 'a'", "Neg 'b'", "Exp 'c'")


def test_names_given_twice() -> None:
    proto = of_nodes([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [2]}, ["y"], [W, W])
    assert message(proto) == "initializer 'w' is given twice"
    proto = model(RELU)
    proto.graph.input.append(proto.graph.input[0])
    assert message(proto) == "graph input 'x' is given twice"


def test_names_in_bodies() -> None:
    def branches(first: str) -> str:
        return message(
            model(
                f"""(bool c, f32[2] x) => (f32[2] y) {{
                    r = Relu(x)
                    [choice] y = If (c) <
                        then_branch = a () => (f32[2] t) {{ {first} }},
                        else_branch = b () => (f32[2] t) {{ t = Exp(r) }}
                    >
                }}"""
            )
        )

    assert branches("t = Neg(gone)") == (
        "Neg 't' reads 'gone', which no node, input or initializer makes in then_branch of If 'choice'"
    )
    assert (
        branches("r = Neg(x) t = Exp(r)") == "'r' is made in then_branch of If 'choice' and already around it"
    )
    assert branches("t = Neg(t)") == "the graph has a cycle through Neg 't' in then_branch of If 'choice'"


def test_two_values_of_one_path() -> None:
    nodes = model(
        """(bool c, f32[2] x) => (f32[2] y) {
            y = If (c) <
                then_branch = a () => (f32[2] t) { t = Neg(x) },
                else_branch = b () => (f32[2] t) { t = Exp(x) }
            >
        }"""
    )
    nodes.graph.input[1].name = "y/then_branch:t"
    assert message(nodes) == "two values would both be called 'y/then_branch:t'"


# ---- nodes -------------------------------------------------------------------------------------
def node(kind: str, inputs: list[str], outputs: list[str], **attributes: object) -> str:
    return message(of_nodes([helper.make_node(kind, inputs, outputs, **attributes)], {"x": [2]}, ["y"]))


def test_nodes() -> None:
    assert node("", ["x"], ["y"]) == "node 'y' has no op_type"
    assert node("Relu", ["x"], []) == "Relu '' has no outputs"
    assert node("Relu", ["x"], [""]) == "Relu '' has no outputs"
    assert node("Constant", [], ["y"]).startswith("Constant 'y' has 0 inputs, 1 outputs and 0 values")
    assert "and 2 values" in node("Constant", [], ["y"], value_int=1, value_float=1.0)
    assert node("Constant", ["x"], ["y"], value_int=1).startswith("Constant 'y' has 1 inputs")
    assert node("Constant", [], ["y"], other=1) == "Constant 'y' has a value of an unknown form: 'other'"


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (helper.make_node("MatMul", ["x"], ["y"], "n"), "MatMul 'n' has no operand B"),
        (helper.make_node("MatMul", ["", "x"], ["y"], "n"), "MatMul 'n' has no operand A"),
        (helper.make_node("Concat", [], ["y"], "n", axis=0), "Concat 'n' has no operand inputs"),
        (helper.make_node("Concat", ["x", "x"], ["y"], "n"), "Concat 'n' has no attribute axis"),
        (
            helper.make_node("Concat", ["x", "x"], ["y"], "n", axis=0.5),
            "Concat 'n': attribute axis is of kind FLOAT, want INT",
        ),
        (helper.make_node("GRU", ["x", "x"], ["y"], "n", hidden_size=2), "GRU 'n' has no operand R"),
        (
            helper.make_node("QuickGelu", [""], ["y"], "n", domain="com.microsoft"),
            "com.microsoft.QuickGelu 'n' has no operand number 0",
        ),
        (
            helper.make_node("BatchNormalization", ["x"] * 5, [], "n"),
            "BatchNormalization 'n' has no outputs",
        ),
        (helper.make_node("DynamicQuantizeLinear", ["x"], ["y"], "n"), "'n' has too few results"),
    ],
)
def test_what_an_operator_cannot_do_without(node: onnx.NodeProto, says: str) -> None:
    assert says in message(of_nodes([node], {"x": [2]}, ["y"]))


def test_attributes() -> None:
    proto = model("(f32[2] x) => (f32[2] y) { y = LeakyRelu<alpha = 0.5>(x) }")
    attribute = proto.graph.node[0].attribute
    attribute.append(attribute[0])
    assert message(proto) == "attribute 'alpha' of 'y' is given twice"
    del attribute[1]
    attribute[0].ClearField("f")
    attribute[0].type = onnx.AttributeProto.UNDEFINED
    attribute[0].ref_attr_name = "outer"
    assert message(proto) == "attribute 'alpha' of 'y' refers to one of a function, outside any"
    attribute[0].CopyFrom(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.GRAPHS))
    assert message(proto) == "attribute 'alpha' of 'y' is of a kind that no ONNX operator has"


# ---- constants ---------------------------------------------------------------------------------
def constant(tensor: TensorProto) -> str:
    tensor.name = "w"
    return message(of_nodes([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [2]}, ["y"], [tensor]))


def test_constants() -> None:
    assert constant(TensorProto(data_type=99, dims=[2])) == (
        "constant 'w' has element type 99, which is none of ONNX"
    )
    assert "negative dimension" in constant(TensorProto(data_type=1, dims=[-2], raw_data=bytes(8)))
    assert "less data than its [100]" in constant(TensorProto(data_type=1, dims=[100], raw_data=bytes(8)))
    assert "has 3 bytes for [1] of i64" in constant(TensorProto(data_type=7, dims=[1], raw_data=bytes(3)))
    assert "cannot be read" in constant(TensorProto(data_type=7, dims=[3], int64_data=[1, 2]))


def test_an_unnamed_initializer() -> None:
    proto = of_nodes(
        [helper.make_node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"], [numpy_helper.from_array(np.int64(1))]
    )
    assert message(proto) == "an initializer has no name"


def test_a_sparse_constant_with_bad_indices() -> None:
    values = numpy_helper.from_array(np.float32([5, 7]), "s")
    far = helper.make_sparse_tensor(values, numpy_helper.from_array(np.int64([0, 9])), [3])
    graph = load(
        of_nodes([helper.make_node("Add", ["x", "s"], ["y"])], {"x": [3]}, ["y"], sparse_initializer=[far])
    )
    tensor = graph.constant("s")
    assert tensor is not None
    with pytest.raises(FuseError, match="has an index outside"):
        tensor.array()


# ---- external data -----------------------------------------------------------------------------
DATA = np.arange(64, dtype=np.float32).reshape(8, 8)


def with_external(folder: Path, location: str = "w.bin", **entries: object) -> Path:
    add = helper.make_node("Add", ["x", "w"], ["y"])
    return save(of_nodes([add], {"x": [8, 8]}, ["y"], [external("w", DATA, location, **entries)]), folder)


def test_external_data_is_read_when_asked(tmp_path: Path) -> None:
    path = with_external(tmp_path, offset=6, length=DATA.nbytes)
    (tmp_path / "w.bin").write_bytes(b"before" + DATA.tobytes() + b"after")
    graph = load(path)
    tensor = graph.constant("w")
    assert tensor is not None
    assert (tensor.dtype, tensor.dims, tensor.nbytes) == ("f32", (8, 8), DATA.nbytes)
    np.testing.assert_array_equal(tensor.array(), DATA)
    before = graph.base.model.sha256
    (tmp_path / "w.bin").write_bytes(b"before" + DATA.tobytes() + b"afterwards")
    assert load(path).base.model.sha256 != before


def test_loading_does_not_open_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_external(tmp_path)
    (tmp_path / "w.bin").write_bytes(DATA.tobytes())

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("read while loading")

    monkeypatch.setattr(np, "memmap", refuse)
    assert load(path).constant("w") is not None


def test_packed_and_empty_external_data(tmp_path: Path) -> None:
    four = helper.make_tensor("w", TensorProto.INT4, [40], [i % 8 for i in range(40)])
    data = bytes(i % 8 | (i + 1) % 8 << 4 for i in range(0, 40, 2))
    four.ClearField("int32_data")
    four.data_location = TensorProto.EXTERNAL
    four.external_data.add(key="location", value="w.bin")
    none = external("n", np.zeros((0, 4), np.float32), "w.bin")
    odd = helper.make_node("Odd", ["x", "w", "n"], ["y"], domain="a")
    path = save(of_nodes([odd], {"x": [2]}, ["y"], [four, none]), tmp_path)
    (tmp_path / "w.bin").write_bytes(data)
    graph = load(path)
    tensor, empty = graph.constant("w"), graph.constant("n")
    assert tensor is not None
    assert empty is not None
    assert [int(i) for i in tensor.array()] == [i % 8 for i in range(40)]
    assert empty.array().shape == (0, 4)


def test_external_data_that_is_not_there(tmp_path: Path) -> None:
    assert message(with_external(tmp_path)) == "external data 'w.bin' of 'w' is missing"
    (tmp_path / "w.bin").write_bytes(bytes(100))
    assert message(with_external(tmp_path)) == (
        "initializer 'w' needs bytes 0 to 256 of 'w.bin', which has 100"
    )
    (tmp_path / "w.bin").write_bytes(bytes(256))
    assert "needs bytes 8 to 264" in message(with_external(tmp_path, offset=8))
    assert message(with_external(tmp_path, length=100)) == (
        "initializer 'w' needs 256 bytes and its external data gives 100"
    )
    assert message(with_external(tmp_path, offset=-1)) == "initializer 'w' has external data with offset '-1'"
    assert message(with_external(tmp_path, "")) == "initializer 'w' has external data without a location"
    (tmp_path / "sub").mkdir()
    assert message(with_external(tmp_path, "sub")) == "external data 'sub' of 'w' is not a file"
    assert message(with_external(tmp_path, "w\0.bin")) == "external data 'w\\x00.bin' of 'w' is not a file"
    long = "n" * 5000
    assert message(with_external(tmp_path, long)) == f"external data {long!r} of 'w' is missing"


@pytest.mark.parametrize("location", ["../w.bin", "sub/../../w.bin", "..\\w.bin", "{root}/w.bin", "link.bin"])
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "w.bin").write_bytes(DATA.tobytes())
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    os.symlink(tmp_path / "w.bin", folder / "link.bin")
    location = location.format(root=tmp_path)
    said = message(with_external(folder, location))
    assert said == f"external data {location!r} of 'w' lies outside the model's folder"


def test_a_download_cache_of_links_is_inside(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "one"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    with_external(blobs).rename(blobs / "aaa")
    (blobs / "bbb").write_bytes(DATA.tobytes())
    os.symlink(blobs / "aaa", snapshot / "m.onnx")
    os.symlink(blobs / "bbb", snapshot / "w.bin")
    tensor = load(snapshot / "m.onnx").constant("w")
    assert tensor is not None
    np.testing.assert_array_equal(tensor.array(), DATA)


def test_a_proto_without_a_folder_loads_and_cannot_be_read(tmp_path: Path) -> None:
    tensor = load(onnx.load(with_external(tmp_path), load_external_data=False)).constant("w")
    assert tensor is not None
    with pytest.raises(
        FuseError, match=r"constant 'w' lies in 'w.bin', and the model was given without a folder"
    ):
        tensor.array()


def test_tiny_external_data_is_read_for_the_shapes_where_it_can_be(tmp_path: Path) -> None:
    shape = external("w", np.int64([4, 16]), "w.bin")
    path = save(
        of_nodes([helper.make_node("Reshape", ["x", "w"], ["y"])], {"x": [8, 8]}, ["y"], [shape]), tmp_path
    )
    (tmp_path / "w.bin").write_bytes(np.int64([4, 16]).tobytes())
    assert str(load(path).type("y")) == "f32[4,16]"
    assert load(onnx.load(path, load_external_data=False)).content("w") is None


def test_an_onnx_ir_model_knows_its_folder(tmp_path: Path) -> None:
    import onnx_ir

    (tmp_path / "w.bin").write_bytes(DATA.tobytes())
    graph = load(onnx_ir.load(with_external(tmp_path, length=DATA.nbytes)))
    tensor = graph.constant("w")
    assert tensor is not None
    np.testing.assert_array_equal(tensor.array(), DATA)
    assert graph.base.model.folder == str(tmp_path)
