"""Kernels that read indices from data (``shaders/indices.glsl``).

An index out of range is clamped, so that no index reads or writes out of bounds. Where the problem has a ``fault``, the
text of the error, the kernel also reports a fault of the run (``shaders/fault.glsl``). "" is for indices that are known
to be valid.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vkep.kernels.select import Emission
from vkep.sizes import fixed

FAULT_REACH = {"fault": 4}


def index_defines(dtype: str) -> dict[str, str]:
    """The define for indices of int32 or int64."""
    return {"INDEX_WORDS": {"int32": "1", "int64": "2"}[dtype]}


def coordinates(indices_shape: tuple[int, ...]) -> int:
    """Number of coordinates of a slice: the size of the last axis of its indices."""
    return int(fixed(indices_shape[-1], "the number of coordinates is the number of axes that they index"))


def noting(e: Emission, fault: str) -> tuple[Any, int]:
    """The operand ``fault`` and the argument ``fault_code`` of a kernel that reports faults."""
    return e.target.fault(fault) if fault else (None, 0)


def within(indices: np.ndarray, extent: int, from_end: bool = True) -> np.ndarray:
    """Indices as the kernels read them: those below 0 count from the end, those out of range are clamped."""
    wide = indices.astype(np.int64)
    return np.clip(np.where(wide < 0, wide + extent, wide) if from_end else wide, 0, extent - 1)
