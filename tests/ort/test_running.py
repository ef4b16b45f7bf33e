"""Models through ONNX Runtime: the same results as its CPU provider, on the nodes that Vulkan was asked for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.ort.conftest import OpenSession, graph, reference, where

EP, CPU = "VulkanExecutionProvider", "CPUExecutionProvider"

OPERATORS = {
    "arithmetic": "g (float[2,3] x) => (float[2,3] y) { a = Mul(x, x) b = Sub(a, x) y = Div(b, a) }",
    "matmul": "g (float[4,8] x) => (float[4,4] y) { t = Transpose<perm=[1,0]>(x) y = MatMul(x, t) }",
    "softmax": "g (float[2,7] x) => (float[2,7] y) { y = Softmax<axis=-1>(x) }",
    "reduce": "g (float[2,5,3] x) => (float[2,3] y) <int64[1] a = {1}> { y = ReduceMean<keepdims=0>(x, a) }",
    "concat": "g (float[2,3] x) => (float[4,3] y) { y = Concat<axis=0>(x, x) }",
    "cast": "g (float[6] x) => (int32[6] y) { y = Cast<to=6>(x) }",
    "pool": "g (float[1,2,8,8] x) => (float[1,2,4,4] y) { y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }",
    "two outputs": "g (float[4,6] x) => (float[4,3] y, float[4,3] z) { y, z = Split<axis=1, num_outputs=2>(x) }",
    "normalization": "g (float[3,8] x, float[8] s, float[8] b) => (float[3,8] y) { y = LayerNormalization(x, s, b) }",
    "half": "g (float16[4,4] x) => (float16[4,4] y) { a = MatMul(x, x) y = Relu(a) }",
}


def make_feeds(model: bytes) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    feeds = {}
    for info in onnx.load_from_string(model).graph.input:
        tensor = info.type.tensor_type
        shape = [d.dim_value for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feeds[info.name] = (rng.standard_normal(shape) + 2).astype(dtype)
    return feeds


@pytest.mark.parametrize("io", ["device", "host"])
@pytest.mark.parametrize("text", OPERATORS.values(), ids=OPERATORS.keys())
def test_operators_give_what_the_cpu_provider_gives(session: OpenSession, text: str, io: str) -> None:
    model = graph(text)
    feeds = make_feeds(model)
    tolerance = 2e-3 if "float16" in text else 1e-5
    for got, expected in zip(session(model, io=io).run(None, feeds), reference(model, feeds), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def test_dynamic_shapes_are_planned_as_they_come(session: OpenSession) -> None:
    made = session(
        graph("g (float[n,4] x) => (float[n,2] y) <float[4,2] w = {1,2,3,4,5,6,7,8}> { r = Relu(x) y = MatMul(r, w) }")
    )
    weight = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
    rng = np.random.default_rng(5)
    for size in (1, 5, 0, 3, 5):
        x = rng.standard_normal((size, 4)).astype(np.float32)
        np.testing.assert_allclose(made.run(None, {"x": x})[0], np.maximum(x, 0) @ weight, rtol=1e-5, atol=1e-5)


def test_shapes_that_break_an_operator_are_a_failed_status(session: OpenSession) -> None:
    # of the sample sizes that the symbols are tried with, 4 contradicts b's 3
    made = session(graph("g (float[n,m] x, float[3] b) => (float[n,3] y) { y = Add(x, b) }"))
    for _ in range(2):
        with pytest.raises(Exception, match=r"INVALID_ARGUMENT.*Add.*shapes .* do not broadcast"):
            made.run(None, {"x": np.ones((2, 2), np.float32), "b": np.ones(3, np.float32)})
        got = made.run(None, {"x": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)})[0]
        np.testing.assert_array_equal(got, np.full((2, 3), 2))


def test_shapes_that_only_a_value_tells(session: OpenSession) -> None:
    made = session(graph("g (float[2,3] x, int64[2] s) => (float[n,m] y) { r = Reshape(x, s) y = Neg(r) }"))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for shape in ((3, 2), (6, 1), (3, 2)):
        got = made.run(None, {"x": x, "s": np.array(shape)})[0]
        np.testing.assert_array_equal(got, -x.reshape(shape))


def test_a_node_for_the_cpu_splits_the_graph_into_convex_islands(session: OpenSession) -> None:
    # texts never go to a GPU; Relu comes before them, Mul after them and beside Relu's other reader
    model = graph(
        "g (float[6] x) => (float[6] y, float[6] z) "
        "{ r = Relu(x) t = Cast<to=8>(r) f = Cast<to=1>(t) y = Mul(f, f) s = Neg(f) z = Add(r, s) }"
    )
    made = session(model, all_on_vulkan=False)
    placed = where(made)
    assert placed[CPU] == {"Cast": 2}
    assert placed[EP] == {"Relu": 1, "Mul": 1, "Neg": 1, "Add": 1}
    x = np.array([1, -1, 2, 0, 3, 4], np.float32)
    for got, expected in zip(made.run(None, {"x": x}), reference(model, {"x": x}), strict=True):
        np.testing.assert_allclose(got, expected)


CONTROL_FLOW = {
    "If": "g (float[3] x, bool c) => (float[3] y) { a = Abs(x) "
    "r = If<then_branch = t () => (float[3] o) { o = Relu(x) }, else_branch = e () => (float[3] o) { o = Neg(x) }>(c) "
    "y = Add(a, r) }",
    "Loop": "g (float[3] x, int64 n, bool c) => (float[3] y) { y = Loop<body = b (int64 i, bool k, float[3] v) => "
    "(bool m, float[3] w) { m = Identity(k) w = Add(v, x) }>(n, c, x) }",
    "Scan": "g (float[3] x, float[4,3] s) => (float[3] y, float[4,3] z) { y, z = Scan<num_scan_inputs=1, "
    "body = b (float[3] v, float[3] e) => (float[3] w, float[3] o) { w = Add(v, e) o = Neg(w) }>(x, s) }",
}


@pytest.mark.parametrize("kind", CONTROL_FLOW)
def test_bodies_of_control_flow_run_on_vulkan(session: OpenSession, kind: str) -> None:
    model = graph(CONTROL_FLOW[kind])
    made = session(model)
    values: dict[str, Any] = {"x": np.array([1, -2, 3], np.float32)}
    if kind == "Loop":
        values |= {"n": np.array(4, np.int64), "c": np.array(True)}
    elif kind == "Scan":
        values["s"] = np.arange(12, dtype=np.float32).reshape(4, 3)
    for flag in (True, False) if kind == "If" else (None,):
        feeds = values if flag is None else {**values, "c": np.array(flag)}
        for got, expected in zip(made.run(None, feeds), reference(model, feeds), strict=True):
            np.testing.assert_allclose(got, expected)


def test_external_weights_are_read_from_their_file(session: OpenSession, tmp_path: Path) -> None:
    weight = np.random.default_rng(2).standard_normal((64, 32)).astype(np.float32)
    text = "g (float[4,64] x) => (float[4,32] y) { y = MatMul(x, w) }"
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {text}')
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = tmp_path / "model.onnx"
    onnx.save_model(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    x = np.ones((4, 64), np.float32)
    np.testing.assert_allclose(session(str(path)).run(None, {"x": x})[0], x @ weight, rtol=1e-4, atol=1e-4)


OUTER_WEIGHTS = {
    "If": """g (float[2,2] x, bool c) => (float[2,2] y) { y = If(c) <
        then_branch = a () => (float[2,2] p) { p = Add(x, w) }, else_branch = b () => (float[2,2] q) { q = MatMul(x, w) }> }""",
    "If in If": """g (float[2,2] x, bool c) => (float[2,2] y) { y = If(c) <
        then_branch = a () => (float[2,2] p) { p = If(c) <
            then_branch = d () => (float[2,2] r) { r = Sub(x, w) }, else_branch = e () => (float[2,2] s) { s = Neg(w) }> },
        else_branch = b () => (float[2,2] q) { q = Mul(x, w) }> }""",
    "Loop": """g (float[2,2] x, bool c) => (float[2,2] y) { n = Constant<value = int64 {3}>() y = Loop(n, c, x) <
        body = b (int64 i, bool go, float[2,2] s) => (bool on, float[2,2] t) { on = Identity(go) t = Add(s, w) }> }""",
    "Scan": """g (float[2,2] x, bool c) => (float[2,2] y) { z = Scan<num_scan_inputs = 1,
        body = b (float[2] s) => (float[2,2] t) { t = Mul(s, w) }>(x)
        f = Constant<value = int64[1] {0}>() y = ReduceSum<keepdims = 0>(z, f) }""",
    "read outside too": """g (float[2,2] x, bool c) => (float[2,2] y) { o = Mul(x, w) y = If(c) <
        then_branch = a () => (float[2,2] p) { p = Add(o, w) }, else_branch = b () => (float[2,2] q) { q = Identity(w) }> }""",
}


@pytest.mark.parametrize("form", OUTER_WEIGHTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_a_body_reads_an_outer_weight_in_a_file_that_is_gone(
    session: OpenSession, tmp_path: Path, form: str, dtype: str
) -> None:
    """ONNX Runtime gives no value of such a weight."""
    text = OUTER_WEIGHTS[form].replace("float[", f"{dtype.replace('float32', 'float')}[")
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {text}')
    weight = np.array([[1, 2], [3, 5]], dtype)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    whole = proto.SerializeToString()
    path = tmp_path / "model.onnx"
    onnx.save_model(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    opened = session(str(path), all_on_vulkan=False)
    for file in tmp_path.iterdir():
        file.unlink()
    for flag in (True, False):
        feeds = {"x": np.array([[1, -2], [3, 4]], dtype), "c": np.array(flag)}
        np.testing.assert_array_equal(opened.run(None, feeds)[0], reference(whole, feeds)[0])


def test_eight_threads_share_a_session(session: OpenSession) -> None:
    made = session(graph("g (float[16,16] x) => (float[16,16] y) { a = MatMul(x, x) y = Relu(a) }"))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(10):
            x = rng.standard_normal((16, 16)).astype(np.float32)
            got = made.run(None, {"x": x})[0]
            if not np.allclose(got, np.maximum(x @ x, 0), rtol=1e-4, atol=1e-4):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert not any(t.is_alive() for t in threads)
    assert wrong == []
