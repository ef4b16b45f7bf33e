"""Which nodes are claimed where a model leaves sizes open."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.ort.conftest import OpenSession, graph, reference, where

EP = "VulkanExecutionProvider"


def test_windows_larger_than_a_sample_are_claimed(session: OpenSession) -> None:
    """wav2vec's first convolutions: windows of 10 and 8 with strides, over audio of any length."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], "first", strides=[5]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "w1"], ["y"], "second", strides=[2]),
    ]
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w0", (8, 1, 10)), ("w1", (8, 8, 8)))
    ]
    made = helper.make_graph(
        nodes,
        "audio",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, "samples"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8, "frames"])],
        weights,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    opened = session(model)
    for samples in (400, 333):
        feeds = {"x": rng.standard_normal((1, 1, samples)).astype(np.float32)}
        np.testing.assert_allclose(opened.run(None, feeds)[0], reference(model, feeds)[0], rtol=1e-3, atol=1e-3)
    assert set(where(opened)) == {EP}


def _stages(count: int, stage: str) -> str:
    """The text of a chain of stages from ``x`` to ``y``; ``{i}`` and ``{o}`` are a stage's input and output."""
    names = ["x", *(f"s{k}" for k in range(1, count)), "y"]
    return " ".join(stage.replace("{i}", a).replace("{o}", b) for a, b in itertools.pairwise(names))


#: what is refused at small sizes, where a model leaves the sizes open, and sizes at which it runs
OPEN_SIZES = {
    "pools": ("float[n,3,h,w]", _stages(5, "{o} = MaxPool<kernel_shape=[3,3], strides=[2,2]>({i})"), (1, 3, 127, 95)),
    "average pools": (
        "float[n,3,h,w]",
        _stages(4, "{o} = AveragePool<kernel_shape=[2,2], strides=[2,2]>({i})"),
        (2, 3, 33, 48),
    ),
    "valid convolutions": (
        "float[n,3,h,w]",
        _stages(3, "{o} = Conv<strides=[2,2]>({i}, k)"),
        (1, 3, 75, 61),
    ),
    "a long stride": ("float[n,3,t]", "y = Conv<strides=[64]>(x, long)", (1, 3, 2000)),
    "named channels": ("float[n,c,h,w]", _stages(2, "{o} = Conv({i}, k)"), (1, 3, 20, 20)),
    "reflected edges": (
        "float[n,3,h,w]",
        'a = MaxPool<kernel_shape=[32,32], strides=[32,32]>(x) y = Pad<mode="reflect">(a, edges)',
        (1, 3, 128, 160),
    ),
    "slices": ("float[n,s]", "a = Slice(x, hundred, thousand, one) y = ReduceMean<keepdims=0>(a, one)", (2, 300)),
    "a past of another length": (
        "float[n,past]",
        "a = Concat<axis=1>(x, x) s = Shape(x) z = ConstantOfShape(s) b = Concat<axis=1>(z, z) y = Add(a, b)",
        (2, 7),
    ),
    "a mask by name": ("float[n,s]", "m = Shape(x) z = ConstantOfShape(m) y = Sub(x, z)", (2, 9)),
    "reshapes by known counts": ("float[n,s]", "a = Reshape(x, heads) y = Softmax(a)", (2, 24)),
}


@pytest.mark.parametrize("case", OPEN_SIZES)
def test_nodes_that_only_some_sizes_allow_are_claimed(session: OpenSession, case: str) -> None:
    """Claimed whole: the runs have the sizes."""
    declared, body, shape = OPEN_SIZES[case]
    rng = np.random.default_rng(3)
    weights = {
        "k": rng.standard_normal((3, 3, 3, 3)).astype(np.float32) / 5,
        "long": rng.standard_normal((4, 3, 127)).astype(np.float32) / 20,
        "edges": np.array([0, 0, 2, 2, 0, 0, 2, 2]),
        "heads": np.array([0, 6, -1]),
        "hundred": np.array([100]),
        "thousand": np.array([1000]),
        "one": np.array([1]),
    }
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g ({declared} x) => (float[] y) {{ {body} }}'
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items() if n in used)
    model = proto.SerializeToString()
    opened = session(model)
    assert set(where(opened)) == {EP}
    feeds = {"x": rng.standard_normal(shape).astype(np.float32)}
    np.testing.assert_allclose(opened.run(None, feeds)[0], reference(model, feeds)[0], rtol=1e-3, atol=1e-3)


