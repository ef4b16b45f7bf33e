"""Quantising and dequantising (``quantized_decomposed::``), as torch.ao defines them."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkep.aten.arguments import Codes
from vkep.executorch.portable.registry import Array, kernel, wide

_Q = "quantized_decomposed::"


def _number(x: Array | float | int) -> float:
    return float(np.asarray(x).reshape(-1)[0])


def _quantize(x: Array, inverse: Array | np.float32, zero: Array | float, least: int, most: int) -> Array:
    return np.clip(np.rint(x * inverse) + zero, least, most)


@kernel(f"{_Q}quantize_per_tensor.out", f"{_Q}quantize_per_tensor.Tensor_out", f"{_Q}quantize_per_tensor.tensor_out")
def quantize(
    input_: Array, scale: Array | float, zero_point: Array | int, quant_min: int, quant_max: int, dtype: int
) -> Array:
    return _quantize(wide(input_), np.float32(1 / _number(scale)), _number(zero_point), quant_min, quant_max)


@kernel(f"{_Q}quantize_per_tensor.Tensor2_out", f"{_Q}quantize_per_tensor.tensor2_out")
def quantize_tensors(
    input_: Array, scale: Array, zero_point: Array, quant_min: Array, quant_max: Array, dtype: int
) -> Array:
    return quantize(input_, scale, zero_point, int(_number(quant_min)), int(_number(quant_max)), dtype)


@kernel(
    f"{_Q}dequantize_per_tensor.out", f"{_Q}dequantize_per_tensor.Tensor_out", f"{_Q}dequantize_per_tensor.tensor_out"
)
def dequantize(input_: Array, scale: Array | float, zero_point: Array | int, codes: Codes) -> Array:
    return (input_.astype(np.float32) - np.float32(_number(zero_point))) * np.float32(_number(scale))


def _along(values: Array, axis: int, rank: int) -> Array:
    shape = [1] * rank
    shape[axis % rank] = -1
    return values.astype(np.float32).reshape(shape)


def _by_channel(input_: Array, scales: Array, zero_points: Array | None, axis: int, *_: Any) -> int:
    """Channels' numbers multiply the elements of an input that has one channel."""
    others = 1 if zero_points is None else zero_points.size
    return input_.size * (max(scales.size, others) if input_.shape[axis] == 1 else 1)


@kernel(f"{_Q}quantize_per_channel.out", elements=_by_channel)
def quantize_per_channel(
    input_: Array, scales: Array, zero_points: Array, axis: int, quant_min: int, quant_max: int, dtype: int
) -> Array:
    rank = input_.ndim
    inverse, zero = 1 / _along(scales, axis, rank), _along(zero_points, axis, rank)
    return _quantize(wide(input_), inverse, zero, quant_min, quant_max)


@kernel(f"{_Q}dequantize_per_channel.out", elements=_by_channel)
def dequantize_per_channel(input_: Array, scales: Array, zero_points: Array | None, axis: int, codes: Codes) -> Array:
    x = input_.astype(np.float32)
    if zero_points is not None:
        x = x - _along(zero_points, axis, input_.ndim)
    return x * _along(scales, axis, input_.ndim)


@kernel(f"{_Q}choose_qparams.Tensor_out", f"{_Q}choose_qparams.tensor_out")
def choose_qparams(input_: Array, quant_min: int, quant_max: int, eps: float, dtype: int) -> tuple[Array, Array]:
    x = wide(input_)
    least, most = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = max((most - least) / (quant_max - quant_min), eps)
    zero = np.clip(quant_min - round(least / scale), quant_min, quant_max)
    return np.asarray(scale, np.float64).reshape(1), np.asarray(zero, np.int64).reshape(1)
