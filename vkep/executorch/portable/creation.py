"""Operators that make tensors from numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from vkep.executorch.portable.registry import kernels

_EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "full.out": lambda size, value: np.full(size, value),
    "full_like.out": lambda x, value, memory_format: np.full(x.shape, value),
    "zeros_like.out": lambda x, memory_format: np.zeros(x.shape),
    "ones_like.out": lambda x, memory_format: np.ones(x.shape),
    "zeros.out": lambda size: np.zeros(size),
    "ones.out": lambda size: np.ones(size),
    "empty.memory_format empty.out": lambda size, memory_format: np.zeros(size),
    "dim_order_ops::_empty_dim_order.out": lambda size, dim_order: np.zeros(size),
    "arange.out": lambda end: np.arange(end),
    "arange.start_out": lambda start, end, step: np.arange(start, end, step),
    "scalar_tensor.out": lambda value: np.asarray(value),
    "fill.Scalar_out fill.Tensor_out": lambda x, value: np.broadcast_to(np.asarray(value), x.shape),
    "rand.out": lambda size: np.random.default_rng().random(size),
    "randn.out": lambda size: np.random.default_rng().standard_normal(size),
}
kernels(_EXPRESSIONS)
