"""Convolutions. TOSA requires channels last; see `TosaBuilder.ordered`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vkep.errors import Decline
from vkep.graph.attributes import ConvAttributes, ConvTransposeAttributes
from vkep.graph.windows import Window
from vkep.tosa.graph import TosaBuilder, TosaTensor, Value, ints
from vkep.tosa.ops import quantized
from vkep.tosa.ops.movement import part_of, slice_of
from vkep.tosa.registry import FLOATS, tosa_operator

NHWC = (0, 2, 3, 1)
ACCUMULATE = {"float32": "f32", "float16": "f32", "int8": "i32"}
Sides = list[tuple[int, int]]


def exact(b: TosaBuilder, x: TosaTensor, window: Window) -> tuple[TosaTensor, Sides]:
    """The input and the (before, after) padding of each spatial axis such that the window ends on the last row read.

    TOSA allows no remainder: rows beyond the last stride are removed from the padding, then from the input. A last
    window that exceeds the padding (ceil_mode) gets more padding.
    """
    sizes, sides = list(x.shape), []
    rank = len(window.kernel)
    for i, (k, s, d, out) in enumerate(zip(window.kernel, window.strides, window.dilations, window.out, strict=True)):
        before = window.pads[i]
        after = (out - 1) * s + (k - 1) * d + 1 - sizes[i + 2] - before
        if before < 0 or window.pads[rank + i] < 0:
            b.decline(f"negative padding {window.pads}")
        sizes[i + 2] += min(after, 0)
        sides.append((before, max(after, 0)))
    return slice_of(b, x, [0] * x.rank, sizes), sides


@tosa_operator("Conv", types=FLOATS)
def conv(
    b: TosaBuilder,
    x: TosaTensor,
    w: TosaTensor,
    bias: TosaTensor | None = None,
    *,
    a: ConvAttributes,
) -> TosaTensor:
    window = a.window(x.shape, w.shape)
    known = quantized.product(x, w, 1, 0)
    shift = quantized.bias_of(b, bias, known[2], w.shape[0]) if known is not None else None
    if known is not None and shift is not None:
        left, right, scale, axis = known
        sums = convolution(b, left.ints, right.ints, shift, Summing(window, a.group, "int32", left.zero, right.zero))
        return quantized.accumulated(b, sums, scale, axis)
    return convolution(b, x, w, bias, Summing(window, a.group, x.dtype))


@dataclass(frozen=True)
class Summing:
    """The arithmetic of a convolution: ``dtype`` of the result, zero points of the operands."""

    window: Window
    group: int
    dtype: str
    x_zero: int = 0
    w_zero: int = 0

    @property
    def lifted(self) -> Summing:
        """The same over two axes, the first of size 1, instead of one."""
        return replace(self, window=lift(self.window))

    def tail(self, b: TosaBuilder, x: TosaTensor, w: TosaTensor, bias: TosaTensor) -> list[Value]:
        """The operands after the input and the weights."""
        return [b.ordered(bias), b.zero_point(x.dtype, self.x_zero), b.zero_point(w.dtype, self.w_zero)]


def convolution(b: TosaBuilder, x: TosaTensor, w: TosaTensor, bias: TosaTensor | None, how: Summing) -> TosaTensor:
    """ONNX's convolution of [N, C, ...] over one to three axes."""
    spatial = x.rank - 2
    if x.shape[1] != w.shape[1] * how.group or w.shape[0] % how.group:
        b.decline(f"{x.shape[1]} channels, weights {w.shape} and {how.group} groups do not fit together")
    if bias is None:
        bias = b.constant(np.zeros(w.shape[0], np.dtype(how.dtype)))
    if spatial == 1:
        lifted = convolution(b, _lifted(b, x), _lifted(b, w), bias, how.lifted)
        return b.reshape(lifted, (*lifted.shape[:2], lifted.shape[3]))
    if spatial not in (2, 3):
        b.decline(f"a convolution over {spatial} axes")
    x, sides = exact(b, x, how.window)
    return _convolve(b, x, w, bias, how, sides)


def lift(window: Window) -> Window:
    """Convert a window over one axis to one over two, the first of size 1."""
    pads = (0, window.pads[0], 0, window.pads[1])
    return Window((1, *window.kernel), (1, *window.strides), (1, *window.dilations), pads, (1, *window.out))


def _lifted(b: TosaBuilder, x: TosaTensor) -> TosaTensor:
    return b.reshape(x, (*x.shape[:2], 1, x.shape[2]))


