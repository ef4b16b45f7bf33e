"""The structures of convolutional networks, as exporters write them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tools.fuzz.networks.graph import Graph, Unfit, Value
from tools.fuzz.networks.steps import Step, image


def convolution(g: Graph, x: Value, outputs: int, kernel: int = 3, group: int = 1, stride: int = 1) -> Value:
    """A convolution of any rank that keeps the size, or divides it by the stride."""
    rank, each = x.rank - 2, x.shape[1] // group
    w = g.weights(x.dtype, outputs, each, *[kernel] * rank, terms=each * kernel**rank)
    bias = g.weights(x.dtype, outputs) if g.flag() else None
    return g.add("Conv", x, w, bias, group=group, strides=[stride] * rank, pads=[kernel // 2] * 2 * rank)


def batch_norm(g: Graph, x: Value) -> Value:
    channels, d = x.shape[1], x.dtype
    parts = [g.near_one(d, channels), g.weights(d, channels), g.weights(d, channels), g.near_one(d, channels)]
    return g.add("BatchNormalization", x, *parts)


def activation(g: Graph, x: Value) -> Value:
    """An activation in one node, or written out."""
    kind = g.one_of("Relu", "silu", "none", "Clip", "gelu", "hardswish", "mish", "LeakyRelu")
    if kind == "silu":
        return g.add("Mul", x, g.add("Sigmoid", x))
    if kind == "Clip":
        return g.add("Clip", x, g.constant(0.0, x.dtype), g.constant(6.0, x.dtype))
    if kind == "gelu":
        return gelu(g, x)
    if kind == "hardswish":
        return g.add("Mul", x, g.add("HardSigmoid", x, alpha=1 / 6, beta=0.5))
    if kind == "mish":
        return g.add("Mul", x, g.add("Tanh", g.add("Softplus", x)))
    return x if kind == "none" else g.add(kind, x)


def gelu(g: Graph, x: Value) -> Value:
    """Gelu by Erf, or by Tanh, as torch writes them."""

    def c(number: float) -> Value:
        return g.constant(number, x.dtype)

    if g.flag():
        cube = g.add("Pow", x, c(3.0)) if g.flag() else g.add("Mul", g.add("Mul", x, x), x)
        inner = g.add("Mul", g.add("Add", x, g.add("Mul", cube, c(0.044715))), c(math.sqrt(2 / math.pi)))
        return g.add("Mul", g.add("Mul", x, c(0.5)), g.add("Add", g.add("Tanh", inner), c(1.0)))
    erf = g.add("Add", g.add("Erf", g.add("Div", x, c(math.sqrt(2)))), c(1.0))
    if g.flag():
        return g.add("Mul", g.add("Mul", x, erf), c(0.5))
    return g.add("Mul", x, g.add("Mul", erf, c(0.5)))


def _picture(g: Graph) -> Value:
    return g.pick(lambda v: v.rank == 4 and v.is_fixed(1), "image")


def residual(g: Graph) -> Value:
    """Two convolutions with norms, and the sum with what they read."""
    x = image(g)
    n = x.shape[1]
    y = activation(g, batch_norm(g, convolution(g, x, n)))
    y = convolution(g, y, n, g.one_of(3, 1))
    if g.flag():
        y = batch_norm(g, y)
    y = g.add("Add", *((y, x) if g.flag() else (x, y)))
    return activation(g, y)


def bottleneck(g: Graph) -> Value:
    """An inverted bottleneck: wider, by channel, and back."""
    x = image(g, (4, 4, 3))
    n = x.shape[1] * 2
    y = activation(g, batch_norm(g, convolution(g, x, n, 1)))
    y = activation(g, convolution(g, y, n, g.one_of(3, 5), n))
    if g.flag():
        y = excitation(g, y)
    y = convolution(g, y, x.shape[1], 1)
    return g.add("Add", x, y)


def excitation(g: Graph, x: Value | None = None) -> Value:
    """Squeeze and excitation."""
    x = x or _picture(g)
    axes = list(range(2, x.rank))
    mean = g.add("GlobalAveragePool", x) if g.flag() else g.reduced("ReduceMean", x, axes)
    y = convolution(g, g.add("Relu", convolution(g, mean, max(1, x.shape[1] // 2), 1)), x.shape[1], 1)
    gate = g.add("Sigmoid", y) if g.flag() else g.add("HardSigmoid", y)
    return g.add("Mul", *((x, gate) if g.flag() else (gate, x)))


def separable(g: Graph) -> Value:
    """A convolution by channel, and one of 1x1."""
    x = image(g)
    y = activation(g, batch_norm(g, convolution(g, x, x.shape[1], 3, x.shape[1], g.one_of(1, 2))))
    return activation(g, convolution(g, y, g.channels(4, 8, 16), 1))


def convnext(g: Graph) -> Value:
    """A block of ConvNeXt: a norm and products with channels last."""
    x = _picture(g)
    n, d = x.shape[1], x.dtype
    y = convolution(g, x, n, g.one_of(7, 3), n)
    y = g.add("Transpose", y, perm=[0, 2, 3, 1])
    y = layer_norm(g, y)
    y = gelu(g, dense(g, y, 2 * n))
    y = g.add("Mul", dense(g, y, n), g.weights(d, n))
    return g.add("Add", x, g.add("Transpose", y, perm=[0, 3, 1, 2]))


def dense(g: Graph, x: Value, outputs: int, bias: bool | None = None) -> Value:
    """A product with weights, and a bias before or after it, as Add."""
    y = g.add("MatMul", x, g.weights(x.dtype, x.shape[-1], outputs, terms=x.shape[-1]))
    if not (g.flag() if bias is None else bias):
        return y
    b = g.weights(x.dtype, outputs)
    return g.add("Add", *((y, b) if g.flag() else (b, y)))


def layer_norm(g: Graph, x: Value) -> Value:
    """The norm of the last axis, in one node or written out in one of several forms."""
    if g.opset >= 17 and g.flag():
        return g.add(
            "LayerNormalization", x, g.near_one(x.dtype, x.shape[-1]), g.weights(x.dtype, x.shape[-1]), axis=-1
        )
    d, n = x.dtype, x.shape[-1]
    wide = g.cast(x, "float32") if d == "float16" and g.flag() else x
    kind = wide.dtype
    is_rms = g.flag()
    centred = wide if is_rms else g.add("Sub", wide, g.reduced("ReduceMean", wide, [-1]))
    form = g.one_of("pow", "mul", "rsqrt")
    square = g.add("Pow", centred, g.constant(2.0, kind)) if form == "pow" else g.add("Mul", centred, centred)
    root = g.add("Sqrt", g.add("Add", g.reduced("ReduceMean", square, [-1]), g.constant(1e-3, kind)))
    y = g.add("Mul", centred, g.add("Reciprocal", root)) if form == "rsqrt" else g.add("Div", centred, root)
    y = g.cast(y, d)
    y = g.add("Mul", *((y, g.near_one(d, n)) if g.flag() else (g.near_one(d, n), y)))
    return y if is_rms else g.add("Add", y, g.weights(d, n))


def pyramid(g: Graph) -> Value:
    """A lower level that is enlarged and joined with a higher one (FPN, U-Net)."""
    x = _picture(g)
    low = activation(g, convolution(g, x, g.channels(4, 8), 3, stride=2))
    up = g.add("Conv", low, g.weights(x.dtype, low.shape[1], low.shape[1], 1, 1, terms=low.shape[1]))
    if (
        all(run.shape[a] == 2 * small.shape[a] for run, small in zip(x.runs, up.runs, strict=True) for a in (2, 3))
        and g.flag()
    ):
        scales = g.constant(np.array([1.0, 1.0, 2.0, 2.0]), "float32")
        mode = g.one_of("nearest", "linear")
        rest: dict[str, Any] = {"nearest_mode": "floor"} if mode == "nearest" else {}
        how = "asymmetric" if mode == "nearest" else "half_pixel"
        up = g.add("Resize", up, None, scales, mode=mode, coordinate_transformation_mode=how, **rest)
    else:
        shape = g.add("Shape", x, dtype="int64")
        own = g.add("Shape", up, dtype="int64")
        front = g.add("Slice", own, g.ints(0), g.ints(2), g.ints(0), dtype="int64")
        back = g.add("Slice", shape, g.ints(2), g.ints(4), g.ints(0), dtype="int64")
        sizes = g.add("Concat", front, back, dtype="int64", axis=0)
        if any(n == 1 for run in x.runs for n in run.shape[2:]):
            raise Unfit
        up = g.add("Resize", up, None, None, sizes, mode="linear", coordinate_transformation_mode="half_pixel")
    g.publish(low)
    lateral = convolution(g, x, up.shape[1], 1) if g.flag() else x
    if lateral.shape[1] == up.shape[1] and g.flag():
        return convolution(g, g.add("Add", lateral, up), up.shape[1])
    return convolution(g, g.add("Concat", up, lateral, axis=1), g.channels(4, 8))


def head(g: Graph) -> Value:
    """A detector's head: predictions of two levels as rows, boxes decoded from them."""
    x = _picture(g)
    classes = g.one_of(2, 3)
    n = 4 + classes
    small = g.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]) if min(x.least(2), x.least(3)) > 1 else x
    rows, across = [], g.one_of(1, 2)  # the axis of a row's numbers
    for level in (x, small):
        y = convolution(g, level, n, 1)
        y = g.reshape(y, (y, 0), n, -1)
        rows.append(g.add("Transpose", y, perm=[0, 2, 1]) if across == 2 else y)
    y = g.add("Concat", *rows, axis=3 - across)
    boxes, scores = g.split(y, [4, classes], across)
    corner, size = g.split(boxes, [2, 2], across)
    size = g.add("Mul", g.add("Exp", g.add("Tanh", size)), g.constant(0.5, x.dtype))
    low, high = g.add("Sub", corner, size), g.add("Add", corner, size)
    return g.add("Concat", low, high, g.add("Sigmoid", scores), axis=across)


