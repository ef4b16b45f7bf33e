"""Places of the outputs of ONNX Resize on an axis of its input, and the tables of positions and weights that the kernels read.

An output's place is a fraction of integers, so that ties are rounded as the specification requires. Weights are computed in
float32 from the place's distance to each sample, whose fraction is rounded to 24 bits. For a plan of one signature the
tables are computed here; for one with sizes by kernels (``shaders/resize_offsets.comp``, ``shaders/resize_weights.comp``) that
perform the same operations: the tables are equal bit for bit on a device whose float32 addition and product round to nearest.
Specification: https://onnx.ai/onnx/operators/onnx__Resize.html.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vkep.graph.resize import Scale
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import flat_lanes, numbered
from vkep.kernels.select import Emission
from vkep.sizes import called, largest, serves_others, wholes

#: fractions are counted in parts of it
_PARTS = 1 << 24
#: the kernels' bound of the integers of a place
_BOUND = 1 << 30

RESIZE_OFFSETS = Kernel("resize_offsets.comp", reach=lambda call: {"offsets": call["total"] * 4})
RESIZE_WEIGHTS = Kernel(
    "resize_weights.comp", reach=lambda call: dict.fromkeys(("positions", "weights"), call["total"] * call["taps"] * 4)
)


@dataclass(frozen=True)
class Places:
    """Output j of ``count`` is at ``(a * j + b) / q`` on an axis of ``length`` elements."""

    a: int
    b: int
    q: int
    length: int
    count: int

    @classmethod
    def of(cls, length: int, count: int, scale: Scale, coordinates: str, span: tuple[float, float]) -> Places:
        """The places in ONNX's coordinate_transformation_mode. ``scale`` is exact, before the result's size is rounded;
        ``span`` is the part of the axis that tf_crop_and_resize takes."""
        a, b, q = _place(length, count, scale, coordinates, span)
        common = called("gcd", a, b, q)
        return cls(a // common, b // common, q // common, length, count)

    @property
    def numbers(self) -> tuple[int, ...]:
        """All of its integers."""
        return self.a, self.b, self.q, self.length, self.count

    @property
    def fits(self) -> bool:
        """Whether the kernels can compute with these integers."""
        return all(-_BOUND < number < _BOUND for number in self.numbers)

    @property
    def plain(self) -> Places:
        """The same with plain numbers."""
        return Places(*map(int, self.numbers))

    def floors(self, times: int = 1, shift: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """For each output the floor of ``times * place + shift / q``, and what remains, counted in 1 / q."""
        a, b = self.a * times, self.b * times + shift
        small = abs(a) * self.count + abs(b) < 1 << 62 and self.q * _PARTS < 1 << 62
        numerators = a * np.arange(self.count, dtype=np.int64 if small else object) + b
        floors = numerators // self.q
        return np.clip(floors, -_BOUND, _BOUND).astype(np.int64), numerators - floors * self.q

    def nearest(self, mode: str, shrinks: bool) -> np.ndarray:
        """int64 [count]: the nearest position by ``mode``, one of ONNX's nearest_mode or "outwards"."""
        doubled = Places(self.a, self.b, 2 * self.q, self.length, self.count)
        return np.clip(doubled.floors(2, self.shift(mode, shrinks))[0], 0, self.length - 1)

    def shift(self, mode: str, shrinks: bool) -> int:
        """The nearest position is the floor of ``(2 * (a * j + b) + shift) / (2 * q)``."""
        if mode == "ceil" or (mode == "outwards" and shrinks):
            return 2 * (self.q - 1)
        return {"round_prefer_floor": self.q - 1, "round_prefer_ceil": self.q}.get(mode, 0)

    @property
    def outside(self) -> np.ndarray:
        """bool [count]: whether an output's place is outside of the axis."""
        floors, rest = self.floors()
        last = self.length - 1
        return np.asarray((floors < 0) | (floors > last) | ((floors == last) & (rest != 0)), bool)


