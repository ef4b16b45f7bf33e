"""Rows in the order of their groups, and products by the matrix of each block's group."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, Tensor
from vkep.kernels.grouped import MOST_GROUPS, GroupedProductProblem, GroupRowsProblem
from vkep.kernels.select import candidates


@pytest.mark.parametrize(("rows", "groups", "block"), [(1, 1, 8), (40, 3, 8), (37, 16, 16), (300, 5, 32)])
def test_rows_in_blocks_of_one_group(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, rows: int, groups: int, block: int
) -> None:
    problem = GroupRowsProblem(rows, groups, block)
    x = rng.integers(0, groups, rows)
    x[: rows // 2] = groups - 1
    made = [Tensor.empty(need.shape, need.dtype) for need in problem.makes()]
    gpu.compute(problem, caps, [Tensor(x)], made)
    places, sources, owners = (t.array for t in made)
    assert len(set(places)) == rows
    np.testing.assert_array_equal(owners[places // block], x)
    np.testing.assert_array_equal(sources.reshape(-1)[places], np.arange(rows))
    unused = np.setdiff1d(np.arange(sources.size), places)
    assert not sources.reshape(-1)[unused].any()
    assert (np.bincount(owners, minlength=groups + 1)[:groups] == -(-np.bincount(x, minlength=groups) // block)).all()


def test_too_many_groups_are_declined(caps: DeviceCapabilities) -> None:
    [candidate] = candidates(GroupRowsProblem)
    assert f"{MOST_GROUPS + 1} groups" in candidate.when(GroupRowsProblem(4, MOST_GROUPS + 1, 8), caps)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("m", "n", "k"), [(8, 33, 20), (16, 64, 31), (40, 5, 64)])
def test_product_by_the_matrix_of_a_block(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str, m: int, n: int, k: int, constant: bool
) -> None:
    owners = np.array([2, 0, 3, 2, 1], np.int32)  # 3: no group
    a, b = rng.normal(size=(5, m, k)).astype(dtype), rng.normal(size=(3, n, k)).astype(dtype)
    y = Tensor.empty((5, m, n), dtype)
    before = y.array[2].copy()
    gpu.compute(
        GroupedProductProblem(5, m, n, k, 3, dtype, constant), caps, [Tensor(a), Tensor(b), Tensor(owners)], [y]
    )
    np.testing.assert_array_equal(y.array[2].tobytes(), before.tobytes())
    kept = [0, 1, 3, 4]
    expected = a[kept].astype(np.float64) @ b[owners[kept]].astype(np.float64).swapaxes(1, 2)
    np.testing.assert_allclose(y.array[kept], expected, rtol=2e-3, atol=2e-3 if dtype == "float32" else 2e-2)
