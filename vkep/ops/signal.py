"""Fourier transforms.

A transform is a product with the Fourier matrix; a long one is split into products with short ones (Cooley and Tukey, "An
Algorithm for the Machine Calculation of Complex Fourier Series", 1965). Complex numbers are [..., 2], as in ONNX.
"""

from __future__ import annotations

import math

import numpy as np

from vkep.dtypes import FLOAT32
from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import FLOATING
from vkep.ops.contraction import matrix_product
from vkep.ops.gather import padded
from vkep.ops.generators import positions
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.registry import FLOATS, INDICES, operator
from vkep.sizes import fixed, serves_others, whole

_DOUBLES = (*FLOATS, "float64")

#: largest length of one product, and the largest where the length has no factors
_SHORT, _LONGEST = 128, 4096


def fourier(b: Builder, x: Tensor, inverse: bool = False) -> Tensor:
    """The unscaled transform [rows, n, 2] along axis 1 of float32 or float64 ``x`` [rows, n, 1 (real) or 2 (complex)]."""
    if serves_others(x.shape[1]) and x.dtype == FLOAT32 and x.shape[1] <= _SHORT:  # each run makes the matrix
        return _multiplied(b, x, _matrix(b, x.shape[1], x.shape[2], inverse))
    rows, n, parts = x.shape[0], int(fixed(x.shape[1], "the transform's factors are constants")), x.shape[2]
    if n <= _SHORT:
        return _product(b, x, inverse)
    factors = [f for f in range(2, _SHORT + 1) if n % f == 0]
    if not factors:
        if n > _LONGEST:
            b.decline(f"a transform of length {n}, which has no factor up to {_SHORT}")
        return _product(b, x, inverse)
    # with j = j1 * after + j2 and k = k1 + first * k2: transforms over j1, a rotation by j2 * k1 / n, transforms over j2
    first = min(factors, key=lambda f: abs(math.log(f * f / n)))
    after = n // first
    columns = b.reshape(x, (rows, first, after, parts)).transpose((0, 2, 1, 3))
    inner = _product(b, b.reshape(columns, (rows * after, first, parts)), inverse)
    angle = (2 if inverse else -2) * np.pi / n * np.outer(np.arange(after), np.arange(first))
    cos = b.constant(np.cos(angle)[..., None].astype(x.dtype.numpy))
    sin = b.constant(np.stack([-np.sin(angle), np.sin(angle)], -1).astype(x.dtype.numpy))
    inner = b.reshape(inner, (rows, after, first, 2))
    turned = b.pointwise(lambda x, c, y, s: x * c + y * s, inner, cos, inner.slice(3, 1, 2, -1), sin)
    outer = fourier(b, b.reshape(turned.transpose((0, 2, 1, 3)), (rows * first, after, 2)), inverse)
    return b.reshape(b.reshape(outer, (rows, first, after, 2)).transpose((0, 2, 1, 3)), (rows, n, 2))


def _wide(b: Builder, x: Tensor) -> Tensor:
    return x if x.dtype.name == "float64" else b.cast(x, FLOAT32)


def _product(b: Builder, x: Tensor, inverse: bool) -> Tensor:
    n, parts = int(x.shape[1]), int(x.shape[2])
    # take the angle's index modulo n first: it keeps long transforms accurate
    angle = (2 if inverse else -2) * np.pi / n * (np.outer(np.arange(n), np.arange(n)) % n)
    cos, sin = np.cos(angle), np.sin(angle)
    of_real = np.stack([cos, sin], -1)  # [j, k, part of the result]
    matrix = of_real[:, None] if parts == 1 else np.stack([of_real, np.stack([-sin, cos], -1)], 1)
    return _multiplied(b, x, b.constant(matrix.reshape(n * parts, n * 2).astype(x.dtype.numpy)))


def _multiplied(b: Builder, x: Tensor, matrix: Tensor) -> Tensor:
    rows, n, parts = x.shape
    return b.reshape(matrix_product(b, b.reshape(x, (rows, n * parts)), matrix), (rows, n, 2))


