"""Operators whose values are computed from positions: masks, ranges, one-hot codes, windows."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import numpy_helper

from vkep import dtypes
from vkep.dtypes import FLOAT32, DType
from vkep.ir import algebra as fn
from vkep.ir.algebra import equal
from vkep.ir.builder import LARGEST, Builder
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import ARITHMETIC, FLOATING, SINGLE, every
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.registry import operator
from vkep.sizes import fixed, room_for, whole


def positions(b: Builder, size: int, dtype: type = np.int32) -> Tensor:
    """0, 1, ... as a constant vector."""
    if size >= LARGEST:
        b.decline(f"{size} positions; the kernels count below 2**31")
    return b.constant(np.arange(room_for(size), dtype=dtype)).slice(0, 0, size)


@operator("Trilu", types={"T": every("Trilu")})
def trilu(b: Builder, x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    if x.rank < 2:
        b.invalid(f"rank {x.rank}, expected at least 2")
    shift = 0 if k is None else _diagonal(whole(b.number(k, "k")))
    rows = b.reshape(positions(b, x.shape[-2]), [x.shape[-2], 1])
    cols = positions(b, x.shape[-1])
    [value], [row, col, diagonal] = b.reads(x), b.reads(rows, cols, shift)
    keep = col - row >= diagonal if upper else col - row <= diagonal
    return b.store(fn.where(keep, value, False if x.dtype.kind == "bool" else 0), x.dtype, shape=x.shape)


def _diagonal(k: int) -> int:
    """A diagonal's number in 32 bits; numbers outside of any matrix are equivalent."""
    return max(-LARGEST + 1, min(k, LARGEST - 1))


def numeric(b: Builder, number: int | None, default: DType) -> DType:
    """The element type that an attribute names, or the default where it is absent."""
    if number is None:
        return default
    if number not in onnx.TensorProto.DataType.values() or number == onnx.TensorProto.UNDEFINED:
        b.invalid(f"{number} is no element type")
    found = dtypes.from_onnx(number)
    if found is None:
        b.decline(f"no kernel makes {dtypes.onnx_name(number)}")
    return found


