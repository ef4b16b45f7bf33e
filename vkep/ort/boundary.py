"""Where Python meets ONNX Runtime's C interface: the callbacks, and the one place that turns exceptions into OrtStatus.

A class that implements one of ONNX Runtime's structures derives from `CStruct` and writes each member as a method of
the member's name, decorated with `status` (its result is an OrtStatus) or `value` (it is not, so that an exception can
only be logged). Only the members that a class writes are filled in; the others stay NULL, which ONNX Runtime takes as
"not provided".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from gpu_shared.errors import GpuError
from vkep.errors import InvalidModelError, UnsupportedModelError
from vkep.ort import library

_module = library.load()
ffi = _module.ffi
lib = _module.lib
NULL = ffi.NULL

logger = logging.getLogger("vkep.ort")

API_LEVEL = library.API_LEVEL

# OrtErrorCode
_FAIL, _INVALID_ARGUMENT, _NOT_IMPLEMENTED, _INVALID_GRAPH, _EP_FAIL = 1, 2, 9, 10, 11
#: the first class that fits decides
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (InvalidModelError, _INVALID_GRAPH),
    (UnsupportedModelError, _NOT_IMPLEMENTED),
    (NotImplementedError, _NOT_IMPLEMENTED),
    (GpuError, _EP_FAIL),
    (ValueError, _INVALID_ARGUMENT),
    (TypeError, _INVALID_ARGUMENT),
)

Method = TypeVar("Method", bound=Callable[..., Any])


class OrtError(RuntimeError):
    """A call into ONNX Runtime failed; the text is its message."""


def status(method: Method) -> Method:
    """Marks a member whose result is an OrtStatus: what it raises becomes one, with the message."""
    method._member = ("status", None)  # type: ignore[attr-defined]
    return method


def value(default: Any) -> Callable[[Method], Method]:
    """Marks a member with a result of its own; ``default`` is returned where it raises, and the exception logged."""

    def mark(method: Method) -> Method:
        method._member = ("value", default)  # type: ignore[attr-defined]
        return method

    return mark


class CStruct:
    """A Python object behind one of ONNX Runtime's structures, alive until `release`."""

    struct: ClassVar[str]
    room: ClassVar[str] = ""  #: a structure of vkep's own that begins with it, where there is one
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
                callback = f"vkep_{library.PREFIXES[struct]}_{name}"
                _bind(callback, name, *kind)
                cls._members[name] = callback

    def __init__(self) -> None:
        """Call it when all that may fail is done: nobody releases what ONNX Runtime never got."""
        self._memory = ffi.new(f"{self.room or self.struct} *")
        self.pointer = ffi.cast(f"{self.struct} *", self._memory)
        version = ffi.typeof(self.struct).fields[0][0]  # "ort_version_supported", or "version"
        setattr(self.pointer, version, API_LEVEL)
        for member, callback in self._members.items():
            setattr(self.pointer, member, getattr(lib, callback))
        _live[_key(self.pointer)] = self

    def release(self) -> None:
        """ONNX Runtime calls this structure no more."""
        _live.pop(_key(self.pointer), None)


_bound: set[str] = set()
#: address of a structure that ONNX Runtime holds -> the object behind it (this also keeps both alive)
_live: dict[int, CStruct] = {}


def live_structs() -> dict[str, int]:
    """How many structures of each kind ONNX Runtime holds."""
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

        def entry(this: Any, *args: Any) -> Any:
            try:
                getattr(_live[int(ffi.cast("uintptr_t", this))], member)(*args)
            except BaseException as error:  # what leaves a callback would be taken for success
                return to_status(error, callback)
            return NULL

    else:

        def entry(this: Any, *args: Any) -> Any:
            try:
                return getattr(_live[int(ffi.cast("uintptr_t", this))], member)(*args)
            except BaseException:
                logger.exception("%s failed", callback)
                return default

    ffi.def_extern(name=callback)(entry)


def entry_point(name: str) -> Callable[[Method], Method]:
    """Binds a function that belongs to no structure and returns an OrtStatus."""

    def bind(function: Method) -> Method:
        def entry(*args: Any) -> Any:
            try:
                function(*args)
            except BaseException as error:
                return to_status(error, name)
            return NULL

        ffi.def_extern(name=name)(entry)
        return function

    return bind


def to_status(error: BaseException, where: str) -> Any:
    """The OrtStatus of an exception."""
    logger.debug("%s failed", where, exc_info=error)
    code = next((code for kind, code in _CODES if isinstance(error, kind)), _FAIL)
    text = str(error) or type(error).__name__
    message = text if isinstance(error, (ValueError, TypeError, GpuError)) else f"{type(error).__name__}: {text}"
    return _tables[-1].CreateStatus(code, f"vkep: {message}".encode())


#: the OrtApi that makes statuses; set by `use_tables`
_tables: list[Any] = []


def use_tables(api: Any) -> None:
    _tables[:] = [api]
