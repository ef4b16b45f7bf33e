"""TopK by a bound from the best elements of parts: ties, keys that differ in few bits, data that no bound divides."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.devices import GPU
from tests.kernels.harness import Harness, Tensor, devices_in_turns
from tests.kernels.test_topk_sort import TYPES, expected
from tests.nightly import alternately
from vkep.dtypes import DTYPES
from vkep.kernels.reductions import topk
from vkep.kernels.reductions.topk import TopKProblem
from vkep.kernels.select import choose


@pytest.fixture
def selected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every problem is solved by a selection, also a small one."""
    monkeypatch.setattr(topk, "_fastest", lambda *problem: "selection")


def check(gpu: Harness, caps: DeviceCapabilities, x: np.ndarray, k: int, largest: bool, dtype: str, **how: Any) -> None:
    outer, axis, inner = x.shape
    values, indices = Tensor.empty((outer, k, inner), DTYPES[dtype].numpy), Tensor.empty((outer, k, inner), np.int64)
    problem = TopKProblem(outer, axis, inner, dtype, k, largest)
    gpu.compute(problem, caps, [Tensor(x)], [values, indices], candidate="selection", **how)
    order = expected(x, k, largest)
    np.testing.assert_array_equal(indices.array, order)
    want = np.ascontiguousarray(np.take_along_axis(x, order, 1))
    assert values.array.tobytes() == want.tobytes()  # also the sign of a zero, and NaN's bits


@pytest.mark.usefixtures("selected")
@pytest.mark.parametrize(("dtype", "largest"), alternately(TYPES, [True, False]))
def test_element_types(gpu: Harness, rng: np.random.Generator, dtype: str, largest: bool) -> None:
    """Few distinct values, so that a result ends between equal ones; and values of all bits."""
    kind = DTYPES[dtype]
    bits = np.frombuffer(rng.bytes(5000 * kind.itemsize), kind.numpy)
    if kind.kind == "float":
        some = np.array([-0.0, 0.0, np.nan, np.inf, -np.inf, -np.nan, 1.5, -1.5]).astype(kind.numpy)
    else:
        info = np.iinfo(kind.numpy)
        some = np.array([info.min, info.min + 1, 0, 1, 2, info.max - 1, info.max], kind.numpy)
    for x in (bits, rng.choice(some, 5000)):
        for k in (1, 500):
            check(gpu, gpu.caps, x.reshape(1, 5000, 1), k, largest, dtype)
        check(gpu, gpu.caps, x[:4998].reshape(2, 833, 3), 100, largest, dtype, indirect=True)


@pytest.mark.usefixtures("selected")
@devices_in_turns("axis", [1, 2, 31, 513, 2047, 2049, 9000])
def test_axes_and_k(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, axis: int) -> None:
    for k in {1, 2, axis // 2, axis - 1, axis, 513, 1023, 1024} - {0}:
        if k > min(axis, 1024):
            continue
        check(gpu, caps, rng.integers(-axis, axis, (1, axis, 1)).astype(np.int32), k, bool(k % 2), "int32")
        check(gpu, caps, np.full((1, axis, 1), 3, np.float32), k, bool(k % 2), "float32", in_memory=k == axis)


@pytest.mark.usefixtures("selected")
@pytest.mark.parametrize("low", [0, 11, 22, 32, 52])
def test_keys_that_differ_in_some_bits_only(gpu: Harness, rng: np.random.Generator, low: int) -> None:
    x = (rng.permutation(2500).astype(np.uint64) << np.uint64(low)) + np.uint64(1 << 63)
    for k in (1, 20, 512):
        check(gpu, gpu.caps, x.reshape(1, -1, 1), k, True, "uint64")
        check(gpu, gpu.caps, np.sort(x).reshape(1, -1, 1), k, low % 2 == 0, "uint64")


@pytest.mark.usefixtures("selected")
@pytest.mark.parametrize(("k", "inner"), [(100, 1), (100, 2), (1000, 1)])
def test_few_parts_with_all_of_the_best(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, k: int, inner: int
) -> None:
    """All elements of k - 1 parts are better than the best one of each other part: the bound leaves thousands, in several
    rounds."""
    axis, parts = 50_000, topk._parts(k, topk._room("float32", caps))
    x = rng.random((1, axis, inner)).astype(np.float32)
    x[:, np.arange(axis) % parts < k - 1] += 2
    check(gpu, caps, x, k, True, "float32")
    check(gpu, caps, -x, k, False, "float32")
    x[:, np.arange(axis) % parts < k - 1] = 3
    check(gpu, caps, x, k, True, "float32")


def test_few_of_a_long_axis_are_selected(gpu: Harness) -> None:
    on_cpu = dataclasses.replace(gpu.caps, device_type="cpu")
    for caps in (on_cpu, GPU):
        for columns, axis, k in (
            (1, 100_000, 300),
            (64, 10_000, 50),
            (1, 1 << 20, 1024),
            (1, 672_000, 1000),
            (32, 100_000, 100),
        ):
            assert choose(TopKProblem(columns, axis, 1, "float32", k), caps).candidate.name == "selection"
    few_lanes = dataclasses.replace(GPU, max_workgroup_invocations=32)  # workgroups of 256 sort 4,000 columns sooner
    assert choose(TopKProblem(4000, 10_000, 1, "float32", 300), few_lanes).candidate.name == "selection"
    # a GPU sorts and merges 8,400 elements sooner
    assert choose(TopKProblem(1, 8400, 1, "float32", 300), on_cpu).candidate.name == "selection"
    small = dataclasses.replace(gpu.caps, max_shared_memory_bytes=16384)
    assert choose(TopKProblem(1, 100_000, 1, "float32", 300), small).candidate.name == "selection"
    assert choose(TopKProblem(1, 100_000, 1, "float32", 600), small).candidate.name == "sort"
