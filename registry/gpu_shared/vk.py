"""The only module that uses the package ``vulkan``: raw functions, structures that keep the objects they point to
alive, results as exceptions.

Importing this module loads nothing. The first use of ``vk.ffi``, ``vk.lib``, a ``vk.VK_*`` constant or any function
here loads the Vulkan loader, and raises `DriverNotFoundError` where there is none.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib
import importlib.util
import itertools
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_shared import arm_abi
from gpu_shared.errors import (
    DeviceLostError,
    DriverNotFoundError,
    ForkedProcessError,
    GpuError,
    OutOfDeviceMemoryError,
    OutOfHostMemoryError,
)

#: missing from the ``vulkan`` package (its headers are 1.3.275), or -1 there where Vulkan expects a uint64
WHOLE_SIZE = 2**64 - 1
UINT64_MAX = 2**64 - 1
BUFFER_USAGE_SHADER_DEVICE_ADDRESS = 0x20000
MEMORY_ALLOCATE_DEVICE_ADDRESS = 0x2
QUEUE_DATA_GRAPH_ARM = 0x400
API_VERSION_1_3 = 1 << 22 | 3 << 12

INSTALL_HINT = (
    "install the Vulkan loader and a driver (Debian and Ubuntu: libvulkan1 for the loader, mesa-vulkan-drivers "
    "for drivers, the CPU driver lavapipe among them; NVIDIA's driver package brings its own)"
)

#: the loader library on Linux, Windows and macOS
LOADER_NAMES = ("libvulkan.so.1", "vulkan-1.dll", "libvulkan.dylib")
#: Homebrew's on Apple silicon, in a folder that macOS does not search
HOMEBREW_LOADER = "/opt/homebrew/lib/libvulkan.dylib"

#: structures newer than the package's headers: C text (``python -m tools.structures`` compiles it) and, by name, the sType
EXTRA_CDEF = """
typedef struct VkPhysicalDeviceShaderBfloat16FeaturesKHR {
    uint32_t sType; void* pNext;
    uint32_t shaderBFloat16Type; uint32_t shaderBFloat16DotProduct; uint32_t shaderBFloat16CooperativeMatrix;
} VkPhysicalDeviceShaderBfloat16FeaturesKHR;
"""
EXTRA_CDEF += arm_abi.CDEF
_EXTRA_STYPE = {"VkPhysicalDeviceShaderBfloat16FeaturesKHR": 1000141000, **arm_abi.STYPE}

#: VkComponentTypeKHR, VkScopeKHR (newer members have no name in the package)
COMPONENT_TYPES = {
    0: "float16", 1: "float32", 2: "float64", 3: "int8", 4: "int16", 5: "int32", 6: "int64",
    7: "uint8", 8: "uint16", 9: "uint32", 10: "uint64", 1000141000: "bfloat16",
    1000491002: "float8_e4m3fn", 1000491003: "float8_e5m2",
}  # fmt: skip
SCOPES = {1: "device", 2: "workgroup", 3: "subgroup", 5: "queue_family"}

_load_lock = threading.Lock()
_loaded: _Loaded | None = None
#: number of forks: a handle created under another number belongs to another process
generation = 0
_used_in_generation: int | None = None


def _after_fork_in_child() -> None:
    global generation, _load_lock
    generation += 1
    _load_lock = threading.Lock()
    if _used_in_generation == generation - 1:
        _skip_exit_handlers()


def _skip_exit_handlers() -> None:
    """Make a forked child end without the exit handlers of the parent's drivers, which join threads that do not exist
    there (Mesa's): Python's own exit is complete by then."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc: its handlers receive the status, and the last one registered runs first
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)  # C's buffered output


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _loader_names() -> Iterator[str]:
    yield from LOADER_NAMES
    if sys.platform == "win32" and (path := ctypes.util.find_library(LOADER_NAMES[1])):
        yield path  # cffi looks for a name in the system's folders alone, and this in those of PATH
    if sys.platform == "darwin":
        yield HOMEBREW_LOADER


class _Loaded:
    """The package's cffi types and the loader library. Constants are the library's attributes."""

    def __init__(self, ffi: Any) -> None:
        self.ffi = ffi
        reasons = []
        for name in _loader_names():
            try:
                self.lib = ffi.dlopen(name)
                return
            except OSError as error:
                reasons.append(str(error))
        raise DriverNotFoundError("loading the Vulkan loader", hint=f"{INSTALL_HINT} ({'; '.join(reasons)})")


def load() -> _Loaded:
    """The types and the loader. Raises `DriverNotFoundError` where the loader library is missing, or the package."""
    global _loaded
    if _loaded is None:
        with _load_lock:
            if _loaded is None:
                loaded = _Loaded(_package_types())
                globals()["ffi"], globals()["lib"] = loaded.ffi, loaded.lib
                _loaded = loaded
    return _loaded


