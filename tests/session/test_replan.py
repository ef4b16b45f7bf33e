"""A known model for a new size: what does not depend on sizes is not made again, and results are as from a first plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import vkep
from tests.calls import noted
from tests.session.models import model
from vkep.graph import load_model, weights
from vkep.graph.weights import ArrayWeight, PackedWeight
from vkep.placement import fold

RNG = np.random.default_rng(5)
#: a product with a weight that folding transposes, a convolution, and a shape that follows from the input's
TEXT = """g (float[n,3,8,8] x) => (float[n,c] y, float[n,4,8,8] z) {
    z = Conv<pads=[1,1,1,1]>(x, k)
    s = Shape(x) first = Gather(s, zero) shape = Concat<axis=0>(first, rest)
    flat = Reshape(z, shape) t = Transpose<perm=[1,0]>(w) p = MatMul(flat, t) y = Relu(p) }"""
K = RNG.normal(0, 1, (4, 3, 3, 3)).astype(np.float32)
W = RNG.normal(0, 0.1, (96, 256)).astype(np.float32)


def proto() -> onnx.ModelProto:
    made = model(TEXT)
    constants: dict[str, np.ndarray] = {
        "k": K,
        "w": W,
        "zero": np.array([0], np.int64),
        "rest": np.array([256], np.int64),
    }
    made.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in constants.items())
    return made


def run(session: vkep.InferenceSession, n: int) -> None:
    """A run for a batch of n, compared."""
    x = RNG.normal(0, 1, (n, 3, 8, 8)).astype(np.float32)
    y, z = session.run(None, {"x": x})
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    conv = np.einsum("nchwij,ocij->nohw", windows, K)
    np.testing.assert_allclose(z, conv, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(y, np.maximum(conv.reshape(n, 256) @ W.T, 0), rtol=1e-4, atol=1e-4)


def test_weights_are_packed_hashed_and_folded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = noted(monkeypatch, PackedWeight, "_pack", lambda *given: 1)
    evaluators = noted(monkeypatch, fold._Evaluator, "__init__", lambda *given: 1)
    hashed = noted(monkeypatch, weights, "array_key", lambda array: array.nbytes)
    with vkep.InferenceSession(proto(), fallback="error", plan_cache_size=2) as session:
        run(session, 5)
        assert evaluators and any(size == W.nbytes for size in hashed)
        before = len(packed), len(evaluators)
        hashed.clear()
        for n in (6, 7, 5, 8):  # of 5 the plan was dropped meanwhile
            run(session, n)
        assert (len(packed), len(evaluators)) == before
        assert max(hashed, default=0) < K.nbytes


def test_a_form_known_from_another_plan_is_packed_when_asked_for() -> None:
    made: list[int] = []

    def turned(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        made.append(values.size)
        return values[::-1].reshape(3, 2)

    base = ArrayWeight("w", np.arange(6, dtype=np.float32))
    first, second = (PackedWeight(base, 0, turned, "turned") for _ in range(2))
    assert made == [6]
    assert (second.shape, second.elem_type, second.key, second.nbytes) == (first.shape, first.elem_type, first.key, 24)
    np.testing.assert_array_equal(second.array(), first.array())
    assert made == [6, 6]
    assert PackedWeight(base, 2, lambda v: v, "rest").shape == (4,)


def test_folding_gives_the_same_constants_for_the_same_inputs() -> None:
    [node] = load_model(model("g (float[2,3] w) => (float[3,2] y) { y = Transpose<perm=[1,0]>(w) }")).graph.nodes
    w = ArrayWeight("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    other = ArrayWeight("w", np.zeros((4, 5), np.float32))
    found = [fold.fold_weights(node, [weight], {"": 18}) for weight in (w, w, other)]
    assert None not in found
    [first], [second], [third] = filter(None, found)
    assert first is not None and first is second
    assert third is not None and third.shape == (5, 4)
    np.testing.assert_array_equal(first.array(), w.array().T)
