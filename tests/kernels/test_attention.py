"""Attention without scores in memory, against numpy at float64: in registers everywhere, on cooperative matrices where a
device has them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.devices import GPU
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor
from tests.nightly import alternately
from vkep.dtypes import DTYPES
from vkep.errors import Decline
from vkep.kernels.attention.attention import (
    COOPERATIVE_TILES,
    TILED_TILES,
    AttentionTile,
    gains_by_attention,
)
from vkep.kernels.attention.problem import AttentionProblem
from vkep.kernels.kernel import KernelCall
from vkep.kernels.matmul.cooperative_tiles import float16_shape
from vkep.kernels.matmul.tiles import is_cpu_driver
from vkep.kernels.select import Choice, Emission, candidates, choose, emit

CPU = dataclasses.replace(GPU, device_type="cpu")


@dataclass(frozen=True)
class Case:
    """Shapes, and what hides keys; ``bias``: the shape that broadcasts to [batch, heads, queries, keys]."""

    queries: int
    keys: int
    size: int = 64
    value_size: int = 64
    batch: int = 1
    heads: int = 2
    kv_heads: int = 2
    first: int | None = None
    end: int | None = None
    bias: tuple[int, ...] | None = None
    softcap: float = 0.0
    merged: bool = False  #: heads lie side by side in a row, of q, k, v and y

    def problem(self, dtype: str, **changes: Any) -> AttentionProblem:
        def strides(heads: int, length: int, size: int) -> tuple[int, int, int]:
            dense = (heads * length * size, size, heads * size)
            return dense if self.merged else (dense[0], length * size, size)

        bias = None
        if self.bias is not None:
            steps = [math.prod(self.bias[i + 1 :]) for i in range(4)]
            bias = tuple(step if dim > 1 else 0 for dim, step in zip(self.bias, steps, strict=True))
        given: dict[str, Any] = {
            "q_strides": strides(self.heads, self.queries, self.size),
            "k_strides": strides(self.kv_heads, self.keys, self.size),
            "v_strides": strides(self.kv_heads, self.keys, self.value_size),
            "y_strides": strides(self.heads, self.queries, self.value_size)[1:],
            "scale": 1 / math.sqrt(self.size),
            "bias_strides": bias,
            "alignment": 16,
        }
        names = ("batch", "heads", "kv_heads", "queries", "keys", "size", "value_size", "softcap", "first", "end")
        given.update({name: getattr(self, name) for name in names})
        return AttentionProblem(**{**given, "dtype": dtype, "bias_dtype": dtype, **changes})


#: heads of few elements, for what does not depend on them: a CPU driver compiles their kernels in a fifth of the time
Small = functools.partial(Case, size=16, value_size=16)
CASES = [
    Case(64, 64),
    Small(128, 128, heads=3, kv_heads=3, batch=2),
    Small(1, 40),
    Small(70, 3),
    Case(33, 130, batch=2),
    Case(65, 77, size=80, value_size=40),
    *(Case(20, 45, size=size, value_size=size) for size in (8, 24, 96, 128)),
    Case(20, 45, size=10, value_size=7),  # elements one by one
    Case(20, 45, size=4, value_size=12),
    Small(40, 50, heads=6, kv_heads=2, batch=2),
    Small(40, 50, heads=4, kv_heads=1, merged=True, batch=2),
    Case(130, 130, end=1),
    Small(70, 100, end=31, merged=True),
    Small(70, 100, first=-9, end=1),
    Small(90, 90, first=-3, end=5, heads=4),
    Small(40, 60, end=-7),  # the first rows see nothing
    Small(70, 20, first=5),  # nor do the last ones
    Small(40, 60, end=-100),
    *(Small(50, 70, batch=2, heads=4, kv_heads=2, bias=bias) for bias in (
        (2, 4, 50, 70), (1, 4, 50, 70), (2, 1, 50, 70), (1, 1, 50, 70), (2, 1, 1, 70), (1, 1, 1, 70), (1, 4, 50, 1), (1,) * 4
    )),
    Small(50, 70, bias=(1, 1, 50, 70), first=-20, end=1, softcap=2.0),
    Small(50, 70, softcap=1.5),
]  # fmt: skip


@pytest.fixture(params=["tiled", "subgroup", "cooperative"])
def kernel(request: pytest.FixtureRequest, gpu: Harness) -> str:
    if request.param == "cooperative":
        needs_matrices(gpu)
    if request.param == "subgroup" and not is_cpu_driver(gpu.caps):
        pytest.skip(f"subgroups of {gpu.caps.name} are no vectors of a CPU")
    return str(request.param)


def needs_matrices(gpu: Harness) -> None:
    """Skip without matrices, and with those of a CPU driver, whose small subgroups no tile fits."""
    if float16_shape(gpu.caps) is None or gpu.caps.device_type == "cpu":
        pytest.skip(f"{gpu.caps.name} lists no cooperative matrix of float16 with float32 sums, or is a CPU")


def data(
    case: Case, dtype: str, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """q, k, v [batch, heads, length, size] and the bias, or None."""
    keys = (case.kv_heads, case.keys)
    shapes = ((case.heads, case.queries, case.size), (*keys, case.size), (*keys, case.value_size))
    q, k, v = (rng.standard_normal((case.batch, *shape)).astype(dtype) for shape in shapes)
    bias = None if case.bias is None else rng.standard_normal(case.bias).astype(dtype)
    return q, k, v, bias


def expected(case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    q, k, v = (t.astype(np.float64) for t in (q, k, v))
    k, v = (np.repeat(t, case.heads // case.kv_heads, 1) for t in (k, v))
    scores = q @ k.swapaxes(2, 3) / math.sqrt(case.size)
    if case.softcap:
        scores = case.softcap * np.tanh(scores / case.softcap)
    if bias is not None:
        scores = scores + bias
    place = np.arange(case.keys) - np.arange(case.queries)[:, None]
    seen = np.ones(place.shape, np.bool_)
    if case.first is not None:
        seen &= place >= case.first
    if case.end is not None:
        seen &= place < case.end
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1, total) @ v


def run(
    gpu: Harness,
    kernel: str,
    case: Case,
    dtype: str,
    tensors: tuple[np.ndarray | None, ...],
    tile: AttentionTile | None = None,
    origin: list[int] | None = None,
    **changes: Any,
) -> np.ndarray:
    *heads, bias = tensors

    def lain(t: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(t.swapaxes(1, 2)) if case.merged else t

    shape = (case.batch, case.heads, case.queries, case.value_size)
    y = Tensor.empty((shape[0], shape[2], shape[1], shape[3]) if case.merged else shape, dtype)
    place = None if origin is None else Tensor(np.array(origin, np.int32))
    given = [*(Tensor(lain(t)) for t in heads if t is not None), None if bias is None else Tensor(bias), place]
    problem, tuned = case.problem(dtype, origin=origin is not None, **changes), {}
    if tile is not None:
        sizes = (problem.batch * problem.heads, problem.queries, problem.keys, problem.size, problem.value_size)
        key = " ".join(map(str, ("attention", kernel, *sizes)))
        tuned = {key: dataclasses.astuple(tile)}
        e = Emission(NumpyWorkspace(gpu.caps, tuned), {})
        [call] = Choice(next(c for c in candidates(AttentionProblem) if c.name == kernel)).emit(problem, e)
        assert (call["BLOCK_Q"], call["BLOCK_K"]) == (tile.queries, tile.keys)
    gpu.compute(problem, gpu.caps, [t for t in given if t is not None], [y], candidate=kernel, tuned=tuned)
    return y.array.swapaxes(1, 2) if case.merged else y.array


def emission(caps: DeviceCapabilities) -> Emission:
    """Of operands that are not read."""
    return Emission(NumpyWorkspace(caps), {})


def chosen(problem: AttentionProblem, caps: DeviceCapabilities = GPU) -> KernelCall:
    [call] = choose(problem, caps).emit(problem, emission(caps))
    return call


def check(got: np.ndarray, wanted: np.ndarray) -> None:
    atol = 1e-5 if got.dtype == np.float32 else 4e-3
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=atol, atol=atol)


@pytest.mark.parametrize(("case", "dtype"), alternately(CASES, ["float32", "float16"]))
def test_against_numpy(gpu: Harness, kernel: str, rng: np.random.Generator, case: Case, dtype: str) -> None:
    if dtype == "float32" and kernel == "cooperative":
        pytest.skip("the matrices are of float16")
    tensors = data(case, dtype, rng)
    check(run(gpu, kernel, case, dtype, tensors), expected(case, *tensors))


@pytest.mark.parametrize("tile", [*TILED_TILES, *COOPERATIVE_TILES], ids=str)
def test_every_tile(gpu: Harness, rng: np.random.Generator, tile: AttentionTile) -> None:
    cooperative = tile in COOPERATIVE_TILES
    kernel = "cooperative" if cooperative else "tiled"
    if cooperative:
        needs_matrices(gpu)
    dtype = "float16" if cooperative else "float32"
    size = 64 if cooperative else 32
    case = Case(150, 150, size=size, value_size=size, first=-70, end=20, bias=(1, 1, 150, 150))
    tensors = data(case, dtype, rng)
    check(run(gpu, kernel, case, dtype, tensors, tile), expected(case, *tensors))


def test_a_bias_of_another_type(gpu: Harness, kernel: str, rng: np.random.Generator) -> None:
    case = Small(20, 30, bias=(1, 2, 20, 30))
    q, k, v, bias = data(case, "float16", rng)
    assert bias is not None
    tensors = (q, k, v, bias.astype(np.float32))
    check(run(gpu, kernel, case, "float16", tensors, bias_dtype="float32"), expected(case, *tensors))


def test_a_bias_of_minus_infinity_hides(gpu: Harness, kernel: str, rng: np.random.Generator) -> None:
    case = Small(40, 90, bias=(1, 1, 40, 90))
    q, k, v, bias = data(case, "float16", rng)
    assert bias is not None
    bias[..., :70] = -np.inf
    bias[:, :, 7] = -np.inf
    got = run(gpu, kernel, case, "float16", (q, k, v, bias))
    assert not got[:, :, 7].any()
    check(got, expected(case, q, k, v, bias))


def test_positions_of_each_batch(gpu: Harness, kernel: str, rng: np.random.Generator) -> None:
    origin = [0, 25, -3]
    case = Small(40, 90, batch=3, first=-9, end=2)
    q, k, v, _ = data(case, "float16", rng)
    got = run(gpu, kernel, case, "float16", (q, k, v, None), origin=origin)
    for i, place in enumerate(origin):
        one = dataclasses.replace(case, batch=1, first=place - 9, end=place + 2)
        check(got[i : i + 1], expected(one, q[i : i + 1], k[i : i + 1], v[i : i + 1], None))


def test_nan_fills_its_own_row_only(gpu: Harness, kernel: str, rng: np.random.Generator) -> None:
    case = Small(40, 90)
    q, k, v, _ = data(case, "float16", rng)
    q[0, 1, 13, 5] = np.nan
    got = run(gpu, kernel, case, "float16", (q, k, v, None))
    assert np.isnan(got[0, 1, 13]).all()
    got[0, 1, 13] = 0
    assert np.isfinite(got).all()


def test_nan_of_a_bias_stays_and_that_of_a_hidden_key_does_not(
    gpu: Harness, kernel: str, rng: np.random.Generator
) -> None:
    case = Small(40, 90, bias=(1, 1, 40, 90))
    q, k, v, bias = data(case, "float16", rng)
    assert bias is not None
    k[:, :, 17] = np.nan
    bias[..., 17] = -np.inf
    bias[0, 0, 13, 5] = np.nan
    got = run(gpu, kernel, case, "float16", (q, k, v, bias))
    assert np.isnan(got[:, :, 13]).all()
    k[:, :, 17] = bias[0, 0, 13, 5] = got[:, :, 13] = 0
    wanted = expected(case, q, k, v, bias)
    wanted[:, :, 13] = 0
    check(got, wanted)


def test_large_scores_do_not_overflow(gpu: Harness, kernel: str, rng: np.random.Generator) -> None:
    case = Small(40, 130)
    q, k, v, _ = data(case, "float16", rng)
    q, k = 30 * q, 30 * k
    check(run(gpu, kernel, case, "float16", (q, k, v, None)), expected(case, q, k, v, None))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("finite", [True, False])
def test_a_row_whose_bias_is_the_lowest(
    gpu: Harness, kernel: str, rng: np.random.Generator, finite: bool, dtype: str
) -> None:
    """The lowest finite number hides no key where all keys have it: their values' mean. Minus infinity does: zeros."""
    case = Small(20, 40, bias=(1, 1, 20, 40))
    q, k, v, _ = data(case, "float16", rng)
    lowest = float(np.finfo(dtype).min) if finite else -np.inf
    bias = np.zeros((1, 1, 20, 40), dtype)
    bias[..., 3, :] = lowest
    expects = expected(case, q, k, v, bias)
    expects[..., 3, :] = v.astype(np.float32).mean(axis=2) if finite else 0
    check(run(gpu, kernel, case, "float16", (q, k, v, bias), bias_dtype=dtype), expects)


