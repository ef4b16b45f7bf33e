"""Initializers that the options replace, and attributes that no engine knows."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser

import vkep
from vkep.errors import InvalidModelError

TEXT = """<ir_version: 9, opset_import: ["":18]> g (float[2,3] x) => (float[2,3] y)
    <float[3] w = {1,2,3}, float[3] v = {5,5,5}> { a = Mul(x, w) y = Add(a, v) }"""
X = np.ones((2, 3), np.float32)
GIVEN = np.array([10, 20, 30], np.float32)


def test_arrays_take_the_place_of_initializers(open_session: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(TEXT), path)
    for given in ({}, {"w": GIVEN}, {}):  # a plan that is kept of the one is not taken for the other
        session = open_session(path, initializers=given, cache_dir=tmp_path)
        np.testing.assert_array_equal(
            session.run(None, {"x": X})[0], X * given.get("w", np.array([1, 2, 3], np.float32)) + 5
        )


def test_they_are_given_as_to_onnx_runtime(open_session: Any) -> None:
    options = vkep.SessionOptions()
    options.add_initializer("w", vkep.OrtValue.ortvalue_from_numpy(GIVEN))
    options.add_initializer("v", GIVEN)
    np.testing.assert_array_equal(
        open_session(parser.parse_model(TEXT), sess_options=options).run(None, {"x": X})[0], X * GIVEN + GIVEN
    )


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"u": GIVEN}, ValueError, "no initializer named 'u'"),
        (
            {"w": GIVEN[:2]},
            ValueError,
            r"'w' is given as float32 of shape \(2,\), and the model's is float32 of shape \(3,\)",
        ),
        ({"w": GIVEN.astype(np.int32)}, ValueError, "'w' is given as int32"),
        ([GIVEN], TypeError, "a dict from names to arrays"),
    ],
)
def test_values_that_do_not_fit_are_reported(open_session: Any, given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        open_session(parser.parse_model(TEXT), initializers=given)


def with_attribute(opset: int, op_type: str = "LayerNormalization") -> onnx.ModelProto:
    """``epsion``: as ONNX Runtime's own test models misspell it."""
    node = helper.make_node(op_type, ["x", "s"], ["y"], epsion=0.5)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in (("x", [2, 3]), ("s", [3]))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@pytest.mark.parametrize("opset", [12, 17])
def test_attributes_that_no_engine_knows_are_warned_of(
    open_session: Any, caplog: pytest.LogCaptureFixture, opset: int
) -> None:
    caplog.set_level(logging.WARNING, "vkep.graph")
    session = open_session(with_attribute(opset))
    assert len(session.islands()[0].plan.dispatches) == 1  # by vkep's operator, not ONNX's function body
    assert "LayerNormalization '' has no attribute 'epsion': ignored" in caplog.text
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(
        session.run(None, {"x": x, "s": np.ones(3, np.float32)})[0], expected, rtol=1e-5, atol=1e-6
    )


def test_an_option_makes_them_errors(open_session: Any) -> None:
    with pytest.raises(InvalidModelError, match="LayerNormalization '' has no attribute 'epsion'"):
        open_session(with_attribute(12), unknown_attributes="error")
    with pytest.raises(ValueError, match="unknown_attributes is 'ignore', expected one of"):
        open_session(with_attribute(12), unknown_attributes="ignore")


def test_on_other_operators_they_are_always_errors(open_session: Any) -> None:
    with pytest.raises(InvalidModelError, match="Unrecognized attribute: epsion"):
        open_session(with_attribute(12, "Mul"))


def external(path: Path, location: str) -> Path:
    """Write a model whose initializer ``v`` is in the file ``location`` from byte 4 on."""
    proto = parser.parse_model(TEXT)
    tensor = next(t for t in proto.graph.initializer if t.name == "v")
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "4"), ("length", "12")):
        tensor.external_data.add(key=key, value=value)
    onnx.save(proto, path)
    return path


def test_external_data_that_are_given_need_no_file(open_session: Any, tmp_path: Path) -> None:
    path = external(tmp_path / "model.onnx", "none.bin")
    session = open_session(path, initializers={"v": GIVEN})
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], X * [1, 2, 3] + GIVEN)
    options = vkep.SessionOptions()
    content = bytes(4) + GIVEN.tobytes()
    options.add_external_initializers_from_files_in_memory(["none.bin"], [content + b"more"], [len(content)])
    for model in (path, path.read_bytes(), onnx.load(path, load_external_data=False)):
        session = open_session(model, sess_options=options)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], X * [1, 2, 3] + GIVEN)
    options.external_files = {"none.bin": content[:-1]}
    with pytest.raises(InvalidModelError, match=r"bytes 4 to 16 of 'none\.bin', which has 15 bytes"):
        open_session(path, sess_options=options)
    with pytest.raises(ValueError, match="length is 3, and the buffer has 2 bytes"):
        options.add_external_initializers_from_files_in_memory(["a"], [b"ab"], [3])


def test_links_of_hugging_faces_cache_lead_to_external_data(open_session: Any, tmp_path: Path) -> None:
    """Every file of a snapshot is a link to a blob, also in a folder of the snapshot."""
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "revision" / "onnx"
    blobs.mkdir()
    folder.mkdir(parents=True)
    external(blobs / "1", "model.onnx_data")
    (blobs / "2").write_bytes(bytes(4) + GIVEN.tobytes())
    try:
        (folder / "model.onnx").symlink_to(blobs / "1")
        (folder / "model.onnx_data").symlink_to(blobs / "2")
    except OSError:
        pytest.skip("no symbolic links here")
    session = open_session(folder / "model.onnx")
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], X * [1, 2, 3] + GIVEN)
