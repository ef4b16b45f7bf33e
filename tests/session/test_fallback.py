"""What Vulkan declines runs on the CPU, and the report says so; what needs values first is planned when they are there."""

from __future__ import annotations

import builtins
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import vkep
from tests.session.models import CPU_MIDDLE, model, reference
from vkep import InferenceSession
from vkep.device.pipelines import PipelineStore

Open = Callable[..., InferenceSession]
ENGINES = ["onnxruntime", "onnx.reference"]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both CPU engines; without onnxruntime as on a machine that does not have it."""
    name: str = request.param
    found = importlib.util.find_spec
    if name == "onnxruntime":
        pytest.importorskip("onnxruntime")
    else:
        monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "onnxruntime" else found(n, *a))
        imported = builtins.__import__

        def refuse(module: str, *args: Any, **options: Any) -> Any:
            if module.split(".")[0] == "onnxruntime":
                raise ModuleNotFoundError(f"No module named {module!r}")
            return imported(module, *args, **options)

        monkeypatch.setattr(builtins, "__import__", refuse)
    return name


def _check(session: InferenceSession, proto: onnx.ModelProto, feeds: dict[str, Any], rtol: float = 1e-4) -> None:
    got, expected = session.run(None, feeds), reference(proto, feeds)
    for g, e in zip(got, expected, strict=True):
        if isinstance(e, list):  # a sequence
            assert len(g) == len(e)
            for a, b in zip(g, e, strict=True):
                np.testing.assert_allclose(a, b, rtol=rtol)
        elif np.asarray(e).dtype.kind in "OUS":
            np.testing.assert_array_equal(np.asarray(g, dtype=object), np.asarray(e, dtype=object))
        else:
            assert np.asarray(g).shape == np.asarray(e).shape and g.dtype == e.dtype
            np.testing.assert_allclose(g, e, rtol=rtol, atol=1e-5)


def test_a_declined_node_in_the_middle(open_session: Open, engine: str, rng: np.random.Generator) -> None:
    session = open_session(CPU_MIDDLE)
    report = session.report()
    assert [(n.op_type, n.where) for n in report.nodes] == [("Mul", "vulkan"), ("Det", "cpu"), ("Neg", "vulkan")]
    assert report.cpu_engine == engine and len(report.islands) == 2
    for _ in range(2):
        _check(session, CPU_MIDDLE, {"x": rng.standard_normal((2, 3, 3), np.float32)})


def test_the_cpu_is_refused_when_asked(vulkan: object, no_leak: object) -> None:
    with pytest.raises(
        vkep.UnsupportedModelError, match=r"fallback='error'.* declines 1 node:\s+Det .*no Vulkan kernel"
    ):
        InferenceSession(CPU_MIDDLE, fallback="error", context_mode="disabled")


def test_a_refusal_may_come_at_the_run(open_session: Open) -> None:
    proto = model(
        """g (float[n] x) => (float d) {
        i = NonZero(x) t = Transpose(i) g = GatherND(x, t) q = Reshape(g, e) d = Det(q) }"""
    )
    proto.graph.initializer.append(helper.make_tensor("e", TensorProto.INT64, [2], [1, 1]))
    feeds = {"x": np.array([0, 3, 0], np.float32)}
    assert open_session(proto).run(None, feeds)[0] == 3
    session = open_session(proto, fallback="error")
    with pytest.raises(vkep.UnsupportedModelError, match="declines"):
        session.run(None, feeds)


def test_islands_around_the_cpu_share_what_they_can(open_session: Open, rng: np.random.Generator) -> None:
    text = """g (float[2,3,3] x) => (float[2] y, float[2,3,3] b, float[2] e) {
        a = Mul(x, x) d = Det(a) b = Exp(x) y = Neg(d) f = Add(b, a) e = Det(f) }"""
    proto = model(text)
    session = open_session(proto)
    report = session.report()
    assert report.counts == {"vulkan": 4, "cpu": 2}
    assert len(report.islands) == 2, "what does not wait for the CPU is one island"
    _check(session, proto, {"x": rng.standard_normal((2, 3, 3), np.float32)}, rtol=1e-3)


# ---- control flow and values that no GPU holds


IF = """g (bool c, float[2] x) => (float[2] y) {
    d = Add(x, x)
    z = If (c) <
        then_branch = t () => (float[2] r) { r = Add(d, x) },
        else_branch = f () => (float[2] r) { r = Neg(x) }
    >
    y = Mul(z, z)
}"""
LOOP = """g (int64 n, float[2] x) => (float[2] y, float[k, 2] all) {
    c = Constant<value = bool {1}>()
    b = Mul(x, x)
    z, all = Loop (n, c, x) <
        body = l (int64 i, bool go, float[2] v) => (bool go2, float[2] w, float[2] out) {
            go2 = Identity(go)
            w = Add(v, b)
            out = Identity(w)
        }
    >
    y = Neg(z)
}"""


@pytest.mark.parametrize("condition", [True, False])
def test_if_uses_values_from_outside(open_session: Open, engine: str, condition: bool) -> None:
    proto = model(IF)
    session = open_session(proto)
    feeds = {"c": np.array(condition), "x": np.array([1, 2], np.float32)}
    _check(session, proto, feeds)
    where = {n.op_type: n.where for n in session.report().nodes}
    assert where["Mul"] == where["Add"] == "vulkan" and "If" in where


@pytest.mark.parametrize("turns", [3, 1])
def test_loop_uses_values_from_outside(open_session: Open, engine: str, turns: int) -> None:
    proto = model(LOOP)
    session = open_session(proto)
    for _ in range(2):
        _check(session, proto, {"n": np.array(turns, np.int64), "x": np.array([1, 2], np.float32)})
    where = {n.op_type: n.where for n in session.report().nodes}
    assert where["Mul"] == where["Neg"] == "vulkan" and "Loop" in where


def test_strings(open_session: Open, engine: str) -> None:
    proto = model("g (string[2] s, float[2] x) => (string[4] t, float[2] y) { t = Concat<axis=0>(s, s) y = Neg(x) }")
    session = open_session(proto)
    assert session.get_inputs()[0].type == "tensor(string)"
    _check(session, proto, {"s": np.array(["a", "bc"], dtype=object), "x": np.array([1, 2], np.float32)})
    _check(session, proto, {"s": np.array(["d", "efg"]), "x": np.array([1, 2], np.float32)})
    assert {n.op_type: n.where for n in session.report().nodes} == {"Concat": "cpu", "Neg": "vulkan"}


@pytest.mark.parametrize("size", ["3", "n"])
def test_texts_that_are_moved_leave_the_rest_on_the_device(open_session: Open, size: str) -> None:
    """A classifier's labels: the indices go to the host, and nothing else."""
    proto = model(
        f"""g (float[{size},4] x, string[5] labels) => (string[{size}] label, float[{size},4] p) {{
        r = Relu(x) p = Softmax<axis=-1>(r) best = ArgMax<axis=1, keepdims=0>(p) label = Gather(labels, best) }}"""
    )
    session = open_session(proto)
    x = np.random.default_rng(1).normal(0, 1, (3, 4)).astype(np.float32)
    _check(session, proto, {"x": x, "labels": np.array(list("abcde"), object)})
    report = session.report()
    assert {n.op_type: n.where for n in report.nodes if n.where != "vulkan"} == {"Gather": "cpu"}
    assert len(report.islands) == 1


