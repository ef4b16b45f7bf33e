"""Edges where implementations differ, held to ONNX and IEEE 754: large angles, NaN, signs of zero, ranges, sizes of 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.ops.cases import by_onnxruntime, by_reference, check, model_of, on_vulkan
from vkep import InferenceSession, InvalidInputError, InvalidModelError

pytestmark = pytest.mark.usefixtures("vulkan")
Array = np.ndarray[Any, Any]
FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16]
INTS = [np.int8, np.uint8, np.int32, np.int64]


def _run(op_type: str, inputs: dict[str, Array], **rest: Any) -> Array:
    return on_vulkan(model_of(op_type, inputs, outputs=("out",), **rest), inputs)[0]


def _same(got: Array, expected: Array) -> None:
    """Equal to the bit, but for NaN's payload."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    wide_got, wide = got.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(wide_got, wide)
    whole = ~np.isnan(wide)
    np.testing.assert_array_equal(np.signbit(wide_got)[whole], np.signbit(wide)[whole])


@pytest.mark.parametrize("op_type", ["Sin", "Cos", "Tan"])
def test_angles_of_any_size(op_type: str) -> None:
    """All float32 magnitudes, and the neighbours of multiples of pi / 2, where a rough reduction leaves nothing right."""
    rng = np.random.default_rng(0)
    spread = rng.integers(0, 0x7F800000, 20000).astype(np.uint32).view(np.float32)
    near = (np.arange(1, 20000) * (np.pi / 2)).astype(np.float32)
    fixed = np.array([8191.999, 8192, 1e6, 1e22, 3.4e38, 1.1754944e-38, 0.0, -0.0], np.float32)
    x = np.concatenate([spread, -spread, near, -near, fixed])
    exact = {"Sin": np.sin, "Cos": np.cos, "Tan": np.tan}[op_type](x.astype(np.longdouble)).astype(np.float64)
    got = _run(op_type, {"x": x})
    with np.errstate(over="ignore", under="ignore"):
        unit = np.spacing(np.maximum(np.abs(exact), 2.0**-120).astype(np.float32)).astype(np.float64)
    assert (np.abs(got - exact) / unit).max() < 6
    np.testing.assert_array_equal(np.signbit(got[-2:]), np.signbit(exact[-2:]))
    assert np.isnan(_run(op_type, {"x": np.array([np.inf, -np.inf, np.nan], np.float32)})).all()


