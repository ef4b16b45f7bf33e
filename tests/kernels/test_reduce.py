"""Reductions and arg-reductions against numpy at float64."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, NumpyWorkspace, Tensor, devices_in_turns
from vkep.dtypes import DTYPES
from vkep.errors import Decline
from vkep.kernels.kernel import KernelCall
from vkep.kernels.launch import is_cpu
from vkep.kernels.reductions.argreduce import ArgReduceProblem
from vkep.kernels.reductions.cumsum import ScanProblem
from vkep.kernels.reductions.reduce import REDUCE_OPS, ReduceProblem
from vkep.kernels.select import choose, emit

OPS = sorted(REDUCE_OPS)
#: columns and rows, odd and even, short and long, few and many
SHAPES = [(1, 1, 1), (3, 37, 1), (2, 5, 7), (5, 300, 1), (700, 9, 1), (3, 1030, 2), (1, 64, 33), (2, 3, 600)]


def expected(op: str, x: np.ndarray) -> np.ndarray:
    """The reduction of the middle axis in float64 (or exactly, for integers)."""
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x
    with np.errstate(all="ignore"):
        if op == "sum":
            return wide.sum(1, dtype=wide.dtype)
        if op == "mean":
            return wide.mean(1) if x.dtype.kind == "f" else np.trunc(wide.sum(1) / x.shape[1])
        if op == "max":
            return wide.max(1)
        if op == "min":
            return wide.min(1)
        if op == "prod":
            return wide.prod(1, dtype=wide.dtype)
        if op == "sumsq":
            return (wide * wide).sum(1, dtype=wide.dtype)
        if op == "l1":
            return np.abs(wide).sum(1, dtype=wide.dtype)
        if op == "l2":
            return np.sqrt((wide.astype(np.float64) ** 2).sum(1))
        if op == "logsum":
            return np.log(wide.astype(np.float64).sum(1))
        if op == "logsumexp":
            top = wide.max(1, keepdims=True).astype(np.float64)
            return np.log(np.exp(wide - top).sum(1)) + top[:, 0]
        if op == "all":
            return (wide != 0).all(1)
        if op == "any":
            return (wide != 0).any(1)
    raise NotImplementedError(op)


def run(gpu: Harness, caps: DeviceCapabilities, op: str, array: np.ndarray, dtype: str, **how: Any) -> np.ndarray:
    outer, axis, inner = array.shape
    y = Tensor.empty((outer, inner), array.dtype)
    gpu.compute(ReduceProblem(outer, axis, inner, dtype, op), caps, [Tensor(array)], [y], **how)
    return y.array


@devices_in_turns("op", [op for op in OPS if op not in ("all", "any")])
def test_float32_over_shapes(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, op: str) -> None:
    for shape in SHAPES:
        x = rng.uniform(0.5, 1.5, shape) if op in ("prod", "logsum") else rng.normal(size=shape) * 4
        x = x.astype(np.float32)
        if op == "prod":
            x = x ** np.float32(4 / shape[1])  # keeps long products in range
        got = run(gpu, caps, op, x, "float32")
        scale = max(1.0, float(np.abs(expected("l1" if op in ("sum", "mean") else op, x)).max()))
        np.testing.assert_allclose(got, expected(op, x), rtol=3e-6, atol=1e-6 * scale, err_msg=f"{op} {shape}")


@pytest.mark.parametrize("op", ["sum", "mean", "max", "l2", "logsumexp"])
def test_float16_accumulates_in_float32(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, op: str
) -> None:
    for shape in [(3, 2500, 1), (2, 513, 3)]:
        x = rng.uniform(-1, 2, shape).astype(np.float16)
        got = run(gpu, caps, op, x, "float16")
        assert got.dtype == np.float16
        np.testing.assert_allclose(got.astype(np.float64), expected(op, x), rtol=1e-3, err_msg=f"{op} {shape}")


@devices_in_turns("dtype", ["int32", "int64", "uint8", "int8", "uint32", "uint64"])
def test_integers(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str) -> None:
    low = 0 if dtype.startswith("u") else -5
    for op in ("sum", "mean", "max", "min", "prod", "sumsq", "l1"):
        for shape in [(3, 5, 1), (2, 17, 3), (1, 90, 1)]:
            if op in ("prod",) and shape[1] > 5:
                continue
            x = rng.integers(low, 6, shape).astype(dtype)
            got = run(gpu, caps, op, x, dtype)
            want = expected(op, x.astype(np.int64)).astype(np.int64).astype(dtype)  # wraps where the type is too small
            if op == "mean" and np.abs(x.astype(np.int64).sum(1)).max() > np.iinfo(dtype).max:
                continue
            np.testing.assert_array_equal(got, want, err_msg=f"{op} {shape}")


def test_int64_beyond_32_bits(gpu: Harness, caps: DeviceCapabilities) -> None:
    x = np.array([[[2**40], [-(2**41)], [7]]], np.int64)
    assert run(gpu, caps, "sum", x, "int64")[0, 0] == 2**40 - 2**41 + 7
    assert run(gpu, caps, "min", x, "int64")[0, 0] == -(2**41)


def test_booleans(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator) -> None:
    x = rng.uniform(size=(40, 3, 2)) < 0.6
    np.testing.assert_array_equal(run(gpu, caps, "all", x, "bool"), x.all(1))
    np.testing.assert_array_equal(run(gpu, caps, "any", x, "bool"), x.any(1))


def test_bfloat16(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator) -> None:
    x = rng.normal(size=(4, 33, 1)).astype(DTYPES["bfloat16"].numpy)
    got = run(gpu, caps, "l2", x, "bfloat16").astype(np.float64)
    np.testing.assert_allclose(got, np.sqrt((x.astype(np.float64) ** 2).sum(1)), rtol=2**-8)


@pytest.mark.parametrize("op", ["sum", "mean", "max", "l1", "l2", "sumsq", "logsum", "logsumexp", "min"])
def test_one_long_column_takes_two_passes(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, op: str
) -> None:
    x = rng.uniform(0.1, 1.0, (1, 100_003, 1)).astype(np.float32)
    y, workspace = Tensor.empty((1, 1), np.float32), NumpyWorkspace(caps)
    calls = emit(ReduceProblem(1, 100_003, 1, "float32", op), workspace, [Tensor(x)], [y])
    assert len(calls) == 2 and len(workspace.tensors) == 1
    gpu.run(calls)
    np.testing.assert_allclose(y.array, expected(op, x), rtol=2e-6)


def test_two_passes_of_float16_keep_float32_partials(gpu: Harness, caps: DeviceCapabilities) -> None:
    x = np.full((1, 1 << 16, 1), 1.0, np.float16)
    y = Tensor.empty((1, 1), np.float16)
    workspace = gpu.compute(ReduceProblem(1, 1 << 16, 1, "float16", "mean"), caps, [Tensor(x)], [y])
    assert workspace.tensors[0].array.dtype == np.float32  # 65536 is no float16
    assert y.array[0, 0] == 1.0


#: shapes that a lane reads by units of sixteen bytes (of 2-byte elements, on a CPU driver also of 4-byte ones): rows,
#: columns, all, a unit of columns; few and many loads a lane, axes that end within a batch of loads, workgroups with lanes
#: to spare
UNIT_SHAPES = [(3, 8, 1), (5, 328, 1), (300, 40, 1), (3, 37, 24), (2, 530, 8), (1, 77, 1000)]


def run_units(
    gpu: Harness, caps: DeviceCapabilities, op: str, array: np.ndarray, dtype: str, **kwargs: bool
) -> tuple[np.ndarray, list[KernelCall]]:
    outer, axis, inner = array.shape
    y = Tensor.empty((outer, inner), array.dtype)
    problem = ReduceProblem(outer, axis, inner, dtype, op, alignment=16)
    calls = emit(problem, NumpyWorkspace(caps), [Tensor(array)], [y])
    gpu.run(calls, **kwargs)
    return y.array, calls


def unit_of(call: KernelCall) -> tuple[int, bool]:
    """Elements a load, and whether they are of neighbouring columns."""
    defines = dict(call.variant.defines)
    return int(defines.get("UNIT_ELEMENTS", "1u").rstrip("u")), "UNIT_COLUMNS" in defines


def expected_unit(caps: DeviceCapabilities, x: np.ndarray) -> tuple[int, bool]:
    """What `unit_of` returns for `UNIT_SHAPES`."""
    each = 16 // x.dtype.itemsize
    return (each, x.shape[2] > 1) if each > 4 or is_cpu(caps) else (1, False)


@devices_in_turns(
    "of",
    [(dtype, op) for dtype in ("float16", "float32") for op in OPS if op not in ("all", "any")]
    + [("bfloat16", op) for op in ("sum", "mean", "max", "logsumexp")],
)
def test_units_of_floats(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, of: tuple[str, str]) -> None:
    dtype, op = of
    for shape in UNIT_SHAPES:
        x = rng.uniform(0.5, 1.5, shape) if op in ("prod", "logsum") else rng.normal(size=shape) * 4
        if op == "prod":
            x = x ** (4 / shape[1])
        x = x.astype(DTYPES[dtype].numpy)
        got, calls = run_units(gpu, caps, op, x, dtype)
        assert unit_of(calls[0]) == expected_unit(caps, x)
        want = expected(op, x.astype(np.float64))
        scale = float(np.abs(expected("l1" if op in ("sum", "mean") else op, x.astype(np.float64))).max())
        ulp = {"float32": 3e-6, "float16": 2**-10, "bfloat16": 2**-7}[dtype]
        np.testing.assert_allclose(got.astype(np.float64), want, ulp, 1e-6 * scale, err_msg=f"{op} {shape}")


@pytest.mark.parametrize("op", ["sum", "mean", "max", "l2", "logsumexp"])
@pytest.mark.parametrize("shape", [(1, 1 << 17, 1), (2, 33_336, 1), (1, 9001, 16), (1, 20_000, 40)])
def test_units_in_two_passes(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, op: str, shape: tuple[int, int, int]
) -> None:
    x = rng.uniform(0.0, 0.01, shape).astype(np.float16)
    got, calls = run_units(gpu, caps, op, x, "float16")
    assert len(calls) == 2 and calls[0].grid[2] > 1
    assert [unit_of(call) for call in calls] == [(8, shape[2] > 1), (1, False)]
    np.testing.assert_allclose(got.astype(np.float64), expected(op, x), rtol=1e-3)


def test_units_need_whole_groups_and_aligned_addresses(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator
) -> None:
    for shape in [(3, 37, 1), (3, 1, 1), (2, 16, 12), (1, 2004, 1), (1, 12, 3)]:
        x = rng.normal(size=shape).astype(np.float16)
        got, calls = run_units(gpu, caps, "sum", x, "float16")
        assert unit_of(calls[0]) == (1, False)
        np.testing.assert_allclose(got.astype(np.float64), expected("sum", x), rtol=1e-3, atol=1e-2)
    for shape in [(3, 64, 1), (2, 16, 8)]:  # an address between two units
        x = rng.normal(size=shape).astype(np.float16)
        y = Tensor.empty((shape[0], shape[2]), np.float16)
        problem = ReduceProblem(*shape, "float16", alignment=8)
        calls = emit(problem, NumpyWorkspace(caps), [Tensor(x, offset=8)], [y])
        gpu.run(calls)
        assert unit_of(calls[0]) == (1, False)
        np.testing.assert_allclose(y.array.astype(np.float64), expected("sum", x), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("op", ["max", "min", "sum", "logsumexp"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_nan_propagates_within_units(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, op: str, dtype: str
) -> None:
    for inner in (1, 8):
        x = rng.normal(size=(2, 104, inner)).astype(DTYPES[dtype].numpy)
        for position in (0, 7, 33, 103):
            spoilt = x.copy()
            spoilt[1, position, inner - 1] = np.nan
            got = run_units(gpu, caps, op, spoilt, dtype)[0].astype(np.float32)
            assert np.isnan(got[1, -1]) and np.isnan(got).sum() == 1


@devices_in_turns("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"])
def test_units_of_integers(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str) -> None:
    signed = dtype.startswith("int")
    for op in ("all", "any") if dtype == "bool" else ("sum", "min", "l1"):
        for shape in [(3, 32, 1), (2, 21, 32), (1, 9, 160), (1, 4000, 1)]:
            x = (rng.uniform(size=shape) < 0.9) if dtype == "bool" else rng.integers(-99 if signed else 0, 100, shape)
            x = x.astype(dtype)
            got, calls = run_units(gpu, caps, op, x, dtype)
            assert unit_of(calls[0]) == expected_unit(caps, x)
            want = expected(op, x if dtype == "bool" else x.astype(np.int64)).astype(np.int64).astype(dtype)
            np.testing.assert_array_equal(got, want, err_msg=f"{op} {shape}")


def test_units_with_indirect_and_in_memory_arguments(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator
) -> None:
    for shape in [(3, 64, 1), (3, 50, 8)]:
        x = rng.uniform(size=shape).astype(np.float16)
        got, _ = run_units(gpu, caps, "mean", x, "float16", indirect=True, in_memory=True)
        np.testing.assert_allclose(got.astype(np.float64), expected("mean", x), rtol=1e-3)


def test_an_empty_axis_under_units_fills_the_identity(gpu: Harness, caps: DeviceCapabilities) -> None:
    for shape in [(2, 0, 1), (2, 0, 8)]:
        got, _ = run_units(gpu, caps, "max", np.zeros(shape, np.float16), "float16")
        np.testing.assert_array_equal(got, np.full((2, shape[2]), -np.inf, np.float16))


@pytest.mark.parametrize("op", ["max", "min", "sum", "logsumexp"])
def test_nan_propagates(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, op: str) -> None:
    for position in (0, 5, 99):
        for inner in (1, 3):
            x = rng.normal(size=(2, 100, inner)).astype(np.float32)
            x[1, position, 0] = np.nan
            got = run(gpu, caps, op, x, "float32")
            assert np.isnan(got[1, 0]) and np.isfinite(got[0]).all()


def test_infinities_in_logsumexp(gpu: Harness, caps: DeviceCapabilities) -> None:
    inf = np.inf
    x = np.array([[1, inf, 2], [-inf, -inf, -inf], [3, -inf, -inf], [1000, 1000, -1000]], np.float32)[:, :, None]
    want = [[inf], [-inf], [3.0], [1000 + math.log(2)]]
    np.testing.assert_allclose(run(gpu, caps, "logsumexp", x, "float32"), want, rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "value"),
    [("sum", 0), ("prod", 1), ("max", -np.inf), ("min", np.inf), ("mean", np.nan), ("logsumexp", -np.inf), ("l2", 0)],
)
def test_empty_axis_fills_the_identity(gpu: Harness, caps: DeviceCapabilities, op: str, value: float) -> None:
    got = run(gpu, caps, op, np.zeros((2, 0, 3), np.float32), "float32")
    np.testing.assert_array_equal(got, np.full((2, 3), value, np.float32))


def test_empty_axis_of_integers(gpu: Harness, caps: DeviceCapabilities) -> None:
    for dtype in ("int8", "int32", "int64", "uint64"):
        info, empty = np.iinfo(dtype), np.zeros((1, 0, 2), dtype)
        assert (run(gpu, caps, "max", empty, dtype) == info.min).all()
        assert (run(gpu, caps, "min", empty, dtype) == info.max).all()


def test_indirect_and_in_memory_arguments(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator) -> None:
    x = rng.normal(size=(3, 50, 2)).astype(np.float32)
    for kwargs in ({"indirect": True}, {"in_memory": True}, {"indirect": True, "in_memory": True}):
        np.testing.assert_allclose(run(gpu, caps, "sum", x, "float32", **kwargs), x.sum(1, dtype=np.float64), atol=1e-5)


def test_results_repeat_exactly(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 5000, 1)).astype(np.float32)
    assert run(gpu, caps, "sum", x, "float32").tobytes() == run(gpu, caps, "sum", x, "float32").tobytes()


def test_what_is_turned_down(caps: DeviceCapabilities) -> None:
    for problem, why in {
        ReduceProblem(2**16, 2**16, 1, "float32"): "fewer than 2\\*\\*31",
        ReduceProblem(1, 4, 1, "float64", "logsum"): "no float64 kernel",
        ArgReduceProblem(2, 0, 3, "float32"): "axis is empty",
    }.items():
        with pytest.raises(Decline, match=why):
            choose(problem, caps)


def run_arg(gpu: Harness, caps: DeviceCapabilities, op: str, array: np.ndarray, last: bool = False) -> np.ndarray:
    outer, axis, inner = array.shape
    y = Tensor.empty((outer, inner), np.int64)
    problem = ArgReduceProblem(outer, axis, inner, array.dtype.name, op == "max", last)
    gpu.compute(problem, caps, [Tensor(array)], [y])
    return y.array


@devices_in_turns("dtype", ["float32", "float16", "float64", "int32", "int64", "uint8", "int8"])
def test_arg_reductions_with_ties(gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str) -> None:
    for shape in [(1, 1, 1), (4, 37, 1), (2, 9, 50), (3, 700, 1), (1, 33, 2)]:
        x = rng.integers(0 if dtype == "uint8" else -4, 5, shape).astype(dtype)
        np.testing.assert_array_equal(run_arg(gpu, caps, "max", x), x.argmax(1))
        np.testing.assert_array_equal(run_arg(gpu, caps, "min", x), x.argmin(1))
        last = shape[1] - 1 - x[:, ::-1].argmax(1)
        np.testing.assert_array_equal(run_arg(gpu, caps, "max", x, last=True), last)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_arg_reductions_of_long_rows(
    gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, dtype: str
) -> None:
    x = rng.integers(-40, 40, (3, (1 << 14) + 37, 1)).astype(dtype)
    last = x.shape[1] - 1 - x[:, ::-1].argmax(1)
    np.testing.assert_array_equal(run_arg(gpu, caps, "max", x), x.argmax(1))
    np.testing.assert_array_equal(run_arg(gpu, caps, "max", x, last=True), last)
    x[1, 16000:] = -41  # in one of the last parts
    np.testing.assert_array_equal(run_arg(gpu, caps, "min", x), x.argmin(1))
    if dtype != "int64":
        x[2, 9000] = np.nan
        np.testing.assert_array_equal(run_arg(gpu, caps, "max", x), x.argmax(1))


def test_arg_reductions_of_special_floats(gpu: Harness, caps: DeviceCapabilities) -> None:
    x = np.array([[-0.0, 0.0, -1e-40, 1e-40], [np.inf, 3, np.nan, np.nan], [-np.inf, -np.inf, -3, 2]], np.float32)[
        :, :, None
    ]
    np.testing.assert_array_equal(run_arg(gpu, caps, "max", x[1:])[:, 0], [2, 3])
    np.testing.assert_array_equal(run_arg(gpu, caps, "min", x[1:])[:, 0], [2, 0])
    zeros = np.array([[[-0.0], [0.0]]], np.float32)
    assert run_arg(gpu, caps, "max", zeros)[0, 0] == 0 == run_arg(gpu, caps, "min", zeros)[0, 0]


def test_long_words_are_for_cpu_drivers_that_have_them() -> None:
    caps = DeviceCapabilities.for_tests()
    for problem in (ReduceProblem(64, 768, 1, "float32", "max", alignment=16), ScanProblem(1, 64, 768, "float32")):
        aligned = dataclasses.replace(problem, alignment=16)
        for features in (caps.features, caps.features - {"int64"}):
            device = dataclasses.replace(caps, features=features)
            calls = emit(aligned, NumpyWorkspace(device), [1], [2])
            words = [set(dict(call.variant.defines)) & {"UNIT_PAIRS", "PAIRS"} for call in calls]
            assert all(map(bool, words)) == ("int64" in features)