def _matrix(b: Builder, n: int, parts: int, inverse: bool) -> Tensor:
    """The Fourier matrix for a length that is a size, float32 [n * parts, n * 2]."""
    at = positions(b, n)
    [j, k, modulus] = b.reads(b.reshape(at, (n, 1, 1, 1)), b.reshape(at, (1, 1, n, 1)), n)
    angle = b.expr("mul", fn.cast(j * k % modulus, "float"), (2 if inverse else -2) * math.pi / n)
    cos, sin = fn.cos(angle), fn.sin(angle)
    made = b.empty(FLOAT32, (n, parts, n, 2))
    for part, row in enumerate([(cos, sin), (-sin, cos)][: int(parts)]):
        for column, value in enumerate(row):
            b.store(value, FLOAT32, out=made.slice(1, part, 1).slice(3, column, 1))
    return b.reshape(made, (n * parts, n * 2))


def _fitted(b: Builder, x: Tensor, axis: int, length: int) -> Tensor:
    """``x`` cropped or zero-padded to ``length`` along ``axis``."""
    if x.shape[axis] >= length:
        return x.slice(axis, 0, length)
    ends = [length - d if i == axis else 0 for i, d in enumerate(x.shape)]
    return padded(b, x, [0] * x.rank, ends)


def transformed(b: Builder, x: Tensor, axis: int, length: int | None, inverse: bool, onesided: bool) -> Tensor:
    """The Fourier transform along an axis, as DFT specifies it."""
    if x.rank < 2 or x.shape[-1] not in (1, 2) or axis == x.rank - 1:
        b.invalid(
            f"a transform along axis {axis} of shape {x.shape}, whose last axis holds the real and imaginary parts"
        )
    if length is None:
        length = 2 * (x.shape[axis] - 1) if inverse and onesided else x.shape[axis]
    if length < 0 or (not length and onesided):
        b.invalid(f"a transform of length {length}")
    if not length:
        return b.empty(x.dtype, [*(0 if i == axis else d for i, d in enumerate(x.shape[:-1])), 2])
    dtype = x.dtype
    bins = length // 2 + 1
    x = _fitted(b, _wide(b, x), axis, bins if inverse and onesided else length)
    order = [*(i for i in range(x.rank - 1) if i != axis), axis, x.rank - 1]
    lead = [x.shape[i] for i in order[:-2]]
    rows = b.reshape(x.transpose(order), (math.prod(lead), x.shape[axis], x.shape[-1]))
    if inverse and onesided:
        rows = _two_sided(b, rows, length)
    result = fourier(b, rows, inverse)
    if inverse:
        if onesided:
            result = result.slice(2, 0, 1)
        result = b.pointwise("mul", result, 1.0 / length)
    elif onesided:
        result = result.slice(1, 0, bins)
    result = b.reshape(result, (*lead, *result.shape[1:]))
    back = [order.index(i) for i in range(x.rank)]
    return b.cast(result.transpose(back), dtype)


def _two_sided(b: Builder, x: Tensor, length: int) -> Tensor:
    """The whole spectrum of a real signal from its first half: the other half is the conjugate, in reverse order."""
    rows, bins, parts = x.shape
    out = b.empty(x.dtype, (rows, length, 2))
    if parts == 1:
        b.decline("an inverse transform of a real spectrum to a real signal")
    b.copy(x, out=out.slice(1, 0, bins))
    rest = length - bins
    if rest:
        sign = b.constant(np.array([1, -1], x.dtype.numpy))
        b.pointwise("mul", x.slice(1, rest, rest, -1), sign, out=out.slice(1, bins, rest))
    return out


def _scalar(b: Builder, t: Tensor | None, what: str) -> int | None:
    return None if t is None else int(fixed(b.number(t, what), "a transform's length and axis are constants"))


def _length(b: Builder, t: Tensor | None) -> int | None:
    return None if t is None else whole(b.number(t, "dft_length"))


