"""Rows in the order of their groups, and products by the matrix of each block's group."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, Tensor
from vkep.kernels.matmul.grouped import MOST_GROUPS, GroupedCodesProblem, GroupedProductProblem, GroupRowsProblem
from vkep.kernels.select import Candidate, candidates


@pytest.mark.parametrize(("rows", "groups", "block"), [(1, 1, 8), (40, 3, 8), (37, 16, 16), (300, 5, 32)])
def test_rows_in_blocks_of_one_group(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, rows: int, groups: int, block: int
) -> None:
    problem = GroupRowsProblem(rows, groups, block)
    x = rng.integers(0, groups, rows)
    x[: rows // 2] = groups - 1
    made = [Tensor.empty(need.shape, need.dtype) for need in problem.makes()]
    gpu.compute(problem, caps, [Tensor(x)], made, compare=False)  # rows of a group are in any order
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
@pytest.mark.parametrize(("m", "n", "k"), [(8, 33, 20), (16, 64, 31), (40, 6, 64)])
@pytest.mark.parametrize("alignment", [1, 16])
def test_product_by_the_matrix_of_a_block(
    gpu: Harness,
    caps: DeviceCapabilities,
    rng: np.random.Generator,
    dtype: str,
    m: int,
    n: int,
    k: int,
    constant: bool,
    alignment: int,
) -> None:
    owners = np.array([2, 0, 3, 2, 1], np.int32)  # 3: no group
    a, b = rng.normal(size=(5, m, k)).astype(dtype), rng.normal(size=(3, n, k)).astype(dtype)
    y = Tensor.empty((5, m, n), dtype)
    before = y.array[2].copy()
    problem = GroupedProductProblem(5, m, n, k, 3, dtype, constant, alignment)
    gpu.compute(problem, caps, [Tensor(a), Tensor(b), Tensor(owners)], [y])
    np.testing.assert_array_equal(y.array[2].tobytes(), before.tobytes())
    kept = [0, 1, 3, 4]
    expected = a[kept].astype(np.float64) @ b[owners[kept]].astype(np.float64).swapaxes(1, 2)
    np.testing.assert_allclose(y.array[kept], expected, rtol=2e-3, atol=2e-3 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize("candidate", candidates(GroupedCodesProblem), ids=lambda c: c.name)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("bits", "block", "zeros", "k"),
    [(4, 32, "blocks", 64), (4, 64, "rows", 64), (8, 4, "", 68), (8, 17, "", 68), (2, 16, "blocks", 64)],
)
@pytest.mark.every_case
def test_product_by_packed_weights(
    gpu: Harness,
    caps: DeviceCapabilities,
    rng: np.random.Generator,
    dtype: str,
    bits: int,
    block: int,
    zeros: str,
    k: int,
    candidate: Candidate[GroupedCodesProblem],
) -> None:
    m, n, groups = 9, 37, 3
    owners = np.array([2, 0, 3, 1], np.int32)  # 3: no group
    problem = GroupedCodesProblem(4, m, n, k, groups, bits, block, dtype, zeros, alignment=16 if zeros else 1)
    if block % 4:
        assert "blocks of 17 codes" in candidate.when(problem, caps)
        return
    if candidate.when(problem, caps):
        pytest.skip(candidate.when(problem, caps))
    a, scales = rng.normal(size=(4, m, k)).astype(dtype), rng.uniform(0.1, 1, (groups, n, k // block)).astype(dtype)
    shapes = {need.name: need.shape for need in problem.needs()}
    packed = {
        name: rng.integers(0, 256, shape).astype(np.uint8) for name, shape in shapes.items() if name in ("b", "zeros")
    }
    y = Tensor.empty((4, m, n), dtype)
    before = y.array[2].copy()
    inputs = [a, packed["b"], owners, scales, *([packed["zeros"]] if zeros else [])]
    gpu.compute(problem, caps, [Tensor(t) for t in inputs], [y], candidate=candidate.name)

    def codes(values: np.ndarray, count: int) -> np.ndarray:
        shifts = np.arange(0, 8, bits)
        return (
            (values[..., None] >> shifts & (1 << bits) - 1)
            .reshape(*values.shape[:-1], -1)[..., :count]
            .astype(np.float64)
        )

    zero = np.full((groups, n, 1), float(1 << (bits - 1)))
    if zeros:
        zero = codes(packed["zeros"], k // block if zeros == "blocks" else n)
        zero = np.repeat(zero, block, 2) if zeros == "blocks" else zero[..., None]
    weights = (codes(packed["b"], k) - zero) * np.repeat(scales.astype(np.float64), block, 2)
    np.testing.assert_array_equal(y.array[2].tobytes(), before.tobytes())
    kept = [0, 1, 3]
    expected = a[kept].astype(np.float64) @ weights[owners[kept]].swapaxes(1, 2)
    np.testing.assert_allclose(y.array[kept], expected, rtol=2e-3, atol=0.02 if dtype == "float32" else 1.0)
