"""Matrix products, convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkep.aten.arguments import AveragePool, Convolution, MaxPool
from vkep.aten.builder import INT64, GraphBuilder, Number, Size, Val
from vkep.aten.pointwise import clipped
from vkep.aten.registry import aten


def each(values: Sequence[int], count: int, default: int) -> list[int]:
    """A list with a number for each spatial axis. One number is repeated; an empty list means the default."""
    if not values:
        return [default] * count
    return list(values) * count if len(values) == 1 else list(values)


@aten("aten.convolution.default")
def convolution(b: GraphBuilder, x: Val, weight: Val, bias: Val | None, how: Convolution) -> Val:
    """A convolution of any rank. The result's sizes are those that the blob records."""
    spatial = weight.rank - 2
    single = x.rank == spatial + 1  # the input has no batch axis
    if single:
        x = b.unsqueeze(x, [0])
    pads = each(how.padding, spatial, 0)
    attributes: dict[str, Any] = {
        "strides": each(how.stride, spatial, 1),
        "pads": [*pads, *pads],
        "dilations": each(how.dilation, spatial, 1),
        "group": how.groups,
    }
    if how.transposed:
        attributes["output_padding"] = each(how.output_padding, spatial, 0)
    weight, bias = b.cast(weight, x.elem), bias and b.cast(bias, x.elem)
    channels = weight.shape[1] * how.groups if how.transposed else weight.shape[0]
    dims = [x.dims[0], channels, *([None] * spatial)]
    out = b.op("ConvTranspose" if how.transposed else "Conv", x, weight, bias, dims=dims, **attributes)
    return b.squeeze(out, [0]) if single else out


@aten("et_vk.conv_with_clamp.default")
def conv_with_clamp(
    b: GraphBuilder,
    x: Val,
    weight: Val,
    bias: Val | None,
    how: Convolution,
    output_min: Number | None,
    output_max: Number | None,
) -> Val:
    out = convolution(b, x, weight, bias, how)
    if output_min == 0 and (output_max is None or output_max >= 3.4028234e38):
        return b.op("Relu", out)
    return clipped(b, out, output_min, output_max)


def _pooled(b: GraphBuilder, x: Val, count: int, op_type: str, kernel: Sequence[int], **attributes: Any) -> list[Val]:
    single = x.rank == len(kernel) + 1
    parts = b.ops(count, op_type, b.unsqueeze(x, [0]) if single else x, kernel_shape=list(kernel), **attributes)
    return [b.squeeze(p, [0]) for p in parts] if single else parts


@aten("aten.avg_pool2d.default")
def avg_pool2d(b: GraphBuilder, x: Val, pool: AveragePool) -> Val:
    kernel, pads, divisor = each(pool.kernel_size, 2, 1), each(pool.padding, 2, 0), pool.divisor_override
    if divisor is not None and pool.ceil_mode:
        b.decline("divisor_override with ceil_mode")
    (out,) = _pooled(
        b,
        x,
        1,
        "AveragePool",
        kernel,
        strides=each(pool.stride, 2, 0) if pool.stride else kernel,
        pads=[*pads, *pads],
        ceil_mode=int(pool.ceil_mode),
        count_include_pad=int(pool.count_include_pad or divisor is not None),
    )
    return out if divisor is None else b.op("Mul", out, b.number(kernel[0] * kernel[1] / divisor, x.elem))


def _max_pooled(b: GraphBuilder, x: Val, count: int, pool: MaxPool) -> list[Val]:
    kernel, pads = each(pool.kernel_size, 2, 1), each(pool.padding, 2, 0)
    attributes: dict[str, Any] = {
        "strides": each(pool.stride, 2, 1) if pool.stride else kernel,
        "pads": [*pads, *pads],
        "dilations": each(pool.dilation, 2, 1),
        "ceil_mode": int(pool.ceil_mode),
    }
    return _pooled(b, x, count, "MaxPool", kernel, **attributes)


@aten("aten.max_pool2d_with_indices.default")
def max_pool2d_with_indices(b: GraphBuilder, x: Val, pool: MaxPool) -> list[Val]:
    """Maximum pooling with indices. Positions count within a plane here, and within the whole tensor in ONNX."""
    out, index = _max_pooled(b, x, 2, pool)
    index = b.retyped(index, INT64)
    plane: Size = b.arithmetic("Mul", b.size(x, x.rank - 2), b.size(x, x.rank - 1))
    return [out, b.op("Mod", index, b.number(plane, INT64))]


@aten("aten.max_pool2d.default")
def max_pool2d(b: GraphBuilder, x: Val, pool: MaxPool) -> Val:
    return _max_pooled(b, x, 1, pool)[0]


@aten("aten.linear.default")
def linear(b: GraphBuilder, x: Val, weight: Val, bias: Val | None = None) -> Val:
    weight, bias = b.cast(weight, x.elem), bias and b.cast(bias, x.elem)
    if x.rank == 2 and weight.rank == 2:
        return b.op("Gemm", x, weight, bias, transB=1)
    dims = [*x.dims[:-1], *weight.dims[:-1]]
    out = b.op("MatMul", x, b.transpose(weight, range(weight.rank)[::-1]), dims=dims)
    return out if bias is None else b.op("Add", out, bias)


@aten("aten.mm.default", "aten.bmm.default")
def matmul(b: GraphBuilder, x: Val, mat2: Val) -> Val:
    return b.op("MatMul", x, b.cast(mat2, x.elem), dims=[*x.dims[:-1], mat2.dims[-1]])


@aten("aten.addmm.default")
def addmm(b: GraphBuilder, x: Val, mat1: Val, mat2: Val, beta: Number = 1, alpha: Number = 1) -> Val:
    x, mat2 = b.cast(x, mat1.elem), b.cast(mat2, mat1.elem)
    return b.op("Gemm", mat1, mat2, x, alpha=float(alpha), beta=float(beta), dims=[mat1.dims[0], mat2.dims[1]])