@operator("EyeLike", types={"T1": every("EyeLike", "T1")})
def eye_like(b: Builder, x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    if x.rank != 2:
        b.invalid(f"rank {x.rank}, expected 2")
    made = numeric(b, dtype, x.dtype)
    rows = b.reshape(positions(b, x.shape[0]), [x.shape[0], 1])
    cols = positions(b, x.shape[1])
    row, col, diagonal = b.reads(rows, cols, _diagonal(k))
    return b.store(fn.cast(equal(col - row, diagonal), made.glsl_compute), made, shape=x.shape)


@operator("OneHot", since=9, types={"T1": every("OneHot", "T1", ARITHMETIC), "T3": every("OneHot", "T3")})
def one_hot(b: Builder, indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    count = whole(b.number(depth, "depth"))
    b.expect("values", values, (2,))
    if count < 1:
        b.invalid(f"depth is {count}, expected at least 1")
    if not indices.rank:
        b.invalid("indices have no axis")
    where = b.axis(axis, indices.rank + 1)
    shape = [*indices.shape[:where], count, *indices.shape[where:]]
    spread = b.reshape(indices, [*indices.shape[:where], 1, *indices.shape[where:]])
    place = b.reshape(positions(b, count), [count, *[1] * (indices.rank - where)])
    at = b.expr("cast", place, ctype=indices.dtype.glsl_compute)
    index, classes = b.reads(spread, count)
    if indices.dtype.kind != "uint":  # a negative index counts from the end; one out of range matches no position
        index = fn.where(index < 0, index + classes, index)
    off_value, on_value = b.reads(values.slice(0, 0, 1), values.slice(0, 1, 1))
    return b.store(fn.where(equal(index, at), on_value, off_value), values.dtype, shape=shape)


@operator("Range", types={"T": every("Range", among=ARITHMETIC)})
def range_(b: Builder, start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: int = 1) -> Tensor:
    first, last, step = (b.number(t, what) for t, what in ((start, "start"), (limit, "limit"), (delta, "delta")))
    if step == 0:
        b.invalid("delta is 0")
    whole_numbers = start.dtype.kind in ("int", "uint")
    count: int = max(whole(-((first - last) // step)) if whole_numbers else math.ceil((last - first) / step), 0)
    kind = start.dtype.glsl_compute
    at = b.expr("cast", positions(b, count), ctype=kind)
    return b.store(b.expr("mul_add", at, step, first), start.dtype, shape=[count])


@operator("ConstantOfShape", since=9, types={"T1": ("int64",)})
def constant_of_shape(b: Builder, shape: Tensor, *, value: onnx.TensorProto | None = None) -> Tensor:
    dims = b.ints(shape, "shape") or []
    if any(d < 0 for d in dims):
        b.invalid(f"shape {dims} has a negative size")
    if math.prod(d or 1 for d in dims) >= 1 << 60:  # numpy also counts the bytes of an empty array's strides
        b.invalid(f"shape {dims} is of no array: its strides have more than 63 bits")
    if math.prod(dims) >= LARGEST:
        b.decline(f"a result of shape {dims}; the kernels take 0 to 2**31 - 1 elements")
    fill = np.zeros(1, np.float32) if value is None else numpy_helper.to_array(value)
    dtype = dtypes.from_onnx(value.data_type) if value is not None else FLOAT32
    if dtype is None:
        b.decline(f"no kernel makes {fill.dtype}")
    return b.constant(fill.reshape(-1)[:1].reshape(())).expand(tuple(dims))


_LONGEST_WINDOW = 1 << 26
_SINGLE_WINDOWS = {
    # coefficients of 1, cos and cos of twice the angle
    "HannWindow": (0.5, -0.5, 0.0),
    "HammingWindow": (25 / 46, -21 / 46, 0.0),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


def _declare_window(op_type: str, terms: tuple[float, float, float]) -> None:
    def lower(b: Builder, size: Tensor, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
        count = int(fixed(b.number(size, "size"), "a window is a constant"))
        if count < 0:
            b.invalid(f"a window of {count} samples")
        if count > _LONGEST_WINDOW:
            b.decline(f"a window of {count} samples, expected up to {_LONGEST_WINDOW}")
        made = numeric(b, output_datatype, FLOAT32)
        if made.name not in SINGLE and made.name != "float64":
            b.decline(f"a window of {made}, expected a float type")
        angle = 2 * np.pi * np.arange(count) / max(count if periodic else count - 1, 1)
        values = terms[0] + terms[1] * np.cos(angle) + terms[2] * np.cos(2 * angle)
        return b.constant(values.astype(made.numpy))

    lower.__name__ = op_type.lower()
    operator(op_type, types={"T1": every(op_type, "T1", ("int32", "int64"))})(lower)


for _name, _terms in _SINGLE_WINDOWS.items():
    _declare_window(_name, _terms)


@operator("MelWeightMatrix", types={"T1": ("int32", "int64"), "T2": every("MelWeightMatrix", "T2", FLOATING)})
def mel_weight_matrix(
    b: Builder,
    num_mel_bins: Tensor,
    dft_length: Tensor,
    sample_rate: Tensor,
    lower_edge_hertz: Tensor,
    upper_edge_hertz: Tensor,
    *,
    output_datatype: int = 1,
) -> Tensor:
    """Triangular filters over the spectrum's bins, spaced evenly in mels (2595 log10(1 + f / 700))."""
    bins, length, rate = (
        int(fixed(b.number(t, what), "the matrix is a constant"))
        for t, what in ((num_mel_bins, "num_mel_bins"), (dft_length, "dft_length"), (sample_rate, "sample_rate"))
    )
    edges = [
        float(b.number(t, what))
        for t, what in ((lower_edge_hertz, "lower_edge_hertz"), (upper_edge_hertz, "upper_edge_hertz"))
    ]
    made = numeric(b, output_datatype, FLOAT32)
    if rate < 1 or length < 1:
        b.invalid(f"{length} samples at {rate} Hz, expected at least 1 of each")
    low, high = (2595 * math.log10(1 + e / 700) for e in edges)
    mels = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    centres = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(np.int64)
    if bins < 1 or centres.min() < 0 or centres.max() > length // 2:
        b.invalid(f"{bins} bins from {edges[0]} to {edges[1]} Hz lie outside of {length} samples at {rate} Hz")
    matrix = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        lower, centre, upper = centres[i : i + 3]
        if centre == lower:
            matrix[centre, i] = 1
        else:
            rising = np.arange(lower, centre + 1)
            matrix[rising, i] = (rising - lower) / (centre - lower)
        if upper > centre:
            falling = np.arange(centre, upper)
            matrix[falling, i] = (upper - falling) / (upper - centre)
    return b.constant(matrix.astype(made.numpy))


operator("Trilu", domain=MICROSOFT, types={"x": every("Trilu"), "k": ("int64",)})(trilu)


@operator("Range", domain=MICROSOFT, types={"start limit delta": ARITHMETIC})
def range_from_one(b: Builder, start: Tensor, limit: Tensor, delta: Tensor | None = None) -> Tensor:
    return range_(b, start, limit, b.full((), 1, start.dtype) if delta is None else delta)
