"""``vkep.capi.onnxruntime_pybind11_state`` (and ``_pybind_state``): what programs name by these paths of ``onnxruntime``, which
is exceptions and the names of the package itself.

The exceptions are onnxruntime's own where it is installed (vkep's errors derive from them, `vkep.errors.join_onnxruntime`), else
vkep's.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from gpu_shared.errors import DeviceLostError, GpuError
from vkep.errors import (
    InvalidInputError,
    InvalidModelError,
    NoFileError,
    UnsupportedModelError,
    VkepError,
    join_onnxruntime,
)

_OURS = {
    "DeviceReset": DeviceLostError,
    "EPFail": GpuError,
    "Fail": VkepError,
    "InvalidArgument": InvalidInputError,
    "InvalidGraph": InvalidModelError,
    "InvalidProtobuf": InvalidModelError,
    "NoSuchFile": NoFileError,
    "NotImplemented": UnsupportedModelError,
    "RuntimeException": InvalidInputError,
}
#: classes of the package that wrap others of these names here
_WRAPPED = ("IOBinding", "InferenceSession", "OrtDevice", "OrtValue", "SparseTensor")


def __getattr__(name: str) -> Any:
    if name not in _OURS:
        package = sys.modules["vkep"]
        if name not in package.__all__ or name in _WRAPPED:
            raise AttributeError(f"vkep.capi.onnxruntime_pybind11_state has no {name!r}, and vkep neither")
        return getattr(package, name)
    try:
        from onnxruntime.capi import onnxruntime_pybind11_state as theirs
    except ImportError:
        return _OURS[name]
    join_onnxruntime()
    return getattr(theirs, name)


capi = SimpleNamespace(onnxruntime_pybind11_state=sys.modules[__name__], _pybind_state=sys.modules[__name__])
