"""Float32 results of float16 operands: sums of whole numbers that float16 does not hold; and the codes that epilogues make of
them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.devices import GPU
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor, as_discrete
from tests.kernels.test_code_products import SMALL, TO_CODES, TYPES, stored
from tests.kernels.test_cooperative import PureTarget
from vkep.kernels.conv.problem import NHWC, TO_NHWC, ConvProblem
from vkep.kernels.matmul.cooperative import matmul_cooperative
from vkep.kernels.matmul.cooperative_tiles import float16_shape, tiling_of
from vkep.kernels.matmul.problem import MatMulProblem
from vkep.kernels.select import Emission, emit, supports


@pytest.fixture
def matrices(gpu: Harness) -> DeviceCapabilities:
    if float16_shape(gpu.caps) is None:
        pytest.skip(f"{gpu.caps.name} lists no cooperative matrix of float16 with float32 sums")
    return as_discrete(gpu.caps)


def _codes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-127, 128, shape).astype(np.float16)


@pytest.mark.parametrize(("m", "n", "k"), [(40, 24, 512), (9, 13, 64), (200, 64, 1024), (64, 48, 8192)])
def test_products(gpu: Harness, matrices: DeviceCapabilities, rng: np.random.Generator, m: int, n: int, k: int) -> None:
    """In whole vectors of results and others, in one sum and in parts."""
    a, b = _codes(rng, m, k), _codes(rng, k, n) // np.float16(8)
    y = Tensor.empty((m, n), np.float32)
    problem = MatMulProblem(m, n, k, (0, k, 1), (0, n, 1), dtype="float16", b_constant=True, to="float32")
    gpu.compute(problem, matrices, [Tensor(a), Tensor(b)], [y], compare=False)
    np.testing.assert_array_equal(y.array, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("splits", [1, 2])
@TYPES
def test_epilogues_store_codes(
    gpu: Harness, matrices: DeviceCapabilities, rng: np.random.Generator, to: str, splits: int
) -> None:
    shape = float16_shape(gpu.caps)
    assert shape is not None
    for m, n, k in ((40, 24, 512), (9, 13, 256)):
        a, b, y = _codes(rng, m, k), _codes(rng, k, n), Tensor.empty((m, n), np.dtype(to).type)
        problem = MatMulProblem(m, n, k, (0, k, 1), (0, n, 1), dtype="float16", b_constant=True, to=to, alignment=16)
        operands = {"a": Tensor(a), "b": Tensor(b), "y": y}
        e = Emission(NumpyWorkspace(matrices), operands, TO_CODES[to])
        gpu.run(matmul_cooperative(problem, e, tiling_of(SMALL, shape, k, splits)))
        np.testing.assert_array_equal(y.array, stored(a.astype(np.int64) @ b.astype(np.int64), to))


def _convolution(
    problem: ConvProblem,
    layout: str,
    gpu: Harness,
    caps: DeviceCapabilities,
    rng: np.random.Generator,
    to: str = "float32",
) -> None:
    problem = replace(problem, dtype="float16", w_constant=True, to=to, alignment=16, layout=layout)
    x = _codes(rng, problem.n, problem.c, problem.h, problem.w)
    w = _codes(rng, problem.oc, problem.c // problem.groups, problem.kh, problem.kw)
    if layout == NHWC:
        problem, x = replace(problem, x_last=True), np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    sums = problem.reference(x.astype(np.float64), w.astype(np.float64))
    y = Tensor.empty((problem.n * problem.pixels, problem.oc), np.dtype(to).type)
    gpu.run(emit(problem, NumpyWorkspace(caps), [Tensor(x), Tensor(w)], [y], TO_CODES[to]))
    np.testing.assert_array_equal(y.array, stored(sums, to))


@pytest.mark.parametrize(("c", "oc"), [(16, 24), (3, 16), (8, 13), (1, 1), (8, 1)])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("size", [(9, 7), (1, 1)], ids=str)
def test_convolutions(
    gpu: Harness,
    matrices: DeviceCapabilities,
    rng: np.random.Generator,
    c: int,
    oc: int,
    kernel: int,
    size: tuple[int, int],
) -> None:
    problem = ConvProblem(2, c, *size, oc, kernel, kernel, pads=(kernel // 2,) * 4)
    _convolution(problem, NHWC if c % 8 == 0 else TO_NHWC, gpu, matrices, rng)


@pytest.mark.parametrize(
    ("c", "oc", "pixels"), [(8, 8, 1), (1, 1, 25), (16, 8, 4), (3, 8, 1), (8, 13, 3), (64, 32, 64)]
)
def test_what_is_taken_is_computed(c: int, oc: int, pixels: int) -> None:
    """A candidate that takes few pixels or channels with float32 results has kernels for them."""
    shape = ConvProblem(1, c, 1, pixels, oc, 1, 1, dtype="float16", w_constant=True, to="float32", alignment=16)
    for layout in (NHWC, TO_NHWC):
        problem = replace(shape, layout=layout, x_last=layout == NHWC)
        if supports(problem, GPU):
            assert emit(problem, PureTarget(GPU), ["x", "w"], ["y"])
    assert any(supports(replace(shape, layout=layout, x_last=layout == NHWC), GPU) for layout in (NHWC, TO_NHWC))


@TYPES
def test_depthwise_convolutions(
    gpu: Harness, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.setattr("vkep.kernels.conv.nhwc.no_cooperative_tile", lambda *_: "")
    problem = ConvProblem(2, 16, 9, 7, 16, 3, 3, stride=(2, 1), pads=(1, 1, 1, 1), groups=16)
    _convolution(problem, NHWC, gpu, as_discrete(gpu.caps), rng, to)
