"""Convolutions against a float64 numpy model, in both kernel families, and the choice of kernels without a device."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor
from tests.nightly import nightly_but
from vkep.errors import Decline
from vkep.kernels.conv import winograd
from vkep.kernels.conv.conv import ConvProblem, pack_weights
from vkep.kernels.conv.problem import NCHW
from vkep.kernels.epilogue import Epilogue
from vkep.kernels.kernel import KernelCall
from vkep.kernels.select import choose, emit
from vkep.kernels.tuning import Choice
from vkep.shaders.interface import Operand

CPU = DeviceCapabilities(
    "imagined CPU driver", device_type="cpu", subgroup_size=8, features=frozenset({"subgroup_ballot"})
)
GPU = DeviceCapabilities("imagined GPU", device_type="discrete", max_shared_memory_bytes=49152)
TOLERANCE = {"float32": 4e-6, "float16": 1e-3}


@pytest.fixture(params=["cpu", "discrete"])
def family(request: pytest.FixtureRequest, gpu: Harness) -> DeviceCapabilities:
    return dataclasses.replace(gpu.caps, device_type=request.param)


def problem(x: tuple[int, ...], oc: int, kernel: tuple[int, int] = (3, 3), **options: Any) -> ConvProblem:
    n, c, h, w = x
    return ConvProblem(n, c, h, w, oc, *kernel, **options)


def expected(p: ConvProblem, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x is [n, c, h, w], w is [oc, c / groups, kh, kw]; [n, oc, oh, ow] in float64."""
    top, left, bottom, right = p.pads
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    y = np.zeros((p.n, p.groups, p.oc // p.groups, p.oh, p.ow))
    weights = w.astype(np.float64).reshape(p.groups, p.oc // p.groups, p.c // p.groups, p.kh, p.kw)
    outs = (p.oh, p.ow)
    for taps in np.ndindex(p.kh, p.kw):
        window = tuple(
            slice(t * d, t * d + (out - 1) * s + 1, s)
            for t, d, s, out in zip(taps, p.dilation, p.stride, outs, strict=True)
        )
        part = x[(slice(None), slice(None), *window)].reshape(p.n, p.groups, p.c // p.groups, *outs)
        y += np.einsum("goc,ngchw->ngohw", weights[(..., *taps)], part, optimize=True)
    return y.reshape(p.n, p.oc, *outs)


def check(
    gpu: Harness,
    caps: DeviceCapabilities,
    p: ConvProblem,
    rng: np.random.Generator,
    *,
    fused: bool = False,
    constant: bool = True,
    tuned: dict[str, Choice] | None = None,
    **run_options: bool,
) -> list[str]:
    """Runs the problem and compares with numpy; the shaders that ran."""
    x = rng.standard_normal((p.n, p.c, p.h, p.w)).astype(p.dtype)
    w = rng.standard_normal((p.oc, p.c // p.groups, p.kh, p.kw)).astype(p.dtype)
    y = Tensor.empty((p.n, p.y_batch), p.dtype)
    untouched = y.array.copy()
    want = expected(p, x, w)
    epilogue = None
    if fused:
        bias, residual = (
            rng.standard_normal(p.oc).astype(np.float32),
            rng.standard_normal(want.shape).astype(np.float32),
        )
        epilogue = Epilogue(
            "v = max(v + E(operand(args.e0, EXTRA_BASE + 0u)).v[row] + E(operand(args.e1, EXTRA_BASE + 1u)).v[o], 0.0)"
            " + 0.25 * float(col);",
            "TENSOR(float, E)",
            ((Operand("e0"), Tensor(bias)), (Operand("e1"), Tensor(residual))),
        )
        pixels = np.arange(want[0, 0].size).reshape(want.shape[2:])
        want = np.maximum(want + bias[:, None, None] + residual, 0) + 0.25 * pixels
    p = dataclasses.replace(
        p, w_constant=constant, layout=p.layout or NCHW
    )  # as x and y lie here, whatever would be best
    calls = emit(p, NumpyWorkspace(caps, tuned or {}), [Tensor(x), Tensor(w)], [y], epilogue)
    gpu.run(calls, **run_options)
    size = p.oc * p.oh * p.ow
    got = y.array[:, :size].reshape(want.shape).astype(np.float64)
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error < TOLERANCE[p.dtype], f"relative error {error:.2g}"
    assert y.array[:, size:].tobytes() == untouched[:, size:].tobytes(), "wrote outside of the slice"
    return [call.variant.source for call in calls]


SHAPES = {
    "3x3": problem((1, 16, 12, 13), 40, pads=(1, 1, 1, 1)),
    "3x3 stride 2": problem((2, 16, 9, 11), 24, stride=(2, 2), pads=(1, 1, 1, 1)),
    "uneven everything": problem((1, 10, 17, 12), 20, (5, 3), stride=(1, 3), dilation=(2, 1), pads=(2, 0, 3, 4)),
    "1x1": problem((2, 33, 7, 7), 40, (1, 1)),
    "1x1 stride 2": problem((1, 16, 9, 9), 40, (1, 1), stride=(2, 2)),
    "1x1 of one pixel": problem((1, 64, 1, 1), 100, (1, 1)),
    "image 7x7": problem((1, 3, 23, 19), 16, (7, 7), stride=(2, 2), pads=(3, 3, 3, 3)),
    "image 3x3": problem((1, 4, 14, 14), 33, stride=(2, 2), pads=(1, 1, 1, 1)),
    "image 11x3": problem((1, 3, 15, 15), 16, (11, 3), pads=(5, 1, 5, 1)),
    "one dimension": problem((2, 12, 1, 50), 16, (1, 5), stride=(1, 2), pads=(0, 2, 0, 2)),
    "groups": problem((2, 32, 8, 8), 64, groups=4, pads=(1, 1, 1, 1)),
    "many small groups": problem((1, 16, 8, 8), 16, groups=8, pads=(1, 1, 1, 1)),
    "few output channels": problem((1, 16, 8, 8), 3, pads=(1, 1, 1, 1)),
    "depthwise": problem((2, 12, 10, 11), 12, groups=12, pads=(1, 1, 1, 1)),
    "depthwise stride 2": problem((1, 12, 11, 10), 12, groups=12, stride=(2, 2), pads=(0, 0, 1, 1)),
    "depthwise multiplier": problem((2, 6, 9, 9), 18, (5, 3), groups=6, dilation=(2, 2), pads=(3, 1, 4, 2)),
    "depthwise one row": problem((1, 9, 1, 30), 9, (1, 7), groups=9, pads=(0, 3, 0, 3)),
    "window of the padding only": problem((1, 8, 2, 2), 8, (2, 2), stride=(3, 3), pads=(2, 2, 2, 2)),
    "deep and small": problem((1, 300, 4, 4), 32, pads=(1, 1, 1, 1)),
    "slice of a larger tensor": problem((2, 9, 6, 6), 16, pads=(1, 1, 1, 1), y_batch_stride=16 * 36 + 77),
    "winograd": problem((1, 17, 16, 16), 40, pads=(1, 1, 1, 1)),
    "winograd uneven": problem((3, 20, 15, 29), 33, pads=(0, 2, 1, 0), y_batch_stride=33 * 14 * 29 + 5),
    "winograd deep": problem((1, 256, 12, 12), 16, pads=(1, 1, 1, 1)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str, gpu: Harness, family: DeviceCapabilities, rng: np.random.Generator) -> None:
    check(gpu, family, SHAPES[name], rng)
    check(gpu, family, SHAPES[name], rng, fused=True, constant=False)


@pytest.mark.parametrize(
    "name", ["3x3", "image 7x7", "depthwise", "many small groups", "deep and small", "winograd uneven"]
)
def test_float16(name: str, gpu: Harness, family: DeviceCapabilities, rng: np.random.Generator) -> None:
    check(gpu, family, dataclasses.replace(SHAPES[name], dtype="float16"), rng, fused=True)


@pytest.mark.parametrize("name", ["3x3", "depthwise", "few output channels", "deep and small", "winograd"])
def test_operands_through_slots(name: str, gpu: Harness, family: DeviceCapabilities, rng: np.random.Generator) -> None:
    check(gpu, family, SHAPES[name], rng, fused=True, indirect=True)


@pytest.mark.parametrize("name", ["3x3", "groups", "depthwise", "few output channels", "winograd uneven"])
def test_grids_folded_at_the_devices_limit(
    name: str, gpu: Harness, family: DeviceCapabilities, rng: np.random.Generator
) -> None:
    limited = dataclasses.replace(family, max_workgroup_count=(7, 65535, 65535))
    check(gpu, limited, SHAPES[name], rng, fused=True)


@pytest.mark.parametrize("family", nightly_but(("cpu",), ("cpu", "discrete")), indirect=True)
def test_images_beyond_the_devices_limit(gpu: Harness, family: DeviceCapabilities, rng: np.random.Generator) -> None:
    check(gpu, family, problem((70000, 1, 2, 2), 8, (2, 2)), rng)


def _tuned(p: ConvProblem, winograd_wins: bool) -> dict[str, tuple[int, ...]]:
    return {f"winograd {p.n} {p.c} {p.oc} {p.oh} {p.ow}": (int(winograd_wins),)}


@pytest.mark.parametrize("name", ["winograd", "winograd uneven", "winograd deep"])
def test_winograd_on_a_gpu(name: str, gpu: Harness, family: DeviceCapabilities, rng: np.random.Generator) -> None:
    """Chosen there for long convolutions only; here by a tuned choice."""
    check(gpu, family, SHAPES[name], rng, fused=True, tuned=_tuned(SHAPES[name], True))


#: in an image each: corners, borders of tiles, the last pixel of an uneven tile
_PIXELS = ((0, 0), (3, 4), (7, 7), (4, 11), (12, 3), (13, 12))


@pytest.mark.parametrize("background", ["values", "zeros"])
@pytest.mark.parametrize("value", [90.0, 1e3, 3e4, 1e8, 1e30, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.every_case
def test_winograd_keeps_an_outlier_in_its_windows(
    dtype: str, value: float, background: str, gpu: Harness, family: DeviceCapabilities, rng: np.random.Generator
) -> None:
    """A result whose window does not have the outlier is that of the other values."""
    if dtype == "float16" and (value not in (90.0, 1e3, 3e4, np.inf) or family.device_type != "cpu"):
        pytest.skip("no float16, or the direct sum on GPUs")
    p = problem((len(_PIXELS), 16, 14, 13), 20, pads=(1, 1, 1, 1), dtype=dtype, w_constant=True, layout=NCHW)
    x = rng.standard_normal((p.n, p.c, p.h, p.w)).astype(dtype) * (background == "values")
    w = (rng.standard_normal((p.oc, p.c, 3, 3)) / 12).astype(dtype)
    without = expected(p, x, w)
    seen = np.zeros(without.shape, bool)
    for image, (i, j) in enumerate(_PIXELS):
        x[image, 5, i, j] = value
        seen[image, :, max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2] = True
    y = Tensor.empty(without.shape, dtype)
    gpu.compute(p, family, [Tensor(x), Tensor(w)], [y], candidate="winograd")
    off = np.abs(y.array[~seen].astype(np.float64) - without[~seen])
    assert off.max() <= (TOLERANCE[dtype] * np.abs(without).max() * 4 if background == "values" else 0)
    with np.errstate(invalid="ignore"):
        want = expected(p, x, w)[seen]
    got = y.array[seen].astype(np.float64)
    if np.isfinite(value):
        assert np.abs(got - want).max() <= TOLERANCE[dtype] * np.abs(want).max()
    else:
        np.testing.assert_array_equal(got, want)


def test_padding_is_zero_whatever_surrounds_the_tensor(
    gpu: Harness, family: DeviceCapabilities, rng: np.random.Generator
) -> None:
    """An infinite input reaches exactly the outputs whose windows hold it, padding and tile edges included."""
    for groups in (1, 8):
        p = problem((1, 8, 6, 7), 8, groups=groups, pads=(1, 1, 1, 1))
        x, w = np.zeros((1, 8, 6, 7), np.float32), np.ones((8, 8 // groups, 3, 3), np.float32)
        x[0, :, 0, 0] = np.inf
        y = Tensor.empty((1, 8, 6, 7), np.float32)
        gpu.compute(p, family, [Tensor(x), Tensor(w)], [y])
        assert np.isposinf(y.array[0, :, :2, :2]).all()
        y.array[0, :, :2, :2] = 0
        assert (y.array == 0).all()


@pytest.mark.parametrize("shape", [(1, 16, 0, 5), (1, 0, 5, 5)], ids=str)
@pytest.mark.parametrize("groups", [1, 16])
def test_an_input_without_elements_is_padding(
    shape: tuple[int, ...], groups: int, gpu: Harness, family: DeviceCapabilities
) -> None:
    p = problem(shape, 16, groups=groups, pads=(3, 3, 3, 3))
    x, w = np.zeros(shape, np.float32), np.ones((16, shape[1] // groups, 3, 3), np.float32)
    y = Tensor.empty((1, 16, p.oh, p.ow), np.float32)
    gpu.compute(p, family, [Tensor(x), Tensor(w)], [y])
    assert (y.array == 0).all()


def calls_of(p: ConvProblem, caps: DeviceCapabilities, tuned: dict[str, Choice] | None = None) -> list[KernelCall]:
    return emit(p, PureTarget(caps, tuned or {}), ["x", "w"], ["y"])


class PureTarget(NumpyWorkspace):
    def prepack(self, weight: Any, transform: Any, tag: str) -> Any:
        return tag

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> Any:
        return shape


class TestWithoutDevice:
    def test_kernels_are_chosen_by_shape_and_capabilities(self) -> None:
        def sources(p: ConvProblem, caps: DeviceCapabilities, tuned: dict[str, Choice] | None = None) -> list[str]:
            return [call.variant.source for call in calls_of(dataclasses.replace(p, w_constant=True), caps, tuned)]

        assert sources(SHAPES["3x3 stride 2"], CPU) == ["conv_subgroup.comp"]
        assert sources(SHAPES["winograd"], CPU) == [
            "pointwise.comp",
            "winograd_input.comp",
            "matmul_subgroup.comp",
            "winograd_output.comp",
        ]
        assert sources(SHAPES["3x3"], GPU)[0] == "conv_tiled.comp"
        long = problem((32, 128, 28, 28), 128, pads=(1, 1, 1, 1))
        on_gpu = ["pointwise.comp", "winograd_input.comp", "matmul_tiled.comp", "winograd_output.comp"]
        assert sources(long, GPU) == on_gpu
        assert sources(dataclasses.replace(long, n=1), GPU)[0] == "conv_tiled.comp"
        assert sources(dataclasses.replace(long, dtype="float16"), GPU)[0] != on_gpu[0]
        assert sources(dataclasses.replace(long, n=2048), GPU)[0] == "conv_tiled.comp", "gigabytes of points"
        assert sources(long, GPU, _tuned(long, False))[0] == "conv_tiled.comp"
        assert sources(SHAPES["deep and small"], GPU) == ["conv_tiled.comp", "matmul_reduce.comp"]
        for caps in (CPU, GPU):
            assert sources(SHAPES["depthwise multiplier"], caps) == ["conv_depthwise.comp"]
            assert sources(SHAPES["many small groups"], caps) == ["conv_direct.comp"]

    def test_a_new_input_size_needs_no_new_pipeline(self) -> None:
        for caps in (CPU, dataclasses.replace(GPU, device_type="integrated")):  # images large enough that no k is split
            for p in (SHAPES["3x3"], SHAPES["depthwise"], SHAPES["few output channels"]):
                larger = [dataclasses.replace(p, h=s, w=s, c=c, oc=o, groups=g) for s, c, o, g in _grown(p)]
                keys = {(c.variant, tuple(sorted(c.spec.items()))) for q in larger for c in calls_of(q, caps)}
                assert len(keys) == 1

    def test_the_grid_covers_every_output(self) -> None:
        p = problem((3, 64, 30, 31), 200, pads=(1, 1, 1, 1), groups=2)
        (call,) = calls_of(p, CPU)
        rows, columns = call.spec["ROWS"], call.spec["LANE_COLUMNS"] * 8
        tiles = -(-30 * 31 // rows) * -(-100 // columns)
        assert call.grid == (tiles, 1, 6)
        narrow = dataclasses.replace(CPU, max_workgroup_count=(50, 65535, 65535))
        (folded,) = calls_of(p, narrow)
        assert folded.grid[0] <= 50
        assert tiles <= folded.grid[0] * folded.grid[1] < tiles + folded.grid[1]
        (huge,) = calls_of(problem((1, 8, 4096, 4096), 8, (1, 1)), CPU)
        assert huge.variant.source == "conv_direct.comp"  # more pixels than the matrix kernels count

    @pytest.mark.parametrize("taps_inner", [False, True])
    def test_packed_weights_hold_each_weight_once(self, taps_inner: bool) -> None:
        w = np.arange(1, 2 * 5 * 3 * 4 + 1, dtype=np.float32).reshape(10, 3, 2, 2)
        packed = pack_weights(w, 2, 3, 4, 4, taps_inner)
        assert packed.shape == ((2, 2, 3, 4, 4) if taps_inner else (2, 2, 4, 3, 4))
        assert sorted(packed[packed != 0]) == sorted(w.reshape(-1))
        group, channel, tap, column = 1, 2, 3, 4  # output channel 9
        at = (channel, tap) if taps_inner else (tap, channel)
        assert packed[(group, column // 4, *at, column % 4)] == w[9, 2, 1, 1]

    def test_winograd_takes_only_what_it_computes(self) -> None:
        fitting = dataclasses.replace(SHAPES["winograd"], w_constant=True)
        assert not winograd.no_winograd(fitting, CPU) and not winograd.not_worth(fitting, CPU)
        assert winograd.not_worth(dataclasses.replace(fitting, h=7, w=7), CPU)
        refused: list[dict[str, Any]] = [
            {"stride": (2, 2)},
            {"dilation": (1, 2)},
            {"kw": 5},
            {"c": 4},
            {"c": 32, "oc": 32, "groups": 2},
            {"w_constant": False},
        ]
        for change in refused:
            assert winograd.no_winograd(dataclasses.replace(fitting, **change), CPU), change
        (call,) = calls_of(SHAPES["winograd"], CPU)  # weights that are not constant
        assert call.variant.source == "conv_subgroup.comp"

    def test_winograd_points_of_weights(self) -> None:
        w = np.random.default_rng(5).standard_normal((5, 3, 3, 3)).astype(np.float32)
        points = winograd.pack_points(w, 3, 4)
        assert points.shape == (36, 2, 3, 4)
        flat = points.transpose(0, 1, 3, 2).reshape(6, 6, 8, 3)
        np.testing.assert_allclose(flat[0, 0, :5], w[:, :, 0, 0], rtol=1e-6)  # the point 0
        np.testing.assert_allclose(flat[5, 5, :5], w[:, :, 2, 2], rtol=1e-6)  # the point at infinity
        assert not flat[:, :, 5:].any()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"groups": 3}, "groups do not divide"),
            ({"stride": (0, 1)}, "at least 1"),
            ({"pads": (-1, 0, 0, 0)}, "must not be negative"),
            ({"kh": 20}, "larger than the padded input"),
        ],
    )
    def test_bad_problems(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(SHAPES["3x3"], **change)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"dtype": "int8"}, "no matrix kernel"),
            ({"h": 2**16, "w": 2**16}, "elements; the kernels take fewer"),
            ({"stride": (1, 2**31)}, "strides"),
        ],
    )
    def test_tensors_beyond_a_kernels_reach_are_declined(self, change: dict[str, Any], message: str) -> None:
        for caps in (CPU, GPU):
            with pytest.raises(Decline, match=message):
                choose(dataclasses.replace(SHAPES["3x3"], **change), caps)

    def test_empty_results_give_no_dispatch(self) -> None:
        assert calls_of(dataclasses.replace(SHAPES["3x3"], n=0), CPU) == []


def _grown(p: ConvProblem) -> list[tuple[int, int, int, int]]:
    """(size, channels, output channels, groups) of larger problems of the same kind."""
    if p.groups > 1:
        return [(s, c, c, c) for s, c in ((56, 64), (57, 96), (112, 32))]
    return [(s, c, 5 if p.oc < 8 else 2 * c, 1) for s, c in ((56, 64), (57, 96), (80, 200))]
