"""Single operators of any kind, on values of any shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tools.fuzz.networks.graph import CHANNELS, Choice, Graph, Unfit, Value
from tools.fuzz.networks.meanings import Array, coordinates, paddings

Step = Callable[[Graph], Any]
#: what rounding cannot move across a limit, as part of the largest value
_CLEAR = {"float32": 1e-3, "float16": 0.06}


def image(g: Graph, ranks: Sequence[int] = (4, 4, 4, 3, 5)) -> Value:
    """A value of the form [n, c, *spatial]."""
    rank = g.one_of(*ranks)
    return g.pick(lambda v: v.rank == rank and v.is_fixed(1), {3: "signal", 4: "image", 5: "volume"}[rank])


def _each(g: Graph, rank: int, *options: Choice) -> list[Choice]:
    """A number for each axis, often the same."""
    first = g.one_of(*options)
    return [first] * rank if g.flag() else [first, *(g.one_of(*options) for _ in range(rank - 1))]


def _window(g: Graph, x: Value, kernels: Sequence[int], dilated: bool = True, automatic: bool = True) -> dict[str, Any]:
    """Attributes of windows over [n, c, *spatial] that leave at least one in each run."""
    rank = x.rank - 2
    kernel = _each(g, rank, *kernels)
    strides = _each(g, rank, 1, 2, 1, 3)
    dilations = _each(g, rank, 1, 1, 2, 3) if dilated else [1] * rank
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    how = (
        g.one_of("same", "pads", "none", "SAME_UPPER", "SAME_LOWER", "VALID") if automatic else g.one_of("same", "pads")
    )
    if how.isupper() and dilated and max(dilations) == 1:
        attributes["auto_pad"] = how
        every = [paddings(run.shape[2:], kernel, strides, dilations, how) for run in x.runs]
    else:
        pads = {"same": [span // 2 for span in spans] * 2, "pads": [g.number(0, span - 1) for span in spans * 2]}
        attributes["pads"] = pads.get(how, [0] * 2 * rank)
        every = [attributes["pads"]] * len(x.runs)
    for run, padding in zip(x.runs, every, strict=True):
        if any(n + padding[a] + padding[rank + a] < spans[a] for a, n in enumerate(run.shape[2:])):
            raise Unfit
    return attributes


def conv(g: Graph) -> Value:
    """A convolution of any rank, with groups, strides, dilations and pads."""
    x = image(g)
    channels = x.shape[1]
    group = g.one_of(*dict.fromkeys((1, channels, *(n for n in (2, 3, 4) if channels % n == 0))))
    outputs = group * g.one_of(1, 2, 3) if group > 1 else g.channels(*CHANNELS)
    attributes = _window(g, x, (3, 1, 2, 5) if x.rank < 5 else (3, 1, 2))
    kernel, each = attributes["kernel_shape"], channels // group
    w = g.weights(x.dtype, outputs, each, *kernel, terms=each * math.prod(kernel))
    bias = g.weights(x.dtype, outputs) if g.flag() else None
    return g.add("Conv", x, w, bias, group=group, **attributes)


def conv_transpose(g: Graph) -> Value:
    """A transposed convolution of any rank."""
    x = image(g)
    rank, channels = x.rank - 2, x.shape[1]
    group = g.one_of(1, *(n for n in (2, 4, channels) if channels % n == 0))
    kernel, strides, dilations = _each(g, rank, 2, 3, 1, 4), _each(g, rank, 2, 1, 3), _each(g, rank, 1, 1, 2)
    more = [g.number(0, s - 1) if g.flag() else 0 for s in strides]
    pads = [g.number(0, min(1, k - 1)) for k in kernel * 2] if g.flag() else [0] * 2 * rank
    for run in x.runs:
        for axis, n in enumerate(run.shape[2:]):
            full = strides[axis] * (n - 1) + dilations[axis] * (kernel[axis] - 1) + 1 + more[axis]
            if full <= pads[axis] + pads[rank + axis]:
                raise Unfit
    each = g.one_of(2, 1, 3, 4)
    w = g.weights(x.dtype, channels, each, *kernel, terms=channels // group)
    bias = g.weights(x.dtype, group * each) if g.flag() else None
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    return g.add("ConvTranspose", x, w, bias, group=group, output_padding=more, **attributes)


def pool(g: Graph) -> Value:
    """A pool over windows."""
    x = image(g)
    op_type = g.one_of("MaxPool", "AveragePool", "MaxPool", "AveragePool", "LpPool")
    is_dilated = op_type == "MaxPool" or (g.opset >= 19 and op_type == "AveragePool")
    attributes = _window(g, x, (2, 3, 1, 5), is_dilated, automatic=False)
    rank = x.rank - 2
    kernel, dilations = attributes["kernel_shape"], attributes["dilations"]
    # a window in the padding alone has no defined result
    attributes["pads"] = [min(p, (k - 1) // 2) for p, k in zip(attributes["pads"], kernel * 2, strict=True)]
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    for run in x.runs:
        for axis, n in enumerate(run.shape[2:]):
            if n + attributes["pads"][axis] + attributes["pads"][rank + axis] < spans[axis]:
                raise Unfit
    if not is_dilated:
        del attributes["dilations"]
    if op_type == "AveragePool":
        attributes["count_include_pad"] = g.number(0, 1)
    if op_type != "LpPool" and g.flag():
        attributes["ceil_mode"] = 1
    return g.add(op_type, x, **attributes)


def global_pool(g: Graph) -> Value:
    return g.add(g.one_of("GlobalAveragePool", "GlobalMaxPool"), image(g))


def channel_norm(g: Graph) -> Value:
    """A norm of [n, c, *spatial]."""
    x = image(g)
    channels, d = x.shape[1], x.dtype
    op_type = g.one_of("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LRN")
    scale, bias = g.near_one(d, channels), g.weights(d, channels)
    if op_type == "BatchNormalization":
        return g.add(op_type, x, scale, bias, g.weights(d, channels), g.near_one(d, channels))
    if op_type == "LRN" and x.rank == 4:
        return g.add(op_type, x, size=g.one_of(3, 1, 5), alpha=0.1, bias=1.5)
    if op_type == "GroupNormalization" and g.opset >= 21:
        groups = g.one_of(*(n for n in (1, 2, 3, 4, channels) if channels % n == 0))
        return g.add(op_type, x, scale, bias, num_groups=groups, epsilon=1e-3)
    return g.add("InstanceNormalization", x, scale, bias, epsilon=1e-3)


def last_norm(g: Graph) -> Value:
    """A norm of the last axes."""
    x = g.pick(lambda v: v.rank >= 2 and v.is_fixed(-1), "sequence")
    axis = -2 if x.rank > 2 and x.is_fixed(-2) and g.flag() else -1
    shape, d = x.shape[axis:], x.dtype
    if g.opset >= 23 and g.flag():
        return g.add("RMSNormalization", x, g.near_one(d, *shape), axis=axis, epsilon=1e-3)
    if g.opset >= 17:
        bias = g.weights(d, *shape) if g.flag() else None
        return g.add("LayerNormalization", x, g.near_one(d, *shape), bias, axis=axis, epsilon=1e-3)
    return g.add("LpNormalization", x, axis=-1, p=g.one_of(2, 1))


def resize(g: Graph) -> Value:
    """A Resize by factors; no sample of a nearest one is where rounding decides."""
    x = image(g)
    mode = g.one_of("nearest", "linear", "cubic") if x.rank == 4 else g.one_of("nearest", "linear")
    if x.rank == 5 and mode == "linear":
        mode = "nearest"
    hows = ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners")
    how = g.one_of(*(hows if mode != "nearest" else hows[:2]))
    factors = _each(g, x.rank - 2, *((2.0, 3.0, 1.0, 0.5, 1.5, 0.75) if mode != "nearest" else (2.0, 3.0, 1.0, 0.5)))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": how}
    if mode == "nearest":
        attributes["nearest_mode"] = g.one_of("floor", "round_prefer_floor", "round_prefer_ceil", "ceil")
    for run in x.runs:
        for size, factor in zip(run.shape[2:], factors, strict=True):
            count = math.floor(size * factor)
            if not count or (count == 1 and how in ("align_corners", "pytorch_half_pixel") and size > 1):
                raise Unfit
            at = coordinates(size, count, factor, how)
            shift = 0.5 if attributes.get("nearest_mode", "").startswith("round") else 0.0
            # a third is no exact number: at a whole place an engine may be on either side
            if mode == "nearest" and factor == 3 and np.any(np.abs((at - shift) - np.round(at - shift)) < 1e-6):
                raise Unfit
    scales = g.constant(np.array([1.0, 1.0, *factors]), "float32")
    return g.add("Resize", x, None, scales, **attributes)


def matmul(g: Graph) -> Value:
    """A product with weights, or of two values."""
    x = g.pick(lambda v: v.rank >= 2 and v.is_fixed(-1), "sequence")
    n, k = g.channels(*CHANNELS), x.shape[-1]
    kind = g.one_of("weights", "gemm", "batched", "values", "vector")
    if kind == "gemm" and x.rank == 2:
        turned = g.number(0, 1)
        w = g.weights(x.dtype, *((n, k) if turned else (k, n)), terms=k)
        bias = g.weights(x.dtype, *g.one_of((n,), (1, n), (), (1,))) if g.flag() else None
        alpha, beta = g.one_of((1.0, 1.0), (0.5, 2.0))
        return g.add("Gemm", x, w, bias, transB=turned, alpha=alpha, beta=beta)
    if kind == "batched" and x.rank > 2 and x.is_fixed(-3):
        return g.add("MatMul", x, g.weights(x.dtype, x.shape[-3], k, n, terms=k))
    if kind == "values":
        turn = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
        scaled = g.add("Mul", x, g.constant(1 / math.sqrt(k), x.dtype))
        return g.add("MatMul", scaled, g.add("Transpose", x, perm=turn))
    if kind == "vector":
        return g.add("MatMul", x, g.weights(x.dtype, k, terms=k))
    return g.add("MatMul", x, g.weights(x.dtype, k, n, terms=k))


def einsum(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank == 3 and v.is_fixed(-1), "sequence")
    k = x.shape[-1]
    equation, shape = g.one_of(
        ("bik,kj->bij", (k, 3)), ("bik,jk->bji", (2, k)), ("bik,k->bi", (k,)), ("bij,j->bji", (k,))
    )
    return g.add("Einsum", x, g.weights(x.dtype, *shape, terms=k), equation=equation)


def softmax(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank >= 1, "sequence")
    return g.add(g.one_of("Softmax", "Softmax", "LogSoftmax"), x, axis=g.number(-x.rank, -1))


def reduction(g: Graph) -> Value:
    """A reduction of some axes."""
    x = g.pick(lambda v: v.rank >= 1, "image")
    names = ("Mean", "Sum", "Max", "Min", "L1", "L2", "SumSquare", "LogSumExp")
    op_type = "Reduce" + g.one_of(*names)
    first, second = g.number(-x.rank, -1), g.number(-x.rank, -1)
    return g.reduced(op_type, x, sorted({first, second}), g.number(0, 1) if x.rank > 1 else 1)


_UNARY = (
    "Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Selu", "Softplus", "Softsign", "HardSigmoid", "Neg", "Abs", "Erf", "Sin",
    "Cos", "Identity", "Exp", "Log", "Sqrt", "Reciprocal", "HardSwish", "Gelu", "Mish", "Celu", "Atan", "Dropout", "Round",
)  # fmt: skip


def unary(g: Graph) -> Value:
    """An activation, or a function of each element within its domain."""
    x = g.pick(form="image")
    op_type = g.one_of(*_UNARY)
    since = {"HardSwish": 14, "Gelu": 20, "Mish": 18}.get(op_type, 1)
    if g.opset < since:
        op_type = "Relu"
    if op_type in ("Exp", "Sin", "Cos", "Celu"):
        x = g.add("Tanh", x)
    if op_type in ("Log", "Sqrt", "Reciprocal"):
        x = g.add("Add", g.add("Abs", x), g.constant(0.5, x.dtype))
    if op_type == "Round":
        x = _apart(g, x, 0.5)
    if op_type == "Gelu":
        return g.add("Gelu", x, approximate=g.one_of("none", "tanh"))
    if op_type in ("LeakyRelu", "Elu", "Celu"):
        return g.add(op_type, x, alpha=g.one_of(0.5, 0.1, 1.5))
    return g.add(op_type, x)


def _apart(g: Graph, x: Value, limit: float) -> Value:
    """``x``, where no element is near a whole number plus ``limit``: rounding cannot decide there. Raises `Unfit`."""
    if not all(is_apart(run, limit, _CLEAR[x.dtype] * max(x.largest, 1e-2)) for run in x.runs):
        raise Unfit
    return x


def is_apart(values: Array, limit: float, least: float) -> bool:
    """Whether all values are ``least`` away from whole numbers plus ``limit``."""
    return bool(np.abs(values - limit - np.round(values - limit)).min() >= least)


def _threshold(g: Graph, x: Value) -> float:
    """A number that no element of a value is near, about in the middle of them. Raises `Unfit`."""
    every = np.unique(np.concatenate([run.ravel() for run in x.runs]))
    if every.size < 2:
        return float(every[0]) - 1
    gaps = np.diff(every)
    middle = slice(gaps.size // 4, max(3 * gaps.size // 4, gaps.size // 4 + 1))
    at = int(np.argmax(gaps[middle])) + (middle.start or 0)
    if gaps[at] < 2 * _CLEAR[x.dtype] * max(x.largest, 1e-2):
        raise Unfit
    return float(every[at] + gaps[at] / 2)


def jump(g: Graph) -> Value:
    """A comparison, or an operator that jumps, on values that are away from its limits."""
    x = g.pick(lambda v: v.rank >= 1 and v.runs[0].size < 300, "vector")
    limit = g.constant(_threshold(g, x), x.dtype)
    op_type = g.one_of("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Sign", "Floor", "Cast")
    if op_type == "Sign":
        return g.add("Sign", g.add("Sub", x, limit))
    if op_type == "Floor":
        return g.add(g.one_of("Floor", "Ceil"), _apart(g, x, 0.0))
    if op_type == "Cast":
        whole = g.cast(_apart(g, x, 0.0), g.one_of("int32", "int64"))
        return g.cast(whole, x.dtype)
    return g.add(op_type, x, limit, dtype="bool")


def _fits(a: Value, b: Value) -> bool:
    """Whether two values broadcast in all runs."""
    pairs = zip(a.runs, b.runs, strict=True)
    return all(m == n or 1 in (m, n) for x, y in pairs for m, n in zip(x.shape[::-1], y.shape[::-1], strict=False))


def _operand(g: Graph, x: Value) -> Value:
    """What a binary operator may take beside ``x``: a constant, or another value."""
    kind = g.one_of("value", "scalar", "last", "channel", "same", "part")
    if kind == "value":
        return g.cast(g.pick(lambda v: _fits(x, v)), x.dtype)
    if kind == "last" and x.rank and x.is_fixed(-1):
        return g.weights(x.dtype, x.shape[-1])
    if kind == "channel" and x.rank > 2 and x.is_fixed(1):
        return g.weights(x.dtype, x.shape[1], *[1] * (x.rank - 2))
    if kind == "same" and x.is_fixed():
        return g.weights(x.dtype, *x.shape)
    if kind == "part" and x.rank:
        return g.reduced(g.one_of("ReduceMean", "ReduceMax"), x, [g.number(-x.rank, -1)])
    return g.weights(x.dtype)


def binary(g: Graph) -> Value:
    """Arithmetic of two or three values that broadcast."""
    x = g.pick(form="image")
    y = _operand(g, x)
    op_type = g.one_of("Add", "Mul", "Sub", "Div", "Min", "Max", "Pow", "PRelu", "Mean", "Sum")
    if op_type == "Div":
        y = g.add("Add", g.add("Abs", y), g.constant(0.5, x.dtype))
    if op_type == "Pow":
        return g.add(
            "Pow",
            g.add("Add", g.add("Abs", x), g.constant(0.25, x.dtype)),
            g.constant(g.one_of(2.0, 0.5, 3.0, -1.0), x.dtype),
        )
    if op_type == "PRelu":
        return g.add(
            "PRelu", x, g.weights(x.dtype, *([x.shape[1], *[1] * (x.rank - 2)] if x.rank > 1 and x.is_fixed(1) else []))
        )
    if op_type in ("Mean", "Sum"):
        return g.add(op_type, x, y, x)
    operands = (y, x) if op_type in ("Sub", "Min") and g.flag() else (x, y)
    return g.add(op_type, *operands)


def where(g: Graph) -> Value:
    """A choice by a mask: a constant, or a comparison's result."""
    x = g.pick(form="sequence")
    found = [mask for mask in g.masks if _fits(x, mask)]
    if found and g.flag():
        mask = g.one_of(*found)
    elif x.rank and x.is_fixed(-1):
        mask = g.constant(g.rng.random(x.shape[-1]) < 0.5, "bool")
    else:
        mask = g.constant(np.array(True), "bool")
    if g.flag():
        mask = g.add("Not", mask, dtype="bool")
    other = g.constant(g.one_of(0.0, -1.0, 2.5), x.dtype) if g.flag() else _operand(g, x)
    return g.add("Where", mask, *((x, other) if g.flag() else (other, x)))


