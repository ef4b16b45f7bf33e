"""Coordinates of up to eight dimensions (``shaders/dims.glsl``): their arguments and their bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkep.kernels.fastdiv import magic
from vkep.kernels.kernel import KernelCall
from vkep.kernels.launch import MAX_RANK, ceil_div, numbered


def magic_dims(dims: Sequence[int]) -> dict[str, int]:
    """``dim*``, ``mul*`` and ``shift*`` of ``shaders/dims.glsl``."""
    numbers = [magic(max(d, 1)) for d in dims]
    return (
        numbered("dim", dims, 1)
        | numbered("mul", [m for m, _ in numbers], 1)
        | numbered("shift", [s for _, s in numbers], 0)
    )


def beyond_rank(rank: int) -> str:
    """Why ``dims.glsl`` does not support so many dimensions, "" where it does."""
    return f"{rank} dimensions; the kernel takes up to {MAX_RANK}" if rank > MAX_RANK else ""


def last_coordinates(call: KernelCall, rank: int) -> list[int]:
    """The largest coordinates of the lanes below ``total``."""
    dims = [call[f"dim{d}"] for d in range(rank)]
    return [ceil_div(call["total"], math.prod(dims[1:])) - 1, *(d - 1 for d in dims[1:])]


def last_offset(call: KernelCall, coordinates: Sequence[int], strides: str) -> int:
    """The offset of ``coordinates``, by the arguments ``{strides}0``, ``{strides}1``, ..."""
    return sum(c * call[f"{strides}{d}"] for d, c in enumerate(coordinates))
