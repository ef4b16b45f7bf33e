"""ONNX Runtime's WebGPU plugin provider (through Dawn, on Vulkan where it runs here)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import onnxruntime
import onnxruntime_ep_webgpu

from tools.bench.peers.base import Peer, Unavailable, count_words
from tools.models.builder import Array


class OrtWebGpuPeer(Peer):
    """The plugin registered by hand; nodes that it leaves to the CPU are told by `placement`."""

    packages = ("onnxruntime-ep-webgpu", "onnxruntime")

    def open(self, model: Path, inputs: Mapping[str, Array]) -> None:
        # Without it the plugin takes no CPU driver such as lavapipe; with a real GPU it changes nothing.
        os.environ.setdefault("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "1")
        self._name = onnxruntime_ep_webgpu.get_ep_name()
        onnxruntime.register_execution_provider_library("webgpu", onnxruntime_ep_webgpu.get_library_path())
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == self._name]
        if not devices:
            raise Unavailable("the plugin finds no device")
        gpu = onnxruntime.OrtHardwareDeviceType.GPU
        devices.sort(key=lambda device: device.device.type != gpu)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_provider_for_devices(devices[:1], {})
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        self._session = onnxruntime.InferenceSession(str(model), options)
        self._session.disable_fallback()
        self._inputs = dict(inputs)
        self._names = [output.name for output in self._session.get_outputs()]
        where: dict[str, Counter[str]] = {}
        for part in self._session.get_provider_graph_assignment_info():
            where.setdefault(part.ep_name, Counter()).update(node.op_type for node in part.get_nodes())
        self._mine = where.pop(self._name, Counter())
        self._others = sum(where.values(), Counter())
        if not self._mine:
            # Without an adapter it falls back silently: a CPU time would pass for its own.
            raise Unavailable(f"all nodes fell to the CPU ({count_words(self._others)})")

    def run(self) -> dict[str, Array]:
        return dict(zip(self._names, self._session.run(None, self._inputs), strict=True))

    def placement(self) -> str:
        total = self._mine.total()
        if not self._others:
            return f"all {total} nodes on WebGPU"
        return f"{total} nodes on WebGPU, on the CPU: {count_words(self._others)}"