def _package_types() -> Any:
    """The ``vulkan`` package's cffi instance. Importing the package itself would load 20 000 lines of wrappers that are
    not used here, which takes 15 ms: only the module with the types is imported."""
    package = importlib.util.find_spec("vulkan")
    if package is None or not package.submodule_search_locations:
        raise DriverNotFoundError("importing the Python package 'vulkan'", hint="install it: pip install vulkan")
    path = Path(next(iter(package.submodule_search_locations))) / "_vulkancache.py"
    spec = importlib.util.spec_from_file_location("gpu_shared._vulkan_types", path)
    if spec is None or spec.loader is None or not path.is_file():  # a release that has them elsewhere
        return importlib.import_module("vulkan").ffi
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ffi


def __getattr__(name: str) -> Any:
    if name in ("ffi", "lib") or name.startswith("VK_"):
        loaded = load()
        try:
            value = getattr(loaded if name in ("ffi", "lib") else loaded.lib, name)
        except AttributeError:
            raise AttributeError(f"the vulkan package (headers 1.3.275) has no {name}") from None
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def mark_used() -> None:
    """Record that this process has initialized the driver; raises `ForkedProcessError` when an ancestor by fork had."""
    global _used_in_generation
    if _used_in_generation is not None and _used_in_generation != generation:
        raise ForkedProcessError("the Vulkan driver (it was opened before the fork)")
    _used_in_generation = generation


def extra_ffi() -> Any:
    """The cffi types of `EXTRA_CDEF`."""
    from gpu_shared._structures import ffi

    return ffi


# ---- results ----

_RESULT_NAMES: dict[int, str] = {}


def result_name(result: int) -> str:
    """``VK_ERROR_DEVICE_LOST`` for -4, and so on."""
    if not _RESULT_NAMES:
        names = load().ffi.typeof("VkResult").elements
        _RESULT_NAMES.update(
            {value: name for value, name in names.items() if "MAX_ENUM" not in name and "RANGE" not in name}
        )
    return _RESULT_NAMES.get(result, f"VkResult {result}")


def check(result: int, call: str, label: str = "", hint: str = "") -> int:
    """Return ``result`` (a VkResult) if it is not negative; otherwise raise the matching error. ``call`` is the Vulkan
    function, ``label`` the object, ``hint`` what to do.

    Raises `DeviceLostError`, `OutOfDeviceMemoryError`, `OutOfHostMemoryError`, `DriverNotFoundError`, and `GpuError`
    for all other results.
    """
    if result >= 0:
        return result
    name = result_name(result)
    if result == -4:
        raise DeviceLostError(call, name, label, hint or "the device stopped; close everything on it and open it again")
    if result == -2:
        raise OutOfDeviceMemoryError(call, name, label, hint)
    if result == -1:
        raise OutOfHostMemoryError(call, name, label, hint)
    if result == -9:
        raise DriverNotFoundError(call, name, label, hint or f"the loader found no driver: {INSTALL_HINT}")
    raise GpuError(call, name, label, hint)


# ---- structures ----


class Struct:
    """A C structure with everything that it points to. Keep it referenced until the call that reads it returns.

    ``ptr`` is the pointer to pass; fields are read through ``s.ptr.field``.
    """

    __slots__ = ("_keep", "ptr")

    def __init__(self, ptr: Any, keep: list[Any]) -> None:
        self.ptr = ptr
        self._keep = keep

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ptr, name)


@functools.cache
def _structure_types() -> dict[str, int]:
    """sTypes by the structures' names in lower case: VkSubmitInfo2's is VK_STRUCTURE_TYPE_SUBMIT_INFO_2."""
    values = load().ffi.typeof("VkStructureType").relements
    return {name.removeprefix("VK_STRUCTURE_TYPE_").replace("_", "").lower(): v for name, v in values.items()}


def _structure_type(name: str) -> int | None:
    if name in _EXTRA_STYPE:
        return _EXTRA_STYPE[name]
    return _structure_types().get(name.removeprefix("Vk").lower())


def make(type_name: str, **fields: Any) -> Struct:
    """Allocate ``type_name``, set ``sType`` and the fields, and keep every part alive.

    A pointer field takes None, a `Struct`, cffi data, text, bytes, or a sequence of `Struct`, text or scalars; a
    field that is a structure takes a `Struct` or a mapping. Raises ``TypeError`` for a field that the structure does
    not have.
    """
    api = extra_ffi() if type_name in _EXTRA_STYPE else load().ffi
    ptr = api.new(type_name + " *")
    keep: list[Any] = []
    known = dict(api.typeof(type_name).fields)
    if "sType" in known and "sType" not in fields:
        stype = _structure_type(type_name)
        if stype is None:
            raise TypeError(f"{type_name}: no sType known; pass sType=")
        ptr.sType = stype
    _fill(api, ptr, known, fields, keep, type_name)
    return Struct(ptr, keep)


