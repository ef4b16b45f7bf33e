"""Pooling. TOSA wants channels last; see `GraphBuilder.ordered`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkep.tosa.graph import PROPAGATE, GraphBuilder, Tensor, Value, ints
from vkep.tosa.ops import quantized
from vkep.tosa.ops.convolution import ACCUMULATE, NHWC, exact, spatial_pads
from vkep.tosa.ops.movement import pad_of
from vkep.tosa.ops.reduction import mean_of
from vkep.tosa.registry import FLOATS, tosa_operator


def _pool_window(
    b: GraphBuilder,
    x: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    ceil_mode: int,
    fill: float,
) -> tuple[Tensor, list[tuple[int, int]], list[int]]:
    strides = list(strides or [1] * len(kernel))
    sides = spatial_pads(b, x.shape[2:], kernel, strides, pads, auto_pad)
    if ceil_mode:
        for i, (before, after) in enumerate(sides):
            if (x.shape[i + 2] + before + after - kernel[i]) % strides[i]:
                b.decline("ceil_mode with a last window that hangs over")
    x, sides = exact(b, x, sides, kernel, strides)
    if any(p >= k for k, side in zip(kernel, sides, strict=True) for p in side):
        # TOSA wants pads below the kernel size
        x = pad_of(b, x, [(0, 0), (0, 0), *sides], fill)
        sides = [(0, 0)] * len(kernel)
    return x, sides, strides


def _pooled(
    b: GraphBuilder, name: str, x: Tensor, kernel: Sequence[int], sides: list[tuple[int, int]], strides: list[int]
) -> Tensor:
    sizes = [
        (x.shape[i + 2] + sum(sides[i]) - k) // s + 1 for i, (k, s) in enumerate(zip(kernel, strides, strict=True))
    ]
    attributes = {"kernel": ints(kernel), "stride": ints(strides), "pad": ints([n for side in sides for n in side])}
    operands: list[Value] = [b.ordered(x, NHWC)]
    if name == "avg_pool2d":
        operands += [b.zero_point(x.dtype), b.zero_point(x.dtype)]
        attributes["acc_type"] = ACCUMULATE[x.dtype]
    else:
        attributes["nan_mode"] = PROPAGATE
    value = b.op(name, operands, (x.shape[0], *sizes, x.shape[1]), **attributes)
    return b.from_order(value, NHWC)


@tosa_operator("MaxPool", types=(*FLOATS, "int8"))
def max_pool(
    b: GraphBuilder,
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
) -> Tensor:
    if any(d != 1 for d in dilations or ()):
        b.decline("TOSA's MAX_POOL2D has no dilation")
    if x.rank == 3:
        lifted = max_pool(
            b,
            b.reshape(x, (*x.shape[:2], 1, x.shape[2])),
            kernel_shape=(1, *kernel_shape),
            auto_pad=auto_pad,
            ceil_mode=ceil_mode,
            pads=None if pads is None else (0, pads[0], 0, pads[1]),
            strides=(1, *(strides or (1,))),
        )
        return b.reshape(lifted, (*lifted.shape[:2], lifted.shape[3]))
    if x.rank != 4:
        b.decline(f"pooling over {x.rank - 2} axes")
    low = -math.inf if x.dtype in FLOATS else -128
    known = quantized.same_everywhere(x)
    x, sides, steps = _pool_window(b, x, kernel_shape, strides, pads, auto_pad, ceil_mode, low)
    made = _pooled(b, "max_pool2d", x, kernel_shape, sides, steps)
    if known is None:
        return made
    ints, sides, steps = _pool_window(b, known.ints, kernel_shape, strides, pads, auto_pad, ceil_mode, -128)
    return quantized.pooled(made, known, _pooled(b, "max_pool2d", ints, kernel_shape, sides, steps))


@tosa_operator("AveragePool", types=FLOATS)
def average_pool(
    b: GraphBuilder,
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    if any(d != 1 for d in dilations or ()):
        b.decline("TOSA's AVG_POOL2D has no dilation")
    if x.rank != 4:
        b.decline(f"pooling over {x.rank - 2} axes")
    given = spatial_pads(b, x.shape[2:], kernel_shape, list(strides or (1, 1)), pads, auto_pad)
    if not count_include_pad and any(p >= k for k, side in zip(kernel_shape, given, strict=True) for p in side):
        b.decline("pads as large as the kernel")
    if count_include_pad and any(any(side) for side in given):
        if ceil_mode:
            b.decline("ceil_mode together with count_include_pad")
        x = pad_of(b, x, [(0, 0), (0, 0), *given], 0)
        given = [(0, 0)] * 2
    flat = [side[0] for side in given] + [side[1] for side in given]
    x, sides, steps = _pool_window(b, x, kernel_shape, strides, flat, "NOTSET", ceil_mode, 0)
    return _pooled(b, "avg_pool2d", x, kernel_shape, sides, steps)


@tosa_operator("GlobalAveragePool", types=FLOATS)
def global_average_pool(b: GraphBuilder, x: Tensor) -> Tensor:
    return mean_of(b, x, range(2, x.rank))


@tosa_operator("GlobalMaxPool", types=FLOATS)
def global_max_pool(b: GraphBuilder, x: Tensor) -> Tensor:
    return b.reduce("reduce_max", x, range(2, x.rank), nan_mode=PROPAGATE)
