"""The options of one run: `RunOptions`, with ONNX Runtime's names."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vkep.errors import RunTerminatedError
from vkep.session.ort_interface.options import is_onnxruntimes

if TYPE_CHECKING:
    from vkep.session.ort_interface.adapters import LoraAdapter

#: maps ONNX Runtime's severities (verbose, info, warning, error, fatal) to the standard library's levels
LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
#: the loggers that a run may write to
_LOGGERS = ("vkep.session", "vkep.cpu", "vkep.kompute", "vkep.device", "vkep.memory", "vkep.shaders.library")


class RunOptions:
    """Options of one run, or of several.

    terminate: when it is set, from any thread, the runs that use these options raise `RunTerminatedError` before their
        next step, or their next iteration of a loop. Work that was submitted to the GPU is finished first.
    logid (``tag`` is the same): a prefix of the runs' log messages, and a field of their profile's events.
    log_severity_level: 0 (verbose) to 4 (fatal); less severe messages are not logged in these runs. -1: all are.
    log_verbosity_level, only_execute_path_to_fetches, the entries of `add_run_config_entry`: kept, without an effect.
    """

    terminate = False
    logid = ""
    log_severity_level = -1
    log_verbosity_level = 0
    only_execute_path_to_fetches = False

    def __init__(self, *, terminate: bool = False, logid: str = "", log_severity_level: int = -1) -> None:
        self.terminate = terminate
        self.logid = logid
        self.log_severity_level = log_severity_level
        self._entries: dict[str, str] = {}
        self._adapters: list[LoraAdapter] = []

    if not TYPE_CHECKING:  # type checkers see the attributes that there are

        def __setattr__(self, name: str, value: object) -> None:
            if not name.startswith("_") and name not in _KINDS:
                raise AttributeError(f"RunOptions has no {name!r}; it has {', '.join(_KINDS)}")
            if name in _KINDS and not isinstance(value, _KINDS[name]):
                raise TypeError(f"RunOptions.{name} is {value!r}, expected {_KINDS[name].__name__}")
            if name == "log_severity_level" and value not in range(-1, len(LEVELS)):
                raise ValueError(f"RunOptions.log_severity_level is {value!r}, expected -1 to {len(LEVELS) - 1}")
            object.__setattr__(self, name, value)

    @property
    def tag(self) -> str:
        """The same as ``logid``."""
        return self.logid

    @tag.setter
    def tag(self, value: str) -> None:
        self.logid = value

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry."""
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """An entry's value. Raises ``RuntimeError``, as ONNX Runtime does, where there is none."""
        if key not in self._entries:
            raise RuntimeError(f"RunOptions does not have configuration with key: {key}; it has {list(self._entries)}")
        return self._entries[key]

    def add_active_adapter(self, adapter: LoraAdapter) -> None:
        """The runs with these options read the adapter's tensors in place of the model's optional inputs (initializers that are
        also inputs) of the same names, where the run does not give them itself."""
        self._adapters.append(adapter)

    @property
    def adapters(self) -> Sequence[LoraAdapter]:
        """Those of `add_active_adapter`; of two that have one name, the later one counts."""
        return self._adapters

    def __repr__(self) -> str:
        return f"<RunOptions {self.logid!r} terminate={self.terminate} log_severity_level={self.log_severity_level}>"


_KINDS: dict[str, type] = {
    "terminate": bool,
    "logid": str,
    "tag": str,
    "log_severity_level": int,
    "log_verbosity_level": int,
    "only_execute_path_to_fetches": bool,
}


class _Running(threading.local):
    options: RunOptions | None = None  #: of the run on this thread


_running = _Running()


@contextlib.contextmanager
def running(options: RunOptions | None) -> Iterator[None]:
    """Context in which this thread's run has these options. Raises `RunTerminatedError` where ``terminate`` is set at
    the beginning or the end."""
    before, _running.options = _running.options, options
    try:
        stop_if_terminated()
        yield
        stop_if_terminated()
    finally:
        _running.options = before


def stop_if_terminated() -> None:
    """Raise `RunTerminatedError` where ``terminate`` is set for this thread's run."""
    options = _running.options
    if options is not None and options.terminate:
        raise RunTerminatedError(f"run {options.logid!r}: ended, as terminate of its RunOptions is set")


def checked_run_options(options: object) -> RunOptions | None:
    """Return ``options`` if they are `RunOptions` or onnxruntime's, whose attributes are read in the same way. Raises
    ``TypeError``."""
    if options is not None and not isinstance(options, RunOptions) and not is_onnxruntimes(options, "terminate"):
        raise TypeError(f"run_options is of {type(options)}, expected RunOptions of vkep or onnxruntime, or None")
    return options  # type: ignore[return-value]


def _tagged(record: logging.LogRecord) -> bool:
    """A log filter: drops messages below the run's severity, and prefixes the others with its tag."""
    options = _running.options
    if options is None:
        return True
    if options.log_severity_level >= 0 and record.levelno < LEVELS[options.log_severity_level]:
        return False
    if options.logid:
        record.msg, record.args = f"{options.logid}: {record.getMessage()}", None
    return True


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_tagged)
