"""Inputs that are maps, which nodes on the CPU read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from vkep import InferenceSession, InvalidInputError
from vkep.session.inputs import map_of

pytestmark = pytest.mark.gpu
KEYS: dict[int, dict[str, Any]] = {
    TensorProto.INT64: {"int64_vocabulary": [3, 1, 2]},
    TensorProto.STRING: {"string_vocabulary": ["c", "a", "b"]},
}


def model(key_type: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("DictVectorizer", ["x"], ["v"], domain="ai.onnx.ml", **KEYS[key_type]),
        helper.make_node("Mul", ["v", "v"], ["y"]),
    ]
    kind = helper.make_map_type_proto(key_type, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    x = onnx.ValueInfoProto(name="x", type=kind)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, None])
    domains = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=domains, ir_version=9)


@pytest.mark.parametrize(("key_type", "keys"), [(TensorProto.INT64, (1, 3)), (TensorProto.STRING, ("a", "c"))])
def test_a_dict_is_an_input(
    open_session: Callable[..., InferenceSession], key_type: int, keys: tuple[Any, Any]
) -> None:
    session = open_session(model(key_type))
    (x,) = session.get_inputs()
    assert (x.type, x.shape) == (f"map({'int64' if key_type == TensorProto.INT64 else 'string'},tensor(float))", [])
    one, three = keys
    for feed in ({one: 2.5, three: 4}, {three: np.float64(4), one: np.float32(2.5)}):
        np.testing.assert_array_equal(session.run(None, {"x": feed})[0], [[16, 6.25, 0]])
    wrong: list[tuple[Any, str]] = [
        ({1.5: 2}, r"got keys \[1.5\], expected a dict \(map"),
        ({one: "z"}, "expected values of float32"),
        (np.ones(3, np.float32), r"got float32 \(3,\), expected a dict"),
        (5, "expected a dict"),
    ]
    for value, message in wrong:
        with pytest.raises(InvalidInputError, match=message):
            session.run(None, {"x": value})


def test_numbers_of_a_dict_are_not_rounded() -> None:
    declared = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.INT64, []))
    assert map_of("x", {1: 2, 3: 4.0}, declared.map_type) == {1: 2, 3: 4}
    for wrong in (2.7, float("inf"), float("nan")):
        with pytest.raises(InvalidInputError, match="expected values of int64"):
            map_of("x", {1: wrong}, declared.map_type)


def test_a_sequence_of_dicts_is_an_input(open_session: Callable[..., InferenceSession]) -> None:
    kind = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    x, y = onnx.ValueInfoProto(name="x", type=kind), helper.make_tensor_value_info("y", TensorProto.INT64, [])
    graph = helper.make_graph([helper.make_node("SequenceLength", ["x"], ["y"])], "g", [x], [y])
    session = open_session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    assert session.run(None, {"x": [{1: 2.5}, {4: 1}]})[0] == 2
