"""A decoder that reads what an encoder made, changed so that each row of a run has a source of its own length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx
from onnx import TensorProto

from vkep.dtypes import onnx_name
from vkep.generation.own_lengths import Values, needed
from vkep.generation.rewrite import spliced
from vkep.graph.model import Model, Node, ValueInfo

_PREFIX = "vkep.generation.sources."
#: the input int64 [rows, states], 1 for a row's states
MASK = "encoder_attention_mask"
_ADDEND = f"{_PREFIX}addend"


def with_sources(model: Model, sources: Sequence[str]) -> Model | None:
    """Return ``model`` with the input `MASK` of the states in ``sources``, the keys and values [rows, heads, states, size] that
    an encoder's result becomes: one that the model has, or an addend to the scores of attention in torch's operators. None for
    another form."""
    graph = Values(model.graph, {})
    inputs, weights = model.graph.inputs, model.graph.weights
    if MASK in graph.inputs:
        nodes = _of_states(graph)
    else:
        keys = [name for name in sources if "value".join(name.rsplit("key", 1)) in set(sources) - {name}]
        places = {_softmax(graph, "value".join(name.rsplit("key", 1))) for name in keys}
        if None in places or len(places) != len(keys) or not keys:
            return None
        past = graph.inputs[keys[0]]
        part = spliced(_addend(past.elem_type), {MASK: MASK, "addend": _ADDEND}, _PREFIX)
        masked = (_masked(node) if place in places else [node] for place, node in enumerate(graph.nodes))
        nodes = [*part.nodes, *(node for each in masked for node in each)]
        rows, _, states, _ = past.shape or (None,) * 4
        inputs, weights = (*inputs, ValueInfo(MASK, TensorProto.INT64, (rows, states))), {**weights, **part.weights}
    kept = needed(nodes, {o.name for o in model.graph.outputs})
    read = {name for node in kept for name in node.reads}
    whole = replace(
        model.graph,
        nodes=tuple(replace(node, index=index) for index, node in enumerate(kept)),
        inputs=tuple(v for v in inputs if v.name in read),
        weights={name: weight for name, weight in weights.items() if name in read},
    )
    identity = model.file_identity and f"{model.file_identity} own sources"
    return replace(model, graph=whole, file_identity=identity)


def _of_states(graph: Values) -> list[Node]:
    """The nodes, where a mask of an encoder's input (Moonshine's of samples) is one of its states: every so many values of it."""
    found, masks = list[Node](), {MASK}
    for node in graph.nodes:
        axes = graph.constant(node.inputs[3]) if node.op_type == "Slice" and len(node.inputs) > 3 else None
        if (
            node.op_type == "Slice"
            and node.inputs[0] in masks
            and axes is not None
            and axes.reshape(-1).tolist() == [1]
        ):
            masks.add(node.outputs[0])
            node = replace(node, op_type="Identity", inputs=(MASK,), attributes={})
        found.append(node)
    return found


def _softmax(graph: Values, value: str) -> int | None:
    """The place of the Softmax whose result multiplies the values of a source; None for another form."""
    for end in graph.readers.get(value, ()):
        product = graph.nodes[end]
        if product.op_type != "MatMul" or product.inputs[1] != value:
            continue
        name = product.inputs[0]
        while (node := graph.maker(name)) is not None:
            if node.op_type == "Softmax":
                return graph.makers[name] if node.attributes.get("axis", -1) in (-1, 3) else None
            if node.op_type == "Where" and graph.number(node.inputs[1]) is not None:
                name = node.inputs[2]
            elif node.op_type in ("Cast", "Identity"):
                name = node.inputs[0]
            else:
                break
    return None


def _masked(softmax: Node) -> list[Node]:
    name = f"{_PREFIX}{softmax.name}"
    add = replace(
        softmax, op_type="Add", name=name, inputs=(softmax.inputs[0], _ADDEND), outputs=(name,), attributes={}
    )
    return [add, replace(softmax, inputs=(name,))]


def _addend(elem_type: int) -> onnx.ModelProto:
    """What is added to scores: little enough that other states than the row's own get no weight."""
    kind = onnx_name(elem_type)
    low = "-60000" if elem_type == TensorProto.FLOAT16 else "-1e30"
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        sources (int64[rows, states] {MASK}) => ({kind}[rows, a, b, states] addend)
        <int64[2] heads = {{ 1, 2 }}, float nothing = {{ 0 }}, float low = {{ {low} }}>
        {{
            apart = Unsqueeze ({MASK}, heads)
            own = Cast <to = {TensorProto.BOOL}> (apart)
            wide = Where (own, nothing, low)
            addend = Cast <to = {elem_type}> (wide)
        }}
    """)
