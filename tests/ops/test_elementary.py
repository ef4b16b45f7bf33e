"""The everyday operators at the edges: odd shapes, broadcasting, negative axes, no elements, rank 0, NaN and infinity,
in float32 and float16, wholly on Vulkan, against ONNX's reference evaluator."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.cases import assert_like, model_of, on_vulkan
from tests.session.models import reference

pytestmark = pytest.mark.usefixtures("vulkan")
FLOATS = [np.float32, np.float16]


def _run(op: str, inputs: list[Any], outputs: int = 1, opset: int = 18, constants: Any = (), **attributes: Any) -> Any:
    """The results and the reference's of a node whose inputs at the positions in ``constants`` are initializers."""
    values = {f"x{k}": np.asarray(value) for k, value in enumerate(inputs)}
    names, known = [f"y{k}" for k in range(outputs)], [f"x{k}" for k in constants]
    model = model_of(op, values, outputs=names, constants=known, opset=opset, **attributes)
    return on_vulkan(model, values), functools.partial(
        reference, model, {i.name: values[i.name] for i in model.graph.input}
    )


def _check(op: str, inputs: list[Any], outputs: int = 1, rtol: float | None = None, **more: Any) -> list[np.ndarray]:
    got, expected = _run(op, inputs, outputs, **more)
    half = got[0].dtype == np.float16
    with np.errstate(all="ignore"):
        assert_like(got, expected(), rtol or (2e-3 if half else 2e-5), 2e-3 if half else 1e-5)
    return got


def _normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


# ---- elementwise

BINARY = ["Add", "Sub", "Mul", "Div"]


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 1, 5), (0, 3), (2, 3, 1, 1, 2, 3)])
@pytest.mark.parametrize("op", ["Sigmoid", "Relu", "IsNaN"])
def test_unary_shapes(rng: np.random.Generator, op: str, shape: tuple[int, ...]) -> None:
    _check(op, [_normal(rng, shape, np.float32)])


SHAPES = [((3, 5), (3, 5)), ((3, 5), ()), ((), (3, 5)), ((3, 1), (1, 5)), ((2, 3, 4), (3, 1)), ((1,), (7,)), ((0, 4), (1, 4)),
          ((5, 1, 3, 1), (4, 1, 2)), ((2, 1, 1, 1, 3), (1, 2, 1, 2, 1))]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcasting(rng: np.random.Generator, shapes: Any, dtype: Any) -> None:
    a, b = (_normal(rng, s, dtype) for s in shapes)
    for op in BINARY:
        _check(op, [a, b])


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("op", [*BINARY, "Max", "Less", "GreaterOrEqual", "Pow", "Mod"])
def test_a_constant_of_one_element_may_add_axes(op: str, dtype: Any) -> None:
    more = {"fmod": 1} if op == "Mod" and dtype == np.float32 else {}
    one = np.full((1, 1, 1), 5, dtype)
    for x in (np.array([[1, 2, 3], [4, 5, 6]], dtype), np.array(3, dtype)):
        _check(op, [x, one], constants=(1,), **more)
        _check(op, [one, x], constants=(0,), **more)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8, np.uint8])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Mod", "Max", "Less", "Equal"])
def test_whole_numbers_wrap_and_truncate(op: str, dtype: Any) -> None:
    info = np.iinfo(dtype)
    values = np.array([info.min, info.min + 1, 0, 1, 2, 3, 7, info.max - 1, info.max], dtype)
    a, b = (g.reshape(-1) for g in np.meshgrid(values, values))
    if op in ("Div", "Mod"):
        keep = (b != 0) & ~((a == info.min) & (b.astype(np.int64) == -1))
        a, b = a[keep], b[keep]
    [got], by_reference = _run(op, [a, b])
    with np.errstate(all="ignore"):
        if op == "Div":  # ONNX truncates; the reference evaluator of some versions floors
            quotient = (
                np.abs(a.astype(object))
                // np.abs(b.astype(object))
                * np.sign(a.astype(object))
                * np.sign(b.astype(object))
            )
            expected: Any = quotient.astype(dtype)
        else:
            expected = by_reference()[0]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("base", [3, -3, 7, -1, 2, 0])
def test_integer_powers_are_exact(base: int) -> None:
    for dtype, exponents in ((np.int32, range(11)), (np.int64, range(21))):
        x, e = np.full(len(exponents), base, dtype), np.array(exponents, dtype)
        got = _check("Pow", [x, e])[0]
        np.testing.assert_array_equal(got, [base**k for k in exponents])


