"""The harness catches what it is there to catch, and the launch arithmetic holds on every imagined device."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor
from vkep.errors import Decline
from vkep.graph.windows import Window
from vkep.kernels.images.pool import POOL, PoolProblem
from vkep.kernels.indexing.gather import COPY, copy
from vkep.kernels.launch import MAX_GRID_AXIS, grid, in_lines, lanes, row_vectors, share_columns, unit_for
from vkep.kernels.reductions.norm import LRN, NORM, SOFTMAX, LayerNormProblem, SoftmaxProblem
from vkep.kernels.reductions.reduce import REDUCE, REDUCE_OPS, ReduceProblem
from vkep.kernels.select import Choice, Emission, bind, candidates, choose, emit
from vkep.sizes import Trace

DEVICES = st.builds(
    DeviceCapabilities.for_tests,
    device_type=st.sampled_from(["cpu", "integrated", "discrete"]),
    subgroup_size=st.sampled_from([1, 4, 8, 16, 32, 64, 128]),
    min_subgroup_size=st.just(1),
    max_subgroup_size=st.just(128),
    max_workgroup_invocations=st.sampled_from([128, 256, 1024]),
)


#: a copy whose reach promises nothing
UNPROVED = dataclasses.replace(COPY, reach=lambda call: {})


def write_call(nbytes: int, x: Tensor, y: Tensor) -> list[Any]:
    return [
        UNPROVED.call(
            grid=(1, 1, 1), operands={"x": x, "y": y}, params={"total": nbytes}, defines={"UNIT_T": "uint8_t"}
        )
    ]


def test_harness_catches_a_write_beyond_the_end(gpu: Harness) -> None:
    x, y = Tensor(np.arange(12, dtype=np.uint8)), Tensor.empty((10,), np.uint8)
    with pytest.raises(AssertionError, match="beyond the end"):
        gpu.run(write_call(12, x, y))


def test_harness_catches_a_written_input(gpu: Harness) -> None:
    x = Tensor(np.arange(12, dtype=np.uint8))
    call = write_call(12, Tensor(np.zeros(12, np.uint8)), x)[0]
    operands = tuple((dataclasses.replace(o, writes=False), t) for o, t in call.operands)
    with pytest.raises(AssertionError, match="wrote an input"):
        gpu.run([dataclasses.replace(call, operands=operands)])


def test_harness_outputs_begin_as_garbage(gpu: Harness) -> None:
    y = Tensor.empty((10,), np.uint8)
    gpu.run(write_call(4, Tensor(np.zeros(10, np.uint8)), y))
    assert y.array.tolist() == [0] * 4 + [0xCD] * 6


@pytest.mark.parametrize("indirect", [False, True])
@pytest.mark.parametrize("in_memory", [False, True])
def test_every_way_of_passing_arguments(gpu: Harness, indirect: bool, in_memory: bool) -> None:
    x, y = Tensor(np.arange(10, dtype=np.uint8)), Tensor.empty((10,), np.uint8)
    gpu.run(write_call(10, x, y), indirect=indirect, in_memory=in_memory)
    np.testing.assert_array_equal(y.array, x.array)


def test_a_grid_longer_than_one_axis(gpu: Harness, rng: np.random.Generator) -> None:
    small = dataclasses.replace(gpu.caps, device_type="discrete", max_workgroup_invocations=8)
    x = rng.integers(0, 256, 1_000_003).astype(np.uint8)
    y = Tensor.empty(x.shape, np.uint8)
    calls = copy(x.size, small, Tensor(x), y, alignment=1)
    assert calls[0].grid[1] > 1
    gpu.run(calls)
    np.testing.assert_array_equal(y.array, x)


def test_kernels_of_a_gpu_combine_subgroups_where_the_device_can(caps: DeviceCapabilities) -> None:
    """Else the tests of a discrete GPU are those of one without subgroup operations."""
    shared = share_columns(5000, 1024, 1, caps)
    assert (shared.shuffle is not None) == (caps.device_type == "discrete" and caps.has("subgroup_shuffle"))


@given(st.integers(0, 2**31))
def test_grid_covers_all_groups_within_limits(groups: int) -> None:
    x, y, z = grid(groups)
    assert groups <= x * y < groups + y + 1
    assert max(x, y, z) <= 65535


@given(DEVICES, st.integers(1, 10**6), st.integers(1, 10**5), st.sampled_from([1, 2, 49, 5000]))
def test_columns_are_shared_out_completely(caps: DeviceCapabilities, columns: int, axis: int, inner: int) -> None:
    share = share_columns(columns, axis, inner, caps)
    assert share.split & (share.split - 1) == 0
    assert 1 <= share.split <= share.local <= caps.max_workgroup_invocations
    assert share.groups * (share.local // share.split) >= columns
    if share.shuffle:
        assert share.across
        assert share.local % share.shuffle == 0


@given(DEVICES, st.integers(0, 2**31 - 1))
def test_lanes_fit_the_device(caps: DeviceCapabilities, total: int) -> None:
    count = lanes(caps, total)
    assert 1 <= count <= caps.max_workgroup_invocations
    assert count & (count - 1) == 0


@given(st.integers(2, 1 << 24), st.integers(2, 1 << 24))
def test_a_line_of_workgroups_goes_on_in_a_second_one(at_hand: int, groups: int) -> None:
    """Also where the number is a size: one condition at most, which is far."""
    x, y = in_lines(groups, MAX_GRID_AXIS)
    assert x <= MAX_GRID_AXIS and groups <= x * y < groups + y and (y == 1 or groups > MAX_GRID_AXIS)
    trace = Trace()
    sized = trace.formulas(list(in_lines(cast(int, trace.symbol(at_hand)), MAX_GRID_AXIS)))
    holds = trace.holds().hold([groups])
    assert holds or (groups > MAX_GRID_AXIS > 15 * at_hand)
    assert not holds or list(sized([groups])) == [x, y]


def test_units_divide_rows_and_addresses() -> None:
    assert [unit_for(n, 16) for n in (1, 6, 12, 64, 3072)] == [1, 2, 4, 16, 16]
    assert unit_for(64, 4) == 4
    assert unit_for(0, 16) == 16


def test_row_vectors_need_whole_groups_and_aligned_addresses() -> None:
    assert row_vectors(8, "float32", 16)["VECTOR_IN_T"] == "vec4"
    assert row_vectors(8, "float16", 8)["VECTOR_IN_T"] == "f16vec4"
    for args in ((6, "float32", 16), (8, "float32", 8), (8, "float32", 4), (8, "bfloat16", 16)):
        assert row_vectors(*args) == {}


def test_operands_that_32_bit_indices_cannot_reach_are_declined() -> None:
    caps = DeviceCapabilities.for_tests()
    assert choose(SoftmaxProblem(2**15, 2**15, 1, "float32"), caps).candidate.name
    with pytest.raises(Decline, match="x has 2147483648 elements"):
        choose(SoftmaxProblem(2**15, 2**16, 1, "float32"), caps)


@pytest.mark.parametrize("device_type", ["cpu", "discrete"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_common_problems_use_variants_built_ahead(device_type: str, dtype: str) -> None:
    caps = DeviceCapabilities.for_tests(device_type=device_type)
    target, reductions = NumpyWorkspace(caps), {candidate.name: candidate for candidate in candidates(ReduceProblem)}
    calls = []
    for op in REDUCE_OPS.keys() - {"all", "any"}:
        for shape in ((64, 700, 1), (64, 768, 1), (64, 49, 512)):
            problem = ReduceProblem(*shape, dtype, op, alignment=16)
            calls += Choice(reductions["one pass"]).emit(problem, Emission(target, bind(problem, [1], [2])))
    for length, alignment in ((768, 16), (77, 1)):
        calls += emit(SoftmaxProblem(64, length, 1, dtype, alignment=alignment), target, [1], [2])
        calls += emit(LayerNormProblem(64, length, dtype, alignment=alignment, bias=False), target, [1, 3], [2])
    halved = Window((2, 2), (2, 2), (1, 1), (0,) * 4, (4, 4))
    calls += emit(PoolProblem("max", 1, 3, (8, 8), halved, dtype), target, [1], [2])
    assert {call.kernel.source for call in calls} == {k.source for k in (REDUCE, SOFTMAX, NORM, POOL)}
    for call in calls:
        assert dict(call.variant.defines) in call.kernel.variants, call.variant
    assert LRN.variants != ({},)
