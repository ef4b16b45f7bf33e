"""Attention of few queries, its keys shared among workgroups, against numpy in float64, as each kind of device selects it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.devices import GPU
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor
from tests.kernels.test_attention import Case, check, data, expected
from tools.fuzz.attention_reference import coded, numbers
from vkep.dtypes import DTYPES
from vkep.kernels.attention import split as attention_split
from vkep.kernels.attention import stream as attention_stream
from vkep.kernels.attention.attention import gains_by_attention
from vkep.kernels.attention.problem import AttentionProblem
from vkep.kernels.kernel import KernelCall
from vkep.kernels.select import Emission, candidates, choose

WAYS = ("stream", "split")
#: a GPU's subgroups of four lanes hold rows of 16 elements at most
EACH_DEVICE = pytest.mark.parametrize(
    "caps", ["cpu", pytest.param("discrete", marks=pytest.mark.wide), "plain"], indirect=True
)
CASES = [
    Case(1, 40),
    Case(1, 300, heads=8, kv_heads=2, batch=2),
    Case(1, 300, heads=6, kv_heads=2, merged=True),
    Case(1, 200, size=16, heads=4, kv_heads=2, batch=32),  # many sequences
    Case(4, 90, size=80, value_size=40, heads=4, kv_heads=1, batch=2),
    Case(3, 70, size=10, value_size=7),  # elements one by one
    Case(2, 500, size=128, value_size=256, first=-9, end=300),
    Case(1, 600, end=-2),  # no key is seen
    *(Case(2, 70, batch=2, heads=4, kv_heads=2, bias=bias) for bias in ((2, 4, 2, 70), (2, 1, 1, 70), (1, 4, 2, 1))),
    Case(1, 290, bias=(1, 1, 1, 290), first=-280, end=250, softcap=2.0),
]


@pytest.fixture(autouse=True)
def few_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several subgroups are enough, and compile faster."""
    monkeypatch.setattr(attention_stream, "_LANES", 64)


def way(problem: AttentionProblem, caps: DeviceCapabilities) -> str:
    """The first candidate of few queries that takes a problem."""
    return next(c.name for c in candidates(AttentionProblem) if c.name in WAYS and not c.when(problem, caps))


