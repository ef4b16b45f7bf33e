"""vkep as an ONNX Runtime plugin execution provider: ``VulkanExecutionProvider``.

    import onnxruntime, vkep.ort

    vkep.ort.register()
    session = onnxruntime.InferenceSession("model.onnx", providers=["VulkanExecutionProvider"])

Needs ``onnxruntime`` 1.29 or later (``pip install vkep[ort]``) and, at the first use, a C compiler (`vkep.ort.library`).
"""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Any

from gpu_shared.lazy import lazy
from vkep.ort.names import EP_NAME, REGISTRATION_NAME

_lock = threading.Lock()

if TYPE_CHECKING:
    from vkep.ort.memory.values import bind, memory_stats, to_device

__all__ = [
    "EP_NAME",
    "bind",
    "get_ep_name",
    "get_ep_names",
    "get_library_path",
    "memory_stats",
    "register",
    "to_device",
    "unregister",
]


def get_library_path() -> str:
    """The plugin library's path, for ``onnxruntime.register_execution_provider_library``; it is compiled at the first
    call.

    Raises `vkep.ort.library.LibraryError`.
    """
    importlib.import_module("vkep.ort.factory")  # binds the callbacks before ONNX Runtime uses them
    from vkep.ort import library

    return str(library.load().__file__)


def get_ep_name() -> str:
    """The provider's name."""
    return EP_NAME


def get_ep_names() -> list[str]:
    """The names of all providers of the library."""
    return [EP_NAME]


def register(name: str = REGISTRATION_NAME) -> None:
    """Register the provider with ONNX Runtime; a second call does nothing. Without a Vulkan device the provider has no
    device either: the logger ``vkep.ort`` has the reason.

    Raises `LibraryError` where the library cannot be built, ``ImportError`` without onnxruntime 1.29 or later, and ONNX
    Runtime's own exception where it refuses the library.
    """
    onnxruntime = _onnxruntime()
    with _lock:
        importlib.import_module("vkep.ort.python_sessions").install(onnxruntime)
        if any(device.ep_name == EP_NAME for device in onnxruntime.get_ep_devices()):
            return
        path = get_library_path()
        factory = importlib.import_module("vkep.ort.factory")
        if not factory.is_registered():
            try:
                onnxruntime.register_execution_provider_library(name, path)
            except BaseException:
                factory.forget_registration()
                raise


def unregister(name: str = REGISTRATION_NAME) -> None:
    """Undo the registration; close the sessions that use it first."""
    _onnxruntime().unregister_execution_provider_library(name)
    importlib.import_module("vkep.ort.python_sessions").remove()


__getattr__ = lazy(__name__, {"vkep.ort.memory.values": "bind memory_stats to_device"})  # they import numpy


def _onnxruntime() -> Any:
    needed = "vkep.ort needs onnxruntime 1.29 or later"
    try:
        module = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ImportError(f"{needed}, which is not installed: pip install 'vkep[ort]'") from error
    if tuple(int(part) for part in module.__version__.split(".")[:2]) < (1, 29):
        raise ImportError(f"{needed}, but {module.__version__} is installed: pip install 'vkep[ort]'")
    return module
