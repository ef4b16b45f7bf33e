"""Shared by the peers that are sessions of ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import onnxruntime

from tools.bench.peers.base import Peer, Unavailable, count_words
from vkep.models.builder import Array


class OrtPeer(Peer):
    """A subclass makes ``session`` when it is opened."""

    session: onnxruntime.InferenceSession

    def _opened(self, session: onnxruntime.InferenceSession, inputs: Mapping[str, Array]) -> None:
        self.session, self._inputs = session, dict(inputs)
        self._names = [output.name for output in session.get_outputs()]

    def run(self) -> dict[str, Array]:
        return dict(zip(self._names, self.session.run(None, self._inputs), strict=True))


class OrtPluginPeer(OrtPeer):
    """A session with a plugin's provider; the placement of nodes is reported by ONNX Runtime."""

    engine: str  #: the device that the provider runs on

    @staticmethod
    def _options() -> onnxruntime.SessionOptions:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return options

    def _opened_with(self, session: onnxruntime.InferenceSession, inputs: Mapping[str, Array], provider: str) -> None:
        """Raises `Unavailable` where the provider runs no node: the CPU's time would be reported as the provider's."""
        session.disable_fallback()
        self._opened(session, inputs)
        where: dict[str, Counter[str]] = {}
        for part in session.get_provider_graph_assignment_info():
            where.setdefault(part.ep_name, Counter()).update(node.op_type for node in part.get_nodes())
        self._mine = where.pop(provider, Counter())
        self._others = sum(where.values(), Counter())
        if not self._mine:
            raise Unavailable(f"all nodes fell to the CPU ({count_words(self._others)})")

    def placement(self) -> str:
        total = self._mine.total()
        if not self._others:
            return f"all {total} nodes on {self.engine}"
        return f"{total} nodes on {self.engine}, on the CPU: {count_words(self._others)}"
