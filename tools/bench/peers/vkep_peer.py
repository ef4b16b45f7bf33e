"""vkep itself, through its public API."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import vkep
from tools.bench.peers.base import Peer
from vkep.device.measure.limits import multiplies
from vkep.models.builder import Array


class VkepPeer(Peer):
    """`vkep.InferenceSession` with default options."""

    packages = ("vkep", "vulkan")

    def open(self, model: Path, inputs: Mapping[str, Array]) -> None:
        self._session = vkep.InferenceSession(model)
        self._inputs = dict(inputs)
        self._names = [output.name for output in self._session.get_outputs()]

    def run(self) -> dict[str, Array]:
        return dict(zip(self._names, self._session.run(None, self._inputs), strict=True))

    def work(self) -> list[tuple[int, int, str]]:
        plans = [island.plan for island in self._session.islands()]
        return [(d.flops, d.bytes, multiplies(plan, d)) for plan in plans for d in plan.dispatches]

    def placement(self) -> str:
        report = self._session.report()
        if report.all_on_vulkan:
            return f"all {len(report.nodes)} nodes on Vulkan"
        return "; ".join(f"{count} nodes {where}" for where, count in report.counts.items()) or report.note

    def close(self) -> None:
        self._session.close()