@pytest.mark.parametrize("op_type", ["Erf", "Gelu", "Gelu tanh"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_error_function_and_gelu_at_all_sizes(op_type: str, dtype: Any) -> None:
    """Small in absolute terms, and relative to the result near 0; below, gelu's tail meets 0."""
    steps = np.concatenate([np.linspace(0, 7, 5000), np.geomspace(1e-3, 1e4, 1000)])
    x = np.concatenate([-steps, steps, [np.inf, -np.inf, np.nan]]).astype(dtype)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        if op_type == "Gelu tanh":
            exact = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
        else:
            error = np.vectorize(math.erf)(wide if op_type == "Erf" else wide / math.sqrt(2))
            exact = error if op_type == "Erf" else 0.5 * wide * (1 + error)
    rest: dict[str, Any] = {"approximate": "tanh"} if "tanh" in op_type else {}
    got = _run(op_type.split()[0], {"x": x}, opset=22, **rest)
    rtol, atol = (1e-6, 4e-7) if dtype == np.float32 else (2**-10, 1e-7)
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=rtol, atol=atol)
    near = np.abs(wide) < 0.25
    np.testing.assert_allclose(got[near].astype(np.float64), exact[near], rtol=rtol, atol=atol / 50)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("version", [10, 16])
def test_regions_far_larger_than_their_image(mode: str, version: int) -> None:
    """Only samples on the image are computed where there are many: more than 256 along an axis of a bin."""
    boxes = np.array([[-900, -40, 800, 90], [-3, -2000, 700, 3], [1, 1, 3, 2], [3e3, 3e3, 3.9e3, 3.7e3]], np.float32)
    x = np.random.default_rng(5).normal(size=(2, 2, 5, 7)).astype(np.float32)
    inputs: dict[str, Array] = {"x": x, "boxes": boxes, "of": np.array([0, 1, 1, 0], np.int64)}
    for ratio in (0, 2, 300):
        attributes: dict[str, Any] = {"output_height": 2, "output_width": 3, "sampling_ratio": ratio, "mode": mode}
        check("RoiAlign", inputs, opset=version, against="onnxruntime", atol=1e-4, rtol=1e-4, **attributes)


def test_a_zero_point_for_each_row_of_an_integer_product() -> None:
    rng = np.random.default_rng(3)
    for shape, zero in (((4, 5), (4,)), ((2, 3, 4, 5), (2, 3, 4, 1))):
        x, y = (rng.integers(0, 256, s, dtype=np.uint8) for s in (shape, (*shape[:-2], 5, 6)))
        at, of = (rng.integers(0, 256, s, dtype=np.uint8) for s in (zero, (6,) if len(shape) == 2 else (2, 3, 1, 6)))
        got = _run("MatMulInteger", {"x": x, "y": y, "at": at, "of": of})
        rows = at.reshape(*shape[:-1], 1)
        np.testing.assert_array_equal(got, (x.astype(np.int32) - rows) @ (y.astype(np.int32) - of))


def test_operands_without_elements_follow_the_specification() -> None:
    """No axes to squeeze are none (`docs/operators.md`); the mean of no elements is undefined, and ONNX Runtime's."""
    x, none = np.ones((1, 2, 1), np.float32), np.zeros(0, np.int64)
    assert check("Squeeze", {"x": x, "axes": none}, constants=["axes"])[0].shape == (1, 2, 1)
    for dtype in (np.float32, np.float16, np.float64, np.int32):
        empty: dict[str, Array] = {"x": np.ones((2, 0), dtype), "axes": np.array([1], np.int64)}
        for constants in (("axes",), ("axes", "x")):
            _same(_run("ReduceMean", empty, constants=constants), np.zeros((2, 1), dtype))


def test_a_shape_of_no_array() -> None:
    for constants, error in (((), InvalidInputError), (("s",), InvalidModelError)):
        given = {"s": np.array([2**62, 0], np.int64)}
        with (
            pytest.raises(error, match="is of no array"),
            InferenceSession(model_of("ConstantOfShape", given, constants=constants)) as session,
        ):
            session.run(None, {} if constants else given)


@pytest.mark.parametrize("op_type", ["Max", "Min"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_wins_of_two(op_type: str, dtype: Any) -> None:
    x = np.array([np.nan, 1, np.nan, -np.inf, np.inf], dtype)
    y = np.array([1, np.nan, np.nan, np.nan, 0], dtype)
    best = np.maximum if op_type == "Max" else np.minimum
    _same(_run(op_type, {"x": x, "y": y}), best(x.astype(np.float32), y.astype(np.float32)).astype(dtype))


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_wins_of_many(op_type: str, dtype: Any) -> None:
    x = np.arange(3 * 70).reshape(3, 70).astype(dtype)
    x[1, 69] = x[2, 0] = np.nan
    best = np.max if op_type == "ReduceMax" else np.min
    axes = np.array([1], np.int64)
    _same(
        _run(op_type, {"x": x, "axes": axes}, constants=("axes",), keepdims=0),
        best(x.astype(np.float32), axis=1).astype(dtype),
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_float64_in_order(dtype: Any) -> None:
    """Values that differ beyond float32's digits, of both signs, for what sorts or compares."""
    rng = np.random.default_rng(8)
    x = np.concatenate(
        [1 + rng.permutation(40) * 1e-12, -1 - rng.permutation(40) * 1e-12, [0.0, -0.0, np.inf, -np.inf]]
    )
    x = rng.permutation(x).astype(dtype).reshape(6, 14)
    for largest in (0, 1):
        values = {"x": x, "k": np.array([14 - 9 * largest], np.int64)}
        for opset in (11, 24):
            check("TopK", values, outputs=("y", "i"), constants=("k",), largest=largest, opset=opset, atol=0, rtol=0)
    for op_type in ("ArgMax", "ArgMin", "Hardmax"):
        check(op_type, {"x": x}, axis=1, atol=0)
    check("Unique", {"x": np.round(x, 11)}, outputs=("y", "first", "at", "counts"), atol=0, rtol=0)


@pytest.mark.parametrize("largest", [1, 0])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_top_k_takes_nan_for_the_greatest(dtype: Any, largest: int) -> None:
    """As numpy sorts, and as torch defines its topk; ONNX leaves it open, and its reference takes numpy's order."""
    x = np.array([[2, np.nan, -np.inf, np.inf, -0.0, 1]], dtype)
    values = {"x": x, "k": np.array([6], np.int64)}
    model = model_of("TopK", values, outputs=("y", "i"), constants=("k",), largest=largest)
    got, places = on_vulkan(model, values)
    order = [2, 4, 5, 0, 3, 1]
    np.testing.assert_array_equal(places[0], order[::-1] if largest else order)
    _same(got[0], x[0, places[0]])


@pytest.mark.parametrize(
    "op_type", ["Abs", "Neg", "Sign", "Ceil", "Floor", "Round", "Sqrt", "Relu", "Identity", "Tanh", "Erf"]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_zeros_keep_their_sign(op_type: str, dtype: Any) -> None:
    x = np.array([-0.0, 0.0, -0.25, -0.5], dtype)
    with np.errstate(invalid="ignore"):
        exact = {
            "Abs": np.abs(x), "Neg": -x, "Ceil": np.ceil(x), "Floor": np.floor(x), "Round": np.round(x),
            "Sqrt": np.sqrt(x), "Identity": x,
        }.get(op_type)  # fmt: skip
    got = _run(op_type, {"x": x})
    if exact is not None:
        _same(got, exact)
    else:
        assert not got[:2].any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_halves_round_to_even(dtype: Any) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.5, 4.5, 0.75], dtype)
    _same(_run("Round", {"x": x}), np.round(x.astype(np.float32)).astype(dtype))


@pytest.mark.parametrize("source", [np.float32, np.int32], ids=str)
@pytest.mark.parametrize("target", [np.float16, ml_dtypes.bfloat16], ids=str)
def test_casts_to_narrow_floats_round_to_even_and_overflow_to_infinity(source: Any, target: Any) -> None:
    if source is np.float32:
        x = np.array([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 65504, 65519, 65520, 1e38, -1e38, np.nan,
                      np.inf, 6e-8, 2e-8, -0.0], np.float32)  # fmt: skip
    else:
        x = np.array([2049, 2051, 257, 259, -2049, 65504, 70000, 0], np.int32)
    with np.errstate(over="ignore"):
        expected = x.astype(target)
    _same(_run("Cast", {"x": x}, to=helper.np_dtype_to_tensor_dtype(np.dtype(target))), expected)


@pytest.mark.parametrize("target", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.bool_], ids=str)
def test_whole_numbers_cast_by_their_low_bits(target: Any) -> None:
    x = np.array([0, 1, -1, 127, 128, 255, 256, -129, 2**31 - 1, -(2**31), 2**40 + 3, -(2**63)], np.int64)
    _same(_run("Cast", {"x": x}, to=helper.np_dtype_to_tensor_dtype(np.dtype(target))), x.astype(target))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8], ids=str)
