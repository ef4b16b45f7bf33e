"""Device tensors for ONNX Runtime's sessions, without its private names: `to_device` and `bind`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vkep.arena.records import ArenaStats
from vkep.device.tensor import DLPACK_CPU, DLPACK_VULKAN
from vkep.ort.names import EP_NAME


def to_device(array: Any, device: int | str | None = None) -> Any:
    """Copy ``array`` (anything that numpy converts) into an ``onnxruntime.OrtValue`` in the provider's memory on
    ``device`` (as `vkep.SessionOptions.device`; None: the default device of sessions).

    Raises `DeviceNotFoundError`, ``RuntimeError`` where the provider is not registered or memory runs out.
    """
    import onnxruntime

    number, vendor = _memory_of(onnxruntime, device)
    made = onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"), "gpu", number, vendor)
    if not made.data_ptr() and made.tensor_size_in_bytes():
        raise RuntimeError(
            f"{made.tensor_size_in_bytes()} bytes of device memory: not there; the log of vkep.ort says why"
        )
    return made


def memory_stats(device: int | str | None = None) -> ArenaStats:
    """What all sessions of the provider on ``device`` (as for `to_device`) hold in device memory, weights included:
    ``bytes_in_use``, ``max_bytes_in_use`` (the peak since the first of them was opened), ``total_allocated_bytes``, and
    ``bytes_limit``, the bound (``gpu_mem_limit``; 0: none). All are 0 where no session is open.

    Raises `DeviceNotFoundError`.
    """
    from vkep.ort.memory.domain import stats_of

    return stats_of(_selected(device, os.environ.get("VKEP_DEVICE"))[0])


def bind(session: Any, inputs: Mapping[str, Any], outputs: Sequence[str] | Mapping[str, Any] | None = None) -> Any:
    """An ``onnxruntime.IOBinding`` of a session, for ``session.run_with_iobinding``.

    Args:
        inputs: by name, an ``OrtValue`` to use in place, or an array that is copied to the device here, once.
        outputs: names of outputs to leave on the device (None: all); or by name an ``OrtValue`` to write in place, None for
            new device memory at each run, or ``"cpu"``.

    Raises ``ValueError`` for a name that the model does not have, and as `to_device`.
    """
    import onnxruntime

    where: Mapping[str, Any]
    where = (
        outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs or (o.name for o in session.get_outputs()))
    )
    _known("input", inputs, session.get_inputs())
    _known("output", where, session.get_outputs())
    device = session.get_provider_options().get(EP_NAME, {}).get("device")
    wanted = int(device) if device is not None and device.isdecimal() else device
    binding = session.io_binding()
    gpu: Any = None
    for name, value in inputs.items():
        given = value if isinstance(value, onnxruntime.OrtValue) else to_device(value, wanted)
        binding.bind_ortvalue_input(name, given)
    for name, value in where.items():
        if isinstance(value, onnxruntime.OrtValue):
            binding.bind_ortvalue_output(name, value)
        elif value is None:
            if gpu is None:  # once: a decoder has tens of such outputs
                number, vendor = _memory_of(onnxruntime, wanted)
                # the public method has no vendor argument, without which ONNX Runtime looks for CUDA's memory
                gpu = onnxruntime.OrtDevice.make("gpu", number, vendor_id=vendor)._get_c_device()
            binding._iobinding.bind_output(name, gpu)
            getattr(binding, "_bound_outputs", {})[name] = None
        elif value == "cpu":
            binding.bind_output(name)
        else:
            raise ValueError(f"output {name!r}: got {value!r}, expected an OrtValue, None or 'cpu'")
    return binding


def _known(what: str, names: Mapping[str, Any], declared: Sequence[Any]) -> None:
    there = [value.name for value in declared]
    for name in names:
        if name not in there:
            raise ValueError(f"the model has no {what} named {name!r}; it has {there}")


def _memory_of(onnxruntime: Any, device: int | str | None) -> tuple[int, int]:
    """(number, vendor) of a device's memory in ONNX Runtime."""
    uuid, name = _selected(device, os.environ.get("VKEP_DEVICE"))
    memory = _memories(onnxruntime).get(uuid)
    if memory is None:
        raise RuntimeError(f"{EP_NAME} has no device {name} in ONNX Runtime: call vkep.ort.register() first")
    return memory


@functools.cache  # listing the devices takes milliseconds
def _selected(device: int | str | None, default: str | None) -> tuple[str, str]:
    """UUID and name of a device; ``default`` is what the environment names."""
    from gpu_shared.instance import list_devices, select_device

    caps = select_device(list_devices(), device).capabilities
    return caps.uuid, caps.name


def _memories(onnxruntime: Any) -> dict[str, tuple[int, int]]:
    """(number, vendor) of each device's memory in ONNX Runtime, by the device's UUID."""
    mine = [d for d in onnxruntime.get_ep_devices() if d.ep_name == EP_NAME]
    return {d.ep_metadata["vulkan_uuid"]: (k, d.device.vendor_id) for k, d in enumerate(mine)}


# ---- devices' names

