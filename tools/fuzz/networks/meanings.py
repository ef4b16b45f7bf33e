"""The values of a graph in float64, node by node, exactly or with the rounding errors of narrower types.

Convolutions, pools, norms, resizes and codes are numpy here; all other operators are those of ONNX's reference evaluator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import as_strided
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]

#: half of the distance between 1 and the next number, and the least number, of the types that values are rounded to
_UNITS = {"float32": (2.0**-24, 2.0**-149), "float16": (2.0**-11, 2.0**-25), "float64": (0.0, 0.0)}


def evaluate(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    types: Mapping[str, str] | None = None,
    rng: np.random.Generator | None = None,
) -> dict[str, Array]:
    """All values of a model, by name; floats in float64.

    With ``rng`` and the element ``types`` of all values, each node's operands and results have random errors as large as those
    of rounding to their types. The spread of several evaluations is the error that a right engine may have.
    """
    opset = model.opset_import[0].version
    values = {tensor.name: wide(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
    constants = {*values, *(name for node in model.graph.node if node.op_type == "Constant" for name in node.output)}
    values |= {name: wide(value) for name, value in feeds.items()}

    def rounded(name: str) -> Array:
        if rng is None or types is None or name in constants:
            return values[name]
        return _rounded(values[name], types[name], rng)

    for node in model.graph.node:
        results = meaning(node, [rounded(name) if name else None for name in node.input], opset)
        for name, result in zip(node.output, results, strict=False):
            if rng is not None and node.op_type == "Resize" and result.dtype.kind == "f":
                result = _resampled(result, rng)
            values[name] = result
            values[name] = rounded(name)
    return values


def _resampled(value: Array, rng: np.random.Generator) -> Array:
    """A Resize's result with the errors of places that are computed in float32, along an axis of values that differ by as much
    as they are large."""
    most = _UNITS["float32"][0] * max(value.shape) * float(np.abs(value).max(initial=0.0))
    return np.asarray(value + most * rng.uniform(-1, 1, value.shape))


def wide(value: Array) -> Array:
    """Floats in float64; other values as they are."""
    value = np.asarray(value)
    return value.astype(np.float64) if value.dtype.kind == "f" else value


def _rounded(value: Array, kind: str, rng: np.random.Generator) -> Array:
    """The value with an error of its type's rounding. Small whole numbers are exact: sizes are computed from them."""
    if kind not in _UNITS:
        return value
    unit, least = _UNITS[kind]
    exact = (value == np.rint(value)) & (np.abs(value) * unit < 0.25)
    error = np.where(exact, 0, rng.uniform(-1, 1, value.shape))
    return np.asarray(value + (np.abs(value) * unit + least) * error)


