"""`SparseTensor`: made, read, fed and given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import vkep
from vkep import InferenceSession, InvalidInputError, OrtDevice, OrtSparseFormat, OrtValue, SparseTensor

Open = Callable[..., InferenceSession]
CPU = OrtDevice.make("cpu", 0)
DENSE = np.array([[0, 2, 0], [0, 0, 0], [-3, 0, 5]], np.float32)
VALUES = np.array([2, -3, 5], np.float32)
FORMS: dict[str, Callable[[], SparseTensor]] = {
    "numbers": lambda: SparseTensor.sparse_coo_from_numpy([3, 3], VALUES, np.array([1, 6, 8]), CPU),
    "coordinates": lambda: SparseTensor.sparse_coo_from_numpy([3, 3], VALUES, np.array([[0, 1], [2, 0], [2, 2]]), CPU),
    "rows": lambda: SparseTensor.sparse_csr_from_numpy(
        [3, 3], VALUES, np.array([1, 0, 2]), np.array([0, 1, 1, 3]), CPU
    ),
}


def product(**attributes: Any) -> bytes:
    """A product of a sparse and a dense matrix."""
    node = helper.make_node("SparseToDenseMatMul", ["a", "b"], ["y"], domain="com.microsoft", **attributes)
    a = helper.make_sparse_tensor_value_info("a", TensorProto.FLOAT, [3, 3])
    b, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, "n"]) for name in "by")
    domains = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", [a, b], [y]), opset_imports=domains, ir_version=9)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("form", FORMS)
def test_its_views(form: str) -> None:
    made = FORMS[form]()
    np.testing.assert_array_equal(made.dense(), DENSE)
    assert (made.dense_shape(), made.data_type(), made.device_name()) == ([3, 3], "sparse_tensor(float)", "cpu")
    value = OrtValue.ort_value_from_sparse_tensor(made)
    assert (value.is_sparse_tensor(), value.is_tensor(), value.data_type()) == (True, False, "sparse_tensor(float)")
    again = value.as_sparse_tensor()
    assert np.shares_memory(again.values(), VALUES) and not again.values().flags.writeable
    if form == "rows":
        assert again.format() == OrtSparseFormat.ORT_SPARSE_CSRC
        np.testing.assert_array_equal(again.as_csrc_view().outer(), [0, 1, 1, 3])
        with pytest.raises(ValueError, match="it has no indices"):
            again.as_coo_view()
    else:
        assert again.format() == OrtSparseFormat.ORT_SPARSE_COO
        assert len(again.as_coo_view().indices()) == 3
        with pytest.raises(ValueError, match="it has no inner"):
            again.as_csrc_view()


def test_texts_and_dense_values() -> None:
    texts = SparseTensor.sparse_coo_from_numpy([9], np.array(["a", "b"]), np.array([1, 2]), CPU)
    assert texts.data_type() == "sparse_tensor(string)" and texts.values().tolist() == ["a", "b"]
    with pytest.raises(InvalidInputError, match="texts"):
        OrtValue.ort_value_from_sparse_tensor(texts)
    with pytest.raises(ValueError, match="is not sparse"):
        OrtValue.ortvalue_from_numpy(DENSE).as_sparse_tensor()


#: dense shape, values, indices (one array: coordinates)
WRONG: dict[str, tuple[list[int], Any, list[Any]]] = {
    "outside": ([3, 3], VALUES, [np.array([1, 6, 9])]),
    "negative": ([3, 3], VALUES, [np.array([[0, 1], [2, -1], [2, 2]])]),
    "too few": ([3, 3], VALUES, [np.array([1, 6])]),
    "int32": ([3, 3], VALUES, [np.array([1, 6, 8], np.int32)]),
    "coordinates of a cube": ([3, 3, 3], VALUES, [np.array([[0, 1], [2, 0], [2, 2]])]),
    "two axes": ([3, 3], VALUES[None], [np.array([1])]),
    "columns outside": ([3, 3], VALUES, [np.array([1, 0, 3]), np.array([0, 1, 1, 3])]),
    "rows that fall": ([3, 3], VALUES, [np.array([1, 0, 2]), np.array([0, 2, 1, 3])]),
    "rows to elsewhere": ([3, 3], VALUES, [np.array([1, 0, 2]), np.array([0, 1, 1, 2])]),
    "a row too few": ([3, 3], VALUES, [np.array([1, 0, 2]), np.array([0, 1, 3])]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_tensor(wrong: str) -> None:
    shape, values, indices = WRONG[wrong]
    make: Any = SparseTensor.sparse_csr_from_numpy if len(indices) == 2 else SparseTensor.sparse_coo_from_numpy
    with pytest.raises(ValueError):
        make(shape, values, *indices, CPU)
    with pytest.raises(ValueError, match="expected the host"):
        make(shape, values, *indices, OrtDevice.make("gpu", 0))


@pytest.mark.gpu
@pytest.mark.parametrize("attributes", [{}, {"alpha": 0.5, "transA": 1}], ids=["plain", "transposed"])
def test_inputs(open_session: Open, attributes: dict[str, Any]) -> None:
    b = np.arange(6, dtype=np.float32).reshape(3, 2)
    session = open_session(product(**attributes), fallback="error")
    assert session.get_inputs()[0].type == "sparse_tensor(float)"
    expected = attributes.get("alpha", 1) * (DENSE.T if attributes else DENSE) @ b
    for form in FORMS.values():
        for a in (form(), OrtValue.ort_value_from_sparse_tensor(form())):
            np.testing.assert_array_equal(session.run(None, {"a": a, "b": b})[0], expected)
    with pytest.raises(InvalidInputError, match="'b': got a sparse tensor, expected a dense one"):
        session.run(None, {"a": FORMS["rows"](), "b": FORMS["rows"]()})


@pytest.mark.gpu
def test_outputs(open_session: Open) -> None:
    values = helper.make_tensor("v", TensorProto.FLOAT, [3], VALUES)
    indices = helper.make_tensor("i", TensorProto.INT64, [3], [1, 6, 8])
    constant = helper.make_node("Constant", [], ["y"], sparse_value=helper.make_sparse_tensor(values, indices, [3, 3]))
    y = helper.make_sparse_tensor_value_info("y", TensorProto.FLOAT, [3, 3])
    graph = helper.make_graph([constant], "g", [], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = open_session(model)
    assert session.get_outputs()[0].type == "sparse_tensor(float)"
    for made in (session.run(None, {})[0], session.run_with_ort_values(["y"], {})[0].as_sparse_tensor()):
        assert isinstance(made, vkep.SparseTensor)
        np.testing.assert_array_equal(made.values(), VALUES)
        np.testing.assert_array_equal(made.as_coo_view().indices(), [1, 6, 8])
    with pytest.raises(ValueError, match="the content of a sparse tensor cannot be replaced"):
        session.run_with_ort_values(["y"], {})[0].update_inplace(np.zeros((3, 3), np.float32))