def _place(length: int, count: int, scale: Scale, coordinates: str, span: tuple[float, float]) -> tuple[int, int, int]:
    n, d = scale
    if coordinates == "align_corners":
        return length - 1, 0, largest(count - 1, 1)
    if coordinates == "tf_crop_and_resize":
        (start, over), (end, other) = (x.as_integer_ratio() for x in span)
        common = max(over, other)  # both are powers of two
        start, end = start * (common // over), end * (common // other)
        if count == 1:
            return 0, (start + end) * (length - 1), 2 * common
        return (end - start) * (length - 1), start * (length - 1) * (count - 1), common * (count - 1)
    if coordinates == "pytorch_half_pixel" and count == 1:
        return 0, 0, 1
    if coordinates == "asymmetric":
        return d, 0, n
    if coordinates == "tf_half_pixel_for_nn":
        return 2 * d, d, 2 * n
    if coordinates == "half_pixel_symmetric":
        return 2 * d, (1 - count) * d + (length - 1) * n, 2 * n
    return 2 * d, d - n, 2 * n


@dataclass(frozen=True)
class Sampling:
    """How linear or cubic interpolation weighs the elements of an axis.

    ``taps`` samples, from the floor of an output's place plus ``first`` on, have the weight of their distance times
    ``shrink``; of Keys' cubic convolution with coefficient ``cubic``, or the triangle if that is None.
    """

    taps: int
    first: int
    shrink: float
    cubic: float | None
    normalized: bool  #: weights are divided by their sum
    excludes: bool  #: what is outside of the axis weighs nothing
    crops: bool  #: an output whose place is outside has -1 as its first position

    @classmethod
    def of(
        cls, scale: Scale, *, cubic: float | None, antialias: bool, exclude_outside: bool, crops: bool = False
    ) -> Sampling:
        """For ONNX's attributes. With antialias and a scale below 1 the kernel is stretched by 1 / scale."""
        n, d = scale
        radius, shrunk = 1 if cubic is None else 2, d
        if antialias:
            shrunk = n + d - largest(n, d)
        reach = -(-radius * d // shrunk)
        shrink = shrunk / d if antialias else 1.0
        return cls(2 * reach, 1 - reach, shrink, cubic, antialias or exclude_outside, exclude_outside, crops)

    @property
    def plain(self) -> Sampling:
        """The same with plain numbers."""
        return replace(self, taps=int(self.taps), first=int(self.first), shrink=float(self.shrink))

    def table(self, places: Places) -> tuple[np.ndarray, np.ndarray]:
        """(positions int32, weights float32), both [count, taps]: without samples that weigh nothing for all outputs."""
        down, rest = places.floors()
        fraction = ((rest * _PARTS + places.q // 2) // places.q).astype(np.float32) / np.float32(_PARTS)
        steps = self.first + np.arange(self.taps)
        positions = down[:, None] + steps
        weights = self._weight(np.abs((steps.astype(np.float32) - fraction[:, None]) * np.float32(self.shrink)))
        last = places.length - 1
        if self.excludes:
            weights[(positions < 0) | (positions > last)] = 0
        if self.normalized:
            total = np.zeros(places.count, np.float32)
            for column in weights.T:  # in the kernel's order
                total += column
            weights /= np.where(total == 0, np.float32(1), total)[:, None]
        positions = np.clip(positions, 0, last)
        used = np.any(weights != 0, axis=0)
        used[0] |= not used.any()
        positions, weights = positions[:, used], weights[:, used]
        if self.crops:
            positions[places.outside, 0] = -1
        return positions.astype(np.int32), weights

    def _weight(self, d: np.ndarray) -> np.ndarray:
        """The weight of samples at distances ``d``, float32."""
        if self.cubic is None:
            return np.clip(np.float32(1) - d, np.float32(0), np.float32(1))
        a, one = np.float32(self.cubic), np.float32(1)
        two, three, four, five, eight = (np.float32(k) for k in (2, 3, 4, 5, 8))
        near = ((a + two) * d - (a + three)) * d * d + one
        far = ((a * d - five * a) * d + eight * a) * d - four * a
        return np.where(d <= 1, near, np.where(d < 2, far, np.float32(0)))


def on_device(numbers: Sequence[int], places: Sequence[Places]) -> bool:
    """Whether a plan for these numbers needs tables that kernels make: some depend on sizes. Where a place has integers
    beyond the kernels' bound, the sizes keep their values."""
    return any(map(serves_others, numbers)) and all(p.fits for p in places)


def offsets(
    e: Emission, axes: Sequence[tuple[Places, int]], mode: str, shrinks: Sequence[bool], crops: bool
) -> tuple[Any, list[int], list[KernelCall]]:
    """For each axis and its stride: the offsets of the nearest elements (-1 where ``crops`` and the place is outside), one axis
    after the other in one table; where each begins, and the dispatches that make them."""
    firsts = [0, *itertools.accumulate([places.count for places, _ in axes])]
    numbers = [number for places, stride in axes for number in (*places.numbers, stride)]
    if not on_device(numbers, [places for places, _ in axes]):
        parts = []
        for (places, stride), shrink in zip(axes, shrinks, strict=True):
            at = places.plain.nearest(mode, shrink) * int(stride)
            parts.append(np.where(places.plain.outside, -1, at) if crops else at)
        return e.target.constant(np.concatenate(parts).astype(np.int32)), list(map(int, firsts[:-1])), []
    table = e.target.scratch("int32", (firsts[-1],))
    shifts = [places.shift(mode, shrink) for (places, _), shrink in zip(axes, shrinks, strict=True)]
    call = RESIZE_OFFSETS.call(
        **flat_lanes(e.caps, firsts[-1]),
        operands={"offsets": table},
        params={
            "total": firsts[-1],
            **numbered("first", firsts[:-1], 0),
            **numbered("shift", shifts, 0),
            **numbered("stride", [stride for _, stride in axes], 0),
            **{
                name: value
                for field in ("a", "b", "q", "length")
                for name, value in numbered(field, [getattr(places, field) for places, _ in axes], 1).items()
            },
        },
        spec={"RANK": len(axes), "CROPS": int(crops)},
    )
    return table, firsts[:-1], [call]


def weights(e: Emission, places: Places, sampling: Sampling) -> tuple[Any, Any, int, list[KernelCall]]:
    """The tables of an axis, positions and weights; how many samples an output has, and the dispatches that make them."""
    if not on_device((*places.numbers, sampling.taps), [places]):
        positions, made = sampling.plain.table(places.plain)
        return e.target.constant(positions), e.target.constant(made), positions.shape[1], []
    shape = wholes((places.count, sampling.taps))
    tables = {name: e.target.scratch(kind, shape) for name, kind in (("positions", "int32"), ("weights", "float32"))}
    call = RESIZE_WEIGHTS.call(
        **flat_lanes(e.caps, places.count),
        operands=tables,
        params={
            "total": places.count,
            "a": places.a,
            "b": places.b,
            "q": places.q,
            "size": places.length,
            "taps": sampling.taps,
            "first": sampling.first,
            "shrink": sampling.shrink,
            "cubic": sampling.cubic or 0.0,
        },
        spec={
            "CUBIC": int(sampling.cubic is not None),
            "NORMALIZED": int(sampling.normalized),
            "EXCLUDES": int(sampling.excludes),
            "CROPS": int(sampling.crops),
        },
    )
    return tables["positions"], tables["weights"], sampling.taps, [call]
