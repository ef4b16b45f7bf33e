"""Quantized regions: integers throughout, tables, uint8; against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tosa.harness import check, expected, feeds_of, lowered, model
from tests.vgf.harness import Bench, need_vgf

RNG = np.random.default_rng(6)
SCALES: dict[str, np.generic] = {
    "s": np.float32(0.02), "z": np.int8(3), "sy": np.float32(0.05), "zy": np.int8(-7),
    "u": np.uint8(131), "uy": np.uint8(121),
}  # fmt: skip
HEAD = "q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z)"
TAIL = "p = QuantizeLinear(r, sy, zy) y = DequantizeLinear(p, sy, zy)"


@pytest.fixture(autouse=True)
def _extra() -> None:
    need_vgf()


def close(bench: Bench, proto: Any, steps: float, scale: float = 0.05, most_wrong: float = 0.05) -> tuple[str, ...]:
    """Runs a model: results within ``steps`` of the scale of onnxruntime's (halves may round either way), few of them off."""
    graph = lowered(proto)
    feeds = feeds_of(proto)
    for got, want in zip(bench.tosa(graph, feeds), expected(proto, feeds), strict=True):
        assert got.dtype == want.dtype
        off = np.abs(got.astype(np.float64) - want)
        assert off.max() <= steps * scale + 1e-5
        assert np.mean(off > 1e-5) <= most_wrong
    return graph.operations


@pytest.mark.parametrize(
    "activation",
    [
        "r = Sigmoid(a)",
        "r = Tanh(a)",
        "r = Gelu(a)",
        "g = Sigmoid(a) r = Mul(a, g)",
        "r = HardSwish(a)",
        "g = Elu(a) h = Mul(g, k) r = Sub(h, a)",
        "g = LeakyRelu(a) t = Transpose(g) h = Exp(t) r = Transpose(h)",
        "g = Clip(a, , k) r = Pow(g, e)",
    ],
)
def test_functions_of_integers_are_tables(bench: Bench, activation: str) -> None:
    weights = {"k": np.float32(1.5), "e": np.float32(3.0)}
    used = {n: w for n, w in weights.items() if f" {n})" in activation}
    proto = model(f"g (float[4,40] x) => (float[4,40] y) {{ {HEAD} {activation} {TAIL} }}", **SCALES, **used)
    operations = close(bench, proto, 1, most_wrong=0.03)
    assert "table" in operations and not {"sigmoid", "tanh", "erf", "exp", "pow"} & set(operations)


def test_a_function_of_two_tensors_is_no_table(bench: Bench) -> None:
    text = f"g (float[4,40] x) => (float[4,40] y) {{ {HEAD} t = Tanh(a) f = Add(t, w) r = Identity(f) {TAIL} }}"
    proto = model(text, **SCALES, w=RNG.standard_normal((4, 40)).astype(np.float32))
    assert "table" not in close(bench, proto, 1)


def test_a_transposition_of_a_square_is_no_table(bench: Bench) -> None:
    proto = model(f"g (float[6,6] x) => (float[6,6] y) {{ {HEAD} t = Tanh(a) r = Transpose(t) {TAIL} }}", **SCALES)
    assert "table" in close(bench, proto, 1)


