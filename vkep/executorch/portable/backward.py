"""Gradients: the operators of programs that were exported with their backward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkep.aten.arguments import Convolution, MaxPool
from vkep.executorch.portable.matrix import convolution, convolution_elements, windows_of
from vkep.executorch.portable.registry import Array, kernel, pair, wide


@kernel("max_pool2d_with_indices_backward.grad_input")
def max_pool2d_backward(grad_output: Array, self: Array, pool: MaxPool, indices: Array) -> Array:
    """Each gradient is added to the element that was its window's maximum; ``indices`` number the elements of a
    plane."""
    planes = math.prod(self.shape[:-2])
    result = np.zeros((planes, self.shape[-2] * self.shape[-1]), wide(grad_output).dtype)
    np.add.at(result, (np.arange(planes)[:, None], indices.reshape(planes, -1)), wide(grad_output).reshape(planes, -1))
    return result.reshape(self.shape)


def _backward_elements(grad_output: Array, input_: Array, weight: Array, _: Any, how: Convolution, *rest: Any) -> int:
    n = weight.ndim - 2
    turned = replace(how, transposed=not how.transposed, output_padding=(0,) * n)
    sizes = math.prod(grad_output.shape[:2]) * math.prod(input_.shape[2:])  # the result is as large as the input
    return max(
        convolution_elements(input_, weight, None, how),
        convolution_elements(grad_output, weight, None, turned),
        sizes * math.prod(weight.shape[2:]),
    )


@kernel("convolution_backward.out", elements=_backward_elements)
def convolution_backward(
    grad_output: Array,
    input_: Array,
    weight: Array,
    bias_sizes: Sequence[int] | None,
    how: Convolution,
    output_mask: Sequence[bool],
) -> tuple[Array, Array, Array]:
    """Gradients of the input, the weight and the bias; a gradient that ``output_mask`` does not request is empty."""
    n = weight.ndim - 2
    how = replace(how, stride=pair(how.stride, n), padding=pair(how.padding, n), dilation=pair(how.dilation, n))
    none: Array = np.empty(0, wide(input_).dtype)
    by_input, by_weight, by_bias = none, none, none
    if output_mask[0]:
        by_input = _by_input(grad_output, input_.shape, weight, how)
    if output_mask[1]:
        given, made = (grad_output, input_) if how.transposed else (input_, grad_output)
        by_weight = _by_weight(wide(given), wide(made), weight.shape, how)
    if output_mask[2]:
        by_bias = wide(grad_output).sum((0, *range(2, n + 2)))
    return by_input, by_weight, by_bias


def _by_input(grad: Array, shape: Sequence[int], weight: Array, how: Convolution) -> Array:
    """The convolution for the input's gradient: transposed where the forward one is not, and the reverse."""
    if how.transposed:
        made = convolution(grad, weight, None, replace(how, transposed=False))
        places: list[Any] = [slice(0, size) for size in shape[2:]]
        return made[(..., *places)]
    window = zip(how.stride, how.padding, how.dilation, weight.shape[2:], strict=True)
    rest = [
        size - ((out - 1) * s - 2 * p + d * (k - 1) + 1)
        for size, out, (s, p, d, k) in zip(shape[2:], grad.shape[2:], window, strict=True)
    ]
    return convolution(grad, weight, None, replace(how, transposed=True, output_padding=rest))


def _by_weight(x: Array, grad: Array, shape: Sequence[int], how: Convolution) -> Array:
    """For each weight the sum over batch and positions of the gradient times the input that the weight was multiplied
    by."""
    n, groups = len(how.stride), how.groups
    windows = windows_of(x, shape[2:], how.stride, [(p, p) for p in how.padding], how.dilation)
    places: list[Any] = [slice(0, size) for size in grad.shape[2:]]
    windows = windows[(slice(None), slice(None), *places)]
    batch, channels = windows.shape[:2]
    order = [0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n)]
    count = math.prod(grad.shape[2:])
    columns = windows.transpose(order).reshape(batch, groups, channels // groups * math.prod(shape[2:]), count)
    rows = grad.reshape(batch, groups, -1, count)
    return np.matmul(rows, columns.swapaxes(-1, -2)).sum(0).reshape(shape)
