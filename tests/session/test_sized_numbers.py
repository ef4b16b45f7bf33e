"""Numbers that a model computes from the sizes of its inputs: few plans serve all sizes, and results are those of one size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.numpy_helper
import pytest

from tests.calls import noted
from tests.session.models import model
from tools.ort_cpu import cpu_session
from vkep import InferenceSession
from vkep.session.planning.planner import Planner

Open = Callable[..., InferenceSession]
SIZES = (37, 41, 52, 60, 33, 71, 80, 45, 90, 64)

#: operators of one float, two floats, and their results as another type
_ONE = [
    "Abs",
    "Ceil",
    "Cos",
    "Exp",
    "Floor",
    "Identity",
    "Log",
    "Neg",
    "Reciprocal",
    "Round",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sqrt",
    "Tanh",
]
_TWO = ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum", "Mod"]
_OF_A_FLOAT = {
    **{op: f"b = Div(f, c) r = {op}(b)" for op in _ONE},
    **{op: f"r = {op}{'<fmod=1>' if op == 'Mod' else ''}(f, c)" for op in _TWO},
    "Clip": "low = Constant<value_float=40.5>() r = Clip(f, low)",
    "Cast to float16": "a = Cast<to=10>(f) b = Add(a, a) d = Cast<to=1>(b) r = Div(d, c)",
    "Cast to float64": "a = Cast<to=11>(f) b = Sqrt(a) r = Cast<to=1>(b)",
    "Cast to bfloat16": "a = Cast<to=16>(f) r = Cast<to=1>(a)",
    "CastLike": "r = CastLike(f, c)",
    "Where": "t = Constant<value_float=3.0>() l = Greater(f, t) r = Where(l, f, c)",
    "where a size decides": "t = Constant<value_float=55.0>() l = Less(f, t) r = Where(l, f, c)",
    "Softmax": "d = Constant<value_floats=[1.0,2.0,3.0,4.0]>() e = Mul(d, f) g = Div(e, f) r = Softmax(g)",
    "a table": "k = Constant<value_floats=[1.0,0.5,0.25,0.125]>() e = Mul(f, k) r = Sin(e)",
    "Concat": "a = Unsqueeze(f, zero) b = Constant<value_floats=[1.0,2.0]>() e = Mul(f, c) h = Unsqueeze(e, zero)"
    " r = Concat<axis=0>(a, b, h)",
    "a sum of numbers": "a = Unsqueeze(f, zero) b = Concat<axis=0>(a, a, a) d = ReduceSum<keepdims=0>(b) r = Div(d, c)",
}
#: text of a graph of x [n, 4], its result y, and constants zero ([0]) and n (the first dimension, a scalar)
CASES: dict[str, str] = {
    **{
        name: f"f = Cast<to=1>(n) c = Constant<value_float=3.0>() {text} y = Add(x, r)"
        for name, text in _OF_A_FLOAT.items()
    },
    "rotary positions": """one = Constant<value_int=1>() first = Constant<value_int=0>() p = Range(first, n, one)
        f = Cast<to=1>(p) col = Unsqueeze(f, ones) k = Constant<value_floats=[1.0,0.5,0.25,0.125]>() a = Mul(col, k)
        s = Sin(a) y = Mul(x, s)""",
    "float positions": """f = Cast<to=1>(n) one = Constant<value_float=1.0>() first = Constant<value_float=0.0>()
        p = Range(first, f, one) q = Div(p, f) col = Unsqueeze(q, ones) y = Mul(x, col)""",
    "a scaled length": """f = Cast<to=1>(n) c = Constant<value_float=0.3>() g = Mul(f, c) h = Floor(g) i = Cast<to=7>(h)
        e = Unsqueeze(i, zero) y = Slice(x, zero, e, zero)""",
    "an expanded position": """shape = Constant<value_ints=[2,3]>() e = Expand(n, shape) f = Cast<to=1>(e)
        g = ReduceMean<keepdims=0>(f) y = Mul(x, g)""",
    "an expanded position of many": """s = Shape(x) e = Expand(n, s) f = Cast<to=1>(e) y = Mul(x, f)""",
    "a table of pads": """two = Constant<value_ints=[2,2]>() m = Unsqueeze(n, zero) half = Constant<value_ints=[2]>()
        a = Div(m, half) b = Sub(m, a) z = Constant<value_ints=[0]>() l = Concat<axis=0>(z, z, a, b)
        t = Reshape(l, two) begin = Constant<value_ints=[-1]>() end = Constant<value_ints=[-9223372036854775807]>()
        u = Slice(t, begin, end, zero, begin) v = Transpose<perm=[1,0]>(u) w = Reshape(v, begin) c = Cast<to=7>(w)
        y = Pad(x, c)""",
    "a learned position": """k = Constant<value_int=1>() p = Sub(n, k) table = Constant<value_floats=[1.0]>()
        hundred = Constant<value_ints=[100,4]>() t0 = Expand(table, hundred) r = Gather(t0, p) y = Add(x, r)""",
    "numbers of sizes as data": """m = Unsqueeze(n, zero) k = Constant<value_ints=[1,2,3]>() l = Concat<axis=0>(m, k)
        f = Cast<to=1>(l) y = Add(x, f)""",
    "integers of sizes as data": """m = Unsqueeze(n, zero) k = Constant<value_ints=[1,2,3]>() l = Concat<axis=0>(m, k)
        i = Cast<to=7>(x) j = Add(i, l) y = Cast<to=1>(j)""",
    "a shape with a replaced element": """s = Shape(x) m = Constant<value_ints=[2]>()
        h = Mul(s, m) u = Slice(h, zero, ones, zero) v = ScatterND(s, ows, u) z = ConstantOfShape(v)
        q = ReduceSum<keepdims=0>(z) y = Add(x, q)""",
    "lengths in order": """m = Unsqueeze(n, zero) k = Constant<value_ints=[1,20,200]>() l = Concat<axis=0>(m, k)
        four = Constant<value_ints=[4]>() v, i = TopK(l, four) w, j = TopK<largest=0>(m, ones) a = Add(v, i) b = Add(a, w)
        c = Add(b, j) f = Cast<to=1>(c) y = Add(x, f)""",
    "a convolution as wide as the signal": """first = Constant<value_int=0>() step = Constant<value_int=1>()
        p = Range(first, n, step) f = Cast<to=1>(p) hundred = Constant<value_float=100.0>() q = Div(f, hundred)
        four = Constant<value_ints=[4]>() m = Unsqueeze(n, zero) s = Concat<axis=0>(four, ones, m) w = Expand(q, s)
        t = Transpose<perm=[1,0]>(x) u = Unsqueeze(t, zero) c = Conv<group=4>(u, w) r = Reshape(c, four) y = Add(x, r)""",
    "no rows of a width": """m = Unsqueeze(n, zero) s = Concat<axis=0>(zero, m) c = ConstantOfShape(s)
        r = ReduceSum<keepdims=0>(c) y = Add(x, r)""",
    "the larger of two sizes": """s = Shape(x) l = ReduceMax<keepdims=0>(s) f = Cast<to=1>(l) y = Mul(x, f)""",
    "the least size of a transformed image": """s = Shape(x) a = ReduceMin<keepdims=0>(s) b = Mul(a, ones) f = Cast<to=1>(b)
        g = Cast<to=1>(s) u = Unsqueeze(g, zero) v = Unsqueeze(f, ones) m = ReduceMax(u, ones) l = ReduceMin<keepdims=0>(v)
        d = Div(l, m) e = Reshape(d, zero) r = Mul(e, g) i = Ceil(r) j = Cast<to=7>(i) t = Expand(j, ones)
        h = Slice(t, zero, ones, zero) y = Slice(x, zero, h, zero)""",
    "a product with a number of a size": """f = Cast<to=1>(n) one = Constant<value_ints=[1,1]>() w = Reshape(f, one)
        k = Constant<value_ints=[-1,1]>() c = Reshape(x, k) p = MatMul(c, w) four = Constant<value_ints=[-1,4]>()
        y = Reshape(p, four)""",
    "a convolution by a number of a size": """f = Cast<to=1>(n) one = Constant<value_ints=[1,1,1]>() w = Reshape(f, one)
        c = Unsqueeze(x, ones) p = Conv(c, w) y = Squeeze(p, ones)""",
    "a size as the result": """f = Cast<to=1>(n) c = Constant<value_float=3.0>() y = Div(f, c)""",
}


def graph(text: str) -> Any:
    return model(
        f"""g (float[n,4] x) => (float[...] y) {{ zero = Constant<value_ints=[0]>() ones = Constant<value_ints=[1]>()
        ows = Constant<value = int64[1,1] {{0}}>() n0 = Shape<start=0, end=1>(x) n = Squeeze(n0, zero) {text} }}""".replace(
            "float[...] y", "float[a,b] y"
        ),
        opset=18,
    )


@pytest.mark.parametrize("case", CASES)
def test_few_plans_serve_numbers_of_every_size(open_session: Open, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = graph(CASES[case]).SerializeToString()
    session, draw = open_session(data), np.random.default_rng(0)
    runs = []
    with monkeypatch.context() as patch:
        plans = noted(patch, Planner, "plan", lambda *_, **__: 1)
        for size in SIZES:
            x = draw.normal(0, 0.5, (size, 4)).astype(np.float32)
            runs.append((x, session.run(None, {"x": x})[0]))
    peer = cpu_session(data)
    for k, (x, got) in enumerate(runs):
        [expected] = peer.run(None, {"x": x})
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, strict=True)
        if k in (2, 5):
            alone = open_session(data).run(None, {"x": x})[0]
            np.testing.assert_allclose(got, alone, rtol=1e-6, atol=1e-7, strict=True)
    assert len(plans) <= 3


def test_products_of_turned_rows_with_a_weight(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight is one matrix for each of a number of batches that is a size."""
    proto = model(
        "g (float[6,n,32] x) => (float[n,6,48] y) { t = Transpose<perm=[1,0,2]>(x) y = MatMul(t, w) }", opset=18
    )
    draw = np.random.default_rng(0)
    weight = draw.normal(0, 0.3, (32, 48)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    session = open_session(proto.SerializeToString())
    plans = noted(monkeypatch, Planner, "plan", lambda *_, **__: 1)
    for size in SIZES:
        x = draw.normal(0, 1, (6, size, 32)).astype(np.float32)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x.transpose(1, 0, 2) @ weight, rtol=1e-4, atol=1e-4)
    assert len(plans) <= 3


