"""Joining the sides: `InferenceSession`, its options, bindings and reports."""

from vkep.session.binding import IOBinding
from vkep.session.options import SessionOptions
from vkep.session.report import Report
from vkep.session.session import InferenceSession, NodeArg

__all__ = ["IOBinding", "InferenceSession", "NodeArg", "Report", "SessionOptions"]
