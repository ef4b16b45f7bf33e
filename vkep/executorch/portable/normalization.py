"""Normalisations and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkep.errors import VkepError
from vkep.executorch.portable.registry import Array, kernel, wide


@kernel("_softmax.out")
def softmax(self: Array, dim: int, half_to_float: bool) -> Array:
    x = wide(self)
    e = np.exp(x - np.max(x, axis=dim, keepdims=True)) if x.size else x
    return e / np.sum(e, axis=dim, keepdims=True)


@kernel("_log_softmax.out")
def log_softmax(self: Array, dim: int, half_to_float: bool) -> Array:
    x = wide(self)
    x = x - np.max(x, axis=dim, keepdims=True) if x.size else x
    return x - np.log(np.sum(np.exp(x), axis=dim, keepdims=True))


def _channels(values: Array | None, rank: int) -> Array | None:
    return None if values is None else wide(values).reshape(1, -1, *(1,) * (rank - 2))


def _affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


def _by_channel(input_: Array, *others: Any) -> int:
    """Channels' numbers multiply the elements of an input that has one channel."""
    if input_.ndim > 1 and input_.shape[1] != 1:
        return input_.size
    return input_.size * max([1, *(other.size for other in others if isinstance(other, np.ndarray))])


@kernel("_native_batch_norm_legit_no_training.out", elements=_by_channel)
def batch_norm(
    input_: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, momentum: float, eps: float
) -> tuple[Array, Array, Array]:
    rank = input_.ndim
    centre, spread = _channels(mean, rank), _channels(var, rank)
    assert centre is not None and spread is not None
    scaled = (wide(input_) - centre) / np.sqrt(spread + eps)
    none = np.empty(0, np.float32)
    return _affine(scaled, _channels(weight, rank), _channels(bias, rank)), none, none


@kernel("_native_batch_norm_legit.out", elements=_by_channel)
def batch_norm_legit(
    input_: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    """Raises `VkepError` for training, which changes the running statistics (ExecuTorch's own kernel refuses it too)."""
    if training:
        raise VkepError("batch norm that trains its running statistics: export the model in eval mode")
    return batch_norm(input_, weight, bias, running_mean, running_var, momentum, eps)


@kernel("_native_batch_norm_legit.no_stats_out", elements=_by_channel)
def batch_norm_no_stats(
    input_: Array, weight: Array | None, bias: Array | None, training: bool, momentum: float, eps: float
) -> tuple[Array, Array, Array]:
    x, rank = wide(input_), input_.ndim
    axes = (0, *range(2, rank))
    mean, var = x.mean(axes), x.var(axes)
    inverse = 1 / np.sqrt(var + eps)
    shape = (1, -1, *(1,) * (rank - 2))
    scaled = (x - mean.reshape(shape)) * inverse.reshape(shape)
    return _affine(scaled, _channels(weight, rank), _channels(bias, rank)), mean, inverse


@kernel("native_layer_norm.out")
def layer_norm(
    input_: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    x = wide(input_)
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    mean = x.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(x.var(axes, keepdims=True) + eps)
    scaled = (x - mean) * inverse
    return (
        _affine(scaled, None if weight is None else wide(weight), None if bias is None else wide(bias)),
        mean,
        inverse,
    )


@kernel("native_group_norm.out", elements=_by_channel)
def group_norm(
    input_: Array, weight: Array | None, bias: Array | None, n: int, c: int, hxw: int, group: int, eps: float
) -> tuple[Array, Array, Array]:
    x = wide(input_).reshape(n, group, -1)
    mean = x.mean(-1)
    inverse = 1 / np.sqrt(x.var(-1) + eps)
    scaled = ((x - mean[..., None]) * inverse[..., None]).reshape(input_.shape)
    return _affine(scaled, _channels(weight, input_.ndim), _channels(bias, input_.ndim)), mean, inverse


@kernel("native_dropout.out")
def dropout(input_: Array, p: float, train: bool | None) -> tuple[Array, Array]:
    if not train or p == 0:
        return input_, np.ones(input_.shape, np.bool_)
    mask: Array = np.asarray(np.random.default_rng().random(input_.shape) >= p)
    return wide(input_) * mask / (1 - p) if p < 1 else np.zeros_like(input_), mask
