"""Operators that select elements by index, write them, or compute indices for the kernels that do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vkep.dtypes import INT64
from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.kernels.indexing.gather import GatherElementsProblem, GatherNDProblem, GatherProblem
from vkep.kernels.indexing.pad import PadProblem
from vkep.kernels.indexing.scatter import ScatterElementsProblem, ScatterNDProblem
from vkep.ops.allowed import FLOATING, every
from vkep.ops.generators import positions
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.registry import INDICES, operator
from vkep.sizes import largest, matches, smallest, whole


def fault_of(b: Builder, indices: Tensor, extents: Sequence[int], reason: str, from_end: bool = True) -> str:
    """Return ``reason`` if a run may have an index out of bounds (the last axis of ``indices`` matches ``extents``); ""
    where the indices are known to be valid. Raises `InvalidNode` with it where known indices are out of bounds."""
    if indices.array is None:
        return reason
    if indices.size:
        known = indices.array.reshape(-1, len(extents))
        for least, most, extent in zip(known.min(axis=0), known.max(axis=0), extents, strict=True):
            if most >= extent or least < (-extent if from_end else 0):
                b.invalid(f"{reason}: {most if most >= extent else least}")
    return ""


def outside(extent: int, axis: int, what: str = "an index", from_end: bool = True) -> str:
    """The error message of an index that is out of range."""
    return f"{what} is outside [{-extent if from_end else 0}, {extent - 1}] of axis {axis}"


@operator("Gather", types={"T": every("Gather"), "Tind": INDICES})
def gather_(b: Builder, data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return gathered(b, data, indices, axis, "an index")


def rows_at(b: Builder, table: Tensor, ids: Tensor, what: str) -> Tensor:
    """The rows of ``table`` at ``ids``, which do not count from the end; ``what`` names an id in errors."""
    return gathered(b, table, ids, 0, what, False)


def gathered(b: Builder, data: Tensor, indices: Tensor, axis: int = 0, what: str = "", from_end: bool = True) -> Tensor:
    """`gather_`; ``what`` names the index in a run's error where it is out of range ("": it cannot be)."""
    axis = b.axis(axis, data.rank)
    extent = data.shape[axis]
    fault = fault_of(b, indices, [extent], outside(extent, axis, what, from_end), from_end) if what else ""
    shape = [*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]]
    if indices.array is not None and indices.size == 1:  # one known index is a view
        return b.reshape(data.slice(axis, whole(indices.array.reshape(-1)[0]) % extent, 1), shape)
    outer, inner = math.prod(data.shape[:axis]), math.prod(data.shape[axis + 1 :])
    problem = GatherProblem(
        outer, extent, inner, indices.size, data.dtype.name, indices.dtype.name, fault=fault, from_end=from_end
    )
    return b.result(problem, data, indices, shape=shape)


