"""Counts that a run computes or is given, as of NonZero, Unique and TopK: few plans serve all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.calls import noted
from tests.session.models import model
from tools.ort_cpu import cpu_session
from vkep import InferenceSession
from vkep.session.planning.planner import Planner

Open = Callable[..., InferenceSession]
Draw = np.random.Generator
FLOAT = np.float32


def image(draw: Draw, least: int = 3) -> np.ndarray[Any, Any]:
    return draw.normal(0, 1, (int(draw.integers(least, 20)), int(draw.integers(least, 20)))).astype(FLOAT)


CASES: dict[str, tuple[str, Callable[[Draw], dict[str, Any]]]] = {
    "elements that are not zero": (
        "(float[n,m] x) => (float[k] y) { i = NonZero(x) t = Transpose(i) g = GatherND(x, t) y = Mul(g, g) }",
        lambda draw: {"x": np.where((x := image(draw)) > draw.normal(), x, FLOAT(0))},
    ),
    "distinct values": (
        "(float[n] x) => (float[k] y, int64[k] i) { v, i = Unique(x) y = Mul(v, v) }",
        lambda draw: {"x": draw.integers(0, draw.integers(3, 50), 60).astype(FLOAT)},
    ),
    "the largest of as many as are asked for": (
        "(float[n] x, int64[1] k) => (float[m] y, int64[m] i) { y, i = TopK(x, k) }",
        lambda draw: {"x": draw.random(100, FLOAT), "k": draw.integers(2, 90, 1)},
    ),
    "the last ones, of a start that the run computes": (
        """(float[n] x, int64[m] p) => (float[k] y) {
            zero = Constant <value_ints: ints = [0]> () l = ReduceMax <keepdims: int = 0> (p, zero) b = Neg(l)
            e = Constant <value_ints: ints = [-1]> () t = Reshape(b, e) y = Slice(x, t, e, zero)
        }""",
        lambda draw: {"x": draw.random(100, FLOAT), "p": draw.integers(2, 90, 7)},
    ),
    "the largest 30, or fewer": (
        """(float[n] x) => (float[m] y, int64[m] i) {
            s = Shape(x) most = Constant <value_ints: ints = [30]> () k = Min(s, most) y, i = TopK(x, k)
        }""",
        lambda draw: {"x": draw.random(int(draw.integers(10, 90)), FLOAT)},
    ),
    "the largest of lists from short to long": (
        "(float[n] x, int64[1] k) => (float[m] y, int64[m] i) { y, i = TopK(x, k) }",
        lambda draw: {
            "x": (x := draw.integers(0, 99, int(2 ** draw.uniform(4, 13.5))).astype(FLOAT)),
            "k": draw.integers(2, len(x), 1),
        },
    ),
    "distinct values of lists from short to long": (
        "(float[n] x) => (float[k] y, int64[k] i) { y, i = Unique(x) }",
        lambda draw: {"x": draw.integers(0, 2000, int(2 ** draw.uniform(4, 13.5))).astype(FLOAT)},
    ),
    "elements at constant places": (
        """(float[n,m] x) => (float[n,3] y, float[2] z) {
            i = Constant <value_ints: ints = [0, -1, 2]> () y = Gather <axis: int = 1> (x, i)
            j = Constant <value = int64[2,2] {1, 2, -1, 0}> () z = GatherND(x, j)
        }""",
        lambda draw: {"x": image(draw)},
    ),
    "products of chosen rows": (
        """(float[n,8] x, float[8,8] w) => (float[k,8] y) {
            one = Constant <value_ints: ints = [1]> () zero = Constant <value_ints: ints = [0]> ()
            half = Constant <value_float: float = 0.8> ()
            z = ReduceMax <keepdims: int = 0> (x, one) b = Greater(z, half) i = NonZero(b) j = Squeeze(i, zero)
            p = Gather(x, j) q = MatMul(p, w) y = Relu(q)
        }""",
        lambda draw: {"x": draw.random((draw.integers(9, 60), 8), FLOAT), "w": np.ones((8, 8), FLOAT)},
    ),
    "slices where a condition holds, which may be longer or shorter": (
        "(float[n,3] x, bool[m] c) => (float[k,3] y) { z = Compress <axis: int = 0> (x, c) y = Mul(z, z) }",
        lambda draw: {"x": (x := draw.random((draw.integers(9, 60), 3), FLOAT)), "c": draw.random(len(x) + 3) > 0.5},
    ),
    "boxes of two classes that do not overlap": (
        """(float[1,n,4] boxes, float[1,2,n] scores) => (float[k,4] y) {
            most = Constant <value = int64[1] {20}> () over = Constant <value = float[1] {0.4}> ()
            s = NonMaxSuppression(boxes, scores, most, over) two = Constant <value = int64 {2}> ()
            r = Gather <axis: int = 1> (s, two) first = Constant <value_ints: ints = [0]> ()
            flat = Squeeze(boxes, first) y = Gather(flat, r)
        }""",
        lambda draw: {
            "boxes": (low := 9 * draw.random((1, int(draw.integers(4, 60)), 4), FLOAT)) + np.array([0, 0, 2, 2], FLOAT),
            "scores": draw.random((1, 2, low.shape[1]), FLOAT),
        },
    ),
    "ones at as many places as there are, in a matrix whose width is their number": (
        """(float[n] x) => (float[n,k] y) {
            zero = Constant <value_ints: ints = [0]> () from = Constant <value_int: int = 0> ()
            one = Constant <value_int: int = 1> ()
            minus = Constant <value_ints: ints = [-1]> () ends = Constant <value_floats: floats = [1.0]> ()
            i = NonZero(x) j = Squeeze(i, zero) n = Shape(x) k = Shape(j) both = Concat <axis: int = 0> (n, k)
            z = ConstantOfShape(both) l = Squeeze(k, zero) r = Range(from, l, one) s = Add(j, r) u = Shape(s) w = Shape(u)
            o = ConstantOfShape <value: tensor = int64[1] {1}> (w) m = Mul(o, minus) e = Equal(u, m) t = Where(e, o, u)
            a = Expand(j, t) b = Unsqueeze(a, minus) c = Expand(r, t) d = Unsqueeze(c, minus) p = Concat <axis: int = -1> (b, d)
            f = Shape <start: int = 2> (z) g = Concat <axis: int = 0> (u, f) v = Shape(g)
            q = ConstantOfShape <value: tensor = int64[1] {1}> (v) h = Mul(q, minus) ee = Equal(g, h) tt = Where(ee, q, g)
            x1 = Expand(ends, tt) x2 = Reshape(x1, g) y = ScatterND(z, p, x2)
        }""",
        lambda draw: {"x": np.r_[FLOAT(1), FLOAT(2), np.maximum(image(draw)[0], 0)]},
    ),
    "a diagonal that moves": (
        "(float[n,m] x, int64 k) => (float[n,m] y) { y = Trilu <upper: int = 0> (x, k) }",
        lambda draw: {"x": image(draw), "k": np.array(draw.integers(2, 20))},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_few_plans_serve_every_count(open_session: Open, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, draw_feeds = CASES[case]
    data = model(f"g {text}", opset=18).SerializeToString()
    session = open_session(data, fallback="error")
    peer = cpu_session(data)
    draw = np.random.default_rng(2)
    plans = noted(monkeypatch, Planner, "plan", lambda *_, **__: 1)
    for _ in range(16):
        feeds = draw_feeds(draw)
        for got, expected in zip(session.run(None, feeds), peer.run(None, feeds), strict=True):
            assert got.dtype == expected.dtype
            np.testing.assert_allclose(got, expected, rtol=1e-6, strict=True)
    assert len(plans) <= (7 if "lists" in case else 3)  # of sizes more than 16 times apart


def test_nodes_on_the_cpu_keep_no_size_fixed_beside_a_count(
    open_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """g (float[n,m] x, string[2] s) => (float[k] y, string[2] t) {
        i = NonZero(x) p = Transpose(i) g = GatherND(x, p) y = Mul(g, g) t = StringConcat(s, s)
    }"""
    session, draw = open_session(model(text, opset=20).SerializeToString()), np.random.default_rng(3)
    plans = noted(monkeypatch, Planner, "plan", lambda *_, **__: 1)
    for _ in range(12):
        x = np.maximum(image(draw), 0)
        y, t = session.run(None, {"x": x, "s": np.array(["a", "b"], object)})
        np.testing.assert_array_equal(y, x[x > 0] ** 2)
        assert list(t) == ["aa", "bb"]
    assert len(plans) <= 8  # a plan with sizes is compared with one for a signature, of the model and of its rest


def test_counts_that_follow_one_another_are_not_planned_for_each_combination(
    open_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three masks, each of elements that the one before has changed, with no, one or more elements."""
    limits = " ".join(f"int64 i{k} = {{{k}}}{',' * (k < 2)}" for k in range(3))
    masks = " ".join(
        f"""k{k} = Gather(limits, i{k}) b{k} = Greater(x{k}, k{k}) n{k} = NonZero(b{k}) t{k} = Transpose(n{k})
            g{k} = GatherND(x{k}, t{k}) h{k} = Neg(g{k}) x{k + 1} = ScatterND(x{k}, t{k}, h{k})"""
        for k in range(3)
    )
    data = model(f"g (float[n,m] x0, float[3] limits) => (float[n,m] x3) <{limits}> {{ {masks} }}", opset=18)
    session, peer = open_session(data.SerializeToString(), fallback="error"), cpu_session(data)
    draw, plans = np.random.default_rng(0), noted(monkeypatch, Planner, "plan", lambda *_, **__: 1)
    for counts in itertools.product((0, 1, 9), repeat=3):
        x = draw.permutation(int(draw.integers(60, 900))).astype(FLOAT).reshape(-1, 1)
        x = x[: len(x) // 5 * 5].reshape(5, -1)
        chosen, left = [], np.sort(x.reshape(-1))[::-1]
        for count in counts:
            chosen.append(left[0] + 1 if count == 0 else (left[count - 1] + left[count]) / 2)
            left = left[count:]
        feeds = {"x0": x, "limits": np.array(chosen, FLOAT)}
        np.testing.assert_array_equal(session.run(None, feeds)[0], peer.run(None, feeds)[0])
    assert len(plans) <= 2 + 3 * 3  # of the model, and of what follows each count: for none, one and more


def test_what_follows_a_count_reads_parts_of_the_inputs_without_copies(open_session: Open) -> None:
    text = """g (float[n,8] x) => (float[k,6] y, float[k] z) {
        cut = Constant <value_ints: ints = [2, 6]> () a, s = Split <axis: int = 1> (x, cut) t = Transpose (s) i = NonZero (a)
        zero = Constant <value_ints: ints = [0]> () one = Constant <value_ints: ints = [1]> ()
        all = Constant <value_ints: ints = [-1]> () r = Slice (i, zero, one) q = Reshape (r, all) y = Gather (s, q)
        u = Slice (t, zero, one) v = Reshape (u, all) z = Gather (v, q) }"""
    session, draw = open_session(model(text, opset=18), fallback="error"), np.random.default_rng(4)
    for rows in (50, 7, 300):
        x = np.maximum(draw.standard_normal((rows, 8)), 0).astype(np.float32)
        y, z = session.run(None, {"x": x})
        chosen = x[np.nonzero(x[:, :2])[0], 2:]
        np.testing.assert_array_equal(y, chosen)
        np.testing.assert_array_equal(z, chosen[:, 0])
    assert {p.name for p in session.islands()[0].plan.outputs} == {"i/buffer", "i/count"}
