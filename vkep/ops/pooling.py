"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkep.dtypes import DTYPES
from vkep.kernels.pool import pool
from vkep.lowering.builder import Builder
from vkep.lowering.tensor import Tensor
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import FLOATS, operator
from vkep.ops.spatial import Window, resolve_window

_POOLED = (*FLOATS, "int8", "uint8")


def _pool(
    b: Builder, op: str, x: Tensor, window: Window, *, indices: bool = False, count_include_pad: bool = False,
    column_major: bool = False, p: int = 2,
) -> list[Tensor]:  # fmt: skip
    images, channels = x.shape[:2]
    outs = [b.empty(x.dtype, [images, channels, *window.out])]
    if indices:
        outs.append(b.empty(DTYPES["int64"], outs[0].shape))
    b.kernel(
        [b.contiguous(x)],
        outs,
        lambda t, i, o, _: pool(
            op,
            images,
            channels,
            x.shape[2:],
            window.out,
            window.kernel,
            x.dtype.name,
            t.caps,
            i[0],
            o[0],
            strides=window.strides,
            pads=window.pads,
            dilations=window.dilations,
            count_include_pad=count_include_pad,
            p=p,
            indices=o[1] if indices else None,
            column_major=column_major,
        ),
        flops=outs[0].size * math.prod(window.kernel),
    )
    return outs


@operator("MaxPool", types={"T": _POOLED})
def max_pool(
    b: Builder,
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
) -> list[Tensor]:
    window = resolve_window(b, x.shape[2:], kernel_shape, strides, pads, dilations, auto_pad, bool(ceil_mode))
    wanted = b.node is not None and len(b.node.outputs) > 1
    return _pool(b, "max", x, window, indices=wanted, column_major=bool(storage_order))


@operator("AveragePool", since=7, types={"T": FLOATS})
def average_pool(
    b: Builder,
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
    window = resolve_window(b, x.shape[2:], kernel_shape, strides, pads, dilations, auto_pad, bool(ceil_mode))
    return _pool(b, "average", x, window, count_include_pad=bool(count_include_pad))[0]


@operator("LpPool", since=2, types={"T": FLOATS})
def lp_pool(
    b: Builder,
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    p: int = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    window = resolve_window(b, x.shape[2:], kernel_shape, strides, pads, dilations, auto_pad, bool(ceil_mode))
    return _pool(b, "lp", x, window, p=p)[0]


@operator("GlobalAveragePool", types={"T": FLOATS})
def global_average_pool(b: Builder, x: Tensor) -> Tensor:
    return reduce_axes(b, "mean", x, list(range(2, x.rank)), keepdims=True)


@operator("GlobalMaxPool", types={"T": FLOATS})
def global_max_pool(b: Builder, x: Tensor) -> Tensor:
    return reduce_axes(b, "max", x, list(range(2, x.rank)), keepdims=True)
