"""Lowered graphs on a device and in the TOSA reference model, against ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tosa.harness import check, expected, feeds_of, lowered, model
from tests.vgf.harness import Bench, need_vgf

RNG = np.random.default_rng(1)


def w(*shape: int) -> Any:
    return (RNG.standard_normal(shape) * 0.3).astype(np.float32)


GRAPHS: dict[str, Any] = {
    "conv": (
        "g (float[2,3,9,10] x) => (float[2,5,n,m] y) { y = Conv<strides=[2,2],pads=[1,1,1,1]>(x, w, b) }",
        {"w": w(5, 3, 3, 3), "b": w(5)},
    ),
    "conv auto_pad": (
        'g (float[1,3,9,10] x) => (float[1,4,n,m] y) { y = Conv<auto_pad="SAME_LOWER",strides=[2,3]>(x, w) }',
        {"w": w(4, 3, 4, 2)},
    ),
    "conv dilated": (
        "g (float[1,3,12,12] x) => (float[1,4,n,m] y) { y = Conv<dilations=[2,3],pads=[2,0,1,3]>(x, w) }",
        {"w": w(4, 3, 3, 3)},
    ),
    "depthwise": (
        "g (float[1,4,8,8] x) => (float[1,8,8,8] y) { y = Conv<group=4,pads=[1,1,1,1]>(x, w, b) }",
        {"w": w(8, 1, 3, 3), "b": w(8)},
    ),
    "grouped": (
        "g (float[1,6,8,8] x) => (float[1,4,6,6] y) { y = Conv<group=2>(x, w, b) }",
        {"w": w(4, 3, 3, 3), "b": w(4)},
    ),
    "conv1d": (
        "g (float[2,3,17] x) => (float[2,4,n] y) { y = Conv<strides=[2],pads=[2,1]>(x, w) }",
        {"w": w(4, 3, 5)},
    ),
    "conv3d": (
        "g (float[1,2,5,6,7] x) => (float[1,3,n,m,k] y) { y = Conv<pads=[1,1,1,1,1,1]>(x, w) }",
        {"w": w(3, 2, 3, 3, 3)},
    ),
    "transposed": (
        """g (float[1,3,4,5] x) => (float[1,2,n,m] y) {
          y = ConvTranspose<strides=[2,2],pads=[1,1,0,1],output_padding=[1,0]>(x, w, b) }""",
        {"w": w(3, 2, 3, 3), "b": w(2)},
    ),
    "pools": (
        """g (float[1,3,9,9] x) => (float[1,3,5,5] y, float[1,3,5,5] z) {
          y = MaxPool<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1]>(x)
          z = AveragePool<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1],count_include_pad=1>(x) }""",
        {},
    ),
    "gemm": (
        "g (float[4,6] x) => (float[4,5] y) { y = Gemm<transB=1,alpha=0.5,beta=2.0>(x, w, b) }",
        {"w": w(5, 6), "b": w(5)},
    ),
    "matmul": ("g (float[2,1,4,6] x, float[3,6,5] k) => (float[2,3,4,5] y) { y = MatMul(x, k) }", {}),
    "norms": (
        "g (float[2,4,6] x) => (float[2,4,6] y) { a = LayerNormalization(x, s, b) y = Softmax(a) }",
        {"s": w(6), "b": w(6)},
    ),
    "batch norm": (
        "g (float[2,4,3,3] x) => (float[2,4,3,3] y) { y = BatchNormalization(x, s, b, m, v) }",
        {"s": w(4), "b": w(4), "m": w(4), "v": abs(w(4)) + 0.5},
    ),
    "slices": (
        """g (float[4,9,10] x) => (float[4,n,m] y) {
          s = Constant<value=int64[2]{1,-1}>() e = Constant<value=int64[2]{9,-12}>()
          a = Constant<value=int64[2]{1,2}>() t = Constant<value=int64[2]{3,-2}>() y = Slice(x, s, e, a, t) }""",
        {},
    ),
    "depth to space": (
        'g (float[1,8,2,3] x) => (float[1,2,4,6] y) { y = DepthToSpace<blocksize=2,mode="CRD">(x) }',
        {},
    ),
    "activations": (
        """g (float[3,7] x) => (float[3,7] y) {
          a = Gelu(x) b = HardSwish(a) c = Elu(b) d = LeakyRelu(c) y = Mish(d) }""",
        {},
    ),
    "broadcasts": (
        """g (float[3,1,5] x, float[4,1] k, bool[5] c) => (float[3,4,5] y) {
          a = Mul(x, k) b = Sub(k, x) y = Where(c, a, b) }""",
        {},
    ),
    "gather": (
        """g (float[3,4,5] x) => (float[3,2,2,5] y) {
          i = Constant<value=int64[2,2]{0,-1,2,1}>() y = Gather<axis=1>(x, i) }""",
        {},
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_equals_onnxruntime_and_the_reference_model(bench: Bench, name: str) -> None:
    text, weights = GRAPHS[name]
    check(bench, model(text, **weights), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["conv", "depthwise", "gemm", "norms", "activations"])
def test_float16(bench: Bench, name: str) -> None:
    text, weights = GRAPHS[name]
    if name == "norms":
        text = "g (float[2,4,6] x) => (float[2,4,6] y) { y = Softmax(x) }"
        weights = {}
    half = model(text.replace("float[", "float16["), **{n: a.astype(np.float16) for n, a in weights.items()})
    full = model(text, **weights)
    feeds = {n: a.astype(np.float16) for n, a in feeds_of(full).items()}
    got = bench.tosa(lowered(half), feeds)
    want = expected(full, {n: a.astype(np.float32) for n, a in feeds.items()})
    for a, b in zip(got, want, strict=True):
        assert a.dtype == np.float16
        np.testing.assert_allclose(a.astype(np.float32), b, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["conv", "gemm", "activations", "moved"])
def test_bfloat16_is_computed_in_float32(bench: Bench, name: str) -> None:
    """Each result within two roundings of the float32 model's, on the same inputs."""
    import ml_dtypes

    text, weights = GRAPHS.get(name, ("g (float[3,4] x) => (float[4,3] y) { y = Transpose(x) }", {}))
    short = {n: a.astype(ml_dtypes.bfloat16) for n, a in weights.items()}
    full = model(text, **{n: a.astype(np.float32) for n, a in short.items()})
    feeds = {n: a.astype(ml_dtypes.bfloat16) for n, a in feeds_of(full).items()}
    graph = lowered(model(text.replace("float[", "bfloat16["), **short))
    got = bench.tosa(graph, feeds)
    want = expected(full, {n: a.astype(np.float32) for n, a in feeds.items()})
    for a, b in zip(got, want, strict=True):
        assert a.dtype == ml_dtypes.bfloat16
        tolerance = 0.0 if name == "moved" else 2**-6
        np.testing.assert_allclose(a.astype(np.float32), b, rtol=tolerance, atol=tolerance)


