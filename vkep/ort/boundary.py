"""The boundary between Python and ONNX Runtime's C interface: the callbacks, and the only place that converts
exceptions to OrtStatus.

A class that implements one of ONNX Runtime's structures derives from `CStruct` and writes each member as a method of
the member's name, decorated with `status` (its result is an OrtStatus) or `value` (its result is another type, so that
an exception can only be logged). Only the members that a class writes are filled in; the others stay NULL, which means
"not provided" to ONNX Runtime.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, ClassVar, TypeVar

from gpu_shared.errors import ForkedProcessError, GpuError, OutOfDeviceMemoryError
from gpu_shared.steady import Queue, collects_here, settle, start_thread
from vkep.errors import InvalidModelError, UnsupportedModelError
from vkep.ort import compile_library, ending, library
from vkep.ort.signals import signal_of

_module = library.load()
ffi = _module.ffi
lib = _module.lib
NULL = ffi.NULL

logger = logging.getLogger("vkep.ort")

API_LEVEL = compile_library.API_LEVEL

# OrtErrorCode
_FAIL, _INVALID_ARGUMENT, _NOT_IMPLEMENTED, _INVALID_GRAPH, _EP_FAIL = 1, 2, 9, 10, 11
#: the first class that matches decides
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (InvalidModelError, _INVALID_GRAPH),
    (UnsupportedModelError, _NOT_IMPLEMENTED),
    (NotImplementedError, _NOT_IMPLEMENTED),
    (OutOfDeviceMemoryError, _FAIL),  # as `ArenaOutOfMemory`: a smaller run fits, and the session stays on the device
    (GpuError, _EP_FAIL),
    (ValueError, _INVALID_ARGUMENT),
    (TypeError, _INVALID_ARGUMENT),
)

Method = TypeVar("Method", bound=Callable[..., Any])


class OrtError(RuntimeError):
    """A call into ONNX Runtime failed; the text is its message."""


def status(method: Method) -> Method:
    """Marks a member whose result is an OrtStatus: an exception becomes one, with its message."""
    method._member = ("status", None)  # type: ignore[attr-defined]
    return method


def value(default: Any) -> Callable[[Method], Method]:
    """Marks a member that returns no status: after an exception ``default`` is returned and the exception logged."""

    def mark(method: Method) -> Method:
        method._member = ("value", default)  # type: ignore[attr-defined]
        return method

    return mark


_releases = Queue()


def released(work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(*arguments)``, after all earlier releases. Where the garbage collector calls, or where another thread has
    yet to do earlier ones, another thread does it, and an error is logged. Callers other than the collector wait for that, a
    second at most."""
    if _releases.idle and not collects_here():
        work(*arguments)
        return
    _releases.put(functools.partial(work, *arguments))
    if not collects_here():
        _releases.wait()


def wait_for_releases() -> bool:
    """Wait for releases that another thread does, at most a second. Returns whether there were any."""
    waits = not _releases.idle
    _releases.wait()
    return waits