BODIES = {
    "mean": ("[2,3,6,6]", "r = GlobalAveragePool(a)", {"reduce_sum", "rescale"}),
    "maximum": ("[2,3,6,6]", "r = GlobalMaxPool(a)", {"reduce_max", "rescale"}),
    "average pool": ("[2,3,6,6]", "r = AveragePool<kernel_shape=[2,2],strides=[2,2]>(a)", {"avg_pool2d", "rescale"}),
    "average with pads": (
        "[1,3,6,6]",
        "r = AveragePool<kernel_shape=[3,3],pads=[1,1,1,1],count_include_pad=1>(a)",
        {"avg_pool2d", "pad"},
    ),
    "product": (
        "[4,9]",
        "b = Neg(a) q2 = QuantizeLinear(b, s, z) c = DequantizeLinear(q2, s, z) r = Mul(a, c)",
        {"mul"},
    ),
    "difference": (
        "[4,9]",
        "b = Neg(a) q2 = QuantizeLinear(b, s, z) c = DequantizeLinear(q2, s, z) r = Sub(a, c)",
        {"sub"},
    ),
    "moved": (
        "[4,8]",
        "t = Reshape(a, shape) b, c = Split<axis=1,num_outputs=2>(t) r = Concat<axis=0>(c, b)",
        {"concat", "rescale"},
    ),
    "resized": ("[1,2,4,4]", "r = Resize(a, , , sizes)", {"resize", "rescale"}),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_stay_integers(bench: Bench, name: str) -> None:
    shape, body, wanted = BODIES[name]
    weights = {"shape": np.array([2, 4, 4]), "sizes": np.array([1, 2, 8, 8])}
    used = {n: w for n, w in weights.items() if f" {n})" in body}
    proto = model(f"g (float{shape} x) => (float[n] y) {{ {HEAD} {body} {TAIL} }}", **SCALES, **used)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    # AVG_POOL2D rounds to the scale of its input, the rescale after it to that of its output
    operations = close(bench, proto, 1, most_wrong=0.3 if "avg_pool2d" in wanted else 0.1)
    assert wanted <= set(operations)
    assert operations.count("cast") <= 3  # where x is quantized, and where y is dequantized


def test_uint8_is_held_as_int8(bench: Bench) -> None:
    text = """g (float[1,3,8,8] x) => (uint8[1,4,4,4] p, float[1,4,4,4] y) {
      q = QuantizeLinear(x, s, u) a = DequantizeLinear(q, s, u)
      k = DequantizeLinear<axis=0>(w, sw, zw) c = Conv<pads=[1,1,1,1]>(a, k)
      r = MaxPool<kernel_shape=[2,2],strides=[2,2]>(c)
      p = QuantizeLinear(r, sy, uy) y = DequantizeLinear(p, sy, uy) }"""
    proto = model(
        text, s=SCALES["s"], u=SCALES["u"], sy=SCALES["sy"], uy=SCALES["uy"],
        w=RNG.integers(0, 256, (4, 3, 3, 3), dtype=np.uint8),
        sw=RNG.uniform(0.001, 0.004, 4).astype(np.float32), zw=np.full(4, 128, np.uint8),
    )  # fmt: skip
    graph = lowered(proto)
    assert next(line for line in graph.mlir.splitlines() if "tosa.conv2d" in line).count("xi8>") >= 2
    feeds = feeds_of(proto)
    (codes, floats), (want_codes, want) = bench.tosa(graph, feeds), expected(proto, feeds)
    assert codes.dtype == np.uint8 and np.abs(codes.astype(int) - want_codes).max() <= 1
    assert np.abs(floats - want).max() <= 0.05 + 1e-5


def test_uint8_from_outside(bench: Bench) -> None:
    text = "g (uint8[3,40] x) => (float[3,40] y, uint8[3,40] z) { y = DequantizeLinear(x, s, u) z = Identity(x) }"
    check(bench, model(text, s=SCALES["s"], u=SCALES["u"]), rtol=1e-6)


def test_zero_points_of_channels(bench: Bench) -> None:
    """Weights are moved to one zero point where they fit; else they are floats."""
    text = f"""g (float[1,3,6,6] x) => (float[1,4,4,4] y) {{ {HEAD}
      k = DequantizeLinear<axis=0>(w, sw, zw) r = Conv(a, k) {TAIL} }}"""
    scales = RNG.uniform(0.001, 0.004, 4).astype(np.float32)
    zeros = np.array([1, -2, 0, 5], np.int8)
    for reach, integers in ((100, True), (127, False)):
        w = RNG.integers(-reach, reach + 1, (4, 3, 3, 3), dtype=np.int8)
        w[3, 0, 0, 0] = -reach
        proto = model(text, **SCALES, w=w, sw=scales, zw=zeros)
        graph = lowered(proto)
        convolution = next(line for line in graph.mlir.splitlines() if "tosa.conv2d" in line)
        assert ("xi8>" in convolution) is integers
        close(bench, proto, 1, most_wrong=0.1)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_qlinear_operators(bench: Bench, dtype: Any) -> None:
    info = np.iinfo(dtype)

    def codes(*shape: int) -> Any:
        return RNG.integers(info.min, info.max + 1, shape, dtype=dtype)

    name = np.dtype(dtype).name
    zeros = {"z": dtype(3 if dtype is np.int8 else 131), "zw": dtype(0 if dtype is np.int8 else 128)}
    scales = {"s": np.float32(0.02), "sw": np.float32(0.01), "sy": np.float32(0.3)}
    text = f"""g ({name}[1,3,6,6] x) => ({name}[1,4,4,4] y) {{ y = QLinearConv(x, s, z, w, sw, zw, sy, z, b) }}"""
    bias = RNG.integers(-900, 900, 4, dtype=np.int32)
    proto = model(text, w=codes(4, 3, 3, 3), b=bias, **zeros, **scales)
    assert "conv2d" in close(bench, proto, 1, 1.0, 0.1)
    text = (
        f"g ({name}[2,3,16] x, {name}[16,5] k) => ({name}[2,3,5] y) {{ y = QLinearMatMul(x, s, z, k, sw, zw, sy, z) }}"
    )
    assert "matmul" in close(bench, model(text, **zeros, **scales), 1, 1.0, 0.1)


def test_int16(bench: Bench) -> None:
    text = "g (float[40] x) => (int16[40] q, float[40] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
    check(bench, model(text, s=np.float32(0.0001), z=np.int16(0)), rtol=1e-6)