@operator("GatherElements", types={"T": every("GatherElements"), "Tind": INDICES})
def gather_elements_(b: Builder, data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis = b.axis(axis, data.rank)
    return elements_at(b, data, indices, axis, outside(data.shape[axis], axis) if data.rank else "")


def elements_at(b: Builder, data: Tensor, indices: Tensor, axis: int, reason: str) -> Tensor:
    """`gather_elements_`; ``reason`` is the error message where an index is out of bounds."""
    types = data.dtype.name, indices.dtype.name
    problem = GatherElementsProblem(data.shape, indices.shape, axis, *types)
    fault = fault_of(b, indices, [data.shape[axis]], reason)
    return b.result(replace(problem, fault=fault), data, indices)


@operator("GatherND", since=11, until=11, types={"T": every("GatherND")})
def gather_nd_11(b: Builder, data: Tensor, indices: Tensor) -> Tensor:
    return gather_nd_(b, data, indices)


@operator("GatherND", since=12, types={"T": every("GatherND")})
def gather_nd_(b: Builder, data: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    types = data.dtype.name, indices.dtype.name
    problem = GatherNDProblem(data.shape, indices.shape, batch_dims, *types)
    if not problem.keys:  # no coordinates: all of the data, as often as there are indices
        ones = [1] * (indices.rank - 1 - batch_dims)
        return b.reshape(data, [*data.shape[:batch_dims], *ones, *data.shape[batch_dims:]]).expand(problem.out_shape)
    fault = fault_of(b, indices, problem.indexed, f"an index is outside of its axis of {list(problem.indexed)}")
    return b.result(replace(problem, fault=fault), data, indices)


def scatter_elements_(
    b: Builder,
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    axis: int,
    reduction: str,
    *,
    what: str = "an index",
    from_end: bool = True,
) -> Tensor:
    """ScatterElements of one opset, with its reduction."""
    axis = b.axis(axis, data.rank)
    types = data.dtype.name, indices.dtype.name
    problem = ScatterElementsProblem(data.shape, indices.shape, *types, reduction, axis=axis, from_end=from_end)
    extent = data.shape[axis]
    fault = fault_of(b, indices, [extent], outside(extent, axis, what, from_end), from_end)
    return b.result(replace(problem, fault=fault), data, indices, updates)


@operator("ScatterElements", since=11, types={"T": every("ScatterElements"), "Tind": INDICES})
def scatter_elements(
    b: Builder, data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    return scatter_elements_(b, data, indices, updates, axis, reduction)


@operator("ScatterND", since=11, types={"T": every("ScatterND")})
def scatter_nd(b: Builder, data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    types = data.dtype.name, indices.dtype.name
    if indices.shape[-1:] == (0,):  # no coordinates: each update is of all of the data
        b.expect("updates", updates, (*indices.shape[:-1], *data.shape))
        whole, each = (1, *data.shape), b.reshape(updates, (math.prod(indices.shape[:-1]), *data.shape))
        if reduction == "none":
            return b.reshape(each.slice(0, each.shape[0] - 1, 1), data.shape) if each.shape[0] else data
        first = b.constant(np.zeros((each.shape[0], 1), np.int64))
        return b.reshape(scatter_nd(b, b.reshape(data, whole), first, each, reduction=reduction), data.shape)
    problem = ScatterNDProblem(data.shape, indices.shape, *types, reduction)
    extents = data.shape[: problem.keys]
    fault = fault_of(b, indices, extents, f"an index is outside of its axis of {list(extents)}")
    return b.result(replace(problem, fault=fault), data, indices, updates)


def padded(
    b: Builder,
    x: Tensor,
    begins: Sequence[int],
    ends: Sequence[int],
    mode: str = "constant",
    value: float | int | bool = 0,
) -> Tensor:
    """``x`` padded around its last axes, as many as there are ``begins``; negative amounts crop."""
    lead = (0,) * (x.rank - len(begins))
    problem = PadProblem(x.shape, (*lead, *begins), (*lead, *ends), x.dtype.name, mode, value)
    if any(size < 0 for size in problem.kept):  # nothing of x is left
        return b.full(problem.out_shape, value, x.dtype)
    return x if all(matches(amount, 0) for amount in (*begins, *ends)) else b.result(problem, x)


def _pad(
    b: Builder, x: Tensor, pads: Sequence[int], axes: Sequence[int], mode: str, value: float | int | bool
) -> Tensor:
    """ONNX Pad. The first half of the pads are the begins of ``axes``, the second half their ends."""
    if len(pads) != 2 * len(axes) or len(set(axes)) != len(axes):
        b.invalid(f"pads {list(pads)} of axes {list(axes)}; expected two for each of different axes")
    begins, ends = [0] * x.rank, [0] * x.rank
    for axis, begin, end in zip(axes, pads, pads[len(axes) :], strict=False):
        begins[axis], ends[axis] = begin, end
        kept = x.shape[axis] + smallest(begin, 0) + smallest(end, 0)
        if mode == "reflect" and largest(begin, end) >= largest(kept, 1):
            b.invalid(f"axis {axis} of shape {list(x.shape)} has too few elements to reflect pads {begin} and {end}")
    return padded(b, x, begins, ends, mode, value)


@operator("Pad", since=2, until=2, types={"T": every("Pad", among=FLOATING)})
def pad_2(b: Builder, data: Tensor, *, pads: list[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    return _pad(b, data, pads, range(data.rank), mode, value)


@operator("Pad", since=11, types={"T": every("Pad")})
def pad(
    b: Builder,
    data: Tensor,
    pads: Tensor,
    constant_value: Tensor | None = None,
    axes: Tensor | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    chosen = [b.axis(a, data.rank) for a in (range(data.rank) if axes is None else b.ints(axes, "axes") or [])]
    value = 0 if constant_value is None else b.number(constant_value, "constant_value")
    return _pad(b, data, b.ints(pads, "pads") or [], chosen, mode, value)


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
    one = [t.shape[:where] + t.shape[where + 1 :] for t in (past_cache, update)]  # without the sequence axis
    if where == 0 or one[0] != one[1] or update.shape[where] > past_cache.shape[where]:
        b.invalid(f"a cache of shape {list(past_cache.shape)} and an update of {list(update.shape)} along axis {where}")
    b.expect("write_indices", write_indices, past_cache.shape[:1])
    steps = positions(b, update.shape[where], np.int64)
    steps = b.reshape(steps, [*update.shape[where : where + 1], *[1] * (update.rank - where - 1)])
    at, places = b.reads(steps, past_cache.shape[where])
    if write_indices is not None:
        first = b.expr("same", b.reshape(write_indices, [write_indices.size, *[1] * (update.rank - 1)]))
        if mode == "circular":  # of the remainder first: an index near 2**63 has no sum
            first = fn.where(first < 0, first, first % places)
        at = at + first
    if mode == "circular":
        at = fn.where(at < 0, at, at % places)
    indices = b.store(at, INT64, shape=update.shape)
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
    time = b.reshape(positions(b, steps, np.int64), spread)
    lengths = b.reshape(sequence_lens, [x.shape[d] if d == batch_axis else 1 for d in range(x.rank)])
    # a length that is negative or too long leads to an index that is out of range
    step, length, outside = b.reads(time, lengths, -1 - steps)
    at = fn.where(length < 0, outside, fn.where(step < length, length - 1 - step, step))
    indices = b.store(at, INT64, shape=x.shape)
    return elements_at(b, x, indices, time_axis, f"a length is outside [0, {steps}]")


@operator("GatherND", domain=MICROSOFT, types={"data": every("GatherND"), "indices": INDICES})
def gather_nd(b: Builder, data: Tensor, indices: Tensor) -> Tensor:
    return gather_nd_11(b, data, indices)


@operator("Pad", domain=MICROSOFT, types={"data value": every("Pad"), "pads": ("int64",)})
def pad_(b: Builder, data: Tensor, pads: Tensor, value: Tensor | None = None, *, mode: str = "constant") -> Tensor:
    return pad(b, data, b.reshape(pads, [pads.size]), value, mode=mode)
