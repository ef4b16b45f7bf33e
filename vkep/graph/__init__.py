"""Reads ONNX models from files, bytes or protos into plain nodes, values and weights."""

from vkep.graph.load import load_model
from vkep.graph.model import Graph, Model, Node, ValueInfo
from vkep.graph.weights import Weight

__all__ = ["Graph", "Model", "Node", "ValueInfo", "Weight", "load_model"]