def test_sequences_inside(open_session: Open, engine: str) -> None:
    proto = model(
        """g (float[2] x, float[3] z) => (float[5] y, seq(float[]) s) {
        a = Neg(x) b = Exp(z) s = SequenceConstruct(a, b) c = ConcatFromSequence<axis=0>(s) y = Mul(c, c) }"""
    )
    session = open_session(proto)
    _check(session, proto, {"x": np.array([1, 2], np.float32), "z": np.array([0, 1, 2], np.float32)})
    where = {n.op_type: n.where for n in session.report().nodes}
    assert where["SequenceConstruct"] == "inlined" and where["Mul"] == "vulkan" and where["Neg"] == "vulkan"


def test_a_sequence_as_input(open_session: Open, engine: str) -> None:
    proto = model("g (seq(float[]) s) => (float[n] y) { c = ConcatFromSequence<axis=0>(s) y = Neg(c) }")
    session = open_session(proto)
    for parts in ([[1, 2], [3]], [[4]], [[1], [2], [3]]):
        _check(session, proto, {"s": [np.array(p, np.float32) for p in parts]})


def test_a_cpu_node_that_fails_says_which(open_session: Open) -> None:
    session = open_session(model("g (float[n,m] x) => (float y) { a = Neg(x) y = Det(a) }"))
    with pytest.raises(vkep.InvalidInputError, match=r"(?s)on the CPU.*Det 'Det_1'"):
        session.run(None, {"x": np.zeros((2, 3), np.float32)})
    np.testing.assert_allclose(session.run(None, {"x": np.eye(2, dtype=np.float32)})[0], 1)


# ---- shapes and values that only a run knows


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of pipelines made by each call that had to make some."""
    made: list[int] = []
    real = PipelineStore._make

    def count(self: PipelineStore, keys: list[Any], progress: Any) -> None:
        made.append(len(keys))
        real(self, keys, progress)

    monkeypatch.setattr(PipelineStore, "_make", count)
    return made


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_view_that_memory_cannot_hold(open_session: Open, engine: str, order: str) -> None:
    """A broadcast view has few bytes; evaluators read a copy. Their own error names one of their source files."""
    session = open_session(
        parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (string[n, m] x) => (string[n, m] y) { y = Identity(x) }'
        )
    )
    names = np.array(["a"], object)
    shape = (1 << 40, 4) if order == "C" else (4, 1 << 40)
    with pytest.raises(MemoryError, match=r"copying 'x', object \[.*needs 35184372088832 bytes"):
        session.run(None, {"x": np.broadcast_to(names, shape)})
    (y,) = session.run(None, {"x": np.broadcast_to(names, (2, 3))})
    assert y.tolist() == [["a"] * 3] * 2


def test_a_function_body_asks_for_no_other_input_than_it_needs(open_session: Open) -> None:
    """The axes of a ReduceLogSumExp that ONNX's function body stands for, and not what it reduces."""
    proto = model("g (double[2,3] x, int64[1] axes) => (double[] y) { y = ReduceLogSumExp<keepdims = 0>(x, axes) }")
    session = open_session(proto, fallback="error")
    for axis in (0, 1):
        (y,) = session.run(None, {"x": np.full((2, 3), -np.inf), "axes": np.array([axis])})
        np.testing.assert_array_equal(y, np.full(3 - axis, -np.inf))
    assert [n.where for n in session.report().nodes] == ["vulkan"]


