"""Attention of a new token with the update of the cache that it reads, in one dispatch, against numpy in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.devices import GPU
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor
from tests.kernels.test_attention import check
from tests.kernels.test_cache_update import normed, turned
from vkep.dtypes import DTYPES
from vkep.errors import Decline
from vkep.kernels.attention import stream as attention_stream
from vkep.kernels.attention.cache_update import CacheUpdateProblem
from vkep.kernels.attention.problem import AttentionProblem
from vkep.kernels.attention.stream import UpdatingAttentionProblem, not_updating
from vkep.kernels.kernel import KernelCall
from vkep.kernels.select import Emission, candidates, choose

RNG = np.random.default_rng(23)
TABLE = 96


def problem_of(
    dtype: str,
    sizes: tuple[int, int, int, int, int, int],
    first: int | None = None,
    sink: bool = False,
    **update: Any,
) -> UpdatingAttentionProblem:
    """``sizes``: sequences, heads, heads of keys, size, value size, rows of the cache."""
    batch, heads, kv_heads, size, value_size, room = sizes
    width = heads * size + kv_heads * (size + value_size)
    k_step, v_step = ((width, s, width) for s in (size, value_size))
    k_rows, v_rows = ((kv_heads * room * s, room * s, s) for s in (size, value_size))
    attention = AttentionProblem(
        *(batch, heads, kv_heads, 1, room - 1, size, value_size, k_step, k_rows, v_rows),
        y_strides=(value_size, heads * value_size),
        scale=0.2,
        first=first,
        end=1,
        origin=True,
        sink=sink,
        dtype=dtype,
        alignment=16,
    )
    given: dict[str, Any] = {"half": size // 2, **update}
    new = CacheUpdateProblem(
        *(batch, heads, kv_heads, 1, size, value_size, room, room, 0, k_step, k_step, v_step, dtype),
        table_rows=TABLE,
        alignment=16,
        over=True,
        fault="outside",
        **given,
    )
    return UpdatingAttentionProblem(attention, new)


PROBLEMS = [
    problem_of("float32", (2, 4, 2, 32, 16, 40), ids=True),
    problem_of("float16", (2, 2, 2, 64, 64, 90), first=-30, epsilon=1e-3),
    problem_of(
        "float32", (1, 12, 1, 16, 32, 30), sink=True, half=4, epsilon=1e-3
    ),  # two tiles of rows, some features stay
]


@pytest.fixture
def as_gpu(gpu: Harness, monkeypatch: pytest.MonkeyPatch) -> DeviceCapabilities:
    """The device as a GPU with few lanes, and two workgroups for each head of keys."""
    monkeypatch.setattr(attention_stream, "_LANES", 32)
    return dataclasses.replace(gpu.caps, device_type="discrete", compute_units=8)


@pytest.mark.wide
@pytest.mark.parametrize("problem", PROBLEMS, ids=("positions", "norms", "tiles"))
def test_the_new_token_is_in_the_cache_and_is_seen(
    gpu: Harness, as_gpu: DeviceCapabilities, problem: UpdatingAttentionProblem
) -> None:
    up, of = problem.update, problem.attention
    if choose_declines(problem, as_gpu):
        pytest.skip("no subgroups that hold a row")
    packed = RNG.normal(size=(up.batch, up.q_strides[0])).astype(up.dtype)
    ends = np.cumsum([0, up.heads * up.size, up.kv_heads * up.size, up.kv_heads * up.value_size])
    heads = (up.heads, up.kv_heads, up.kv_heads)
    q, k, v = (packed[:, a:b].reshape(up.batch, count, -1) for a, b, count in zip(ends, ends[1:], heads, strict=False))
    past = [RNG.normal(size=(up.batch, up.kv_heads, up.room, s)).astype(up.dtype) for s in (up.size, up.value_size)]
    first = np.array([up.room - 2, 7][: up.batch], np.int32)
    for b, row in enumerate(first):
        for t in past:
            t[b, :, row:] = np.nan
    tables = [RNG.normal(size=(TABLE, up.half)).astype(up.dtype) for _ in range(2)]
    ids = np.array([[3], [60]][: up.batch], np.int64)
    gains = [RNG.uniform(0.5, 1.5, up.size).astype(up.dtype) for _ in up.gains]
    sink = [RNG.normal(size=up.heads).astype(up.dtype)] if of.sink else []
    given = [Tensor(packed.reshape(-1)[start:].copy()) for start in ends[:3]]
    given += [Tensor(t) for t in (*tables, first, *([ids] if up.ids else []), *gains, *sink)]
    y = Tensor.empty((up.batch, 1, up.heads, up.value_size), up.dtype)
    caches = [Tensor(t.copy()) for t in past]
    gpu.compute(problem, as_gpu, given, [y, *caches], candidate="stream")

    if gains:
        q, k = (normed(t, gain) for t, gain in zip((q, k), gains, strict=True))
    near = 1e-6 if up.dtype == "float32" else 4e-3
    for b, row in enumerate(first):
        cos, sin = (table[ids[b, 0] if up.ids else row].astype(np.float64) for table in tables)
        for cache, was, new in zip(caches, past, (turned(k[b], cos, sin, False), v[b]), strict=True):
            np.testing.assert_allclose(cache.array[b, :, row], new, atol=near, rtol=near)
            was[b, :, row] = cache.array[b, :, row]
            np.testing.assert_array_equal(cache.array[b], was[b])
        seen = slice(max(row + (of.first or -row), 0), row + 1)
        queries = turned(q[b], cos, sin, False).astype(up.dtype).astype(np.float64).reshape(up.kv_heads, -1, up.size)
        keys, values = (t[b, :, seen].astype(np.float64) for t in past)
        powers = np.exp(of.scale * queries @ keys.swapaxes(1, 2))
        more = np.exp(sink[0].astype(np.float64)).reshape(up.kv_heads, -1, 1) if sink else 0
        wanted = powers @ values / (powers.sum(-1, keepdims=True) + more)
        check(y.array[b, 0], wanted.reshape(up.heads, -1))


def choose_declines(problem: UpdatingAttentionProblem, caps: DeviceCapabilities) -> bool:
    try:
        choose(problem, caps)
    except Decline:
        return True
    return False


@pytest.mark.parametrize("problem", PROBLEMS, ids=("positions", "norms", "tiles"))
def test_lanes_reach_what_the_problem_needs(problem: UpdatingAttentionProblem) -> None:
    operands = (*problem.needs(), *problem.makes())
    wanted = {need.name: need.extent * DTYPES[need.dtype].itemsize for need in operands}
    e = Emission(NumpyWorkspace(GPU), dict.fromkeys(wanted))
    [candidate] = candidates(UpdatingAttentionProblem)
    call = candidate.emit(problem, e)
    assert isinstance(call, KernelCall)
    reaches = call.reaches()
    named = {"k": "new_key", "v": "new_value", "present_key": "k", "present_value": "v", "first": "origin"}
    # the rows of a cache that a token does not see are the problem's, and no lane's
    up, seen = problem.update, problem.attention.needs()
    wanted |= {
        f"present_{n}": s.extent * DTYPES[up.dtype].itemsize for n, s in zip(("key", "value"), seen[1:3], strict=True)
    }
    assert {name: reaches[named.get(name, name)] for name in wanted} == wanted


def test_what_one_dispatch_does_not_do() -> None:
    problem = PROBLEMS[0]
    of, up = problem.attention, problem.update
    for changed in ({"end": 2}, {"origin": False}, {"coding": "int8"}, {"queries": 2}):
        assert not_updating(dataclasses.replace(of, **changed), up)
    for changed in ({"over": False}, {"used": 8}, {"length": 2}, {"cache": "int8"}, {"interleaved": True}, {"half": 0}):
        assert not_updating(of, dataclasses.replace(up, **changed))
    halves = dataclasses.replace(problem, update=dataclasses.replace(up, half=6))
    assert choose_declines(halves, GPU) and not choose_declines(problem, GPU)
