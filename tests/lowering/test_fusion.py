"""Fusion changes how a graph is computed, never what: random graphs with and without it, against onnx's reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.lowering.graphs import RandomGraph
from tests.session.models import model, reference
from vkep import InferenceSession
from vkep.passes import island

Open = Callable[..., InferenceSession]


@pytest.fixture
def unfused(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Switches fusion off: every operation as its function wrote it."""

    def switch(off: bool) -> None:
        monkeypatch.undo()
        if off:
            monkeypatch.setattr(island, "optimize", lambda ops, results: list(ops))

    return switch


@pytest.mark.parametrize("seed", range(24))
def test_random_graphs(open_session: Open, unfused: Callable[[bool], None], seed: int) -> None:
    graph = RandomGraph(np.random.default_rng(seed))
    proto = graph.model(size=6 + seed)
    feeds = graph.feeds()
    expected = reference(proto, feeds)
    dispatches = []
    for off in (False, True):
        unfused(off)
        session = open_session(proto)
        report = session.report()
        assert report.all_on_vulkan, str(report)
        dispatches.append(sum(i.dispatches for i in report.islands))
        names = [a.name for a in session.get_outputs()]
        for name, got, want in zip(names, session.run(None, feeds), expected, strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            np.testing.assert_allclose(
                got, want, rtol=2e-4, atol=2e-4, err_msg=f"{name}, fusion {'off' if off else 'on'}"
            )
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
