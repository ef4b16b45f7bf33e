"""If, Loop and Scan: as one node, or run by ONNX Runtime over bodies and values on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

from tests.ort.conftest import OpenSession, reference, where

EP, CPU = "VulkanExecutionProvider", "CPUExecutionProvider"
ROUNDS = 6
LOOP = """
g (int64 rounds, float[3,4] x, float[4,4] w) => (float[3,4] last, float[k,3] sums) <int64[1] one = {1}> {
    yes = Constant<value = bool {1}>()
    last, sums = Loop(rounds, yes, x) <
        body = body (int64 i, bool go, float[3,4] s) => (bool on, float[3,4] next, float[3] total) {
        product = MatMul(s, w)  next = Tanh(product)  total = ReduceSum<keepdims = 0>(next, one)
        size = ReduceMax<keepdims = 0>(next)  least = Constant<value = float {-2}>()  on = Greater(size, least)
    }>
}
"""
IF = """
g (bool request, float[3,4] x) => (float[3,4] y) {
    d = Mul(x, x)
    y = If(request) <
        then_branch = one () => (float[3,4] a) { a = Add(d, x) },
        else_branch = other () => (float[3,4] b) { n = Neg(d)  b = Exp(n) }
    >
}
"""


def feeds_of(text: str) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    if text is LOOP:
        x, w = rng.normal(0, 1, (3, 4)), rng.normal(0, 1, (4, 4))
        return {"rounds": np.array(ROUNDS), "x": x.astype(np.float32), "w": w.astype(np.float32)}
    return {"request": np.array(True), "x": rng.normal(0, 1, (3, 4)).astype(np.float32)}


def model_of(text: str) -> bytes:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {text}')
    return bytes(model.SerializeToString())


def scan_model(axes: bool) -> tuple[bytes, dict[str, Any]]:
    """A running sum over axis 1 of ``rows``, whose slices are put along axis 2 of the result (without ``axes``: along 0)."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "row"], ["next"]), helper.make_node("Relu", ["next"], ["out"])],
        "body",
        [value("state", TensorProto.FLOAT, [3, 4]), value("row", TensorProto.FLOAT, [3, 4])],
        [value("next", TensorProto.FLOAT, [3, 4]), value("out", TensorProto.FLOAT, [3, 4])],
    )
    given: dict[str, Any] = {"scan_input_axes": [1], "scan_output_axes": [2]} if axes else {}
    shape = [3, 5, 4] if axes else [5, 3, 4]
    node = helper.make_node("Scan", ["first", "rows"], ["last", "all"], body=body, num_scan_inputs=1, **given)
    graph = helper.make_graph(
        [node],
        "g",
        [value("first", TensorProto.FLOAT, [3, 4]), value("rows", TensorProto.FLOAT, shape)],
        [value("last", TensorProto.FLOAT, None), value("all", TensorProto.FLOAT, None)],
    )
    rng = np.random.default_rng(8)
    feeds = {n: rng.normal(0, 1, s).astype(np.float32) for n, s in (("first", (3, 4)), ("rows", shape))}
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString()), feeds


