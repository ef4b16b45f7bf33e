"""Changes to a model before it generates: only the last token's logits are computed, and the most probable token is
chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from vkep.dtypes import onnx_name
from vkep.errors import UnsupportedModelError
from vkep.generation.choices import Choice, chooser
from vkep.generation.sampling import Sampling
from vkep.graph.load import load_model
from vkep.graph.model import Graph, Model, Node, ValueInfo

#: operators that may be between the product and the logits: elementwise, with constants of the model
_ELEMENTWISE = {"Add", "Cast", "Div", "Identity", "Mul", "Sub", "Tanh"}
_PRODUCTS = {"MatMul", "MatMulNBits"}
_PREFIX = "vkep.generation."
_LAST, _SHORT_IDS = f"{_PREFIX}last", f"{_PREFIX}short"
#: names of a decoder's inputs
IDS, EMBEDS, FEATURES = "input_ids", "inputs_embeds", f"{_PREFIX}features"
#: the token that is the first feature of an image: no vocabulary has as many
FIRST_FEATURE = 1 << 30
#: operators that put features into embeddings: which inputs these may be
_JOINED_AT = {"ScatterND": (0,), "ScatterElements": (0,), "Where": (1, 2)}
TOKENS, CHOSEN = f"{_PREFIX}tokens", f"{_PREFIX}chosen"


def for_generation(model: Model, logits: str, choose: bool = False, keep: int = 1) -> Model:
    """Return ``model`` changed so that only the last ``keep`` tokens' logits are computed, where a product computes them, and
    without the ring buffers of GroupQueryAttention's ``sliding_window_cache`` (onnxruntime-genai's builder): each token
    has its own place. Tokens are read as int64. With ``choose`` it has the further outputs `TOKENS` and `CHOSEN`: the most
    probable tokens, as `choices.chooser` computes them."""
    graph = _with_long_ids(model.graph)
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


def with_embeddings(decoder: Model, embeddings: Model, images: int = 0) -> Model:
    """Return a decoder that reads embeddings changed to read tokens: what computes `EMBEDS` of ``input_ids`` becomes a
    part of it. ``images``: the ONNX type of features of images, for a further input `FEATURES` of them [count, width]; the token
    `FIRST_FEATURE` + k is feature k. 0: the model reads no images.

    Raises `UnsupportedModelError` for models of other forms.
    """
    embeds = next((v for v in decoder.graph.inputs if v.name == EMBEDS), None)
    if embeds is None or not embeds.shape or len(embeds.shape) != 3:
        raise UnsupportedModelError(f"{decoder.source} has no input {EMBEDS} [batch, length, width]")
    source = _texts(embeddings)
    [made] = source.outputs
    apart = {name: _PREFIX + name for name in ("texts", "slots", "is_image", "embeds")} if images else {}
    own = {IDS: apart.get("texts", IDS), made.name: apart.get("embeds", EMBEDS)}
    parts = [spliced(source, own, f"{_PREFIX}embeddings.")]
    inputs = [ValueInfo(IDS, TensorProto.INT64, embeds.shape[:2])]
    if images:
        around = {**apart, IDS: IDS, EMBEDS: EMBEDS, "features": FEATURES}
        small = _split_images(), _joined_images(images, embeds.elem_type)
        split, joined = (spliced(part, around, f"{_PREFIX}images.") for part in small)
        parts = [split, *parts, joined]
        inputs.append(ValueInfo(FEATURES, images, (FEATURES, embeds.shape[2])))
    nodes = [node for part in parts for node in part.nodes]
    weights = {name: weight for part in parts for name, weight in part.weights.items()}
    graph = decoder.graph
    numbered = tuple(replace(node, index=index) for index, node in enumerate((*nodes, *graph.nodes)))
    identities = decoder.file_identity, embeddings.file_identity
    return replace(
        decoder,
        graph=replace(
            graph,
            nodes=numbered,
            inputs=(*inputs, *(v for v in graph.inputs if v.name != EMBEDS)),
            weights={**graph.weights, **weights},
        ),
        file_identity=f"{identities[0]} embeddings {identities[1]} {images}" if all(identities) else "",
    )


def _texts(embeddings: Model) -> Graph:
    """The part of a model of embeddings that reads ``input_ids`` alone: without the nodes by which onnxruntime-genai's puts
    features of images and of sounds into them."""
    graph = embeddings.graph
    makers = {output: node for node in graph.nodes for output in node.outputs}
    others = {v.name for v in graph.inputs} - {IDS}
    for node in graph.nodes:
        if others & set(node.reads):
            others |= set(node.outputs)
    result = next((o for o in graph.outputs if o.name == EMBEDS), graph.outputs[0])
    name, without = result.name, dict[str, str]()  # the results of these nodes by what they replace
    while name in others and name in makers:
        node = makers[name]
        joined = [node.inputs[place] for place in _JOINED_AT.get(node.op_type, ())]
        into = [n for n in joined if n not in others] or (joined if len(joined) == 1 else [])
        if into:
            without[name] = into[0]
        name = into[0] if into else node.inputs[0]
    for name in reversed(list(without)):  # features of one kind, then those of another
        without[name] = without.get(without[name], without[name])
    used, nodes = {without.get(result.name, result.name)}, list[Node]()
    for node in reversed(graph.nodes):
        if used & set(node.outputs):
            nodes.append(replace(node, inputs=tuple(without.get(n, n) for n in node.inputs)))
            used |= set(nodes[-1].reads)
    if IDS not in used or used & others - set(without) or any(node.bodies for node in nodes):
        raise UnsupportedModelError(
            f"{embeddings.source} computes {result.name} of its inputs {[v.name for v in graph.inputs]} in a way that "
            f"generation does not know; expected a table read by {IDS}, and features of images put into its result"
        )
    outputs = (replace(result, name=without.get(result.name, result.name)),)
    weights = {n: w for n, w in graph.weights.items() if n in used}
    return Graph(graph.name, tuple(nodes[::-1]), (), outputs, weights)


def _split_images() -> onnx.ModelProto:
    """Tokens that are texts, and the places of features of those that are images."""
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        split (int64[b, n] {IDS}) => (int64[b, n] texts, int64[b, n] slots, bool[b, n] is_image)
        <int64 first = {{{FIRST_FEATURE}}}, int64 zero = {{ 0 }}>
        {{
            is_image = GreaterOrEqual({IDS}, first)
            texts = Where(is_image, zero, {IDS})
            place = Sub({IDS}, first)
            slots = Where(is_image, place, zero)
        }}
    """)


