"""Matrix products and convolutions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from vkep.kernels.conv import ConvProblem, conv
from vkep.kernels.epilogue import Epilogue
from vkep.kernels.kernel import KernelCall
from vkep.kernels.matmul import MatMulProblem, matmul
from vkep.lowering.builder import Builder
from vkep.lowering.lir import Target
from vkep.lowering.tensor import Tensor, collapse
from vkep.ops.registry import FLOATS, operator
from vkep.ops.spatial import Window, resolve_window


def matrix_product(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    """numpy's matmul of two tensors, each of rank 1 or more; views with any strides."""
    lead_x, lead_y = x.rank == 1, y.rank == 1
    if lead_x:
        x = x.view((1, *x.shape), (0, *x.strides))
    if lead_y:
        y = y.view((*y.shape, 1), (*y.strides, 0))
    (m, k), (k2, n) = x.shape[-2:], y.shape[-2:]
    if k != k2:
        b.decline(f"inner dimensions differ: {x.shape} by {y.shape}")
    try:
        batch_shape = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError:
        b.decline(f"batch dimensions of {x.shape} and {y.shape} do not broadcast")
    shape = [*batch_shape, *([] if lead_x else [m]), *([] if lead_y else [n])]
    if k == 0:
        return b.full(shape, 0, x.dtype)
    out = _batched(b, x, y, batch_shape, m, n, k)
    return b.reshape(out, shape)


def _batched(b: Builder, x: Tensor, y: Tensor, batch_shape: Sequence[int], m: int, n: int, k: int) -> Tensor:
    rows = (
        x.reshape((math.prod(batch_shape) * m, k)) if y.size == k * n and x.shape[:-2] == tuple(batch_shape) else None
    )
    if rows is not None:  # one matrix on the right: the batch is more rows
        return _product(b, rows, y.view((k, n), y.strides[-2:]), (0, 0), 1, rows.shape[0], n, k)
    x, y = x.expand((*batch_shape, m, k)), y.expand((*batch_shape, k, n))
    dims, [sx, sy] = collapse(batch_shape, [x.strides[:-2], y.strides[:-2]])
    if len(dims) > 1:  # no single batch stride says it
        x, y = b.contiguous(x), b.contiguous(y)
        dims, [sx, sy] = collapse(batch_shape, [x.strides[:-2], y.strides[:-2]])
    return _product(b, x, y, (sx[0], sy[0]), dims[0], m, n, k)


def _product(
    b: Builder, x: Tensor, y: Tensor, batch_strides: tuple[int, int], batch: int, m: int, n: int, k: int
) -> Tensor:
    if min(*x.strides, *y.strides) < 0:
        b.decline("a matrix that is read backwards")
    out = b.empty(x.dtype, (m, n) if batch == 1 else (batch, m, n))

    def emit(t: Target, i: Sequence[Tensor], o: Sequence[Tensor], epilogue: Epilogue | None) -> list[KernelCall]:
        problem = MatMulProblem(
            batch=batch,
            m=m,
            n=n,
            k=k,
            a_strides=(batch_strides[0], *x.strides[-2:]),
            b_strides=(batch_strides[1], *y.strides[-2:]),
            y_strides=(o[0].strides[0] if batch > 1 else 0, *o[0].strides[-2:]),
            dtype=x.dtype.name,
            b_constant=i[1].storage.is_constant,
        )
        return matmul(problem, t.caps, i[0], i[1], o[0], epilogue, _scratch(t), _prepack(t, i[1]))

    b.kernel([x, y], [out], emit, row_axis=out.rank - 2, strided_output=True, flops=2 * batch * m * n * k)
    return out


def _scratch(target: Target) -> Callable[[int], Tensor]:
    return lambda nbytes: target.scratch("uint8", (nbytes,))


def _prepack(
    target: Target, weight: Tensor
) -> Callable[[Callable[[np.ndarray], np.ndarray], str], Tensor | None] | None:
    if not weight.storage.is_constant:
        return None
    return lambda transform, tag: target.prepack(weight, transform, tag)


