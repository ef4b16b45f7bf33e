"""Operators one by one, against onnxruntime and the TOSA reference model: what each reaches in TOSA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tosa.harness import check, model
from tests.vgf.harness import Bench, need_vgf

RNG = np.random.default_rng(5)
I64 = np.int64

#: name: (model, weights, the TOSA operations that it must reach)
EXACT: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "argmax": ("g (float[3,4,5] x) => (int64[3,1,5] y) { y = ArgMax<axis=1>(x) }", {}, {"argmax"}),
    "argmax of rank 1": ("g (float[7] x) => (int64[1] y) { y = ArgMax(x) }", {}, {"argmax"}),
    "argmax last": (
        "g (int8[3,9] x) => (int64[3] y) { y = ArgMax<axis=1,keepdims=0,select_last_index=1>(x) }",
        {},
        {"argmax", "reverse"},
    ),
    "argmin": ("g (float[2,6,3] x) => (int64[2,6] y) { y = ArgMin<axis=-1,keepdims=0>(x) }", {}, {"argmax", "negate"}),
    "argmin int8": ("g (int8[6,40] x) => (int64[6,1] y) { y = ArgMin<axis=1>(x) }", {}, {"argmax", "bitwise_not"}),
    "argmax uint8": ("g (uint8[6,9] x) => (int64[1,9] y) { y = ArgMax(x) }", {}, {"argmax", "bitwise_xor"}),
    "index arithmetic": (
        """g (float[3,4,5] x) => (int64[5,3] y, int32[3,5] z, float[3,5] f) {
          a = ArgMax<axis=1,keepdims=0>(x) y = Transpose(a) z = Cast<to=6>(a) f = Cast<to=1>(a) }""",
        {},
        {"argmax", "cast"},
    ),
    "gather what was found": (
        "g (float[3,4] x, float[4,6] t) => (float[3,6] y) { i = ArgMax<axis=1,keepdims=0>(x) y = Gather(t, i) }",
        {},
        {"argmax", "gather"},
    ),
    "shift left": (
        'g (uint32[9] x, uint32[9] n) => (uint32[9] y) { y = BitShift<direction="LEFT">(x, n) }',
        {},
        {"logical_left_shift"},
    ),
    "shift right": (
        'g (uint8[9] x) => (uint8[9] y) { y = BitShift<direction="RIGHT">(x, n) }',
        {"n": np.array([3], np.uint8)},
        {"logical_right_shift"},
    ),
    "integer division": (
        "g (int32[40] x) => (int32[40] y) { y = Div(x, k) }",
        {"k": np.array([-3], np.int32)},
        {"intdiv"},
    ),
    "remainder": (
        "g (int32[40] x) => (int32[40] y, int32[40] z) { y = Mod(x, k) z = Mod<fmod=1>(x, k) }",
        {"k": np.array([-4], np.int32)},
        {"intdiv"},
    ),
    "bits": (
        """g (int32[9] x, int32[9] y) => (int32[9] a, int32[9] o, int32[9] e, int32[9] n) {
          a = BitwiseAnd(x, y) o = BitwiseOr(x, y) e = BitwiseXor(x, y) n = BitwiseNot(x) }""",
        {},
        {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"},
    ),
    "bits of uint8": ("g (uint8[9] x, uint8[9] y) => (uint8[9] a) { a = BitwiseAnd(x, y) }", {}, {"bitwise_and"}),
    "logic": (
        """g (bool[9] x, bool[9] y) => (bool[9] a, bool[9] o, bool[9] e, bool[9] n) {
          a = And(x, y) o = Or(x, y) e = Xor(x, y) n = Not(x) }""",
        {},
        {"logical_and", "logical_or", "logical_xor", "logical_not"},
    ),
    "comparisons": (
        """g (int32[9] x, int32[9] y, bool[9] p, bool[9] q) => (bool[9] a, bool[9] b, bool[9] c, bool[9] d) {
          a = Equal(x, y) b = Greater(x, y) c = LessOrEqual(x, y) d = Equal(p, q) }""",
        {},
        {"equal", "greater", "greater_equal"},
    ),
    "any and all": (
        """g (bool[3,8] x) => (bool[3,1] y, bool[3,1] z) {
          a = Constant<value=int64[1]{1}>() y = ReduceMax(x, a) z = ReduceMin(x, a) }""",
        {},
        {"reduce_any", "reduce_all"},
    ),
    "integer sums": (
        "g (int32[3,8] x) => (int32[3,1] y, int8[3,1] z) { y = ReduceSum(x, a) s = Cast<to=3>(x) z = ReduceMax(s, a) }",
        {"a": np.array([1])},
        {"reduce_sum", "reduce_max"},
    ),
    "rounding": (
        "g (float[40] x) => (float[40] y, int32[40] z, int8[40] w, float[40] s) "
        "{ y = Round(x) z = Cast<to=6>(x) w = Cast<to=3>(x) s = Sign(x) }",
        {},
        {"cast", "floor", "ceil"},
    ),
    "unsigned casts": (
        "g (uint8[40] x, float[40] z) => (float[40] y, int32[40] w, uint8[40] v) "
        "{ y = Cast<to=1>(x) w = Cast<to=6>(x) a = Abs(z) v = Cast<to=2>(a) }",
        {},
        {"cast"},
    ),
    "triangles": (
        "g (float[2,4,5] x) => (float[2,4,5] y, float[2,4,5] z) { y = Trilu(x, k) z = Trilu<upper=0>(x) }",
        {"k": np.array(1)},
        {"select"},
    ),
    "scatter rows": (
        "g (float[5,3] x, float[2,3] u) => (float[5,3] y) { y = ScatterND(x, i, u) }",
        {"i": np.array([[4], [1]])},
        {"scatter"},
    ),
    "scatter elements": (
        "g (float[3,5] x, float[2,5] u) => (float[3,5] y) { y = ScatterElements(x, i, u) }",
        {"i": np.array([[0, 1, 2, -1, 1], [2, 0, 1, 1, 0]])},
        {"scatter"},
    ),
    "gather elements": (
        "g (float[3,5] x) => (float[2,5] y) { y = GatherElements(x, i) }",
        {"i": np.array([[0, 1, 2, -1, 1], [2, 0, 1, 1, 0]])},
        {"gather"},
    ),
    "gather tuples": (
        "g (float[2,3,4,5] x) => (float[2,2,5] y) { y = GatherND<batch_dims=1>(x, i) }",
        {"i": np.array([[[0, 1], [2, -1]], [[1, 0], [0, 3]]])},
        {"gather"},
    ),
    "reversed": (
        "g (float[4,3] x) => (float[4,3] y) { y = ReverseSequence(x, l) }",
        {"l": np.array([3, 3, 3])},
        {"reverse"},
    ),
    "split": (
        "g (float[3,8] x, uint8[6] z) => (float[3,4] a, float[3,4] b, uint8[4] c, uint8[2] d) "
        "{ a, b = Split<axis=1,num_outputs=2>(x) c, d = Split<num_outputs=2>(z) }",
        {},
        {"slice"},
    ),
    "nan and infinity": (
        "g (float[8] x) => (bool[8] a, bool[8] b) { z = Sub(x, x) q = Div(x, z) n = Sub(q, q) a = IsNaN(n) b = IsInf(q) }",
        {},
        {"equal", "logical_not"},
    ),
    "max pool of uint8": (
        "g (uint8[1,3,7,7] x) => (uint8[1,3,4,4] y) "
        "{ y = MaxPool<kernel_shape=[3,3],strides=[2,2],ceil_mode=1,pads=[1,1,0,0]>(x) }",
        {},
        {"max_pool2d"},
    ),
    "integer products": (
        "g (uint8[3,8] x, int8[8,5] y) => (int32[3,5] z) { z = MatMulInteger(x, y, a, b) }",
        {"a": np.array(128, np.uint8), "b": np.array(3, np.int8)},
        {"matmul"},
    ),
    "integer convolution": (
        "g (uint8[1,2,6,6] x) => (int32[1,3,6,6] z) { z = ConvInteger<pads=[1,1,1,1]>(x, w, a) }",
        {"a": np.array(120, np.uint8), "w": RNG.integers(0, 255, (3, 2, 3, 3), dtype=np.uint8)},
        {"conv2d"},
    ),
}
for _mode in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
    for _coordinates in ("half_pixel", "asymmetric", "align_corners"):
        EXACT[f"resize nearest {_mode} {_coordinates}"] = (
            f"""g (float[1,3,5,4] x) => (float[1,3,n,m] y, float[1,3,p,q] z) {{
              y = Resize<coordinate_transformation_mode="{_coordinates}",nearest_mode="{_mode}">(x, , , s)
              z = Resize<coordinate_transformation_mode="{_coordinates}",nearest_mode="{_mode}">(x, , , t) }}""",
            {"s": np.array([1, 3, 10, 7]), "t": np.array([1, 3, 3, 4])},
            {"resize"},
        )
for _policy in ("not_larger", "not_smaller"):
    EXACT[f"resize {_policy}"] = (
        f"""g (float[1,3,5,4] x) => (float[1,3,n,m] y) {{
          y = Resize<axes=[2,3],keep_aspect_ratio_policy="{_policy}">(x, , , s) }}""",
        {"s": np.array([10, 7])},
        {"resize"},
    )
CLOSE: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "resize linear": (
        """g (float[1,3,5,4] x) => (float[1,3,10,7] y, float[1,3,10,8] z, float[1,3,9,7] w) {
          y = Resize<mode="linear">(x, , , s) z = Resize<mode="linear",coordinate_transformation_mode="asymmetric">(x, , f)
          w = Resize<mode="linear",coordinate_transformation_mode="align_corners">(x, , , u) }""",
        {"s": np.array([1, 3, 10, 7]), "f": np.array([1, 1, 2, 2], np.float32), "u": np.array([1, 3, 9, 7])},
        {"resize"},
    ),
    "powers": (
        "g (float[20] x, float[20] e) => (float[20] y, float[20] z) { a = Abs(x) y = Pow(a, e) z = Pow(k, e) }",
        {"k": np.array([2.5], np.float32)},
        {"pow"},
    ),
    "powers of negative numbers": (
        "g (float[20] x) => (float[20] y) { y = Pow(x, e) }",
        {"e": np.tile(np.array([0, 4, 5, -3, -2], np.float32), 4)},
        {"pow"},
    ),
    "fourier": ("g (float[3,8,2] x) => (float[3,8,2] y, float[3,8,2] z) { y = DFT(x) z = DFT<inverse=1>(x) }", {}, {"matmul"}),
    "fourier of an axis": (
        "g (float[2,4,3,1] x) => (float[2,4,3,2] y, float[2,5,3,2] z) { y = DFT(x, , a) z = DFT<onesided=1>(x, n, a) }",
        {"a": np.array(1), "n": np.array(8)},
        {"matmul"},
    ),
    "rms norm": ("g (float[2,4,6] x) => (float[2,4,6] y) { y = RMSNormalization(x, s) }",
                 {"s": RNG.standard_normal(6).astype(np.float32)}, {"rsqrt"}),
    "average pools": (
        """g (float[1,3,9,9] x, float[2,3,9] u) => (float[1,3,5,5] y, float[1,3,5,5] z, float[2,3,4] v) {
          y = AveragePool<kernel_shape=[3,3],strides=[2,2],ceil_mode=1,pads=[1,1,0,0]>(x)
          z = AveragePool<kernel_shape=[3,3],strides=[2,2],ceil_mode=1,pads=[1,1,0,0],count_include_pad=1>(x)
          v = AveragePool<kernel_shape=[3],strides=[2]>(u) }""",
        {},
        {"avg_pool2d"},
    ),
    "transposed in groups": (
        "g (float[1,4,4,5] x) => (float[1,6,n,m] y) { y = ConvTranspose<strides=[2,2],group=2>(x, w, b) }",
        {"w": RNG.standard_normal((4, 3, 3, 2)).astype(np.float32), "b": RNG.standard_normal(6).astype(np.float32)},
        {"transpose_conv2d"},
    ),
    "transposed with auto_pad and dilation": (
        """g (float[1,3,4,5] x, float[1,3,6] u) => (float[1,2,n,m] y, float[1,2,k] z) {
          y = ConvTranspose<strides=[2,2],auto_pad="SAME_UPPER",dilations=[2,1]>(x, w)
          z = ConvTranspose<strides=[3],output_shape=[16]>(u, v) }""",
        {"w": RNG.standard_normal((3, 2, 3, 3)).astype(np.float32), "v": RNG.standard_normal((3, 2, 3)).astype(np.float32)},
        {"transpose_conv2d"},
    ),
}  # fmt: skip
OPSETS = {"rms norm": 23}
FEEDS: dict[str, dict[str, Any]] = {
    "shift left": {"x": np.arange(9, dtype=np.uint32) + 2**30, "n": np.arange(9, dtype=np.uint32)},
}


@pytest.fixture(autouse=True)
def _extra() -> None:
    need_vgf()


@pytest.mark.parametrize("name", [*EXACT, *CLOSE])
def test_an_operator(bench: Bench, name: str) -> None:
    text, weights, wanted = EXACT[name] if name in EXACT else CLOSE[name]
    tolerance = 0.0 if name in EXACT else 2e-5
    # the reference model takes no infinities as intermediate results
    proto = model(text, OPSETS.get(name, 21), **weights)
    graph = check(bench, proto, FEEDS.get(name), rtol=tolerance, atol=tolerance)
    assert wanted <= set(graph.operations)


@pytest.mark.parametrize(
    ("operator", "inputs"),
    [
        ("Gather<axis=1>(x, i)", {"i": np.array([[3, -1], [0, 2]])}),
        ("GatherElements<axis=1>(x, i)", {"i": np.array([[3, -1], [0, 2], [1, 1]])}),
        ("GatherND(x, i)", {"i": np.array([[2, 3], [-1, 0]])}),
    ],
)
def test_indices_of_the_run(bench: Bench, operator: str, inputs: dict[str, Any]) -> None:
    shape = ",".join(map(str, inputs["i"].shape))
    proto = model(f"g (float[3,4] x, int64[{shape}] i) => (float[n] y) {{ y = {operator} }}")
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    graph = check(bench, proto, {"x": x, **inputs})
    assert "gather" in graph.operations


def test_a_scatter_at_indices_of_the_run(bench: Bench) -> None:
    proto = model("g (float[5,3] x, int64[2,1] i, float[2,3] u) => (float[5,3] y) { y = ScatterND(x, i, u) }")
    x, u = (RNG.standard_normal(s).astype(np.float32) for s in ((5, 3), (2, 3)))
    check(bench, proto, {"x": x, "i": np.array([[4], [-5]]), "u": u})
