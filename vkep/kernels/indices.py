"""Kernels that follow indices from data (``shaders/indices.glsl``).

An index out of range is clamped, so that no index reads or writes out of bounds, and noted as a fault of the run
(``shaders/fault.glsl``) where the problem has a ``fault``: the message of the error. "" is for indices that are right already.
"""

from __future__ import annotations

from typing import Any

from vkep.kernels.kernel import Operand
from vkep.kernels.select import Emission

#: the last operand and the last argument of a kernel that notes faults
FAULT, FAULT_CODE = Operand("fault", writes=True), ("fault_code", "uint")
FAULT_REACH = {"fault": 4}


def index_defines(dtype: str) -> dict[str, str]:
    """The define for indices of int32 or int64."""
    return {"INDEX_WORDS": {"int32": "1", "int64": "2"}[dtype]}


def noting(e: Emission, fault: str) -> tuple[Any, int]:
    """What `FAULT` and `FAULT_CODE` are."""
    return e.target.fault(fault) if fault else (None, 0)
