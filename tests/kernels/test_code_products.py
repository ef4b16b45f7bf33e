"""Products and convolutions of 8-bit codes on cooperative matrices of int8: results equal numpy's sums of integers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.devices import CODES, GPU, GPU_OF_CODES, HALF
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor, as_discrete
from tests.kernels.test_cooperative import PureTarget
from vkep.kernels.conv.conv import ConvProblem
from vkep.kernels.conv.nhwc import conv_last, groups_at_once, no_channels_last, no_product_last, product_last
from vkep.kernels.conv.problem import NCHW, NHWC
from vkep.kernels.epilogue import Epilogue
from vkep.kernels.matmul.cooperative import MOST_CODES, matmul_cooperative, no_cooperative_product
from vkep.kernels.matmul.cooperative_tiles import (
    CONV_LAST_TILES,
    MATMUL_TILES,
    CooperativeTile,
    CooperativeTiling,
    cooperative_tiling,
    matrix_shape,
    no_cooperative_tile,
    tiling_of,
)
from vkep.kernels.matmul.matmul import MatMulProblem
from vkep.kernels.select import Emission, emit, supports

#: what drivers that compile for the CPU compile in seconds
SMALL = CooperativeTile(32, 32, 64, 16, 16)
#: by the type that is stored: what quantizes a result again (steps of a power of two are exact)
TO_CODES = {
    "float32": None,
    **dict.fromkeys(("int8", "float16"), Epilogue("v = clamp(roundEven(v * 0.0009765625) - 3.0, -128.0, 127.0);")),
    "uint8": Epilogue("v = clamp(roundEven(v * 0.0009765625) + 125.0, 0.0, 255.0);"),
}


def stored(sums: np.ndarray, to: str) -> np.ndarray:
    """Sums after the epilogue of a type."""
    if to == "float32":
        return sums.astype(np.float32)
    codes = np.clip(np.round(sums / 1024) - 3, -128, 127)
    return (codes + 128 * (to == "uint8")).astype(to)


TYPES = pytest.mark.parametrize("to", TO_CODES)


@pytest.fixture
def codes(gpu: Harness) -> DeviceCapabilities:
    if matrix_shape(gpu.caps, "int8") is None:
        pytest.skip(f"{gpu.caps.name} lists no cooperative matrix of int8 with int32 sums")
    return as_discrete(gpu.caps)


def drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-128, 128, shape).astype(np.int8)


def tiling(gpu: Harness, tile: CooperativeTile | None, k: int, splits: int = 1) -> CooperativeTiling | None:
    """The tile, or None for what is chosen; small ones on a driver that compiles for the CPU."""
    shape = matrix_shape(gpu.caps, "int8")
    assert shape is not None
    if tile is None and gpu.caps.device_type != "cpu":
        return None
    return tiling_of(tile or SMALL, shape, k, splits)


def product(m: int = 256, n: int = 256, k: int = 256, **changes: Any) -> MatMulProblem:
    how: dict[str, Any] = {"a_strides": (0, k, 1), "b_strides": (0, n, 1), "to": "float32", "alignment": 16, **changes}
    return MatMulProblem(m, n, k, **{"dtype": "int8", "b_constant": True, **how})


def exact(a: np.ndarray, b: np.ndarray, zero: int = 0) -> np.ndarray:
    """The product of codes less their zero point by codes."""
    return (a.astype(np.int64) - zero) @ b.astype(np.int64)


def multiply(
    gpu: Harness,
    caps: DeviceCapabilities,
    problem: MatMulProblem,
    a: np.ndarray,
    b: np.ndarray,
    how: CooperativeTiling | None,
    offset: int = 0,
) -> np.ndarray:
    y = Tensor.empty(problem.shape("y")[1:], np.dtype(problem.results).type)
    operands = {"a": Tensor(a, offset), "b": Tensor(b), "y": y}
    e = Emission(NumpyWorkspace(caps), operands, TO_CODES[problem.results])
    assert no_cooperative_product(problem, caps) == ""
    gpu.run(matmul_cooperative(problem, e, how))
    return y.array


#: m, n, k: whole tiles, edges that are no multiples of anything, a long k
SIZES = [(64, 64, 256), (77, 50, 33), (9, 13, 200), (130, 72, 1024)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@TYPES
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("zero", [0, -128, 100])
def test_products(
    size: tuple[int, int, int],
    transposed: bool,
    to: str,
    splits: int,
    zero: int,
    gpu: Harness,
    codes: DeviceCapabilities,
    rng: np.random.Generator,
) -> None:
    m, n, k = size
    a, b = drawn(rng, m, k), drawn(rng, k, n)
    problem = product(m, n, k, b_strides=(0, 1, k) if transposed else (0, n, 1), to=to, zero=zero)
    weights = np.ascontiguousarray(b.T) if transposed else b
    y = multiply(gpu, codes, problem, a, weights, tiling(gpu, SMALL if splits > 1 else None, k, splits))[0]
    sums = exact(a, b, zero)
    np.testing.assert_array_equal(y, stored(sums, to))


def test_drawn_products(gpu: Harness, codes: DeviceCapabilities, rng: np.random.Generator) -> None:
    """Rows of drawn pitches at drawn addresses, several matrices by the same weights."""
    for _ in range(6):
        m, n, k = (int(rng.integers(8, most)) for most in (150, 150, 700))
        pitch, batch, offset = k + int(rng.integers(0, 20)), int(rng.integers(1, 4)), int(rng.choice([0, 1, 8, 16]))
        a, b = drawn(rng, batch, m, pitch), drawn(rng, k, n)
        strides = (m * pitch, pitch, 1), (0, n, 1)
        alignment, zero = min(offset & -offset or 16, 16), int(rng.integers(-128, 128))
        how: dict[str, Any] = {"a_strides": strides[0], "b_strides": strides[1], "batch": batch}
        problem = product(m, n, k, zero=zero, alignment=alignment, **how)
        y = multiply(gpu, codes, problem, a, b, tiling(gpu, None, k), offset)
        np.testing.assert_array_equal(y, exact(a[:, :, :k], b, zero), str(problem))


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("cancels", [False, True])
def test_sums_beyond_what_float32_holds_are_rounded_once(
    splits: int, cancels: bool, gpu: Harness, codes: DeviceCapabilities
) -> None:
    """Also where two parts cancel that float32 does not hold."""
    m, n, k = 40, 24, 8192
    a, b = np.full((m, k), -128, np.int8), np.full((k, n), 127, np.int8)
    a[:, :17] = np.arange(m * 17).reshape(m, 17) % 255 - 127
    b[k // 2 :] *= -1 if cancels else 1
    problem = product(m, n, k, zero=127)
    y = multiply(gpu, codes, problem, a, b, tiling(gpu, SMALL, k, splits))[0]
    np.testing.assert_array_equal(y, exact(a, b, 127).astype(np.float32))


CONVOLUTIONS = [
    ConvProblem(2, 32, 9, 7, 24, 1, 1),
    ConvProblem(2, 32, 9, 7, 24, 3, 3, pads=(1, 1, 1, 1)),
    ConvProblem(1, 16, 12, 11, 13, 3, 3, stride=(2, 2), pads=(1, 1, 0, 0)),
    ConvProblem(1, 48, 8, 9, 40, 1, 1, stride=(2, 2)),
    ConvProblem(1, 16, 10, 9, 8, 2, 3, dilation=(2, 1), pads=(0, 2, 1, 0)),
    ConvProblem(1, 128, 6, 5, 40, 3, 3, pads=(1, 1, 1, 1)),
    ConvProblem(1, 64, 8, 8, 64, 3, 3, pads=(1, 1, 1, 1), groups=2),
    ConvProblem(1, 64, 7, 6, 64, 3, 3, pads=(1, 1, 1, 1), groups=16),
    ConvProblem(2, 16, 1, 40, 16, 1, 5, pads=(0, 2, 0, 2)),
]


def convolve(
    gpu: Harness,
    caps: DeviceCapabilities,
    problem: ConvProblem,
    rng: np.random.Generator,
    tile: CooperativeTile | None,
    splits: int = 1,
) -> None:
    """A convolution with channels last, in float32 and in codes again, compared with sums of int64."""
    problem = dataclasses.replace(problem, dtype="int8", w_constant=True, layout=NHWC, x_last=True, alignment=16)
    x = drawn(rng, problem.n, problem.h, problem.w, problem.c)
    w = drawn(rng, problem.oc, problem.c // problem.groups, problem.kh, problem.kw)
    sums = problem.reference(x.astype(np.int64), w.astype(np.int64))
    k = problem.c // problem.groups * groups_at_once(problem) * problem.taps
    for to, epilogue in TO_CODES.items():
        made = dataclasses.replace(problem, to=to)
        y = Tensor.empty((problem.n * problem.pixels, problem.oc), np.dtype(to).type)
        operands = {"x": Tensor(x), "w": Tensor(w), "y": y}
        e = Emission(NumpyWorkspace(caps), operands, epilogue)
        assert no_channels_last(made, caps) == ""
        gpu.run(conv_last(made, e, tiling=tiling(gpu, tile, k, splits)))
        np.testing.assert_array_equal(y.array, stored(sums, to), str(made))


@pytest.mark.parametrize("problem", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("zero", [0, -128, 5])
@pytest.mark.parametrize("parts", [1, 2])
def test_convolutions(
    problem: ConvProblem,
    zero: int,
    parts: int,
    gpu: Harness,
    codes: DeviceCapabilities,
    rng: np.random.Generator,
) -> None:
    tile = dataclasses.replace(SMALL, parts=parts)
    convolve(gpu, codes, dataclasses.replace(problem, zero=zero), rng, tile)


@pytest.mark.parametrize("problem", [p for p in CONVOLUTIONS if p.c * p.taps >= 256], ids=str)
def test_convolutions_in_parts(
    problem: ConvProblem, gpu: Harness, codes: DeviceCapabilities, rng: np.random.Generator
) -> None:
    convolve(gpu, codes, dataclasses.replace(problem, zero=-7), rng, SMALL, 2)


def test_pointwise_convolutions_are_products(
    gpu: Harness, codes: DeviceCapabilities, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gpu.caps.device_type == "cpu":
        monkeypatch.setattr("vkep.kernels.matmul.cooperative_tiles.MATMUL_TILES", {SMALL: None})
        how = tiling(gpu, SMALL, 32)
        monkeypatch.setattr("vkep.kernels.matmul.cooperative.cooperative_tiling", lambda *given, **named: how)
    problem = ConvProblem(
        2,
        32,
        9,
        7,
        24,
        1,
        1,
        dtype="int8",
        w_constant=True,
        layout=NHWC,
        x_last=True,
        alignment=16,
        to="float32",
        zero=9,
    )
    x, w = drawn(rng, 2, 9, 7, 32), drawn(rng, 24, 32, 1, 1)
    y = Tensor.empty((2 * 63, 24), np.float32)
    assert no_product_last(problem, codes) == ""
    gpu.run(product_last(problem, Emission(NumpyWorkspace(codes), {"x": Tensor(x), "w": Tensor(w), "y": y})))
    np.testing.assert_array_equal(y.array, problem.reference(x.astype(np.int64), w.astype(np.int64)))


@pytest.mark.parametrize("tile", [*CONV_LAST_TILES], ids=str)
def test_every_tile(tile: CooperativeTile, gpu: Harness, codes: DeviceCapabilities, rng: np.random.Generator) -> None:
    if gpu.caps.device_type == "cpu":
        pytest.skip("the driver compiles this tile for minutes")
    shape = matrix_shape(gpu.caps, "int8")
    assert shape is not None
    if not tile.runs_on(codes, shape, True):
        pytest.skip("the tile does not fit this device")
    m, n = 296, 264
    for k, splits in ((896, 1), (896, 2), (128, 1), (208, 1)):
        a, b = drawn(rng, m, k), drawn(rng, k, n)
        problem = product(m, n, k)
        y = multiply(gpu, codes, problem, a, b, tiling_of(tile, shape, k, splits))[0]
        np.testing.assert_array_equal(y, exact(a, b))
    convolve(gpu, codes, ConvProblem(1, 64, 20, 18, 72, 3, 3, pads=(1, 1, 1, 1), zero=-128), rng, tile)


class TestSelection:
    """On devices that are imagined."""

    def test_the_matrices_are_those_of_the_type(self) -> None:
        assert matrix_shape(GPU_OF_CODES, "int8") == CODES
        assert matrix_shape(GPU_OF_CODES, "float16") == HALF
        saturating = dataclasses.replace(
            GPU, cooperative_matrix_shapes=(HALF, dataclasses.replace(CODES, saturating=True))
        )
        for caps in (GPU, saturating, dataclasses.replace(GPU_OF_CODES, features=GPU.features - {"int8"})):
            assert matrix_shape(caps, "int8") is None
            assert "no cooperative matrices of int8" in no_cooperative_tile(caps, True, dtype="int8")

    @pytest.mark.parametrize("to", ["", *TO_CODES])
    def test_one_kernel_takes_codes(self, to: str) -> None:
        problem = product(to=to)
        calls = emit(problem, PureTarget(GPU_OF_CODES), ["a", "b"], ["y"])
        assert [c.variant.source for c in calls] == ["matmul_coop.comp"]
        assert calls[0].defines["T"] == "int8_t" and "HALF_UNITS" not in calls[0].defines
        assert (calls[0].spec["A_VECTOR"], calls[0].spec["B_VECTOR"], calls[0].spec["B_ALONG_K"]) == (1, 1, 1)
        assert not supports(problem, GPU)

    def test_what_is_not_taken(self) -> None:
        for problem, reason in (
            (product(m=4), "unused"),
            (product(k=MOST_CODES + 1), "int32 holds 65793"),
            (product(b_constant=False), "may not be repacked"),
        ):
            assert reason in no_cooperative_product(problem, GPU_OF_CODES)
            assert not supports(problem, GPU_OF_CODES)
        assert MOST_CODES * 255 * 128 < 2**31 <= (MOST_CODES + 1) * 255 * 128

    def test_stages_have_the_bytes_of_halves(self) -> None:
        for tile in MATMUL_TILES:
            assert tile.runs_on(GPU_OF_CODES, CODES, True) == tile.runs_on(GPU, HALF, True)
            assert tile.shared_bytes(CODES, True) == tile.shared_bytes(HALF, True)
            assert tile.steps(CODES) == 2 * tile.steps(HALF)

    def test_tiles_of_codes_have_costs_of_their_own(self) -> None:
        """64 channels are half a stage of the largest tile, and few rows leave cores without a workgroup."""
        for m, n, k, halves, codes in ((50176, 256, 64, (128, 128), (128, 64)), (784, 512, 512, (64, 64), (32, 64))):
            of = {name: cooperative_tiling(m, n, k, 1, GPU_OF_CODES, True, dtype=name) for name in ("float16", "int8")}
            assert [(t.tile.m, t.tile.n) for t in of.values()] == [halves, codes]
            assert all(t.splits == 1 and t.split_k >= k for t in of.values())

    def test_convolutions_with_channels_last_take_codes(self) -> None:
        problem = ConvProblem(1, 32, 8, 8, 16, 3, 3, dtype="int8", w_constant=True, to="float32", alignment=16)
        for changes, taken in (
            ({"layout": NHWC}, True),
            ({"layout": NHWC, "c": 24}, False),
            ({"layout": NHWC, "c": 32, "groups": 32, "oc": 32}, False),
            ({"layout": NCHW}, False),
        ):
            assert supports(dataclasses.replace(problem, **changes), GPU_OF_CODES) == taken, changes
