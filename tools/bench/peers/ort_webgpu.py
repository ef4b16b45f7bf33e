"""ONNX Runtime's WebGPU plugin provider (through Dawn, on Vulkan where it runs here)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import onnxruntime
import onnxruntime_ep_webgpu

from tools.bench.peers.base import Unavailable
from tools.bench.peers.ort_peer import OrtPluginPeer
from vkep.models.builder import Array


class OrtWebGpuPeer(OrtPluginPeer):
    """The plugin registered by hand; `placement` reports nodes that it leaves to the CPU."""

    packages = ("onnxruntime-ep-webgpu", "onnxruntime")
    engine = "WebGPU"

    def open(self, model: Path, inputs: Mapping[str, Array]) -> None:
        # Without it the plugin ignores CPU drivers such as lavapipe; with a GPU it has no effect.
        os.environ.setdefault("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "1")
        name = onnxruntime_ep_webgpu.get_ep_name()
        onnxruntime.register_execution_provider_library("webgpu", onnxruntime_ep_webgpu.get_library_path())
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
        if not devices:
            raise Unavailable("the plugin finds no device")
        gpu = onnxruntime.OrtHardwareDeviceType.GPU
        devices.sort(key=lambda device: device.device.type != gpu)
        options = self._options()
        options.add_provider_for_devices(devices[:1], {})
        self._opened_with(onnxruntime.InferenceSession(str(model), options), inputs, name)