FORWARD = "s = Shape <start = 1, end = 2> (x) zero = Constant <value_ints: ints = [0]> () n = Squeeze(s, zero)"
TRANSFORMS = {
    "real, one side": (1, "y = DFT <onesided = 1> (x, n, one)"),
    "complex": (2, "y = DFT (x, n, one)"),
    "inverse": (2, "y = DFT <inverse = 1> (x, n, one)"),
    "of a length that is not given": (1, "y = DFT (x, , one)"),
    "longer": (1, "l = Mul(n, two) y = DFT (x, l, one)"),
}


@pytest.mark.parametrize("case", TRANSFORMS)
def test_transforms_of_a_length_that_is_a_size(open_session: Open, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, text = TRANSFORMS[case]
    data = model(
        f"""g (float[1,n,{parts}] x) => (float[1,m,2] y) <int64 one = {{1}}, int64 two = {{2}}> {{ {FORWARD} {text} }}""",
        opset=20,
    ).SerializeToString()
    session, draw, plans = (
        open_session(data),
        np.random.default_rng(0),
        noted(monkeypatch, Planner, "plan", lambda *_, **__: 1),
    )
    for size in (*(n for n in SIZES if n <= 64), 61):  # each run makes the matrix: not of more than 128 elements
        x = draw.normal(0, 1, (1, size, parts)).astype(np.float32)
        signal = x[..., 0] + 1j * (x[..., 1] if parts == 2 else 0)
        length = 2 * size if case == "longer" else size
        found = np.fft.ifft(signal, length) if case == "inverse" else np.fft.fft(signal, length)
        found = found[:, : length // 2 + 1] if "one side" in case else found
        expected = np.stack([found.real, found.imag], -1)
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max()
        )
    assert len(plans) <= 3