def clip(g: Graph) -> Value:
    x = g.pick(form="image")
    low, high = g.one_of((0.0, 6.0), (-1.0, 1.0), (None, 0.5), (-0.5, None))
    bounds = [None if n is None else g.constant(np.array(n), x.dtype) for n in (low, high)]
    return g.add("Clip", x, *bounds)


def cast(g: Graph) -> Value:
    x = g.pick(form="image")
    if g.kind == "mixed":
        return g.cast(x, "float16" if x.dtype == "float32" else "float32")
    other = g.add("Mul", g.cast(x, "float32"), g.constant(0.7, "float32"))
    return g.cast(other, x.dtype)


def scan(g: Graph) -> Value:
    """A running sum, or a triangle."""
    x = g.pick(lambda v: v.rank >= 2, "sequence")
    if g.opset >= 14 and g.flag():
        return g.add("Trilu", x, g.constant(np.array(g.number(-1, 1)), "int64"), upper=g.number(0, 1))
    axis = g.constant(np.array(g.number(-x.rank, -1)), "int64")
    return g.add(
        "CumSum",
        g.cast(x, "float32") if x.dtype == "float16" else x,
        axis,
        exclusive=g.number(0, 1),
        reverse=g.number(0, 1),
    )


def top(g: Graph) -> Value:
    """The greatest elements, where their order is clear."""
    x = g.pick(lambda v: v.rank >= 1 and v.runs[0].size < 1000, "vector")
    axis = g.number(-x.rank, -1)
    count = g.number(1, min(3, x.least(axis)))

    def is_clear(run: Array) -> bool:
        ordered = -np.sort(-run, axis)
        gaps = -np.diff(ordered, axis=axis).take(range(min(count, run.shape[axis] - 1)), axis)
        return bool(gaps.min(initial=1.0) > _CLEAR[x.dtype] * max(x.largest, 1e-2))

    if not all(map(is_clear, x.runs)):
        raise Unfit
    if g.flag():
        return g.cast(
            g.add("ArgMax", x, dtype="int64", axis=axis, keepdims=g.number(0, 1) if x.rank > 1 else 1), x.dtype
        )
    return g.top(x, count, axis)


