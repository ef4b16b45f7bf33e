"""Initializers that the session's options replace (`SessionOptions.add_initializer`).

ONNX Runtime's interface shows a provider the model's own values as constants; it neither lists replacements nor gives
their values. Adding an initializer fails where one of that name was added, so each name is added to a copy of the
options. The values are the outputs of a session of a model that only returns them, on the CPU provider.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from vkep import dtypes
from vkep.ort.boundary import NULL, OrtError, ffi
from vkep.ort.memory.tensors import describe, tensor_array

if TYPE_CHECKING:
    from vkep.ort.api import Ort

_FLOAT, _WARNING, _NO_OPTIMIZATION = 1, 2, 0  # ONNXTensorElementDataType, OrtLoggingLevel, GraphOptimizationLevel
#: the shape of the replaced initializer in the model that returns it. There ONNX Runtime replaces nothing by device
#: memory.
_NO_SHAPE = (0, 7, 0, 7, 0, 7, 0)
#: entries that the session for the values must not repeat, or must not reject
_ENTRIES = {b"ep.context_enable": b"0", b"session.disable_cpu_ep_fallback": b"0"}
_reading = threading.local()


class Overrides:
    """The replacements of a session's initializers. `close` releases the copy of its options."""

    def __init__(self, ort: Ort, options: Any) -> None:
        """``options``: an OrtSessionOptions, which is copied."""
        self._ort = ort
        self._known: dict[str, bool] = {}
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.options = ort.get(ort.api.CloneSessionOptions, "OrtSessionOptions *", options)
        self._data, shape = ffi.new("float[1]"), ffi.new("int64_t[1]", [1])
        info = ort.get(ort.api.CreateMemoryInfo_V2, "OrtMemoryInfo *", b"Cpu", 0, 0, 0, 0, 0, 0)
        try:
            make = ort.api.CreateTensorWithDataAsOrtValue
            self._tensor = ort.get(make, "OrtValue *", info, self._data, 4, shape, 1, _FLOAT)
        finally:
            ort.api.ReleaseMemoryInfo(info)

    def __contains__(self, name: str) -> bool:
        if name not in self._known:
            refused = self._ort.api.AddInitializer(self.options, name.encode(), self._tensor)
            self._known[name] = refused != NULL
            if refused != NULL:
                self._ort.api.ReleaseStatus(refused)
        return self._known[name]

    def value(self, name: str, elem_type: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """A copy of a replacement's value. Raises `OrtError` where it is not in host memory, or has another type or
        shape than the model's initializer, which ``elem_type`` (ONNX's number) and ``shape`` describe."""
        if name not in self._arrays:
            self._arrays[name] = self._read(name, elem_type)
        array = self._arrays[name]
        if dtypes.from_numpy(array.dtype).onnx != elem_type or array.shape != shape:
            raise OrtError(
                f"add_initializer: {name!r} is given as {array.dtype} of shape {array.shape}, and the model's is "
                f"{dtypes.from_onnx(elem_type)} of shape {shape}; one in device memory cannot be read"
            )
        return array

    def close(self) -> None:
        """Idempotent; call no other method afterwards."""
        if self.options != NULL:
            self._ort.api.ReleaseSessionOptions(self.options)
            self._ort.api.ReleaseValue(self._tensor)
            self.options = NULL
            self._arrays.clear()

    def _read(self, name: str, elem_type: int) -> np.ndarray[Any, Any]:
        ort, api = self._ort, self._ort.api
        model = _giving(name, elem_type)
        with ExitStack() as made:
            env = ort.get(api.CreateEnv, "OrtEnv *", _WARNING, b"vkep")
            made.callback(api.ReleaseEnv, env)
            options = ort.get(api.CloneSessionOptions, "OrtSessionOptions *", self.options)
            made.callback(api.ReleaseSessionOptions, options)
            for key, text in _ENTRIES.items():
                ort.check(api.AddSessionConfigEntry(options, key, text))
            ort.check(api.SetSessionGraphOptimizationLevel(options, _NO_OPTIMIZATION))
            ort.check(api.SetOptimizedModelFilePath(options, b""))
            ort.check(api.DisableProfiling(options))
            _reading.now = True
            try:
                session = ort.get(api.CreateSessionFromArray, "OrtSession *", env, model, len(model), options)
            finally:
                _reading.now = False
            made.callback(api.ReleaseSession, session)
            output, value = ffi.new("char[]", b"value"), ffi.new("OrtValue *[]", 1)
            names = ffi.new("char const *[]", [output])
            ort.check(api.Run(session, NULL, NULL, NULL, 0, names, 1, value))
            made.callback(api.ReleaseValue, value[0])
            return tensor_array(describe(ort, value[0]))


def check_known_answers(ort: Ort) -> None:
    """As `Ort` does for the rest of the tables: a call at a wrong offset would return another result. Raises
    `OrtError`."""
    options = ort.get(ort.api.CreateSessionOptions, "OrtSessionOptions *")
    first = Overrides(ort, options)
    said: Any = "known" in first
    second = Overrides(ort, first.options)
    said = (said, "known" in second, "other" in second)
    first.close()
    second.close()
    ort.api.ReleaseSessionOptions(options)
    ort.expect("initializers of session options", said, (False, True, False))


def are_being_read() -> bool:
    """Whether this thread makes the session that gives a replacement: the provider claims nothing in it."""
    return getattr(_reading, "now", False)


def _giving(name: str, elem_type: int) -> bytes:
    """A model whose output is an initializer's value."""
    placeholder = onnx.TensorProto(name=name, data_type=elem_type, dims=_NO_SHAPE)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", [name], ["value"])],
        "initializer",
        [],
        [onnx.helper.make_tensor_value_info("value", elem_type, None)],
        [placeholder],
    )
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9
    ).SerializeToString()