def meaning(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> list[Array]:
    """The results of a node whose floats are float64."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attributes = {n: v.decode() if isinstance(v, bytes) else v for n, v in attributes.items()}
    own = _MEANINGS.get(node.op_type)
    with np.errstate(all="ignore"):
        made = own(*inputs, **attributes) if own else _by_evaluator(node, inputs, opset)
    return [wide(value) for value in (made if isinstance(made, (tuple, list)) else (made,))]


def _by_evaluator(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> Any:
    from onnx.reference.ops._op_list import load_op

    context = {"log": lambda *_: None, "opsets": {"": opset}, "verbose": 0, "new_ops": None}
    return load_op("", node.op_type, opset)(node, context).run(*inputs)


def _cast(x: Array, *, to: int, **_: Any) -> Array:
    kind = helper.tensor_dtype_to_np_dtype(to)
    return x.astype(np.float64 if kind.kind == "f" else kind)


# ---- windows


def _windows(x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """[n, c, *spatial] as [n, c, *windows, *kernel]."""
    steps = x.strides[2:]
    counts = [
        (size - d * (k - 1) - 1) // s + 1 for size, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True)
    ]
    over = [a * b for a, b in zip(steps, strides, strict=True)]
    within = [a * b for a, b in zip(steps, dilations, strict=True)]
    return as_strided(x, (*x.shape[:2], *counts, *kernel), (*x.strides[:2], *over, *within), writeable=False)


def paddings(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], how: str
) -> list[int]:
    """The pads, all begins and then all ends, of ``auto_pad`` SAME_UPPER, SAME_LOWER or VALID."""
    begins, ends = [], []
    for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0) if how.startswith("SAME") else 0
        less, more = total // 2, total - total // 2
        begins.append(less if how == "SAME_UPPER" else more)
        ends.append(more if how == "SAME_UPPER" else less)
    return [*begins, *ends]


def _padded(x: Array, pads: Sequence[int], value: float, beyond: Sequence[int] | None = None) -> Array:
    rank = len(pads) // 2
    ends = [b + e for b, e in zip(pads[rank:], beyond or [0] * rank, strict=True)]
    return np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], ends, strict=True)], constant_values=value)


def _window_attributes(x: Array, kernel: Sequence[int], rest: dict[str, Any]) -> tuple[list[int], list[int], list[int]]:
    rank = len(kernel)
    strides, dilations = rest.get("strides", [1] * rank), rest.get("dilations", [1] * rank)
    how = rest.get("auto_pad", "NOTSET")
    pads = rest.get("pads", [0] * 2 * rank)
    return list(strides), list(dilations), pads if how == "NOTSET" else paddings(
        x.shape[2:], kernel, strides, dilations, how
    )  # fmt: skip


def _conv(x: Array, w: Array, bias: Array | None = None, *, group: int = 1, **rest: Any) -> Array:
    rank = x.ndim - 2
    strides, dilations, pads = _window_attributes(x, w.shape[2:], rest)
    windows = _windows(_padded(x, pads, 0.0), w.shape[2:], strides, dilations)
    last = [*range(windows.ndim - rank, windows.ndim)]
    parts = [
        np.tensordot(part, weights, ([1, *last], [1, *range(2, 2 + rank)]))
        for part, weights in zip(np.split(windows, group, 1), np.split(w, group, 0), strict=True)
    ]
    y = np.moveaxis(np.concatenate(parts, -1), -1, 1)
    return y if bias is None else y + bias.reshape(-1, *[1] * rank)


def _conv_transpose(x: Array, w: Array, bias: Array | None = None, *, group: int = 1, **rest: Any) -> Array:
    rank, kernel = x.ndim - 2, w.shape[2:]
    strides, dilations = rest.get("strides", [1] * rank), rest.get("dilations", [1] * rank)
    more, pads = rest.get("output_padding", [0] * rank), rest.get("pads", [0] * 2 * rank)
    sizes = [
        s * (n - 1) + d * (k - 1) + 1 + o
        for n, k, s, d, o in zip(x.shape[2:], kernel, strides, dilations, more, strict=True)
    ]
    y = np.zeros((x.shape[0], w.shape[1] * group, *sizes))
    for at in np.ndindex(*kernel):
        place = tuple(
            slice(a * d, a * d + s * (n - 1) + 1, s)
            for a, d, s, n in zip(at, dilations, strides, x.shape[2:], strict=True)
        )
        parts = [
            np.tensordot(part, weights[(slice(None), slice(None), *at)], ([1], [0]))
            for part, weights in zip(np.split(x, group, 1), np.split(w, group, 0), strict=True)
        ]
        y[(slice(None), slice(None), *place)] += np.moveaxis(np.concatenate(parts, -1), -1, 1)
    within = [slice(b, n - e) for b, e, n in zip(pads[:rank], pads[rank:], sizes, strict=True)]
    y = y[(slice(None), slice(None), *within)]
    return y if bias is None else y + bias.reshape(-1, *[1] * rank)


def _pool(x: Array, empty: float, kernel: Sequence[int], rest: dict[str, Any]) -> tuple[Array, Array, Array]:
    """The windows of a pool, and of a mask of the elements, and of one of elements and pads."""
    strides, dilations, pads = _window_attributes(x, kernel, rest)
    rank, beyond = len(kernel), [0] * len(kernel)
    if rest.get("ceil_mode"):
        for axis in range(rank):
            left = x.shape[2 + axis] + pads[axis] + pads[rank + axis] - dilations[axis] * (kernel[axis] - 1) - 1
            windows = -(-left // strides[axis]) + 1
            if (windows - 1) * strides[axis] >= x.shape[2 + axis] + pads[axis]:  # one that begins beyond the elements
                windows -= 1
            beyond[axis] = max((windows - 1) * strides[axis] - left, 0)
    ones = np.ones_like(x)
    elements = _padded(ones, pads, 0.0, beyond)
    all_of_them = _padded(_padded(ones, pads, 1.0), [0] * 2 * rank, 0.0, beyond)
    images = _padded(x, pads, empty, beyond), elements, all_of_them
    a, b, c = (_windows(image, kernel, strides, dilations) for image in images)
    return a, b, c


def _max_pool(x: Array, *, kernel_shape: Sequence[int], **rest: Any) -> Array:
    windows, _, _ = _pool(x, -math.inf, kernel_shape, rest)
    return np.asarray(windows.max(tuple(range(-len(kernel_shape), 0))))


def _average_pool(x: Array, *, kernel_shape: Sequence[int], count_include_pad: int = 0, **rest: Any) -> Array:
    windows, elements, all_of_them = _pool(x, 0.0, kernel_shape, rest)
    axes = tuple(range(-len(kernel_shape), 0))
    return np.asarray(windows.sum(axes) / (all_of_them if count_include_pad else elements).sum(axes))


def _lp_pool(x: Array, *, kernel_shape: Sequence[int], p: int = 2, **rest: Any) -> Array:
    windows, _, _ = _pool(np.abs(x) ** p, 0.0, kernel_shape, rest)
    return np.asarray(windows.sum(tuple(range(-len(kernel_shape), 0))) ** (1 / p))


# ---- norms


def _standard(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred = x - x.mean(axes, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(axes, keepdims=True) + epsilon))


def _by_channel(t: Array, rank: int) -> Array:
    return t.reshape(-1, *[1] * (rank - 2))


def _instance_norm(x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5) -> Array:
    y = _standard(x, tuple(range(2, x.ndim)), epsilon)
    return y * _by_channel(scale, x.ndim) + _by_channel(bias, x.ndim)


def _group_norm(x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5, **_: Any) -> Array:
    y = _standard(x.reshape(x.shape[0], num_groups, -1), (2,), epsilon).reshape(x.shape)
    return y * _by_channel(scale, x.ndim) + _by_channel(bias, x.ndim)


def _layer_norm(
    x: Array, scale: Array, bias: Array | None = None, *, axis: int = -1, epsilon: float = 1e-5, **_: Any
) -> Array:
    y = _standard(x, tuple(range(axis % x.ndim, x.ndim)), epsilon) * scale
    return y if bias is None else y + bias


def _rms_norm(x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, **_: Any) -> Array:
    axes = tuple(range(axis % x.ndim, x.ndim))
    return np.asarray(x / np.sqrt((x * x).mean(axes, keepdims=True) + epsilon) * scale)


def _batch_norm(
    x: Array, scale: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float = 1e-5, **_: Any
) -> Array:
    scale, bias, mean, variance = (_by_channel(t, x.ndim) for t in (scale, bias, mean, variance))
    return np.asarray((x - mean) / np.sqrt(variance + epsilon) * scale + bias)


def _lrn(x: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Array:
    before, after = (size - 1) // 2, size // 2
    squares = np.pad(x * x, [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)])
    sums = sum(squares[:, k : k + x.shape[1]] for k in range(size))
    return np.asarray(x / (bias + alpha / size * sums) ** beta)


def _lp_norm(x: Array, *, axis: int = -1, p: int = 2) -> Array:
    return np.asarray(x / (np.abs(x) ** p).sum(axis, keepdims=True) ** (1 / p))


# ---- resizes


def coordinates(size: int, count: int, scale: float, how: str) -> Array:
    """The place in an axis of ``size`` of each of ``count`` samples (ONNX, Resize, coordinate_transformation_mode)."""
    at = np.arange(count, dtype=np.float64)
    if how == "align_corners":
        return at * (size - 1) / (count - 1) if count > 1 else at * 0
    if how == "asymmetric":
        return at / scale
    if how == "pytorch_half_pixel" and count == 1:
        return at * 0
    return (at + 0.5) / scale - 0.5


_NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _samples(size: int, count: int, scale: float, mode: str, how: str, rest: dict[str, Any]) -> Array:
    """The matrix [count, size] of an axis."""
    at = coordinates(size, count, scale, how)
    rows = np.arange(count)
    matrix = np.zeros((count, size))
    if mode == "nearest":
        nearest = _NEAREST[rest.get("nearest_mode", "round_prefer_floor")](at)
        matrix[rows, np.clip(nearest, 0, size - 1).astype(int)] = 1
        return matrix
    if mode == "linear":
        at = np.clip(at, 0, size - 1)
        low = np.floor(at).astype(int)
        np.add.at(matrix, (rows, low), 1 - (at - low))
        np.add.at(matrix, (rows, np.minimum(low + 1, size - 1)), at - low)
        return matrix
    a = rest.get("cubic_coeff_a", -0.75)
    low = np.floor(at).astype(int)
    for k in range(-1, 3):
        t = np.abs(at - (low + k))
        inner, outer = ((a + 2) * t - (a + 3)) * t * t + 1, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        np.add.at(matrix, (rows, np.clip(low + k, 0, size - 1)), np.where(t <= 1, inner, outer))
    return matrix


def _resize(
    x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None, **rest: Any
) -> Array:
    mode, how = rest.pop("mode", "nearest"), rest.pop("coordinate_transformation_mode", "half_pixel")
    counts = [int(n) for n in sizes] if sizes is not None else []
    factors = [c / s for c, s in zip(counts, x.shape, strict=True)] if counts else [float(f) for f in scales]  # type: ignore[union-attr]
    counts = counts or [math.floor(s * f) for s, f in zip(x.shape, factors, strict=True)]
    for axis, (size, count, factor) in enumerate(zip(x.shape, counts, factors, strict=True)):
        if factor != 1:
            matrix = _samples(size, count, factor, mode, how, rest)
            x = np.moveaxis(np.tensordot(matrix, x, ([1], [axis])), 0, axis)
    return x


# ---- elements


def _pad(x: Array, pads: Array, value: Array | None = None, *, mode: Any = "constant") -> Array:
    begins, ends = pads[: x.ndim], pads[x.ndim :]
    more = [(max(int(b), 0), max(int(e), 0)) for b, e in zip(begins, ends, strict=True)]
    rest: dict[str, Any] = {"constant_values": 0.0 if value is None else float(value)} if mode == "constant" else {}
    kept = tuple(slice(max(int(-b), 0), n - max(int(-e), 0)) for b, e, n in zip(begins, ends, x.shape, strict=True))
    return np.pad(x[kept], more, mode, **rest)


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[float])(x)) if x.size else x


def _gelu(x: Array, *, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return np.asarray(x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return x * 0.5 * (1 + _erf(x / math.sqrt(2)))


def _max_last(x: Array, axis: int) -> Array:
    return x - x.max(axis, keepdims=True)


def _softmax(x: Array, *, axis: int = -1) -> Array:
    e = np.exp(_max_last(x, axis))
    return np.asarray(e / e.sum(axis, keepdims=True))


def _log_softmax(x: Array, *, axis: int = -1) -> Array:
    y = _max_last(x, axis)
    return np.asarray(y - np.log(np.exp(y).sum(axis, keepdims=True)))


# ---- codes


def _spread(t: Array, x: Array, axis: int, block_size: int) -> Array:
    """Scales or zero points for each element: one, those of an axis, or of blocks along it."""
    if t.size == 1:
        return t.reshape(())
    if block_size:
        return np.repeat(t, block_size, axis)
    return t.reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)])


def _dequantize(x: Array, scale: Array, zero: Array | None = None, *, axis: int = 1, block_size: int = 0) -> Array:
    less = 0 if zero is None else _spread(zero, x, axis, block_size).astype(np.int64)
    return np.asarray((x.astype(np.int64) - less) * _spread(scale, x, axis, block_size))


def _quantize(x: Array, scale: Array, zero: Array, *, axis: int = 1) -> Array:
    limits = np.iinfo(zero.dtype)
    codes = np.rint(x / _spread(scale, x, axis, 0)) + _spread(zero, x, axis, 0)
    return np.clip(codes, limits.min, limits.max).astype(zero.dtype)


def _less(x: Array, zero: Array | None, *shape: int) -> Array:
    return x.astype(np.int64) - (0 if zero is None else zero.astype(np.int64).reshape(shape or zero.shape))


def _matmul_integer(x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None) -> Array:
    return np.matmul(_less(x, x_zero), _less(w, w_zero)).astype(np.int32)


def _conv_integer(x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None, **rest: Any) -> Array:
    return _conv(_less(x, x_zero), _less(w, w_zero, -1, *[1] * (w.ndim - 1)), **rest).astype(np.int32)


def _scaled(total: Array, x: Array, w: Array, y: Array, zero: Array) -> Array:
    """Codes of sums of integers, by the scales of both operands and of the result."""
    return _quantize(total * (x * w), y, zero)


def _qlinear_matmul(
    a: Array, a_scale: Array, a_zero: Array, w: Array, w_scale: Array, w_zero: Array, y_scale: Array, y_zero: Array
) -> Array:
    return _scaled(_matmul_integer(a, w, a_zero, w_zero), a_scale, w_scale, y_scale, y_zero)


def _qlinear_conv(
    x: Array, x_scale: Array, x_zero: Array, w: Array, w_scale: Array, w_zero: Array, y_scale: Array, y_zero: Array,
    bias: Array | None = None, **rest: Any,
) -> Array:  # fmt: skip
    total = _conv_integer(x, w, x_zero, w_zero, **rest)
    by_channel = [-1, *[1] * (x.ndim - 2)]
    if bias is not None:
        total = total + bias.reshape(by_channel)
    return _scaled(total, x_scale, w_scale.reshape(by_channel) if w_scale.size > 1 else w_scale, y_scale, y_zero)


_MEANINGS: dict[str, Callable[..., Any]] = {
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Conv": _conv,
    "ConvInteger": _conv_integer,
    "ConvTranspose": _conv_transpose,
    "DequantizeLinear": _dequantize,
    "Dropout": lambda x, *_, **__: x,
    "Erf": _erf,
    "Gelu": _gelu,
    "GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.ndim)), keepdims=True),
    "GlobalMaxPool": lambda x: x.max(tuple(range(2, x.ndim)), keepdims=True),
    "GroupNormalization": _group_norm,
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _log_softmax,
    "LpNormalization": _lp_norm,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MatMulInteger": _matmul_integer,
    "Mean": lambda *x: sum(x) / len(x),
    "MeanVarianceNormalization": lambda x, *, axes=(0, 2, 3): _standard(x, tuple(axes), 1e-9),
    "Mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "Pad": _pad,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
    "RMSNormalization": _rms_norm,
    "Resize": _resize,
    "Softmax": _softmax,
}