#: names of devices in ONNX Runtime's Python API that stand for a provider's; of all others "gpu" does
_NAMES = {
    "CUDAExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "cuda",
    "NvTensorRTRTXExecutionProvider": "cuda",
    "ROCMExecutionProvider": "cuda",
    "MIGraphXExecutionProvider": "cuda",
    "DmlExecutionProvider": "dml",
    "CANNExecutionProvider": "cann",
    "WebGpuExecutionProvider": "webgpu",
}
_NPUS = ("CANNExecutionProvider", "QNNExecutionProvider", "OpenVINOExecutionProvider", "VitisAIExecutionProvider")


def replaced_names(providers: Iterable[str], available: Sequence[str]) -> set[str]:
    """The names of devices that mean Vulkan's where it replaces these providers: "cuda", "gpu" ... ONNX Runtime calls the
    memory of every GPU "cuda" (`OrtValue.device_name`), and programs pass that on: it does, but where CUDA's provider is
    among the ``available`` ones."""
    names = {_NAMES.get(provider, "gpu") for provider in providers if provider != "CPUExecutionProvider"}
    if names:
        names |= {"gpu"} if "CUDAExecutionProvider" in available else {"gpu", "cuda"}
    return names | ({"npu"} if not set(_NPUS).isdisjoint(providers) else set())


def device_maker(onnxruntime: Any, make: Callable[..., Any], names: Callable[[], set[str]]) -> Callable[..., Any]:
    """``onnxruntime.OrtDevice.make``, around its own: ``names`` mean the Vulkan device with the number that is passed; 0: the
    default device of sessions. `OrtValue` and `IOBinding` make all devices by this method."""

    @functools.wraps(make)
    def make_device(ort_device_name: Any, device_id: Any, vendor_id: Any = -1) -> Any:
        is_ours = vendor_id >= 0 and (int(device_id), int(vendor_id)) in _memories(onnxruntime).values()
        if ort_device_name in names() and not is_ours:
            number, vendor_id = _memory_of(onnxruntime, int(device_id) or None)
            return make("gpu", number, vendor_id)
        return make(ort_device_name, device_id, vendor_id)

    return make_device


# ---- DLPack


def lies_on_vulkan(value: Any) -> int | None:
    """The index of the Vulkan device of an ``OrtValue``; None where it is on none."""
    from vkep.ort.memory.domain import domain_of

    if value.device_name() == "cpu" or not value.is_tensor() or is_pinned(value):
        return None
    pointer = int(value.data_ptr())
    try:
        domain = domain_of(pointer)
        domain.find(pointer)
    except ValueError:
        return None
    return domain.context.capabilities.index


def is_pinned(value: Any) -> bool:
    """Whether an ``OrtValue`` is in the provider's host-accessible memory."""
    from vkep.ort.boundary import live
    from vkep.ort.memory.allocator import PinnedAllocator

    if value.device_name() == "cpu":
        return False
    pointer = int(value.data_ptr())
    return any(a.holds(pointer) for a in live("OrtAllocator") if isinstance(a, PinnedAllocator))


def pinned_array(value: Any) -> np.ndarray[Any, Any]:
    """The content of a value in host-accessible memory, shared; the array keeps the value alive. Raises ``ValueError``
    for other values."""
    from vkep import dtypes
    from vkep.device.tensor import Shown

    dtype = dtypes.from_onnx(value.element_type())
    if dtype is None or not is_pinned(value):
        raise ValueError(
            f"an OrtValue of {value.data_type()} on {value.device_name()}: it lies in no host-accessible memory"
        )
    shown = Shown(value, int(value.data_ptr()), value.tensor_size_in_bytes())
    return np.asarray(shown).view(dtype.numpy).reshape(value.shape())


def dlpack_methods(capsule: Any, device: Any) -> dict[str, Any]:
    """``__dlpack__`` and ``__dlpack_device__`` for ``onnxruntime.OrtValue``, around its own methods: ONNX Runtime
    reports the memory of every GPU as CUDA's, and a consumer would use a Vulkan address as one of CUDA's."""

    def __dlpack_device__(self: Any) -> tuple[int, int]:
        if is_pinned(self):
            return DLPACK_CPU
        index = lies_on_vulkan(self)
        made: tuple[int, int] = device(self) if index is None else (DLPACK_VULKAN, index)
        return made

    def __dlpack__(self: Any, *, stream: Any = None, dl_device: Any = None, copy: Any = None, **more: Any) -> Any:
        if is_pinned(self) and (dl_device is None or tuple(dl_device) == DLPACK_CPU):
            return pinned_array(self).__dlpack__(**more)
        if lies_on_vulkan(self) is None:
            return capsule(self, stream=stream)
        if dl_device is None or tuple(dl_device) != DLPACK_CPU or copy is False:
            raise BufferError(
                f"an OrtValue of {self.data_type()} {list(self.shape())} on Vulkan: its memory has no address that other "
                "libraries could use; take numpy(), or ask for the host: numpy.from_dlpack(value, device='cpu')"
            )
        return self.numpy().__dlpack__(**more)

    return {"__dlpack__": __dlpack__, "__dlpack_device__": __dlpack_device__}