def _joined_images(features: int, embeds: int) -> onnx.ModelProto:
    """Embeddings, and features of images in the places of their tokens."""
    kinds = [onnx_name(kind) for kind in (features, embeds)]
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        join ({kinds[0]}[count, width] features, {kinds[1]}[b, n, width] embeds, int64[b, n] slots, bool[b, n] is_image)
            => ({kinds[1]}[b, n, width] {EMBEDS})
        <int64[1] last = {{-1}}>
        {{
            read = Gather(features, slots)
            same = Cast <to = {embeds}> (read)
            wide = Unsqueeze(is_image, last)
            {EMBEDS} = Where(wide, same, embeds)
        }}
    """)


def spliced(more: onnx.ModelProto | Graph, names: Mapping[str, str], prefix: str = _PREFIX) -> Graph:
    """A small model's graph prepared for insertion into another: some values get other ``names``, all else a prefix."""
    graph = more if isinstance(more, Graph) else load_model(more).graph

    def named(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(v, prefix + v) if v else "" for v in values)

    nodes = tuple(
        replace(n, name=prefix + n.name, inputs=named(n.inputs), outputs=named(n.outputs)) for n in graph.nodes
    )
    outputs = tuple(replace(o, name=prefix + o.name) for o in graph.outputs)
    weights = {prefix + n: w for n, w in graph.weights.items()}
    return Graph(graph.name, nodes, (), outputs, weights)


def _with_long_ids(graph: Graph) -> Graph:
    """A graph that reads its tokens as int64, as the choosing graph writes them: onnxruntime-genai's builder writes Whisper's
    decoder with int32."""
    if not any(v.name == IDS and v.elem_type == TensorProto.INT32 for v in graph.inputs):
        return graph
    cast = spliced(_to_int32(), {"ids": IDS})
    nodes = [replace(n, inputs=tuple(_SHORT_IDS if name == IDS else name for name in n.inputs)) for n in graph.nodes]
    inputs = tuple(replace(v, elem_type=TensorProto.INT64) if v.name == IDS else v for v in graph.inputs)
    return replace(graph, nodes=(*cast.nodes, *nodes), inputs=inputs)


def _to_int32() -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        short (int64[b, n] ids) => (int32[b, n] short)
        {{ short = Cast <to = {TensorProto.INT32}> (ids) }}
    """)


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
