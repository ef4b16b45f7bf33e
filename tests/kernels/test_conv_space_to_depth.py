"""Float16 convolutions of few channels: the widening of pixels, and what is computed on them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkep.kernels.conv.nhwc
from gpu_shared.capabilities import DeviceCapabilities
from tests.devices import GPU
from tests.kernels.harness import Harness, Tensor
from tests.kernels.test_conv_nhwc import convolved
from tests.kernels.test_cooperative import PureTarget, relative_error
from tests.lowering.test_channels_last import kernels_on_a_gpu
from vkep.errors import Decline
from vkep.kernels.conv.problem import TO_NHWC, ConvProblem
from vkep.kernels.conv.space_to_depth import WIDEN_PIXELS, WidePixels, wide_pixels, widen_taps
from vkep.kernels.matmul.cooperative_tiles import CooperativeTile, TileCost, float16_shape
from vkep.kernels.select import choose, emit


def few(p: ConvProblem) -> ConvProblem:
    return dataclasses.replace(p, layout=TO_NHWC, w_constant=True)


STEM = ConvProblem(2, 3, 23, 22, 16, 7, 7, stride=(2, 2), pads=(3, 3, 3, 3), dtype="float16", alignment=16)
FEW = [
    STEM,
    ConvProblem(1, 3, 15, 13, 16, 3, 3, stride=(2, 2), pads=(0, 0, 1, 1), dtype="float16", alignment=16),
    ConvProblem(2, 3, 9, 10, 8, 3, 3, pads=(1, 1, 1, 1), dtype="float16", alignment=16),
    ConvProblem(1, 1, 14, 14, 16, 5, 5, stride=(1, 4), pads=(2, 2, 2, 2), dtype="float16", alignment=16),
    ConvProblem(1, 3, 32, 32, 24, 16, 16, stride=(16, 16), dtype="float16", alignment=16),
    ConvProblem(1, 12, 9, 9, 16, 3, 3, stride=(2, 2), dilation=(1, 2), pads=(1, 2, 1, 2), dtype="float16", alignment=2),
    ConvProblem(1, 20, 6, 5, 8, 1, 1, stride=(2, 3), dtype="float16", alignment=16),
]


def widened(x: np.ndarray, wide: WidePixels, pad_left: int) -> np.ndarray:
    """[n, h, wide width, pixels * channels] of x [n, c, h, w]."""
    n, c, h, w = x.shape
    columns = wide.problem.w * wide.pixels
    out = np.zeros((n, h, columns, wide.channels), x.dtype)
    kept = min(w, columns - pad_left)
    out[:, :, pad_left : pad_left + kept, :c] = x.transpose(0, 2, 3, 1)[:, :, :kept]
    return out.reshape(n, h, wide.problem.w, wide.pixels * wide.channels)


@pytest.mark.parametrize("problem", FEW, ids=str)
def test_a_wide_convolution_is_the_convolution(problem: ConvProblem, rng: np.random.Generator) -> None:
    x = rng.standard_normal((problem.n, problem.c, problem.h, problem.w))
    w = rng.standard_normal((problem.oc, problem.c, problem.kh, problem.kw))
    wide = wide_pixels(problem)
    assert (wide.problem.oh, wide.problem.ow) == (problem.oh, problem.ow)
    assert wide.problem.c % 8 == 0
    found = convolved(widened(x, wide, problem.pads[1]), widen_taps(w, problem, wide), wide.problem)
    np.testing.assert_allclose(found, convolved(x.transpose(0, 2, 3, 1), w, problem), atol=1e-12)


@pytest.mark.parametrize(
    ("problem", "pixels", "channels", "columns"),
    [(FEW[0], 2, 4, 4), (FEW[2], 1, 8, 3), (FEW[3], 4, 2, 2), (FEW[4], 8, 3, 2), (FEW[5], 1, 16, 3)],
    ids=["stem", "stride 1", "one channel", "patches", "dilated"],
)
def test_space_to_depth_takes_as_many_pixels_as_save_work(
    problem: ConvProblem, pixels: int, channels: int, columns: int
) -> None:
    wide = wide_pixels(problem)
    assert (wide.pixels, wide.channels, wide.problem.kw) == (pixels, channels, columns)


@pytest.mark.parametrize("problem", FEW, ids=str)
def test_the_widening_kernel(problem: ConvProblem, gpu: Harness, rng: np.random.Generator) -> None:
    x = rng.standard_normal((problem.n, problem.c, problem.h, problem.w)).astype(np.float16)
    wide = wide_pixels(problem)
    caps = dataclasses.replace(GPU, max_workgroup_count=gpu.caps.max_workgroup_count)
    y = Tensor.empty((math.prod(widened(x, wide, 0).shape),), np.float16)

    class Target(PureTarget):
        def scratch(self, dtype: str, shape: tuple[int, ...]) -> Any:
            return y if shape == (wide.problem.n, wide.problem.h, wide.problem.w, wide.problem.c) else shape

    [widening, *_] = emit(few(problem), Target(caps), [Tensor(x), "w"], ["y"])
    assert wide.nbytes == y.array.nbytes
    gpu.run([widening])
    np.testing.assert_array_equal(y.array, widened(x, wide, problem.pads[1]).reshape(-1))


@pytest.fixture
def matrices(gpu: Harness, monkeypatch: pytest.MonkeyPatch) -> DeviceCapabilities:
    """The device; one on the CPU as a GPU with one small tile, which such a driver compiles in seconds."""
    if float16_shape(gpu.caps) is None:
        pytest.skip(f"{gpu.caps.name} lists no cooperative matrix of float16 with float32 sums")
    if gpu.caps.device_type != "cpu":
        return gpu.caps
    tiles = {CooperativeTile(32, 32, 64, 16, 16): TileCost(1.0)}
    monkeypatch.setattr(vkep.kernels.conv.nhwc, "CONV_LAST_TILES", tiles)
    return dataclasses.replace(gpu.caps, device_type="discrete")


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_values_that_are_not_finite_spread_by_one_pixel_at_most(
    value: float, gpu: Harness, matrices: DeviceCapabilities, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((STEM.n, STEM.c, STEM.h, STEM.w)).astype(np.float16)
    w = rng.standard_normal((STEM.oc, STEM.c, STEM.kh, STEM.kw)).astype(np.float16)
    x[0, 1, 6, 10] = value
    y = Tensor.empty((STEM.n, STEM.oh, STEM.ow, STEM.oc), np.float16)
    gpu.compute(few(STEM), matrices, [Tensor(x), Tensor(w)], [y], compare=False)  # the reference does not spread it
    rows = [oh for oh in range(STEM.oh) if 0 <= 6 - (2 * oh - 3) < 7]
    inside = [ow for ow in range(STEM.ow) if 0 <= 10 - (2 * ow - 3) < 7]
    beside = [ow for ow in range(STEM.ow) if 10 - (2 * ow - 3) == 7]  # the last wide pixel's other half
    reached = np.zeros(y.array.shape, bool)
    reached[0, rows[0] : rows[-1] + 1, min(inside + beside) : inside[-1] + 1] = True
    assert beside and not np.isfinite(y.array[reached]).any()
    assert np.isfinite(y.array[~reached]).all()


@pytest.mark.parametrize("problem", FEW, ids=str)
def test_results(problem: ConvProblem, gpu: Harness, matrices: DeviceCapabilities, rng: np.random.Generator) -> None:
    x = rng.standard_normal((problem.n, problem.c, problem.h, problem.w)).astype(np.float16)
    w = rng.standard_normal((problem.oc, problem.c, problem.kh, problem.kw)).astype(np.float16)
    shape = (problem.n, problem.oh, problem.ow, problem.oc)
    y = Tensor(Tensor.empty(shape, np.float16).array, offset=0 if problem.alignment == 16 else 2)
    gpu.compute(few(problem), matrices, [Tensor(x), Tensor(w)], [y])
    assert relative_error(y.array, convolved(x.transpose(0, 2, 3, 1), w, problem)) < 1e-3


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float32"},
        {"c": 16},
        {"oc": 15, "groups": 3},
        {"n": 0},
        {"h": 2**15, "w": 2**14, "oc": 8},
    ],
    ids=str,
)
def test_other_convolutions_are_not_taken(changes: dict[str, Any]) -> None:
    problem = dataclasses.replace(dataclasses.replace(STEM, n=1), **changes)
    assert choose(dataclasses.replace(few(problem), layout=""), GPU).candidate.layout != TO_NHWC
    with pytest.raises(Decline, match="its images lie as nchw to nhwc"):
        choose(few(problem), GPU)


def test_equal_weights_of_different_widenings_are_packed_apart() -> None:
    tags: list[str] = []
    for problem in (FEW[1], FEW[2]):
        _, product, *_ = emit(few(problem), PureTarget(GPU), ["x", "w"], ["y"])
        tags.append({o.name: t for o, t in product.operands}["w"])
    assert len(set(tags)) == 2


def test_a_model_goes_on_with_channels_last() -> None:
    weights = [
        numpy_helper.from_array(np.ones((32, 3, 7, 7), np.float16), "w0"),
        numpy_helper.from_array(np.ones((32, 32, 3, 3), np.float16), "w1"),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], strides=[2, 2], pads=[3, 3, 3, 3]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["y"]),
    ]
    half = TensorProto.FLOAT16
    graph = helper.make_graph(
        nodes,
        "stem",
        [helper.make_tensor_value_info("x", half, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("y", half, [1, 32, 1, 1])],
        weights,
    )
    opset = [helper.make_opsetid("", 21)]
    kernels = kernels_on_a_gpu(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10))
    assert kernels[WIDEN_PIXELS.source] == 1
    assert kernels["conv_last.comp"] == 2
    assert not kernels["pointwise.comp"] + kernels["pointwise_tile.comp"], f"no relayout, got {kernels}"