def test_casts_to_and_from_bfloat16(bench: Bench) -> None:
    import ml_dtypes

    text = "g (float[40] x) => (bfloat16[40] y, float[40] z) { y = Cast<to=16>(x) z = Cast<to=1>(y) }"
    x = RNG.standard_normal(40).astype(np.float32)
    short, long = bench.tosa(lowered(model(text)), {"x": x})
    np.testing.assert_array_equal(short, x.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(long, x.astype(ml_dtypes.bfloat16).astype(np.float32))


QDQ = """g (float[1,3,8,8] x) => (float[1,6,4,4] y) {
  q = QuantizeLinear(x, sx, zx) x1 = DequantizeLinear(q, sx, zx)
  w1 = DequantizeLinear<axis=0>(wq, sw, zw)
  c = Conv<pads=[1,1,1,1]>(x1, w1, b) r = Relu(c)
  q2 = QuantizeLinear(r, sc, zc) x2 = DequantizeLinear(q2, sc, zc)
  p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(x2)
  q3 = QuantizeLinear(p, sc, zc) x3 = DequantizeLinear(q3, sc, zc)
  s = Add(x3, x3) q4 = QuantizeLinear(s, sy, zy) y = DequantizeLinear(q4, sy, zy) }"""


def qdq() -> Any:
    rng = np.random.default_rng(5)
    return model(
        QDQ,
        sx=np.float32(0.02), zx=np.int8(-5), sc=np.float32(0.03), zc=np.int8(-128), sy=np.float32(0.06), zy=np.int8(-128),
        wq=rng.integers(-127, 128, (6, 3, 3, 3), dtype=np.int8), sw=rng.uniform(0.001, 0.004, 6).astype(np.float32),
        zw=np.zeros(6, np.int8), b=rng.standard_normal(6).astype(np.float32),
    )  # fmt: skip


def test_a_quantized_region_is_integer_throughout(bench: Bench) -> None:
    proto = qdq()
    graph = lowered(proto)
    assert "conv2d" in graph.operations and list(graph.operations).count("rescale") >= 4
    convolutions = [line for line in graph.mlir.splitlines() if "tosa.conv2d" in line]
    assert len(convolutions) == 1 and "xi8>" in convolutions[0] and "xi32>" in convolutions[0]
    feeds = feeds_of(proto)
    (got,) = bench.tosa(graph, feeds)
    (want,) = expected(proto, feeds)
    # half-way cases may round to either side, once at each of the rescales
    assert np.abs(got - want).max() <= 2 * 0.06 + 1e-5
    assert np.mean(np.abs(got - want) > 1e-5) < 0.05


def test_quantized_products(bench: Bench) -> None:
    text = """g (float[4,16] x) => (float[4,8] y) {
      q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z) k = DequantizeLinear(wq, s, z0)
      m = MatMul(a, k) q2 = QuantizeLinear(m, sy, z) y = DequantizeLinear(q2, sy, z) }"""
    proto = model(
        text, s=np.float32(0.02), z=np.int8(3), z0=np.int8(0), sy=np.float32(0.1),
        wq=RNG.integers(-100, 100, (16, 8), dtype=np.int8),
    )  # fmt: skip
    graph = lowered(proto)
    products = [line for line in graph.mlir.splitlines() if "tosa.matmul" in line]
    assert len(products) == 1 and "xi32>" in products[0]
    feeds = feeds_of(proto)
    (got,), (want,) = bench.tosa(graph, feeds), expected(proto, feeds)
    assert np.abs(got - want).max() <= 0.1 + 1e-5
    assert np.mean(np.abs(got - want) > 1e-5) < 0.1


@pytest.fixture(autouse=True)
def _extra() -> None:
    need_vgf()


def test_powers_of_zero(bench: Bench) -> None:
    """C's, annex F: TOSA's POW takes bases above 0 only."""
    exponents = np.array([-3, -2, -1, -0.5, -np.inf, 0, 0.5, 1, 2, 3, np.inf, np.nan], np.float32)
    feeds = {"x": np.repeat(np.array([0.0, -0.0], np.float32), 12), "e": np.tile(exponents, 2)}
    proto = model("g (float[24] x, float[24] e) => (float[24] y) { y = Pow(x, e) }")
    [got] = bench.tosa(lowered(proto), feeds)
    with np.errstate(all="ignore"):
        wanted = np.power(feeds["x"], feeds["e"])
    np.testing.assert_array_equal(got, wanted)
    known = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(wanted)[known])
