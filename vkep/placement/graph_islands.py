"""The VGF delegate's islands while nodes are being placed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from vkep.graph.model import Node
from vkep.graph.weights import Weight
from vkep.ir.program import HostValue, ValueSpec, VgfStep
from vkep.tosa.lower import TosaIsland, TosaPort


class GraphIslands:
    """TOSA islands by stage. ``quantized`` are the outputs of DequantizeLinear nodes."""

    def __init__(self) -> None:
        self.by_stage: dict[int, TosaIsland] = {}
        self.quantized: dict[str, Node] = {}

    def note(self, node: Node) -> None:
        """Record the output of a DequantizeLinear, also where folding makes it a constant."""
        if node.op_type == "DequantizeLinear" and not node.domain:
            self.quantized.update({name: node for name in node.outputs if name})

    def is_quantized(self, node: Node) -> bool:
        """Whether a node reads quantized values."""
        return any(name in self.quantized for name in node.reads)

    def add(self, node: Node, stage: int, known: Mapping[str, Weight | ValueSpec | HostValue]) -> list[TosaPort]:
        """Add a node to the island of a stage; returns its outputs. Raises `Decline`."""

        def spec(name: str) -> Weight | TosaPort | None:
            value = known.get(name)
            if isinstance(value, ValueSpec):
                return TosaPort(name, value.dtype, value.shape)
            return value if isinstance(value, Weight) else None

        island = self.by_stage.get(stage) or TosaIsland(self.quantized)
        ports = island.add(node, spec)
        self.by_stage[stage] = island
        return ports

    def reads(self, but: TosaIsland | None = None) -> set[str]:
        """The values that the islands read from outside."""
        return {name for island in self.by_stage.values() if island is not but for name in island.inputs}

    def steps(self, wanted: Collection[str], shared: Collection[str] = ()) -> list[tuple[int, VgfStep]]:
        """(stage, step) of each island that computes something ``wanted`` (or read by another island). ``shared`` are
        the keys of weights that Vulkan's islands have on the device."""
        steps = []
        for stage, island in self.by_stage.items():
            asked = self.reads(but=island).union(wanted)
            made: Sequence[str] = [n for node in island.nodes for n in node.outputs if n in asked]
            if made:
                steps.append((stage, VgfStep(island.finish(list(dict.fromkeys(made)), shared), tuple(island.nodes))))
        return steps