@operator("MatMul", types={"T": FLOATS})
def matmul_(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    return matrix_product(b, x, y)


def _gemm(
    b: Builder, x: Tensor, y: Tensor, c: Tensor | None, alpha: float, beta: float, trans_a: int, trans_b: int
) -> Tensor:
    product = matrix_product(b, x.transpose((1, 0)) if trans_a else x, y.transpose((1, 0)) if trans_b else y)
    if alpha != 1.0:
        product = b.pointwise("({0} * {1})", product, alpha)
    if c is None or beta == 0.0:
        return product
    if beta != 1.0:
        return b.pointwise("({0} + {1} * {2})", product, c, beta, shape=product.shape)
    return b.pointwise("({0} + {1})", product, c, shape=product.shape)


@operator("Gemm", since=7, until=10, types={"T": FLOATS})
def gemm_7(
    b: Builder,
    x: Tensor,
    y: Tensor,
    c: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    return _gemm(b, x, y, c, alpha, beta, transA, transB)


@operator("Gemm", since=11, types={"T": FLOATS})
def gemm(
    b: Builder,
    x: Tensor,
    y: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    return _gemm(b, x, y, c, alpha, beta, transA, transB)


@operator("Conv", types={"T": FLOATS})
def conv_(
    b: Builder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    spatial = x.rank - 2
    if not 1 <= spatial <= 3:
        b.decline(f"convolution over {spatial} axes; the kernels take 1 to 3")
    if x.shape[1] != w.shape[1] * group:
        b.decline(f"{x.shape[1]} input channels; the weights {w.shape} with {group} groups take {w.shape[1] * group}")
    window = resolve_window(b, x.shape[2:], kernel_shape or w.shape[2:], strides, pads, dilations, auto_pad)
    out = b.empty(x.dtype, [x.shape[0], w.shape[0], *window.out])
    problem = _conv_problem(b, x, w, window, group)

    def emit(t: Target, i: Sequence[Tensor], o: Sequence[Tensor], epilogue: Epilogue | None) -> list[KernelCall]:
        placed = dataclasses.replace(problem, y_batch_stride=o[0].strides[0] if x.shape[0] > 1 else None)
        return conv(placed, t.caps, i[0], i[1], o[0], epilogue, _scratch(t), _prepack(t, i[1]))

    flops = 2 * out.size * w.shape[1] * math.prod(window.kernel)
    b.kernel([b.contiguous(x), b.contiguous(w)], [out], emit, row_axis=1, strided_output=True, flops=flops)
    if bias is None:
        return out
    return b.pointwise("({0} + {1})", out, b.reshape(bias, (1, bias.size, *([1] * spatial))))


def _conv_problem(b: Builder, x: Tensor, w: Tensor, window: Window, group: int) -> ConvProblem:
    """The window as three axes; one and two axes are three with leading axes of one element."""
    lead = 3 - len(window.kernel)
    (d, h, width), (kd, kh, kw) = (1,) * lead + x.shape[2:], (1,) * lead + window.kernel
    stride, dilation = (1,) * lead + window.strides, (1,) * lead + window.dilations
    half = len(window.pads) // 2
    begins, ends = (0,) * lead + window.pads[:half], (0,) * lead + window.pads[half:]
    try:
        return ConvProblem(
            n=x.shape[0],
            c=x.shape[1],
            h=h,
            w=width,
            oc=w.shape[0],
            kh=kh,
            kw=kw,
            stride=(stride[1], stride[2]),
            dilation=(dilation[1], dilation[2]),
            pads=(begins[1], begins[2], ends[1], ends[2]),
            groups=group,
            dtype=x.dtype.name,
            d=d,
            kd=kd,
            stride_d=stride[0],
            dilation_d=dilation[0],
            pads_d=(begins[0], ends[0]),
        )
    except ValueError as error:
        b.decline(str(error))
