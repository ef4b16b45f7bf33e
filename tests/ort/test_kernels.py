"""vkep's operators as kernels of ONNX Runtime's registry: what is registered, held against the schemas, and run."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.ort.conftest import OpenSession, graph, reference, where
from tests.ort.test_running import CONTROL_FLOW, OPERATORS, make_feeds
from vkep.ops import registry

EP, CPU = "VulkanExecutionProvider", "CPUExecutionProvider"
#: these have attributes that are lists of texts, which the interface does not give to a kernel
UNREADABLE = {
    *("LSTM", "GRU", "RNN", "TfIdfVectorizer"),
    *("LabelEncoder", "LinearClassifier", "OneHotEncoder", "SVMClassifier"),
    *("TreeEnsembleClassifier", "TreeEnsembleRegressor"),
}


def test_every_operator_with_a_schema_and_readable_attributes_has_entries(registered: Any) -> None:
    from vkep.ort.nodes.operators import operator_entries

    entries = operator_entries()
    have = {(e.domain, e.op_type, e.since) for e in entries}
    assert len(have) == len(entries)
    for definition in registry.declared():
        for schema in registry.schema_versions(definition):
            key = (definition.domain, definition.op_type, schema.since_version)
            assert (key in have) != (definition.op_type in UNREADABLE), key


def test_all_entries_pass_onnx_runtimes_own_schemas(registered: Any) -> None:
    from vkep.ort.boundary import live
    from vkep.ort.nodes.kernels import check_against_schema
    from vkep.ort.nodes.operators import operator_entries

    ort = live("OrtEpFactory")[0].ort
    known = [check_against_schema(ort, entry) for entry in operator_entries()]
    assert sum(known) > 400
    assert sum(known) > 0.9 * len(known)  # the others are versions newer than ONNX Runtime's


def test_types_are_those_of_the_version() -> None:
    from vkep.ort.nodes.operators import operator_entries

    found = {e.since: e.constraints["T"] for e in operator_entries() if e.op_type == "Relu"}
    assert "int32" not in found[6] and "bfloat16" not in found[6]
    assert "bfloat16" in found[13] and "int32" not in found[13]
    assert "int32" in found[14]


@pytest.mark.parametrize("io", ["device", "host"])
@pytest.mark.parametrize("text", OPERATORS.values(), ids=OPERATORS.keys())
def test_operators_give_what_the_cpu_provider_gives(session: OpenSession, text: str, io: str) -> None:
    model = graph(text)
    feeds = make_feeds(model)
    tolerance = 2e-3 if "float16" in text else 1e-5
    made = session(model, io=io, kernels="registry")
    for got, expected in zip(made.run(None, feeds), reference(model, feeds), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


ATTRIBUTES: dict[str, tuple[int, str, dict[str, Any], list[str]]] = {
    "a number and whole numbers": (18, "LeakyRelu", {"alpha": 0.25}, ["x"]),
    "a list and a text": (
        18,
        "AveragePool",
        {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "count_include_pad": 1},
        ["x"],
    ),
    "a tensor": (18, "ConstantOfShape", {"value": helper.make_tensor("v", 7, [1], [9])}, ["s"]),
    "a list of numbers": (8, "Upsample", {"scales": [1.0, 1.0, 2.0, 3.0], "mode": "nearest"}, ["x"]),
    "an empty list": (18, "ReduceSum", {"keepdims": 0}, ["x"]),
}


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_attributes_of_every_kind_arrive(session: OpenSession, kind: str) -> None:
    opset, op_type, attributes, inputs = ATTRIBUTES[kind]
    feeds: dict[str, Any] = {
        "x": np.random.default_rng(2).standard_normal((1, 2, 5, 6)).astype(np.float32),
        "s": np.array([2, 3], np.int64),
    }
    feeds = {name: feeds[name] for name in inputs}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    node = helper.make_node(op_type, inputs, ["y"], **attributes)
    proto = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", opset)], ir_version=8).SerializeToString()
    made = session(model, optimize=False, kernels="registry")
    np.testing.assert_allclose(made.run(None, feeds)[0], reference(model, feeds)[0], rtol=1e-5, atol=1e-6)


def test_shapes_and_values_of_each_run_are_planned(session: OpenSession) -> None:
    model = graph("g (float[n,4] x, int64[2] s) => (float[a,b] y) { r = Relu(x) y = Reshape(r, s) }")
    made = session(model, kernels="registry")
    for rows, shape in ((2, (4, 2)), (3, (2, 6)), (2, (8, 1)), (0, (0, 4))):
        x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4) - 3
        got = made.run(None, {"x": x, "s": np.array(shape)})[0]
        np.testing.assert_array_equal(got, np.maximum(x, 0).reshape(shape))


@pytest.mark.parametrize("kind", CONTROL_FLOW)
def test_bodies_of_control_flow(session: OpenSession, kind: str) -> None:
    model = graph(CONTROL_FLOW[kind])
    made = session(model, kernels="registry")
    feeds: dict[str, Any] = {"x": np.array([1, -2, 3], np.float32)}
    if kind == "Loop":
        feeds |= {"n": np.array(4, np.int64), "c": np.array(True)}
    elif kind == "Scan":
        feeds["s"] = np.arange(12, dtype=np.float32).reshape(4, 3)
    else:
        feeds["c"] = np.array(False)
    for got, expected in zip(made.run(None, feeds), reference(model, feeds), strict=True):
        np.testing.assert_allclose(got, expected)


def test_operators_without_a_kernel_are_fused_alone(session: OpenSession) -> None:
    text = (
        "g (float[3,1,4] x, float[1,8,4] w, float[1,8,2] r) => (float[3,1,1,2] y) "
        "{ n = Neg(x) h = LSTM<hidden_size=2>(n, w, r) y = Relu(h) }"
    )
    model = graph(text)
    feeds = make_feeds(model)
    made = session(model, kernels="registry")
    assert where(made)[EP] == {"Neg": 1, "LSTM": 1, "Relu": 1}
    np.testing.assert_allclose(made.run(None, feeds)[0], reference(model, feeds)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("collected")
def test_kernels_go_with_their_session(registered: Any) -> None:
    import onnxruntime

    from vkep.ort.boundary import live_structs

    def kernels() -> int:
        return live_structs().get("OrtKernelImpl", 0)

    before = kernels()
    model = graph(OPERATORS["arithmetic"])
    made = onnxruntime.InferenceSession(model, providers=[(EP, {"kernels": "registry"})], enable_fallback=0)
    made.run(None, make_feeds(model))
    assert kernels() == before + 3
    del made
    gc.collect()
    assert kernels() == before


def test_a_wrong_choice_is_refused(session: OpenSession) -> None:
    with pytest.raises(RuntimeError, match="option 'kernels' is 'all', expected one of compile, registry"):
        session(graph(OPERATORS["cast"]), kernels="all")
