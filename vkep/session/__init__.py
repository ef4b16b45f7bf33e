"""Joins the layers: `InferenceSession`, its options, bindings and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_shared.lazy import lazy
from vkep.session.options import SessionOptions
from vkep.session.session import InferenceSession, NodeArg

if TYPE_CHECKING:
    from vkep.session.binding import IOBinding
    from vkep.session.reports.report import Report

__all__ = ["IOBinding", "InferenceSession", "NodeArg", "Report", "SessionOptions"]

#: they import numpy and onnx, which a session does while the driver opens
__getattr__ = lazy(
    __name__,
    {
        "vkep.session.binding": "IOBinding",
        "vkep.session.reports.report": "Report",
    },
)
