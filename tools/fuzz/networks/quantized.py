"""Products and convolutions of codes: dequantized inputs by dequantized weights, and exact sums of integers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tools.fuzz.networks.graph import Graph, Unfit, Value
from tools.fuzz.networks.steps import Step, is_apart

#: types of codes; those of 16 bits since opset 21
_BYTES, _WORDS = ("uint8", "int8"), ("uint16", "int16")


def _range(dtype: str) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _zero(g: Graph, dtype: str, *shape: int) -> Value | None:
    """A zero point: none, 0, the middle or any code."""
    low, high = _range(dtype)
    kind = g.one_of("none", "middle", "any", "zero")
    if kind == "none":
        return None
    middle = 0 if kind == "zero" else (low + high + 1) // 2
    return g.constant(g.rng.integers(low, high + 1, shape) if kind == "any" else np.full(shape, middle), dtype)


def _scale(g: Graph, dtype: str, *shape: int, terms: int = 1) -> Value:
    """A scale, by which codes are about 1 and sums of ``terms`` products too."""
    unit = 1 / (_range(dtype)[1] * math.sqrt(terms))
    return g.constant(unit * g.rng.uniform(0.5, 1.5, shape), "float32")


def _dequantized(g: Graph, codes: Value, scale: Value, zero: Value | None, **attributes: Any) -> Value:
    return g.add("DequantizeLinear", codes, scale, zero, dtype="float32", **attributes)


def _input(g: Graph, form: str) -> Value:
    """Codes of a form: an input, or a quantized value of the pool."""
    found = [v for v in g.pool if v.dtype == "float32" and g.has_form(v, form) and v.runs[0].size < 200]
    if not found or not g.flag():
        return g.input(form, g.one_of(*_BYTES))
    return _quantized(g, g.one_of(*found))[0]


def _quantized(g: Graph, x: Value) -> tuple[Value, Value, Value]:
    """Codes of a value, so coarse that rounding decides nothing, their scale and their zero point."""
    steps = max(x.largest, 1e-2) / g.rng.uniform(1, 3, 64)
    step = next((s for s in steps if all(is_apart(run / s, 0.5, 1e-3 * 2) for run in x.runs)), None)
    if step is None:
        raise Unfit
    scale, zero = g.constant(np.array(step), "float32"), g.constant(np.array(g.one_of(128, 3, 0)), "uint8")
    return g.add("QuantizeLinear", x, scale, zero, dtype="uint8"), scale, zero


def _floats(g: Graph, form: str) -> Value:
    codes = _input(g, form)
    return _dequantized(g, codes, _scale(g, codes.dtype), _zero(g, codes.dtype))


def _weights(g: Graph, shape: tuple[int, ...], terms: int, axis: int) -> Value:
    """Dequantized weights: by one scale, by those of ``axis`` or another one, or of blocks."""
    dtype = g.one_of(*_BYTES, *(_WORDS if g.opset >= 21 else ()))
    low, high = _range(dtype)
    codes = g.constant(g.rng.integers(low, high + 1, shape), dtype)
    by = g.one_of("one", "axis", "one of a list", "other", "blocks")
    if by == "blocks" and g.opset >= 21 and shape[0] % 2 == 0:
        scales = (shape[0] // 2, *shape[1:])
        return _dequantized(
            g, codes, _scale(g, dtype, *scales, terms=terms), _zero(g, dtype, *scales), axis=0, block_size=2
        )
    # ONNX Runtime takes the scales of a square matrix's rows for those of its columns
    if by == "other" and len(shape) == 2 and shape[0] != shape[1]:
        axis = 1 - axis
    of = {"one": (), "one of a list": (1,)}.get(by, (shape[axis],))
    where = {} if by.startswith("one") else {"axis": axis - g.one_of(0, len(shape))}
    return _dequantized(g, codes, _scale(g, dtype, *of, terms=terms), _zero(g, dtype, *of), **where)


def _biased(g: Graph, y: Value, channels: int, rank: int) -> Value:
    if g.flag():
        y = g.add("Add", y, g.weights("float32", channels, *[1] * rank))
    return g.add(g.one_of("Relu", "Tanh"), y) if g.flag() else y


def coded_product(g: Graph) -> Value:
    """A product of dequantized codes, in several layouts."""
    x = _floats(g, g.one_of("sequence", "vector"))
    k, n = x.shape[-1], g.channels(4, 8, 5)
    if x.rank == 2 and g.flag():
        turned = g.number(0, 1)
        w = _weights(g, (n, k) if turned else (k, n), k, 1 - turned)
        bias = g.weights("float32", n) if g.flag() else None
        y = g.add("Gemm", x, w, bias, transB=turned, alpha=g.one_of(1.0, 0.5))
    elif g.flag():
        y = g.add("MatMul", x, g.add("Transpose", _weights(g, (n, k), k, 0), perm=[1, 0]))
    else:
        y = g.add("MatMul", x, _weights(g, (k, n), k, 1))
    if g.flag():
        g.publish(x)
    return _biased(g, y, n, 0)


def coded_convolution(g: Graph) -> Value:
    """A convolution of dequantized codes: with groups, by channel, of one pixel or of several."""
    x = _floats(g, g.one_of("image", "image", "signal", "volume"))
    rank, channels = x.rank - 2, x.shape[1]
    group = g.one_of(1, 1, channels, *(n for n in (2, 4) if channels % n == 0))
    n = g.channels(4, 8) if group == 1 else group * g.one_of(1, 2)
    kernel, each = g.one_of(3, 1), channels // group
    terms = each * kernel**rank
    w = _weights(g, (n, each, *[kernel] * rank), terms, 0)
    bias = g.weights("float32", n) if g.flag() else None
    y = g.add("Conv", x, w, bias, group=group, pads=[kernel // 2] * 2 * rank, strides=[g.one_of(1, 2)] * rank)
    return _biased(g, y, n, rank)


def integer_sums(g: Graph) -> Value:
    """Exact sums of integers, scaled as exporters of dynamic quantization write them."""
    x = _input(g, g.one_of("sequence", "image"))
    dtype = g.one_of(*_BYTES)
    low, high = _range(dtype)
    is_image = x.rank == 4
    k, n = x.shape[1 if is_image else -1], g.channels(4, 8, 5)
    kernel = g.one_of(3, 1) if is_image else 1
    shape = (n, k, kernel, kernel) if is_image else (k, n)
    w = g.constant(g.rng.integers(low, high + 1, shape), dtype)
    zeros = _zero(g, x.dtype), _zero(g, dtype, *(() if is_image or g.flag() else (n,)))
    if is_image:
        y = g.add("ConvInteger", x, w, *zeros, dtype="int32", pads=[kernel // 2] * 4)
    else:
        y = g.add("MatMulInteger", x, w, *zeros, dtype="int32")
    y = g.add("Cast", y, dtype="float32", limited=False, to=1)
    return _biased(g, g.add("Mul", y, g.constant(np.array(2.0**-14), "float32")), n, 2 if is_image else 0)


def coded_branches(g: Graph) -> Value:
    """Convolutions of the same codes whose quantized results are added, or of one the maxima of windows."""
    x, n = _floats(g, "image"), g.channels(4, 8, 16)
    branches = []
    for _ in range(g.number(1, 2)):
        kernel = g.one_of(1, 3)
        w = _weights(g, (n, x.shape[1], kernel, kernel), x.shape[1] * kernel**2, 0)
        y = g.add("Conv", x, w, g.weights("float32", n), pads=[kernel // 2] * 4)
        branches.append(_dequantized(g, *_quantized(g, g.add("Relu", y) if g.flag() else y)))
    if len(branches) == 2:
        return g.add("Add", *branches)
    return _maxima(g, branches[0])


def _maxima(g: Graph, x: Value) -> Value:
    """Of windows that have a pixel each; of codes, and maybe quantized again."""
    pads = [g.one_of(0, 1) for _ in range(4)]
    made = g.add("MaxPool", x, kernel_shape=[2, 2], strides=[g.one_of(1, 2)] * 2, pads=pads, ceil_mode=g.number(0, 1))
    return _dequantized(g, *_quantized(g, made)) if g.flag() else made


def integer_operators(g: Graph) -> Value:
    """QLinearConv, or QLinearMatMul by weights or of what is computed, some in a row: by powers of two, which round nothing."""
    x = _input(g, g.one_of("sequence", "image"))
    is_image = x.rank == 4
    dtype = x.dtype if x.dtype == "int8" else g.one_of(*_BYTES)
    low, high = _range(dtype)
    zero = _code(g, x.dtype)
    for _ in range(g.number(1, 2)):
        k, n = x.shape[1 if is_image else -1], g.channels(4, 8, 5)
        kernel = g.one_of(3, 1) if is_image else 1
        w = g.constant(g.rng.integers(low, high + 1, (n, k, kernel, kernel) if is_image else (k, n)), dtype)
        terms, rows = k * kernel**2, 1 if not is_image and x.is_fixed() and g.flag() else 0
        if rows:  # by its own transpose
            w, terms = g.add("Transpose", x, dtype=x.dtype, limited=False, perm=[0, 2, 1]), k
        scales = g.constant(2.0 ** g.rng.integers(-7, -5, (n,) if is_image and g.flag() else ()), "float32")
        unit, to = g.constant(np.array(0.5), "float32"), _code(g, x.dtype)
        y_scale = g.constant(2.0 ** np.round(np.log2(math.sqrt(terms)) - 1), "float32")
        bias = g.constant(g.rng.integers(-(2**13), 2**13, n), "int32") if is_image and g.flag() else None
        given = (x, unit, zero, w, scales, zero if rows else _code(g, dtype), y_scale, to)
        if is_image:
            x = g.add("QLinearConv", *given, bias, dtype=x.dtype, limited=False, pads=[kernel // 2] * 4)
        else:
            x = g.add("QLinearMatMul", *given, dtype=x.dtype, limited=False)
        zero = to
    y = _dequantized(g, x, _scale(g, x.dtype), zero)
    return _maxima(g, y) if is_image and g.flag() else y


def _code(g: Graph, dtype: str) -> Value:
    """A zero point that is given."""
    return _zero(g, dtype) or g.constant(np.zeros(()), dtype)


QUANTIZED: tuple[Step, ...] = (coded_product, coded_convolution, coded_branches, integer_sums, integer_operators)
