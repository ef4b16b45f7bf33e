"""Small models of what ONNX Runtime's optimizer fuses, folds and moves: parts of detectors, encoders and quantized networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Fusion:
    """A model, as text without its weights, and an operator that ONNX Runtime's optimization makes of it ("": none)."""

    text: str
    weights: dict[str, Any]
    fused: str = ""
    opset: int = 17

    def model(self) -> onnx.ModelProto:
        """The model with its weights."""
        made = parser.parse_model(f'<ir_version: 10, opset_import: ["": {self.opset}]> {self.text}')
        for name, value in self.weights.items():
            tensor = value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(np.asarray(value), name)
            made.graph.initializer.append(tensor)
        return made

    def feeds(self) -> dict[str, Array]:
        """An input of normal floats, of 0 and 1 for other types."""
        rng = np.random.default_rng(1)
        feeds = {}
        for value in self.model().graph.input:
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
            feeds[value.name] = drawn.astype(dtype)
        return feeds


_RNG = np.random.default_rng(0)


def _w(*shape: int, scale: float = 0.3) -> Array:
    return (_RNG.standard_normal(shape) * scale).astype(np.float32)


def _f(value: float) -> Array:
    return np.array(value, np.float32)


def _i(*values: int) -> Array:
    return np.array(values, np.int64)


_CONV = {"w": _w(8, 4, 3, 3), "b": _w(8)}
_GEMM = {"w": _w(8, 16), "b": _w(16)}
_NORM = {"two": _f(2), "eps": _f(1e-5), "gain": _w(8), "bias": _w(8)}
_LAYER_NORM = (
    "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) p = Pow(d, two) v = ReduceMean<axes=[-1]>(p) e = Add(v, eps) q = Sqrt(e) "
    "n = Div(d, q) g = Mul(n, gain) y = Add(g, bias)"
)
_GELU = {"root": _f(2**0.5), "one": _f(1), "half": _f(0.5)}
_CLIP = {"lo": _f(-0.3), "hi": _f(0.6)}
#: a quantized model's parts
_Q = {
    "sx": _f(0.03),
    "zx": np.uint8(128),
    "sy": _f(0.05),
    "zy": np.uint8(120),
    "sw": _f(0.02),
    "zw": np.int8(0),
    "sb": _f(0.0006),
    "zb": np.int32(0),
}
_X_QUANTIZED = "q = QuantizeLinear(x, sx, zx) d = DequantizeLinear(q, sx, zx)"
_Z_QUANTIZED = "r = QuantizeLinear(z, sy, zy) f = DequantizeLinear(r, sy, zy)"
_Y_QUANTIZED = "e = QuantizeLinear(c, sy, zy) y = DequantizeLinear(e, sy, zy)"


def _codes(*shape: int) -> Array:
    return _RNG.integers(-128, 127, shape).astype(np.int8)


def _activations() -> dict[str, Fusion]:
    made = {}
    image, rows = "g (float[2,4,9,9] x) => (float[2,8,9,9] y)", "g (float[5,8] x) => (float[5,16] y)"
    for op, more, by_conv, by_gemm in (
        ("Relu", "", True, True),
        ("LeakyRelu<alpha=0.2>", "", True, True),
        ("Sigmoid", "", True, True),
        ("Tanh", "", True, True),
        ("HardSigmoid<beta=0.4>", "", True, True),
        ("Clip", ", lo, hi", True, False),
        ("Elu", "", False, True),
        ("Selu", "", False, True),
        ("Softplus", "", False, True),
        ("Softsign", "", False, True),
        ("ThresholdedRelu", "", False, True),
    ):
        weights = _CLIP if more else {}
        steps = f"c = Conv<pads=[1,1,1,1]>(x, w, b) y = {op}(c{more})"
        made[f"Conv, {op}"] = Fusion(f"{image} {{ {steps} }}", _CONV | weights, "FusedConv" if by_conv else "")
        steps = f"c = Gemm(x, w, b) y = {op}(c{more})"
        made[f"Gemm, {op}"] = Fusion(f"{rows} {{ {steps} }}", _GEMM | weights, "FusedGemm" if by_gemm else "")
    return made


