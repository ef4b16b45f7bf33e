"""Float16 convolutions with channels last: selection on an imagined device, and results on this one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.devices import GPU, HALF
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor
from tests.kernels.test_cooperative import PureTarget, relative_error
from vkep.dtypes import DTYPES
from vkep.errors import Decline
from vkep.ir import algebra as fn
from vkep.ir import expr as ex
from vkep.ir import tensor as ir
from vkep.ir.ops import KernelOp
from vkep.kernels.conv.nhwc import CONV_DEPTHWISE_LAST, CONV_LAST, conv_last, groups_at_once, pack_taps_then_channels
from vkep.kernels.conv.problem import NHWC, ConvProblem
from vkep.kernels.matmul.cooperative_tiles import (
    CONV_LAST_TILES,
    CooperativeTile,
    CooperativeTiling,
    float16_shape,
    tiling_of,
)
from vkep.kernels.select import Emission, choose, emit
from vkep.passes.epilogues import epilogue_of

DEPTHWISE = [
    ConvProblem(2, 32, 14, 14, 32, 3, 3, pads=(1, 1, 1, 1), groups=32, dtype="float16", alignment=16),
    ConvProblem(1, 24, 15, 13, 24, 5, 5, stride=(2, 2), pads=(2, 2, 2, 2), groups=24, dtype="float16", alignment=16),
    ConvProblem(1, 16, 9, 3, 16, 3, 3, dilation=(2, 1), pads=(2, 0, 2, 2), groups=16, dtype="float16", alignment=2),
]
DENSE = [
    ConvProblem(2, 64, 14, 14, 64, 3, 3, pads=(1, 1, 1, 1), dtype="float16", alignment=16),
    ConvProblem(1, 24, 9, 9, 40, 3, 3, stride=(2, 2), pads=(1, 1, 1, 1), dtype="float16", alignment=16),
    ConvProblem(2, 64, 7, 7, 128, 1, 1, dtype="float16", alignment=16),
    ConvProblem(1, 512, 7, 7, 64, 3, 3, pads=(1, 1, 1, 1), dtype="float16", alignment=16),  # k in parts
    ConvProblem(1, 32, 12, 12, 16, 3, 3, dilation=(2, 2), pads=(2, 2, 2, 2), dtype="float16", alignment=2),
    # without padded columns: a row of taps is one
    ConvProblem(2, 24, 9, 10, 40, 3, 3, stride=(2, 1), pads=(1, 0, 2, 0), dtype="float16", alignment=16),
    ConvProblem(1, 32, 9, 12, 16, 3, 2, stride=(1, 2), dtype="float16", alignment=16),
    # columns that fill no vector
    ConvProblem(2, 64, 9, 9, 3, 3, 3, pads=(1, 1, 1, 1), dtype="float16", alignment=16),
    ConvProblem(1, 40, 9, 9, 37, 3, 2, dtype="float16", alignment=16),
    # one spatial axis
    ConvProblem(2, 48, 1, 37, 32, 1, 3, stride=(1, 2), pads=(0, 1, 0, 1), dtype="float16", alignment=16),
    ConvProblem(2, 16, 1, 41, 24, 1, 5, stride=(1, 2), dtype="float16", alignment=16),
]
GROUPED = [
    ConvProblem(2, 96, 1, 20, 96, 1, 16, pads=(0, 8, 0, 8), groups=2, dtype="float16", alignment=16),
    ConvProblem(1, 144, 5, 6, 240, 3, 3, pads=(1, 1, 1, 1), groups=3, dtype="float16", alignment=16),
    ConvProblem(1, 32, 9, 9, 32, 3, 3, stride=(2, 2), groups=4, dtype="float16", alignment=16),
    ConvProblem(1, 64, 7, 7, 64, 3, 3, pads=(1, 1, 1, 1), groups=16, dtype="float16", alignment=2),
    ConvProblem(1, 24, 7, 7, 48, 3, 3, groups=12, dtype="float16", alignment=16),
    ConvProblem(1, 48, 6, 7, 48, 1, 1, groups=2, dtype="float16", alignment=16),
    # groups that only several together are whole vectors
    ConvProblem(1, 120, 6, 5, 72, 3, 3, groups=6, dtype="float16", alignment=16),
    ConvProblem(2, 232, 4, 5, 232, 1, 1, groups=4, dtype="float16", alignment=16),
]


def convolved(x: np.ndarray, w: np.ndarray, p: ConvProblem) -> np.ndarray:
    """[n, oh, ow, oc] of x [n, h, w, c] and OIHW weights, in float64."""
    top, left, bottom, right = p.pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    out = np.zeros((p.n, p.oh, p.ow, p.oc))
    for i in range(p.kh):
        for j in range(p.kw):
            rows = slice(i * p.dilation[0], i * p.dilation[0] + (p.oh - 1) * p.stride[0] + 1, p.stride[0])
            columns = slice(j * p.dilation[1], j * p.dilation[1] + (p.ow - 1) * p.stride[1] + 1, p.stride[1])
            tap = w[:, :, i, j].astype(np.float64)
            part = padded[:, rows, columns]
            grouped = part.reshape(p.n, p.oh, p.ow, p.groups, -1)
            weights = tap.reshape(p.groups, p.oc // p.groups, -1)
            out += np.einsum("nhwgc,goc->nhwgo", grouped, weights).reshape(out.shape)
    return out


def last(p: ConvProblem) -> ConvProblem:
    return dataclasses.replace(p, layout=NHWC, w_constant=True, x_last=True)


def takes(p: ConvProblem, caps: DeviceCapabilities) -> bool:
    """Whether channels lie last in the result where nothing else is said."""
    return choose(dataclasses.replace(last(p), layout=""), caps).candidate.layout == NHWC


def run(
    p: ConvProblem,
    gpu: Harness,
    caps: DeviceCapabilities,
    rng: np.random.Generator,
    tiling: CooperativeTiling | None = None,
) -> tuple[np.ndarray, ...]:
    x = rng.standard_normal((p.n, p.h, p.w, p.c)).astype(np.float16)
    w = rng.standard_normal((p.oc, p.c // p.groups, p.kh, p.kw)).astype(np.float16)
    made = Tensor.empty((p.n, p.oh, p.ow, p.oc), np.dtype(p.results))
    y = Tensor(made.array, offset=0 if p.alignment == 16 else made.array.itemsize)
    target, operands = NumpyWorkspace(caps), {"x": Tensor(x), "w": Tensor(w), "y": y}
    if tiling is None:
        gpu.run(emit(last(p), target, [operands["x"], operands["w"]], [y]))
    else:
        gpu.run(conv_last(last(p), Emission(target, operands), tiling=tiling))
    return y.array, convolved(x, w, p)


#: of results that are stored in float16, and of float32 sums, which a GPU's matrices round towards zero at each step: of 4,608
#: products the error was 4.8e-6 on an H200
_ERRORS = {"float16": 1e-3, "float32": 1e-5}


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("problem", DEPTHWISE, ids=str)
def test_depthwise(problem: ConvProblem, wide: bool, gpu: Harness, rng: np.random.Generator) -> None:
    problem = dataclasses.replace(problem, to="float32" if wide else "")
    found, expected = run(problem, gpu, _with_matrices(gpu.caps), rng)
    assert relative_error(found, expected) < _ERRORS[problem.results]


def _with_matrices(caps: DeviceCapabilities) -> DeviceCapabilities:
    """For a depthwise convolution, whose kernel itself needs no matrices."""
    features = caps.features | GPU.features
    return dataclasses.replace(caps, device_type="discrete", features=features, cooperative_matrix_shapes=(HALF,))


@pytest.mark.parametrize("seed", range(9))
def test_an_epilogue_of_drawn_operands(seed: int, gpu: Harness) -> None:
    """Those that lie in aligned vectors are read so, also where the results are not stored in vectors."""
    rng = np.random.default_rng(seed)
    problem = last(dataclasses.replace(DEPTHWISE[seed % len(DEPTHWISE)], alignment=int(rng.choice([2, 16]))))
    inputs = [ir.Tensor.contiguous(DTYPES["float16"], need.shape) for need in problem.needs()]
    y = ir.Tensor.contiguous(DTYPES["float16"], problem.makes()[0].shape)
    value: ex.Expr = ex.leaf(y)
    more, places = np.zeros(y.shape), dict[Any, Tensor]()
    for _ in range(5):
        kind = DTYPES[str(rng.choice(["float32", "float16", "int8", "uint8", "bool", "int16", "uint32"]))]
        rows, columns = (int(d) if rng.random() < 0.7 else 1 for d in y.shape)
        pitch, first = columns + int(rng.choice([0, 0, 8, 3])), int(rng.choice([0, 4, 8, 1]))
        elements = rng.integers(0, 2, first + rows * pitch).astype(kind.numpy)
        whole = ir.Tensor.contiguous(kind, elements.shape)
        view = whole.view((rows, columns), (pitch, 1), first).expand(y.shape)
        value = ex.Expr("float", "add", (value, fn.cast(ex.leaf(view), "float")))
        more += elements[first:].reshape(rows, pitch)[:, :columns]
        places[whole.storage] = Tensor(elements[first:], first * kind.itemsize)
    epilogue = epilogue_of(KernelOp(problem, inputs, [y], epilogue=value, epilogue_of=(y,)))
    operands = tuple((name, places[t.storage]) for name, t in epilogue.operands)
    x, w = (rng.standard_normal(t.shape).astype(np.float16) for t in inputs)
    result = Tensor(Tensor.empty(y.shape, np.float16).array, 0 if problem.alignment == 16 else 2)
    target = NumpyWorkspace(_with_matrices(gpu.caps))
    gpu.run(emit(problem, target, [Tensor(x), Tensor(w)], [result], dataclasses.replace(epilogue, operands=operands)))
    shape = (problem.n, problem.h, problem.w, problem.c)
    sums = convolved(x.reshape(shape), w.reshape(problem.oc, -1, problem.kh, problem.kw), problem)
    assert relative_error(result.array, sums.reshape(y.shape) + more) < 1e-3


@pytest.mark.parametrize("problem", DENSE + GROUPED, ids=str)
def test_dense(problem: ConvProblem, gpu: Harness, rng: np.random.Generator) -> None:
    if not takes(problem, gpu.caps):
        pytest.skip(f"{gpu.caps.name} lists no cooperative matrix of float16 with float32 sums, or is a CPU")
    found, expected = run(problem, gpu, gpu.caps, rng)
    assert relative_error(found, expected) < 1e-3


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("problem", [p for p in DENSE if p.kw > 1] + GROUPED, ids=str)
def test_dense_in_small_tiles(
    problem: ConvProblem, wide: bool, splits: int, parts: int, gpu: Harness, rng: np.random.Generator
) -> None:
    """On a CPU driver with matrices too, which compiles small tiles in seconds."""
    shape = float16_shape(gpu.caps)
    if shape is None:
        pytest.skip(f"{gpu.caps.name} lists no cooperative matrix of float16 with float32 sums")
    tile = CooperativeTile(32, 32, 64, 16, 16, parts=parts)
    problem = dataclasses.replace(problem, to="float32" if wide else "")
    tiling = tiling_of(tile, shape, problem.c // problem.groups * groups_at_once(problem) * problem.taps, splits)
    found, expected = run(problem, gpu, dataclasses.replace(gpu.caps, device_type="discrete"), rng, tiling)
    assert relative_error(found, expected) < _ERRORS[problem.results]


def test_more_tiles_than_workgroups_along_an_axis(gpu: Harness, rng: np.random.Generator) -> None:
    shape = float16_shape(gpu.caps)
    if shape is None:
        pytest.skip(f"{gpu.caps.name} lists no cooperative matrix of float16 with float32 sums")
    narrow = dataclasses.replace(gpu.caps, device_type="discrete", max_workgroup_count=(7, 65535, 65535))
    for problem, splits in ((DENSE[1], 2), (DENSE[-1], 1)):
        tiling = tiling_of(CooperativeTile(32, 32, 64, 16, 16), shape, problem.c * problem.kh * problem.kw, splits)
        found, expected = run(problem, gpu, narrow, rng, tiling)
        assert relative_error(found, expected) < 1e-3


class TestSelection:
    def sources(self, problem: ConvProblem) -> list[str]:
        return [call.variant.source for call in emit(last(problem), PureTarget(GPU), ["x", "w"], ["y"])]

    def test_a_kernel_for_each_kind(self) -> None:
        assert self.sources(DEPTHWISE[0]) == [CONV_DEPTHWISE_LAST.source]
        assert self.sources(DENSE[0])[0] == CONV_LAST.source
        assert self.sources(DENSE[2]) == ["matmul_coop.comp"]
        assert self.sources(DENSE[3]) == [CONV_LAST.source, "matmul_reduce.comp"]

    @pytest.mark.parametrize(
        "changes",
        [{"dtype": "float32"}, {"c": 60}, {"c": 60, "oc": 60, "groups": 3}],
        ids=str,
    )
    def test_other_convolutions_are_not_taken(self, changes: dict[str, Any]) -> None:
        problem = dataclasses.replace(DENSE[0], **changes)
        assert not takes(problem, GPU)
        with pytest.raises(Decline, match="its images lie as nhwc"):
            self.sources(problem)

    def test_reasons_against_channels_last(self) -> None:
        problem = dataclasses.replace(last(DENSE[0]), layout="", w_constant=False)
        reasons = dict(choose(problem, GPU).rejected)
        assert reasons["channels last"] == "its weights are not constant"
        lone = dataclasses.replace(last(DEPTHWISE[0]), layout="", x_last=False)
        assert "not worth a copy" in dict(choose(lone, GPU).rejected)["depthwise, channels last"]

    def test_a_device_without_matrices_takes_none(self) -> None:
        assert not takes(DENSE[0], dataclasses.replace(GPU, cooperative_matrix_shapes=()))

    def test_a_driver_on_the_cpu_takes_none_though_it_has_matrices(self) -> None:
        assert not takes(DENSE[0], dataclasses.replace(GPU, device_type="cpu", subgroup_size=8))

    def test_every_tile_runs_on_common_hardware(self) -> None:
        assert all(tile.runs_on(GPU, HALF, False) for tile in CONV_LAST_TILES)


def test_packed_weights() -> None:
    weights = np.arange(2 * 3 * 2 * 2, dtype=np.float16).reshape(2, 3, 2, 2)
    packed = pack_taps_then_channels(weights, ConvProblem(1, 3, 4, 4, 2, 2, 2))
    np.testing.assert_array_equal(packed, weights.reshape(2, 3, 4).transpose(2, 1, 0))
