"""Functions of the package ``onnxruntime`` that `vkep` has too, and `OrtArenaCfg`, which two of them take."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vkep.session.run_options import LEVELS

if TYPE_CHECKING:
    import os

    from vkep.session.ort_interface.devices import OrtMemoryInfo
    from vkep.session.ort_interface.value import OrtValue

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


class OrtArenaCfg:
    """Settings of an arena of ``onnxruntime``, as numbers: a mapping, or the first four by position. -1: not set.

    Raises ``ValueError`` for a name that it has not, ``TypeError`` for another number of arguments.
    """

    max_mem = -1
    arena_extend_strategy = -1
    initial_chunk_size_bytes = -1
    max_dead_bytes_per_chunk = -1
    initial_growth_chunk_size_bytes = -1
    max_power_of_two_extend_bytes = -1

    def __init__(self, *settings: Any) -> None:
        names = [name for name in vars(OrtArenaCfg) if not name.startswith("_")]
        if len(settings) not in (1, 4):
            raise TypeError(
                f"OrtArenaCfg: got {len(settings)} arguments, expected a mapping, or {', '.join(names[:4])}"
            )
        given = settings[0] if len(settings) == 1 else dict(zip(names, settings, strict=False))
        if not isinstance(given, Mapping):
            raise TypeError(f"OrtArenaCfg: got {given!r}, expected a mapping of {', '.join(names)}")
        for name in given:
            if name not in names:
                raise ValueError(f"OrtArenaCfg has no {name!r}; it has {', '.join(names)}")
        for name in names:
            setattr(self, name, int(given.get(name, -1)))


def create_and_register_allocator(memory_info: OrtMemoryInfo, arena_config: OrtArenaCfg | None, /) -> None:
    """Accepted without an effect: sessions of a context share its arena (option ``arena``), and numpy allocates on the host."""


def create_and_register_allocator_v2(
    provider: str, memory_info: OrtMemoryInfo, options: Mapping[str, str], arena_config: OrtArenaCfg | None, /
) -> None:
    """Accepted without an effect, as `create_and_register_allocator`."""
