"""`InferenceSession`: what it says of a model, what it takes, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkep
from tests.session.models import ADD_RELU, CPU_MIDDLE, DYNAMIC, MATMUL, TWO_OUTPUTS, model, reference
from vkep import InferenceSession, InvalidInputError

Open = Callable[..., InferenceSession]


def _feeds(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"x": rng.standard_normal((2, 3), np.float32), "b": rng.standard_normal(3, np.float32)}


# ---- metadata


def test_inputs_and_outputs_are_described(open_session: Open) -> None:
    session = open_session(
        model("g (float16[n, 4] x, int64 k) => (bool[n, 4] y) { z = Cast<to=1>(k) w = Cast<to=10>(z) y = Less(x, w) }")
    )
    assert [(a.name, a.type, a.shape) for a in session.get_inputs()] == [
        ("x", "tensor(float16)", ["n", 4]),
        ("k", "tensor(int64)", []),
    ]
    assert [(a.name, a.type, a.shape) for a in session.get_outputs()] == [("y", "tensor(bool)", ["n", 4])]


def test_an_initializer_that_is_listed_as_input_is_none(open_session: Open) -> None:
    proto = model("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }")
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0]))
    session = open_session(proto)
    assert [a.name for a in session.get_inputs()] == ["x"]
    np.testing.assert_array_equal(session.run(None, {"x": np.zeros(2, np.float32)})[0], [1, 2])


@pytest.mark.parametrize("form", ["proto", "bytes", "path", "str"])
def test_every_form_of_a_model(open_session: Open, form: str, tmp_path: Any, rng: np.random.Generator) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(ADD_RELU, path)
    source = {"proto": ADD_RELU, "bytes": path.read_bytes(), "path": path, "str": str(path)}[form]
    feeds = _feeds(rng)
    np.testing.assert_allclose(open_session(source).run(None, feeds)[0], np.maximum(feeds["x"] + feeds["b"], 0))


# ---- outputs


def test_a_subset_of_the_outputs_in_the_order_asked(open_session: Open) -> None:
    session = open_session(TWO_OUTPUTS)
    x = np.array([1, 2, 3, 4], np.float32)
    square, twice, again = session.run(["square", "twice", "square"], {"x": x})
    np.testing.assert_array_equal(square, x * x)
    np.testing.assert_array_equal(twice, x + x)
    np.testing.assert_array_equal(again, x * x)
    with pytest.raises(InvalidInputError, match=r"no output named 'thrice'.*'twice', 'square'"):
        session.run(["thrice"], {"x": x})


def test_long_results_stay_as_they_were(open_session: Open) -> None:
    """Their memory is written again only when they have no references, also where the session is closed first."""
    session = open_session(model("g (float[2, 1024, 1024] x) => (float[2, 1024, 1024] y) { y = Neg(x) }"))
    feed = np.zeros((2, 1024, 1024), np.float32)
    kept = []
    for number in range(4):
        feed[:] = number
        kept.append(session.run(None, {"x": feed})[0])
    row, address = kept[3][1, -1], kept[3].ctypes.data
    assert [float(y.max()) for y in kept] == [float(y.min()) for y in kept] == [0, -1, -2, -3]
    kept.pop()
    feed[:] = 9
    later = session.run(None, {"x": feed})[0]
    assert later.ctypes.data != address and (row == -3).all()
    session.close()
    assert [float(y[0, 0, 0]) for y in kept] == [0, -1, -2]
    kept[0][...] = 5  # and are the caller's to write


def test_one_value_as_two_outputs(open_session: Open) -> None:
    session = open_session(model("g (float[3] x) => (float[3] a, float[3] b) { a = Neg(x) b = Identity(a) }"))
    a, b = session.run(None, {"x": np.array([1, 2, 3], np.float32)})
    np.testing.assert_array_equal(a, [-1, -2, -3])
    np.testing.assert_array_equal(b, a)
    a[0] = 7
    assert b[0] == -1, "outputs do not share memory"


def test_an_output_that_is_an_input(open_session: Open) -> None:
    session = open_session(model("g (float[3] x) => (float[3] y, float[3] z) { y = Identity(x) z = Neg(x) }"))
    x = np.array([1, 2, 3], np.float32)
    y, z = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(z, -x)


def test_a_graph_output_that_is_the_graph_input_itself_is_a_copy(open_session: Open) -> None:
    proto = model("g (float[3] x) => (float[3] y) { y = Neg(x) }")
    proto.graph.output.append(proto.graph.input[0])
    x = np.array([1, 2, 3], np.float32)
    _, same = open_session(proto).run(None, {"x": x})
    np.testing.assert_array_equal(same, x)
    same[0] = 9
    assert x[0] == 1, "the caller's array is not handed back"


@pytest.mark.parametrize("source", ["initializer", "folded"])
def test_an_output_that_is_a_constant_is_a_copy(open_session: Open, source: str) -> None:
    proto = model("g (float[2] x) => (float[2] y, float[2] c) { y = Neg(x) }" if source == "initializer" else
                  "g (float[2] x) => (float[2] y, float[2] c) { y = Neg(x) c = Add(w, w) }")  # fmt: skip
    name, value = ("c", [4.0, 6.0]) if source == "initializer" else ("w", [2.0, 3.0])
    proto.graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, [2], value))
    session = open_session(proto)
    feeds = {"x": np.ones(2, np.float32)}
    first = session.run(["c"], feeds)[0]
    np.testing.assert_array_equal(first, [4, 6])
    first[:] = 0
    np.testing.assert_array_equal(session.run(["c"], feeds)[0], [4, 6])


def test_a_model_without_nodes_on_the_gpu(open_session: Open) -> None:
    proto = model("g (float[2] x) => (float[2] c) { c = Add(w, w) }")
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [2], [1, 2]))
    session = open_session(proto)
    np.testing.assert_array_equal(session.run(None, {"x": np.zeros(2, np.float32)})[0], [2, 4])
    assert session.report().counts == {"folded": 1}


def test_results_are_the_callers_own(open_session: Open) -> None:
    session = open_session(TWO_OUTPUTS)
    first = session.run(["twice"], {"x": np.ones(4, np.float32)})[0]
    session.run(["twice"], {"x": np.full(4, 5, np.float32)})
    np.testing.assert_array_equal(first, [2, 2, 2, 2])


# ---- wrong inputs

_OK = {"x": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)}


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        (
            {"x": _OK["x"]},
            r"Required inputs \(\['b'\]\) are missing from input feed \(\['x'\]\); the model takes \['x', 'b'\]",
        ),
        ({**_OK, "c": _OK["b"]}, r"unknown inputs \['c'\]"),
        ({"x": _OK["x"], "c": _OK["b"]}, r"inputs \(\['b'\]\) are missing .*, unknown inputs \['c'\]"),
        ({**_OK, "x": np.zeros((2, 3, 1), np.float32)}, r"'x': got rank 3 .*expected rank 2"),
        ({**_OK, "x": np.float32(1)}, r"'x': got rank 0"),
        ({**_OK, "x": np.zeros((3, 3), np.float32)}, r"'x': got shape \(3, 3\), expected 2 on axis 0"),
        ({**_OK, "x": np.zeros((2, 3))}, r"'x': got dtype float64, expected float32"),
        ({**_OK, "b": np.zeros(3, np.int32)}, r"'b': got dtype int32, expected float32"),
        ({**_OK, "b": np.array(["a", "b", "c"])}, r"'b': got dtype <U1, expected float32"),
        ({**_OK, "b": np.zeros(3, ">f4")}, r"'b': got dtype >f4, expected float32"),
        ({**_OK, "b": None}, r"inputs \(\['b'\]\) are missing"),
        ({**_OK, "b": object()}, r"'b': got dtype object"),
    ],
)
def test_wrong_inputs_say_what_was_expected(open_session: Open, feeds: dict[str, Any], message: str) -> None:
    session = open_session(ADD_RELU)
    with pytest.raises(InvalidInputError, match=message):
        session.run(None, feeds)
    assert session.run(None, _OK)[0].shape == (2, 3), "the session is still usable"


_PAIRS = [(3, 3), (4, 4), (5, 5), (5, 9), (2, 7), (7, 2), (7, 0), (0, 7), (0, 0), (1, 6), (6, 1), (8, 8), (20, 3)]


@pytest.mark.parametrize("bound", [False, True])
def test_axes_of_one_symbol_may_have_two_sizes(open_session: Open, bound: bool) -> None:
    """Exporters reuse names. Plans that serve several sizes must not take them for equal because they have been."""
    session = open_session(
        model("g (float[t,2] a, float[t,2] b) => (float[u,2] y) { c = Concat<axis=0>(a, b) y = Neg(c) }")
    )
    rng = np.random.default_rng(0)
    for sizes in _PAIRS:
        a, b = (rng.random((n, 2), np.float32) for n in sizes)
        if bound:
            binding = session.io_binding()
            for name, array in (("a", a), ("b", b)):
                binding.bind_cpu_input(name, array)
            binding.bind_output("y")
            session.run_with_iobinding(binding)
            [got] = binding.copy_outputs_to_cpu()
        else:
            [got] = session.run(None, {"a": a, "b": b})
        np.testing.assert_array_equal(got, -np.concatenate([a, b]))


def test_axes_of_one_symbol_are_broadcast(open_session: Open) -> None:
    session = open_session(model("g (float[t] a, float[t] b) => (float[t] y) { y = Add(a, b) }"))
    for sizes in ((3, 3), (4, 4), (5, 5), (5, 1), (1, 7), (9, 9), (1, 1)):
        a, b = (np.arange(n, dtype=np.float32) for n in sizes)
        np.testing.assert_array_equal(session.run(None, {"a": a, "b": b})[0], a + b)
    with pytest.raises(InvalidInputError, match=r"Add.*do not broadcast"):
        session.run(None, {"a": np.zeros(3, np.float32), "b": np.zeros(4, np.float32)})


def test_lists_and_scalars_are_arrays_too(open_session: Open) -> None:
    session = open_session(model("g (int64[2] x, int64 k) => (int64[2] y) { y = Add(x, k) }"))
    np.testing.assert_array_equal(session.run(None, {"x": [1, 2], "k": 3})[0], [4, 5])


# ---- memory layouts and special values


@pytest.mark.parametrize(
    ("name", "view"),
    [
        ("fortran", lambda a: np.asfortranarray(a)),
        ("transposed", lambda a: np.ascontiguousarray(a.T).T),
        ("sliced", lambda a: np.repeat(np.repeat(a, 2, 0), 3, 1)[::2, ::3]),
        ("reversed", lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1]),
        ("broadcast", lambda a: np.broadcast_to(a[:1], a.shape)),
        ("read-only", lambda a: (a.setflags(write=False), a)[1]),
        ("unaligned", lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(np.float32).reshape(a.shape)),
    ],
)
def test_arrays_of_any_layout(open_session: Open, rng: np.random.Generator, name: str, view: Any) -> None:
    x, w = rng.standard_normal((8, 16), np.float32), rng.standard_normal((16, 4), np.float32)
    x = view(x)
    assert name == "read-only" or not x.flags.c_contiguous or not x.flags.aligned
    np.testing.assert_allclose(
        open_session(MATMUL).run(None, {"x": x, "w": view(w)})[0], x @ view(w), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_zero_sized_tensors(open_session: Open, shape: tuple[int, int]) -> None:
    session = open_session(
        model(
            """g (float[n,k] x) => (float[n,k] y, float[n] s) {
            y = Relu(x) a = Constant<value_ints=[1]>() s = ReduceSum<keepdims=0>(x, a) }"""
        )
    )
    y, s = session.run(None, {"x": np.zeros(shape, np.float32)})
    assert y.shape == shape and y.dtype == np.float32
    np.testing.assert_array_equal(s, np.zeros(shape[0], np.float32))


def test_nan_and_infinity_pass_through(open_session: Open) -> None:
    session = open_session(
        model("g (float[5] x) => (float[5] y, float[5] r, float[5] m) { y = Identity(x) r = Relu(x) m = Mul(x, x) }")
    )
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
    y, r, m = session.run(None, {"x": x})
    assert y.tobytes() == x.tobytes(), "moved data keeps every bit"
    np.testing.assert_array_equal(r[:4], [np.nan, np.inf, 0, 0])
    assert r[4] in (0, x[4]), "a driver may flush denormal numbers"
    np.testing.assert_array_equal(m, [np.nan, np.inf, np.inf, 0, 0])


_KEEP_NAN = (  # each lets a NaN of x through, whatever the other operand
    "Relu(x)", "Clip(x, low, high)", "Max(x, b)", "Max(b, x)", "Min(x, b)", "Min(b, x)", "LeakyRelu(x)", "Abs(x)", "Elu(x)",
    "HardSigmoid(x)", "HardSwish(x)", "Tanh(x)", "Sigmoid(x)", "Erf(x)", "Gelu(x)", "Softplus(x)", "Exp(x)", "Sqrt(x)",
    "PRelu(x, b)", "Celu(x)", "Selu(x)", "Floor(x)", "Round(x)",
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_nan_is_kept(open_session: Open, dtype: str) -> None:
    """Comparisons with a choice may be made into max() and min() by a driver, which drop NaN."""
    body = " ".join(f"y{n} = {text}" for n, text in enumerate(_KEEP_NAN))
    outputs = ", ".join(f"{dtype}[4] y{n}" for n in range(len(_KEEP_NAN)))
    session = open_session(
        model(f"g ({dtype}[4] x, {dtype}[4] b, {dtype} low, {dtype} high) => ({outputs}) {{ {body} }}", opset=20)
    )
    kind = np.float16 if dtype == "float16" else np.float32
    feeds = {"x": np.array([np.nan, 0.5, np.nan, -0.5], kind), "b": np.full(4, 0.25, kind)}
    got = session.run(None, {**feeds, "low": kind(-1), "high": kind(1)})
    wrong = {text: y for text, y in zip(_KEEP_NAN, got, strict=True) if np.isnan(y).tolist()[::2] != [True, True]}
    assert not wrong


def test_int64_keeps_all_its_bits(open_session: Open) -> None:
    session = open_session(model("g (int64[4] x) => (int64[4] y, int64[4] z) { y = Identity(x) z = Add(x, x) }"))
    x = np.array([2**62 + 1, -(2**63), 2**33 + 7, -1], np.int64)
    y, z = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, x)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(z, x + x)


def test_rank_zero(open_session: Open) -> None:
    session = open_session(model("g (float x, float[2,2] m) => (float y, float[2,2] z) { y = Exp(x) z = Mul(m, x) }"))
    y, z = session.run(None, {"x": np.float32(1), "m": np.ones((2, 2), np.float32)})
    assert y.shape == ()
    np.testing.assert_allclose(y, np.e, rtol=1e-6)
    np.testing.assert_array_equal(z, np.ones((2, 2)))


# ---- reports and options


def test_the_report_names_each_node(open_session: Open) -> None:
    report = open_session(CPU_MIDDLE).report()
    assert report.counts == {"vulkan": 2, "cpu": 1}
    assert not report.all_on_vulkan
    [declined] = [n for n in report.nodes if n.where == "cpu"]
    assert declined.op_type == "Det" and "no Vulkan kernel for Det" in declined.reason
    assert report.cpu_engine in ("onnxruntime", "onnx.reference")
    assert "cpu (" in str(report) and '"op_type": "Det"' in report.to_json()


def test_a_dynamic_model_is_reported_once_planned(open_session: Open) -> None:
    session = open_session(DYNAMIC)
    assert "the sizes of ['x', 'b'] are open" in session.report().note and not session.report().nodes
    with pytest.raises(InvalidInputError, match="no shape for the dynamic input 'b'"):
        session.plan({"x": (2, 3)})
    assert session.plan({"x": (2, 3), "b": (3,)}).all_on_vulkan


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fallback": "never"}, ValueError, r"fallback is 'never', expected one of"),
        ({"plan_cache_size": 0}, ValueError, "plan_cache_size is 0"),
        ({"concurrency": "2"}, ValueError, "concurrency is '2'"),
        ({"concurrency": 1 << 40}, ValueError, "concurrency is .*, expected at most 1024"),
        ({"colour": 1}, TypeError, "colour"),
        ({"context_mode": "sometimes"}, ValueError, "sometimes"),
        ({"sync_mode": "later"}, ValueError, "later"),
        ({"arena": {"arena.max_mems": 1}}, ValueError, "max_mem"),
        ({"arena": {"arena.max_mem": -2}}, ValueError, "max_mem"),
    ],
)
def test_wrong_options(
    vulkan: object, no_leak: object, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        InferenceSession(ADD_RELU, **options)


def test_a_device_that_is_not_there(vulkan: object, no_leak: object) -> None:
    with pytest.raises(vkep.DeviceNotFoundError, match="no such device"):
        InferenceSession(ADD_RELU, device="no such device")


def test_a_closed_session_says_so(open_session: Open) -> None:
    session = open_session(ADD_RELU)
    session.close()
    session.close()
    for use in (
        lambda: session.run(None, _OK),
        session.report,
        lambda: session.device_tensor(_OK["x"]),
        session.__enter__,
    ):
        with pytest.raises(vkep.ClosedError, match="session of the model"):
            use()


def test_sessions_of_one_token_share_a_context(vulkan: object, no_leak: Callable[[], dict[str, int]]) -> None:
    with InferenceSession(ADD_RELU, token="shared test") as a, InferenceSession(MATMUL, token="shared test") as b:
        assert a.context is b.context
        with InferenceSession(ADD_RELU, token="shared test", context_mode="disabled") as c:
            assert c.context is not a.context
        assert no_leak()["device"] == 1
    assert no_leak() == {}


def test_memory_that_a_closed_session_left_free_goes_back(own_context: Any) -> None:
    with InferenceSession(ADD_RELU, context=own_context) as kept:
        with InferenceSession(MATMUL, context=own_context) as other:
            big = other.empty_device_tensor((64, 1 << 20))
            held = kept.memory().arena.total_allocated_bytes
            big.close()
        assert kept.memory().arena.total_allocated_bytes == held, "free regions are kept for the next request"
        assert kept.shrink_memory() >= 4 * 64 << 20
        assert kept.memory().arena.total_allocated_bytes <= held - (4 * 64 << 20)
        x, b = np.ones((2, 3), np.float32), np.ones(3, np.float32)
        np.testing.assert_array_equal(kept.run(None, {"x": x, "b": b})[0], x + b)


def test_the_progress_callback_sees_shaders_and_weights(shared_context: Any, tmp_path: Any) -> None:
    proto = model("g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [4], [1, 2, 3, 4]))
    seen: list[tuple[str, int, int, str]] = []
    with InferenceSession(proto, context=shared_context, cache_dir=tmp_path, progress=lambda *a: seen.append(a)) as s:
        s.run(None, {"x": np.zeros(4, np.float32)})
    shaders = [(done, total) for phase, done, total, _ in seen if phase == "shaders"]
    assert shaders == sorted(shaders) and shaders[-1][0] == shaders[-1][1]
    assert [(done, total) for phase, done, total, _ in seen if phase == "weights"][-1] == (16, 16)


def test_results_equal_the_reference(open_session: Open, rng: np.random.Generator) -> None:
    feeds = {"x": rng.standard_normal((2, 3, 3), np.float32)}
    np.testing.assert_allclose(open_session(CPU_MIDDLE).run(None, feeds)[0], reference(CPU_MIDDLE, feeds)[0], rtol=1e-4)
