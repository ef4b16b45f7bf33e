"""ONNX to TOSA 1.0: pure; no driver and no converter is needed to make the text."""

from vkep.tosa.lower import TosaGraph, TosaIsland, TosaPort, lower_nodes
from vkep.tosa.registry import declared, tosa_operator

__all__ = ["TosaGraph", "TosaIsland", "TosaPort", "declared", "lower_nodes", "tosa_operator"]
