"""Resize, where its coordinates are TOSA's: out * d / n + offset / n, rounded or interpolated between two pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from vkep.errors import Decline
from vkep.graph.attributes import ResizeAttributes
from vkep.graph.resize import Resized, resolve_resize
from vkep.tosa.graph import TosaBuilder, TosaTensor
from vkep.tosa.ops import quantized
from vkep.tosa.ops.convolution import NHWC
from vkep.tosa.registry import FLOATS, constant_of, tosa_operator

_LARGEST = 1 << 11  # TOSA's limit of a scale's numerator
_TYPES = (*FLOATS, "int8")


@dataclass(frozen=True)
class _Axis:
    """out * d / n + offset / n is the position in the input; ``border`` follows from the sizes."""

    n: int
    d: int
    offset: int
    size: int
    out: int

    @property
    def border(self) -> int:
        return self.d * (self.out - 1) - (self.size - 1) * self.n + self.offset

    def times(self, k: int) -> _Axis:
        return _Axis(self.n * k, self.d * k, self.offset * k, self.size, self.out)

    def moved(self, by: int) -> _Axis:
        return _Axis(self.n, self.d, self.offset + by, self.size, self.out)

    def check(self) -> None:
        """TOSA's limits (RESIZE, section 2.12 of the specification)."""
        n, d = self.n, self.d
        if not 0 < n <= _LARGEST or not 0 < d < 16 * n:
            raise Decline(f"a scale of {n} / {d}, beyond TOSA's RESIZE")
        if not -n <= self.offset < 16 * n or not -16 * n <= self.border < n:
            raise Decline(f"an offset of {self.offset} / {n} or a border of {self.border} / {n}, beyond TOSA's RESIZE")


def _place(size: int, out: int, scale: Fraction, coordinates: str) -> _Axis:
    """The mapping of ``out`` pixels to ``size`` in ONNX's coordinate_transformation_mode."""
    if coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and out > 1):
        n, d, offset = 2 * scale.numerator, 2 * scale.denominator, scale.denominator - scale.numerator
    elif coordinates == "asymmetric" or coordinates == "pytorch_half_pixel" or (out == 1 and size == 1):
        n, d, offset = scale.numerator, scale.denominator, 0
    elif coordinates == "align_corners":
        length = scale * size  # ONNX's length_resized, which may have a fraction
        ratio = (length - 1) / (size - 1) if size > 1 and length > 1 and out > 1 else Fraction(1)
        n, d, offset = ratio.numerator, ratio.denominator, 0
    else:
        raise Decline(f"coordinate_transformation_mode {coordinates!r}")
    common = math.gcd(n, d, offset)
    return _Axis(n // common, d // common, offset // common, size, out)


def _nearest(axis: _Axis, mode: str) -> _Axis:
    """TOSA rounds halves up: other roundings shift the coordinates by a half, and by less than the smallest step."""
    if mode == "round_prefer_ceil":
        return axis
    axis = axis.times(4)  # a coordinate is now a multiple of 4 / n
    if mode == "round_prefer_floor":
        return axis.moved(-1)
    if mode == "floor":
        return axis.moved(-(axis.n // 2))
    if mode == "ceil":
        return axis.moved(axis.n // 2 - 1)
    raise Decline(f"nearest_mode {mode!r}")


def _resized(b: TosaBuilder, x: TosaTensor, to: Resized, mode: str, coordinates: str, nearest: str) -> TosaTensor:
    shape, scales = to.shape, to.scales
    if x.rank == 3:
        lifted = b.reshape(x, (*x.shape[:2], 1, x.shape[2]))
        full = Resized((*shape[:2], 1, shape[2]), (*scales[:2], (1, 1), scales[2]))
        return b.reshape(_resized(b, lifted, full, mode, coordinates, nearest), shape)
    if x.rank != 4 or tuple(shape[:2]) != x.shape[:2]:
        b.decline(f"{x.shape} resized to {shape}; TOSA's RESIZE has two axes of images")
    axes = [_place(x.shape[i], shape[i], Fraction(*scales[i]), coordinates) for i in (2, 3)]
    if mode == "nearest":
        axes = [_nearest(axis, nearest) for axis in axes]
    elif mode != "linear" or x.dtype not in FLOATS:
        b.decline(f"mode {mode!r} of {x.dtype}")
    for axis in axes:
        axis.check()
    y, x_axis = axes
    value = b.op(
        "resize",
        [
            b.ordered(x, NHWC),
            b.shape_value([y.n, y.d, x_axis.n, x_axis.d]),
            b.shape_value([y.offset, x_axis.offset]),
            b.shape_value([y.border, x_axis.border]),
        ],
        (x.shape[0], shape[2], shape[3], x.shape[1]),
        mode="#tosa.resize_mode<NEAREST_NEIGHBOR>" if mode == "nearest" else "#tosa.resize_mode<BILINEAR>",
    )
    made = b.from_order(value, NHWC)
    known = quantized.same_everywhere(x)
    if known is not None and mode == "nearest":
        moved = _resized(b, known.ints, to, mode, coordinates, nearest)
        return quantized.alike(made, known, moved)
    return made


def _by_scales(x: TosaTensor, scales: TosaTensor | None, axes: Sequence[int] | None = None) -> Resized:
    """Given scales are float32: find the fractions that they approximate."""
    to = resolve_resize(x.shape, [float(s) for s in constant_of(scales, "the scales").reshape(-1)], None, axes)
    return replace(to, scales=tuple(Fraction(*s).limit_denominator(_LARGEST).as_integer_ratio() for s in to.scales))


@tosa_operator("Upsample", types=_TYPES, since=9, until=9)
def upsample(b: TosaBuilder, x: TosaTensor, scales: TosaTensor, *, mode: str = "nearest") -> TosaTensor:
    return _resized(b, x, _by_scales(x, scales), mode, "asymmetric", "floor")


@tosa_operator("Resize", types=_TYPES, since=10, until=10)
def resize_10(b: TosaBuilder, x: TosaTensor, scales: TosaTensor, *, mode: str = "nearest") -> TosaTensor:
    return upsample(b, x, scales, mode=mode)


@tosa_operator("Resize", types=_TYPES, since=11)
def resize(
    b: TosaBuilder,
    x: TosaTensor,
    roi: TosaTensor | None = None,
    scales: TosaTensor | None = None,
    sizes: TosaTensor | None = None,
    *,
    a: ResizeAttributes,
) -> TosaTensor:
    if a.antialias or a.exclude_outside:
        b.decline("antialias or exclude_outside")
    if sizes is not None and sizes.size:
        lengths = [int(n) for n in constant_of(sizes, "the sizes").reshape(-1)]
        to = resolve_resize(x.shape, None, lengths, a.axes, a.keep_aspect_ratio_policy)
    else:
        to = _by_scales(x, scales, a.axes)
    return _resized(b, x, to, a.mode, a.coordinate_transformation_mode, a.nearest_mode)
