"""Convolutions, pooling, matrix products and batch normalization. TOSA wants channels last; see `GraphBuilder.ordered`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep.tosa.graph import PROPAGATE, GraphBuilder, Tensor, Value, ints
from vkep.tosa.ops import quantized
from vkep.tosa.ops.movement import pad_of, slice_of, tile_of
from vkep.tosa.ops.reduction import mean_of
from vkep.tosa.registry import FLOATS, constant_of, tosa_operator

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
        kernel = b.permute(
            b.reshape(w, (channels, outputs // channels, *w.shape[2:])), (2, 3, 0, 1)
        )
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
    return b.from_order(
        b.op("concat", values, (x.shape[0], *sizes, outputs), axis=f"{spatial + 1} : i32"), order
    )


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


# ---- pooling


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


# ---- matrix products


def matmul_3d(b: GraphBuilder, x: Value, y: Value, dtype: str, x_zero: int = 0, y_zero: int = 0) -> Value:
    """[N, H, C] times [N, C, W]."""
    return b.op(
        "matmul",
        [x, y, b.zero_point(x.dtype, x_zero), b.zero_point(y.dtype, y_zero)],
        (x.shape[0], x.shape[1], y.shape[2]),
        dtype,
    )


@tosa_operator("MatMul", types=FLOATS)
def matmul(b: GraphBuilder, x: Tensor, y: Tensor) -> Tensor:
    if x.scalar or y.scalar:
        b.decline("a scalar operand")
    if x.rank == 1:
        made = matmul(b, b.reshape(x, (1, *x.shape)), y)
        return b.reshape(made, (*made.shape[:-2], made.shape[-1]) if made.rank > 1 else made.shape[1:])
    if y.rank == 1:
        made = matmul(b, x, b.reshape(y, (*y.shape, 1)))
        return b.reshape(made, made.shape[:-1])
    known = quantized.product(x, y, max(x.rank, y.rank) - 1, y.rank - 1)
    if known is not None:
        left, right, scale, axis = known
        ints = _matmul(b, left.ints, right.ints, "int32", left.zero, right.zero)
        return quantized.accumulated(b, ints, scale, axis)
    return _matmul(b, x, y, x.dtype, 0, 0)


def _matmul(b: GraphBuilder, x: Tensor, y: Tensor, dtype: str, x_zero: int, y_zero: int) -> Tensor:
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    rows, inner, columns = x.shape[-2], x.shape[-1], y.shape[-1]
    if math.prod(y.shape[:-2]) == 1:  # one matrix for all rows
        left = b.ordered(b.reshape(x, (1, x.size // inner, inner)))
        value = matmul_3d(b, left, b.ordered(b.reshape(y, (1, inner, columns))), dtype, x_zero, y_zero)
    else:
        def full(t: Tensor) -> Value:
            grown = b.reshape(t, (1,) * (len(batch) + 2 - t.rank) + t.shape)
            repeats = [w // s for w, s in zip(batch, grown.shape, strict=False)] + [1, 1]
            tiled = tile_of(b, grown, repeats)
            return b.ordered(b.reshape(tiled, (math.prod(batch), *t.shape[-2:])))

        value = matmul_3d(b, full(x), full(y), dtype, x_zero, y_zero)
    return b.reshape(b.tensor(value), (*batch, rows, columns))


@tosa_operator("Gemm", types=FLOATS, since=7)
def gemm(
    b: GraphBuilder,
    x: Tensor,
    y: Tensor,
    bias: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    made = matmul(b, b.permute(x, (1, 0)) if transA else x, b.permute(y, (1, 0)) if transB else y)
    known = made.quantized
    if known is not None and alpha == 1 and beta == 1 and bias is not None and bias.rank == 1:
        shift = quantized.bias_of(b, bias, known.scale, made.shape[-1])
        if shift is not None:
            return quantized.accumulated(b, b.add(known.ints, shift), known.scale, known.axis)
    if alpha != 1:
        made = b.mul(made, b.fill(made, alpha))
    if bias is None:
        return made
    return b.add(made, b.mul(bias, b.fill(bias, beta)) if beta != 1 else bias)


@tosa_operator("BatchNormalization", types=("float32",), since=9)
def batch_normalization(
    b: GraphBuilder,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Tensor:
    if training_mode:
        b.decline("training mode")
    parts = (constant_of(t, "scale, bias, mean and variance").astype(np.float64) for t in (scale, bias, mean, var))
    gamma, beta, mu, sigma = parts
    factor = gamma / np.sqrt(sigma + epsilon)
    shape = (x.shape[1],) + (1,) * (x.rank - 2)
    slope, shift = (b.constant(v.astype(np.float32).reshape(shape)) for v in (factor, beta - mu * factor))
    return b.add(b.mul(x, slope), shift)
