"""The fused elementwise kernel on GPUs: transposed inputs go through tiles, linear ones two units a lane."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest

from gpu_shared.capabilities import DeviceCapabilities
from tests.kernels.harness import Harness, Tensor
from vkep.dtypes import DTYPES
from vkep.ir.tensor import collapse
from vkep.kernels import pointwise as module
from vkep.kernels.kernel import KernelCall
from vkep.kernels.pointwise import PointwiseOperand, pointwise


@pytest.fixture
def caps(caps: DeviceCapabilities, gpu: Harness) -> DeviceCapabilities:
    """With all lanes: a workgroup of ``pointwise_tile.comp`` has 256."""
    return dataclasses.replace(caps, max_workgroup_invocations=gpu.caps.max_workgroup_invocations)


def strides_of(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def calls_for(
    x: np.ndarray,
    perm: Sequence[int],
    other: np.ndarray | None,
    y: Tensor,
    operands: list[Tensor],
    caps: DeviceCapabilities,
) -> list[KernelCall]:
    """``y = x.transpose(perm) * 2 + other``, ``other`` being of the result's shape."""
    kind = DTYPES[str(x.dtype)]
    out_shape = [x.shape[p] for p in perm]
    sets = [strides_of(out_shape), [strides_of(x.shape)[p] for p in perm]]
    sets += [strides_of(out_shape)] if other is not None else []
    dims, merged = collapse(out_shape, sets)
    bound = [PointwiseOperand(t, kind, tuple(s), 0) for t, s in zip([y, *operands], merged, strict=True)]
    params = ", ".join(f"float x{k}" for k in range(len(operands)))
    body = "x0 * 2.0" + (" + x1" if other is not None else "")
    function = f"{kind.glsl} compute({params}) {{ return {kind.glsl}({body}); }}"
    return pointwise(dims, bound[0], bound[1:], function, (), caps)


CASES = [
    ((70, 45), (1, 0)),
    ((130, 64), (1, 0)),
    ((3, 33, 70), (0, 2, 1)),
    ((2, 3, 20, 40), (3, 1, 2, 0)),
    ((2, 17, 3, 40), (0, 3, 2, 1)),
    ((5, 4, 65, 16), (1, 3, 0, 2)),
    ((3, 66, 70), (0, 2, 1)),
    ((2, 3, 36, 130), (3, 1, 0, 2)),
    ((34, 5, 42), (2, 1, 0)),
]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("shape", "perm"), CASES)
def test_transposed_inputs(
    shape: tuple[int, ...],
    perm: tuple[int, ...],
    added: bool,
    dtype: str,
    gpu: Harness,
    caps: DeviceCapabilities,
    rng: np.random.Generator,
) -> None:
    x = rng.integers(-64, 64, shape).astype(dtype)
    expected = x.transpose(perm) * np.dtype(dtype).type(2)
    other = rng.integers(-64, 64, expected.shape).astype(dtype) if added else None
    operands = [Tensor(x)] + ([Tensor(other)] if other is not None else [])
    y = Tensor.empty(expected.shape, dtype)
    calls = calls_for(x, perm, other, y, operands, caps)
    gpu.run(calls)
    np.testing.assert_array_equal(y.array, expected if other is None else expected + other)
    if perm[-1] != len(shape) - 1 and expected.shape[-1] >= 16:
        expected_source = "pointwise.comp" if caps.device_type == "cpu" else "pointwise_tile.comp"
        assert calls[0].variant.source == expected_source
        last, along = expected.shape[-1], shape[-1]
        in_pairs = dtype == "float16" and last % 2 == along % 2 == 0 and min(last, along) > 32
        assert ("PAIR" in dict(calls[0].variant.defines)) == (in_pairs and caps.device_type != "cpu")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int16"])
@pytest.mark.parametrize("odd", ["nothing", "offset", "stride"])
def test_pairs_lie_at_whole_words(
    dtype: str, odd: str, gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator
) -> None:
    """``y`` = x transposed + a row + a column + a tensor of 4-byte elements; x from an odd element on, or of odd rows."""
    kind, rows, columns = DTYPES[dtype], 98, 70
    pitch = columns + (odd == "stride")
    x = rng.integers(-64, 64, (rows, pitch)).astype(kind.numpy)
    row = rng.integers(-64, 64, rows).astype(kind.numpy)
    column = rng.integers(-64, 64, columns).astype(kind.numpy)
    wide = rng.integers(-9, 9, (columns, rows)).astype(np.float32)
    y = Tensor.empty((columns, rows), kind.numpy)
    start = int(odd == "offset")
    operands = [
        PointwiseOperand(y, kind, (rows, 1), 0),
        PointwiseOperand(Tensor(x, offset=2 * start), kind, (1, pitch), start),
        PointwiseOperand(Tensor(row), kind, (0, 1), 0),
        PointwiseOperand(Tensor(column), kind, (1, 0), 0),
        PointwiseOperand(Tensor(wide), DTYPES["float32"], (rows, 1), 0),
    ]
    stored = {"bfloat16": "uint16_t(floatBitsToUint({}) >> 16)"}.get(dtype, kind.glsl + "({})")
    compute = kind.glsl_compute
    function = (
        f"{kind.glsl} compute({compute} x0, {compute} x1, {compute} x2, float x3) "
        f"{{ return {stored.format('float(x0 + x1 + x2) + x3')}; }}"
    )
    calls = pointwise((columns, rows), operands[0], operands[1:], function, (), caps)
    gpu.run(calls)
    exact = x[:, :columns].T.astype(np.float32) + row.astype(np.float32) + column.astype(np.float32)[:, None] + wide
    np.testing.assert_array_equal(y.array.astype(np.float32), exact)
    assert ("PAIR" in dict(calls[0].variant.defines)) == (caps.device_type != "cpu" and odd == "nothing")


@pytest.mark.parametrize("count", [4096, 5004, 7333])
def test_two_units_a_lane(
    count: int, gpu: Harness, caps: DeviceCapabilities, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAIR_UNITS", 1)
    x, other = (rng.integers(-64, 64, count).astype(np.float32) for _ in range(2))
    y = Tensor.empty((count,), np.float32)
    calls = calls_for(x, (0,), other, y, [Tensor(x), Tensor(other)], caps)
    assert ("POINTWISE_UNITS" in dict(calls[0].variant.defines)) == (caps.device_type != "cpu")
    gpu.run(calls)
    np.testing.assert_array_equal(y.array, x * 2 + other)