def test_where(rng: np.random.Generator) -> None:
    c, x, y = rng.random((3, 1)) < 0.5, _normal(rng, (5,), np.float32), _normal(rng, (3, 5), np.float32)
    _check("Where", [c, x, y])


CASTS: list[tuple[Any, int]] = [(np.float32, 7), (np.float32, 9), (np.float32, 10), (np.float16, 1), (np.int64, 1)]
CASTS += [(np.int64, 6), (np.int32, 7), (np.bool_, 1), (np.float32, 3), (np.uint8, 1)]


@pytest.mark.parametrize(("source", "target"), CASTS)
def test_casts(source: Any, target: int) -> None:
    values = np.array([0, 1, -1, 1.5, -2.5, 100, 3.999])
    values = np.abs(values).astype(source) if np.dtype(source).kind == "u" else values.astype(source)
    _check("Cast", [values], to=target)


# ---- movement

I64 = np.int64


def _ints(*values: int) -> np.ndarray:
    return np.array(values, I64)


MOVES: list[tuple[str, tuple[int, ...], list[np.ndarray], dict[str, Any], int]] = [
    ("Transpose", (2, 3, 5), [], {"perm": [2, 0, 1]}, 1),
    ("Transpose", (), [], {}, 1),
    ("Transpose", (0, 3), [], {}, 1),
    ("Reshape", (2, 3, 4), [_ints(0, -1)], {}, 1),
    ("Reshape", (0, 3), [_ints(3, 0)], {"allowzero": 1}, 1),
    ("Reshape", (1,), [_ints()], {}, 1),
    ("Flatten", (2, 3, 4), [], {"axis": -1}, 1),
    ("Flatten", (), [], {"axis": 0}, 1),
    ("Squeeze", (1, 3, 1), [_ints(-1)], {}, 1),
    ("Squeeze", (1, 3, 1), [], {}, 1),
    ("Unsqueeze", (3,), [_ints(-1, 0)], {}, 1),
    ("Expand", (3, 1), [_ints(2, 1, 4)], {}, 1),
    ("Expand", (3, 1), [_ints(3, 0)], {}, 1),
    ("Concat", (2, 3), [np.ones((2, 0), np.float32), np.ones((2, 2), np.float32)], {"axis": -1}, 1),
    ("Split", (7, 2), [_ints(3, 0, 4)], {"axis": -2}, 3),
    ("Split", (7, 2), [], {"axis": 0, "num_outputs": 3}, 3),
    ("Slice", (7, 5), [_ints(-1, 4), _ints(-1000, 0), _ints(0, -1), _ints(-2, -1)], {}, 1),
    ("Slice", (7, 5), [_ints(2), _ints(2**62), _ints(-2)], {}, 1),
    ("Slice", (7, 5), [_ints(5), _ints(2), _ints(0)], {}, 1),
    ("Tile", (2, 3), [_ints(2, 3)], {}, 1),
    ("Tile", (2, 3), [_ints(0, 2)], {}, 1),
    ("Gather", (5, 3), [_ints(-1, 0, 2)], {"axis": -2}, 1),
    ("Gather", (5, 3), [np.array(-2, I64)], {"axis": 1}, 1),
    ("Gather", (5, 3), [np.zeros((0, 2), I64)], {}, 1),
    ("GatherElements", (3, 4), [np.array([[0, -1], [2, 1], [3, -4]], I64)], {"axis": 1}, 1),
    ("GatherND", (3, 4, 2), [np.array([[0, 1], [-1, -2]], I64)], {}, 1),
    ("Pad", (3, 4), [_ints(1, 0, 2, 3)], {}, 1),
    ("Pad", (3, 4), [_ints(0, 2, 0, 1)], {"mode": "reflect"}, 1),
    ("Pad", (0, 2), [_ints(1, 0, 1, 0)], {}, 1),
    ("DepthToSpace", (1, 8, 2, 3), [], {"blocksize": 2, "mode": "CRD"}, 1),
    ("SpaceToDepth", (1, 2, 4, 6), [], {"blocksize": 2}, 1),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_, np.uint8])
@pytest.mark.parametrize(
    ("op", "shape", "rest", "attributes", "outputs"), MOVES, ids=lambda v: v if isinstance(v, str) else None
)
def test_movement(op: str, shape: Any, rest: list[Any], attributes: dict[str, Any], outputs: int, dtype: Any) -> None:
    if dtype is np.bool_ and (op == "Pad" and attributes):
        pytest.skip("numpy cannot")
    x = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    parts = [r.astype(dtype) if op == "Concat" else r for r in rest]
    constants = range(1, 1 + len(parts)) if op != "Concat" else ()
    _check(op, [x, *parts], outputs, constants=constants, **attributes)


