"""Operators that compute indices and leave the moving to the gather and scatter kernels."""

from __future__ import annotations

import math

import numpy as np

from vkep.dtypes import DTYPES
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import every
from vkep.ops.gather import elements_at, gather_, scatter_elements_
from vkep.ops.registry import INDICES, operator


@operator("Scatter", since=9, until=10, types={"T": every("Scatter"), "Tind": INDICES})
def scatter_9(b: Builder, data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0) -> Tensor:
    return scatter_elements_(b, data, indices, updates, axis, "none")


@operator("TensorScatter", types={"T": every("TensorScatter")})
def tensor_scatter(
    b: Builder,
    past_cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Tensor:
    """Write ``update`` along ``axis`` of a cache, from each sample's write index on (ONNX TensorScatter)."""
    if mode not in ("linear", "circular"):
        b.invalid(f"mode is {mode!r}, expected 'linear' or 'circular'")
    where = b.axis(axis, past_cache.rank)
    one = [t.shape[:where] + t.shape[where + 1 :] for t in (past_cache, update)]  # without the sequence
    if where == 0 or one[0] != one[1] or update.shape[where] > past_cache.shape[where]:
        b.invalid(f"a cache of shape {list(past_cache.shape)} and an update of {list(update.shape)} along axis {where}")
    b.expect("write_indices", write_indices, past_cache.shape[:1])
    steps = np.arange(update.shape[where], dtype=np.int64).reshape([-1, *[1] * (update.rank - where - 1)])
    at = b.expr("same", b.constant(steps))
    if write_indices is not None:
        first = b.reshape(write_indices, [write_indices.size, *[1] * (update.rank - 1)])
        at = b.expr("add", at, first)
    if mode == "circular":
        at = b.expr("({0} < 0 ? {0} : {0} % {1})", at, past_cache.shape[where])
    indices = b.store(at, DTYPES["int64"], shape=update.shape)
    return scatter_elements_(b, past_cache, indices, update, where, "none", what="a place to write", from_end=False)


@operator("ReverseSequence", types={"T": every("ReverseSequence")})
def reverse_sequence(
    b: Builder, x: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    """Reverse the first ``sequence_lens[i]`` steps of each sample (ONNX ReverseSequence)."""
    if {batch_axis, time_axis} != {0, 1} or x.rank < 2:
        b.invalid(f"batch_axis {batch_axis} and time_axis {time_axis}, expected 0 and 1 in either order")
    b.expect("sequence_lens", sequence_lens, [x.shape[batch_axis]])
    steps = x.shape[time_axis]
    spread = [1] * x.rank
    spread[time_axis] = steps
    time = b.constant(np.arange(steps, dtype=np.int64).reshape(spread))
    lengths = b.reshape(sequence_lens, [x.shape[d] if d == batch_axis else 1 for d in range(x.rank)])
    # a length that is negative or beyond the steps makes an index that is beyond them
    at = b.expr("({1} < 0 ? {3} : {0} < {1} ? {1} - {2} - {0} : {0})", time, lengths, 1, -1 - steps)
    indices = b.store(at, DTYPES["int64"], shape=x.shape)
    return elements_at(b, x, indices, time_axis, f"a length is outside [0, {steps}]")


@operator("Compress", types={"T": every("Compress"), "T1": ("bool",)})
def compress(b: Builder, x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    """The slices along ``axis`` (None: of the flat input) where the condition holds.

    How many there are is the condition's content, so a computed one is planned for when it is there.
    """
    if axis is None:
        x, axis = b.reshape(x, [math.prod(x.shape)]), 0
    chosen = np.flatnonzero(b.value(condition, "condition").reshape(-1))
    where = b.axis(axis, x.rank)
    if chosen.size and chosen[-1] >= x.shape[where]:
        b.decline(f"the condition holds at {chosen[-1]}, beyond the {x.shape[where]} slices")
    return gather_(b, x, b.constant(chosen.astype(np.int64)), axis=where)