def _quantized() -> dict[str, Fusion]:
    made = {}
    for op, call, fused in (
        ("Add", "Add(d, f)", "QLinearAdd"),
        ("Mul", "Mul(d, f)", "QLinearMul"),
        ("Sigmoid", "Sigmoid(d)", "QLinearSigmoid"),
        ("LeakyRelu", "LeakyRelu<alpha=0.2>(d)", "QLinearLeakyRelu"),
        ("AveragePool", "AveragePool<kernel_shape=[2,2]>(d)", "QLinearAveragePool"),
        ("GlobalAveragePool", "GlobalAveragePool(d)", "QLinearGlobalAveragePool"),
        ("Concat", "Concat<axis=3>(d, f)", "QLinearConcat"),
        ("Softmax", "Softmax<axis=1>(d)", "QLinearSoftmax"),
        ("MaxPool", "MaxPool<kernel_shape=[2,2]>(d)", ""),
        ("Transpose", "Transpose<perm=[0,2,3,1]>(d)", ""),
    ):
        steps = f"{_X_QUANTIZED} {_Z_QUANTIZED} c = {call} {_Y_QUANTIZED}"
        text = f"g (float[1,4,6,6] x, float[1,4,6,6] z) => (float[i,j,k,l] y) {{ {steps} }}"
        made[f"quantized {op}"] = Fusion(text, _Q, fused, 13)
    product = f"{_X_QUANTIZED} v = DequantizeLinear(w, sw, zw)"
    rows = "g (float[4,8] x) => (float[4,6] y)"
    weights = _Q | {"w": _codes(8, 6)}
    made["quantized MatMul"] = Fusion(
        f"{rows} {{ {product} c = MatMul(d, v) {_Y_QUANTIZED} }}", weights, "QLinearMatMul", 13
    )
    made["MatMul of quantized"] = Fusion(
        f"{rows} {{ {product} y = MatMul(d, v) }}", weights, "MatMulIntegerToFloat", 13
    )
    bias = {"b": _RNG.integers(-900, 900, 6).astype(np.int32), "w": _codes(6, 8)}
    steps = f"{product} u = DequantizeLinear(b, sb, zb) c = Gemm<transB=1>(d, v, u) {_Y_QUANTIZED}"
    made["quantized Gemm"] = Fusion(f"{rows} {{ {steps} }}", _Q | bias, "QGemm", 13)
    steps = "q, s, z = DynamicQuantizeLinear(x) m = MatMulInteger(q, w, z, zw) f = Cast<to=1>(m) k = Mul(s, sw) h = Mul(f, k)"
    made["dynamic MatMul"] = Fusion(
        f"{rows} {{ {steps} y = Add(h, b) }}", weights | {"b": _w(6)}, "DynamicQuantizeMatMul", 13
    )
    return made


