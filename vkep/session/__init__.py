"""Joins the layers: `InferenceSession`, its options, bindings and reports."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vkep.session.options import SessionOptions
from vkep.session.session import InferenceSession, NodeArg

if TYPE_CHECKING:
    from vkep.session.binding import IOBinding
    from vkep.session.reports.report import Report

__all__ = ["IOBinding", "InferenceSession", "NodeArg", "Report", "SessionOptions"]

#: they import numpy and onnx, which a session does while the driver opens
_LAZY = {"IOBinding": "binding", "Report": "reports.report"}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
