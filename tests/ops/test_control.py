"""If, Loop and Scan with bodies on Vulkan, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.ops.cases import assert_like, by_onnxruntime
from vkep import InferenceSession


def _model(text: str, opset: int = 18) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {text}')


def _places(session: InferenceSession) -> set[str]:
    return {n.where for n in session.report().nodes}


def _check(model: onnx.ModelProto, *feeds: dict[str, Any]) -> set[str]:
    """Run on Vulkan only and compare, feed by feed; where the nodes ran."""
    with InferenceSession(model, fallback="error") as session:
        for feed in feeds:
            assert_like(session.run(None, feed), by_onnxruntime(model, feed))
        return _places(session)


X = np.arange(-3, 3, dtype=np.float32)

IF = _model(
    """g (bool c, float[6] x) => (float[6] y, float[6] z) {
        y, a = If (c) <
            then_branch = t () => (float[6] u, float[6] w) { u = Relu(x) w = Identity(x) },
            else_branch = e () => (float[6] u, float[6] w) { u = Neg(x) w = Add(x, u) }
        >
        z = Mul(a, y)
    }"""
)


def test_if_by_value() -> None:
    places = _check(IF, {"c": np.array(True), "x": X}, {"c": np.array(False), "x": X}, {"c": np.array(True), "x": X})
    assert places <= {"vulkan", "inlined"}


def test_if_of_a_computed_condition_inside_a_branch() -> None:
    model = _model(
        """g (float[6] x) => (float[6] y) {
            s = ReduceSum<keepdims = 0>(x)
            zero = Constant<value = float {0.0}>()
            p = Greater(s, zero)
            y = If (p) <
                then_branch = t () => (float[6] u) {
                    big = Constant<value = float {9.0}>()
                    q = Greater(s, big)
                    u = If (q) <
                        then_branch = tt () => (float[6] v) { v = Mul(x, s) },
                        else_branch = te () => (float[6] v) { v = Add(x, s) }
                    >
                },
                else_branch = e () => (float[6] u) { u = Neg(x) }
            >
        }"""
    )
    _check(model, {"x": X}, {"x": X + 1}, {"x": X + 9})


COUNTED = """g (int64 m, float[6] x) => (float[6] y, float[k,6] all) {{
    go = Constant<value = bool {{1}}>()
    y, all = Loop ({m}, go, x) <
        body = b (int64 i, bool c, float[6] v) => (bool d, float[6] w, float[6] o) {{
            d = Identity(c)
            f = Cast<to = 1>(i)
            w = Add(v, f)
            o = Mul(w, x)
        }}
    >
}}"""


@pytest.mark.parametrize("trips", [4, 1, 0])
def test_loop_of_a_given_number_of_steps(trips: int) -> None:
    model = _model(COUNTED.format(m="m"))
    assert "control" in _check(model, {"m": np.array(trips), "x": X}, {"m": np.array(trips + 2), "x": X})


def test_loop_of_a_known_number_of_steps_is_laid_out() -> None:
    model = _model(
        """g (float[6] x) => (float[6] y, float[3,6] all) {
            m = Constant<value = int64 {3}>()
            y, all = Loop (m, , x) <
                body = b (int64 i, bool c, float[6] v) => (bool d, float[6] w, float[6] o) {
                    d = Identity(c)
                    f = Cast<to = 1>(i)
                    w = Add(v, f)
                    o = Identity(w)
                }
            >
        }"""
    )
    assert _check(model, {"x": X}) <= {"vulkan", "inlined", "folded"}


def test_loop_until_its_condition_fails() -> None:
    model = _model(
        """g (int64 m, bool go, float[6] x, float limit) => (float[6] y, float[k] sums) {
            y, sums = Loop (m, go, x) <
                body = b (int64 i, bool c, float[6] v) => (bool d, float[6] w, float s) {
                    w = Add(v, x)
                    s = ReduceSum<keepdims = 0>(w)
                    d = Less(s, limit)
                }
            >
        }"""
    )
    base = {"m": np.array(100), "go": np.array(True), "x": np.ones(6, np.float32)}
    _check(
        model,
        base | {"limit": np.array(20, np.float32)},
        base | {"limit": np.array(50, np.float32)},
        base | {"limit": np.array(1e9, np.float32), "m": np.array(2)},
    )
    with InferenceSession(model, fallback="error") as session:
        y, sums = session.run(None, base | {"go": np.array(False), "limit": np.array(20, np.float32)})
        np.testing.assert_array_equal(y, base["x"])
        assert sums.size == 0


def test_carried_value_that_grows() -> None:
    model = _model(
        """g (int64 m, float[n] x) => (float[k] y) {
            go = Constant<value = bool {1}>()
            y = Loop (m, go, x) <
                body = b (int64 i, bool c, float[j] v) => (bool d, float[l] w) {
                    d = Identity(c)
                    w = Concat<axis = 0>(v, x)
                }
            >
        }"""
    )
    _check(model, {"m": np.array(3), "x": X}, {"m": np.array(2), "x": X[:2]})


SCAN = """g (float[3] start, float[{n},3] x) => (float[3] last, float[{n},3] sums, float[3,{n}] turned) {{
    last, sums, turned = Scan <num_scan_inputs = 1, scan_input_directions = [{back}], scan_output_axes = [0, 1],
                              scan_output_directions = [0, {back}],
        body = b (float[3] s, float[3] e) => (float[3] t, float[3] o, float[3] p) {{
            t = Add(s, e)
            o = Mul(t, start)
            p = Identity(t)
        }}
    > (start, x)
}}"""


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("steps", [4, 300])
def test_scan(back: int, steps: int) -> None:
    model = _model(SCAN.format(n=steps, back=back))
    rng = np.random.default_rng(2)
    feed = {"start": rng.normal(size=3).astype(np.float32), "x": rng.normal(size=(steps, 3)).astype(np.float32)}
    reference = np.cumsum(np.vstack([feed["start"], feed["x"][::-1] if back else feed["x"]]), 0, np.float64)[1:]
    with InferenceSession(model, fallback="error") as session:
        last, sums, turned = session.run(None, feed)
        assert ("control" in _places(session)) == (steps == 300)
    np.testing.assert_allclose(last, reference[-1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(sums, reference * feed["start"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(turned, (reference[::-1] if back else reference).T, rtol=1e-4, atol=1e-4)


def test_loop_in_a_loop() -> None:
    model = _model(
        """g (int64 m, float[6] x) => (float[6] y) {
            go = Constant<value = bool {1}>()
            y = Loop (m, go, x) <
                body = b (int64 i, bool c, float[6] v) => (bool d, float[6] w) {
                    d = Identity(c)
                    w = Loop (i, c, v) <
                        body = bb (int64 j, bool cc, float[6] vv) => (bool dd, float[6] ww) {
                            dd = Identity(cc)
                            ww = Add(vv, x)
                        }
                    >
                }
            >
        }"""
    )
    _check(model, {"m": np.array(4), "x": X})


def test_results_of_a_loop_flow_on() -> None:
    model = _model(
        """g (int64 m, float[6] x) => (float[6] y) {
            go = Constant<value = bool {1}>()
            a = Relu(x)
            v = Loop (m, go, a) <
                body = b (int64 i, bool c, float[6] v) => (bool d, float[6] w) { d = Identity(c) w = Add(v, x) }
            >
            y = Sub(v, a)
        }"""
    )
    _check(model, {"m": np.array(4), "x": X}, {"m": np.array(0), "x": X})


@pytest.mark.parametrize("known", [True, False])
def test_a_body_may_count_its_steps_along_an_axis(known: bool) -> None:
    """ONNX has numbers there; converters from TensorFlow declare one axis, and ONNX Runtime gives one."""
    rounds = "rounds = Constant<value = int64 {3}>()" if known else ""
    model = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 12]>
        g ({"" if known else "int64 rounds, "}float[6] x) => (float[6] y, float[k,1] taken) {{
            {rounds}
            yes = Constant<value = bool {{1}}>()
            y, taken = Loop(rounds, yes, x) <
                body = body (int64[1] i, bool go, float[6] s) => (bool on, float[6] next, float[1] part) {{
                    one = Constant<value = int64[1] {{1}}>()  end = Add(i, one)  part = Slice(s, i, end)
                    on = Identity(go)  next = Exp(s)
                }}
            >
        }}""")
    values = {"x": np.linspace(-1, 0, 6, dtype=np.float32), **({} if known else {"rounds": np.array(3)})}
    with InferenceSession(model) as session:
        got = session.run(None, values)
    assert_like(got, by_onnxruntime(model, values))
