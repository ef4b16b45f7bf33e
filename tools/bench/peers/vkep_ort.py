"""vkep as ONNX Runtime's plugin provider: what an ONNX Runtime user gets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnxruntime

import vkep.ort
from tools.bench.peers.ort_peer import OrtPluginPeer
from vkep.models.builder import Array


class VkepOrtPeer(OrtPluginPeer):
    """`onnxruntime.InferenceSession` with the provider's default options."""

    packages = ("vkep", "onnxruntime", "vulkan")
    engine = "Vulkan"

    def open(self, model: Path, inputs: Mapping[str, Array]) -> None:
        vkep.ort.register()
        name = vkep.ort.get_ep_name()
        session = onnxruntime.InferenceSession(str(model), self._options(), providers=[name], enable_fallback=0)
        self._opened_with(session, inputs, name)
