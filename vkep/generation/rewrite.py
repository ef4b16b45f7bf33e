"""What is changed in a model before it generates: only the last token's logits are computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from vkep.graph.load import load_model
from vkep.graph.model import Model, Node

#: what may lie between the product and the logits: element by element, with numbers of the model
_ELEMENTWISE = {"Add", "Cast", "Div", "Identity", "Mul", "Sub", "Tanh"}
_PRODUCTS = {"MatMul", "MatMulNBits"}
_LAST = "vkep.last_token"


def for_generation(model: Model, logits: str) -> Model:
    """``model`` with logits of the last token alone, where a product gives them, and without the caches that
    GroupQueryAttention's ``sliding_window_cache`` turns into rings (onnxruntime-genai's builder): each token has its place.
    """
    graph = model.graph
    nodes = [_without_ring(node) for node in graph.nodes]
    place = _product(nodes, logits, set(graph.weights))
    weights, outputs = dict(graph.weights), graph.outputs
    if place is not None:
        product = nodes[place]
        last, numbers = _last_token(product.inputs[0])
        nodes[place : place + 1] = [last, replace(product, inputs=(_LAST, *product.inputs[1:]))]
        weights |= numbers
        outputs = tuple(
            replace(o, shape=(o.shape[0], 1, *o.shape[2:])) if o.name == logits and o.shape else o for o in outputs
        )
    if place is None and nodes == list(graph.nodes):
        return model
    identity = model.file_identity and f"{model.file_identity} for generation"
    numbered = tuple(replace(node, index=index) for index, node in enumerate(nodes))
    return replace(
        model, graph=replace(graph, nodes=numbered, weights=weights, outputs=outputs), file_identity=identity
    )


def _without_ring(node: Node) -> Node:
    if node.op_type != "GroupQueryAttention" or not node.attributes.get("sliding_window_cache"):
        return node
    return replace(node, attributes={k: v for k, v in node.attributes.items() if k != "sliding_window_cache"})


def _product(nodes: list[Node], logits: str, weights: set[str]) -> int | None:
    """The node that multiplies by the vocabulary's weights; None where the logits come from another one."""
    makers = {output: place for place, node in enumerate(nodes) for output in node.outputs}
    constants = weights | {o for node in nodes if not node.reads or node.op_type == "Constant" for o in node.outputs}
    name = logits
    while name in makers:
        place = makers[name]
        node = nodes[place]
        if node.op_type in _PRODUCTS:
            return place
        computed = [i for i in node.inputs if i not in constants]
        if node.op_type not in _ELEMENTWISE or len(computed) != 1:
            return None
        [name] = computed
    return None


def _last_token(source: str) -> tuple[Node, dict[str, Any]]:
    """A node that takes the last of the second axis of ``source``, and the weights that it reads."""
    numbers = {"starts": -1, "ends": 2**31 - 1, "axes": 1}
    info = helper.make_tensor_value_info
    tensors = [numpy_helper.from_array(np.array([v], np.int64), f"{_LAST}.{n}") for n, v in numbers.items()]
    node = helper.make_node("Slice", ["x", *(t.name for t in tensors)], [_LAST], name=_LAST)
    ports = [info("x", TensorProto.FLOAT, ["b", "n", "k"])], [info(_LAST, TensorProto.FLOAT, ["b", 1, "k"])]
    graph = load_model(helper.make_model(helper.make_graph([node], "last", *ports, tensors))).graph
    [made] = graph.nodes
    return replace(made, inputs=(source, *made.inputs[1:])), dict(graph.weights)
