"""A session with many signatures: few plans serve all of them, and they hold the weights once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import numpy_helper

from tests.session.models import model, reference
from vkep import InferenceSession

_LAYER = """g (float[b,l,64] x) => (float[b,l,64] y) {
    n = LayerNormalization(x, g, h)
    t = Transpose <perm: ints = [0,2,1]> (n)
    s = MatMul(n, t)
    p = Softmax(s)
    a = MatMul(p, n)
    u = MatMul(a, w)
    r = Relu(u)
    d = MatMul(r, v)
    y = Add(d, x)
}"""
#: among them the largest, and sizes that are too far from those of the first plans, which get their own
_FIRST = [(4, 121), (6, 20), (6, 24), (3, 29), (8, 128), (7, 1), (1, 64), (2, 2)]


def test_no_plan_is_made_after_the_first_signatures_and_memory_stays(
    open_session: Callable[..., InferenceSession],
) -> None:
    rng = np.random.default_rng(5)
    proto = model(_LAYER)
    for name, shape in {"w": (64, 128), "v": (128, 64), "g": (64,), "h": (64,)}.items():
        weight = rng.normal(0, 0.1, shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(weight, name))
    session = open_session(proto.SerializeToString())
    graph = session._parts.graph

    def run(batch: int, length: int, check: bool = False) -> None:
        x = rng.standard_normal((batch, length, 64)).astype(np.float32)
        [got] = session.run(None, {"x": x})
        if check:
            np.testing.assert_allclose(got, reference(proto, {"x": x})[0], rtol=2e-4, atol=2e-5)

    weights = []
    for batch, length in _FIRST:
        run(batch, length)
        weights.append(sum(session.memory().constants.values()))
    plans, held = graph.plan_count, session.memory().arena.bytes_in_use
    assert plans <= 4 and len(set(weights)) == 1  # later plans find them packed
    others = [(b, n) for b in range(1, 9) for n in range(1, 129) if (b, n) not in _FIRST]
    ones = [(1, 1), (1, 2), (8, 1), (2, 1), (1, 128), (1, 3), (5, 2), (8, 2), (3, 127), (8, 127)]
    for batch, length in [*ones, *[others[k] for k in rng.permutation(len(others))[:42]]]:
        run(batch, length, check=(batch, length) in ones)
    assert graph.plan_count == plans and sum(session.memory().constants.values()) == weights[0]
    most = 2 * 4 * 64 * 8 * 128  # of the input and the output, which each plan has memory for
    assert session.memory().arena.bytes_in_use <= held + plans * most
