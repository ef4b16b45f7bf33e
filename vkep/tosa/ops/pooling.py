"""Pooling. TOSA requires channels last; see `TosaBuilder.ordered`."""

from __future__ import annotations

import dataclasses
import math

from vkep.graph.attributes import PoolAttributes
from vkep.graph.windows import Window
from vkep.tosa.graph import PROPAGATE, TosaBuilder, TosaTensor, Value, ints
from vkep.tosa.ops import quantized
from vkep.tosa.ops.convolution import ACCUMULATE, NHWC, exact, lift
from vkep.tosa.ops.movement import pad_of
from vkep.tosa.ops.reduction import in_float32, mean_of
from vkep.tosa.registry import FLOATS, tosa_operator
from vkep.tosa.type_legalization import flip


def _pool(b: TosaBuilder, name: str, x: TosaTensor, window: Window, fill: float, zero: int = 0) -> TosaTensor:
    """MAX_POOL2D or AVG_POOL2D over one or two axes; ``fill`` is the value of padding beyond TOSA's limit."""
    if 0 in window.out:
        b.decline("TOSA has no empty tensors")
    if any(d != 1 for d in window.dilations):
        b.decline(f"TOSA's {name.upper()} has no dilation")
    if x.rank == 3:
        lifted = _pool(b, name, b.reshape(x, (*x.shape[:2], 1, x.shape[2])), lift(window), fill, zero)
        return b.reshape(lifted, (*lifted.shape[:2], lifted.shape[3]))
    if x.rank != 4:
        b.decline(f"pooling over {x.rank - 2} axes")
    x, sides = exact(b, x, window)
    if any(p >= k for k, side in zip(window.kernel, sides, strict=True) for p in side):
        if name == "avg_pool2d":
            b.decline("pads as large as the kernel")
        x, sides = pad_of(b, x, [(0, 0), (0, 0), *sides], fill), [(0, 0)] * 2
    attributes = {
        "kernel": ints(window.kernel),
        "stride": ints(window.strides),
        "pad": ints([n for side in sides for n in side]),
    }
    operands: list[Value] = [b.ordered(x, NHWC)]
    if name == "avg_pool2d":
        operands += [b.zero_point(x.dtype, zero), b.zero_point(x.dtype, zero)]
        attributes["acc_type"] = ACCUMULATE[x.dtype]
    else:
        attributes["nan_mode"] = PROPAGATE
    value = b.op(name, operands, (x.shape[0], *window.out, x.shape[1]), **attributes)
    return b.from_order(value, NHWC)


@tosa_operator("MaxPool", types=(*FLOATS, "int8", "uint8"))
def max_pool(
    b: TosaBuilder,
    x: TosaTensor,
    *,
    a: PoolAttributes,
    storage_order: int = 0,
) -> TosaTensor:
    window = a.window(x.shape)
    if x.dtype == "uint8":
        return flip(b, _pool(b, "max_pool2d", flip(b, x), window, -128))
    low = -math.inf if x.dtype in FLOATS else -128
    made = _pool(b, "max_pool2d", x, window, low)
    known = quantized.same_everywhere(x)
    if known is None:
        return made
    return quantized.alike(made, known, _pool(b, "max_pool2d", known.ints, window, -128))


@tosa_operator("AveragePool", types=FLOATS)
def average_pool(
    b: TosaBuilder,
    x: TosaTensor,
    *,
    a: PoolAttributes,
    count_include_pad: int = 0,
) -> TosaTensor:
    window = a.window(x.shape)
    known = quantized.same_everywhere(x)
    source, whole, inner = x, known.ints if known is not None else None, window
    if count_include_pad and any(window.pads):  # TOSA does not count padding: here it is content
        rank = len(window.kernel)
        given = [(0, 0), (0, 0), *((window.pads[i], window.pads[rank + i]) for i in range(rank))]
        if any(min(side) < 0 for side in given):
            b.decline(f"negative padding {window.pads}")
        source = pad_of(b, x, given, 0)
        whole = pad_of(b, whole, given, known.zero) if known is not None and whole is not None else None
        inner = dataclasses.replace(window, pads=(0,) * len(window.pads))
    made = _pool(b, "avg_pool2d", source, inner, 0)
    if known is None or whole is None:
        return made
    return quantized.alike(made, known, _pool(b, "avg_pool2d", whole, inner, 0, known.zero))


@tosa_operator("GlobalAveragePool", types=FLOATS)
def global_average_pool(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    axes = range(2, x.rank)
    made = in_float32(b, x, lambda b, x: mean_of(b, x, axes))
    known = quantized.same_everywhere(x)
    if known is None:
        return made
    sums = b.reduce("reduce_sum", quantized.centered(b, known), axes)  # in 32 bits, and exact
    return quantized.accumulated(b, sums, known.scale / math.prod(x.shape[2:]), -1)


@tosa_operator("GlobalMaxPool", types=FLOATS)
def global_max_pool(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    axes = range(2, x.rank)
    made = b.reduce("reduce_max", x, axes, nan_mode=PROPAGATE)
    known = quantized.same_everywhere(x)
    if known is None:
        return made
    return quantized.alike(made, known, b.reduce("reduce_max", known.ints, axes, nan_mode=PROPAGATE))