def test_quantization_saturates_and_rounds_to_even(dtype: Any) -> None:
    x = np.array([-1e9, -300, -0.5, 0.5, 1.5, 2.5, 300, 1e9, np.inf, -np.inf], np.float32)
    values = {"x": x, "scale": np.array(1, np.float32), "zero": np.array(3, dtype)}
    check("QuantizeLinear", values, against="onnxruntime", opset=21)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64], ids=str)
def test_signs_of_quotients_and_remainders(dtype: Any) -> None:
    x, y = (np.array(v, dtype) for v in ([7, -7, 7, -7, 6, -6, 0], [3, 3, -3, -3, -3, 3, -5]))
    _same(_run("Div", {"x": x, "y": y}), np.array([2, -2, -2, 2, -2, -2, 0], dtype))
    _same(_run("Mod", {"x": x, "y": y}), np.array([1, 2, -2, -1, 0, 0, 0], dtype))
    _same(_run("Mod", {"x": x, "y": y}, fmod=1), np.array([1, -1, 1, -1, 0, 0, 0], dtype))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
def test_sums_of_narrow_floats_are_kept_in_float32(dtype: Any) -> None:
    """4096 times 1 + 1/128: a float16 sum stops growing at 2048, a bfloat16 one at 256."""
    x = np.full((1, 4096), 1 + 1 / 128, dtype)
    exact = x.astype(np.float64).sum()
    axes = np.array([1], np.int64)
    total = _run("ReduceSum", {"x": x, "axes": axes}, constants=("axes",), keepdims=0)
    product = _run("MatMul", {"a": x, "b": np.ones((4096, 1), dtype)})
    mean = _run("ReduceMean", {"x": x, "axes": axes}, constants=("axes",), keepdims=0)
    running = _run("CumSum", {"x": x, "axis": np.array(1, np.int64)}, constants=("axis",))
    for got, expected in ((total, exact), (product, exact), (mean, exact / 4096), (running[:, -1:], exact)):
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=2 * float(ml_dtypes.finfo(dtype).eps))


