"""Resize against onnx's reference evaluator (float64), over modes, coordinates and ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, Tensor
from tests.session.models import reference
from vkep.errors import Decline, InvalidNode
from vkep.kernels.images.resize import COORDINATES, NEAREST_MODES, ResizeMode, ResizeProblem
from vkep.kernels.select import choose


def expected(x: np.ndarray, scales: list[float], mode: ResizeMode, roi: list[float] | None) -> np.ndarray:
    """ONNX Resize 19 of x as float64 by scales. For align_corners it gets the sizes that the scales give: releases of onnx before
    1.24 take the fraction of an element for a part of the axis."""
    by_sizes = mode.coordinates == "align_corners"
    node = helper.make_node(
        "Resize",
        ["x", "roi" if roi else "", *(["", "scales"] if by_sizes else ["scales"])],
        ["y"],
        mode=mode.mode,
        coordinate_transformation_mode=mode.coordinates,
        nearest_mode=mode.nearest,
        cubic_coeff_a=mode.cubic_a,
        exclude_outside=int(mode.exclude_outside),
        antialias=int(mode.antialias),
        extrapolation_value=mode.extrapolation,
    )
    inputs = [helper.make_tensor_value_info("x", TensorProto.DOUBLE, x.shape)]
    inputs += [helper.make_tensor_value_info("roi", TensorProto.DOUBLE, [2 * x.ndim])] if roi else []
    kind = TensorProto.INT64 if by_sizes else TensorProto.FLOAT
    inputs += [helper.make_tensor_value_info("scales", kind, [x.ndim])]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)])
    model = helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)])
    exact = np.array(scales, np.float32)
    feeds = {"x": x.astype(np.float64), "scales": (exact * x.shape).astype(np.int64) if by_sizes else exact}
    if roi:
        feeds["roi"] = np.array(roi)
    return reference(model, feeds)[0]


def run(
    gpu: Harness,
    caps: DeviceCapabilities,
    x: np.ndarray,
    scales: list[float],
    mode: ResizeMode,
    roi: list[float] | None = None,
) -> np.ndarray:
    exact = tuple(float(np.float32(s)) for s in scales)
    out_shape = tuple(int(n * s) for n, s in zip(x.shape, exact, strict=True))
    y = Tensor.empty(out_shape, x.dtype)
    box = None if roi is None else tuple(roi)
    gpu.compute(ResizeProblem(x.shape, out_shape, ratios(exact), mode, x.dtype.name, box), caps, [Tensor(x)], [y])
    return y.array


def ratios(scales: Iterable[float]) -> tuple[tuple[int, int], ...]:
    return tuple(scale.as_integer_ratio() for scale in scales)


SCALES = [[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 0.6, 1.7], [1.0, 1.0, 2.5, 1.0], [1.0, 1.0, 0.4, 0.51]]


@pytest.mark.parametrize("coordinates", [c for c in COORDINATES if not c.startswith("tf_")])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_coordinate_modes(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, mode: str, coordinates: str
) -> None:
    x = rng.normal(size=(2, 3, 7, 9)).astype(np.float32)
    for scales in SCALES:
        attributes = ResizeMode(mode, coordinates)
        want = expected(x, scales, attributes, None)
        np.testing.assert_allclose(run(gpu, caps, x, scales, attributes), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("nearest", [m for m in NEAREST_MODES if m != "outwards"])  # ONNX Runtime's: tests/ops
def test_nearest_modes(gpu: Harness, caps: DeviceCapabilities, nearest: str) -> None:
    x = np.arange(48, dtype=np.float32).reshape(1, 1, 6, 8)
    for coordinates, scales in itertools.product(("half_pixel", "asymmetric", "align_corners"), SCALES):
        attributes = ResizeMode("nearest", coordinates, nearest)
        np.testing.assert_array_equal(run(gpu, caps, x, scales, attributes), expected(x, scales, attributes, None))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias_and_exclude_outside(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, mode: str
) -> None:
    x = rng.normal(size=(1, 2, 12, 10)).astype(np.float32)
    for antialias, exclude, a in ((True, False, -0.5), (False, True, -0.75), (True, True, -0.75)):
        for scales in SCALES:
            attributes = ResizeMode(mode, antialias=antialias, exclude_outside=exclude, cubic_a=a)
            want = expected(x, scales, attributes, None)
            np.testing.assert_allclose(run(gpu, caps, x, scales, attributes), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crop_and_resize_extrapolates(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, mode: str
) -> None:
    x = rng.normal(size=(1, 1, 6, 7)).astype(np.float32)
    roi = [0.0, 0.0, 0.3, -0.2, 1.0, 1.0, 0.8, 1.3]
    attributes = ResizeMode(mode, "tf_crop_and_resize", extrapolation=10.5)
    want = expected(x, [1.0, 1.0, 1.5, 2.0], attributes, roi)
    assert (want == 10.5).any()
    got = run(gpu, caps, x, [1.0, 1.0, 1.5, 2.0], attributes, roi)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_other_ranks_and_types(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator) -> None:
    linear = ResizeMode("linear")
    for shape, scales in [((9,), [1.7]), ((3, 4, 5, 2, 3), [1.0, 2.0, 0.5, 1.5, 1.0])]:
        x = rng.normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(run(gpu, caps, x, scales, linear), expected(x, scales, linear, None), atol=1e-5)
    x = rng.normal(size=(1, 2, 5, 5)).astype(np.float16)
    got = run(gpu, caps, x, [1.0, 1.0, 2.0, 1.4], linear)
    np.testing.assert_allclose(got, expected(x, [1.0, 1.0, 2.0, 1.4], linear, None), rtol=1e-3, atol=1e-3)
    pixels = rng.integers(0, 256, (1, 1, 6, 6)).astype(np.uint8)
    cubic = ResizeMode("cubic")  # overshoots: clamped to the type's range
    want = np.trunc(np.clip(expected(pixels, [1.0, 1.0, 3.0, 3.0], cubic, None), 0, 255))
    got = run(gpu, caps, pixels, [1.0, 1.0, 3.0, 3.0], cubic).astype(np.float64)
    assert np.abs(got - want).max() <= 1  # truncation turns a last-digit difference into one
    assert (got != want).mean() < 0.05
    for dtype in ("int8", "int64", "bool"):
        x = rng.integers(0, 2, (2, 3, 4)).astype(dtype)
        nearest = ResizeMode()
        np.testing.assert_array_equal(
            run(gpu, caps, x, [1.0, 2.0, 1.5], nearest), expected(x, [1.0, 2.0, 1.5], nearest, None)
        )


def test_the_table_of_kernels(caps: DeviceCapabilities) -> None:
    for mode, scales, chosen in [
        (ResizeMode(), (1.0, 2.0), "nearest"),
        (ResizeMode("cubic"), (1.0, 2.0), "axis by axis"),
    ]:
        out = tuple(int(n * s) for n, s in zip((2, 3), scales, strict=True))
        assert choose(ResizeProblem((2, 3), out, ratios(scales), mode, "float32"), caps).candidate.name == chosen
    linear = ResizeMode("linear")
    with pytest.raises(Decline, match="has no kernel"):
        choose(ResizeProblem((2,), (4,), ratios((2.0,)), linear, "int64"), caps)
    with pytest.raises(Decline, match="10 dimensions"):
        choose(ResizeProblem((2, 3) * 5, (4, 3) * 5, ratios((2.0, 1.0) * 5), ResizeMode(), "float32"), caps)
    between = ResizeProblem((1, 2**15, 2**15), (1, 2**15, 2**15), ratios((1.0, 0.9, 1.5)), linear, "float32")
    assert choose(between, caps).candidate.name == "axis by axis"
    grown = ResizeProblem((2**10, 2**20), (2**20, 2**10), ratios((0.9, 2.0**-10)), linear, "float32")
    assert choose(grown, caps).candidate.name == "axis by axis"
    grown = ResizeProblem((2**10, 2**20), (2**20, 2**10), ratios((2.0**-11, 2.0**-10)), linear, "float32")
    with pytest.raises(Decline, match="between two axes"):
        choose(grown, caps)


def test_wrong_arguments() -> None:
    with pytest.raises(InvalidNode, match="mode is 'quadratic'"):
        ResizeMode("quadratic")
    with pytest.raises(InvalidNode, match="differ in rank"):
        ResizeProblem((2, 3), (2,), ratios((1.0, 1.0)), ResizeMode(), "float32")
    mode = ResizeMode("linear", "tf_crop_and_resize")
    for roi in (None, (0.0,)):
        with pytest.raises(InvalidNode, match="needs a roi of 2 numbers"):
            ResizeProblem((2,), (4,), ratios((2.0,)), mode, "float32", roi)
    with pytest.raises(InvalidNode, match="the input is empty"):
        ResizeProblem((2, 0), (4, 1), ratios((2.0, 1.0)), ResizeMode(), "float32")
    assert 0 in ResizeProblem((2, 0), (4, 0), ratios((2.0, 1.0)), ResizeMode(), "float32").out_shape