FUSIONS: dict[str, Fusion] = {
    **_activations(),
    **_quantized(),
    "Conv, Add, Relu": Fusion(
        "g (float[2,4,9,9] x, float[2,8,9,9] z) => (float[2,8,9,9] y) { "
        "c = Conv<pads=[1,1,1,1]>(x, w, b) s = Add(c, z) y = Relu(s) }",
        _CONV,
    ),
    "Conv, BatchNormalization, Mul, Add": Fusion(
        "g (float[1,4,6,6] x) => (float[1,8,6,6] y) { c = Conv<pads=[1,1,1,1]>(x, w) n = BatchNormalization(c, s, b, m, v) "
        "k = Mul(n, a) t = Add(k, o) y = Relu(t) }",
        _CONV | {"s": _w(8), "m": _w(8), "v": np.abs(_w(8)) + 1, "a": _w(1, 8, 1, 1), "o": _w(1, 8, 1, 1)},
        "FusedConv",
    ),
    "Pad, Conv": Fusion(
        "g (float[1,4,6,6] x) => (float[1,8,6,6] y) { p = Pad(x, pads) y = Conv(p, w, b) }",
        _CONV | {"pads": _i(0, 0, 1, 1, 0, 0, 1, 1)},
    ),
    "a detector's head": Fusion(
        """g (float[1,8,8,8] x) => (float[1,80,4] y) {
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w) r = Relu(a) c = Conv(r, v) t = Transpose<perm=[0,2,3,1]>(c)
        f = Reshape(t, rows) d = Conv<strides=[2,2]>(c, u) s = Transpose<perm=[0,2,3,1]>(d) h = Reshape(s, rows)
        j = Concat<axis=1>(f, h) k = Concat<axis=1>(j, j) q = Concat<axis=1>(k, k) y = Sigmoid(q) }""",
        {"w": _w(8, 8, 3, 3), "v": _w(4, 8, 1, 1), "u": _w(4, 4, 1, 1), "rows": _i(1, -1, 4)},
    ),
    "channels last around Conv and Concat": Fusion(
        """g (float[1,8,8,4] x) => (float[1,8,16,12] y) { t = Transpose<perm=[0,3,1,2]>(x) c = Conv<pads=[1,1,1,1]>(t, w, b)
        r = Relu(c) j = Concat<axis=1>(r, t) k = Concat<axis=3>(j, j) u = Transpose<perm=[0,2,3,1]>(k) y = Sigmoid(u) }""",
        _CONV,
        "FusedConv",
    ),
    "channels last around MaxPool and ReduceMean": Fusion(
        """g (float[1,8,8,4] x) => (float[1,4,4,8] y, float[1,8] z) { t = Transpose<perm=[0,3,1,2]>(x)
        c = Conv<pads=[1,1,1,1]>(t, w, b) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c) u = Transpose<perm=[0,2,3,1]>(p)
        y = Tanh(u) z = ReduceMean<axes=[1,2], keepdims=0>(u) }""",
        _CONV,
    ),
    "Transpose through Softmax, Add, ReduceMax": Fusion(
        """g (float[2,3,4,5] x) => (float[2,5,4,3] y) { t = Transpose<perm=[0,2,3,1]>(x) s = Softmax<axis=-1>(t) a = Add(s, b)
        m = ReduceMax<axes=[2]>(a) d = Sub(a, m) u = Transpose<perm=[0,2,1,3]>(d) y = Relu(u) }""",
        {"b": _w(3)},
    ),
    "slices into space to depth": Fusion(
        """g (float[1,3,8,8] x) => (float[1,8,4,4] y) { a = Slice(x, a0, e, ax, st) b = Slice(x, a1, e, ax, st)
        c = Slice(x, a2, e, ax, st) d = Slice(x, a3, e, ax, st) j = Concat<axis=1>(a, b, c, d) k = Conv<pads=[1,1,1,1]>(j, w)
        s = Sigmoid(k) y = Mul(k, s) }""",
        {"a0": _i(0, 0), "a1": _i(1, 0), "a2": _i(0, 1), "a3": _i(1, 1), "e": _i(8, 8), "ax": _i(2, 3), "st": _i(2, 2)}
        | {"w": _w(8, 12, 3, 3)},
        "QuickGelu",
    ),
    "MatMul, Add": Fusion(
        "g (float[3,5,8] x) => (float[3,5,16] y) { c = MatMul(x, w) y = Add(c, b) }",
        _GEMM,
    ),
    "Transpose, MatMul, Mul": Fusion(
        "g (float[2,3,5,8] q, float[2,3,7,8] k) => (float[2,3,5,7] y) { "
        "t = Transpose<perm=[0,1,3,2]>(k) c = MatMul(q, t) y = Mul(c, s) }",
        {"s": _f(0.125)},
        "FusedMatMul",
    ),
    "both transposed, MatMul": Fusion(
        "g (float[2,3,8,5] q, float[2,3,7,8] k) => (float[2,3,5,7] y) { "
        "u = Transpose<perm=[0,1,3,2]>(q) t = Transpose<perm=[0,1,3,2]>(k) y = MatMul(u, t) }",
        {},
        "FusedMatMul",
    ),
    "batches transposed, MatMul": Fusion(
        "g (float[5,3,8] q, float[7,3,8] k) => (float[3,5,7] y) { "
        "u = Transpose<perm=[1,0,2]>(q) t = Transpose<perm=[1,2,0]>(k) y = MatMul(u, t) }",
        {},
        "FusedMatMul",
    ),
    "Gelu of a product with bias": Fusion(
        "g (float[2,3,8] x) => (float[2,3,16] y) { m = MatMul(x, w) z = Add(m, b) d = Div(z, root) e = Erf(d) f = Add(e, one) "
        "h = Mul(z, f) y = Mul(h, half) }",
        _GEMM | _GELU,
        "Gelu",
    ),
    "QuickGelu": Fusion(
        "g (float[3,8] x) => (float[3,8] y) { a = Mul(x, k) s = Sigmoid(a) y = Mul(x, s) }",
        {"k": _f(1.702)},
        "QuickGelu",
    ),
    "LayerNormalization": Fusion(f"g (float[2,3,8] x) => (float[2,3,8] y) {{ {_LAYER_NORM} }}", _NORM),
    "LayerNormalization of a sum that is an output": Fusion(
        f"g (float[2,3,8] s, float[2,3,8] t) => (float[2,3,8] y, float[2,3,8] x) {{ x = Add(s, t) {_LAYER_NORM} }}",
        _NORM,
    ),
    "SkipLayerNormalization": Fusion(
        f"g (float[2,3,8] s, float[2,3,8] t) => (float[2,3,8] y) {{ x = Add(s, t) {_LAYER_NORM} }}",
        _NORM,
        "SkipLayerNormalization",
    ),
    "SkipLayerNormalization with bias": Fusion(
        "g (float[2,3,8] s, float[2,3,8] t) => (float[2,3,8] y) { "
        f"k = MatMul(s, w) h = Add(k, b) x = Add(h, t) {_LAYER_NORM} }}",
        _NORM | {"w": _w(8, 8), "b": _w(8)},
        "SkipLayerNormalization",
    ),
    "queries, keys and values by Gather": Fusion(
        """g (float[3,2,6,4] x) => (float[2,6,6] y) { a = Gather<axis=0>(x, i0) b = Gather<axis=0>(x, i1)
        c = Gather<axis=0>(x, i2) t = Transpose<perm=[0,2,1]>(b) s = MatMul(a, t) p = Softmax(s) o = MatMul(p, c)
        w = Transpose<perm=[0,2,1]>(o) y = MatMul(o, w) }""",
        {"i0": np.int64(0), "i1": np.int64(1), "i2": np.int64(2)},
        "FusedMatMul",
    ),
    "packed weights": Fusion(
        "g (float[3,64] x) => (float[3,6] y) { d = DequantizeLinear<axis=0, block_size=32>(w, s, z) y = MatMul(x, d) }",
        {
            "w": helper.make_tensor("w", onnx.TensorProto.UINT4, (64, 6), _RNG.integers(0, 16, 64 * 6)),
            "s": _w(2, 6),
            "z": helper.make_tensor("z", onnx.TensorProto.UINT4, (2, 6), _RNG.integers(0, 16, 12)),
        },
        "MatMulNBits",
        21,
    ),
}
