"""Convolutions, pooling, matrix products and batch normalization. TOSA wants channels last; see `GraphBuilder.ordered`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkep.tosa.graph import GraphBuilder, Tensor, ints
from vkep.tosa.ops import quantized
from vkep.tosa.ops.movement import slice_of
from vkep.tosa.registry import FLOATS, tosa_operator

NHWC = (0, 2, 3, 1)
ACCUMULATE = {"float32": "f32", "float16": "f32", "int8": "i32"}


def spatial_pads(
    b: GraphBuilder,
    sizes: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str,
) -> list[tuple[int, int]]:
    """(before, after) of each spatial axis, ``window`` being the dilated kernel sizes."""
    rank = len(sizes)
    if auto_pad in ("NOTSET", ""):
        flat = list(pads) if pads else [0] * (2 * rank)
        return [(flat[i], flat[i + rank]) for i in range(rank)]
    if auto_pad == "VALID":
        return [(0, 0)] * rank
    result = []
    for size, extent, stride in zip(sizes, window, strides, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + extent - size)
        small, large = total // 2, total - total // 2
        result.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
    return result


def exact(
    b: GraphBuilder, x: Tensor, pads: list[tuple[int, int]], window: Sequence[int], strides: Sequence[int]
) -> tuple[Tensor, list[tuple[int, int]]]:
    """TOSA takes no remainder: where the last stride does not fit, drop the pad or the rows that nothing reads."""
    sizes = list(x.shape)
    for i, (extent, stride) in enumerate(zip(window, strides, strict=True)):
        before, after = pads[i]
        rest = (sizes[i + 2] + before + after - extent) % stride
        if sizes[i + 2] + before + after < extent:
            b.decline("a window larger than the padded input")
        cut = max(0, rest - after)
        pads[i] = (before, after - (rest - cut))
        sizes[i + 2] -= cut
    return slice_of(b, x, [0] * x.rank, sizes), pads


@tosa_operator("Conv", types=FLOATS)
def conv(
    b: GraphBuilder,
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
    if spatial == 1:  # one more axis of size 1
        lifted = conv(
            b,
            b.reshape(x, (*x.shape[:2], 1, x.shape[2])),
            b.reshape(w, (*w.shape[:2], 1, w.shape[2])),
            bias,
            auto_pad=auto_pad,
            dilations=(1, *(dilations or (1,))),
            group=group,
            pads=None if pads is None else (0, pads[0], 0, pads[1]),
            strides=(1, *(strides or (1,))),
        )
        return b.reshape(lifted, (*lifted.shape[:2], lifted.shape[3]))
    if spatial not in (2, 3):
        b.decline(f"a convolution over {spatial} axes")
    strides, dilations = list(strides or [1] * spatial), list(dilations or [1] * spatial)
    window = [d * (k - 1) + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    x, sides = exact(b, x, spatial_pads(b, x.shape[2:], window, strides, pads, auto_pad), window, strides)
    known = quantized.product(x, w, 1, 0)
    shift = quantized.bias_of(b, bias, known[2], w.shape[0]) if known is not None else None
    if known is not None and shift is not None:
        left, right, scale, axis = known
        ints = convolve(
            b, left.ints, right.ints, shift, sides, strides, dilations, group, left.zero, right.zero, "int32"
        )
        return quantized.accumulated(b, ints, scale, axis)
    if bias is None:
        bias = b.constant(np.zeros(w.shape[0], np.dtype(x.dtype)))
    return convolve(b, x, w, bias, sides, strides, dilations, group, 0, 0, x.dtype)


def convolve(
    b: GraphBuilder,
    x: Tensor,
    w: Tensor,
    bias: Tensor,
    sides: Sequence[tuple[int, int]],
    strides: Sequence[int],
    dilations: Sequence[int],
    group: int,
    x_zero: int,
    w_zero: int,
    dtype: str,
) -> Tensor:
    """CONV2D, DEPTHWISE_CONV2D or CONV3D with exact pads; other groups are convolved one by one."""
    spatial = x.rank - 2
    channels, outputs = x.shape[1], w.shape[0]
    sizes = [
        (x.shape[i + 2] + sum(sides[i]) - d * (w.shape[i + 2] - 1) - 1) // s + 1
        for i, (s, d) in enumerate(zip(strides, dilations, strict=True))
    ]
    attributes = {
        "pad": ints([n for side in sides for n in side]),
        "stride": ints(strides),
        "dilation": ints(dilations),
        "acc_type": ACCUMULATE[x.dtype],
    }
    order = (0, *range(2, x.rank), 1)
    tail = [b.ordered(bias), b.zero_point(x.dtype, x_zero), b.zero_point(w.dtype, w_zero)]
    if group == 1:
        name = "conv2d" if spatial == 2 else "conv3d"
        value = b.op(
            name, [b.ordered(x, order), b.ordered(w, order), *tail], (x.shape[0], *sizes, outputs), dtype, **attributes
        )
        return b.from_order(value, order)
    if spatial == 2 and group == channels:
        # ONNX: [C * M, 1, H, W], channel c makes outputs c * M to c * M + M; TOSA: [H, W, C, M]
        kernel = b.permute(b.reshape(w, (channels, outputs // channels, *w.shape[2:])), (2, 3, 0, 1))
        value = b.op(
            "depthwise_conv2d",
            [b.ordered(x, order), b.ordered(kernel), *tail],
            (x.shape[0], *sizes, outputs),
            dtype,
            **attributes,
        )
        return b.from_order(value, order)
    each, made = channels // group, outputs // group
    parts = []
    for g in range(group):
        part = slice_of(b, x, [0, g * each, *[0] * spatial], (x.shape[0], each, *x.shape[2:]))
        kernel = slice_of_constant(b, w, g * made, made)
        shift = slice_of_constant(b, bias, g * made, made)
        parts.append(convolve(b, part, kernel, shift, sides, strides, dilations, 1, x_zero, w_zero, dtype))
    values = [b.ordered(p, order) for p in parts]
    return b.from_order(b.op("concat", values, (x.shape[0], *sizes, outputs), axis=f"{spatial + 1} : i32"), order)


def slice_of_constant(b: GraphBuilder, t: Tensor, start: int, count: int) -> Tensor:
    """``count`` of axis 0, cut on the host where the content is known."""
    if t.array is not None:
        return b.constant(np.ascontiguousarray(t.array[start : start + count]))
    return slice_of(b, t, [start, *[0] * (t.rank - 1)], (count, *t.shape[1:]))


@tosa_operator("ConvTranspose", types=FLOATS)
def conv_transpose(
    b: GraphBuilder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    if x.rank != 4 or group != 1 or any(d != 1 for d in dilations or ()) or auto_pad not in ("NOTSET", ""):
        b.decline("TOSA's TRANSPOSE_CONV2D has two axes, no groups, no dilation (and auto_pad is not lowered)")
    if output_shape is not None:
        b.decline("output_shape is not lowered")
    strides, pads = list(strides or (1, 1)), list(pads or (0, 0, 0, 0))
    extra = list(output_padding or (0, 0))
    kernel = w.shape[2:]
    # out_pad is top, bottom, left, right; negative values cut
    sides = [(-pads[0], extra[0] - pads[2]), (-pads[1], extra[1] - pads[3])]
    flat = [n for side in sides for n in side]
    sizes = [(x.shape[i + 2] - 1) * strides[i] + sum(sides[i]) + kernel[i] for i in range(2)]
    if any(n <= -k for k, side in zip(kernel, sides, strict=True) for n in side):
        b.decline("pads as large as the kernel")
    if bias is None:
        bias = b.constant(np.zeros(w.shape[1], np.dtype(x.dtype)))
    value = b.op(
        "transpose_conv2d",
        [
            b.ordered(x, NHWC),
            b.ordered(w, (1, 2, 3, 0)),  # ONNX: [Cin, Cout, H, W]; TOSA: [Cout, H, W, Cin]
            b.ordered(bias),
            b.zero_point(x.dtype),
            b.zero_point(w.dtype),
        ],
        (x.shape[0], *sizes, w.shape[1]),
        out_pad=ints(flat),
        stride=ints(strides),
        acc_type=ACCUMULATE[x.dtype],
    )
    return b.from_order(value, NHWC)
