"""Unknown attributes on operators whose schemas (of ONNX or ONNX Runtime) do not check attributes: ONNX Runtime warns
and ignores them, and so does vkep. On all other operators, both refuse unknown attributes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from vkep.graph.normalize import graphs

_NORMALIZATION = frozenset({"axis", "epsilon", "stash_type"})
#: the known attributes, by domain and operator
_UNCHECKED = {
    ("", "LayerNormalization"): _NORMALIZATION,
    ("", "SimplifiedLayerNormalization"): _NORMALIZATION,
    ("com.microsoft", "SimplifiedLayerNormalization"): _NORMALIZATION,
    ("com.microsoft", "BiasDropout"): frozenset({"seed"}),
    ("com.microsoft", "BitmaskDropout"): frozenset({"seed"}),
    ("com.microsoft", "BitmaskBiasDropout"): frozenset({"seed"}),
}


def ignored_attributes(node: onnx.NodeProto) -> set[str]:
    """The names of a node's attributes that are ignored."""
    known = _UNCHECKED.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))
    return set() if known is None else {a.name for a in node.attribute} - known


def with_ignored_attributes(model: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, set[str]]]:
    """Nodes of a graph, and of its nodes' bodies, that have ignored attributes, with their names."""
    for graph in graphs(model):
        for node in graph.node:
            if ignored := ignored_attributes(node):
                yield node, ignored