EMPTY: list[tuple[str, dict[str, tuple[int, ...]], dict[str, Any]]] = [
    ("Add", {"x": (0, 3), "y": (3,)}, {}),
    ("Mul", {"x": (2, 0), "y": (1, 1)}, {}),
    ("Max", {"x": (4, 0, 1), "y": (1, 5)}, {}),
    ("Where", {"c": (1,), "x": (0,), "y": (0,)}, {}),
    ("MatMul", {"x": (2, 0), "y": (0, 3)}, {}),
    ("MatMul", {"x": (0, 4), "y": (4, 3)}, {}),
    ("Concat", {"x": (0, 2), "y": (3, 2)}, {"axis": 0}),
    ("Transpose", {"x": (0, 2, 3)}, {"perm": [2, 0, 1]}),
    ("Softmax", {"x": (0, 4)}, {"axis": -1}),
    ("Relu", {"x": (3, 0)}, {}),
]


@pytest.mark.parametrize(("op_type", "shapes", "attributes"), EMPTY)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, ml_dtypes.bfloat16], ids=str)
def test_sizes_of_zero(
    op_type: str, shapes: dict[str, tuple[int, ...]], attributes: dict[str, Any], dtype: Any
) -> None:
    if op_type == "Softmax" and dtype is np.int64:
        dtype = np.float32
    values = {n: np.ones(s, np.bool_ if n == "c" else dtype) for n, s in shapes.items()}
    got = _run(op_type, values, **attributes)
    expected: dict[str, Callable[..., Array]] = {
        "Add": lambda x, y: x + y,
        "Mul": lambda x, y: x * y,
        "Max": np.maximum,
        "Where": np.where,
        "MatMul": lambda x, y: np.zeros((x.shape[0], y.shape[1]), dtype),
        "Concat": lambda x, y: np.concatenate([x, y]),
        "Transpose": lambda x: x.transpose(2, 0, 1),
        "Softmax": lambda x: x,
        "Relu": lambda x: x,
    }
    _same(got, expected[op_type](*values.values()).astype(dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
def test_negative_axes_and_indices(dtype: Any) -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    index = np.array([-1, 0, -3], np.int64)
    _same(_run("Gather", {"x": x, "i": index}, axis=-2), x[:, [-1, 0, -3]])
    along = np.broadcast_to(np.array([-1, -2, 0, 1]), (1, 3, 4)).copy()
    _same(_run("GatherElements", {"x": x, "i": along}, axis=-3), np.take_along_axis(x, along % 2, 0))
    _same(_run("Concat", {"x": x, "y": x}, axis=-1), np.concatenate([x, x], -1))
    values = {"x": x, "s": np.array([-1], np.int64), "e": np.array([-5], np.int64), "a": np.array([-1], np.int64),
              "t": np.array([-1], np.int64)}  # fmt: skip
    _same(_run("Slice", values, constants=("s", "e", "a", "t")), x[..., ::-1])


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
def test_scalars(dtype: Any) -> None:
    x, y = np.array(7, dtype), np.array(2, dtype)
    _same(_run("Add", {"x": x, "y": y}), np.array(9, dtype))
    _same(_run("Identity", {"x": x}), x)
    _same(_run("Reshape", {"x": x, "s": np.array([1, 1], np.int64)}, constants=("s",)), x.reshape(1, 1))
    _same(_run("Gather", {"x": np.array([3, 4], dtype), "i": np.array(-1, np.int64)}), np.array(4, dtype))
    vector = np.array([1, 2, 3], dtype)
    axes = np.array([0], np.int64)
    _same(_run("ReduceMax", {"x": vector, "axes": axes}, constants=("axes",), keepdims=0), np.array(3, dtype))


NAN = np.array([[np.nan, 1e30, -1e30, 0.5]], np.float32)


@pytest.mark.parametrize("activation", ["Tanh", "Sigmoid", "HardSigmoid", "Relu", "LeakyRelu", "Clip"])
def test_fused_activations_keep_nan_and_saturate(activation: str) -> None:
    values = {"a": np.zeros((1, 1), np.float32), "b": np.zeros((1, 4), np.float32), "c": NAN}
    model = model_of("FusedGemm", values, domain="com.microsoft", activation=activation)
    got = on_vulkan(model, values)[0][0]
    low, high = {"Relu": (0, 1e30), "LeakyRelu": (-1e28, 1e30), "Tanh": (-1, 1), "Clip": (-1e30, 1e30)}.get(
        activation, (0, 1)
    )
    assert np.isnan(got[0])
    np.testing.assert_allclose(got[1:3], [high, low], rtol=1e-6)


@pytest.mark.parametrize("activation", ["Tanh", "Sigmoid", "HardSigmoid", "Relu", "ScaledTanh"])
@pytest.mark.parametrize("clip", [None, 30.0])
def test_recurrent_activations_keep_nan_and_saturate(activation: str, clip: float | None) -> None:
    values = {
        "x": np.zeros((1, 1, 1), np.float32),
        "w": np.zeros((1, 4, 1), np.float32),
        "r": np.zeros((1, 4, 4), np.float32),
        "bias": np.concatenate([NAN, np.zeros_like(NAN)], 1),
    }
    attributes = {} if clip is None else {"clip": clip}
    got = _run("RNN", values, activations=[activation], hidden_size=4, **attributes).reshape(-1)
    low, high = {"Relu": (0, clip or 1e30), "Tanh": (-1, 1), "ScaledTanh": (-1, 1)}.get(activation, (0, 1))
    assert np.isnan(got[0])
    np.testing.assert_allclose(got[1:3], [high, low], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("op_type", ["Tanh", "HardSwish", "HardSigmoid", "Mish", "Gelu", "Sigmoid", "Softplus"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations_keep_nan_and_saturate(op_type: str, dtype: Any) -> None:
    x = np.array([np.nan, 1000, -1000], dtype)
    got = _run(op_type, {"x": x}, opset=22).astype(np.float64)
    high, low = {"Tanh": (1, -1), "HardSigmoid": (1, 0), "Sigmoid": (1, 0)}.get(op_type, (float(x[1]), 0))
    assert np.isnan(got[0])
    np.testing.assert_array_equal(got[1:], [high, low])


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_of_bfloat16(op_type: str) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    rng = np.random.default_rng(1)
    values = {
        name: (rng.standard_normal(shape) / 2).astype(ml_dtypes.bfloat16)
        for name, shape in (("x", (3, 2, 4)), ("w", (1, gates * 5, 4)), ("r", (1, gates * 5, 5)))
    }
    got = on_vulkan(model_of(op_type, values, opset=22, hidden_size=5, outputs=("y", "h")), values)
    wide = {n: v.astype(np.float32) for n, v in values.items()}
    exact = by_onnxruntime(model_of(op_type, wide, opset=22, hidden_size=5, outputs=("y", "h")), wide)
    for ours, theirs in zip(got, exact, strict=True):
        assert ours.dtype == ml_dtypes.bfloat16
        np.testing.assert_allclose(ours.astype(np.float32), theirs, atol=0.01)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8], ids=str)
def test_einsum_of_bytes_wraps(dtype: Any) -> None:
    rng = np.random.default_rng(2)
    x, y = (rng.integers(0, 127, s).astype(dtype) for s in ((3, 4), (4, 5)))
    _same(_run("Einsum", {"x": x, "y": y}, equation="ij,jk->ik", opset=12), x @ y)


def test_max_roi_pool() -> None:
    x = np.random.default_rng(3).standard_normal((2, 3, 9, 11)).astype(np.float32)
    rois = np.array([[0, 0, 0, 5, 5], [1, 2.5, 1.5, 20, 30], [1, 3, 3, 3, 3], [0, -4, -4, 2, 2], [0, 8, 8, 1, 1]],
                    np.float32)  # fmt: skip
    for scale in (1.0, 0.5, 0.25):
        values = {"x": x, "rois": rois}
        check("MaxRoiPool", values, against="onnxruntime", opset=16, pooled_shape=[3, 4], spatial_scale=scale)
    x[0, 0, 2, 2] = np.nan
    got = _run("MaxRoiPool", {"x": x, "rois": rois[:1]}, opset=16, pooled_shape=[1, 1])
    assert np.isnan(got[0, 0, 0, 0])


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_in_an_order_of_their_own(bits: int, zeros: bool) -> None:
    """MatMulNBits with g_idx, against numpy: ONNX Runtime leaves packed zero points out there."""
    rng = np.random.default_rng(4)
    k, n, block = 64, 6, 16
    blocks, each = k // block, 8 // bits
    weights = rng.integers(0, 256, (n, blocks, block // each)).astype(np.uint8)
    packed = rng.integers(0, 256, (n, blocks // each)).astype(np.uint8)
    scales = rng.standard_normal((n, blocks)).astype(np.float32)
    group = rng.permutation(np.repeat(np.arange(blocks), block)).astype(np.int32)
    a = rng.standard_normal((3, k)).astype(np.float32)

    def codes(t: Array) -> Array:
        return (
            np.stack([t >> (bits * i) & ((1 << bits) - 1) for i in range(each)], -1).reshape(n, -1).astype(np.float32)
        )

    zero = codes(packed)[:, group] if zeros else 1 << (bits - 1)
    values: dict[str, Array | None] = {"a": a, "w": weights, "s": scales, "z": packed if zeros else None, "g": group}
    for constants in (("w", "s"), ("w", "s", "g")):
        model = model_of("MatMulNBits", values, constants=constants, domain="com.microsoft", K=k, N=n, bits=bits,
                         block_size=block)  # fmt: skip
        got = on_vulkan(model, values)[0]
        np.testing.assert_allclose(got, a @ ((codes(weights) - zero) * scales[:, group]).T, rtol=1e-4, atol=1e-2)


def test_shapes_of_the_reference_agree_where_nothing_is_left() -> None:
    x = np.zeros((2, 0, 3), np.float32)
    values: dict[str, Array] = {"x": x, "axes": np.array([1], np.int64)}
    model = model_of("ReduceSum", values, constants=("axes",), keepdims=1)
    _same(on_vulkan(model, values)[0], by_reference(model, values)[0])


def test_a_cast_of_the_greatest_float_is_not_infinite() -> None:
    x = np.array([3.4028235e38, -3.4028235e38], np.float32)
    got = _run("Cast", {"x": x}, to=TensorProto.BFLOAT16)
    assert np.isinf(got.astype(np.float32)).all()  # both round up, past the greatest bfloat16
    below = _run("Cast", {"x": x * np.float32(0.99)}, to=TensorProto.BFLOAT16)
    assert np.isfinite(below.astype(np.float32)).all()


@pytest.mark.parametrize(
    ("start", "end", "step", "expected"),
    [(-5, -9, -1, [7]), (-2, -2, -3, []), (9, -9, -2, [9, 7]), (-9, 9, 2, [7, 9]), (2, 0, 1, [])],
)
@pytest.mark.parametrize("constant", [False, True])
def test_slices_clamp_as_onnx_says(start: int, end: int, step: int, expected: list[int], constant: bool) -> None:
    values = {"x": np.array([7, 8, 9], np.int16)} | {
        n: np.array([v], np.int64) for n, v in zip("seat", (start, end, 0, step), strict=True)
    }
    known = ("x", *"seat") if constant else tuple("seat")
    model = model_of("Slice", values, constants=known)
    np.testing.assert_array_equal(on_vulkan(model, values)[0], np.array(expected, np.int16))


@pytest.mark.parametrize("scales", [[1, 1, 0.6, 0.6], [1, 1, 0.4, 1.7], [1, 1, 2.5, 0.51], [1, 1, 1, 1]])
def test_resize_before_it_had_modes(scales: list[float]) -> None:
    """ONNX's documents do not say which neighbour is the nearest: ONNX Runtime's is the upper one where an axis shrinks."""
    inputs = {"x": np.arange(48, dtype=np.float32).reshape(1, 1, 6, 8), "scales": np.array(scales, np.float32)}
    check("Resize", inputs, against="onnxruntime", opset=10, constants=["scales"])


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_with_a_coordinate_mode_that_later_versions_lack(mode: str) -> None:
    for scales in ([1, 1, 0.6, 0.6], [1, 1, 2, 1.7]):
        inputs = {"x": np.arange(48, dtype=np.float32).reshape(1, 1, 6, 8) ** 2, "roi": np.zeros(0, np.float32)}
        inputs["scales"] = np.array(scales, np.float32)
        rest: dict[str, Any] = {
            "mode": mode,
            "coordinate_transformation_mode": "tf_half_pixel_for_nn",
            "constants": ["roi", "scales"],
        }
        check("Resize", inputs, against="onnxruntime", opset=12, rtol=1e-4, atol=1e-3, **rest)


def test_resize_of_a_region_that_is_not_given() -> None:
    """It is the whole image."""
    inputs = {"x": np.arange(48, dtype=np.float32).reshape(1, 1, 6, 8), "roi": None, "scales": None}
    sizes = {"sizes": np.array([1, 1, 4, 5], np.int64)}
    mode: dict[str, Any] = {
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "mode": "linear",
        "constants": ["sizes"],
    }
    check("Resize", {**inputs, **sizes}, against="onnxruntime", opset=19, atol=1e-4, **mode)


@pytest.mark.parametrize("sorted_", [0, 1])
@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_unique_of_many_distinct_values(dtype: Any, sorted_: int) -> None:
    x = np.random.default_rng(0).permutation(9000).astype(dtype)
    check("Unique", {"x": x}, outputs=("y", "first", "at", "counts"), atol=0, rtol=0, sorted=sorted_)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [65536, 70000])
def test_an_average_over_more_than_two_to_the_32_positions(length: int) -> None:
    attributes = {"kernel_shape": [length] * 2, "strides": [length] * 2, "pads": [length - 1] * 4}
    got = _run("AveragePool", {"x": np.ones((1, 1, 2, 2), np.float32)}, count_include_pad=1, **attributes)
    np.testing.assert_allclose(got, np.full_like(got, 1 / length**2), rtol=1e-6)
