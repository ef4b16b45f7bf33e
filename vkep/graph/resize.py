"""The axes of Resize and Upsample as ONNX defines them: sizes, scales, and the region of interest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from vkep.errors import Decline, InvalidNode
from vkep.sizes import hint, is_size

#: whole numbers below it are float32's
_EXACT = 1 << 24


@dataclass(frozen=True)
class Resized:
    """The result's shape, and the exact scale of each axis, before its size is rounded."""

    shape: tuple[int, ...]
    scales: tuple[Fraction, ...]


def resolve_resize(
    shape: Sequence[int],
    scales: Sequence[float] | None,
    sizes: Sequence[int] | None,
    axes: Sequence[int] | None = None,
    policy: str = "stretch",
) -> Resized:
    """The result for an input of ``shape``; ``sizes`` or ``scales`` has an entry for each of ``axes`` (all axes, if
    None). ``policy`` is keep_aspect_ratio_policy (ONNX Resize).

    Raises `InvalidNode` for sizes or scales that do not fit the input, `Decline` for an empty input.
    """
    out, factors = list(shape), [Fraction(1)] * len(shape)
    chosen = _chosen(axes, len(shape))
    if sizes is not None and scales is not None:
        raise InvalidNode(f"both sizes {list(sizes)} and scales {list(scales)} are given")
    if sizes is not None:
        _check_count("sizes", sizes, chosen)
        if not all(shape[a] for a in chosen):
            raise Decline(f"sizes {list(sizes)} for an empty input {tuple(shape)}")
        ratios = [_ratio(size, shape[a]) for size, a in zip(sizes, chosen, strict=True)]
        if policy in ("not_larger", "not_smaller"):
            one = min(ratios) if policy == "not_larger" else max(ratios)
            ratios = [one] * len(chosen)
            sizes = [math.floor(float(one) * shape[a] + 0.5) for a in chosen]
        elif policy != "stretch":
            raise InvalidNode(f"keep_aspect_ratio_policy {policy!r}")
        for a, size, ratio in zip(chosen, sizes, ratios, strict=True):
            out[a], factors[a] = size, ratio
    elif scales is not None:
        _check_count("scales", scales, chosen)
        for a, scale in zip(chosen, scales, strict=True):
            if is_size(shape[a]) and (exact := _exactly(scale)) is not None and shape[a] * exact.numerator < _EXACT:
                out[a], factors[a] = shape[a] * exact.numerator // exact.denominator, exact
                continue
            # ONNX does not define the type: float32, as in ONNX Runtime (onnx infers shapes in float64: 10 by 0.7 is 6)
            length = float(np.float32(shape[a]) * np.float32(scale))
            if not (scale > 0 and math.isfinite(length)):
                raise InvalidNode(f"a scale of {scale} for an axis of {shape[a]}")
            out[a], factors[a] = math.floor(length), Fraction(float(scale))
    else:
        raise InvalidNode("neither scales nor sizes are given")
    return Resized(tuple(out), tuple(factors))


def resolve_roi(rank: int, roi: Sequence[float], axes: Sequence[int] | None = None) -> tuple[float, ...]:
    """Starts, then ends, of all axes, from those of ``axes`` (all axes, if None). Raises `InvalidNode`."""
    chosen = _chosen(axes, rank)
    if len(roi) != 2 * len(chosen):
        raise InvalidNode(f"a roi of {len(roi)} numbers for {len(chosen)} axes, expected {2 * len(chosen)}")
    box = [0.0] * rank + [1.0] * rank
    for k, a in enumerate(chosen):
        box[a], box[rank + a] = roi[k], roi[len(chosen) + k]
    return tuple(box)


def _ratio(size: int, length: int) -> Fraction:
    if is_size(size) or is_size(length):
        ratio = Fraction(hint(size), hint(length))
        if not is_size(rest := size * ratio.denominator - length * ratio.numerator) and rest == 0:
            return ratio  # whatever the length is
        if size == length:
            return Fraction(1)
    return Fraction(int(size), int(length))


def _exactly(scale: float) -> Fraction | None:
    """The scale of an axis whose length float32 gives exactly, up to `_EXACT` / the numerator."""
    found = Fraction(float(scale)) if math.isfinite(scale) and scale > 0 else None
    return found if found is not None and max(found.numerator, found.denominator) < 1 << 12 else None


def _chosen(axes: Sequence[int] | None, rank: int) -> list[int]:
    if axes is None:
        return list(range(rank))
    if not all(-rank <= a < rank for a in axes) or len({a % rank for a in axes}) != len(axes):
        raise InvalidNode(f"axes {list(axes)} of a tensor of rank {rank}")
    return [a % rank for a in axes]


def _check_count(what: str, values: Sequence[float], chosen: Sequence[int]) -> None:
    if len(values) != len(chosen):
        raise InvalidNode(f"{len(values)} {what} for {len(chosen)} axes")