def _fill(
    api: Any, target: Any, known: Mapping[str, Any], fields: Mapping[str, Any], keep: list[Any], where: str
) -> None:
    for name, value in fields.items():
        if name not in known:
            raise TypeError(f"{where} has no field {name!r}; it has {', '.join(known)}")
        if value is None:
            continue
        kind = known[name].type
        if kind.kind == "pointer":
            setattr(target, name, _pointer(api, kind, value, keep))
        elif isinstance(value, Struct):
            setattr(target, name, value.ptr[0])
            keep.append(value)
        elif isinstance(value, Mapping):
            _fill(api, getattr(target, name), dict(kind.fields), value, keep, f"{where}.{name}")
        else:
            setattr(target, name, value)


def _pointer(api: Any, kind: Any, value: Any, keep: list[Any]) -> Any:
    keep.append(value)
    if isinstance(value, Struct):
        return value.ptr
    if isinstance(value, str):
        made = api.new("char[]", value.encode())
    elif isinstance(value, (bytes, bytearray, memoryview)):
        made = api.cast(kind, api.from_buffer(value)) if len(value) else api.NULL
    elif isinstance(value, (list, tuple)):
        if not value:
            return api.NULL
        item = kind.item
        if isinstance(value[0], Struct):
            made = api.new(api.getctype(item, "[]"), [s.ptr[0] for s in value])
        elif isinstance(value[0], str):
            texts = [api.new("char[]", text.encode()) for text in value]
            keep.append(texts)
            made = api.new("char *[]", texts)
        else:
            made = api.new(api.getctype(item, "[]"), list(value))
    else:
        return value
    keep.append(made)
    return made


def chain(*structs: Struct) -> Struct:
    """Link structures through ``pNext``, first to last; the first keeps the others alive and is returned."""
    for one, following in itertools.pairwise(structs):
        one.ptr.pNext = load().ffi.cast("void *", following.ptr)
        one._keep.append(following)
    return structs[0]


# ---- functions and handles ----


class Functions:
    """The functions of one instance or device, fetched by name at first use (a device's skip the loader's trampoline).

    A test may replace an attribute by its own function. Raises `GpuError` for a function that the driver lacks.
    """

    def __init__(self, raw: Any, loader: str, label: str) -> None:
        self._raw, self._loader, self._label = raw, loader, label

    def __getattr__(self, name: str) -> Any:
        loaded = load()
        address = getattr(loaded.lib, self._loader)(self._raw, name.encode())
        if address == loaded.ffi.NULL:
            raise GpuError(self._loader, label=self._label, hint=f"the driver has no {name}; is its extension enabled?")
        api = extra_ffi() if name in arm_abi.FUNCTIONS else loaded.ffi
        function = api.cast("PFN_" + name, address)
        self.__dict__[name] = function
        return function


def instance_functions(raw: Any, label: str = "instance") -> Functions:
    """The functions of an instance, loaded when they are first called."""
    return Functions(raw, "vkGetInstanceProcAddr", label)


def device_functions(raw: Any, label: str = "device") -> Functions:
    """The functions of a device, loaded when they are first called."""
    return Functions(raw, "vkGetDeviceProcAddr", label)


def enumerate_all(
    function: Any, arguments: tuple[Any, ...], item: str, call: str, *, template: Struct | None = None
) -> Any:
    """The two-call idiom: the count, then the items (a cffi array that owns them; on VK_INCOMPLETE it is repeated).

    ``template`` initialises each item of a structure with ``sType``. Functions that return void are supported.
    """
    ffi = load().ffi
    while True:
        count = ffi.new("uint32_t *")
        check(function(*arguments, count, ffi.NULL) or 0, call)
        items = ffi.new(f"{item}[]", [template.ptr[0]] * count[0] if template is not None else count[0])
        result = check(function(*arguments, count, items) or 0, call)
        if result == 0:  # not VK_INCOMPLETE
            if count[0] == len(items):
                return items
            fewer = ffi.new(f"{item}[]", count[0])  # not a slice, which would not keep the array alive
            ffi.memmove(fewer, items, ffi.sizeof(fewer))
            return fewer


def out(type_name: str) -> Any:
    """A new place for an output: ``vk.out("VkBuffer")[0]`` after the call."""
    return load().ffi.new(type_name + " *")


def number(raw: Any) -> int:
    """A raw handle as an integer, for the structures and functions of `gpu_shared.arm_abi`."""
    return int(load().ffi.cast("uintptr_t", raw))


def handle(type_name: str, value: Any) -> Any:
    """A raw handle from an int, a ctypes or a cffi value of any cffi instance. Raises ``ValueError`` for null."""
    ffi = load().ffi
    if hasattr(value, "value"):  # ctypes
        value = value.value
    if not isinstance(value, int):
        try:
            value = int(ffi.cast("uintptr_t", value))
        except TypeError:
            import cffi

            value = int(cffi.FFI().cast("uintptr_t", value))
    if not value:
        raise ValueError(f"the {type_name} is null")
    return ffi.cast(type_name, value)


def text(chars: Any) -> str:
    """A C string (char array or pointer) as text."""
    return load().ffi.string(chars).decode("utf-8", "replace")