def test_nonzero_then_gather(open_session: Open, compiled: list[int]) -> None:
    proto = model(
        "g (float[6] x) => (float[n] y) { a = Add(x, x) i = NonZero(x) s = Squeeze(i, z) g = Gather(a, s) y = Neg(g) }"
    )
    proto.graph.initializer.append(helper.make_tensor("z", TensorProto.INT64, [1], [0]))
    session = open_session(proto)
    assert {n.op_type: n.where for n in session.report().nodes}["Gather"] == "deferred"
    counts = []
    for x in ([1, 0, 2, 0, 3, 0], [0, 0, 1, 0, 0, 2], [0] * 6, [1, 0, 2, 0, 3, 0], [1, 2, 3, 4, 5, 6]):
        _check(session, proto, {"x": np.array(x, np.float32)})
        counts.append(len(compiled))
    assert counts[-1] == counts[1], "a new shape compiles nothing"
    report = session.report()
    assert {n.op_type: n.where for n in report.nodes}["Neg"] == "vulkan" and "deferred" not in report.counts


def test_reshape_to_a_shape_that_is_an_input(open_session: Open) -> None:
    proto = model("g (float[n,k] x, int64[r] s) => (float[] y) { a = Neg(x) b = Reshape(a, s) y = Exp(b) }")
    session = open_session(proto)
    x = np.arange(6, dtype=np.float32).reshape(2, 3) / 6
    for shape in ([6], [3, 2], [6], [-1, 1, 2]):
        _check(session, proto, {"x": x, "s": np.array(shape, np.int64)})
    with pytest.raises(vkep.VkepError, match="Reshape"):
        session.run(None, {"x": x, "s": np.array([4], np.int64)})
    _check(session, proto, {"x": x, "s": np.array([1, 6], np.int64)})


def test_expand_to_a_shape_computed_on_the_device(open_session: Open) -> None:
    ok = model(
        "g (float[3] x, int64[1] s) => (float[] y) { t = Add(s, s) a = Neg(x) b = Unsqueeze(a, z) c = Expand(b, t) y = Exp(c) }"
    )
    ok.graph.initializer.append(helper.make_tensor("z", TensorProto.INT64, [1], [1]))
    session = open_session(ok)
    for size in (1, 2, 1, 5):
        # [3, 1] with [2 * size] gives [3, 2 * size]
        _check(session, ok, {"x": np.array([1, 2, 3], np.float32), "s": np.array([size], np.int64)})


def test_deferred_parts_nest(open_session: Open, rng: np.random.Generator) -> None:
    """Each selection waits for the one before it."""
    proto = model(
        """g (float[8] x) => (float[n] y, int64[m] k) {
        i = NonZero(x) s = Squeeze(i, z) a = Gather(x, s)
        c = Greater(a, one) f = Cast<to=1>(c) j = NonZero(f) k = Squeeze(j, z) b = Gather(a, k) y = Mul(b, b) }"""
    )
    proto.graph.initializer.extend(
        [helper.make_tensor("z", TensorProto.INT64, [1], [0]), helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])]
    )
    session = open_session(proto)
    for _ in range(4):
        x = np.maximum(rng.integers(-3, 4, 8), 0).astype(np.float32)
        _check(session, proto, {"x": x})


def test_the_plans_of_deferred_parts_are_bounded(open_session: Open) -> None:
    proto = model("g (float[n] x, int64[r] s) => (float[] y) { a = Neg(x) b = Reshape(a, s) y = Exp(b) }")
    session = open_session(proto, plan_cache_size=2)
    x = np.arange(12, dtype=np.float32) / 12
    for shape in ([12], [3, 4], [4, 3], [2, 6], [12], [3, 4], [2, 3, 2], [1, 12]):
        _check(session, proto, {"x": x, "s": np.array(shape, np.int64)})
    latest = session._parts.graph.latest
    assert latest is not None
    [deferred] = [s for s in latest.steps if hasattr(s, "graph")]
    assert deferred.graph.plan_count <= 2 + 2  # those of one signature each, and those with sizes


def test_unknown_operators_are_refused_when_the_session_opens(vulkan: object, no_leak: object) -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = my.domain.Twist(x) }", domains=', "my.domain": 1')
    with pytest.raises(vkep.UnsupportedModelError, match=r"(?s)neither on Vulkan nor on the CPU.*my.domain.Twist"):
        InferenceSession(proto, context_mode="disabled")
