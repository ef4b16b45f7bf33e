"""Errors of the pure side and the session."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from gpu_shared.errors import DeviceLostError, GpuError, OutOfDeviceMemoryError, OutOfHostMemoryError, PicklableError
from vkep.text import LONGEST_WORD, shortened

#: characters of a whole message that are shown
_LONGEST_TEXT = 1 << 16
_WORD = re.compile(r"\S+")
_Kind = TypeVar("_Kind", bound=type[Exception])
#: errors, and the classes of onnxruntime that they shall derive from too
_to_join: list[tuple[type[Exception], tuple[str, ...]]] = []
_joining = threading.RLock()  # a finalizer may raise an error while its thread is here


def also_onnxruntimes(*names: str) -> Callable[[_Kind], _Kind]:
    """A decorator: an error class that `join_onnxruntime` derives from onnxruntime's classes with these names too."""

    def register(kind: _Kind) -> _Kind:
        _to_join.append((kind, names))
        join_onnxruntime()
        return kind

    return register


def join_onnxruntime() -> None:
    """Where the program has imported onnxruntime, derive errors from its classes too, so that ``except`` clauses for
    either library catch them. vkep does not import onnxruntime for this: that takes longer than its own import."""
    theirs = sys.modules.get("onnxruntime.capi.onnxruntime_pybind11_state")
    if not _to_join or not hasattr(theirs, "InvalidArgument"):
        return
    with _joining:
        for kind, names in _to_join:
            more = (getattr(theirs, name) for name in names if hasattr(theirs, name))
            kind.__bases__ = (*kind.__bases__, *(base for base in more if not issubclass(kind, base)))
        _to_join.clear()


also_onnxruntimes("EPFail")(GpuError)
also_onnxruntimes("DeviceReset")(DeviceLostError)
also_onnxruntimes("RuntimeException")(OutOfDeviceMemoryError)
also_onnxruntimes("RuntimeException")(OutOfHostMemoryError)


@also_onnxruntimes("NoSuchFile")
class NoFileError(FileNotFoundError):
    """No regular file that can be opened has the path. Code that reads files names ``FileNotFoundError``."""


class VkepError(PicklableError):
    """Base of vkep's own errors. A name in a message may be a file's, and as long as the file: long ones are shortened."""

    def __init__(self, *args: object) -> None:
        join_onnxruntime()  # an `except` clause reads the classes later
        super().__init__(*(_shown(a) if isinstance(a, str) else a for a in args))


def _shown(message: str) -> str:
    if len(message) <= LONGEST_WORD:
        return message
    return shortened(_WORD.sub(lambda word: shortened(word[0]), message), _LONGEST_TEXT, _LONGEST_TEXT // 2)


class Decline(VkepError):
    """Raised by an operator function for a node that Vulkan does not run. The text is the reason, for a user to
    read."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = str(self.args[0])


class InvalidNode(Decline):
    """A node's inputs and attributes break the operator's specification: no engine may run it.

    A session raises `InvalidModelError` where the model alone causes it, `InvalidInputError` where a run's inputs do.
    """

    def at(self, title: str) -> InvalidNode:
        """The same error, for the node with this ``title``."""
        return InvalidNode(f"{title}: {self.reason}")


class ExpressionError(VkepError, TypeError):
    """An operator function combines values whose types an operation does not take: a fault of the function, not of a model."""


@also_onnxruntimes("InvalidGraph", "InvalidProtobuf", "InvalidArgument", "Fail")
class InvalidModelError(VkepError, ValueError):
    """The bytes are not an ONNX model, or the model breaks the ONNX specification."""


@also_onnxruntimes("NotImplemented", "InvalidGraph", "Fail")
class UnsupportedModelError(VkepError, ValueError):
    """Some nodes can run neither on Vulkan nor on the CPU (or ``fallback="error"`` refuses the CPU)."""


@also_onnxruntimes("InvalidArgument", "RuntimeException", "Fail")
class InvalidInputError(VkepError, ValueError):
    """A run's inputs do not fit the model (name, rank, shape or dtype), or a node does not allow its input (a shape, a
    value): the message names the node."""


@also_onnxruntimes("Fail")
class RunTerminatedError(VkepError):
    """A run ended because ``terminate`` of its `RunOptions` was set."""


class KernelBoundsError(VkepError):
    """A planned kernel may access memory outside an operand: a bug in vkep, found before anything runs."""


class InvalidPteError(VkepError, ValueError):
    """The bytes are not an ExecuTorch program (.pte) or data file (.ptd), or the file is damaged."""


class UnsupportedProgramError(VkepError, ValueError):
    """An ExecuTorch program needs backends, operators or a format version that vkep does not have.

    ``missing`` has a line for each.
    """

    def __init__(self, message: str, missing: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