def wide(g: Graph) -> Value:
    """A sum, or a greatest value, of more operands than one kernel reads."""
    x = g.pick(lambda v: v.is_fixed() and v.rank >= 1, "vector")
    count = g.one_of(14, 33, 40)
    others = [g.weights(x.dtype, x.shape[-1]) for _ in range(count - 3)]
    operands = [*others, x, *(g.add("Mul", x, g.constant(1 / (k + 2), x.dtype)) for k in range(2))]
    return g.add(g.one_of("Max", "Mean", "Min"), *operands)


def computed(g: Graph) -> Value:
    """An operand that the model computes of constants."""
    x = g.pick(lambda v: v.rank >= 1 and v.is_fixed(-1), "sequence")
    n, d = x.shape[-1], x.dtype
    kind = g.one_of("scaled", "turned", "joined", "range", "filled", "cast", "gathered")
    if kind == "turned":
        return g.add("MatMul", x, g.add("Transpose", g.weights(d, 3, n, terms=n), perm=[1, 0])) if x.rank > 1 else x
    if kind == "joined":
        y = g.add("Concat", g.weights(d, 1), g.weights(d, n), axis=0)
        y = g.add("Slice", y, g.ints(1), g.ints(1 << 31), g.ints(0))
    elif kind == "range":
        y = g.cast(g.add("Range", *(g.constant(np.array(k), "int64") for k in (0, n, 1)), dtype="int64"), d)
    elif kind == "filled":
        y = g.add("Mul", g.add("ConstantOfShape", g.ints(n), dtype="float32"), g.constant(2.0, "float32"))
        y = g.add("Add", g.cast(y, d), g.weights(d, n))
    elif kind == "cast":
        y = g.cast(g.weights("float16" if d == "float32" else "float32", n), d)
    elif kind == "gathered":
        y = g.add("Gather", g.weights(d, 4, n), g.constant(np.array(2), "int64"), axis=0)
    else:
        y = g.add("Sqrt", g.add("Add", g.add("Abs", g.weights(d, n)), g.constant(0.5, d)))
    return g.add(g.one_of("Mul", "Add"), x, y)


