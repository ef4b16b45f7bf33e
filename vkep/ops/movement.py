"""Operators that move data: views, with a copy only where a view cannot express the result."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep.graph.windows import slice_span
from vkep.ir.builder import Builder
from vkep.ir.place import is_at
from vkep.ir.tensor import Tensor, broadcast_shapes
from vkep.ops.allowed import every
from vkep.ops.codes import by_codes
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.registry import operator


@operator("Reshape", since=1, until=4, types={"T": every("Reshape")})
def reshape_1(
    b: Builder, data: Tensor, *, shape: Sequence[int] | None = None, consumed_inputs: Sequence[int] | None = None
) -> Tensor:
    return reshape(b, data, b.constant(np.array(shape or [], np.int64)))


@operator("Reshape", since=5, types={"T": every("Reshape")})
def reshape(b: Builder, data: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    dims = b.ints(shape, "shape") or []
    if not allowzero:
        dims = [data.shape[i] if d == 0 and i < data.rank else d for i, d in enumerate(dims)]
    elif 0 in dims and -1 in dims:  # ONNX leaves it open; as ONNX Runtime: the open size is that of the others than 0
        known, present = (math.prod(d for d in sizes if d > 0) for sizes in (dims, data.shape))
        if data.size or present % known:
            b.invalid(f"shape {dims} has a size of 0, and one that does not follow from those of {list(data.shape)}")
        dims[dims.index(-1)] = present // known
    if -1 in dims:
        known = math.prod(d for d in dims if d != -1)
        if not known:
            b.invalid(f"the size that is left open in {dims} does not follow from those of {data.shape}")
        dims[dims.index(-1)] = data.size // known
    if math.prod(dims) != data.size or any(d < 0 for d in dims):
        b.invalid(f"cannot reshape {data.shape} to {dims}")
    copied = by_codes(b, data, lambda codes: b.reshape(codes, dims)) if data.reshape(dims) is None else None
    return b.reshape(data, dims) if copied is None else copied


@operator("Flatten", types={"T": every("Flatten")})
def flatten(b: Builder, data: Tensor, *, axis: int = 1) -> Tensor:
    if not -data.rank <= axis <= data.rank:
        b.invalid(f"axis {axis} is out of range for rank {data.rank}")
    axis = axis + data.rank if axis < 0 else axis
    return b.reshape(data, (math.prod(data.shape[:axis]), math.prod(data.shape[axis:])))


@operator("Transpose", types={"T": every("Transpose")})
def transpose(b: Builder, data: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    order = list(reversed(range(data.rank))) if perm is None else list(perm)
    if sorted(order) != list(range(data.rank)):
        b.invalid(f"perm is {order}, which is no permutation of {data.rank} axes")
    return data.transpose(order)


def _squeeze(b: Builder, data: Tensor, axes: Sequence[int] | None) -> Tensor:
    drop = {i for i, d in enumerate(data.shape) if d == 1} if axes is None else {b.axis(a, data.rank) for a in axes}
    if any(data.shape[i] != 1 for i in drop):
        b.invalid(f"axes {sorted(drop)} of {data.shape} are not all of size 1")
    return b.reshape(data, [d for i, d in enumerate(data.shape) if i not in drop])


def _unsqueeze(b: Builder, data: Tensor, axes: Sequence[int]) -> Tensor:
    rank = data.rank + len(axes)
    new = {b.axis(a, rank) for a in axes}
    if len(new) != len(axes):
        b.invalid(f"axes {list(axes)} name one axis twice")
    rest = iter(data.shape)
    return b.reshape(data, [1 if i in new else next(rest) for i in range(rank)])


@operator("Squeeze", since=1, until=11, types={"T": every("Squeeze")})
def squeeze_1(b: Builder, data: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    return _squeeze(b, data, axes)


@operator("Squeeze", since=13, types={"T": every("Squeeze")})
def squeeze(b: Builder, data: Tensor, axes: Tensor | None = None) -> Tensor:
    return _squeeze(b, data, b.ints(axes, "axes"))


@operator("Unsqueeze", since=1, until=11, types={"T": every("Unsqueeze")})
def unsqueeze_1(b: Builder, data: Tensor, *, axes: Sequence[int]) -> Tensor:
    return _unsqueeze(b, data, axes)


@operator("Unsqueeze", since=13, types={"T": every("Unsqueeze")})
def unsqueeze(b: Builder, data: Tensor, axes: Tensor) -> Tensor:
    return _unsqueeze(b, data, b.ints(axes, "axes", or_one=True) or [])


@operator("Expand", since=8, types={"T": every("Expand")})
def expand(b: Builder, data: Tensor, shape: Tensor) -> Tensor:
    dims = tuple(b.ints(shape, "shape", or_one=True) or [])
    if any(dim < 0 for dim in dims):
        b.invalid(f"shape {dims} has a negative size")
    try:
        return data.expand(broadcast_shapes(data.shape, dims))
    except ValueError:
        b.invalid(f"shape {data.shape} does not broadcast with {dims}")


@operator("Concat", since=4, types={"T": every("Concat")})
def concat(b: Builder, *inputs: Tensor, axis: int) -> Tensor:
    axis = b.axis(axis, inputs[0].rank)
    shape = list(inputs[0].shape)
    for tensor in inputs:
        if tensor.rank != len(shape) or any(d != shape[i] for i, d in enumerate(tensor.shape) if i != axis):
            b.invalid(f"shapes {[t.shape for t in inputs]} differ on another axis than {axis}")
    shape[axis] = sum(t.shape[axis] for t in inputs)
    grown = b.place.joined(inputs, axis, shape) if b.place is not None else None
    out = b.empty(inputs[0].dtype, shape) if grown is None else grown
    start = 0
    for tensor in inputs:
        part = out.slice(axis, start, tensor.shape[axis])
        if grown is None or not is_at(tensor, part):
            b.copy(tensor, out=part)
        start += tensor.shape[axis]
    return out


@operator("Concat", since=1, until=3, types={"T": every("Concat")})
def concat_1(b: Builder, *inputs: Tensor, axis: int = 1) -> Tensor:
    return concat(b, *inputs, axis=axis)


def _split(b: Builder, data: Tensor, axis: int, sizes: Sequence[int]) -> list[Tensor]:
    axis = b.axis(axis, data.rank)
    if sum(sizes) != data.shape[axis] or any(d < 0 for d in sizes):
        b.invalid(f"split sizes {list(sizes)} do not add up to {data.shape[axis]}")
    if b.node is not None and len(b.node.outputs) != len(sizes):
        b.invalid(f"split sizes {list(sizes)} for {len(b.node.outputs)} outputs")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [data.slice(axis, start, size) for start, size in zip(starts, sizes, strict=True)]


def _even(b: Builder, total: int, parts: int, exact: bool = True) -> list[int]:
    """``exact``: all parts have one size; otherwise the last one may be shorter."""
    if exact and total % parts:
        b.invalid(f"{total} elements do not split into {parts} parts of one size")
    size = -(-total // parts)
    last = total - (parts - 1) * size
    if last < 0:
        b.invalid(f"{total} elements do not split into {parts} parts of {size}, with the rest as the last one")
    return [*[size] * (parts - 1), last]


@operator("Split", since=2, until=11, types={"T": every("Split")})
def split_2(b: Builder, data: Tensor, *, axis: int = 0, split: Sequence[int] | None = None) -> list[Tensor]:
    parts = len(b.node.outputs) if b.node else 1
    return _split(b, data, axis, split or _even(b, data.shape[b.axis(axis, data.rank)], parts))


@operator("Split", since=13, types={"T": every("Split")})
def split(
    b: Builder,
    data: Tensor,
    split: Tensor | None = None,
    *,
    opset: int,
    axis: int = 0,
    num_outputs: int | None = None,
) -> list[Tensor]:
    if opset >= 18 and (split is None) == (num_outputs is None):
        b.invalid(
            f"num_outputs is {num_outputs} and split {'absent' if split is None else 'present'}; expected one of them"
        )
    if num_outputs is not None and (num_outputs < 1 or (b.node is not None and num_outputs != len(b.node.outputs))):
        b.invalid(f"num_outputs is {num_outputs}, the node has {len(b.node.outputs) if b.node else 'others'}")
    parts = num_outputs or (len(b.node.outputs) if b.node else 1)
    even = num_outputs is None
    sizes = b.ints(split, "split") or _even(b, data.shape[b.axis(axis, data.rank)], parts, even)
    return _split(b, data, axis, sizes)


def _slice(
    b: Builder,
    data: Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> Tensor:
    chosen = [b.axis(axis, data.rank) for axis in (range(len(starts)) if axes is None else axes)]
    steps = [1] * len(starts) if steps is None else steps
    if len({len(starts), len(ends), len(chosen), len(steps)}) > 1 or len(set(chosen)) != len(chosen) or 0 in steps:
        b.invalid(f"starts {starts}, ends {ends}, axes {chosen} and steps {steps} do not agree")
    for start, end, axis, step in zip(starts, ends, chosen, steps, strict=True):
        first, count = slice_span(data.shape[axis], start, end, step)
        data = data.slice(axis, first, count, step)
    return data


@operator("Slice", since=1, until=9, types={"T": every("Slice")})
def slice_1(
    b: Builder, data: Tensor, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None
) -> Tensor:
    return _slice(b, data, starts, ends, axes, None)


@operator("Slice", since=10, types={"T": every("Slice")})
def slice_(
    b: Builder, data: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None
) -> Tensor:
    return _slice(
        b,
        data,
        b.ints(starts, "starts") or [],
        b.ints(ends, "ends") or [],
        b.ints(axes, "axes"),
        b.ints(steps, "steps"),
    )


@operator("Tile", since=6, types={"T": every("Tile")})
def tile(b: Builder, data: Tensor, repeats: Tensor) -> Tensor:
    counts = b.ints(repeats, "repeats") or []
    if len(counts) != data.rank or any(d < 0 for d in counts):
        b.invalid(f"repeats {counts} of a tensor of shape {data.shape}; expected a count, 0 or more, for each axis")
    spread = b.reshape(data, [d for dim in data.shape for d in (1, dim)])
    wide = spread.expand([d for dim, count in zip(data.shape, counts, strict=True) for d in (count, dim)])
    return b.reshape(wide, [dim * count for dim, count in zip(data.shape, counts, strict=True)])


@operator("DepthToSpace", types={"T": every("DepthToSpace")})
def depth_to_space(b: Builder, data: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode not in ("DCR", "CRD"):
        b.invalid(f"mode is {mode!r}, expected 'DCR' or 'CRD'")
    if data.rank != 4 or blocksize < 1 or data.shape[1] % blocksize**2:
        b.invalid(
            f"blocks of {blocksize} in {data.shape}; expected [N, C, H, W] of which C divides by the block's size"
        )
    n, c, h, w = data.shape
    out = c // blocksize**2
    if mode == "CRD":
        split = b.reshape(data, (n, out, blocksize, blocksize, h, w)).transpose((0, 1, 4, 2, 5, 3))
    else:
        split = b.reshape(data, (n, blocksize, blocksize, out, h, w)).transpose((0, 3, 4, 1, 5, 2))
    return b.reshape(split, (n, out, h * blocksize, w * blocksize))


@operator("SpaceToDepth", types={"T": every("SpaceToDepth")})
def space_to_depth(b: Builder, data: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode not in ("DCR", "CRD"):
        b.invalid(f"mode is {mode!r}, expected 'DCR' or 'CRD'")
    if data.rank != 4 or blocksize < 1 or data.shape[2] % blocksize or data.shape[3] % blocksize:
        b.invalid(f"blocks of {blocksize} in {data.shape}; expected [N, C, H, W] of whole blocks")
    n, c, h, w = data.shape
    split = b.reshape(data, (n, c, h // blocksize, blocksize, w // blocksize, blocksize))
    moved = split.transpose((0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4))
    return b.reshape(moved, (n, c * blocksize**2, h // blocksize, w // blocksize))


@operator("ExpandDims", domain=MICROSOFT, types={"x": every("Unsqueeze"), "axis": ("int32",)})
def expand_dims(b: Builder, x: Tensor, axis: Tensor) -> Tensor:
    at = int(b.value(axis, "axis").reshape(-1)[0])
    if not -x.rank - 1 <= at <= x.rank:
        b.invalid(f"axis is {at}, expected {-x.rank - 1} to {x.rank}")
    at = at if at >= 0 else at + x.rank + 1
    return b.reshape(x, [*x.shape[:at], 1, *x.shape[at:]])


@operator("UnfoldTensor", domain=MICROSOFT, types={"x": every("Transpose")})
def unfold_tensor(b: Builder, x: Tensor, *, size: int, dim: int = -1, step: int = 1) -> Tensor:
    """Windows of ``size`` along ``dim``, ``step`` apart: the window's number in dim's place, its elements last."""
    axis = b.axis(dim, x.rank)
    if not 0 < size <= x.shape[axis] or step < 1:
        b.invalid(f"windows of {size}, {step} apart, along an axis of {x.shape[axis]}")
    count = (x.shape[axis] - size) // step + 1
    stride = x.strides[axis]
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], size)
    return x.view(shape, (*x.strides[:axis], stride * step, *x.strides[axis + 1 :], stride))
