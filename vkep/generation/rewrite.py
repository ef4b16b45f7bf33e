"""Changes to a model before it generates: only the last token's logits are computed, and the most probable token is
chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from vkep.generation.choices import Choice, chooser
from vkep.generation.sampling import Sampling
from vkep.graph.load import load_model
from vkep.graph.model import Graph, Model, Node

#: operators that may be between the product and the logits: elementwise, with constants of the model
_ELEMENTWISE = {"Add", "Cast", "Div", "Identity", "Mul", "Sub", "Tanh"}
_PRODUCTS = {"MatMul", "MatMulNBits"}
_PREFIX = "vkep.generation."
_LAST = f"{_PREFIX}last"
TOKENS, CHOSEN = f"{_PREFIX}tokens", f"{_PREFIX}chosen"


def for_generation(model: Model, logits: str, choose: bool = False, keep: int = 1) -> Model:
    """Return ``model`` changed so that only the last ``keep`` tokens' logits are computed, where a product computes them, and
    without the ring buffers of GroupQueryAttention's ``sliding_window_cache`` (onnxruntime-genai's builder): each token
    has its own place. With ``choose`` it has the further outputs `TOKENS` and `CHOSEN`: the most probable tokens, as
    `choices.chooser` computes them."""
    graph = model.graph
    nodes = [_without_ring(node) for node in graph.nodes]
    place = _product(nodes, logits, set(graph.weights))
    weights, outputs = dict(graph.weights), graph.outputs
    if place is not None:
        product = nodes[place]
        found = spliced(_last_tokens(keep), {"x": product.inputs[0]})
        nodes[place : place + 1] = [*found.nodes, replace(product, inputs=(_LAST, *product.inputs[1:]))]
        weights |= found.weights
        outputs = tuple(
            replace(o, shape=(o.shape[0], 1 if keep == 1 else None, *o.shape[2:]))
            if o.name == logits and o.shape
            else o
            for o in outputs
        )
    if choose:
        element = next(o.elem_type for o in outputs if o.name == logits)
        found = spliced(chooser(element, Choice.of([Sampling()])), {"logits": logits})
        nodes += found.nodes
        weights |= found.weights
        outputs += found.outputs
    identity = model.file_identity and f"{model.file_identity} for generation {place} {choose} {keep}"
    numbered = tuple(replace(node, index=index) for index, node in enumerate(nodes))
    return replace(
        model, graph=replace(graph, nodes=numbered, weights=weights, outputs=outputs), file_identity=identity
    )


def spliced(more: onnx.ModelProto, names: Mapping[str, str]) -> Graph:
    """A small model's graph prepared for insertion into another: its inputs get other ``names``, all else a prefix."""
    graph = load_model(more).graph

    def named(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(v, _PREFIX + v) if v else "" for v in values)

    nodes = tuple(
        replace(n, name=_PREFIX + n.name, inputs=named(n.inputs), outputs=named(n.outputs)) for n in graph.nodes
    )
    outputs = tuple(replace(o, name=_PREFIX + o.name) for o in graph.outputs)
    weights = {_PREFIX + n: w for n, w in graph.weights.items()}
    return Graph(graph.name, nodes, (), outputs, weights)


def _without_ring(node: Node) -> Node:
    if node.op_type != "GroupQueryAttention" or not node.attributes.get("sliding_window_cache"):
        return node
    return replace(node, attributes={k: v for k, v in node.attributes.items() if k != "sliding_window_cache"})


def _product(nodes: list[Node], logits: str, weights: set[str]) -> int | None:
    """The node that multiplies by the vocabulary's weights; None where another operator computes the logits."""
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


def _last_tokens(count: int) -> onnx.ModelProto:
    """Takes the last ``count`` of the second axis of ``x``, or all where there are fewer."""
    numbers = {"starts": -count, "ends": 2**31 - 1, "axes": 1}
    info = helper.make_tensor_value_info
    tensors = [numpy_helper.from_array(np.array([v], np.int64), n) for n, v in numbers.items()]
    node = helper.make_node("Slice", ["x", *numbers], ["last"], name="last")
    ports = [info("x", TensorProto.FLOAT, ["b", "n", "k"])], [info("last", TensorProto.FLOAT, ["b", None, "k"])]
    return helper.make_model(
        helper.make_graph([node], "last", *ports, tensors), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )
