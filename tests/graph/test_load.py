"""Reading models: what is right comes out as written, what is wrong is said in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from vkep.errors import InvalidModelError, UnsupportedModelError
from vkep.graph import load_model

GOOD = parser.parse_model(
    '<ir_version: 9, opset_import: ["": 18]> g (float[n, 3] x, float[3] w) => (float[n, 3] y) { s = Add(x, w) y = Relu(s) }'
)


def changed_model(**fields: Any) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    proto.CopyFrom(GOOD)
    for name, value in fields.items():
        setattr(proto, name, value)
    return proto


def test_a_model_as_it_was_written() -> None:
    proto = changed_model(producer_name="tests", producer_version="2")
    proto.metadata_props.add(key="k", value="v")
    model = load_model(proto)
    assert [n.title for n in model.graph.nodes] == ["Add 'Add_0'", "Relu 'Relu_1'"]
    assert [(v.name, v.elem_type, v.shape) for v in model.graph.inputs] == [("x", 1, ("n", 3)), ("w", 1, (3,))]
    assert [v.static_shape for v in model.graph.inputs] == [None, (3,)]
    assert model.opsets == {"": 18} and model.metadata.producer_name == "tests"
    assert model.metadata.custom_metadata_map == {"k": "v"}
    assert [n.since_version for n in model.graph.nodes] == [14, 14]


def test_constants_and_initializers_are_weights() -> None:
    proto = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[2] x, float[2] w) => (float[2] y) '
        "{ c = Constant<value = float[2] {1, 2}>() s = Add(x, c) y = Mul(s, w) }"
    )
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [2], [3, 4]))
    graph = load_model(proto).graph
    assert [v.name for v in graph.inputs] == ["x"], "old models list initializers as inputs too"
    np.testing.assert_array_equal(graph.weights["c"].array(), [1, 2])
    np.testing.assert_array_equal(graph.weights["w"].array(), [3, 4])
    assert [n.op_type for n in graph.nodes] == ["Add", "Mul"]


def test_equal_content_has_one_key() -> None:
    def weight(name: str, values: np.ndarray) -> Any:
        proto = changed_model()
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
        return load_model(proto).graph.weights[name]

    a = np.arange(3, dtype=np.float32)
    assert weight("p", a).key == weight("q", a).key
    assert len({weight("p", v).key for v in (a, a[None], a.view(np.int32), a + 1)}) == 4


def test_captured_names_of_bodies() -> None:
    proto = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> g (bool c, float[2] x) => (float[2] y) {
        d = Add(x, x) e = Neg(x)
        y = If (c) <then_branch = t () => (float[2] r) { q = Mul(d, x) r = Neg(q) },
                    else_branch = f () => (float[2] r) { r = Identity(e) }> }"""
    )
    node = load_model(proto).graph.nodes[2]
    assert set(node.captures) == {"d", "x", "e"} and node.reads == ("c", *node.captures)


