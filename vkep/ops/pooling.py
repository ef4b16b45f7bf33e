"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkep.dtypes import FLOAT32, INT64
from vkep.graph.attributes import PoolAttributes
from vkep.graph.windows import Window
from vkep.ir.builder import LARGEST, Builder
from vkep.ir.tensor import Tensor, channels_first, channels_last
from vkep.kernels.images.pool import PoolProblem
from vkep.ops.allowed import BYTES, FLOATING, every
from vkep.ops.codes import by_codes
from vkep.ops.gather import scatter_elements_
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import operator


def _pool(
    b: Builder, op: str, x: Tensor, window: Window, *, indices: bool = False, count_include_pad: bool = False,
    column_major: bool = False, p: int = 2,
) -> list[Tensor]:  # fmt: skip
    images, channels, *spatial = x.shape
    dtypes = [x.dtype, *([INT64] if indices else [])]
    outs = [b.empty(dtype, [images, channels, *window.out]) for dtype in dtypes]
    if 0 in outs[0].shape:
        return outs
    problem = PoolProblem(
        op, images, channels, tuple(spatial), window, x.dtype.name, count_include_pad, p, indices, column_major
    )
    b.compute(problem, [b.contiguous(x)], outs)
    return outs


@operator("MaxPool", types={"T": every("MaxPool", among=(*FLOATING, "int8", "uint8"))})
def max_pool(
    b: Builder,
    x: Tensor,
    *,
    a: PoolAttributes,
    storage_order: int = 0,
) -> list[Tensor]:
    window = a.window(x.shape)
    wanted = b.node is not None and len(b.node.outputs) > 1
    if storage_order not in (0, 1):
        b.invalid(f"storage_order is {storage_order}, expected 0 (row major) or 1 (column major)")
    if not wanted and _sees_elements(window, x.shape[2:]):  # the maximum of codes is the code of the maximum
        pooled = by_codes(b, x, lambda codes: _pool(b, "max", codes, window)[0])
        if pooled is not None:
            return [pooled]
    return _pool(b, "max", x, window, indices=wanted, column_major=bool(storage_order))


def _sees_elements(window: Window, spatial: Sequence[int]) -> bool:
    """Whether no window is in the padding alone, as far as is easily said."""
    axes = zip(spatial, window.kernel, window.strides, window.dilations, window.pads, window.out, strict=False)
    return all(
        step == 1 and begin < kernel and (out - 1) * stride - begin < size
        for size, kernel, stride, step, begin, out in axes
    )


@operator("AveragePool", types={"T": every("AveragePool", among=FLOATING)})
def average_pool(
    b: Builder,
    x: Tensor,
    *,
    a: PoolAttributes,
    count_include_pad: int = 0,
) -> Tensor:
    window = a.window(x.shape)
    return _pool(b, "average", x, window, count_include_pad=bool(count_include_pad))[0]


@operator("LpPool", since=2, types={"T": every("LpPool", among=FLOATING)})
def lp_pool(
    b: Builder,
    x: Tensor,
    *,
    a: PoolAttributes,
    p: int = 2,
) -> Tensor:
    window = a.window(x.shape)
    return _pool(b, "lp", x, window, p=p)[0]


def _spatial(b: Builder, x: Tensor) -> list[int]:
    if x.rank < 3:
        b.invalid(f"the input has shape {list(x.shape)}, expected [N, C, D1, ...]")
    if not x.size and x.shape[0]:
        b.invalid(f"an input of shape {list(x.shape)}; of a pool's input only the batch may be 0")
    return list(range(2, x.rank))


@operator("GlobalAveragePool", types={"T": every("GlobalAveragePool", among=FLOATING)})
def global_average_pool(b: Builder, x: Tensor) -> Tensor:
    return reduce_axes(b, "mean", x, _spatial(b, x), keepdims=True)


@operator("GlobalMaxPool", types={"T": every("GlobalMaxPool", among=FLOATING)})
def global_max_pool(b: Builder, x: Tensor) -> Tensor:
    return reduce_axes(b, "max", x, _spatial(b, x), keepdims=True)


@operator("GlobalLpPool", types={"T": every("GlobalLpPool", among=FLOATING)})
def global_lp_pool(b: Builder, x: Tensor, *, p: float = 2) -> Tensor:
    axes = _spatial(b, x)
    if p in (1, 2):
        return reduce_axes(b, "l1" if p == 1 else "l2", x, axes, keepdims=True)
    wide = x.dtype if x.dtype.name == "float64" else FLOAT32
    powers = b.store(b.expr("pow", b.expr("abs", x), p), wide, shape=x.shape)
    total = reduce_axes(b, "sum", powers, axes, keepdims=True)
    return b.pointwise("pow", total, 1 / p, dtype=x.dtype)


@operator("MaxUnpool", types={"T1": every("MaxUnpool", "T1", FLOATING), "T2": ("int64",)})
def max_unpool(
    b: Builder,
    x: Tensor,
    indices: Tensor,
    output_shape: Tensor | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    rank = x.rank - 2
    steps, edges = list(strides or [1] * rank), list(pads or [0] * 2 * rank)
    b.expect("indices", indices, x.shape)
    if not 1 <= rank == len(kernel_shape) == len(steps) == len(edges) / 2:
        b.invalid(f"kernel_shape, strides {steps} and pads {edges} do not fit an input of shape {list(x.shape)}")
    pooled = [(x.shape[2 + k] - 1) * steps[k] - edges[k] - edges[rank + k] + kernel_shape[k] for k in range(rank)]
    least = [*x.shape[:2], *pooled]
    if any(size < 1 for size in pooled):
        b.invalid(f"unpooling {list(x.shape)} would make {least}, expected 1 or more along each axis")
    wanted = b.ints(output_shape, "output_shape")
    shape = least if wanted is None else wanted
    total = math.prod(shape)
    if (
        len(shape) != len(least)
        or shape[:2] != least[:2]
        or any(size < 0 for size in shape)
        or total < math.prod(least)
    ):
        b.invalid(
            f"output_shape is {shape}, expected {least[:2]} images and channels, and as many elements as {least} or more"
        )
    if total >= LARGEST:
        b.decline(f"unpooling {x.shape} would make {shape}; expected fewer than 2**31 elements")
    zeros, at, values = b.full([total], 0, x.dtype), b.reshape(indices, [x.size]), b.reshape(x, [x.size])
    what = f"an index into an output of shape {list(shape)}"
    return b.reshape(scatter_elements_(b, zeros, at, values, 0, "none", what=what, from_end=False), shape)


@operator("NhwcMaxPool", domain=MICROSOFT, types={"x": BYTES})
def nhwc_max_pool(b: Builder, x: Tensor, *, a: PoolAttributes) -> Tensor:
    return channels_last(max_pool(b, channels_first(x), a=a)[0])