def anchors(g: Graph) -> Value:
    """A head of YOLO with anchors: five axes, halves by Slice, a grid."""
    x = _picture(g)
    count, n, d = g.one_of(2, 3), 5, x.dtype
    y = convolution(g, x, count * n, 1)
    y = g.reshape(y, (y, 0), count, n, (x, 2), (x, 3))
    y = g.add("Sigmoid", g.add("Transpose", y, perm=[0, 1, 3, 4, 2]))
    center = g.add("Slice", y, g.ints(0), g.ints(2), g.ints(4))
    size = g.add("Slice", y, g.ints(2), g.ints(4), g.ints(-1))
    rest = g.add("Slice", y, g.ints(4), g.ints(1 << 31), g.ints(4))
    center = g.add("Sub", g.add("Mul", center, g.constant(2.0, d)), g.constant(0.5, d))
    size = g.add("Mul", g.add("Pow", size, g.constant(2.0, d)), g.near_one(d, 1, count, 1, 1, 2))
    joined = g.add("Concat", center, size, rest, axis=-1 if g.flag() else 4)
    return g.reshape(joined, (y, 0), -1, n)


def stage(g: Graph) -> Value:
    """A cross-stage block: halves by Split, convolutions on one of them, all parts joined."""
    x = _picture(g)
    n = 2 * g.channels(2, 4, 3)
    y = activation(g, convolution(g, x, n, 1))
    first, second = g.split(y, [n // 2, n // 2], 1)
    parts = [first, second]
    for _ in range(g.number(1, 2)):
        z = activation(g, convolution(g, parts[-1], n // 2))
        parts.append(g.add("Add", parts[-1], z) if g.flag() else z)
    return convolution(g, g.add("Concat", *parts, axis=1), g.channels(4, 8), 1)


def spatial_pools(g: Graph) -> Value:
    """Pools of pools, joined (SPPF)."""
    x = _picture(g)
    parts = [x]
    for _ in range(g.number(1, 3)):
        parts.append(g.add("MaxPool", parts[-1], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1]))
    return convolution(g, g.add("Concat", *parts, axis=1), g.channels(4, 8), 1)


def side_by_side(g: Graph) -> Value:
    """Results of convolutions or products, joined along any axis."""
    x = image(g)
    n, axis = g.channels(4, 2, 8), g.number(0, x.rank - 1)
    kernel = g.one_of(3, 1)
    parts = [convolution(g, x, n, kernel) for _ in range(g.number(1, 2))]
    parts = [activation(g, part) if g.flag() else part for part in parts]
    parts.append(g.add("MaxPool", parts[0], kernel_shape=[1] * (x.rank - 2)) if g.flag() else parts[0])
    return g.add("Concat", *parts, axis=axis)


def pixels(g: Graph) -> Value:
    """A pixel shuffle, as an operator or by reshapes."""
    x = _picture(g)
    n = g.one_of(1, 3, 4)
    y = convolution(g, x, 4 * n)
    if g.flag():
        return g.add("DepthToSpace", y, blocksize=2, mode="CRD")
    if not x.is_fixed(2, 3):
        raise Unfit
    h, w = x.shape[2:]
    y = g.reshape(y, (x, 0), n, 2, 2, h, w)
    y = g.add("Transpose", y, perm=[0, 1, 4, 2, 5, 3])
    return g.reshape(y, (x, 0), n, 2 * h, 2 * w)


def decoder(g: Graph) -> Value:
    """An enlargement and convolutions, as generators of images have them."""
    x = _picture(g)
    if g.flag():
        w = g.weights(x.dtype, x.shape[1], 4, 2, 2, terms=x.shape[1])
        y = g.add("ConvTranspose", x, w, strides=[2, 2])
    else:
        scales = g.constant(np.array([1.0, 1.0, 2.0, 2.0]), "float32")
        y = g.add(
            "Resize", x, None, scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        )
    y = activation(g, convolution(g, y, 4))
    return g.add(g.one_of("Tanh", "Sigmoid"), convolution(g, y, 3))


def group_norm(g: Graph) -> Value:
    """A group norm by InstanceNormalization, as torch writes it, or by the operator, with factors of several forms; SiLU."""
    x = image(g)
    channels, d = x.shape[1], x.dtype
    groups = g.one_of(*(n for n in (2, 4, 1, 3, channels) if channels % n == 0))
    if g.opset >= 21 and g.flag():
        factors = [_of_channels(g, x) if g.flag() and g.flag() else g.near_one(d, channels) for _ in range(2)]
        y = g.add("GroupNormalization", x, *factors, num_groups=groups, epsilon=1e-3)
    else:
        plain = g.flag()
        own = g.constant(np.ones(groups), d) if plain else g.near_one(d, groups)
        y = g.reshape(x, (x, 0), groups, -1)
        y = g.add("InstanceNormalization", y, own, g.constant(np.zeros(groups), d), epsilon=1e-3)
        y = _by_factors(g, y, x, groups)
    if g.flag():
        y = g.add("Mul", y, g.add("Sigmoid", y))
    return convolution(g, y, g.one_of(channels, g.channels(4)), 1) if g.flag() else y


def _of_channels(g: Graph, x: Value) -> Value:
    """A number of each channel that a convolution of an image's means gives."""
    y = convolution(g, g.add("GlobalAveragePool", x), x.shape[1], 1)
    return g.reshape(g.add("Slice", y, g.ints(0), g.ints(1), g.ints(0)), x.shape[1])


def _by_factors(g: Graph, y: Value, x: Value, groups: int) -> Value:
    """A norm of groups as ``x``, times a factor of each channel, plus another one: of constants, of other values, in other
    shapes in between."""
    channels, d = x.shape[1], x.dtype
    whole = [(x, axis) for axis in range(x.rank)]
    ones = [1] * (x.rank - 2)
    if x.is_fixed() and x.shape[-1] % 2 == 0 and g.flag() and g.flag():  # of channels that a Reshape takes for others
        last = x.shape[-1]
        few, wide = g.one_of(
            (channels // 2, last) if channels % 2 == 0 else (channels, last // 2), (channels, last // 2)
        )
        y = g.reshape(y, 2 * x.shape[0], few, *x.shape[2:-1], wide)
        y = g.reshape(g.add("Mul", y, g.near_one(d, few, *ones)), *whole)
        return g.add("Add", y, g.weights(d, channels, *ones))
    if g.flag() and g.flag():  # a factor of each group
        y = g.add("Mul", y, g.near_one(d, groups, 1))
    y = g.reshape(y, *whole)
    for op_type in ("Mul", "Add", "Sub")[: g.one_of(2, 3, 1)]:
        kind = g.one_of("channels", "channels", "leading one", "one", "means", "same")
        factor = {
            "channels": lambda: g.near_one(d, channels, *ones),
            "leading one": lambda: g.near_one(d, 1, channels, *ones),
            "one": lambda: g.near_one(d, *g.one_of((), (1,))),
            "means": lambda: g.reduced("ReduceMean", x, range(2, x.rank)),
            "same": lambda: g.near_one(d, channels, *([1] * (x.rank - 3) + [x.shape[-1]] if x.is_fixed(-1) else ones)),
        }[kind]()
        y = g.add(op_type, *((y, factor) if g.flag() else (factor, y)))
        if g.flag() and g.flag():
            g.publish(y)
    return y


def pools_and_dense(g: Graph) -> Value:
    """A classifier: a global pool, a flat form, a product."""
    x = image(g)
    y = g.add("GlobalAveragePool", x)
    y = g.add("Flatten", y) if g.flag() else g.reshape(y, (x, 0), x.shape[1])
    n = g.one_of(5, 10)
    y = g.add("Gemm", y, g.weights(x.dtype, n, x.shape[1], terms=x.shape[1]), g.weights(x.dtype, n), transB=1)
    return g.add("Softmax", y, axis=1) if g.flag() else y


def many_channels(g: Graph) -> Value:
    """Convolutions of so many channels and pixels that tiles, Winograd's form and channels last are worth it."""
    x = _picture(g)
    n = g.one_of(16, 24, 32)
    factors = [-(-12 // x.least(axis)) for axis in (2, 3)]
    if factors != [1, 1]:
        scales = g.constant(np.array([1, 1, *factors]), "float32")
        x = g.add("Resize", x, None, scales, mode="linear", coordinate_transformation_mode="half_pixel")
    y = convolution(g, x, n, 1)
    for _ in range(g.number(1, 2)):
        z = activation(g, convolution(g, y, n, g.one_of(3, 3, 1)))
        y = g.add("Add", y, z) if g.flag() else z
    if g.flag():
        g.publish(g.add(g.one_of("MaxPool", "AveragePool"), y, kernel_shape=[2, 2], strides=[2, 2]))
    return convolution(g, y, g.channels(4, 8, 16), g.one_of(1, 3))


BLOCKS: tuple[Step, ...] = (
    residual, side_by_side, bottleneck, stage, separable, pyramid, head, excitation, convnext, decoder, pixels, group_norm,
    anchors, spatial_pools, pools_and_dense, many_channels,
)  # fmt: skip
