"""Random shapes, axes, element types and values for each family of operators, against numpy in float64 and integers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.ops.cases import by_onnxruntime, by_reference, model_of, on_vulkan

pytestmark = pytest.mark.usefixtures("vulkan")
Array = np.ndarray[Any, Any]

#: a new expression is a new shader, so examples are few; shapes and values select none
FEW = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
FLOATS = st.sampled_from([np.float32, np.float16])
INTS: st.SearchStrategy[type[np.integer[Any]]] = st.sampled_from(
    [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
)


def _floats(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, width=16, allow_subnormal=False)


def _run(
    op_type: str, inputs: dict[str, Array], constants: tuple[str, ...] = (), opset: int = 28, **rest: Any
) -> Array:
    model = model_of(op_type, inputs, outputs=("out",), constants=constants, opset=opset, **rest)
    return on_vulkan(model, inputs)[0]


def _near(got: Array, exact: Array, dtype: Any, ulps: float = 4, floor: float = 1e-6) -> None:
    """Within some units in the last place of the type, or ``floor`` where values cancel."""
    assert got.dtype == dtype
    assert got.shape == exact.shape
    with np.errstate(all="ignore"):
        bound = exact.astype(dtype).astype(np.float64)  # overflow to infinity as the type does
        size = np.where(np.isfinite(bound), np.abs(bound), 0)
        allowed = np.maximum(ulps * np.finfo(dtype).eps * size, max(floor, float(np.finfo(dtype).tiny)))
        error = np.abs(got.astype(np.float64) - bound)
    same = (got.astype(np.float64) == bound) | (np.isnan(got) & np.isnan(bound)) | (error <= allowed)
    assert same.all(), (got[~same][:4], bound[~same][:4])


UNARY: dict[str, tuple[Callable[[Array], Array], float, float]] = {
    "Acosh": (np.arccosh, 1, 100),
    "Asinh": (np.arcsinh, -100, 100),
    "Atanh": (np.arctanh, -0.9375, 0.9375),
    "Ceil": (np.ceil, -100, 100),
    "Exp": (np.exp, -10, 10),
    "Log": (np.log, 0.0078125, 1000),
    "Round": (np.round, -100, 100),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), -20, 20),
    "Sinh": (np.sinh, -8, 8),
    "Softplus": (lambda x: np.logaddexp(x, 0), -10, 30),
    "Sqrt": (np.sqrt, 0, 1000),
    "Tanh": (np.tanh, -10, 10),
}


@pytest.mark.parametrize("op_type", UNARY)
@FEW
@given(data=st.data())
def test_unary(op_type: str, data: st.DataObject) -> None:
    exact, low, high = UNARY[op_type]
    dtype = data.draw(FLOATS)
    x = data.draw(hnp.arrays(dtype, SHAPES, elements=_floats(low, high)))
    _near(_run(op_type, {"x": x}), exact(x.astype(np.float64)), dtype, ulps=64 if dtype is np.float32 else 4)


@FEW
@given(data=st.data())
def test_double_exp_and_log(data: st.DataObject) -> None:
    x = data.draw(hnp.arrays(np.float64, SHAPES, elements=st.floats(-745, 709)))
    with np.errstate(under="ignore"):
        np.testing.assert_allclose(_run("Exp", {"x": x}), np.exp(x), rtol=1e-14, atol=1e-300)
    y = np.abs(x) + 1e-300
    np.testing.assert_allclose(_run("Log", {"x": y}), np.log(y), rtol=1e-14, atol=1e-16)


BINARY: dict[str, Callable[[Array, Array], Array]] = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum,
                                                      "Min": np.minimum}  # fmt: skip


@pytest.mark.parametrize("op_type", BINARY)
@FEW
@given(data=st.data())
def test_integers_wrap_and_broadcast(op_type: str, data: st.DataObject) -> None:
    dtype = data.draw(INTS)
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4, min_side=0)).input_shapes
    x, y = (data.draw(hnp.arrays(dtype, shape)) for shape in shapes)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(_run(op_type, {"x": x, "y": y}), BINARY[op_type](x, y), strict=True)


@FEW
@given(data=st.data())
def test_division_and_remainder_signs(data: st.DataObject) -> None:
    dtype = data.draw(INTS)
    bits = np.iinfo(dtype)
    elements = st.integers(int(bits.min) + 1 if bits.min else 0, int(bits.max))
    shape = data.draw(hnp.array_shapes(max_dims=2, max_side=6))
    x = data.draw(hnp.arrays(dtype, shape, elements=elements))
    y = data.draw(hnp.arrays(dtype, shape, elements=elements.filter(bool)))
    truncated = np.array([int(abs(int(a)) // abs(int(c))) * (1 if (a < 0) == (c < 0) else -1)
                          for a, c in zip(x.ravel(), y.ravel(), strict=True)], dtype).reshape(shape)  # fmt: skip
    np.testing.assert_array_equal(_run("Div", {"x": x, "y": y}), truncated, strict=True)
    np.testing.assert_array_equal(_run("Mod", {"x": x, "y": y}), np.mod(x, y), strict=True)
    np.testing.assert_array_equal(_run("Mod", {"x": x, "y": y}, fmod=1), np.fmod(x, y), strict=True)


@FEW
@given(data=st.data())
def test_shifts_beyond_the_type(data: st.DataObject) -> None:
    dtype = data.draw(INTS)
    bits = 8 * np.dtype(dtype).itemsize
    x = data.draw(hnp.arrays(dtype, 8))
    y = data.draw(
        hnp.arrays(dtype, 8, elements=st.integers(0 if np.dtype(dtype).kind == "u" else -3, min(bits + 3, 100)))
    )
    for direction in ("LEFT", "RIGHT"):
        exact = []
        for a, n in zip(x.tolist(), y.tolist(), strict=True):
            if direction == "RIGHT":
                exact.append(a >> n if 0 <= n < bits else (-1 if a < 0 else 0))
            else:
                exact.append(a << n if 0 <= n < bits else 0)
        wrapped = np.array([v & ((1 << bits) - 1) for v in exact], np.uint64).astype(f"u{bits // 8}").view(dtype)
        np.testing.assert_array_equal(_run("BitShift", {"x": x, "y": y}, direction=direction), wrapped, strict=True)


@FEW
@given(x=hnp.arrays(np.int32, 6, elements=st.integers(-9, 9)), y=hnp.arrays(np.int32, 6, elements=st.integers(0, 9)))
def test_whole_powers_are_exact(x: Array, y: Array) -> None:
    np.testing.assert_array_equal(_run("Pow", {"x": x, "y": y}), x**y)


@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_nan_wins(op_type: str) -> None:
    x, y = np.array([np.nan, 1, np.nan, -0.0], np.float32), np.array([1, np.nan, np.nan, 3], np.float32)
    np.testing.assert_array_equal(_run(op_type, {"x": x, "y": y}), BINARY[op_type](x, y))


REDUCED: dict[str, Callable[..., Array]] = {
    "ReduceSum": np.sum,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceMean": np.mean,
    "ReduceL1": lambda x, **k: np.sum(np.abs(x), **k),
    "ReduceL2": lambda x, **k: np.sqrt(np.sum(x * x, **k)),
    "ReduceLogSumExp": lambda x, **k: np.log(np.sum(np.exp(x), **k)),
    "ReduceSumSquare": lambda x, **k: np.sum(x * x, **k),
}


@pytest.mark.parametrize("op_type", REDUCED)
@FEW
@given(data=st.data())
def test_reductions(op_type: str, data: st.DataObject) -> None:
    x = data.draw(hnp.arrays(np.float32, hnp.array_shapes(max_dims=4, max_side=6), elements=_floats(-8, 8)))
    axes = data.draw(st.lists(st.integers(-x.ndim, x.ndim - 1), unique_by=lambda a: a % x.ndim, min_size=1))
    keepdims = data.draw(st.booleans())
    got = _run(op_type, {"x": x, "axes": np.array(axes, np.int64)}, ("axes",), keepdims=int(keepdims))
    exact = REDUCED[op_type](x.astype(np.float64), axis=tuple(axes), keepdims=keepdims)
    _near(got, np.asarray(exact), np.float32, ulps=64, floor=1e-4)


@FEW
@given(data=st.data())
def test_running_sums_and_products(data: st.DataObject) -> None:
    x = data.draw(hnp.arrays(np.int32, hnp.array_shapes(max_dims=3, max_side=6), elements=st.integers(-3, 3)))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    exclusive, reverse = data.draw(st.booleans()), data.draw(st.booleans())
    for op_type, scan, identity in (("CumSum", np.cumsum, 0), ("CumProd", np.cumprod, 1)):
        given_ = {"x": x, "axis": np.array(axis, np.int64)}
        got = _run(op_type, given_, ("axis",), exclusive=int(exclusive), reverse=int(reverse))
        turned = np.flip(x, axis) if reverse else x
        exact = scan(turned, axis=axis, dtype=np.int32)
        if exclusive:
            before = exact.take(range(x.shape[axis] - 1), axis)
            exact = np.concatenate([np.full_like(exact.take([0], axis), identity), before], axis)
        np.testing.assert_array_equal(got, np.flip(exact, axis) if reverse else exact)


@FEW
@given(data=st.data())
def test_slices_with_steps(data: st.DataObject) -> None:
    x = data.draw(hnp.arrays(np.int16, hnp.array_shapes(max_dims=3, max_side=6)))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    start, end = data.draw(st.integers(-9, 9)), data.draw(st.integers(-9, 9))
    step = data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))
    values = {"x": x} | {
        n: np.array([v], np.int64) for n, v in zip(("s", "e", "a", "t"), (start, end, axis, step), strict=True)
    }
    size = x.shape[axis]
    # ONNX clamps where Python's slice means "the end": a negative index below -size is the front
    begin = start + size if start < 0 else start
    stop = end + size if end < 0 else end
    begin = min(max(begin, 0), size if step > 0 else size - 1)
    stop = min(max(stop, 0 if step > 0 else -1), size)
    expected = x.take(range(begin, stop, step), axis)
    np.testing.assert_array_equal(_run("Slice", values, ("s", "e", "a", "t")), expected, strict=True)


@FEW
@given(data=st.data())
def test_positions_that_are_not_zero(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.int64, np.bool_]))
    x = data.draw(hnp.arrays(dtype, hnp.array_shapes(max_dims=3, max_side=6), elements=st.sampled_from([0, 0, 1])))
    np.testing.assert_array_equal(_run("NonZero", {"x": x}), np.array(np.nonzero(x)), strict=True)


def _casted(x: Array, name: str) -> Array:
    import ml_dtypes

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x.astype(getattr(ml_dtypes, name))


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn"]
)
@FEW
@given(x=hnp.arrays(np.float32, 32, elements=st.floats(-240, 240, width=32)))
def test_narrow_floats_round_as_ml_dtypes(name: str, x: Array) -> None:
    from vkep.dtypes import DTYPES

    small = np.clip(x, -6, 6) if name.startswith("float4") else x
    got = _run("Cast", {"x": small}, to=DTYPES[name].onnx)
    np.testing.assert_array_equal(got.view(np.uint8), _casted(small, name).view(np.uint8))
    back = _run("Cast", {"x": got}, to=DTYPES["float32"].onnx)
    np.testing.assert_array_equal(back, _casted(small, name).astype(np.float32))


@pytest.mark.parametrize(("op_type", "attributes"), [("RandomUniform", {"low": -1.0, "high": 3.0}),
                                                     ("RandomNormal", {"mean": 2.0, "scale": 0.5})])  # fmt: skip
def test_random_numbers_have_their_distribution(op_type: str, attributes: dict[str, Any]) -> None:
    count = 1 << 16
    first = _run(op_type, {}, shape=[count], seed=7.0, **attributes)
    again = _run(op_type, {}, shape=[count], seed=7.0, **attributes)
    other = _run(op_type, {}, shape=[count], seed=8.0, **attributes)
    np.testing.assert_array_equal(first, again)
    assert np.mean(first == other) < 0.01
    if op_type == "RandomUniform":
        mean, deviation = 1.0, 4 / np.sqrt(12)
        assert first.min() >= -1
        assert first.max() < 3
        assert np.histogram(first, 16, (-1, 3))[0].std() < 4 * np.sqrt(count / 16)
    else:
        mean, deviation = 2.0, 0.5
        assert abs(np.mean(np.abs(first - mean) < deviation) - 0.6827) < 0.01
        assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.02
    assert abs(first.mean() - mean) < 5 * deviation / np.sqrt(count)
    assert abs(first.std() - deviation) < 0.02 * deviation


def test_bernoulli_follows_its_probabilities() -> None:
    chance = np.repeat(np.array([0, 0.25, 0.9, 1], np.float32), 1 << 14).reshape(4, -1)
    got = _run("Bernoulli", {"x": chance}, seed=3.0)
    assert set(np.unique(got)) <= {0.0, 1.0}
    np.testing.assert_allclose(got.mean(axis=1), [0, 0.25, 0.9, 1], atol=0.02)


@FEW
@given(data=st.data())
def test_unique_values(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.int32, np.uint8]))
    x = data.draw(hnp.arrays(dtype, hnp.array_shapes(max_dims=2, max_side=7), elements=st.integers(0, 4)))
    model = model_of("Unique", {"x": x}, outputs=("y", "first", "inverse", "counts"), opset=20)
    got = on_vulkan(model, {"x": x})
    expected = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs.reshape(-1))
    by_occurrence = on_vulkan(model_of("Unique", {"x": x}, outputs=("y",), opset=20, sorted=0), {"x": x})[0]
    np.testing.assert_array_equal(by_occurrence, x.reshape(-1)[np.sort(expected[1])])


@FEW
@given(data=st.data())
def test_overlapping_boxes_are_suppressed(data: st.DataObject) -> None:
    batches, classes, boxes = data.draw(st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 90)))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 16)))
    corner = rng.uniform(0, 4, (batches, boxes, 2))
    values: dict[str, Array] = {
        "boxes": np.concatenate([corner, corner + rng.uniform(0.5, 3, corner.shape)], 2).astype(np.float32),
        "scores": rng.permutation(batches * classes * boxes).reshape(batches, classes, boxes).astype(np.float32),
        "most": np.array(data.draw(st.integers(0, 12)), np.int64),
        "overlap": np.array(data.draw(st.sampled_from([0.0, 0.3, 0.7])), np.float32),
        "least": np.array(5, np.float32),
    }
    model = model_of("NonMaxSuppression", values, outputs=("y",), opset=11)
    np.testing.assert_array_equal(on_vulkan(model, values)[0], by_onnxruntime(model, values)[0])


@FEW
@given(data=st.data())
def test_sequences_reverse_and_compress(data: st.DataObject) -> None:
    x = data.draw(hnp.arrays(np.float16, hnp.array_shapes(min_dims=2, max_dims=3, max_side=6), elements=_floats(-9, 9)))
    lengths = data.draw(hnp.arrays(np.int64, x.shape[1], elements=st.integers(1, x.shape[0])))
    expected = x.copy()
    for column, length in enumerate(lengths):
        expected[:length, column] = x[:length, column][::-1]
    np.testing.assert_array_equal(_run("ReverseSequence", {"x": x, "n": lengths}), expected, strict=True)
    keep = data.draw(hnp.arrays(np.bool_, x.shape[0]))
    np.testing.assert_array_equal(
        _run("Compress", {"x": x, "keep": keep}, axis=0), np.compress(keep, x, axis=0), strict=True
    )


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@FEW
@given(data=st.data())
def test_grid_sample(mode: str, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 16)))
    values = {
        "x": rng.normal(size=(2, 2, *data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5))))).astype(np.float32),
        "grid": rng.uniform(-1.6, 1.6, (2, 3, 4, 2)).astype(np.float32),
    }
    padding = data.draw(st.sampled_from(["zeros", "border", "reflection"]))
    align = data.draw(st.integers(0, 1))
    if align and 1 in values["x"].shape[2:] and padding == "reflection":
        return  # the reference divides by the reflection's period, which is 0
    model = model_of(
        "GridSample", values, outputs=("y",), opset=20, mode=mode, padding_mode=padding, align_corners=align
    )
    # beyond the border PyTorch and ONNX Runtime clamp each of cubic's taps, onnx's reference the place itself
    expected = by_onnxruntime if mode == "cubic" and padding == "border" else by_reference
    np.testing.assert_allclose(on_vulkan(model, values)[0], expected(model, values)[0], rtol=1e-3, atol=1e-3)