@pytest.mark.parametrize("alignment", [2, 16])
def test_addresses_that_are_not_aligned(gpu: Harness, kernel: str, rng: np.random.Generator, alignment: int) -> None:
    case = Small(20, 30, bias=(1, 1, 20, 30))
    tensors = data(case, "float16", rng)
    operands = [Tensor(t, offset=alignment) for t in tensors if t is not None]
    y = Tensor.empty((1, 2, 20, 16), np.float16)
    y.offset = alignment
    problem = case.problem("float16", alignment=alignment)
    gpu.compute(problem, gpu.caps, operands, [y], candidate=kernel, indirect=True)
    check(y.array, expected(case, *tensors))


class TestSelection:
    def test_a_gpu_takes_it_and_a_cpu_driver_where_queries_do_not_see_all_keys(self) -> None:
        for end in (None, 1):
            case = Case(128, 128, heads=12, kv_heads=12, end=end)
            assert gains_by_attention(case.problem("float16"), GPU)
            assert not gains_by_attention(case.problem("float16"), CPU)
            assert gains_by_attention(case.problem("float32"), CPU) is (end == 1)
        assert chosen(case.problem("float32"), CPU).variant.source == "attention_subgroup.comp"
        for other in (Case(8, 128, end=121), Case(128, 128, value_size=2048, end=1)):
            assert not gains_by_attention(other.problem("float32"), CPU)

    def test_words_of_two_elements_are_for_a_cpu_driver_that_has_them(self) -> None:
        for features, size, pairs in ((GPU.features, 64, 1), (GPU.features - {"int64"}, 64, 0), (GPU.features, 7, 0)):
            device = dataclasses.replace(CPU, features=features)
            call = chosen(Case(64, 64, 64, size, end=1).problem("float32"), device)
            assert (call.spec.get("ROW_PAIRS", 0), call.spec.get("COLUMN_PAIRS", 0)) == (pairs, pairs)
            assert ("PAIRS" in call.defines) == bool(pairs)

    @pytest.mark.parametrize(
        ("dtype", "size", "taken"),
        [("float16", 64, True), ("float16", 128, True), ("float16", 256, False), ("float32", 64, False)],
    )
    def test_heads_and_types_that_gain_by_it(self, dtype: str, size: int, taken: bool) -> None:
        case = Case(2048, 2048, size, size, heads=16, kv_heads=16)
        assert gains_by_attention(case.problem(dtype), GPU) is taken

    def test_float16_is_computed_on_matrices(self) -> None:
        sources = [chosen(Case(128, 128).problem(t)).variant.source for t in ("float32", "float16")]
        assert sources == ["attention_tiled.comp", "attention_coop.comp"]
        plain = dataclasses.replace(GPU, cooperative_matrix_shapes=())
        call = chosen(Case(128, 128).problem("float16"), plain)
        assert call.variant.source == "attention_tiled.comp"

    def test_few_queries_and_long_chains_are_better_with_scores_in_memory(self) -> None:
        assert not gains_by_attention(Case(8, 1000, heads=32, kv_heads=8).problem("float16"), GPU)
        assert not gains_by_attention(Case(16, 1 << 16, heads=1, kv_heads=1).problem("float16"), GPU)
        assert gains_by_attention(Case(1 << 12, 1 << 16, heads=8, kv_heads=8).problem("float16"), GPU)

    def test_tiles_fill_the_device_or_fit_its_memory(self) -> None:
        def tile(problem: AttentionProblem, caps: DeviceCapabilities = GPU) -> tuple[int, ...]:
            call = chosen(problem, caps)
            rows = "SUB_ROWS" if "SUB_ROWS" in call.spec else "MICRO_ROWS"
            return tuple(call.spec[name] for name in ("BLOCK_Q", "BLOCK_K", rows))

        assert tile(Case(128, 128, heads=384, kv_heads=384).problem("float16")) == (128, 32, 32)
        assert tile(Case(128, 128, heads=12, kv_heads=12).problem("float16")) == (64, 32, 16)
        assert tile(Case(2048, 128, 128, 128, heads=16).problem("float16")) == (128, 32, 16)
        small = dataclasses.replace(GPU, max_shared_memory_bytes=16384)
        assert tile(Case(2048, 128, heads=16).problem("float32"), small) == (16, 16, 4)

    def test_arguments_fit_push_constants(self) -> None:
        assert chosen(Case(128, 128).problem("float16")).argument_bytes <= 128

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_lanes_reach_what_the_problem_needs(self, case: Case) -> None:
        problem = case.problem("float16", origin=True)
        wanted = {n.name: n.extent * DTYPES[n.dtype].itemsize for n in (*problem.needs(), *problem.makes())}
        for candidate in candidates(AttentionProblem):
            if candidate.name in ("stream", "split"):  # for fewer queries, tests/kernels/test_attention_split.py
                continue
            caps = CPU if candidate.name == "subgroup" else GPU
            assert candidate.when(problem, caps) == ""
            [call] = Choice(candidate).emit(problem, emission(caps))
            assert {name: call.reaches()[name] for name in wanted} == wanted

    def test_hidden_keys_cost_nothing(self) -> None:
        def flops(**changes: Any) -> int:
            case = Case(4096, 4096, heads=16, kv_heads=16, **changes)
            return chosen(case.problem("float16")).flops

        everything = 4 * 16 * 4096 * 4096 * 64
        assert flops() == everything
        assert 0.5 < flops(end=1) / everything < 0.53
        assert flops(end=1, first=-255) / everything < 0.11

    @pytest.mark.parametrize(
        "changes",
        [
            {"dtype": "bfloat16"},
            {"kv_heads": 3},
            {"keys": 1 << 30},
            {"q_strides": (0, 0, -1)},
            {"bias_strides": (0, 0, 1, 20)},
        ],
    )
    def test_sizes_beyond_its_addresses_are_refused(self, changes: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="attention"):
            Case(20, 20).problem(**{"dtype": "float16", **changes})

    def test_a_head_that_no_tile_fits_is_refused(self) -> None:
        problem = Case(64, 64, size=2048).problem("float32")
        assert not gains_by_attention(problem, GPU)
        with pytest.raises(Decline, match="no tile"):
            choose(problem, GPU)

    def test_a_grid_beyond_the_device_s_limit_is_folded(self) -> None:
        many = Case(16, 16, batch=1 << 16, heads=1, kv_heads=1).problem("float16")
        assert gains_by_attention(many, GPU)
        (call,) = emit(many, NumpyWorkspace(GPU), ["q", "k", "v"], ["y"])
        assert call.groups == (1, 1, 1 << 16) and max(call.grid) < 1 << 16
