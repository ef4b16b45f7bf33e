"""Functions of the package ``onnxruntime`` that `vkep` has too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vkep.session.run_options import LEVELS

if TYPE_CHECKING:
    import os

    from vkep.session.ort_value import OrtValue

_LOGGERS = ("vkep", "gpu_shared")
#: ``callback(severity, category, logid, code_location, message)``
LogCallback = Callable[[int, str, str, str, str], object]


def set_default_logger_severity(severity: int) -> None:
    """Set the minimum severity of log messages, as ``onnxruntime.set_default_logger_severity`` does: 0 (all) to 4
    (fatal).

    It sets the levels of the standard library's loggers ``vkep`` and ``gpu_shared``. Raises ``ValueError`` for another
    number.
    """
    if severity not in range(len(LEVELS)):
        raise ValueError(f"severity is {severity!r}, expected 0 to {len(LEVELS) - 1}")
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(LEVELS[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted without an effect: messages have levels only (`set_default_logger_severity`)."""


def set_default_logger_callback(callback: LogCallback | None, severity: int = 2) -> None:
    """Pass log messages to ``callback(severity, category, logid, code_location, message)``, in addition to the standard
    library's handlers, and set the severity as `set_default_logger_severity`; None: end that. Raises ``ValueError``."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        for handler in [h for h in logger.handlers if isinstance(h, _CallbackHandler)]:
            logger.removeHandler(handler)
        if callback is not None:
            logger.addHandler(_CallbackHandler(callback))
    if callback is not None:
        set_default_logger_severity(severity)


class _CallbackHandler(logging.Handler):
    """Calls a function for each record."""

    def __init__(self, callback: LogCallback) -> None:
        super().__init__()
        self._callback = callback

    def emit(self, record: logging.LogRecord) -> None:
        severity = max(k for k, level in enumerate(LEVELS) if k == 0 or record.levelno >= level)
        try:
            self._callback(severity, record.name, "", f"{record.filename}:{record.lineno}", record.getMessage())
        except Exception:
            self.handleError(record)


def set_seed(seed: int) -> None:
    """Seed the numbers that random operators without a ``seed`` attribute draw on Vulkan: runs that follow in the same
    order give the same numbers. Raises ``TypeError`` for anything but an integer."""
    from vkep.device import fresh

    fresh.seed(seed)


def set_global_thread_pool_sizes(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None:
    """Accepted without an effect: the GPU computes."""


def has_collective_ops() -> bool:
    """Always False: no operator communicates between processes."""
    return False


def enable_telemetry_events() -> None:
    """Does nothing: vkep sends nothing to anyone."""


def disable_telemetry_events() -> None:
    """Does nothing, as `enable_telemetry_events`."""


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | os.PathLike[str] | None = None
) -> None:
    """Does nothing: vkep needs none of these libraries."""


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: None = None) -> None:
    """Copy each value of ``src`` into the one of ``dst``, which has its shape and type. Raises ``ValueError`` for other shapes,
    types or numbers of values, and `InvalidInputError` for one to which nothing was written."""
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source.numpy())
