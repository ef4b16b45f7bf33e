"""vkep as ONNX Runtime's plugin provider: what an ONNX Runtime user gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import onnxruntime

import vkep.ort
from tools.bench.peers.base import Peer, Unavailable, count_words
from tools.models.builder import Array


class VkepOrtPeer(Peer):
    """`onnxruntime.InferenceSession` with the provider's default options; who ran what is ONNX Runtime's own word."""

    packages = ("vkep", "onnxruntime", "vulkan")

    def open(self, model: Path, inputs: Mapping[str, Array]) -> None:
        vkep.ort.register()
        name = vkep.ort.get_ep_name()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        self._session = onnxruntime.InferenceSession(str(model), options, providers=[name], enable_fallback=0)
        self._session.disable_fallback()
        self._inputs = dict(inputs)
        self._names = [output.name for output in self._session.get_outputs()]
        where: dict[str, Counter[str]] = {}
        for part in self._session.get_provider_graph_assignment_info():
            where.setdefault(part.ep_name, Counter()).update(node.op_type for node in part.get_nodes())
        self._mine = where.pop(name, Counter())
        self._others = sum(where.values(), Counter())
        if not self._mine:
            raise Unavailable(f"all nodes fell to the CPU ({count_words(self._others)})")

    def run(self) -> dict[str, Array]:
        return dict(zip(self._names, self._session.run(None, self._inputs), strict=True))

    def placement(self) -> str:
        total = self._mine.total()
        if not self._others:
            return f"all {total} nodes on Vulkan"
        return f"{total} nodes on Vulkan, on the CPU: {count_words(self._others)}"