def test_what_no_size_allows_is_declined(session: OpenSession) -> None:
    model = graph("g (float[n,h,w] x, string[n] s) => (string[n] t, float[n,h,w] y) { t = Identity(s) y = Neg(x) }")
    opened = session(model, all_on_vulkan=False)
    assert set(where(opened)["CPUExecutionProvider"]) == {"Identity"}


def test_a_value_of_unknown_rank_is_no_scalar(session: OpenSession) -> None:
    """ONNX Runtime's count of its dimensions is 0, as a scalar's is."""
    proto = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]> g (float[n,4] x, bool c) => (float[] y) {
        f = Constant<value = int64[1] {0}>()
        a = If(c) <then_branch = p () => (float[] q) { q = Neg(x) }, else_branch = r () => (float[] t) { t = Unsqueeze(x, f) }>
        b = Squeeze(a, f) y = Relu(b) }""")
    for body in (a.g for node in proto.graph.node for a in node.attribute if a.HasField("g")):
        body.output[0].type.tensor_type.ClearField("shape")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    opened = session(proto.SerializeToString(), all_on_vulkan=False)
    assert {"Squeeze", "Relu"} <= set(where(opened)[EP])
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(opened.run(None, {"x": x[:1], "c": np.array(True)})[0], np.zeros(4) * x[0])
    np.testing.assert_array_equal(opened.run(None, {"x": x, "c": np.array(False)})[0], x)


def test_a_size_that_is_a_symbol_joins_the_constant_that_it_meets(session: OpenSession) -> None:
    """A cache whose head size the model calls by a name, beside rows of a known size."""
    model = graph(
        "g (float[1,2,past,head] cache, float[1,2,1,32] new) => (float[1,2,total,32] y) { y = Concat<axis=2>(cache, new) }"
    )
    opened = session(model)
    feeds = {"cache": np.ones((1, 2, 5, 32), np.float32), "new": np.zeros((1, 2, 1, 32), np.float32)}
    np.testing.assert_array_equal(opened.run(None, feeds)[0], reference(model, feeds)[0])
    assert set(where(opened)) == {EP}


def test_a_session_that_is_partitioned_says_so_once(session: OpenSession, caplog: pytest.LogCaptureFixture) -> None:
    texts = "t = StringNormalizer(s) u = StringNormalizer(t) v = StringNormalizer(u)"
    text = f"g (float[n,4] x, string[m] s) => (float[n,4] y, string[k] v) {{ a = Relu(x) {texts} y = Neg(a) }}"
    with caplog.at_level("WARNING", "vkep.ort"):
        opened = session(graph(text), all_on_vulkan=False)
        x, s = np.ones((2, 4), np.float32), np.array(["a", "b"], object)
        for _ in range(2):
            opened.run(None, {"x": x, "s": s})
    (message,) = caplog.messages
    assert message.startswith(f"3 of the model's 5 nodes run on other providers, and the rest on {EP} in 1 part. Str")
    assert " and 2 more: " in message and "at INFO (docs/ort.md, 'What is claimed')" in message
    caplog.clear()
    with caplog.at_level("WARNING", "vkep.ort"):
        session(graph("g (float[n,4] x) => (float[n,4] y) { a = Relu(x) y = Neg(a) }"))
    assert caplog.messages == []


def test_bodies_count_and_driven_nodes_do_not(session: OpenSession, caplog: pytest.LogCaptureFixture) -> None:
    body = "then_branch = a () => (float[2] p) {{ p = Relu(x) }}, else_branch = b () => (float[2] q) {{ {} }}"
    text = "g (float[2] x, bool c, string[2] s) => (float[2] y) {{ y = If(c) <" + body + "> }}"
    texts = "z = StringNormalizer(s) m = Size(z) n = Cast<to = 1>(m) q = Add(n, x)"
    with caplog.at_level("WARNING", "vkep.ort"):
        session(graph(text.format("q = Neg(x)")), all_on_vulkan=False)
        assert caplog.messages == []
        session(graph(text.format(texts)), all_on_vulkan=False)
    (message,) = caplog.messages
    assert "StringNormalizer" in message and "drives" not in message
