"""An ONNX backend (``onnx.backend.base``): ``prepare``, ``run_model``, ``run_node``, ``supports_device``.

import vkep.backend
prepared = vkep.backend.prepare(model)        # on the default Vulkan device
(y,) = prepared.run([x])
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from gpu_shared.errors import DriverNotFoundError
from gpu_shared.instance import list_devices
from vkep.session import InferenceSession, Report, SessionOptions
from vkep.session.ort_interface.options import OrtSessionOptions
from vkep.session.run_options import RunOptions

#: ``run_node`` and the ONNX test runner pass their tolerances to ``prepare``; they are not session options
_NOT_OPTIONS = ("rtol", "atol", "opset_version")


class VulkanBackendRep(BackendRep):
    """A prepared model. ``session`` is its `InferenceSession`; closing it frees the memory."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run once: ``inputs`` are arrays in the order of the model's inputs, or a mapping by name, with their shapes
        and element types.

        Keyword arguments are attributes of `RunOptions`. Returns a named tuple of arrays, also indexable by output name. Raises
        `InvalidInputError` as `InferenceSession.run` does, ``ValueError`` where the number of inputs is wrong, ``TypeError``
        and ``AttributeError`` for options.
        """
        options = RunOptions() if kwargs else None
        for name, value in kwargs.items():
            setattr(options, name, value)
        names = [i.name for i in self.session.get_inputs()]
        if not isinstance(inputs, Mapping):
            values = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
            if len(values) != len(names):
                raise ValueError(f"got {len(values)} inputs, the model takes {len(names)}: {names}")
            inputs = dict(zip(names, values, strict=True))
        results = self.session.run(None, inputs, options)
        return namedtupledict("Outputs", [o.name for o in self.session.get_outputs()])(*results)

    def report(self) -> Report:
        """Where each node runs and why."""
        return self.session.report()

    def close(self) -> None:
        """Close the session."""
        self.session.close()


@functools.cache
def _usable_devices() -> frozenset[int]:
    """Return the indices of the usable devices. Cached, since ONNX's test runner calls this for each of its thousands
    of cases."""
    return frozenset(d.index for d in list_devices() if not d.problems)


class VulkanBackend(Backend):
    """The ONNX backend interface over `InferenceSession`.

    A device is ``VULKAN`` or ``VULKAN:<index>`` (as `vkep.devices` counts). ``CPU``, the interface's default argument,
    also means the default Vulkan device.
    """

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether ``device`` names a Vulkan device of this machine."""
        try:
            index = _device_index(device)
            usable = _usable_devices()
        except (ValueError, DriverNotFoundError):
            return False
        return bool(usable) if index is None else index in usable

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the device exists. Nodes that Vulkan cannot run are reported by `prepare` and the report."""
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> VulkanBackendRep:
        """A session for ``model``; keyword arguments are attributes of `SessionOptions`.

        Raises `ValueError` for a device of another kind, and what `InferenceSession` raises.
        """
        index = _device_index(device)
        options = {name: value for name, value in kwargs.items() if name not in _NOT_OPTIONS}
        if index is not None:
            options["device"] = index
        kept = SessionOptions()  # attributes of onnxruntime's that are no fields
        for name in [name for name in options if hasattr(OrtSessionOptions, name)]:
            setattr(kept, name, options.pop(name))
        return VulkanBackendRep(InferenceSession(model, kept, **options))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Prepare, run once and close. Keyword arguments are attributes of `SessionOptions` or `RunOptions`."""
        of_run = {name: kwargs.pop(name) for name in list(kwargs) if hasattr(RunOptions, name)}
        prepared = cls.prepare(model, device, **kwargs)
        try:
            return prepared.run(inputs, **of_run)
        finally:
            prepared.close()

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node: ``inputs`` are arrays for the inputs that are present ("" marks an absent one).

        ``opset_version`` in the keyword arguments is the version of the node's domain (default: the newest). Returns a
        named tuple of arrays. Raises ``ValueError`` where the number of inputs is wrong, and as `InferenceSession`.
        """
        version = int(kwargs.get("opset_version", onnx.defs.onnx_opset_version()))
        names = list(dict.fromkeys(name for name in node.input if name))
        values = [inputs] if isinstance(inputs, np.ndarray) else [np.asarray(v) for v in inputs]
        if len(values) != len(names):
            raise ValueError(f"{node.op_type}: got {len(values)} inputs, the node takes {len(names)}: {names}")
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in zip(names, values, strict=True)
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        for info, (dtype, shape) in zip(outputs, outputs_info or (), strict=False):
            elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            info.CopyFrom(helper.make_tensor_value_info(info.name, elem_type, shape))
        graph = helper.make_graph([node], node.op_type, infos, outputs)
        domains = {"": version if not node.domain else onnx.defs.onnx_opset_version(), node.domain: version}
        opsets = [helper.make_opsetid(domain, number) for domain, number in domains.items()]
        return cls.run_model(helper.make_model(graph, opset_imports=opsets), values, device, **kwargs)


def _device_index(device: str) -> int | None:
    """The index that a device string names; None for the default. `ValueError` for another kind of device."""
    kind, _, index = device.partition(":")
    if kind.upper() not in ("VULKAN", "CPU") or (index and not index.isdigit()):
        raise ValueError(f"device is {device!r}, expected 'VULKAN' or 'VULKAN:<index>' (see vkep.devices())")
    return int(index) if index and kind.upper() == "VULKAN" else None


is_compatible = VulkanBackend.is_compatible
prepare = VulkanBackend.prepare
run_model = run = VulkanBackend.run_model
run_node = VulkanBackend.run_node
supports_device = VulkanBackend.supports_device