def test_negative_pads_cut() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    [got], _ = _run("Pad", [x, _ints(-1, 1, 0, -2)], constants=[1])
    np.testing.assert_array_equal(got, np.pad(x[1:, :2], [(0, 0), (1, 0)]))


def test_indices_at_run_time(rng: np.random.Generator) -> None:
    _check("Gather", [_normal(rng, (5, 3), np.float32), np.array([[0, -1], [-5, 4]], np.int32)])


# ---- reductions and normalisations


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceSumSquare",
                                "ReduceLogSumExp"])  # fmt: skip
def test_reductions(rng: np.random.Generator, op: str, dtype: Any) -> None:
    for shape, axes, keep in [
        ((3, 5, 7), [-1], 1),
        ((3, 5, 7), [0, 2], 0),
        ((3, 1, 2), None, 1),
        ((4,), [0], 0),
        ((), None, 0),
    ]:
        if shape == () and op == "ReduceLogSumExp":  # the reference cannot
            continue
        x = _normal(rng, shape, dtype)
        extra = [] if axes is None else [np.array(axes, I64)]
        _check(
            op,
            [x, *extra],
            constants=range(1, 1 + len(extra)),
            keepdims=keep,
            rtol=1e-2 if dtype == np.float16 else 1e-4,
        )


@pytest.mark.parametrize(
    ("op", "value"), [("ReduceSum", 0.0), ("ReduceProd", 1.0), ("ReduceL1", 0.0), ("ReduceMax", -np.inf)]
)
def test_reductions_of_nothing(op: str, value: float) -> None:
    [got], _ = _run(op, [np.zeros((2, 0, 3), np.float32), np.array([1], I64)], constants=[1], opset=20)
    np.testing.assert_array_equal(got, np.full((2, 1, 3), value))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_means_of_large_whole_numbers_are_exact(rng: np.random.Generator, dtype: Any) -> None:
    """The sum may be none of the type; what is left over is cut towards 0."""
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, (40, 3), dtype=dtype, endpoint=True)
    x[0], x[1] = [info.max] * 3, [-4 if info.min else 4, 3, 3]  # the rows of sizes near 0 have parts of both signs
    for rows in ([0, 0, 0], [1, 1, 0], list(range(40)), *([k, k + 1] for k in range(0, 30, 2))):
        values = x[rows]
        wanted = [int(abs(t) // len(rows)) * (1 if t > 0 else -1) for t in (sum(map(int, c)) for c in values.T)]
        [got], _ = _run("ReduceMean", [values, np.array([0], I64)], constants=[1], keepdims=0)
        assert got.tolist() == wanted


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean"])
def test_reductions_keep_nan(op: str) -> None:
    x = np.array([[1, np.nan, 3], [np.inf, 1, 2], [-np.inf, 0, 1]], np.float32)
    _check(op, [x, np.array([1], I64)], constants=[1])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((3, 5), -1), ((3, 5), 0), ((2, 3, 4), 1), ((1, 1), 1), ((2, 1000), -1), ((0, 3), -1), ((3,), 0)],
)
def test_softmax(rng: np.random.Generator, shape: Any, axis: int, dtype: Any) -> None:
    x = (_normal(rng, shape, np.float32) * 5).astype(dtype)
    wide = x.astype(np.float64)
    for op in ("Softmax", "LogSoftmax"):
        [got], _ = _run(op, [x], axis=axis)
        shifted = wide - wide.max(axis, keepdims=True) if wide.size else wide
        log = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
        assert got.dtype == dtype and got.shape == x.shape
        tolerance = 2e-3 if dtype == np.float16 else 1e-5
        np.testing.assert_allclose(
            got.astype(np.float64), log if op == "LogSoftmax" else np.exp(log), tolerance, tolerance
        )


def test_softmax_of_large_values() -> None:
    x = np.array([[1e30, 1e30, 0], [-np.inf, 0, 0], [1000, 0, -1000]], np.float32)
    _check("Softmax", [x])


@pytest.mark.parametrize("constants", [(), (1, 2, 3, 4)])
def test_batch_norm_of_one_axis_has_one_channel(constants: tuple[int, ...]) -> None:
    parts = [np.array([value], np.float32) for value in (2.0, 0.5, 1.0, 3.0)]
    _check("BatchNormalization", [np.arange(5, dtype=np.float32), *parts], constants=constants)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [-1, 1, -2])
