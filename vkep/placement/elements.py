"""The number of elements of a result that a few numbers among a node's inputs decide."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

Array = np.ndarray


def _product(shape: Array) -> int:
    return math.prod(int(d) for d in shape.reshape(-1))


def _expanded(x: Array, shape: Array) -> int:
    pairs = itertools.zip_longest(reversed(x.shape), reversed(shape.reshape(-1).tolist()), fillvalue=1)
    return math.prod(int(d) if size == 1 else size for size, d in pairs)


def _padded(x: Array, pads: Array, *rest: Array) -> int:
    """``rest``: the value, and the axes, where they are given."""
    axes = range(x.ndim) if pads.size == 2 * x.ndim else rest[-1].reshape(-1).tolist() if rest else ()
    shape = list(x.shape)
    for axis, begin, end in zip(axes, pads[: pads.size // 2].tolist(), pads[pads.size // 2 :].tolist(), strict=False):
        if -x.ndim <= axis < x.ndim:
            shape[axis] = max(shape[axis] + int(begin) + int(end), 0)
    return math.prod(shape)


#: by operator, the number of elements of the result of these inputs (without absent ones)
ELEMENTS: dict[str, Callable[..., int]] = {
    # scales along an axis broadcast as numpy's do not
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), lambda x, *_: x.size),
    "Concat": lambda *parts: sum(part.size for part in parts),
    "ConstantOfShape": _product,
    "Expand": _expanded,
    "Tile": lambda x, repeats, *_: x.size * _product(repeats),
    "Pad": _padded,
    "OneHot": lambda indices, depth, _: indices.size * int(depth.reshape(-1)[0]),
    "Range": lambda start, limit, delta: int(abs((float(limit) - float(start)) / (float(delta) or 1.0))),
}
