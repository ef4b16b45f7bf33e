"""Models on the host, by the interpreter: parts that are planned late, loops, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from tools.passes.interpreted import interpreted
from tools.plan_devices import DEVICES
from vkep import InvalidInputError, InvalidModelError, UnsupportedModelError

X = np.array([[1, 0, -2], [0, 3, 0]], np.float32)


def run(text: str, device: str = "cpu", **feeds: np.ndarray) -> list[Any]:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> g {text}')
    return interpreted(model, feeds, DEVICES[device])


@pytest.mark.parametrize("device", DEVICES)
def test_a_part_that_waits_for_a_count(device: str) -> None:
    text = "(float[2,3] x) => (int64[r,n] p, float[2,3] y) { p = NonZero(x) y = Softmax(x) }"
    places, y = run(text, device, x=X)
    np.testing.assert_array_equal(places, np.nonzero(X))
    np.testing.assert_allclose(y, np.exp(X) / np.exp(X).sum(1, keepdims=True), rtol=1e-6)
    assert y.dtype == np.float32


def test_a_loop_whose_end_a_run_knows() -> None:
    text = """(int64 trips, bool go, float[2,3] x) => (float[2,3] y, float[k,2,3] all) {
        y, all = Loop(trips, go, x) <body = g (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] b, float[2,3] e)
            { d = Identity(c) b = Add(a, a) e = Neg(a) }> }"""
    y, stacked = run(text, trips=np.array(3), go=np.array(True), x=X)
    np.testing.assert_array_equal(y, 8 * X)
    np.testing.assert_array_equal(stacked, [-X, -2 * X, -4 * X])


def test_codes_of_8_bit_floats_and_narrow_integers() -> None:
    outputs = "float8e4m3fn[2,3] f, uint8[2,3] u, bool[2,3] b"
    nodes = "f = Cast<to=17>(x) z = Abs(x) u = Cast<to=2>(z) b = Cast<to=9>(x)"
    f, u, b = run(f"(float[2,3] x) => ({outputs}) {{ {nodes} }}", x=X)
    np.testing.assert_array_equal(f.astype(np.float32), X)
    assert u.dtype == np.uint8 and u.tolist() == np.abs(X).tolist()
    assert b.dtype == np.bool_ and b.tolist() == (X != 0).tolist()


def test_refusals_are_those_of_a_session() -> None:
    with pytest.raises(InvalidModelError, match="axis"):
        run("(float[2,3] x) => (float[2,3] y) { y = Softmax<axis=5>(x) }", x=X)
    with pytest.raises(UnsupportedModelError, match="Vulkan declines 1 node"):
        run("(string[2] x) => (string[2] y) { y = StringConcat(x, x) }", x=np.array(["a", "b"], np.object_))
    with pytest.raises(InvalidInputError, match="got dtype float64"):
        run("(float[n,3] x) => (float[n,3] y) { y = Neg(x) }", x=X.astype(np.float64))
