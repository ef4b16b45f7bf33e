"""Fusion changes how a graph is computed, never what: random graphs with and without it, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.session.models import model, reference
from tools.fuzz.networks.compare import difference
from tools.fuzz.networks.graph import Network
from tools.fuzz.networks.strategy import networks
from vkep import InferenceSession
from vkep.passes import pipeline

Open = Callable[..., InferenceSession]


@pytest.fixture
def unfused(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Switches fusion off: every operation as its function wrote it, in parts where it reads too many tensors."""

    def switch(off: bool) -> None:
        monkeypatch.undo()
        if off:
            fusion = ("dead operations", "pointwise fusion", "epilogues", "copies")
            monkeypatch.setattr(pipeline, "PASSES", tuple(p for p in pipeline.PASSES if p.name not in fusion))

    return switch


# not shrunk: each attempt compiles its shaders, and `tools.fuzz.networks` does that
@settings(max_examples=16, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(network=networks())
def test_random_graphs(open_session: Open, unfused: Callable[[bool], None], network: Network) -> None:
    dispatches = []
    for off in (False, True):
        unfused(off)
        session = open_session(network.model)
        report = session.report()
        assert report.all_on_vulkan, str(report)
        dispatches.append(sum(i.dispatches for i in report.islands))
        wrong = difference(network, 0, session.run(None, network.feeds[0]), None)
        assert not wrong, f"{wrong}, fusion {'off' if off else 'on'}"
    assert dispatches[0] <= dispatches[1], "fusion only saves dispatches"


def _dispatches(open_session: Open, text: str) -> int:
    return sum(i.dispatches for i in open_session(model(text)).report().islands)


@pytest.mark.parametrize(
    ("text", "dispatches"),
    [
        ("g (float[4,8] x, float[8] b) => (float[4,8] y) { a = Add(x, b) c = Mul(a, x) d = Tanh(c) y = Neg(d) }", 1),
        (
            "g (float[4,8] x, float[8,8] w, float[8] b) => (float[4,8] y) { a = MatMul(x, w) c = Add(a, b) y = Relu(c) }",
            1,
        ),
        ("g (float[4,8] x, float[8,8] w) => (float[8,4] y) { a = MatMul(x, w) y = Transpose(a) }", 2),
        ("g (float[4,8] x, float[4,8] z) => (float[8,8] y) { a = Neg(x) b = Exp(z) y = Concat<axis=0>(a, b) }", 2),
        ("g (float[4,8] x) => (float[4,8] y, float[4,8] a) { a = Neg(x) y = Exp(a) }", 2),
        ("g (float[4,8] x) => (float[8,4] y) { a = Transpose(x) b = Neg(a) y = Exp(b) }", 1),
        (
            "g (float[4,8] x) => (float[1,32] y) { a = Neg(x) b = Flatten<axis=0>(a) y = Exp(b) }",
            1,
        ),
    ],
    ids=["chain", "epilogue", "transposed", "concat", "both", "view", "reshaped"],
)
def test_chains_that_fuse(open_session: Open, text: str, dispatches: int) -> None:
    assert _dispatches(open_session, text) == dispatches


def test_a_value_that_is_read_twice_is_computed_once(open_session: Open, rng: np.random.Generator) -> None:
    proto = model(
        """g (float[4,8] x, float[8,8] w) => (float[4,8] y) {
        a = MatMul(x, w) s = Sigmoid(a) y = Mul(a, s) }"""
    )
    session = open_session(proto)
    assert [i.dispatches for i in session.report().islands] == [1], "both reads are the epilogue's value"
    feeds: dict[str, Any] = {n: rng.standard_normal(s, np.float32) for n, s in (("x", (4, 8)), ("w", (8, 8)))}
    product = feeds["x"] @ feeds["w"]
    np.testing.assert_allclose(session.run(None, feeds)[0], product / (1 + np.exp(-product)), rtol=1e-4, atol=1e-5)


def _heads(
    open_session: Open, rng: np.random.Generator, steps: str, shape: list[int], **more: Any
) -> tuple[int, Any, Any]:
    """Dispatches of a product of heads [2, 3, 5, 4] by [2, 3, 4, 7] with ``steps`` from a to y, its result, and a in numpy."""
    others = "".join(f", float{list(value.shape)} {name}" for name, value in more.items())
    of = f"h = Transpose<perm=[0,2,1,3]>(x) a = MatMul(h, w) {steps}"
    head = f"g (float[2,5,3,4] x, float[2,3,4,7] w{others}) => (float{shape} y)"
    head += " <int64[3] s = {2, 5, 21}, int64[3] t = {2, 7, 15}>"
    session = open_session(model(f"{head} {{ {of} }}"))
    x, w = rng.standard_normal((2, 5, 3, 4), np.float32), rng.standard_normal((2, 3, 4, 7), np.float32)
    [y] = session.run(None, {"x": x, "w": w, **more})
    return sum(i.dispatches for i in session.report().islands), y, x.transpose(0, 2, 1, 3) @ w


@pytest.mark.parametrize("shape", [(2, 1, 5, 7), (3, 1, 7), (2, 3, 1, 1), (2, 1, 1, 7), (1, 3, 5, 1)], ids=str)
def test_an_epilogue_reads_what_is_broadcast_over_matrices(
    open_session: Open, rng: np.random.Generator, shape: tuple[int, ...]
) -> None:
    """As a mask of attention's scores."""
    m = rng.standard_normal(shape, np.float32)
    dispatches, y, a = _heads(open_session, rng, "y = Add(a, m)", [2, 3, 5, 7], m=m)
    assert dispatches == 1
    np.testing.assert_allclose(y, a + m, rtol=1e-4, atol=1e-5)


def test_heads_are_stored_side_by_side(open_session: Open, rng: np.random.Generator) -> None:
    """Not columns, which a kernel would store one by one."""
    for perm, name, shape, count in (((0, 2, 1, 3), "s", [2, 5, 21], 2), ((0, 3, 2, 1), "t", [2, 7, 15], 3)):
        v = rng.standard_normal((shape[-1], shape[-1]), np.float32)
        steps = f"b = Transpose<perm={list(perm)}>(a) c = Reshape(b, {name}) y = MatMul(c, v)"
        dispatches, y, a = _heads(open_session, rng, steps, shape, v=v)
        assert dispatches == count
        np.testing.assert_allclose(y, a.transpose(perm).reshape(shape) @ v, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("steps", "made"), [("y = Add(n, n)", "[1,8]"), ("m = Unsqueeze(n, axis) y = Add(n, m)", "[1,1,8]")]
)
def test_a_norm_is_added_to_itself(open_session: Open, rng: np.random.Generator, steps: str, made: str) -> None:
    inputs = "float[1,8] x, float[8] gain"
    text = f"g ({inputs}) => (float{made} y) <int64[1] axis = {{0}}> {{ n = RMSNormalization(x, gain) {steps} }}"
    proto = model(text, opset=23)
    feeds: dict[str, Any] = {"x": rng.standard_normal((1, 8), np.float32), "gain": rng.standard_normal(8, np.float32)}
    [expected] = reference(proto, feeds)
    np.testing.assert_allclose(open_session(proto).run(None, feeds)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("operators", [("Tanh", "Neg"), ("Abs", "Sqrt")])
def test_a_long_chain_becomes_several_kernels(open_session: Open, operators: tuple[str, str]) -> None:
    length = 1000
    steps = " ".join(f"t{i + 1} = {operators[i % 2]}(t{i})" for i in range(length))
    proto = model(f"g (float[7] t0) => (float[7] t{length}) {{ {steps} }}")
    x = np.linspace(0.5, 2, 7, dtype=np.float32)
    session = open_session(proto)
    expected = reference(proto, {"t0": x})[0]
    np.testing.assert_allclose(session.run(None, {"t0": x})[0], expected, rtol=1e-3)
    assert 10 < len(session.islands()[0].plan.dispatches) < 30


def _inputs(count: int, shape: str = "4,8") -> tuple[str, dict[str, Any]]:
    rng = np.random.default_rng(count)
    feeds = {f"x{i}": rng.uniform(0.5, 1.5, (4, 8)).astype(np.float32) for i in range(count)}
    return ", ".join(f"float[{shape}] {name}" for name in feeds), feeds


def _check_wide(open_session: Open, text: str, feeds: dict[str, Any]) -> int:
    """The dispatches of a model whose results are those of onnx's reference."""
    proto = model(text)
    session = open_session(proto)
    assert session.report().all_on_vulkan, str(session.report())
    for got, want in zip(session.run(None, feeds), reference(proto, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    plans = [island.plan for island in session.islands()]
    assert all(dict(p.spec)["INDIRECT"] < 1 << 32 for plan in plans for p in plan.pipelines)
    return sum(len(plan.dispatches) for plan in plans)


@pytest.mark.parametrize("count", [32, 33, 40])
def test_a_sum_of_many_producers(open_session: Open, count: int) -> None:
    """Producers are fused into the parts of the sum; temporary results at positions of 32 and above were read as addresses."""
    [text, feeds], names = _inputs(1), [f"a{i}" for i in range(count)]
    steps = " ".join(f"{name} = {('Neg', 'Exp', 'Sqrt')[i % 3]}(x0)" for i, name in enumerate(names))
    wide = f"g ({text}) => (float[4,8] y) {{ {steps} y = Sum({', '.join(names)}) }}"
    assert _check_wide(open_session, wide, feeds) <= 5


def test_a_chain_over_many_inputs(open_session: Open) -> None:
    text, feeds = _inputs(40)
    steps = " ".join(
        f"a{i} = {('Add', 'Mul', 'Max')[i % 3]}({f'a{i - 1}' if i > 1 else 'x0'}, x{i})" for i in range(1, 40)
    )
    assert _check_wide(open_session, f"g ({text}) => (float[4,8] a39) {{ {steps} }}", feeds) <= 6


def test_a_sum_of_many_products(open_session: Open) -> None:
    """Epilogues read the parts' other inputs."""
    text, feeds = _inputs(40)
    feeds["w"] = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
    steps = " ".join(f"a{i} = MatMul(x{i}, w)" for i in range(0, 40, 8))
    names = ", ".join(f"{'x' if i % 8 else 'a'}{i}" for i in range(40))
    wide = f"g ({text}, float[8,8] w) => (float[4,8] y) {{ {steps} y = Mean({names}) }}"
    assert _check_wide(open_session, wide, feeds) < 10


def test_a_wide_sum_of_other_sizes(open_session: Open) -> None:
    """The parts of an expression have sizes too."""
    text, feeds = _inputs(40, "n,m")
    proto = model(f"g ({text}) => (float[n,m] y) {{ y = Sum({', '.join(feeds)}) }}")
    session = open_session(proto)
    for shape in ((4, 8), (3, 8), (2, 5), (1, 1)):
        cut = {name: x[: shape[0], : shape[1]] for name, x in feeds.items()}
        np.testing.assert_allclose(session.run(None, cut)[0], sum(cut.values()), rtol=1e-5)


def test_a_model_of_many_nodes_that_one_reads(open_session: Open) -> None:
    names = [f"a{i}" for i in range(2000)]
    steps = " ".join(f"{name} = Neg(x)" for name in names)
    session = open_session(model(f"g (float[3] x) => (float[3] y) {{ {steps} y = Sum({', '.join(names)}) }}"))
    x = np.array([1, -2, 3], np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], -2000 * x)


def test_expressions_of_many_operations_are_not_fused(open_session: Open) -> None:
    """Drivers need minutes to compile a kernel of a thousand of them."""
    numbers = ", ".join(f"c{i}" for i in range(29))
    steps = " ".join(f"t{i + 1} = Max(t{i}, {numbers})" for i in range(16))
    values = ", ".join(f"float c{i} = {{{i}}}" for i in range(29))
    assert _dispatches(open_session, f"g (float[3] t0) => (float[3] t16) <{values}> {{ {steps} }}") == 4
