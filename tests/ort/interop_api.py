"""OrtInteropApi, which ONNX Runtime's Python binding does not show, through the function tables themselves."""

from __future__ import annotations

from typing import Any

import cffi

LEVEL = 29
OPAQUE_FD, HOST_ALLOCATION, TIMELINE_FD, VULKAN = 3, 4, 2, 2

ffi = cffi.FFI()
ffi.cdef(
    """
    typedef struct { uint32_t version; int handle_type; void *native_handle; size_t size_bytes; size_t offset_bytes; } Memory;
    typedef struct { uint32_t version; int type; void *native_handle; } Semaphore;
    typedef struct { uint32_t version; int element_type; const int64_t *shape; size_t rank; size_t offset_bytes; } Tensor;
    typedef struct { uint32_t version; int graphics_api; void *command_queue; void *additional_options; } Config;
    """
)
#: OrtApi's functions: place, type
_API = {
    "GetErrorMessage": (2, "const char *(*)(void *)"),
    "CreateEnv": (3, "void *(*)(int, const char *, void **)"),
    "GetTensorMutableData": (51, "void *(*)(void *, void **)"),
    "ReleaseEnv": (92, "void (*)(void *)"),
    "ReleaseStatus": (93, "void (*)(void *)"),
    "ReleaseValue": (96, "void (*)(void *)"),
    "CreateKeyValuePairs": (295, "void (*)(void **)"),
    "AddKeyValuePair": (296, "void (*)(void *, const char *, const char *)"),
    "ReleaseKeyValuePairs": (300, "void (*)(void *)"),
    "GetEpDevices": (303, "void *(*)(void *, void ***, size_t *)"),
    "EpDevice_EpName": (312, "const char *(*)(void *)"),
    "CreateSyncStreamForEpDevice": (383, "void *(*)(void *, void *, void **)"),
    "ReleaseSyncStream": (385, "void (*)(void *)"),
    "GetInteropApi": (395, "void **(*)(void)"),
}
#: OrtInteropApi's
_INTEROP = {
    "CreateImporter": "void *(*)(void *, void **)",
    "ReleaseImporter": "void (*)(void *)",
    "CanImportMemory": "void *(*)(void *, int, _Bool *)",
    "ImportMemory": "void *(*)(void *, Memory *, void **)",
    "ReleaseMemory": "void (*)(void *)",
    "CreateTensor": "void *(*)(void *, void *, Tensor *, void **)",
    "CanImportSemaphore": "void *(*)(void *, int, _Bool *)",
    "ImportSemaphore": "void *(*)(void *, Semaphore *, void **)",
    "ReleaseSemaphore": "void (*)(void *)",
    "WaitSemaphore": "void *(*)(void *, void *, void *, uint64_t)",
    "SignalSemaphore": "void *(*)(void *, void *, void *, uint64_t)",
    "Init": "void *(*)(void *, Config *)",
    "Deinit": "void *(*)(void *)",
}


class Refused(RuntimeError):
    """A call gave a status; the text is its message."""


class Interop:
    """The tables of the ONNX Runtime that the provider is registered with, and the provider's first device."""

    def __init__(self, ep_name: str) -> None:
        from vkep.ort.boundary import ffi as theirs
        from vkep.ort.boundary import live

        factory = live("OrtEpFactory")[-1]
        table = ffi.cast("void **", int(theirs.cast("uintptr_t", factory.ort.api)))
        self._api = {name: ffi.cast(kind, table[place]) for name, (place, kind) in _API.items()}
        inner = self._api["GetInteropApi"]()
        self._interop = {name: ffi.cast(kind, inner[place]) for place, (name, kind) in enumerate(_INTEROP.items())}
        self._env = self.out(self._api["CreateEnv"], 3, b"test")  # the process's one environment
        devices, count = ffi.new("void ***"), ffi.new("size_t *")
        self.check(self._api["GetEpDevices"](self._env, devices, count))
        self.device = next(
            devices[0][i]
            for i in range(count[0])
            if ffi.string(self._api["EpDevice_EpName"](devices[0][i])).decode() == ep_name
        )

    def close(self) -> None:
        self._api["ReleaseEnv"](self._env)

    def check(self, status: Any) -> None:
        if status != ffi.NULL:
            text = ffi.string(self._api["GetErrorMessage"](status)).decode()
            self._api["ReleaseStatus"](status)
            raise Refused(text)

    def out(self, function: Any, *arguments: Any) -> Any:
        made = ffi.new("void **")
        self.check(function(*arguments, made))
        return made[0]

    def call(self, name: str, *arguments: Any) -> None:
        self.check(self._interop[name](*arguments))

    def make(self, name: str, *arguments: Any) -> Any:
        return self.out(self._interop[name], *arguments)

    def release(self, name: str, thing: Any) -> None:
        (self._interop.get(name) or self._api[name])(thing)

    def can(self, name: str, importer: Any, kind: int) -> bool:
        answer = ffi.new("_Bool *")
        self.call(name, importer, kind, answer)
        return bool(answer[0])

    # ---- descriptors

    def import_memory(self, importer: Any, kind: int, handle: int, size: int, offset: int = 0) -> Any:
        descriptor = ffi.new("Memory *", (LEVEL, kind, ffi.cast("void *", handle), size, offset))
        return self.make("ImportMemory", importer, descriptor)

    def tensor(self, importer: Any, memory: Any, shape: tuple[int, ...], offset: int = 0, element: int = 1) -> Any:
        dims = ffi.new("int64_t[]", list(shape))
        descriptor = ffi.new("Tensor *", (LEVEL, element, dims, len(shape), offset))
        return self.make("CreateTensor", importer, memory, descriptor)

    def address(self, value: Any) -> int:
        return int(ffi.cast("uintptr_t", self.out(self._api["GetTensorMutableData"], value)))

    def stream(self) -> Any:
        return self.out(self._api["CreateSyncStreamForEpDevice"], self.device, ffi.NULL)

    def import_semaphore(self, importer: Any, descriptor: int) -> Any:
        given = ffi.new("Semaphore *", (LEVEL, TIMELINE_FD, ffi.cast("void *", descriptor)))
        return self.make("ImportSemaphore", importer, given)

    def init(self, queue: int = 0, graphics_api: int = VULKAN, **options: object) -> None:
        pairs = ffi.new("void **")
        self._api["CreateKeyValuePairs"](pairs)
        try:
            for key, value in options.items():
                self._api["AddKeyValuePair"](pairs[0], key.encode(), str(value).encode())
            config = ffi.new("Config *", (LEVEL, graphics_api, ffi.cast("void *", queue), pairs[0]))
            self.call("Init", self.device, config)
        finally:
            self._api["ReleaseKeyValuePairs"](pairs[0])

    def deinit(self) -> None:
        self.call("Deinit", self.device)
