"""Where a kernel may store its result: producers of each kind with each destination, against ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.ops.cases import shared_context
from tests.session.models import model
from tools.fuzz.compositions import DESTINATIONS, PRODUCERS, difference, draw
from tools.ort_cpu import cpu_session
from vkep import InferenceSession

Open = Callable[..., InferenceSession]
CASES = 3 * len(PRODUCERS)


@pytest.mark.parametrize("index", range(CASES))
def test_a_drawn_composition(index: int) -> None:
    g = draw(1, index)
    assert not (why := difference(g, shared_context())), f"{why} in {', '.join(g.text)}"


def test_the_draws_have_everything() -> None:
    drawn = [draw(1, index).text for index in range(CASES)]
    assert {text[0] for text in drawn} == set(PRODUCERS)
    assert {text[2] for text in drawn} == set(DESTINATIONS)


CONVOLUTIONS = {
    "1x1": ("", "4,4,1,1"),
    "3x3": ("<pads=[1,1,1,1]>", "4,4,3,3"),
    "grouped": ("<pads=[1,1,1,1], group=2>", "4,2,3,3"),
    "depthwise": ("<pads=[1,1,1,1], group=4>", "4,1,3,3"),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_convolution_into_a_concat(
    open_session: Open, rng: np.random.Generator, kind: str, axis: int, dtype: str
) -> None:
    (options, window), t = CONVOLUTIONS[kind], "float" if dtype == "float32" else "float16"
    names = {"a": "2,4,6,6", "b": "2,4,6,6", "v": window, "w": window}
    proto = model(
        f"g ({', '.join(f'{t}[{shape}] {name}' for name, shape in names.items())}) => ({t}[n,c,h,w] y) {{"
        f"p = Conv{options}(a, v) q = Conv{options}(b, w) y = Concat<axis={axis}>(p, q) }}"
    )
    feeds = {n: (rng.standard_normal(list(map(int, s.split(",")))) / 3).astype(dtype) for n, s in names.items()}
    [expected] = cpu_session(proto).run(None, feeds)
    near = 1e-5 if dtype == "float32" else 3e-3
    np.testing.assert_allclose(open_session(proto).run(None, feeds)[0], expected, rtol=near, atol=near)


@pytest.mark.parametrize("axis", range(4))
def test_convolutions_of_open_sizes_into_a_concat(open_session: Open, rng: np.random.Generator, axis: int) -> None:
    """One plan stores its results in parts whose strides depend on sizes."""
    weights = [(rng.standard_normal(shape) / 12).astype(np.float32) for shape in ((16, 16, 3, 3), (16, 16, 1, 1))]
    proto = model(
        "g (float[n,16,h,w] x, float[16,16,3,3] u, float[16,16,1,1] v) => (float[a,b,c,d] y) {"
        f"p = Conv<pads=[1,1,1,1]>(x, u) r = Relu(p) q = Conv(x, v) y = Concat<axis={axis}>(r, q, x) }}"
    )
    session, theirs = open_session(proto), cpu_session(proto)
    for n, h, w in ((1, 9, 8), (2, 9, 8), (1, 20, 31), (3, 1, 1), (1, 9, 8)):
        feeds: dict[str, np.ndarray] = {
            "x": rng.standard_normal((n, 16, h, w)).astype(np.float32),
            "u": weights[0],
            "v": weights[1],
        }
        np.testing.assert_allclose(session.run(None, feeds)[0], theirs.run(None, feeds)[0], rtol=1e-5, atol=1e-5)
