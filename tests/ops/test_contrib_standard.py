"""ONNX Runtime's operators that are nearly those of the standard, and the standard's first ones, against onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from tests.ops.cases import by_onnxruntime, check, graph_of, model_of, on_vulkan
from vkep.errors import InvalidInputError, InvalidModelError

pytestmark = pytest.mark.usefixtures("vulkan")
RNG = np.random.default_rng(11)
MS: dict[str, Any] = {"domain": "com.microsoft", "against": "onnxruntime", "opset": 21}
OLD: dict[str, Any] = {"against": "onnxruntime", "opset": 9}
Array = np.ndarray[Any, Any]


def _normal(*shape: int) -> Array:
    return RNG.normal(0, 1, shape).astype(np.float32)


def _bytes(dtype: Any, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


@pytest.mark.parametrize("k", [None, 0, 2, -1])
@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(k: int | None, upper: int) -> None:
    inputs = {"x": _normal(2, 3, 4), "k": None if k is None else np.array(k, np.int64)}
    check("Trilu", inputs, upper=upper, **MS)


@pytest.mark.parametrize("delta", [None, 2, -3])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_range(delta: int | None, dtype: Any) -> None:
    first, last = (1, 9) if (delta or 1) > 0 else (9, 0)
    inputs = {
        "a": np.array(first, dtype),
        "b": np.array(last, dtype),
        "d": None if delta is None else np.array(delta, dtype),
    }
    check("Range", inputs, constants=[n for n, v in inputs.items() if v is not None], **MS)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad(mode: str) -> None:
    for pads in ([1, 0, 2, 1], [[0, 2, -1, 0]]):
        inputs = {"x": _normal(4, 5), "pads": np.array(pads, np.int64), "v": np.array([1.5], np.float32)}
        check("Pad", inputs, constants=["pads", "v"], mode=mode, **MS)


def test_gather_nd() -> None:
    check("GatherND", {"x": _normal(2, 3, 4), "i": np.array([[0, 2], [-1, 1]], np.int64)}, **MS)
    check("GatherND", {"x": _normal(2, 3), "i": np.zeros((4, 0), np.int64)}, **MS)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_grid_sample(mode: str, padding_mode: str) -> None:
    inputs = {"x": _normal(1, 2, 5, 6), "grid": RNG.uniform(-1.3, 1.3, (1, 4, 3, 2)).astype(np.float32)}
    inputs["grid"].flat[:4] = np.nan, np.inf, 1e20, -3
    check("GridSample", inputs, atol=1e-4, mode=mode, padding_mode=padding_mode, **MS)


@pytest.mark.parametrize("axis", [0, 2, -1, -3])
def test_expand_dims(axis: int) -> None:
    check("ExpandDims", {"x": _normal(2, 3), "axis": np.array(axis, np.int32)}, constants=["axis"], **MS)
    with pytest.raises(InvalidModelError, match="axis is 4, expected -3 to 2"):
        check("ExpandDims", {"x": _normal(2, 3), "axis": np.array(4, np.int32)}, constants=["axis"], **MS)


@pytest.mark.parametrize(("dim", "size", "step"), [(-1, 3, 1), (1, 2, 2), (0, 2, 1)])
def test_unfold_tensor(dim: int, size: int, step: int) -> None:
    check("UnfoldTensor", {"x": _normal(2, 5, 7)}, dim=dim, size=size, step=step, **MS)


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean"])
def test_distances(metric: str) -> None:
    rows = {"a": _normal(7, 5), "b": _normal(4, 5)}
    check("CDist", rows, rtol=1e-4, atol=1e-4, metric=metric, **MS)
    wide = {name: value.astype(np.float64) for name, value in rows.items()}
    check("CDist", wide, rtol=1e-12, atol=1e-12, metric=metric, **MS)


@pytest.mark.parametrize("types", [(np.int16, np.int16), (np.uint16, np.uint16)])
def test_products_of_shorts(types: tuple[Any, Any]) -> None:
    a, y = (_bytes(t, *shape) for t, shape in zip(types, [(3, 5), (5, 4)], strict=True))
    wide = np.int64 if types[0] == np.int16 else np.uint64
    inputs = {"a": a, "b": y}
    got = on_vulkan(model_of("MatMulInteger16", inputs, domain="com.microsoft"), inputs)[0]
    np.testing.assert_array_equal(got, (a.astype(wide) @ y.astype(wide)).astype(got.dtype))
    assert got.dtype == (np.int32 if types[0] == np.int16 else np.uint32)


def _scale(value: float) -> Array:
    return np.array(value, np.float32)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_concat(dtype: Any) -> None:
    inputs = {"ys": _scale(0.3), "yz": np.array(5, dtype)}
    for k, (scale, zero) in enumerate([(0.3, 5), (0.11, 7)]):
        inputs |= {f"x{k}": _bytes(dtype, 2, 3 + k, 4), f"s{k}": _scale(scale), f"z{k}": np.array(zero, dtype)}
    check("QLinearConcat", inputs, constants=[n for n in inputs if n[0] != "x"], axis=1, **MS)
    other = np.int8 if dtype == np.uint8 else np.uint8
    for name in ("x0", "z1"):
        with pytest.raises(
            InvalidModelError, match=r"a part of u?int8 with a scale of float32 and a zero point of u?int8"
        ):
            check("QLinearConcat", inputs | {name: inputs[name].astype(other)}, axis=1, **MS)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_where(dtype: Any) -> None:
    inputs: dict[str, Array] = {"c": RNG.integers(0, 2, (2, 1, 4)).astype(bool)}
    for name, shape, scale, zero in (("a", (3, 4), 0.2, 3), ("b", (2, 3, 1), 0.05, 60)):
        inputs |= {name: _bytes(dtype, *shape), f"{name}s": _scale(scale), f"{name}z": np.array(zero, dtype)}
    inputs |= {"zs": _scale(0.13), "zz": np.array(9, dtype)}
    check("QLinearWhere", inputs, constants=[n for n in inputs if len(n) == 2], **MS)


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_softmax(dtype: Any, opset: int) -> None:
    zero = 0 if dtype == np.uint8 else -128
    inputs = {"x": _bytes(dtype, 2, 3, 4), "xs": _scale(0.05), "xz": np.array(7, dtype)}
    inputs |= {"ys": _scale(0.00326), "yz": np.array(zero, dtype)}
    attributes: dict[str, Any] = {"opset": opset, "axis": 1}
    node = helper.make_node("QLinearSoftmax", list(inputs), ["y"], domain="com.microsoft", **attributes)
    model = graph_of([node], inputs, ["y"], ["xs", "xz", "ys", "yz"], 21, "com.microsoft")
    [got], [wanted] = on_vulkan(model, inputs), by_onnxruntime(model, inputs)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("spatial", [(9,), (8, 9), (5, 4, 6)])
def test_nhwc_max_pool(spatial: tuple[int, ...], dtype: Any) -> None:
    rank = len(spatial)
    attributes: dict[str, Any] = {"kernel_shape": [3] * rank, "strides": [2] * rank, "pads": [1] * 2 * rank}
    check("NhwcMaxPool", {"x": _bytes(dtype, 2, *spatial, 5)}, **attributes, **MS)


def _quantized(dtype: Any, *shape: int, out: float) -> dict[str, Array]:
    zeros = np.array(7, dtype), np.array(3, dtype)
    return {"x": _bytes(dtype, *shape), "xs": _scale(0.05), "xz": zeros[0], "ys": _scale(out), "yz": zeros[1]}


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("channels_last", [0, 1])
def test_qlinear_average_pools(channels_last: int, dtype: Any) -> None:
    inputs = _quantized(dtype, 2, 6, 7, 5, out=0.0431)
    rest: dict[str, Any] = {"constants": ["xs", "xz", "ys", "yz"], "channels_last": channels_last, **MS}
    check("QLinearGlobalAveragePool", inputs, **rest)
    for include in (0, 1):
        window: dict[str, Any] = {
            "kernel_shape": [3, 2],
            "strides": [2, 1],
            "pads": [1, 0, 1, 1],
            "count_include_pad": include,
        }
        check("QLinearAveragePool", inputs, auto_pad="", **window, **rest)
        ties = inputs | {"ys": inputs["xs"]}  # a mean of two lies between two steps
        check("QLinearAveragePool", ties, kernel_shape=[1, 2], count_include_pad=include, **rest)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("op_type", "attributes", "out"), [("QLinearSigmoid", {}, 1 / 256), ("QLinearLeakyRelu", {"alpha": 0.3}, 0.04)]
)
def test_qlinear_activations(op_type: str, attributes: dict[str, Any], out: float, dtype: Any) -> None:
    check(op_type, _quantized(dtype, 3, 40, out=out), constants=["xs", "xz", "ys", "yz"], **attributes, **MS)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("Affine", {"alpha": 2.0, "beta": 0.5}),
        ("Affine", {}),
        ("Scale", {"scale": 3.0}),
        ("ImageScaler", {"scale": 2.0, "bias": [0.5, -1.0, 4.0]}),
        ("ParametricSoftplus", {"alpha": 2.0, "beta": 1.5}),
        ("ScaledTanh", {"alpha": 2.0, "beta": 0.7}),
        ("Crop", {"border": [1, 2, 1, 0]}),
        ("Crop", {"border": [1, 2, 1, 0], "scale": [2, 3]}),
    ],
)
def test_operators_of_the_first_years(op_type: str, attributes: dict[str, Any]) -> None:
    check(op_type, {"x": _normal(2, 3, 5, 6)}, **OLD, **attributes)


@pytest.mark.parametrize("axes", [None, [2, 0]])
def test_dynamic_slice(axes: list[int] | None) -> None:
    inputs = {"x": _normal(3, 4, 5), "s": np.array([1, -2], np.int64), "e": np.array([3, 1000], np.int64)}
    inputs["axes"] = None if axes is None else np.array(axes, np.int64)  # type: ignore[assignment]
    check("DynamicSlice", inputs, constants=[n for n, v in inputs.items() if n != "x" and v is not None], **OLD)


# ---- images and matrices


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 4), (1, 1), (1, 5), (6, 1)])
def test_crop_and_resize(mode: str, size: tuple[int, int]) -> None:
    boxes = np.array([[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9], [0.8, 0.9, 0.3, 0.1], [-0.5, 0.2, 1.4, 0.6]], np.float32)
    inputs = {
        "x": _normal(2, 3, 6, 7), "rois": boxes, "of": np.array([0, 1, 1, 0], np.int32), "size": np.array(size, np.int32),
    }  # fmt: skip
    check("CropAndResize", inputs, constants=["size"], mode=mode, extrapolation_value=2.5, atol=1e-4, **MS)


def test_crop_of_no_image() -> None:
    inputs = {
        "x": _normal(2, 3, 6, 7), "rois": np.zeros((1, 4), np.float32), "of": np.array([2], np.int32),
        "size": np.array([2, 2], np.int32),
    }  # fmt: skip
    with pytest.raises(InvalidInputError, match=r"a region's batch index is outside \[0, 1\]"):
        on_vulkan(model_of("CropAndResize", inputs, constants=["size"], domain="com.microsoft"), inputs)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (5, 4, 4), (2, 3, 7, 7), (40, 40)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_inverse(shape: tuple[int, ...], dtype: Any) -> None:
    x = _normal(*shape)[..., np.random.default_rng(1).permutation(shape[-1])] + 3 * np.eye(shape[-1])[::-1]
    x = x.astype(dtype)
    (y,) = on_vulkan(model_of("Inverse", {"x": x}, domain="com.microsoft"), {"x": x})
    exact = np.linalg.inv(x.astype(np.float64))
    rough = np.abs(exact).max() * {np.float64: 1e-11, np.float32: 3e-4, np.float16: 3e-3}[dtype]
    np.testing.assert_allclose(y.astype(np.float64), exact, atol=rough)
    assert y.dtype == dtype


@pytest.mark.parametrize("x", [[2, 1, 1, 3, 4, 3], [5], [0.5, -0.0, 0, 7] * 9, []])
def test_unique(x: list[float]) -> None:
    check("Unique", {"x": np.array(x, np.float32)}, outputs=("y", "at", "counts"), **MS)


@pytest.mark.parametrize("across", [0, 1, 8])
@pytest.mark.parametrize("variance", [0, 1, -1])
def test_the_first_normalization_of_mean_and_variance(across: int, variance: int) -> None:
    attributes: dict[str, Any] = {
        "across_channels": across,
        "normalize_variance": variance,
        "against": "onnxruntime",
        "opset": 8,
    }
    check("MeanVarianceNormalization", {"x": _normal(2, 3, 4, 5)}, **attributes)


# ---- element types that come in parts


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("op_type", ["ReduceLogSum", "ReduceLogSumExp"])
def test_logarithms_of_sums_of_doubles(op_type: str, opset: int) -> None:
    x = RNG.normal(0, 300, (3, 4, 5))
    x[1, :, 2] = -np.inf
    x[2, 1, 1] = np.inf
    x = np.abs(x) if op_type == "ReduceLogSum" else x
    axes = {"axes": [1]} if opset == 13 else {}
    inputs = {"x": x, "a": np.array([1])} if opset == 18 else {"x": x}
    check(op_type, inputs, against="onnxruntime", opset=opset, keepdims=0, rtol=1e-12, atol=1e-12, **axes)


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization_of_doubles(p: int) -> None:
    x = RNG.normal(0, 1, (3, 4, 5))
    x[1] = 0
    check("LpNormalization", {"x": x}, against="onnxruntime", axis=1, p=p, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_nan_and_infinity_in_8_bits(dtype: str) -> None:
    x = np.array([0, 1, np.inf, -np.inf, np.nan, -2], np.float32).astype(getattr(ml_dtypes, dtype))
    for op_type, expected in (("IsNaN", np.isnan), ("IsInf", np.isinf)):
        (got,) = on_vulkan(model_of(op_type, {"x": x}, opset=21), {"x": x})
        np.testing.assert_array_equal(got, expected(x.astype(np.float32)))
