"""The axes of Resize and Upsample as ONNX defines them: sizes, scales, and the region of interest."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from vkep.errors import InvalidNode
from vkep.sizes import called, is_size

#: whole numbers below it are float32's
_EXACT = 1 << 24
#: the largest denominator of a small fraction, and integers that are large (kernels take numbers twice as large)
_SMALL, _LARGE = 1 << 12, 1 << 29
#: numerator and denominator
Scale = tuple[int, int]


@dataclass(frozen=True)
class Resized:
    """The result's shape, and the exact scale of each axis, before its size is rounded."""

    shape: tuple[int, ...]
    scales: tuple[Scale, ...]


def resolve_resize(
    shape: Sequence[int],
    scales: Sequence[float] | None,
    sizes: Sequence[int] | None,
    axes: Sequence[int] | None = None,
    policy: str = "stretch",
) -> Resized:
    """The result for an input of ``shape``; ``sizes`` or ``scales`` has an entry for each of ``axes`` (all axes, if
    None). ``policy`` is keep_aspect_ratio_policy (ONNX Resize).

    Raises `InvalidNode` for sizes or scales that do not fit the input.
    """
    out, factors = list(shape), [(1, 1)] * len(shape)
    chosen = _chosen(axes, len(shape))
    if sizes is not None and scales is not None:
        raise InvalidNode(f"both sizes {list(sizes)} and scales {list(scales)} are given")
    if sizes is not None:
        _check_count("sizes", sizes, chosen)
        if any(size < 1 if shape[a] else size for size, a in zip(sizes, chosen, strict=True)):
            raise InvalidNode(
                f"sizes {list(sizes)} for axes of {[shape[a] for a in chosen]}; only an axis of 0 stays 0"
            )
        sizes, chosen = [size for size in sizes if size], [a for a in chosen if shape[a]]
        ratios = [(size, shape[a]) for size, a in zip(sizes, chosen, strict=True)]
        if policy in ("not_larger", "not_smaller") and ratios:
            one = ratios[0]
            for ratio in ratios[1:]:
                if (ratio[0] * one[1] < one[0] * ratio[1]) == (policy == "not_larger"):
                    one = ratio
            ratios = [one] * len(chosen)
            sizes = [(2 * one[0] * shape[a] + one[1]) // (2 * one[1]) for a in chosen]  # halves are rounded up
        elif policy not in ("stretch", "not_larger", "not_smaller"):
            raise InvalidNode(f"keep_aspect_ratio_policy {policy!r}")
        for a, size, ratio in zip(chosen, sizes, ratios, strict=True):
            out[a], factors[a] = size, ratio
    elif scales is not None:
        if policy != "stretch":
            raise InvalidNode(f"keep_aspect_ratio_policy {policy!r} with scales, expected 'stretch'")
        _check_count("scales", scales, chosen)
        for a, scale in zip(chosen, scales, strict=True):
            if not (scale > 0 and math.isfinite(scale)):
                raise InvalidNode(f"a scale of {scale} for an axis of {shape[a]}")
            n, d = float(scale).as_integer_ratio()
            factors[a] = _fraction(n, d)
            if is_size(shape[a]) and max(n, d) < 1 << 12 and shape[a] * n < _EXACT:
                out[a] = shape[a] * n // d
                continue
            try:
                # ONNX does not define the type: float32, as in ONNX Runtime (onnx infers shapes in float64: 10 by 0.7 is 6)
                out[a] = called("scaled", shape[a], n, d)
            except OverflowError:
                raise InvalidNode(f"a scale of {scale} for an axis of {shape[a]}") from None
    else:
        raise InvalidNode("neither scales nor sizes are given")
    return Resized(tuple(out), tuple(factors))


def _fraction(n: int, d: int) -> Scale:
    """The scale, or the small fraction that it is float32's nearest number of, where its integers are too large for kernels that
    make tables of positions for any size."""
    small = Fraction(n, d).limit_denominator(_SMALL)
    rounded = struct.unpack("<f", struct.pack("<f", small.numerator / small.denominator))[0]
    return (small.numerator, small.denominator) if max(n, d) >= _LARGE and rounded == n / d else (n, d)


def resolve_roi(rank: int, roi: Sequence[float], axes: Sequence[int] | None = None) -> tuple[float, ...]:
    """Starts, then ends, of all axes, from those of ``axes`` (all axes, if None). Raises `InvalidNode`."""
    chosen = _chosen(axes, rank)
    if len(roi) != 2 * len(chosen):
        raise InvalidNode(f"a roi of {len(roi)} numbers for {len(chosen)} axes, expected {2 * len(chosen)}")
    box = [0.0] * rank + [1.0] * rank
    for k, a in enumerate(chosen):
        box[a], box[rank + a] = roi[k], roi[len(chosen) + k]
    return tuple(box)


def _chosen(axes: Sequence[int] | None, rank: int) -> list[int]:
    if axes is None:
        return list(range(rank))
    if not all(-rank <= a < rank for a in axes) or len({a % rank for a in axes}) != len(axes):
        raise InvalidNode(f"axes {list(axes)} of a tensor of rank {rank}")
    return [a % rank for a in axes]


def _check_count(what: str, values: Sequence[float], chosen: Sequence[int]) -> None:
    if len(values) != len(chosen):
        raise InvalidNode(f"{len(values)} {what} for {len(chosen)} axes")
