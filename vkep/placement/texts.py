"""Operators of ai.onnx.ml whose result is text: the device computes an index for each element, and the text is looked
up by it.

So classifiers trained on text labels, and encoders from numbers to texts, leave only the text lookup to the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import onnx
from onnx import helper

from vkep.graph.model import Node
from vkep.graph.weights import ProtoWeight
from vkep.placement.inlined import Inlined, make_node

_ML = "ai.onnx.ml"
#: classifiers, with the attribute that has integers instead of the labels
_CLASSIFIERS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
_LABELS, _VALUES = "classlabels_strings", "values_strings"
#: a LabelEncoder's attributes for the value of an unknown key: the second one where present
_DEFAULT, _DEFAULT_TENSOR = "default_string", "default_tensor"


def gives_texts(node: Node, opsets: Mapping[str, int]) -> bool:
    """Whether the node's first result is text that `numbered` can look up."""
    if node.domain != _ML or "" not in opsets:
        return False
    if node.op_type in _CLASSIFIERS:
        return bool(node.attributes.get(_LABELS))
    return node.op_type == "LabelEncoder" and node.since_version > 1 and bool(node.attributes.get(_VALUES))


def numbered(node: Node, opsets: Mapping[str, int]) -> Inlined:
    """The node that computes the texts' indices into a table, the table, and a Gather from it."""
    changed: dict[str, Any]
    if node.op_type in _CLASSIFIERS:
        texts = list(node.attributes[_LABELS])
        changed = {_CLASSIFIERS[node.op_type]: list(range(len(texts)))}
    else:
        texts = [*node.attributes[_VALUES], _default(node)]
        changed = {"values_int64s": list(range(len(texts) - 1)), "default_int64": len(texts) - 1}
    name = node.outputs[0]
    table, number = f"{name}/texts", f"{name}/number"
    weight = ProtoWeight(helper.make_tensor(table, onnx.TensorProto.STRING, [len(texts)], texts))
    nodes = [_with_numbers(node, number, changed), make_node("Gather", [table, number], [name], opsets[""], axis=0)]
    return Inlined(nodes, {table: weight})


def _default(node: Node) -> str:
    tensor = node.attributes.get(_DEFAULT_TENSOR)
    if tensor is not None:
        return bytes(tensor.string_data[0]).decode("utf-8", "replace")
    return str(node.attributes.get(_DEFAULT, "_Unused"))


def _with_numbers(node: Node, output: str, changed: Mapping[str, Any]) -> Node:
    kept = {k: v for k, v in node.attributes.items() if k not in (_LABELS, _VALUES, _DEFAULT, _DEFAULT_TENSOR)}
    outputs = (output, *node.outputs[1:])
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    proto.output[:] = outputs
    del proto.attribute[:]
    proto.attribute.extend(a for a in node.proto.attribute if a.name in kept)
    proto.attribute.extend(helper.make_attribute(k, v) for k, v in changed.items())
    return replace(node, outputs=outputs, attributes={**kept, **changed}, proto=proto)
