"""Channels-last operators of ONNX Runtime's domain ``com.ms.internal.nhwc``: a transpose, the operator, a transpose back.

ONNX Runtime creates such nodes for a provider that prefers NHWC. `CHANNELS_LAST` is the only list of them: the provider
uses it to select the nodes to convert, and the partitioner to expand the converted ones. The transposes are views, so
that the operator's own lowering computes the node or declines it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx
from onnx import helper

from vkep.graph.model import Node

NHWC = "com.ms.internal.nhwc"
#: operators of ai.onnx of which ONNX Runtime converts only the first input and first output to channels last: weights
#: (Conv), statistics (BatchNormalization) and the indices of a MaxPool are unchanged
CHANNELS_LAST = frozenset(
    {
        "AveragePool",
        "BatchNormalization",
        "Conv",
        "ConvTranspose",
        "DepthToSpace",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "InstanceNormalization",
        "LRN",
        "MaxPool",
        "SpaceToDepth",
    }
)


def is_channels_last(node: Node) -> bool:
    """Whether a node is one that `channels_first` expands."""
    return node.domain == NHWC and node.op_type in CHANNELS_LAST


def plain(node: Node, opsets: Mapping[str, int]) -> Node:
    """The same operator of ai.onnx, on channels first."""
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    proto.domain = ""
    schema = onnx.defs.get_schema(node.op_type, opsets[""])
    return replace(node, domain="", proto=proto, schema=schema)


def made_by(node: Node) -> list[tuple[str, ...]]:
    """The outputs of the nodes that replace a channels-last one; those of another node."""
    if not is_channels_last(node):
        return [node.outputs]
    target = node.outputs[0]
    return [(f"{target}/channels first in",), (f"{target}/channels first out", *node.outputs[1:]), (target,)]


def channels_first(node: Node, rank: int, opsets: Mapping[str, int]) -> list[Node]:
    """A channels-last node as three nodes of ai.onnx; ``rank`` is its first input's."""
    source, target = node.inputs[0], node.outputs[0]
    (first,), outputs, _ = made_by(node)
    inner, inputs = plain(node, opsets), (first, *node.inputs[1:])
    del inner.proto.input[:], inner.proto.output[:]
    inner.proto.input.extend(inputs)
    inner.proto.output.extend(outputs)
    return [
        _transpose(node, source, first, (0, rank - 1, *range(1, rank - 1)), opsets),
        replace(inner, inputs=inputs, outputs=outputs),
        _transpose(node, outputs[0], target, (0, *range(2, rank), 1), opsets),
    ]


def _transpose(node: Node, source: str, target: str, perm: tuple[int, ...], opsets: Mapping[str, int]) -> Node:
    proto = helper.make_node("Transpose", [source], [target], name=node.name, perm=perm)
    return replace(
        node,
        op_type="Transpose",
        domain="",
        inputs=(source,),
        outputs=(target,),
        attributes={"perm": perm},
        proto=proto,
        schema=onnx.defs.get_schema("Transpose", opsets[""]),
    )
