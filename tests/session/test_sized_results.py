"""Results of plans with sizes, against a session for each signature alone, and ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.devices import as_a_gpu
from tests.session.models import model, reference
from vkep import InferenceSession
from vkep.kernels.launch import is_cpu

Open = Callable[..., InferenceSession]
FLOAT = np.float32

#: text of a graph, opset, and the shapes of its inputs for several sizes: with 0, which gets a plan of its own, and 1
CASES: dict[str, tuple[str, int, list[dict[str, tuple[int, ...]]]]] = {
    "convolutions of any height and width": (
        """g (float[n,3,h,w] x, float[8,3,3,3] k, float[4,8,1,1] l) => (float[n,4,1,1] y) {
            a = Conv <pads: ints = [1,1,1,1], strides: ints = [2,2]> (x, k)
            b = Relu(a)
            c = MaxPool <kernel_shape: ints = [3,3], ceil_mode: int = 1, strides: ints = [2,2]> (b)
            d = Conv (c, l)
            y = GlobalAveragePool(d)
        }""",
        18,
        [
            {"x": (n, 3, h, w), "k": (8, 3, 3, 3), "l": (4, 8, 1, 1)}
            for n, h, w in ((2, 16, 16), (3, 19, 24), (2, 33, 17), (1, 19, 24), (5, 40, 11))
        ],
    ),
    "pieces of an axis": (
        """g (float[n,m] x, float[k,m] z) => (float[a,m] y, float[p,q] s, float[m] t) {
            c = Concat <axis: int = 0> (x, z)
            e = Softmax <axis: int = 0> (c)
            one = Constant <value_ints: ints = [1]> ()
            end = Constant <value_ints: ints = [9223372036854775807]> ()
            zero = Constant <value_ints: ints = [0]> ()
            y = Slice(e, one, end, zero)
            pads = Constant <value_ints: ints = [1,0,0,2]> ()
            s = Pad(x, pads)
            t = ReduceSum <keepdims: int = 0> (c, zero)
        }""",
        18,
        [
            {"x": (n, m), "z": (k, m)}
            for n, k, m in ((3, 4, 8), (4, 4, 12), (9, 2, 12), (3, 2, 64), (1, 7, 16), (17, 12, 4))
        ],
    ),
    "shapes that are computed": (
        """g (float[n,m] x) => (float[p,q] y, float[m,n] u, int64[r] i) {
            s = Shape(x)
            zero = Constant <value_int: int = 0> ()
            one = Constant <value_int: int = 1> ()
            n = Gather(s, zero)
            m = Gather(s, one)
            i = Range(zero, n, one)
            f = ConstantOfShape(s)
            two = Constant <value_floats: floats = [2.0]> ()
            g = Add(f, two)
            h = Mul(g, x)
            ones = Constant <value_ints: ints = [-1]> ()
            axis = Constant <value_ints: ints = [0]> ()
            mm = Unsqueeze(m, axis)
            w = Concat <axis: int = 0> (ones, mm)
            v = Concat <axis: int = 0> (h, h)
            y = Reshape(v, w)
            u = Transpose(x)
        }""",
        18,
        [{"x": dims} for dims in ((3, 4), (5, 6), (4, 9), (40, 2), (1, 6), (0, 6), (7, 33))],
    ),
    "products and norms of any length": (
        """g (float[b,l,16] x, float[16,24] w, float[24] g, float[24] h) => (float[b,l,24] y, float[b,l,l] s) {
            p = MatMul(x, w)
            y = LayerNormalization(p, g, h)
            t = Transpose <perm: ints = [0,2,1]> (y)
            a = MatMul(y, t)
            s = Softmax(a)
        }""",
        18,
        [
            {"x": (b, n, 16), "w": (16, 24), "g": (24,), "h": (24,)}
            for b, n in ((2, 8), (3, 9), (1, 17), (4, 33), (2, 1), (5, 64))
        ],
    ),
    "grids of any size": (
        """g (float[n,c,h,w] x, float[n,2,3] theta) => (float[n,h,w,2] y, float[n,h,w,2] z) {
            s = Shape(x)
            y = AffineGrid(theta, s)
            z = AffineGrid <align_corners: int = 1> (theta, s)
        }""",
        20,
        [{"x": (n, 3, h, w), "theta": (n, 2, 3)} for n, h, w in ((2, 9, 7), (3, 16, 33), (2, 5, 40), (4, 3, 2))],
    ),
    "images resized by any factor": (
        """g (float[n,2,h,w] x) => (float[n,2,p,q] a, float[n,2,r,s] b, float[n,2,t,u] c, float[n,2,v,z] d) {
            none = Constant <value_floats: floats = []> ()
            twice = Constant <value_floats: floats = [1.0, 1.0, 2.0, 3.0]> ()
            more = Constant <value_floats: floats = [1.0, 1.0, 1.5, 0.5]> ()
            a = Resize <mode: string = "nearest"> (x, none, twice)
            b = Resize <mode: string = "linear", coordinate_transformation_mode: string = "asymmetric"> (x, none, more)
            c = Resize <mode: string = "cubic", antialias: int = 1> (x, none, more)
            sizes = Shape(x)
            factors = Constant <value_ints: ints = [1, 1, 2, 4]> ()
            larger = Mul(sizes, factors)
            d = Resize <mode: string = "linear", coordinate_transformation_mode: string = "pytorch_half_pixel">
                (x, none, none, larger)
        }""",
        19,
        [{"x": (1, 2, h, w)} for h, w in ((8, 6), (12, 10), (7, 9), (20, 4), (2, 31), (1, 6))],
    ),
    "images resized symmetrically": (  # half_pixel where the scaled length has no fraction
        """g (float[n,2,h,w] x) => (float[n,2,p,q] a, float[n,2,r,s] b) {
            none = Constant <value_floats: floats = []> ()
            factors = Constant <value_floats: floats = [1.0, 1.0, 0.5, 3.0]> ()
            a = Resize <mode: string = "linear", coordinate_transformation_mode: string = "half_pixel_symmetric">
                (x, none, factors)
            b = Resize <mode: string = "nearest", coordinate_transformation_mode: string = "half_pixel_symmetric">
                (x, none, factors)
        }""",
        19,
        [{"x": (1, 2, h, w)} for h, w in ((8, 6), (12, 10), (20, 4), (6, 31), (3, 8))],
    ),
    "images that shrink to one pixel": (  # whose place is another for pytorch_half_pixel
        """g (float[n,2,h,w] x) => (float[n,2,p,q] a) {
            none = Constant <value_floats: floats = []> ()
            halves = Constant <value_floats: floats = [1.0, 1.0, 0.5, 0.5]> ()
            a = Resize <mode: string = "linear", coordinate_transformation_mode: string = "pytorch_half_pixel">
                (x, none, halves)
        }""",
        19,
        [{"x": (1, 2, h, w)} for h, w in ((8, 6), (10, 12), (9, 7), (2, 12), (2, 2))],
    ),
    "recurrences of any length": (
        """g (float[l,n,4] x, float[1,9,4] w, float[1,9,3] r) => (float[l,1,n,3] y, float[1,n,3] z) {
            y, z = GRU <hidden_size: int = 3> (x, w, r)
        }""",
        18,
        [{"x": (n, b, 4), "w": (1, 9, 4), "r": (1, 9, 3)} for n, b in ((5, 2), (6, 3), (9, 3), (1, 3), (12, 2))],
    ),
    "a product with a constant that is repeated as often as a size says": (  # as an inverse STFT does
        """g (float[1,2,n] x, float[1,1,8] w) => (float[1,1,m] y, float[4,n] z, float[4,1] u) {
            shape = Shape(x)
            one = Constant <value_ints: ints = [1]> ()
            last = Constant <value_int: int = 2> ()
            n = Gather(shape, last)
            axis = Constant <value_ints: ints = [0]> ()
            length = Unsqueeze(n, axis)
            all = Concat <axis: int = 0> (one, one, length)
            ones = ConstantOfShape <value: tensor = float[1] {1.0}> (all)
            y = ConvTranspose <strides: ints = [4]> (ones, w)
            few = Constant <value_ints: ints = [4, 1]> ()
            start = Constant <value_ints: ints = [0]> ()
            end = Constant <value_ints: ints = [4]> ()
            two = Constant <value_ints: ints = [2]> ()
            part = Slice(w, start, end, two)
            u = Reshape(part, few)
            flat = Concat <axis: int = 0> (one, length)
            row = Reshape(ones, flat)
            z = MatMul(u, row)
        }""",
        18,
        [{"x": (1, 2, n), "w": (1, 1, 8)} for n in (5, 9, 16, 33, 12)],
    ),
    "repeats as torch writes them": (
        """g (float[n,3] x, float[1,2,4] f) => (float[n,2,4] y) {
            shape = Shape(x)
            first = Constant <value_ints: ints = [0]> ()
            n = Gather(shape, first)
            one = Constant <value_ints: ints = [1]> ()
            both = Concat <axis: int = 0> (one, n)
            depth = Constant <value_int: int = 3> ()
            counts = OneHot(first, depth, both)
            flat = Constant <value_ints: ints = [-1]> ()
            repeats = Reshape(counts, flat)
            y = Tile(f, repeats)
        }""",
        18,
        [{"x": (n, 3), "f": (1, 2, 4)} for n in (2, 3, 5, 4, 7)],
    ),
    "masks of as many heads as the sizes say": (  # in the third, for a general plan, of one head, in memory of more
        """g (float[2,4,4,8] q, float[2,4,k,8] v, float[c,a,k] m) => (float[2,4,4,8] y) {
            shape = Constant <value_ints: ints = [-1, 4, 0]> ()
            heads = Reshape(m, shape)
            zero = Constant <value_ints: ints = [0]> ()
            end = Constant <value_ints: ints = [-4]> ()
            some = Slice(heads, zero, end, zero)
            y = Attention(q, v, v, some)
        }""",
        23,
        [
            {"q": (2, 4, 4, 8), "v": (2, 4, k, 8), "m": (c, a, k)}
            for c, a, k in ((4, 8, 9), (8, 4, 8), (4, 5, 10), (5, 4, 11), (10, 2, 7), (16, 2, 6))
        ],
    ),
}


def feeds(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {name: random.normal(0, 0.5, shape).astype(FLOAT) for name, shape in shapes.items()}


@pytest.mark.parametrize("case", CASES)
def test_sizes_that_were_never_seen_give_the_same_results(open_session: Open, case: str) -> None:
    text, opset, signatures = CASES[case]
    proto = model(text, opset=opset)
    session = open_session(proto.SerializeToString())
    for k, shapes in enumerate(signatures):
        given = feeds(shapes, k)
        results = session.run(None, given)
        alone = open_session(proto.SerializeToString()).run(None, given)
        for got, same, expected in zip(results, alone, reference(proto, given), strict=True):
            assert got.shape == same.shape == expected.shape and got.dtype == expected.dtype
            np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)
            np.testing.assert_allclose(got, same, rtol=1e-4, atol=1e-5)
    plans = session._parts.graph._plans
    few = 3 if is_cpu(session.context.capabilities) else len(signatures) - 1
    assert plans is not None and 1 <= plans.count <= few


@pytest.mark.parametrize("case", ["products and norms of any length", "shapes that are computed", "pieces of an axis"])
def test_sizes_of_1_are_served_by_a_plan_of_other_sizes(open_session: Open, case: str) -> None:
    text, opset, _ = CASES[case]
    proto, ones = model(text, opset=opset), _ONES[case]
    session = open_session(proto.SerializeToString())
    for k, shapes in enumerate(ones[:3]):  # the third does not meet the conditions of the second: its plan is general
        session.run(None, feeds(shapes, k))
    before = session._parts.graph.plan_count
    for k, shapes in enumerate(ones[3:]):
        given = feeds(shapes, k)
        results = session.run(None, given)
        alone = open_session(proto.SerializeToString()).run(None, given)
        for got, same, expected in zip(results, alone, reference(proto, given), strict=True):
            assert got.shape == same.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)
            np.testing.assert_allclose(got, same, rtol=1e-4, atol=1e-5)
    # a GPU has other kernels for products of few rows: one plan more for each kind
    more = 0 if is_cpu(session.context.capabilities) else len(ones) - 4
    assert session._parts.graph.plan_count <= before + more


_ONES: dict[str, list[dict[str, tuple[int, ...]]]] = {
    "products and norms of any length": [
        {"x": (b, n, 16), "w": (16, 24), "g": (24,), "h": (24,)}
        for b, n in ((3, 8), (4, 4), (5, 3), (1, 3), (4, 1), (1, 1))
    ],
    "shapes that are computed": [{"x": dims} for dims in ((3, 4), (2, 8), (5, 3), (1, 6), (6, 1), (1, 1))],
    "pieces of an axis": [
        {"x": (n, m), "z": (k, m)}
        for n, k, m in ((3, 4, 8), (4, 3, 4), (5, 2, 3), (1, 3, 6), (5, 1, 6), (4, 5, 1), (1, 1, 1))
    ],
}


@pytest.mark.parametrize("heads", [2, pytest.param(8, marks=pytest.mark.wide)])
def test_more_queries_than_a_plan_of_few_was_made_for(open_session: Open, heads: int) -> None:
    """A GPU's workgroup computes some rows, whose number is the plan's: more rows are more workgroups."""
    q, k = f"float[1,{heads},n,8]", "float[1,2,9,8]"
    proto = model(f"g ({q} q, {k} k, {k} v) => ({q} y) {{ y = Attention(q, k, v) }}", opset=23)
    with as_a_gpu():
        session = open_session(proto.SerializeToString())
        for queries in (4, 2, 3, 1, 5, 33, 64):
            given = feeds({"q": (1, heads, queries, 8), "k": (1, 2, 9, 8), "v": (1, 2, 9, 8)}, queries)
            np.testing.assert_allclose(session.run(None, given)[0], reference(proto, given)[0], rtol=1e-4, atol=1e-5)
        assert session._parts.graph.plan_count < 4
