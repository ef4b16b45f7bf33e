"""Operators that pick elements by index, or put them."""

from __future__ import annotations

import math

from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor, alignment
from vkep.kernels.gather import GatherProblem, gather_elements, gather_nd
from vkep.kernels.pad import pad as pad_kernel
from vkep.kernels.scatter import scatter_elements as scatter_elements_kernel
from vkep.kernels.scatter import scatter_nd as scatter_nd_kernel
from vkep.ops.allowed import FLOATING, every
from vkep.ops.registry import INDICES, operator


@operator("Gather", types={"T": every("Gather"), "Tind": INDICES})
def gather_(b: Builder, data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis = b.axis(axis, data.rank)
    known = indices.array
    if known is not None and indices.size == 1:  # one known index is a view
        at = int(known.reshape(-1)[0])
        if not -data.shape[axis] <= at < data.shape[axis]:
            b.decline(f"index {at} is out of range for axis {axis} of {data.shape}")
        one = data.slice(axis, at % data.shape[axis], 1)
        return b.reshape(one, [*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]])
    outer, inner = math.prod(data.shape[:axis]), math.prod(data.shape[axis + 1 :])
    out = b.empty(data.dtype, [*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]])
    problem = GatherProblem(outer, data.shape[axis], inner, indices.size, data.dtype.name, indices.dtype.name)
    b.compute(problem, [b.contiguous(data), b.contiguous(indices)], [out])
    return out


@operator("GatherElements", types={"T": every("GatherElements"), "Tind": INDICES})
def gather_elements_(b: Builder, data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis = b.axis(axis, data.rank)
    out = b.empty(data.dtype, indices.shape)
    b.kernel(
        [b.contiguous(data), b.contiguous(indices)],
        [out],
        lambda t, i, o, _: gather_elements(
            data.shape, indices.shape, axis, data.dtype.itemsize, indices.dtype.name, t.caps, i[0], i[1], o[0]
        ),
    )
    return out


@operator("GatherND", since=11, until=11, types={"T": every("GatherND")})
def gather_nd_11(b: Builder, data: Tensor, indices: Tensor) -> Tensor:
    return gather_nd_(b, data, indices)


@operator("GatherND", since=12, types={"T": every("GatherND")})
def gather_nd_(b: Builder, data: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    keys = indices.shape[-1]
    out = b.empty(data.dtype, [*indices.shape[:-1], *data.shape[batch_dims + keys :]])
    b.kernel(
        [b.contiguous(data), b.contiguous(indices)],
        [out],
        lambda t, i, o, _: gather_nd(
            data.shape,
            indices.shape,
            batch_dims,
            data.dtype.itemsize,
            indices.dtype.name,
            t.caps,
            i[0],
            i[1],
            o[0],
            alignment=alignment(i[0], o[0]),
        ),
    )
    return out


def scatter_elements_(b: Builder, data: Tensor, indices: Tensor, updates: Tensor, axis: int, reduction: str) -> Tensor:
    axis = b.axis(axis, data.rank)
    out = b.empty(data.dtype, data.shape)
    b.kernel(
        [b.contiguous(data), b.contiguous(indices), b.contiguous(updates)],
        [out],
        lambda t, i, o, _: scatter_elements_kernel(
            data.shape,
            indices.shape,
            axis,
            data.dtype.name,
            indices.dtype.name,
            t.caps,
            i[0],
            i[1],
            i[2],
            o[0],
            reduction,
        ),
    )
    return out


@operator("ScatterElements", since=11, until=15, types={"T": every("ScatterElements"), "Tind": INDICES})
def scatter_elements_11(b: Builder, data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0) -> Tensor:
    return scatter_elements_(b, data, indices, updates, axis, "none")


@operator("ScatterElements", since=16, types={"T": every("ScatterElements"), "Tind": INDICES})
def scatter_elements(
    b: Builder, data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    return scatter_elements_(b, data, indices, updates, axis, reduction)


def _scatter_nd(b: Builder, data: Tensor, indices: Tensor, updates: Tensor, reduction: str) -> Tensor:
    out = b.empty(data.dtype, data.shape)
    b.kernel(
        [b.contiguous(data), b.contiguous(indices), b.contiguous(updates)],
        [out],
        lambda t, i, o, _: scatter_nd_kernel(
            data.shape, indices.shape, data.dtype.name, indices.dtype.name, t.caps, i[0], i[1], i[2], o[0], reduction
        ),
    )
    return out


@operator("ScatterND", since=11, until=13, types={"T": every("ScatterND")})
def scatter_nd_11(b: Builder, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    return _scatter_nd(b, data, indices, updates, "none")


@operator("ScatterND", since=16, types={"T": every("ScatterND")})
def scatter_nd(b: Builder, data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    return _scatter_nd(b, data, indices, updates, reduction)


def _pad(b: Builder, data: Tensor, begins: list[int], ends: list[int], mode: str, value: float | int | bool) -> Tensor:
    out = b.empty(data.dtype, [d + p + q for d, p, q in zip(data.shape, begins, ends, strict=True)])
    b.kernel(
        [b.contiguous(data)],
        [out],
        lambda t, i, o, _: pad_kernel(
            data.shape, begins, ends, mode, data.dtype.name, t.caps, i[0] if i[0].size else None, o[0], value
        ),
    )
    return out


@operator("Pad", since=2, until=2, types={"T": every("Pad", among=FLOATING)})
def pad_2(b: Builder, data: Tensor, *, pads: list[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    return _pad(b, data, list(pads[: data.rank]), list(pads[data.rank :]), mode, value)


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
    amounts = b.ints(pads, "pads") or []
    chosen = [b.axis(a, data.rank) for a in (b.ints(axes, "axes") or range(data.rank))]
    begins, ends = [0] * data.rank, [0] * data.rank
    for k, axis in enumerate(chosen):
        begins[axis], ends[axis] = amounts[k], amounts[len(chosen) + k]
    value = 0 if constant_value is None else b.value(constant_value, "constant_value").reshape(-1)[0].item()
    return _pad(b, data, begins, ends, mode, value)