def sized(g: Graph) -> Value:
    """A value whose shape the model computes of others, by arithmetic on sizes."""
    x = g.pick(lambda v: v.rank >= 2 and v.is_fixed(1), "image")
    axis, kind = x.rank - 1, g.one_of("half", "expand", "filled", "tail", "floats")
    size = g.size_of(x, axis)
    if kind == "half" and x.least(axis) > 1:
        half = g.add("Div", size, g.ints(2), dtype="int64")
        return g.add("Slice", x, g.ints(0), half, g.ints(axis))
    if kind == "tail" and x.least(axis) > 1:
        return g.add("Slice", x, g.add("Sub", size, g.ints(1), dtype="int64"), size, g.ints(axis))
    if kind == "floats" and x.rank == 4 and x.least(axis) > 1:
        double = g.add("Floor", g.add("Mul", g.cast(size, "float32"), g.constant(np.array([2.0]), "float32")))
        own = g.add("Shape", x, dtype="int64")
        front = g.add("Slice", own, g.ints(0), g.ints(3), g.ints(0), dtype="int64")
        sizes = g.add("Concat", front, g.cast(double, "int64"), dtype="int64", axis=0)
        return g.add("Resize", x, None, None, sizes, mode="linear", coordinate_transformation_mode="half_pixel")
    if kind == "filled":
        zeros = g.add("ConstantOfShape", g.add("Shape", x, dtype="int64"), dtype="float32")
        return g.add("Concat", x, g.cast(zeros, x.dtype), axis=1)
    line = g.reduced("ReduceMean", x, [axis])
    return g.add("Mul", g.add("Expand", line, g.add("Shape", x, dtype="int64")), x)


OPERATORS: tuple[Step, ...] = (
    conv, unary, binary, pool, matmul, resize, conv_transpose, channel_norm, last_norm, softmax, reduction, global_pool, where,
    clip, cast, einsum, scan, jump, top, wide, computed, sized,
)  # fmt: skip