def _convolve(b: TosaBuilder, x: TosaTensor, w: TosaTensor, bias: TosaTensor, how: Summing, sides: Sides) -> TosaTensor:
    """CONV2D, DEPTHWISE_CONV2D or CONV3D; other groups are convolved separately."""
    spatial, window, group = x.rank - 2, how.window, how.group
    channels, outputs = x.shape[1], w.shape[0]
    attributes = {
        "pad": ints([n for side in sides for n in side]),
        "stride": ints(window.strides),
        "dilation": ints(window.dilations),
        "acc_type": ACCUMULATE[x.dtype],
    }
    order = (0, *range(2, x.rank), 1)
    shape = (x.shape[0], *window.out, outputs)
    tail = how.tail(b, x, w, bias)
    if group == 1:
        name = "conv2d" if spatial == 2 else "conv3d"
        value = b.op(name, [b.ordered(x, order), b.ordered(w, order), *tail], shape, how.dtype, **attributes)
        return b.from_order(value, order)
    if spatial == 2 and group == channels:
        # ONNX: [C * M, 1, H, W], channel c computes outputs c * M to c * M + M; TOSA: [H, W, C, M]
        kernel = b.permute(b.reshape(w, (channels, outputs // channels, *w.shape[2:])), (2, 3, 0, 1))
        value = b.op(
            "depthwise_conv2d", [b.ordered(x, order), b.ordered(kernel), *tail], shape, how.dtype, **attributes
        )
        return b.from_order(value, order)
    each, made = channels // group, outputs // group
    parts = []
    for g in range(group):
        part = block_of(b, x, 1, g * each, each)
        kernel, shift = (block_of(b, t, 0, g * made, made) for t in (w, bias))
        parts.append(_convolve(b, part, kernel, shift, replace(how, group=1), sides))
    return _joined(b, parts, order, shape)


def _joined(b: TosaBuilder, parts: Sequence[TosaTensor], order: Sequence[int], shape: Sequence[int]) -> TosaTensor:
    """The groups' results concatenated, channels last."""
    values: list[Value] = [b.ordered(p, order) for p in parts]
    return b.from_order(b.op("concat", values, shape, axis=f"{len(shape) - 1} : i32"), order)


def block_of(b: TosaBuilder, t: TosaTensor, axis: int, start: int, count: int) -> TosaTensor:
    """``count`` elements of an axis; a constant is sliced on the host."""
    if t.array is not None:
        return b.constant(np.ascontiguousarray(t.array.take(range(start, start + count), axis)))
    return part_of(b, t, axis, start, count)


# ---- transposed


@tosa_operator("ConvTranspose", types=FLOATS)
def conv_transpose(
    b: TosaBuilder,
    x: TosaTensor,
    w: TosaTensor,
    bias: TosaTensor | None = None,
    *,
    a: ConvTransposeAttributes,
) -> TosaTensor:
    if x.shape[1] != w.shape[0] or x.shape[1] % a.group:
        b.decline(f"{x.shape[1]} channels, weights {w.shape} and {a.group} groups do not fit together")
    window = a.window(x.shape, w.shape)
    known = quantized.product(x, w, 1, 1) if a.group == 1 else None
    shift = quantized.bias_of(b, bias, known[2], w.shape[1]) if known is not None else None
    if known is not None and shift is not None:
        left, right, scale, axis = known
        sums = _transposed(b, left.ints, right.ints, shift, Summing(window, 1, "int32", left.zero, right.zero))
        return quantized.accumulated(b, sums, scale, axis)
    if bias is None:
        bias = b.constant(np.zeros(w.shape[1] * a.group, np.dtype(x.dtype)))
    return _transposed(b, x, w, bias, Summing(window, a.group, x.dtype))


def _transposed(b: TosaBuilder, x: TosaTensor, w: TosaTensor, bias: TosaTensor, how: Summing) -> TosaTensor:
    """TRANSPOSE_CONV2D over one or two axes, each group separately."""
    if x.rank == 3:
        lifted = _transposed(b, _lifted(b, x), _lifted(b, w), bias, how.lifted)
        return b.reshape(lifted, (*lifted.shape[:2], lifted.shape[3]))
    if x.rank != 4:
        b.decline(f"a transposed convolution over {x.rank - 2} axes")
    window, group = how.window, how.group
    w = _dilated(b, w, window.dilations, how.w_zero)
    kernel = w.shape[2:]
    sides = []  # out_pad is top, bottom, left, right; negative values crop
    for i in range(2):
        full = (x.shape[i + 2] - 1) * window.strides[i] + kernel[i]
        sides.append((-window.pads[i], window.out[i] - full + window.pads[i]))
    if any(n <= -k for k, side in zip(kernel, sides, strict=True) for n in side):
        b.decline("pads as large as the kernel")
    attributes = {
        "out_pad": ints([n for side in sides for n in side]),
        "stride": ints(window.strides),
        "acc_type": ACCUMULATE[x.dtype],
    }
    each, made = x.shape[1] // group, w.shape[1]
    parts = []
    for g in range(group):
        part, part_w = (t if group == 1 else block_of(b, t, a, g * each, each) for t, a in ((x, 1), (w, 0)))
        shift = bias if group == 1 else block_of(b, bias, 0, g * made, made)
        operands = [
            b.ordered(part, NHWC),
            b.ordered(part_w, (1, 2, 3, 0)),  # ONNX: [Cin, Cout, H, W]; TOSA: [Cout, H, W, Cin]
            *how.tail(b, x, w, shift),
        ]
        shape = (x.shape[0], *window.out, made)
        parts.append(b.from_order(b.op("transpose_conv2d", operands, shape, how.dtype, **attributes), NHWC))
    return parts[0] if group == 1 else _joined(b, parts, NHWC, (x.shape[0], *window.out, made * group))


def _dilated(b: TosaBuilder, w: TosaTensor, dilations: Sequence[int], zero: int) -> TosaTensor:
    """Constant weights with zeros inserted for their dilation, which TRANSPOSE_CONV2D lacks."""
    if all(d == 1 for d in dilations):
        return w
    if w.array is None:
        raise Decline("TOSA's TRANSPOSE_CONV2D has no dilation, and the weights are no constant")
    sizes = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    wide = np.full((*w.shape[:2], *sizes), zero, w.array.dtype)
    wide[:, :, :: dilations[0], :: dilations[1]] = w.array
    return b.constant(wide)
