"""Tensors while lowering: strided views of storages whose memory is not assigned yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from vkep.dtypes import DType
from vkep.graph.weights import SizesWeight, Weight
from vkep.sizes import cached, divides, matches, power_of_two_in, serves_others, whole, wholes


@dataclass(eq=False, slots=True)
class Storage:
    """Bytes that a plan assigns memory to: a weight, an input of the plan, or a buffer that an operation fills.

    Compared by identity. Exactly one of ``weight`` and ``port`` is set for weights and ports; a buffer has neither.
    """

    nbytes: int
    weight: Weight | None = None
    port: int | None = None
    label: str = ""

    @property
    def is_constant(self) -> bool:
        """Whether it holds a weight."""
        return self.weight is not None

    @property
    def may_be_packed(self) -> bool:
        """Whether it holds a weight whose bytes are those of all runs: one of sizes is written by each plan."""
        return self.weight is not None and not isinstance(self.weight, SizesWeight)


@dataclass(slots=True, unsafe_hash=True)  # immutable by convention; a frozen class takes six times as long to construct
class Tensor:
    """A strided view of a storage. ``strides`` and ``offset`` count elements; a stride may be 0 or negative."""

    dtype: DType
    shape: tuple[int, ...]
    storage: Storage = field(repr=False)
    strides: tuple[int, ...]
    offset: int = 0
    size: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.size = math.prod(self.shape)

    @classmethod
    def contiguous(cls, dtype: DType, shape: Sequence[int], storage: Storage | None = None, label: str = "") -> Tensor:
        """A dense tensor over ``storage``, by default a new one."""
        shape = wholes(shape)
        storage = storage or Storage(math.prod(shape) * dtype.itemsize, label=label)
        return cls(dtype, shape, storage, contiguous_strides(shape))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.size * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether elements are dense in row-major order (from any offset)."""
        return not self.size or _is_dense(self.shape, self.strides)

    @property
    def is_whole(self) -> bool:
        """The view covers its storage exactly."""
        return matches(self.offset, 0) and self.is_contiguous and matches(self.nbytes, self.storage.nbytes)

    @property
    def array(self) -> np.ndarray | None:
        """The values of a constant with the tensor's shape and dtype (a read-only view of a weight where it can be
        one); None where they are not known while lowering."""
        if self.storage.weight is None:
            return None
        if any(map(serves_others, (*self.shape, self.offset))):
            return None  # the content is known, but not which part of it
        base = self.storage.weight.array()
        if self.size == 0:
            return np.empty(self.shape, self.dtype.numpy)
        flat = np.ascontiguousarray(base).reshape(-1)
        if self.size == 1:
            return flat[self.offset : self.offset + 1].reshape(self.shape)
        if self.is_contiguous:
            dense = flat[self.offset : self.offset + self.size].reshape(self.shape)
            dense.flags.writeable = False
            return dense
        strides = tuple(s * flat.itemsize for s in self.strides)
        return np.lib.stride_tricks.as_strided(flat[self.offset :], self.shape, strides, writeable=False)

    @property
    def byte_range(self) -> tuple[int, int]:
        """First and one past the last byte of the storage that the view can touch."""
        if self.size == 0:
            return (0, 0)
        first, last = _reach(self.shape, self.strides)
        return ((self.offset + first) * self.dtype.itemsize, (self.offset + last + 1) * self.dtype.itemsize)

    @property
    def elements_left(self) -> int:
        """Elements of the storage from the view's first one on."""
        return self.storage.nbytes // self.dtype.itemsize - self.offset

    # ---- movement: views only, None where a copy would be needed

    def view(self, shape: Sequence[int], strides: Sequence[int], offset: int | None = None) -> Tensor:
        """A view with other sizes and strides (elements) of the same storage. Raises `ValueError` where it leaves the
        storage."""
        made = Tensor(self.dtype, tuple(shape), self.storage, tuple(strides), self.offset if offset is None else offset)
        start, end = made.byte_range
        if start < 0 or end > self.storage.nbytes:
            raise ValueError(
                f"a view of shape {made.shape}, strides {made.strides} from element {made.offset} on touches bytes {start} "
                f"to {end} of {self.storage.nbytes}"
            )
        return made

    def _within(self, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
        """A view of elements of this tensor, which needs no check."""
        return Tensor(self.dtype, tuple(shape), self.storage, tuple(strides), offset)

    def reshape(self, shape: Sequence[int]) -> Tensor | None:
        """The same elements in row-major order under another shape; None where no strides express it. Raises
        ``ValueError`` for another number of elements."""
        shape = wholes(shape)
        if math.prod(shape) != self.size:
            raise ValueError(f"cannot view {self.size} elements of shape {self.shape} as {shape}")
        strides = contiguous_strides(shape) if self.is_contiguous else reshaped_strides(self.shape, self.strides, shape)
        return None if strides is None else Tensor(self.dtype, shape, self.storage, strides, self.offset)

    def transpose(self, perm: Sequence[int]) -> Tensor:
        """Axes in the order of ``perm``; `ValueError` where it is no permutation of them."""
        if sorted(perm) != list(range(self.rank)):
            raise ValueError(f"{tuple(perm)} is no permutation of the axes of shape {self.shape}")
        return self._within([self.shape[p] for p in perm], [self.strides[p] for p in perm], self.offset)

    def expand(self, shape: Sequence[int]) -> Tensor:
        """Broadcast to ``shape`` (numpy's rules). Raises `ValueError` where it does not fit."""
        shape = tuple(shape)
        strides = _expanded_strides(self.shape, self.strides, shape)
        return self if strides is None else self._within(shape, strides, self.offset)

    def slice(self, axis: int, start: int, length: int, step: int = 1) -> Tensor:
        """``length`` elements along ``axis`` from ``start``, ``step`` apart (negative steps walk backwards).

        `ValueError` where one of them is outside the axis.
        """
        last = start + (length - 1) * step
        if length < 0 or (length and not (0 <= start < self.shape[axis] and 0 <= last < self.shape[axis])):
            raise ValueError(f"elements {start} to {last} of axis {axis}, which has {self.shape[axis]}")
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + (start * strides[axis] if length else 0)
        shape[axis], strides[axis] = length, strides[axis] * step
        return self._within(shape, strides, offset)


#: orders of the axes of heads, and of heads with turned matrices, in which their memory is dense
_ORDERS = ((0, 2, 1, 3), (0, 3, 1, 2))


def memory_order(view: Tensor) -> Sequence[int]:
    """The order of its axes in which a view is dense, of those that attention's heads have; as they are where there is none."""
    if view.rank == 4 and not view.is_contiguous:
        return next((order for order in _ORDERS if view.transpose(order).is_contiguous), range(4))
    return range(view.rank)


def same_shape(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes are equal, for choices that are only simpler in that case."""
    return len(shape) == len(other) and all(map(matches, shape, other))


def alignment(*tensors: Tensor) -> int:
    """Bytes, a power of two up to 16, that divide each tensor's address (storages are aligned to more)."""
    return min(power_of_two_in(t.offset * t.dtype.itemsize, 16) for t in tensors)


@cached
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense tensor in row-major order, in elements."""
    strides, step = [], 1
    for dim in reversed(shape):
        strides.append(step)
        step *= max(whole(dim), 1)
    return tuple(reversed(strides))


@cached
def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for dim, stride in zip(reversed(shape), reversed(strides), strict=True):
        if not matches(dim, 1):
            if not matches(stride, expected):
                return False
            expected *= dim
    return True


@cached
def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """The number of elements from a view's lowest to its first, and from its first to its highest, for a view that is
    not empty."""
    spans = [(s < 0, (d - 1) * s) for d, s in zip(shape, strides, strict=True)]
    return sum(span for back, span in spans if back), sum(span for back, span in spans if not back)


@cached
def _expanded_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], target: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides of a view that is broadcast to a shape; None where that is the view itself."""
    lead = len(target) - len(shape)
    if lead < 0:
        raise ValueError(f"cannot broadcast shape {shape} to {target}")
    expanded, changed = [0] * len(target), lead > 0
    for axis, (dim, stride) in enumerate(zip(shape, strides, strict=True), lead):
        if matches(dim, 1):
            changed |= not (matches(stride, 0) and matches(target[axis], 1))
        elif dim == target[axis]:
            expanded[axis] = stride
        elif dim == 1:
            changed = True
        else:
            raise ValueError(f"cannot broadcast shape {shape} to {target}")
    return tuple(expanded) if changed else None


@cached
def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that numpy broadcasts these to. Raises `ValueError` where they do not fit."""
    result: list[int] = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for axis, dim in enumerate(shape, len(result) - len(shape)):
            if matches(dim, 1):
                continue
            if matches(result[axis], 1):
                result[axis] = whole(dim)
            elif dim != result[axis] and dim != 1:
                if result[axis] != 1:
                    raise ValueError(f"shapes {list(map(list, shapes))} do not broadcast")
                result[axis] = whole(dim)
    return tuple(result)


def collapse(
    shape: Sequence[int], stride_sets: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Merge neighbouring axes that every stride set walks as one; drop axes of size 1.

    Returns the merged shape (at least one axis) and the strides of each set.
    """
    return _collapsed(tuple(shape), tuple(map(tuple, stride_sets)))


@cached
def _collapsed(
    shape: tuple[int, ...], stride_sets: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    dims: list[int] = []
    sets: list[list[int]] = [[] for _ in stride_sets]
    for axis, dim in enumerate(shape):
        if matches(dim, 1):
            continue
        here = [s[axis] for s in stride_sets]
        if dims and all(matches(kept[-1], stride * dim) for kept, stride in zip(sets, here, strict=True)):
            dims[-1] *= dim
            for kept, stride in zip(sets, here, strict=True):
                kept[-1] = stride
        else:
            dims.append(dim)
            for kept, stride in zip(sets, here, strict=True):
                kept.append(stride)
    if not dims:
        return (1,), ((0,),) * len(sets)
    return tuple(dims), tuple(map(tuple, sets))


@cached
def reshaped_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], new_shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides under which ``new_shape`` walks the same elements in the same order, or None where none exist."""
    old, [steps] = collapse(shape, [strides])
    result: list[int] = []
    group, left = len(old) - 1, old[-1]
    step = steps[-1]
    for dim in reversed(new_shape):
        if matches(dim, 1):
            result.append(0)
            continue
        if matches(left, 1):
            group -= 1
            left, step = old[group], steps[group]
        if not divides(dim, left):
            return None
        result.append(step)
        left //= dim
        step *= dim
    return tuple(reversed(result))


def channels_first(x: Tensor) -> Tensor:
    """A view of [n, ..., c] as [n, c, ...]."""
    return x.transpose((0, x.rank - 1, *range(1, x.rank - 1)))


def channels_last(x: Tensor) -> Tensor:
    """A view of [n, c, ...] as [n, ..., c]."""
    return x.transpose((0, *range(2, x.rank), 1))