def run(gpu: Harness, caps: DeviceCapabilities, case: Case, dtype: str, sink: np.ndarray | None = None) -> None:
    tensors = data(case, dtype, np.random.default_rng(5))
    *heads, bias = tensors
    shape = (case.batch, case.heads, case.queries, case.value_size)
    y = Tensor.empty((shape[0], shape[2], shape[1], shape[3]) if case.merged else shape, dtype)
    given = [Tensor(np.ascontiguousarray(t.swapaxes(1, 2)) if case.merged else t) for t in heads]
    given += [Tensor(t) for t in (bias, sink) if t is not None]
    problem = case.problem(dtype, sink=sink is not None)
    target = gpu.compute(problem, caps, given, [y], candidate=way(problem, caps))
    assert not any(t.array.any() for t in target.tensors if t.array.dtype == np.uint32), "counters are left at zero"
    got = y.array.swapaxes(1, 2) if case.merged else y.array
    wanted = expected(case, *tensors)
    if sink is not None:
        q, k, _ = (t.astype(np.float64) for t in heads)
        scores = q @ np.repeat(k, case.heads // case.kv_heads, 1).swapaxes(2, 3) / math.sqrt(case.size)
        powers = np.exp(scores).sum(-1, keepdims=True)
        wanted = wanted * powers / (powers + np.exp(sink.astype(np.float64))[None, :, None, None])
    check(got, wanted)


@EACH_DEVICE
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_numpys(gpu: Harness, caps: DeviceCapabilities, case: Case, dtype: str) -> None:
    run(gpu, caps, case, dtype)


@EACH_DEVICE
@pytest.mark.parametrize("held", [1, 8])
def test_one_workgroup_reads_its_keys_in_several_turns(
    gpu: Harness, caps: DeviceCapabilities, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 8 keys a lane has several scores of a row, with one its lanes have copies."""
    monkeypatch.setattr(attention_stream, "_HELD", held)
    monkeypatch.setattr(attention_split, "_GROUPS", 0)
    run(gpu, dataclasses.replace(caps, compute_units=1), Case(1, 700, heads=8, kv_heads=2, first=-650), "float16")


@EACH_DEVICE
def test_surplus_workgroups_of_a_folded_grid_do_not_arrive(gpu: Harness, caps: DeviceCapabilities) -> None:
    """15 workgroups, as 2 by 8."""
    few = dataclasses.replace(caps, max_workgroup_count=(2, *caps.max_workgroup_count[1:]))
    run(gpu, few, Case(1, 90, heads=5, kv_heads=5), "float32")


@EACH_DEVICE
@pytest.mark.parametrize("keys", [20, 400])
def test_a_sink_counts_once_however_many_blocks_there_are(gpu: Harness, caps: DeviceCapabilities, keys: int) -> None:
    run(gpu, caps, Case(1, keys, heads=4, kv_heads=2), "float32", np.array([0.5, -1, 3, 9], np.float32))


_WIDE = Case(1, 300, size=32, value_size=64, heads=8, kv_heads=2, batch=2)
_ODD = Case(2, 40, size=10, value_size=7, heads=2, kv_heads=1)  # elements one by one


@EACH_DEVICE
@pytest.mark.parametrize(
    ("case", "coding", "channels"),
    [
        (_WIDE, "int8", True),
        (_WIDE, "uint8", False),
        (_WIDE, "float8_e4m3fn", False),
        (_WIDE, "bfloat16", False),
        (_ODD, "uint8", True),
        (_ODD, "int8", False),
        (Case(1, 90, size=16, value_size=24, heads=2, kv_heads=2), "uint8", True),
    ],
    ids=str,
)
def test_keys_and_values_in_codes(
    gpu: Harness, caps: DeviceCapabilities, case: Case, coding: str, channels: bool
) -> None:
    rng = np.random.default_rng(7)
    q, k, v, _ = data(case, "float32", rng)
    held, scaled = DTYPES[coding].numpy, coding != "bfloat16"
    codes, numbers_of, scales = [], [], []
    for t in (k, v):
        scale = rng.uniform(0.02, 0.05, (case.kv_heads, 1, t.shape[3]) if channels else (1, 1, 1)).astype(np.float32)
        scale *= 10 if coding == "uint8" else 1
        codes.append(coded(t, scale, held) if scaled else t.astype(held))
        numbers_of.append(numbers(codes[-1], scale, t.shape[3]) if scaled else codes[-1].astype(np.float64))
        scales += [Tensor(scale.reshape(-1))] if scaled else []
    packs = 2 if coding == "uint8" else 1
    widths = [-(-t.shape[3] // packs) for t in (k, v)]
    strides = [(case.kv_heads * case.keys * w, case.keys * w, w) for w in widths]
    problem = dataclasses.replace(
        case.problem("float32"),
        coding=coding,
        k_strides=strides[0],
        v_strides=strides[1],
        k_channels=channels,
        v_channels=channels,
    )
    y = Tensor.empty((case.batch, case.heads, case.queries, case.value_size), np.float32)
    gpu.compute(problem, caps, [Tensor(q), *map(Tensor, codes), *scales], [y], candidate=way(problem, caps))
    check(y.array, expected(case, q, numbers_of[0], numbers_of[1], None))


@EACH_DEVICE
def test_keys_past_the_end_are_not_read(gpu: Harness, caps: DeviceCapabilities) -> None:
    """What a cache holds beyond a sequence's end may be NaN."""
    case = Case(1, 200, batch=2)
    q, k, v, _ = data(case, "float32", np.random.default_rng(6))
    ends = [39, 150]  # of each sequence: the position of its query
    wanted = []
    for b, last in enumerate(ends):
        known = dataclasses.replace(case, keys=last + 1, batch=1)
        wanted.append(expected(known, q[b : b + 1], k[b : b + 1, :, : last + 1], v[b : b + 1, :, : last + 1], None))
        k[b, :, last + 1 :] = v[b, :, last + 1 :] = np.nan
    y = Tensor.empty((2, case.heads, 1, case.value_size), np.float32)
    problem = case.problem("float32", origin=True, end=1)
    given = [Tensor(t) for t in (q, k, v, np.array(ends, np.int32))]
    gpu.compute(problem, caps, given, [y], candidate=way(problem, caps))
    check(y.array, np.concatenate(wanted))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", WAYS)
@pytest.mark.every_case
def test_lanes_reach_what_the_problem_needs(case: Case, dtype: str, name: str) -> None:
    problem = case.problem(dtype, origin=True, sink=True)
    candidate = next(c for c in candidates(AttentionProblem) if c.name == name)
    if candidate.when(problem, GPU):
        pytest.skip("rows that are not aligned")
    operands = (*problem.needs(), *problem.makes())
    wanted = {need.name: need.extent * DTYPES[need.dtype].itemsize for need in operands}
    e = Emission(NumpyWorkspace(GPU), dict.fromkeys(wanted))
    call = candidate.emit(problem, e)
    assert isinstance(call, KernelCall)
    reaches = call.reaches()
    assert {name: reaches[name] for name in wanted} == wanted


@EACH_DEVICE
def test_a_decoders_step_is_split_on_a_gpu_and_a_prompt_is_not(caps: DeviceCapabilities) -> None:
    step, prompt = Case(1, 512, heads=8, kv_heads=2), Case(64, 64)
    assert gains_by_attention(step.problem("float16"), caps) == (caps.device_type != "cpu")
    assert choose(step.problem("float16"), caps).candidate.name == way(step.problem("float16"), caps)
    assert choose(prompt.problem("float32"), caps).candidate.name not in WAYS


def test_a_gpu_reads_keys_and_values_in_one_pass() -> None:
    for dtype in ("float32", "float16"):
        assert way(Case(1, 512, size=128, value_size=128, heads=8, kv_heads=2).problem(dtype), GPU) == "stream"
    assert way(Case(3, 70, size=10, value_size=7).problem("float16"), GPU) == "split"
