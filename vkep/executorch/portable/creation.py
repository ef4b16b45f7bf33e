"""Operators that make tensors from numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkep.executorch.portable.registry import Array, Number, kernel


@kernel("full.out")
def full(size: Sequence[int], value: Number) -> Array:
    return np.full(tuple(size), value)


@kernel("full_like.out")
def full_like(self: Array, value: Number, memory_format: int | None) -> Array:
    return np.full(self.shape, value)


@kernel("zeros_like.out")
def zeros_like(self: Array, memory_format: int | None) -> Array:
    return np.zeros(self.shape)


@kernel("ones_like.out")
def ones_like(self: Array, memory_format: int | None) -> Array:
    return np.ones(self.shape)


@kernel("zeros.out")
def zeros(size: Sequence[int]) -> Array:
    return np.zeros(tuple(size))


@kernel("ones.out")
def ones(size: Sequence[int]) -> Array:
    return np.ones(tuple(size))


@kernel("empty.memory_format", "empty.out")
def empty(size: Sequence[int], memory_format: int | None) -> Array:
    return np.zeros(tuple(size))


@kernel("dim_order_ops::_empty_dim_order.out")
def empty_dim_order(size: Sequence[int], dim_order: Sequence[int] | None) -> Array:
    return np.zeros(tuple(size))


@kernel("arange.out")
def arange(end: Number) -> Array:
    return np.arange(end)


@kernel("arange.start_out")
def arange_start(start: Number, end: Number, step: Number) -> Array:
    return np.arange(start, end, step)


@kernel("scalar_tensor.out")
def scalar_tensor(value: Number) -> Array:
    return np.asarray(value)


@kernel("fill.Scalar_out", "fill.Tensor_out")
def fill(self: Array, value: Array | Number) -> Array:
    return np.broadcast_to(np.asarray(value), self.shape)


@kernel("rand.out")
def rand(size: Sequence[int]) -> Array:
    return np.random.default_rng().random(tuple(size))


@kernel("randn.out")
def randn(size: Sequence[int]) -> Array:
    return np.random.default_rng().standard_normal(tuple(size))