@operator("DFT", since=17, until=19, types={"T1": FLOATING, "T2": INDICES})
def dft_17(
    b: Builder, x: Tensor, dft_length: Tensor | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    length = _length(b, dft_length)
    return transformed(b, x, b.axis(axis, x.rank), length, bool(inverse), bool(onesided))


@operator("DFT", since=20, types={"T1": FLOATING, "T2": INDICES})
def dft(
    b: Builder,
    x: Tensor,
    dft_length: Tensor | None = None,
    axis: Tensor | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    where = _scalar(b, axis, "axis")
    length = _length(b, dft_length)
    return transformed(b, x, b.axis(-2 if where is None else where, x.rank), length, bool(inverse), bool(onesided))


@operator("STFT", types={"T1": FLOATING, "T2": INDICES})
def stft(
    b: Builder,
    signal: Tensor,
    frame_step: Tensor,
    window: Tensor | None = None,
    frame_length: Tensor | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    step, length = _scalar(b, frame_step, "frame_step"), _scalar(b, frame_length, "frame_length")
    if length is None:
        length = window.shape[0] if window is not None else signal.shape[1]
    if signal.rank == 2:
        signal = b.reshape(signal, (*signal.shape, 1))
    batch, samples, parts = signal.shape
    if not step or step < 0 or length < 1 or samples < length:
        b.decline(f"frames of {length} samples every {step} of {samples}")
    frames = (samples - length) // step + 1
    rows, along, within = signal.strides
    spread = signal.view((batch, frames, length, parts), (rows, along * step, along, within))
    framed = _wide(b, spread)
    if window is not None:
        if window.shape[0] != length:
            b.decline(f"a window of {window.shape[0]} samples for frames of {length}")
        factors = b.reshape(_wide(b, window), (length, 1))
        framed = b.pointwise("mul", framed, factors)
    result = fourier(b, b.reshape(framed, (batch * frames, length, parts)))
    bins = length // 2 + 1 if onesided else length
    return b.cast(b.reshape(result.slice(1, 0, bins), (batch, frames, bins, 2)), signal.dtype)


def _declare_complex(op_type: str, conjugate: bool) -> None:
    def lower(b: Builder, x: Tensor, y: Tensor) -> Tensor:
        if not x.rank or not y.rank or x.shape[-1] != 2 or y.shape[-1] != 2:
            b.invalid(f"numbers of shape {list(x.shape)} and {list(y.shape)}; the last axis is two parts")
        out = b.empty(x.dtype, np.broadcast_shapes(x.shape, y.shape))
        xr, xi, yr, yi = b.reads(*[t.slice(t.rank - 1, k, 1) for t in (x, y) for k in (0, 1)])
        values = (xr * yr + xi * yi, xi * yr - xr * yi) if conjugate else (xr * yr - xi * yi, xr * yi + xi * yr)
        for k, value in enumerate(values):
            b.store(value, x.dtype, out=out.slice(out.rank - 1, k, 1))
        return out

    operator(op_type, domain=MICROSOFT, types={"x y": _DOUBLES})(lower)


_declare_complex("ComplexMul", conjugate=False)


_declare_complex("ComplexMulConj", conjugate=True)


@operator("Rfft", domain=MICROSOFT, types={"x": FLOATS})
def rfft(b: Builder, x: Tensor, *, normalized: int = 0, onesided: int = 1, signal_ndim: int = 1) -> Tensor:
    axes = _signal_axes(b, x.rank, signal_ndim, normalized, onesided)
    y = transformed(b, b.reshape(x, (*x.shape, 1)), axes[-1], None, False, True)
    for axis in axes[:-1]:
        y = transformed(b, y, axis, None, False, False)
    return y


@operator("Irfft", domain=MICROSOFT, types={"x": FLOATS})
def irfft(b: Builder, x: Tensor, *, normalized: int = 0, onesided: int = 1, signal_ndim: int) -> Tensor:
    axes = _signal_axes(b, x.rank - 1, signal_ndim, normalized, onesided)
    for axis in axes[:-1]:
        x = transformed(b, x, axis, None, True, False)
    y = transformed(b, x, axes[-1], None, True, True)
    return b.reshape(y, y.shape[:-1])


def _signal_axes(b: Builder, rank: int, count: int, normalized: int, onesided: int) -> range:
    if normalized or not onesided or not 1 <= count <= min(rank, 3):
        b.invalid(
            f"signal_ndim {count} of {rank} axes, normalized {normalized}, onesided {onesided}; expected 1 to 3, 0 and 1"
        )
    return range(rank - count, rank)