def test_local_functions_are_inlined() -> None:
    proto = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18, "local": 1]>
        g (float[2] x) => (float[2] y) { y = local.twice(x) }
        <domain: "local", opset_import: ["": 18]> twice (a) => (b) { b = Add(a, a) }"""
    )
    assert [n.op_type for n in load_model(proto).graph.nodes] == ["Add"]


# ---- what is no model


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no model file at .*missing\.onnx"):
        load_model(tmp_path / "missing.onnx")
    with pytest.raises(FileNotFoundError, match=r"no model file at .*: it is a folder, expected a file"):
        load_model(tmp_path)
    for path in (tmp_path / ("a" * 5000), tmp_path / "a\0b"):
        with pytest.raises(FileNotFoundError, match="no model file at"):
            load_model(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an ONNX model: it is empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4, "is not an ONNX model"),
        (b"not a model at all, but some text\n" * 20, "is not an ONNX model"),
        (np.random.default_rng(0).bytes(5000), "is not an ONNX model"),
        (GOOD.SerializeToString()[:-9], "not an ONNX model, or is truncated"),
    ],
    ids=["empty", "picture", "text", "random", "truncated"],
)
def test_bytes_that_are_no_model(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=message):
        load_model(data)
    path = tmp_path / "bad.onnx"
    path.write_bytes(data)
    with pytest.raises(InvalidModelError, match=rf"bad\.onnx.*{message}"):
        load_model(path)


def test_every_truncation_is_refused_or_whole() -> None:
    """A message may happen to end where it is cut; what is then missing is said too."""
    data = GOOD.SerializeToString()
    for length in range(len(data)):
        with pytest.raises(InvalidModelError):
            load_model(data[:length])


def test_random_damage_never_crashes() -> None:
    rng = np.random.default_rng(1)
    data = np.frombuffer(GOOD.SerializeToString(), np.uint8)
    refused = 0
    for _ in range(2000):
        damaged = data.copy()
        at = rng.integers(0, data.size, 1 + rng.integers(0, 4))
        damaged[at] = rng.integers(0, 256, at.size, dtype=np.uint8)
        try:
            load_model(damaged.tobytes())
        except InvalidModelError:
            refused += 1
    assert refused > 400


def test_wrong_kinds_of_source() -> None:
    with pytest.raises(TypeError, match=r"a model is a path, bytes or onnx\.ModelProto; got int"):
        load_model(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "VulkanExecutionProvider",
            r"\(EPContext of VulkanExecutionProvider\): open it with onnxruntime and vkep\.ort",
        ),
        ("QNNExecutionProvider", r"\(EPContext of QNNExecutionProvider\): open it with onnxruntime and that provider"),
        ("", r"\(EPContext of a provider it does not name\)"),
    ],
)
def test_models_compiled_for_onnx_runtime(source: str, message: str) -> None:
    text = f"z = Neg(x) y = com.microsoft.EPContext{f'<source={chr(34)}{source}{chr(34)}>' if source else ''}(z)"
    with pytest.raises(UnsupportedModelError, match=f"the model is compiled for ONNX Runtime {message}"):
        load_model(one_graph(text, '"": 18, "com.microsoft": 1'))


# ---- models that break the specification


def one_graph(text: str, opsets: str = '"": 18') -> onnx.ModelProto:
    return parser.parse_model(f"<ir_version: 9, opset_import: [{opsets}]> g (float[2] x) => (float[2] y) {{ {text} }}")


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (one_graph("y = Relu(x)", '"": 9999'), r"uses ai.onnx opset 9999; the installed onnx package knows up to \d+"),
        (one_graph("y = Relu(x)", '"other": 1'), "Relu needs an opset import for ai.onnx"),
        (one_graph("y = LeakyRelu<slope=0.5>(x)"), "(?s)LeakyRelu.*[Uu]nrecognized attribute: slope"),
        (one_graph('y = LeakyRelu<alpha="much">(x)'), "(?s)LeakyRelu.*alpha"),
        (one_graph("y = Concat(x, x)"), "(?s)Concat.*axis"),
        (one_graph("y = Add(x)"), "Add.*has input size 1 not in range"),
        (one_graph("y, z = Relu(x)"), "Relu.*has output size 2 not in range"),
        (
            one_graph("a = Add(x, b) b = Relu(a) y = Neg(b)"),
            "the model: Add '' waits for its own output: the graph has a circle",
        ),
        (one_graph("y = Add(x, nowhere)"), "reads 'nowhere'"),
        (one_graph("y = Relu(x) y = Neg(x)"), "Neg 'Neg_1' defines 'y' a second time"),
        (one_graph("x = Relu(x) y = Neg(x)"), "defines 'x' a second time"),
        (one_graph("z = Relu(x)"), "output 'y' is made by no node"),
        (one_graph("y = Upsample(x, x)"), "(?s)Upsample.*deprecated"),
    ],
    ids=lambda v: None if isinstance(v, str) else v.graph.node[0].op_type,
)
def test_a_model_that_breaks_the_specification(proto: onnx.ModelProto, message: str) -> None:
    with pytest.raises(InvalidModelError, match=message):
        load_model(proto)


def test_weights_whose_bytes_do_not_fit() -> None:
    proto = changed_model()
    bad = helper.make_tensor("w", TensorProto.FLOAT, [3], b"\0" * 12, raw=True)
    bad.raw_data = b"\0" * 10
    proto.graph.initializer.append(bad)
    weight = load_model(proto).graph.weights["w"]
    with pytest.raises(InvalidModelError, match=r"weight 'w': its data does not fit type float and shape \(3,\)"):
        weight.array()


# ---- external data


def external_model(folder: Path, **change: str) -> Path:
    proto = changed_model()
    values = np.arange(3, dtype=np.float32)
    (folder / "w.bin").write_bytes(b"\xff" * 8 + values.tobytes())
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [3], values.tobytes(), raw=True)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries: dict[str, str] = {"location": "w.bin", "offset": "8", "length": "12", **change}
    for key, value in entries.items():
        if value:
            tensor.external_data.add(key=key, value=value)
    proto.graph.initializer.append(tensor)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    weight = load_model(external_model(tmp_path)).graph.weights["w"]
    assert weight.in_file and weight.array() is not weight.array()
    out = np.empty(12, np.uint8)
    assert weight.stored is not None
    weight.stored.read_into(out)
    assert out.view(np.float32).tolist() == [0, 1, 2]
    weight.stored.read_into(out[:4], 8)
    assert out.view(np.float32).tolist() == [2, 1, 2]
    np.testing.assert_array_equal(weight.array(), [0, 1, 2])
    without = load_model(external_model(tmp_path, length="")).graph.weights["w"]
    np.testing.assert_array_equal(without.array(), [0, 1, 2])


def test_external_data_of_a_model_given_as_bytes(tmp_path: Path) -> None:
    data = external_model(tmp_path).read_bytes()
    with pytest.raises(InvalidModelError, match=r"'w' lies in the external file 'w.bin'.*pass the folder.*base_dir"):
        load_model(data)
    np.testing.assert_array_equal(load_model(data, base_dir=tmp_path).graph.weights["w"].array(), [0, 1, 2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"location": "a\0b"}, "is no path"),
        ({"location": "a" * 300}, " at .*aaa"),
        ({"location": "other.bin"}, " at .*other.bin"),
        ({"location": "../w.bin"}, r"location '\.\./w\.bin' is not inside"),
        ({"location": "/etc/hostname"}, "location '/etc/hostname' is not inside"),
        ({"location": "a/../../w.bin"}, "is not inside"),
        ({"location": ""}, "location '' is not inside"),
        ({"offset": "9"}, "needs 12 bytes at offset 9 .* the file has 20 bytes"),
        ({"offset": "-8"}, "needs 12 bytes at offset -8"),
        ({"length": "8"}, "the model says length 8"),
        ({"offset": "some"}, "offset or length is no number"),
        ({"offset": str(2**63)}, "needs 12 bytes at offset 9223372036854775808"),
    ],
)
def test_wrong_external_data(tmp_path: Path, change: dict[str, str], message: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(40))
    with pytest.raises(InvalidModelError, match=f"weight 'w'.*{message}"):
        load_model(external_model(folder, **change))


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(40))
    try:
        (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    except OSError:
        pytest.skip("no symbolic links here")
    with pytest.raises(InvalidModelError, match=r"'link\.bin' is not inside"):
        load_model(external_model(folder, location="link.bin"))


def test_external_data_truncated(tmp_path: Path) -> None:
    path = external_model(tmp_path)
    with open(tmp_path / "w.bin", "r+b") as file:
        file.truncate(15)
    with pytest.raises(InvalidModelError, match="the file has 15 bytes"):
        load_model(path)


# ---- what may be written in several ways


def test_nodes_are_brought_into_an_order_in_which_they_can_run() -> None:
    proto = one_graph("y = Neg(d) c = Abs(b) d = Add(b, c) b = Relu(x)")
    before = proto.SerializeToString()
    assert [n.op_type for n in load_model(proto).graph.nodes] == ["Relu", "Abs", "Add", "Neg"]
    assert proto.SerializeToString() == before, "the caller's model stays as it was"
    assert [n.op_type for n in load_model(one_graph("b = Relu(x) a = Abs(x) y = Add(a, b)")).graph.nodes] == [
        "Relu",
        "Abs",
        "Add",
    ]


def test_a_body_is_sorted_and_waits_for_what_it_captures() -> None:
    proto = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (bool c, float[2] x) => (float[2] y) { y = If(c) '
        "<then_branch = t () => (float[2] p) { p = Neg(q) q = Abs(k) }, else_branch = e () => (float[2] r) { r = Neg(x) }> "
        "k = Relu(x) }"
    )
    graph = load_model(proto).graph
    assert [n.op_type for n in graph.nodes] == ["Relu", "If"]
    assert [n.op_type for n in graph.nodes[1].bodies["then_branch"].nodes] == ["Abs", "Neg"]
    assert graph.nodes[1].captures == ("k", "x")


def test_the_alias_of_the_empty_domain() -> None:
    proto = one_graph("y = Relu(x)", '"ai.onnx": 18')
    proto.graph.node[0].domain = "ai.onnx"
    model = load_model(proto)
    assert model.opsets == {"": 18} and model.graph.nodes[0].domain == "" and model.graph.nodes[0].since_version == 14


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]], ids=["linear", "coordinates"])
def test_sparse_initializers_become_dense(indices: list[Any]) -> None:
    proto = one_graph("y = Relu(x)")
    at = np.array(indices, np.int64)
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [7, 8])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, numpy_helper.from_array(at, "i"), [2, 3]))
    np.testing.assert_array_equal(load_model(proto).graph.weights["w"].array(), [[0, 7, 0], [0, 0, 8]])
    proto.graph.sparse_initializer[0].dims[:] = [1, 3]
    with pytest.raises(InvalidModelError, match="the model: sparse initializer 'w': "):
        load_model(proto)


def test_a_node_without_inputs_and_outputs_is_left_out() -> None:
    proto = one_graph("y = Relu(x)")
    proto.graph.node.append(helper.make_node("If", [], [], name="idle"))
    assert [n.op_type for n in load_model(proto).graph.nodes] == ["Relu"]
    assert len(proto.graph.node) == 2, "the caller's model stays as it was"


def test_a_sparse_constant_becomes_a_weight() -> None:
    proto = one_graph("y = Relu(x)")
    values = helper.make_tensor("", TensorProto.FLOAT, [2], [7, 8])
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 5]), "i"), [2, 3])
    proto.graph.node.append(helper.make_node("Constant", [], ["c"], sparse_value=sparse))
    np.testing.assert_array_equal(load_model(proto).graph.weights["c"].array(), [[0, 7, 0], [0, 0, 8]])