def check(session: OpenSession, model: bytes, feeds: dict[str, Any], **options: Any) -> None:
    made = session(model, **options)
    for _ in range(2):
        for ours, theirs in zip(made.run(None, feeds), reference(model, feeds), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


#: names that several bodies give to constants of their own, and a constant of the outer graph
NESTED = """
g (int64 rounds, bool request, float[n,4] x) => (float[n,4] y) <float[4] w = {1, 2, 3, 4}> {
    yes = Constant<value = bool {1}>()
    s = Loop(rounds, yes, x) <
        body = body (int64 i, bool go, float[n,4] a) => (bool on, float[n,4] e) <float[4] k = {0.5, 0.25, 0.5, 1}> {
        on = Identity(go)  b = Mul(a, k)
        e = If(request) <
            then_branch = one () => (float[n,4] c) <float[4] k = {1, 0, 1, 0}> { c = Add(b, k) },
            else_branch = two () => (float[n,4] d) <float[4] k = {-1, 0, 2, 0}> { m = Sub(b, k)  d = Mul(m, w) }
        >
    }>
    y = Relu(s)
}
"""


@pytest.mark.parametrize("optimize", [True, False])
def test_control_flow_of_vulkan_nodes_is_one_part(session: OpenSession, optimize: bool) -> None:
    made = session(model_of(NESTED), optimize=optimize)
    (part,) = made.get_provider_graph_assignment_info()
    assert {"Loop", "Relu"} <= {n.op_type for n in part.get_nodes()}
    rng = np.random.default_rng(9)
    for request in (True, False):
        feeds = {"rounds": np.array(3), "request": np.array(request), "x": rng.normal(0, 1, (2, 4)).astype(np.float32)}
        np.testing.assert_allclose(made.run(None, feeds)[0], reference(model_of(NESTED), feeds)[0], rtol=1e-5)


def test_control_flow_with_another_providers_node_is_run_by_onnx_runtime(session: OpenSession) -> None:
    text = IF.replace("n = Neg(d)", "t = Cast<to = 8>(d)  n = Cast<to = 1>(t)")  # through texts
    made = session(model_of(text), all_on_vulkan=False)
    assert where(made)[CPU]["Cast"] == 2 and where(made)[EP]["If"] == where(made)[EP]["Exp"] == 1
    for request in (True, False):
        feeds = feeds_of(IF) | {"request": np.array(request)}
        np.testing.assert_allclose(made.run(None, feeds)[0], reference(model_of(text), feeds)[0], rtol=1e-5)


OPTIONS: dict[str, dict[str, Any]] = {"device": {}, "host": {"io": "host"}, "registry": {"kernels": "registry"}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_loop(session: OpenSession, options: dict[str, Any]) -> None:
    for rounds in (ROUNDS, 1, 0):
        check(session, model_of(LOOP), feeds_of(LOOP) | {"rounds": np.array(rounds)}, **options)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("condition", [True, False])
def test_if(session: OpenSession, options: dict[str, Any], condition: bool) -> None:
    check(session, model_of(IF), feeds_of(IF) | {"request": np.array(condition)}, **options)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("axes", [True, False])
def test_scan(session: OpenSession, options: dict[str, Any], axes: bool) -> None:
    check(session, *scan_model(axes), **options)


def test_a_loops_state_stays_on_the_device(session: OpenSession, copies: list[str]) -> None:
    made = session(model_of(LOOP))
    made.run(None, feeds_of(LOOP))
    copies.clear()
    made.run(None, feeds_of(LOOP))
    # the feeds go up together, the count comes down; at the end the results are written to ONNX Runtime's memory, and read
    assert copies.count("download") <= 2
    assert copies.count("upload") <= 3


@pytest.mark.usefixtures("staged")
def test_a_loop_whose_number_decides_a_slice(session: OpenSession) -> None:
    """As on a discrete GPU: the number is read on the host, and the plan that it decides writes ONNX Runtime's device memory."""
    text = """
    g (int64 rounds, float[4,3] x) => (float[k,1,3] all) <int64[1] one = {1}> {
        yes = Constant<value = bool {1}>()
        all = Loop(rounds, yes) <
            body = body (int64 i, bool go) => (bool on, float[1,3] out) {
                on = Identity(go)  first = Reshape(i, one)  end = Add(first, one)
                row = Slice(x, first, end)  out = Exp(row)
            }
        >
    }
    """
    check(session, model_of(text), {"rounds": np.array(4), "x": np.arange(12, dtype=np.float32).reshape(4, 3) / 10})


def test_a_loop_over_texts_is_the_cpu_providers(session: OpenSession) -> None:
    text = """
    g (int64 rounds, string[2] t, float[3] x) => (string[2] last, float[3] z) {
        yes = Constant<value = bool {1}>()
        last, z = Loop(rounds, yes, t, x) <
            body = body (int64 i, bool go, string[2] s, float[3] v) => (bool on, string[2] next, float[3] w) {
                next = Identity(s)  on = Identity(go)  w = Exp(v)
            }
        >
    }
    """
    model = model_of(text)
    feeds = {"rounds": np.array(2), "t": np.array(["a", "b"], object), "x": np.array([0.1, -1, 0], np.float32)}
    made = session(model, all_on_vulkan=False)
    assert where(made)[CPU]["Loop"] == 1
    texts, numbers = made.run(None, feeds)
    np.testing.assert_array_equal(texts, feeds["t"])
    np.testing.assert_allclose(numbers, reference(model, feeds)[1], rtol=1e-5)


@pytest.mark.usefixtures("collected")
def test_its_kernels_go_with_the_session(registered: Any) -> None:
    import gc

    import onnxruntime

    from vkep.ort.boundary import live_structs

    kinds = ("OrtLoopKernelHelper", "OrtScanKernelHelper")
    before = live_structs()
    model, feeds = scan_model(True)
    for source, given in ((model, feeds), (model_of(LOOP), feeds_of(LOOP))):
        provider = (registered.EP_NAME, {"kernels": "registry"})
        made = onnxruntime.InferenceSession(source, providers=[provider], enable_fallback=0)
        made.run(None, given)
        assert sum(live_structs().get(k, 0) - before.get(k, 0) for k in kinds) == 1
        del made
        gc.collect()
    assert [live_structs().get(k, 0) - before.get(k, 0) for k in kinds] == [0, 0]
