"""A decoder's new token joins the cache, against numpy, as each kind of device selects it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, Tensor
from tools.fuzz.attention_reference import coded
from vkep.kernels.attention.cache_update import CacheUpdateProblem

RNG = np.random.default_rng(17)
#: batch, heads, heads of keys, new tokens, size, value size, old rows, room
Sizes = tuple[int, int, int, int, int, int, int, int]


def turned(x: np.ndarray[Any, Any], cos: np.ndarray[Any, Any], sin: np.ndarray[Any, Any], interleaved: bool) -> Any:
    """``x`` [heads, size] by one row of each table [half]."""
    half = len(cos)
    x = x.astype(np.float64)
    y = x.copy()
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    )
    y[:, first] = x[:, first] * cos - x[:, second] * sin
    y[:, second] = x[:, second] * cos + x[:, first] * sin
    return y


def normed(x: np.ndarray[Any, Any], gain: np.ndarray[Any, Any]) -> Any:
    """``x`` [..., size] by RMS norm with an epsilon of 1e-3."""
    x = x.astype(np.float64)
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-3) * gain


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("sizes", "rotary"),
    [
        ((2, 4, 2, 1, 16, 16, 9, 9), {"half": 8}),
        ((1, 2, 2, 1, 24, 8, 5, 6), {"half": 4, "interleaved": True, "ids": True}),  # some features stay
        ((3, 3, 1, 1, 7, 5, 4, 4), {"half": 3}),  # elements one by one
        ((2, 4, 2, 1, 16, 8, 9, 9), {}),
        ((3, 4, 2, 4, 16, 8, 9, 9), {"half": 8}),
        ((2, 2, 1, 3, 8, 8, 6, 6), {"half": 4, "interleaved": True, "ids": True}),
        ((2, 4, 2, 2, 16, 8, 9, 9), {"half": 6, "epsilon": 1e-3}),
        ((1, 2, 2, 1, 7, 5, 4, 4), {"half": 3, "interleaved": True, "epsilon": 1e-3}),
        ((3, 2, 2, 4, 8, 8, 0, 7), {}),  # no past
    ],
)
@pytest.mark.every_case
def test_the_new_rows_are_turned_and_what_follows_is_a_number(
    gpu: Harness, caps: DeviceCapabilities, sizes: Sizes, rotary: dict[str, Any], dtype: str, over: bool
) -> None:
    batch, heads, kv_heads, length, size, value_size, old, room = sizes
    if over and old != room:
        pytest.skip("the past has another size")
    turns, interleaved = "half" in rotary, rotary.get("interleaved", False)
    # queries, keys and values of a token side by side
    width = heads * size + kv_heads * (size + value_size)
    packed = RNG.normal(size=(batch, length, width)).astype(dtype)
    q = packed[:, :, : heads * size].reshape(batch, length, heads, size)
    k = packed[:, :, heads * size : heads * size + kv_heads * size].reshape(batch, length, kv_heads, size)
    v = packed[:, :, heads * size + kv_heads * size :].reshape(batch, length, kv_heads, value_size)
    past = [RNG.normal(size=(batch, kv_heads, old, s)).astype(dtype) for s in (size, value_size)]
    rows = np.array([room - length, 0, 2][:batch], np.int32)
    for b, row in enumerate(rows):  # what a buffer holds after a sequence's end may be anything
        for t in past:
            t[b, :, row:, ::2] = np.nan
    half, table_rows, used = rotary.get("half", 0), 12, room - 1
    tables = [RNG.normal(size=(table_rows, half)).astype(dtype) for _ in range(2)]
    ids = np.stack([np.arange(start, start + length) for start in (3, 8, 0)[:batch]]).astype(np.int64)
    k_step, v_step = ((length * width, s, width) for s in (size, value_size))
    problem = CacheUpdateProblem(
        *sizes,
        used,
        q_strides=k_step,
        k_strides=k_step,
        v_strides=v_step,
        dtype=dtype,
        table_rows=table_rows,
        alignment=16,
        over=over,
        **rotary,
    )
    flat = packed.reshape(-1)
    starts = (0, heads * size, heads * size + kv_heads * size)
    news = [Tensor(flat[start:].copy()) for start in (starts if turns else starts[1:])]
    given = [*news, *map(Tensor, past if problem.has_past else ()), *map(Tensor, tables if turns else ())]
    given += [Tensor(rows), *([Tensor(ids)] if problem.ids else [])]
    gains = [RNG.uniform(0.5, 1.5, size).astype(dtype) for _ in problem.gains]
    given += map(Tensor, gains)
    if gains:
        q, k = (normed(t, gain) for t, gain in zip((q, k), gains, strict=True))
    made = [Tensor.empty(need.shape, need.dtype) for need in problem.makes()]
    if over:
        made[-2:] = [Tensor(t.copy()) for t in past]
    gpu.compute(problem, caps, given, made)
    *first, key, value = (t.array for t in made)
    tolerance = 1e-6 if dtype == "float32" else 4e-3
    for b, row in enumerate(rows):
        end = row + length
        for step in range(length):
            at = ids[b, step] if problem.ids else row + step
            cos, sin = (table[at].astype(np.float64) for table in tables)
            new = turned(k[b, step], cos, sin, interleaved) if turns else k[b, step]
            np.testing.assert_allclose(key[b, :, row + step], new, rtol=tolerance, atol=tolerance)
            np.testing.assert_array_equal(value[b, :, row + step], v[b, step])
            if turns:
                query = turned(q[b, step], cos, sin, interleaved)
                np.testing.assert_allclose(first[0][b, :, step], query, rtol=tolerance, atol=tolerance)
        for got, was in ((key, past[0]), (value, past[1])):
            kept = was[b, :, :row] if old else np.zeros_like(got[b, :, :row])
            np.testing.assert_array_equal(got[b, :, :row], kept)
            left = np.zeros_like(got[b, :, end:])
            left[:, : max(old - end, 0)] = was[b, :, end:]
            left[:, : max(used - end, 0)] = np.nan_to_num(left[:, : max(used - end, 0)], nan=0)
            np.testing.assert_array_equal(got[b, :, end:], left)


@pytest.mark.parametrize(("over", "channels"), [(False, True), (True, False)])
@pytest.mark.parametrize(
    ("cache", "size", "value_size"),
    [
        ("int8", 16, 32),
        ("int8", 7, 5),
        ("uint8", 32, 16),
        ("uint8", 7, 6),
        ("float8_e4m3fn", 16, 8),
        ("bfloat16", 8, 5),
    ],
)
def test_rows_become_codes(
    gpu: Harness, caps: DeviceCapabilities, cache: str, size: int, value_size: int, channels: bool, over: bool
) -> None:
    batch, kv_heads, length, old, room = 2, 2, 3, 6, 6
    k, v = (RNG.normal(0, 2, (batch, kv_heads, length, s)).astype(np.float32) for s in (size, value_size))
    k[0, 0, 0, :2] = 1e4, -1e4  # limited
    held = np.dtype(getattr(ml_dtypes, cache, None) or cache)
    packs, scaled = 2 if cache == "uint8" else 1, cache != "bfloat16"
    channels = channels and scaled
    past = [
        RNG.integers(0, 120, (batch, kv_heads, old, -(-s // packs))).astype(np.uint8).astype(held)
        for s in (size, value_size)
    ]
    counts = [kv_heads * s if channels else 1 for s in (size, value_size)]
    scales = [RNG.uniform(0.5, 1.5, count).astype(np.float32) for count in counts] if scaled else []
    first = np.array([0, 2], np.int32)
    problem = CacheUpdateProblem(
        *(batch, kv_heads, kv_heads, length, size, value_size, old, room, room),
        q_strides=(0, 0, 0),
        k_strides=(kv_heads * length * size, length * size, size),
        v_strides=(kv_heads * length * value_size, length * value_size, value_size),
        dtype="float32",
        alignment=16,
        over=over,
        cache=cache,
        k_channels=channels,
        v_channels=channels,
    )
    given = [Tensor(k), Tensor(v), *map(Tensor, past if problem.has_past else ()), Tensor(first), *map(Tensor, scales)]
    made = [Tensor(t.copy()) for t in past] if over else [Tensor.empty(t.shape, held) for t in past]
    gpu.compute(problem, caps, given, made)
    for new, was, got, number in zip((k, v), past, made, range(2), strict=True):
        expected = was.copy()
        if scaled:
            codes = coded(new, scales[number].reshape(-1, 1, new.shape[3] if channels else 1), held)
        else:
            codes = new.astype(held)
        for b in range(batch):
            expected[b, :, first[b] : first[b] + length] = codes[b]
        np.testing.assert_array_equal(got.array.view(np.uint8), expected.view(np.uint8))


def test_a_position_beside_the_tables_is_noted_and_stays_inside(gpu: Harness) -> None:
    problem = CacheUpdateProblem(
        1,
        1,
        1,
        1,
        4,
        4,
        3,
        3,
        3,
        (4, 4, 4),
        (4, 4, 4),
        (4, 4, 4),
        "float32",
        half=2,
        table_rows=2,
        ids=True,
        fault="a position is wrong",
    )
    ones, tables = (
        [Tensor(np.ones(4, np.float32)) for _ in range(3)],
        [Tensor(np.ones((2, 2), np.float32)) for _ in range(2)],
    )
    past = [Tensor(np.ones((1, 1, 3, 4), np.float32)) for _ in range(2)]
    more = [Tensor(np.array([1], np.int32)), Tensor(np.array([2], np.int64))]
    made = [Tensor.empty(need.shape, need.dtype) for need in problem.makes()]
    target = gpu.compute(problem, gpu.caps, [*ones, *past, *tables, *more], made)
    assert target.faults == ["a position is wrong"] and target.flag is not None and target.flag.array[0] == 1
