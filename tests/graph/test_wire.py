"""Large weights are found in a model's bytes without parsing them, and what is left parses to the same model."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vkep.errors import InvalidModelError
from vkep.graph import load_model
from vkep.graph.wire import LEAST_BYTES, split

_LARGE = np.arange(LEAST_BYTES, dtype=np.float32).reshape(64, -1)
_HALF = _LARGE.astype(np.float16)
_SMALL = np.array([3.0], np.float32)
#: nibbles: an element type that numpy has no view of
_NIBBLES = helper.make_tensor("nibbles", TensorProto.INT4, [2 * LEAST_BYTES], b"\x21" * LEAST_BYTES, raw=True)


@pytest.fixture
def proto() -> onnx.ModelProto:
    weights = [
        numpy_helper.from_array(_SMALL, "small"),
        numpy_helper.from_array(_LARGE, "large"),
        helper.make_tensor("floats", TensorProto.FLOAT, _LARGE.shape, _LARGE.reshape(-1) + 1),
        numpy_helper.from_array(_HALF, "half"),
        _NIBBLES,
    ]
    nodes = [helper.make_node("Mul", ["x", "large"], ["a"]), helper.make_node("Add", ["a", "floats"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, _LARGE.shape) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_the_rest_and_the_split_weights_are_the_model(proto: onnx.ModelProto) -> None:
    data = proto.SerializeToString()
    found = split(memoryview(data))
    assert found is not None
    left, raw = found
    assert [r.initializer for r in raw] == [1, 3, 4]
    assert len(left) + sum(r.end - r.start for r in raw) <= len(data)
    rebuilt = onnx.ModelProto.FromString(left)
    for one in raw:
        assert not rebuilt.graph.initializer[one.initializer].raw_data
        rebuilt.graph.initializer[one.initializer].raw_data = data[one.start : one.end]
    assert rebuilt == proto


@pytest.mark.parametrize("source", ["file", "bytes", "memoryview", "proto"])
def test_weights_are_the_same_however_the_model_comes(proto: onnx.ModelProto, source: str, tmp_path: Path) -> None:
    path, data = tmp_path / "m.onnx", proto.SerializeToString()
    path.write_bytes(data)
    model = load_model({"file": path, "bytes": data, "memoryview": memoryview(data), "proto": proto}[source])
    path.unlink()
    weights = model.graph.weights
    for name, expected in (("small", _SMALL), ("large", _LARGE), ("floats", _LARGE + 1), ("half", _HALF)):
        np.testing.assert_array_equal(weights[name].array(), expected)
        assert weights[name].array().flags.aligned
        assert weights[name].array().dtype == expected.dtype
    assert weights["nibbles"].array()[:4].tolist() == [1, 2, 1, 2]
    assert weights["large"].key == load_model(proto).graph.weights["large"].key


def test_functions_are_inlined_with_their_weights(proto: onnx.ModelProto, tmp_path: Path) -> None:
    body = helper.make_function(
        "local", "twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 21)]
    )
    proto.functions.append(body)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    proto.graph.node[1].CopyFrom(helper.make_node("twice", ["a"], ["y"], domain="local"))
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    graph = load_model(path).graph
    assert [n.op_type for n in graph.nodes] == ["Mul", "Add"]
    np.testing.assert_array_equal(graph.weights["large"].array(), _LARGE)


def test_a_weight_whose_bytes_do_not_fit_its_shape(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[1].dims[0] += 1
    weight = load_model(proto.SerializeToString()).graph.weights["large"]
    with pytest.raises(InvalidModelError, match="'large': its data does not fit"):
        weight.array()


@pytest.mark.parametrize("length", [1, 100, LEAST_BYTES, 5 * LEAST_BYTES])
def test_a_truncated_model_is_left_to_the_parser(proto: onnx.ModelProto, length: int) -> None:
    data = proto.SerializeToString()
    assert split(memoryview(data[:-length])) is None
    with pytest.raises(InvalidModelError, match="not an ONNX model"):
        load_model(data[:-length])


@pytest.mark.parametrize("data", [b"", b"no model at all", bytes(range(256)), b"\x3a\x00", b"\xff" * 64])
def test_other_bytes_are_left_to_the_parser(data: bytes) -> None:
    assert split(memoryview(data)) is None


def test_a_search_without_end_is_left_to_the_parser(proto: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros would be fields of two bytes each; so would any number of small fields."""
    data = proto.SerializeToString()
    assert split(memoryview(data + bytes(100))) is None, "no field has the number 0"
    small = onnx.ModelProto(opset_import=[helper.make_opsetid("", 21)]).SerializeToString()
    assert split(memoryview(data + small * 100)) is not None
    monkeypatch.setattr("vkep.graph.wire.MOST_FIELDS", 100)
    assert split(memoryview(data + small * 100)) is None


def test_what_is_left_of_a_model_is_bounded(proto: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    data = memoryview(proto.SerializeToString())
    found = split(data)
    assert found is not None
    monkeypatch.setattr("vkep.graph.wire.MOST_BYTES", len(found[0]) // 2)
    assert split(data) is None


def test_raw_data_that_does_not_fit_is_not_read(
    proto: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto.graph.initializer[1].dims[0] += 1
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    weight = load_model(path).graph.weights["large"]
    monkeypatch.setattr("vkep.graph.files.FileReader.read", None)
    with pytest.raises(InvalidModelError, match="'large': its data does not fit"):
        weight.array()


def test_two_graphs_are_left_to_the_parser(proto: onnx.ModelProto) -> None:
    data = proto.SerializeToString()
    assert split(memoryview(data + onnx.ModelProto(graph=onnx.GraphProto(name="more")).SerializeToString())) is None


@pytest.mark.skipif(sys.platform == "win32", reason="the system refuses to truncate an open file that is mapped")
def test_a_file_that_is_written_to_later_is_an_error_not_other_weights(proto: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    weight = load_model(path).graph.weights["large"]
    with path.open("r+b") as file:
        file.truncate(200)
    with pytest.raises(InvalidModelError, match="was changed after the model was opened"):
        weight.array()


def test_bytes_that_change_later_do_not_change_the_weights(proto: onnx.ModelProto) -> None:
    data = bytearray(proto.SerializeToString())
    model = load_model(data)
    data[:] = bytes(len(data))
    np.testing.assert_array_equal(model.graph.weights["large"].array(), _LARGE)
