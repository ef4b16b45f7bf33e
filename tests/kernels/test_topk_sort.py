"""TopK by a merge sort: sizes around those of runs, several merges, ties, NaN, every element type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor, as_discrete, devices_in_turns
from tests.nightly import alternately
from vkep.dtypes import DTYPES
from vkep.kernels.kernel import KernelCall
from vkep.kernels.reductions import topk
from vkep.kernels.reductions.topk import TopKProblem
from vkep.kernels.select import choose, emit
from vkep.sizes import Trace

TYPES = (
    "float32", "float16", "bfloat16", "float64",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
)  # fmt: skip


def expected(x: np.ndarray, k: int, largest: bool) -> np.ndarray:
    """The indices that numpy's stable sort gives, NaN as the greatest."""
    keys = x.astype(np.float64) if x.dtype.kind not in "iu" else x
    if not largest:
        return np.argsort(keys, axis=1, kind="stable")[:, :k]
    order = np.argsort(keys[:, ::-1], axis=1, kind="stable")[:, ::-1]  # turned twice, equal ones keep their order
    return (x.shape[1] - 1 - order)[:, :k]


def check(gpu: Harness, caps: DeviceCapabilities, x: np.ndarray, k: int, largest: bool, dtype: str, **how: Any) -> None:
    shape = (x.shape[0], k, x.shape[2])
    values, indices = Tensor.empty(shape, DTYPES[dtype].numpy), Tensor.empty(shape, np.int64)
    outer, axis, inner = x.shape
    problem = TopKProblem(outer, axis, inner, dtype, k, largest)
    gpu.compute(problem, caps, [Tensor(x)], [values, indices], candidate="sort", **how)
    order = expected(x, k, largest)
    np.testing.assert_array_equal(indices.array, order)
    want = np.take_along_axis(x, order, 1)
    assert values.array.tobytes() == np.ascontiguousarray(want).tobytes()  # also the sign of a zero, and NaN's bits


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of up to four elements, of which a lane merges three: a few hundred elements take several merges."""
    monkeypatch.setattr(topk, "_MOST_SORTED", 4)
    monkeypatch.setattr(topk, "_CHUNK", 3)


@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize("axis", [1, 2, 8, 9, 16, 17, 31, 32, 33, 64, 65, 127, 257])
def test_sizes_around_those_of_runs(gpu: Harness, rng: np.random.Generator, axis: int) -> None:
    for outer, inner in ((1, 1), (3, 1), (1, 5), (2, 3)):
        x = rng.integers(-9, 9, (outer, axis, inner)).astype(np.float32)
        for k in {1, min(3, axis), min(axis, 4), min(axis, 5), (axis + 1) // 2, axis}:
            check(gpu, gpu.caps, x, k, bool(k % 2), "float32")
    check(gpu, gpu.caps, np.zeros((1, axis, 2), np.float32), axis, True, "float32")


@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize(("dtype", "largest"), alternately(TYPES, [True, False]))
def test_element_types(gpu: Harness, rng: np.random.Generator, dtype: str, largest: bool) -> None:
    kind = DTYPES[dtype]
    if kind.kind == "float":
        special = [-0.0, 0.0, np.nan, np.inf, -np.inf, -np.nan, 1.5, -1.5]
        x = rng.choice(special, 120).astype(kind.numpy)
    else:
        info = np.iinfo(kind.numpy)
        some = [info.min, info.min + 1, 0, 1, 2, info.max - 1, info.max]
        x = rng.choice(np.array(some, kind.numpy), 120)
    for k in (60, 7):
        check(gpu, gpu.caps, x.reshape(2, 60, 1), min(k, 60), largest, dtype)
    check(gpu, gpu.caps, x.reshape(1, 40, 3), 33, largest, dtype, indirect=True)


@devices_in_turns("axis", [3, 5, 100, 1023, 2048, 2049, 4999])
def test_runs_as_they_are(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, axis: int) -> None:
    x = rng.integers(-200, 200, (1, axis, 1)).astype(np.int32)
    for k in {axis, min(axis, 300)}:
        check(gpu, caps, x, k, True, "int32", in_memory=k == axis)


def test_long_axes_with_large_k_are_sorted(gpu: Harness) -> None:
    for caps in (gpu.caps, as_discrete(gpu.caps)):
        for shape, k in (((1, 1 << 20, 1), 1 << 20), ((1, 1 << 20, 1), 1025), ((64, 1 << 14, 3), 1 << 12)):
            assert choose(TopKProblem(*shape, "float32", k), caps).candidate.name == "sort"
        for shape, k in (((1, 1 << 14, 1), 1), ((64, 1 << 14, 1), 1), ((1, 500, 1), 3)):
            assert choose(TopKProblem(*shape, "float32", k), caps).candidate.name == "rounds"


class Sized(NumpyWorkspace):
    """Gives no memory: nothing runs, and sizes need no value."""

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> Tensor:
        return Tensor.empty((1,), dtype)


def dispatches(caps: DeviceCapabilities, axis: Any, k: Any) -> list[KernelCall]:
    x, values, indices = (Tensor.empty((1,), dtype) for dtype in (np.float32, np.float32, np.int64))
    return emit(TopKProblem(1, axis, 1, "float32", k), Sized(caps), [x], [values, indices])


@pytest.mark.parametrize("part", [1, 2, 16])
def test_work_grows_little_more_than_the_axis(gpu: Harness, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen times the elements take less than 32 times as many comparisons."""
    monkeypatch.setattr(topk, "_fastest", lambda *problem: "sort")
    few, many = (sum(call.flops for call in dispatches(gpu.caps, n, n // part)) for n in (1 << 12, 1 << 16))
    assert few < many < 32 * few


@pytest.mark.parametrize(
    ("axis", "k", "served", "refused"),
    [
        (100, 100, [(2, 2), (2048, 2048)], [(2049, 2049)]),
        (100, 2, [(2, 2), (10**6, 256)], [(10**6, 257)]),
        (5000, 5000, [(300, 300), (10**5, 10**5)], [(10**6, 10**6)]),
        (50000, 300, [(300, 300), (10**6, 512)], [(10**6, 1025)]),
    ],
)
def test_a_plan_for_few_elements_does_not_serve_the_most(
    gpu: Harness, axis: int, k: int, served: list[tuple[int, int]], refused: list[tuple[int, int]]
) -> None:
    """It holds as many dispatches for other sizes: the number of searches and the length of runs are limited."""
    trace = Trace()
    dispatches(gpu.caps, trace.symbol(axis), trace.symbol(k))
    holds = trace.holds()
    assert all(map(holds.hold, [(axis, k), *served]))
    assert not any(map(holds.hold, refused))