def test_layer_norm(rng: np.random.Generator, axis: int, dtype: Any) -> None:
    x = _normal(rng, (3, 5, 7), dtype)
    scale, bias = (_normal(rng, x.shape[axis:], dtype) for _ in range(2))
    _check("LayerNormalization", [x, scale, bias], axis=axis, rtol=1e-2 if dtype == np.float16 else 1e-4)


# ---- products and windows

PRODUCTS = [((3, 5), (5, 7)), ((5,), (5, 7)), ((3, 5), (5,)), ((5,), (5,)), ((2, 3, 5), (5, 7)), ((17, 33), (33, 65))]
PRODUCTS += [((2, 1, 3, 5), (4, 5, 7)), ((3, 0), (0, 4)), ((0, 3), (3, 4)), ((1, 1), (1, 1))]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("a", "b"), PRODUCTS)
def test_matmul(rng: np.random.Generator, a: Any, b: Any, dtype: Any) -> None:
    x, y = _normal(rng, a, dtype), _normal(rng, b, dtype)
    for constants in ((), (1,)):
        _check("MatMul", [x, y], constants=constants, rtol=1e-2 if dtype == np.float16 else 1e-4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "attributes", [{}, {"transA": 1}, {"transB": 1, "alpha": 0.5}, {"transA": 1, "transB": 1, "beta": 2.0}]
)
def test_gemm(rng: np.random.Generator, attributes: dict[str, Any], dtype: Any) -> None:
    x = _normal(rng, (5, 3) if attributes.get("transA") else (3, 5), dtype)
    y = _normal(rng, (7, 5) if attributes.get("transB") else (5, 7), dtype)
    for c in (None, (3, 7), (7,), (3, 1), ()):
        extra = [] if c is None else [_normal(rng, c, dtype)]
        _check("Gemm", [x, y, *extra], rtol=1e-2 if dtype == np.float16 else 1e-4, **attributes)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((1, 3, 7, 5), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((2, 4, 7, 7), (4, 1, 3, 3), {"group": 4, "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((1, 4, 6, 6), (6, 2, 1, 1), {"group": 2}),
        ((1, 2, 9, 8), (3, 2, 3, 2), {"dilations": [2, 3], "pads": [0, 1, 2, 0]}),
        ((1, 2, 9), (3, 2, 4), {"strides": [3]}),
    ],
    ids=["padded", "depthwise", "grouped", "dilated", "1d"],
)
def test_conv(rng: np.random.Generator, x: Any, w: Any, attributes: dict[str, Any], dtype: Any) -> None:
    inputs = [_normal(rng, x, dtype), _normal(rng, w, dtype), _normal(rng, (w[0],), dtype)]
    for constants in ((1, 2), ()):
        _check("Conv", inputs, constants=constants, rtol=1e-2 if dtype == np.float16 else 1e-4, **attributes)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("attributes", [{"pads": [1, 1, 1, 1]}, {"strides": [2, 3]}])
def test_pools(rng: np.random.Generator, op: str, attributes: dict[str, Any], dtype: Any) -> None:
    _check(op, [_normal(rng, (2, 3, 7, 8), dtype)], kernel_shape=[3, 2], **attributes)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pools(rng: np.random.Generator, op: str) -> None:
    _check(op, [_normal(rng, (2, 3, 5, 7), np.float32)])
    _check(op, [_normal(rng, (1, 2, 1, 1), np.float16)])


def test_a_function_body_that_mixes_float_types_is_lowered() -> None:
    """MeanVarianceNormalization's has float32 constants whatever the input's type is."""
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float16)
    [got] = on_vulkan(model_of("MeanVarianceNormalization", {"x": x}), {"x": x})
    wide = x.astype(np.float64)
    expected = (wide - wide.mean((0, 2, 3), keepdims=True)) / (wide.std((0, 2, 3), keepdims=True) + 1e-9)
    np.testing.assert_allclose(got, expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("dtype", ["float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_nan_and_infinity_in_8_bits(dtype: str) -> None:
    x = np.array([0, 1, np.inf, -np.inf, np.nan, -2], np.float32).astype(getattr(ml_dtypes, dtype))
    for op_type, expected in (("IsNaN", np.isnan), ("IsInf", np.isinf)):
        (got,) = on_vulkan(model_of(op_type, {"x": x}, opset=21), {"x": x})
        np.testing.assert_array_equal(got, expected(x.astype(np.float32)))
