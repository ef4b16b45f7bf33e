"""ONNX Runtime's function tables for Python: failures raise, texts are ``str``, lists are lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vkep.ort.boundary import API_LEVEL, NULL, OrtError, ffi, use_tables


class Ort:
    """The tables that ONNX Runtime passed to the plugin. ``api`` and ``ep_api`` are the raw ones. Raises
    `OrtError` for a version without the interface that vkep needs."""

    def __init__(self, base: Any) -> None:
        self.version = ffi.string(base.GetVersionString()).decode()
        self.api = base.GetApi(API_LEVEL)
        if self.api == NULL:
            use_tables(base.GetApi(1))  # it has CreateStatus, so that the caller gets this error
            raise OrtError(
                f"ONNX Runtime {self.version} has no C interface of level {API_LEVEL}: vkep needs 1.{API_LEVEL} or later"
            )
        use_tables(self.api)
        self.ep_api = self.api.GetEpApi()
        self._check_known_answers()

    def check(self, status: Any) -> None:
        """Raise `OrtError` with a failed call's message."""
        if status != NULL:
            message = ffi.string(self.api.GetErrorMessage(status)).decode("utf-8", "replace")
            self.api.ReleaseStatus(status)
            raise OrtError(message)

    def get(self, function: Any, kind: str, *args: Any) -> Any:
        """The value that a call writes to its last argument, a ``kind *``."""
        out = ffi.new(f"{kind} *")
        self.check(function(*args, out))
        return out[0]

    def text(self, function: Any, *args: Any) -> str:
        """As `get`, for a text."""
        pointer = self.get(function, "const char *", *args)
        return "" if pointer == NULL else ffi.string(pointer).decode("utf-8", "replace")

    def items(self, count: Any, items: Any, kind: str, thing: Any) -> list[Any]:
        """The list that a pair of calls (``...GetNum...``, ``...Get...``) returns."""
        number = self.get(count, "size_t", thing)
        if not number:
            return []
        out = ffi.new(f"{kind}[]", number)
        self.check(items(thing, out, number))
        return list(out)

    # ---- key-value pairs

    def pairs(self, pairs: Any) -> dict[str, str]:
        """Key-value pairs as a dictionary (NULL: empty)."""
        if pairs == NULL:
            return {}
        keys, values, count = ffi.new("char const *const **"), ffi.new("char const *const **"), ffi.new("size_t *")
        self.api.GetKeyValuePairs(pairs, keys, values, count)

        def decode(text: Any) -> str:
            return bytes(ffi.string(text)).decode("utf-8", "replace")

        return {decode(keys[0][i]): decode(values[0][i]) for i in range(count[0])}

    def make_pairs(self, values: Mapping[str, str]) -> Any:
        """New key-value pairs, for ONNX Runtime to own or for `ReleaseKeyValuePairs`."""
        out = ffi.new("OrtKeyValuePairs **")
        self.api.CreateKeyValuePairs(out)
        for key, value in values.items():
            self.api.AddKeyValuePair(out[0], key.encode(), value.encode())
        return out[0]

    @contextmanager
    def temporary_pairs(self, values: Mapping[str, str]) -> Iterator[Any]:
        """Key-value pairs for one call that copies them."""
        pairs = self.make_pairs(values)
        try:
            yield pairs
        finally:
            self.api.ReleaseKeyValuePairs(pairs)

    def take_pairs(self, function: Any, *args: Any) -> dict[str, str]:
        """The pairs that a call creates and its caller must release."""
        pairs = self.get(function, "OrtKeyValuePairs *", *args)
        try:
            return self.pairs(pairs)
        finally:
            if pairs != NULL:
                self.api.ReleaseKeyValuePairs(pairs)

    # ---- checks that these are the tables that abi_tables.h describes

    def _check_known_answers(self) -> None:
        """Call each part of the tables with a known answer. A wrong offset fails or crashes here, at the registration,
        rather than in the middle of a model. Raises `OrtError`."""
        api, ep_api = self.api, self.ep_api
        status = api.CreateStatus(2, b"known answer")
        said: Any = (api.GetErrorCode(status), ffi.string(api.GetErrorMessage(status)))
        api.ReleaseStatus(status)
        self.expect("CreateStatus", said, (2, b"known answer"))
        with self.temporary_pairs({"key": "value"}) as pairs:
            self.expect("key-value pairs", self.pairs(pairs), {"key": "value"})
        info = self.get(api.CreateMemoryInfo_V2, "OrtMemoryInfo *", b"known", 1, 0xABC, 3, 0, 0, 0)
        try:
            device = ep_api.MemoryInfo_GetMemoryDevice(info)
            said = (
                self.text(api.MemoryInfoGetName, info),
                self.get(api.MemoryInfoGetId, "int", info),
                api.MemoryInfoGetVendorId(info),
                ep_api.MemoryDevice_GetDeviceType(device),
                ep_api.MemoryDevice_GetVendorId(device),
                ep_api.MemoryDevice_GetDeviceId(device),
            )
            self.expect("memory info", said, ("known", 3, 0xABC, 1, 0xABC, 3))
            self._check_tensor(info)
        finally:
            api.ReleaseMemoryInfo(info)
        schema = self.get(ep_api.GetOpSchema, "OrtOpSchema *", b"Relu", 14, b"")
        count = self.get(ep_api.OpSchema_GetTypeConstraintCount, "size_t", schema)
        ep_api.ReleaseOpSchema(schema)
        self.expect("operator schema", count, 1)

    def _check_tensor(self, info: Any) -> None:
        api = self.api
        data, shape = ffi.new("float[6]"), ffi.new("int64_t[2]", [2, 3])
        tensor = self.get(api.CreateTensorWithDataAsOrtValue, "OrtValue *", info, data, 24, shape, 2, 1)
        try:
            kind, dims, rank = ffi.new("int *"), ffi.new("int64_t const **"), ffi.new("size_t *")
            self.check(api.GetTensorElementTypeAndShapeDataReference(tensor, kind, dims, rank))
            said = (kind[0], rank[0], [dims[0][i] for i in range(min(rank[0], 2))])
            self.expect("tensor", said, (1, 2, [2, 3]))
            same = self.get(api.GetTensorMutableData, "void *", tensor) == ffi.cast("void *", data)
            self.expect("tensor data", same, True)
            self.expect("tensor size", self.get(api.GetTensorSizeInBytes, "size_t", tensor), 24)
        finally:
            api.ReleaseValue(tensor)
        unknown = self.get(api.CreateTensorTypeAndShapeInfo, "OrtTensorTypeAndShapeInfo *")
        try:
            ranks = [api.TensorTypeAndShape_HasShape(unknown)]
            self.check(api.SetDimensions(unknown, ffi.new("int64_t[1]"), 0))
            ranks.append(api.TensorTypeAndShape_HasShape(unknown))
        finally:
            api.ReleaseTensorTypeAndShapeInfo(unknown)
        self.expect("unknown rank", ranks, [False, True])

    def expect(self, what: str, said: Any, expected: Any) -> None:
        """Raise `OrtError` where a call does not return the known answer."""
        if said != expected:
            raise OrtError(
                f"ONNX Runtime {self.version}'s function table is not what vkep expects: {what} gave {said!r}, "
                f"expected {expected!r}; update vkep or onnxruntime"
            )
