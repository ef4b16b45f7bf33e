"""Converts ONNX to TOSA 1.0. Pure: neither a driver nor a converter is needed."""

from vkep.tosa.lower import TosaGraph, TosaIsland, TosaPort, lower_nodes
from vkep.tosa.registry import declared, tosa_operator

__all__ = ["TosaGraph", "TosaIsland", "TosaPort", "declared", "lower_nodes", "tosa_operator"]