def releases(method: Method) -> Method:
    """Marks a member that releases something, and returns nothing: see `released`. An exception is logged.
    The work may be done after ONNX Runtime's call has returned, so the arguments must stay valid."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any) -> None:
        released(method, self, *arguments)

    return value(None)(call)  # type: ignore[return-value]


class CStruct:
    """A Python object behind one of ONNX Runtime's structures, alive until `release`."""

    struct: ClassVar[str]
    room: ClassVar[str] = ""  #: vkep's own structure that begins with it, if there is one
    _members: ClassVar[dict[str, str]]

    def __init_subclass__(cls, struct: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if not struct:
            return
        cls.struct = struct
        cls._members = {}
        for name in dir(cls):
            kind = getattr(getattr(cls, name), "_member", None)
            if kind is not None:
                callback = f"vkep_{compile_library.PREFIXES[struct]}_{name}"
                _bind(callback, name, *kind)
                cls._members[name] = callback

    def __init__(self) -> None:
        """Call this last in a constructor: ONNX Runtime releases only objects that it has received."""
        self._memory = ffi.new(f"{self.room or self.struct} *")
        self.pointer = ffi.cast(f"{self.struct} *", self._memory)
        version = ffi.typeof(self.struct).fields[0][0]  # "ort_version_supported", or "version"
        setattr(self.pointer, version, API_LEVEL)
        for member, callback in self._members.items():
            setattr(self.pointer, member, getattr(lib, callback))
        _live[_key(self.pointer)] = self

    def release(self) -> None:
        """Called when ONNX Runtime does not use this structure any more."""
        _live.pop(_key(self.pointer), None)


#: the OrtApi that creates statuses; set by `use_tables`
_tables: list[Any] = []


_bound: set[str] = set()
_over = ending.over
#: maps the address of a structure that ONNX Runtime holds to the object behind it (this also keeps both alive)
_live: dict[int, CStruct] = {}


def live_structs() -> dict[str, int]:
    """How many structures of each kind ONNX Runtime holds."""
    wait_for_releases()
    settle()
    counts: dict[str, int] = {}
    for thing in list(_live.values()):
        counts[thing.struct] = counts.get(thing.struct, 0) + 1
    return counts


def live(struct: str) -> list[Any]:
    """The objects of one kind that ONNX Runtime holds."""
    return [thing for thing in list(_live.values()) if thing.struct == struct]


def behind(pointer: Any) -> Any:
    """The object behind a structure. Raises `OrtError` for a pointer that is not (or no longer) vkep's."""
    try:
        return _live[_key(pointer)]
    except KeyError:
        raise OrtError(f"{pointer!r} is no structure of vkep's, or was released before") from None


def owned(pointer: Any) -> Any:
    """As `behind`; None for another library's."""
    return _live.get(_key(pointer))


def _key(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def _bind(callback: str, member: str, kind: str, default: Any) -> None:
    """Make a callback call the member of the object behind its first argument (several classes may share a structure)."""
    if callback in _bound:
        return
    _bound.add(callback)
    if kind == "status":

        def answer(error: BaseException) -> Any:
            return to_status(error, callback)

        def entry(this: Any, *args: Any) -> Any:
            if _over:
                ending.park()
            try:
                getattr(_live[int(ffi.cast("uintptr_t", this))], member)(*args)
            except BaseException as error:  # an exception that leaves a callback would count as success
                return answer(error)
            return NULL

    else:

        def answer(error: BaseException) -> Any:
            if not isinstance(error, ForkedProcessError):  # a forked child has nothing to release
                logger.error("%s failed", callback, exc_info=error)
                _hand_on(error)
            return default

        def entry(this: Any, *args: Any) -> Any:
            if _over:
                ending.park()
            try:
                return getattr(_live[int(ffi.cast("uintptr_t", this))], member)(*args)
            except BaseException as error:
                return answer(error)

    _define(callback, entry, answer)


def _define(name: str, entry: Callable[..., Any], answer: Callable[[BaseException], Any]) -> None:
    """Make ``entry`` the callback. A signal that arrived while ONNX Runtime was in C raises before the first line of
    ``entry``: then cffi calls ``onerror``, which returns the ``answer`` of ``entry``. Without it cffi would return
    zeros, which as a status means success."""

    def failed(kind: Any, error: BaseException, trace: Any) -> Any:
        return answer(error)

    _entries.update((entry.__code__, failed.__code__))
    ffi.def_extern(name=name, onerror=failed)(entry)


@ending.before_modules_are_cleared
def _answer_without_python() -> None:
    """ONNX Runtime may release its objects after the interpreter's end: what it holds then calls C functions that do
    nothing, or return an error, and its memory is never freed."""
    if not _tables:
        return
    lib.vkep_end(_tables[-1])
    nothing, error = (ffi.addressof(lib, name) for name in ("vkep_nothing", "vkep_ended"))
    for thing in _live.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing._memory))
        for member, field in ffi.typeof(thing.struct).fields:
            if field.type.kind == "function" and getattr(thing.pointer, member) != NULL:
                fails = "Release" not in member and field.type.result.cname == "OrtStatus *"
                setattr(thing.pointer, member, ffi.cast(field.type, error if fails else nothing))


#: the code objects of all callbacks: a thread whose stack contains one is inside a callback
_entries: set[CodeType] = set()
_GRACE = 0.02  #: seconds in which an uncaught one ends the program
_handing_on: dict[int, threading.Lock] = {}  #: for each signal; held until its handler is called again
_asked = float("-inf")  #: when the program was last interrupted


def _hand_on(error: BaseException) -> None:
    """Call the handler of the signal that raised an exception again once the main thread is outside of callbacks: ONNX
    Runtime turns the exception into an ordinary one or drops it. An exception that the handler raises in another callback
    is raised once more after it."""
    number = signal_of(error) or (signal.SIGINT if isinstance(error, KeyboardInterrupt) else None)
    if number is None:
        return
    handing_on = _handing_on.setdefault(number, threading.Lock())
    if handing_on.acquire(blocking=False) and not start_thread(_interrupt_outside, number, handing_on):
        handing_on.release()


def _interrupt_outside(number: int, handing_on: threading.Lock) -> None:
    global _asked
    main = threading.main_thread()
    if time.monotonic() > _asked + 1:  # not again: the program continues after errors
        time.sleep(_GRACE)  # do not interrupt that end
    while _is_inside(sys._current_frames().get(main.ident or 0)):
        time.sleep(2e-5)  # short: the program may soon be in the next callback
    _asked = time.monotonic()
    handing_on.release()
    if main.is_alive() and main.ident in sys._current_frames():
        _thread.interrupt_main(number)  # type: ignore[arg-type]  # it takes those without a name too


def _is_inside(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code not in _entries:
        frame = frame.f_back
    return frame is not None


def entry_point(name: str) -> Callable[[Method], Method]:
    """Binds a function that belongs to no structure and returns an OrtStatus."""

    def bind(function: Method) -> Method:
        def entry(*args: Any) -> Any:
            if _over:
                ending.park()
            try:
                function(*args)
            except BaseException as error:
                return to_status(error, name)
            return NULL

        _define(name, entry, lambda error: to_status(error, name))
        return function

    return bind


def to_status(error: BaseException, where: str) -> Any:
    """The OrtStatus of an exception."""
    logger.debug("%s failed", where, exc_info=error)
    _hand_on(error)
    code = next((code for kind, code in _CODES if isinstance(error, kind)), _FAIL)
    text = str(error) or type(error).__name__
    message = text if isinstance(error, (ValueError, TypeError, GpuError)) else f"{type(error).__name__}: {text}"
    return _tables[-1].CreateStatus(code, f"vkep: {message}".encode())


def use_tables(api: Any) -> None:
    """Use ONNX Runtime's function tables for the errors that callbacks return."""
    _tables[:] = [api]
