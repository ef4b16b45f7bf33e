"""Statistics of weights: range, mean, deviation, zeros and a histogram, of a sample where a weight is large."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vkep import dtypes
from vkep.graph.weights import Weight

#: elements that are read of a larger weight, in blocks that are spread evenly
_SAMPLE, _BLOCKS = 1 << 16, 16
_BINS = 24
#: kinds of numpy's types that have no order: objects, texts, complex numbers
_NO_NUMBERS = "OUSc"


def weight_statistics(weight: Weight) -> dict[str, Any]:
    """The statistics of a weight: ``min``, ``max``, ``mean``, ``std``, ``zeros`` (a share) and ``histogram`` (counts in bins
    of equal width from min to max) of the finite elements; ``nonfinite`` (a count); ``elements`` that were read. Empty for a
    weight without elements or of texts. Raises `InvalidModelError` where it cannot be read."""
    sample = _sample(weight)
    if not sample.size or sample.dtype.kind in _NO_NUMBERS:
        return {}
    numbers = sample.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    found: dict[str, Any] = {"elements": int(sample.size), "nonfinite": int(sample.size - finite.size)}
    if not finite.size:
        return found
    low, high = float(finite.min()), float(finite.max())
    spread = high - low
    with np.errstate(over="ignore"):  # of squares
        found |= {"mean": float(finite.mean()), "std": float(finite.std())}
    has_bins = _BINS * np.spacing(max(abs(low), abs(high))) < spread < math.inf
    counts = np.histogram(finite, _BINS, (low, high))[0].tolist() if has_bins else [int(finite.size)]
    zeros = float(np.count_nonzero(finite == 0) / finite.size)
    return found | {"min": low, "max": high, "zeros": zeros, "histogram": counts}


def _sample(weight: Weight) -> np.ndarray:
    """All elements, or a part of a large weight; of one in a file only that part is read."""
    count, dtype, stored = math.prod(weight.shape), dtypes.from_onnx(weight.elem_type), weight.stored
    if stored is None or dtype is None or count <= _SAMPLE:
        flat = weight.array().reshape(-1)
        return flat[:: max(1, -(-flat.size // _SAMPLE))]
    length = _SAMPLE // _BLOCKS
    out = np.empty((_BLOCKS, length), dtype.numpy)
    for k, block in enumerate(out):
        stored.read_into(block.view(np.uint8), (count - length) * k // (_BLOCKS - 1) * dtype.itemsize)
    return out.reshape(-1)
