"""A decoder whose caches grow by Concat, changed so that each row of a run has a length of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto

from vkep.generation.rewrite import spliced
from vkep.graph.model import Graph, Model, Node, ValueInfo
from vkep.graph.weights import Weight

_PREFIX = "vkep.generation.lengths"
MASK, POSITIONS = "attention_mask", "position_ids"
_LAST, _TOTAL = f"{_PREFIX}.last", f"{_PREFIX}.total"
#: operators that pass the value of a position on
_PASSED = {"Cast", "Expand", "Identity", "Reshape", "Squeeze", "Tile", "Unsqueeze"}
_SWAPPED, _LAST_AXES = [0, 2, 1, 3], [0, 1, 3, 2]


def with_lengths(model: Model, pairs: Mapping[str, str], logits: str) -> Model | None:
    """Return ``model`` with GroupQueryAttention in place of its attention to the caches ``pairs`` (an input, and the output that
    replaces it, [rows, heads, length, size]), so that they are buffers in which each row has a length of its own. It gets the
    inputs `MASK` int64 [rows, total], 1 for a row's tokens, and `POSITIONS` int64 [rows, length]. None for another form.

    Known are attention in torch's operators and MultiHeadAttention, whose scores get no addend but that of later tokens, and
    tables of positions that Gather or Slice reads.
    """
    graph = _Values(model.graph, pairs)
    replaced: dict[int, Graph] = {}  # by the node's place
    for key, value in graph.layers():
        found = _plain(graph, key, value) or _contributed(graph, key, value)
        if found is None:
            return None
        replaced[found[0]] = found[1]
    for place, node in enumerate(graph.nodes):
        part = _table(graph, node)
        if part is not None:
            replaced[place] = part
    joins = {graph.makers[present] for present in pairs.values()} - replaced.keys()
    nodes = [
        n
        for place, node in enumerate(graph.nodes)
        if place not in joins
        for n in (replaced[place].nodes if place in replaced else [node])
    ]
    weights = {**model.graph.weights, **{n: w for part in replaced.values() for n, w in part.weights.items()}}
    lengths = spliced(_lengths(), {MASK: MASK, "last": _LAST, "total": _TOTAL}, f"{_PREFIX}.")
    kept = _needed([*lengths.nodes, *nodes], {logits, *pairs.values()})
    read = {name for node in kept for name in node.reads}
    if any(set(node.reads) & {*pairs, *pairs.values()} for node in kept if node.op_type != "GroupQueryAttention"):
        return None  # something else depends on how long the caches are
    rows = next(v for v in model.graph.inputs if v.name in pairs).shape or (None,)
    added = (
        ValueInfo(MASK, TensorProto.INT64, (rows[0], "total")),
        ValueInfo(POSITIONS, TensorProto.INT64, (rows[0], None)),
    )
    inputs = (*model.graph.inputs, *(v for v in added if v.name in read))
    outputs = tuple(v for v in model.graph.outputs if v.name == logits or v.name in pairs.values())
    numbered = tuple(replace(node, index=index) for index, node in enumerate(kept))
    whole = Graph(
        model.graph.name,
        numbered,
        inputs,
        outputs,
        {n: w for n, w in {**weights, **lengths.weights}.items() if n in read},
    )
    identity = model.file_identity and f"{model.file_identity} own lengths"
    return replace(model, graph=whole, file_identity=identity)


def _needed(nodes: Sequence[Node], outputs: Collection[str]) -> list[Node]:
    needed, kept = set(outputs), list[Node]()
    for node in reversed(nodes):
        if needed & set(node.outputs):
            needed |= set(node.reads)
            kept.append(node)
    return kept[::-1]


class _Values:
    """A graph's values, by the nodes that make and read them."""

    def __init__(self, graph: Graph, pairs: Mapping[str, str]) -> None:
        self.nodes, self.pairs, self.weights = graph.nodes, pairs, graph.weights
        self.makers = {output: place for place, node in enumerate(graph.nodes) for output in node.outputs}
        self.readers: dict[str, list[int]] = {}
        for place, node in enumerate(graph.nodes):
            for name in node.reads:
                self.readers.setdefault(name, []).append(place)
        self.inputs = {v.name: v for v in graph.inputs}

    def maker(self, name: str) -> Node | None:
        return self.nodes[self.makers[name]] if name in self.makers else None

    def layers(self) -> list[tuple[str, str]]:
        """The pasts of keys and of values of each layer, by their names."""
        named = [(name, "value".join(name.rsplit("key", 1))) for name in self.inputs if name in self.pairs]
        return [(key, value) for key, value in named if key != value and value in self.pairs]

    def constant(self, name: str) -> np.ndarray | None:
        """A constant's values."""
        weight: Weight | None = self.weights.get(name)
        if weight is not None:
            return weight.array()
        node = self.maker(name)
        return self.constant(node.inputs[0]) if node is not None and node.op_type == "Identity" else None

    def number(self, name: str) -> float | None:
        """A constant of one element."""
        array = self.constant(name)
        return float(np.asarray(array).reshape(-1)[0]) if array is not None and np.size(array) == 1 else None

    def scaled(self, name: str) -> tuple[str, float]:
        """The value that constants were multiplied with to make this one, and their product."""
        node = self.maker(name)
        if node is not None and node.op_type == "Mul":
            for value, factor in (node.inputs, node.inputs[::-1]):
                number = self.number(factor)
                if number is not None:
                    source, more = self.scaled(value)
                    return source, more * number
        return name, 1.0

    def ahead(self, name: str) -> float | None:
        """By how much a value is larger than the position of the token that it belongs to; None: it is something else."""
        node = self.maker(name)
        if node is None:
            return None
        if node.op_type == "Range":
            return self.beyond_past(node.inputs[0])
        return self._plus(node, self.ahead)

    def beyond_past(self, name: str) -> float | None:
        """By how much a value is larger than the length of the caches; None: it is something else."""
        node = self.maker(name)
        if node is None:
            return None
        if node.op_type == "Gather" and self.number(node.inputs[1]) in (2, -2):
            shape = self.maker(node.inputs[0])
            if shape is None or shape.op_type != "Shape" or shape.attributes.get("start"):
                return None
            return 0.0 if shape.inputs[0] in self.pairs else None
        return self._plus(node, self.beyond_past)

    def _plus(self, node: Node, of: object) -> float | None:
        assert callable(of)
        if node.op_type in _PASSED:
            found = of(node.inputs[0])
            return found if isinstance(found, float) else None
        if node.op_type == "Add":
            for value, other in (node.inputs, node.inputs[::-1]):
                number, found = self.number(other), of(value)
                if number is not None and isinstance(found, float):
                    return found + number
        return None

    def only_shapes(self, name: str) -> bool:
        """Whether a value is computed from shapes and single numbers alone."""
        waiting, seen = [name], set[str]()
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            constant, node = self.constant(value), self.maker(value)
            if constant is not None:
                if constant.ndim > 1 or (constant.size > 1 and constant.dtype.kind == "f"):
                    return False
            elif node is None or node.bodies:
                return False
            elif node.op_type != "Shape":
                waiting += node.reads
        return True


@dataclass(frozen=True)
class _Sizes:
    heads: int
    size: int
    kind: str  #: of the elements, as onnx's parser names it

    @classmethod
    def of(cls, past: ValueInfo) -> _Sizes | None:
        shape = past.shape or ()
        if len(shape) != 4 or not isinstance(shape[1], int) or not isinstance(shape[3], int):
            return None
        return cls(shape[1], shape[3], TensorProto.DataType.Name(past.elem_type).lower())


def _plain(graph: _Values, key: str, value: str) -> tuple[int, Graph] | None:
    """The product that ends attention in torch's operators, and what replaces it."""
    sizes = _Sizes.of(graph.inputs[key])
    joins = [graph.maker(graph.pairs[past]) for past in (key, value)]
    if sizes is None or any(
        n is None or n.op_type != "Concat" or n.attributes.get("axis") not in (2, -2) for n in joins
    ):
        return None
    keys, values = (n for n in joins if n is not None)
    if len(keys.inputs) != 2 or len(values.inputs) != 2 or (keys.inputs[0], values.inputs[0]) != (key, value):
        return None
    for end in graph.readers.get(graph.pairs[value], ()):
        product = graph.nodes[end]
        if product.op_type != "MatMul" or product.inputs[1] != graph.pairs[value]:
            continue
        scores = _scores(graph, product.inputs[0])
        if scores is None:
            continue
        product_of_keys, scale = scores
        query, first = graph.scaled(product_of_keys.inputs[0])
        turned, second = graph.scaled(product_of_keys.inputs[1])
        turn = graph.maker(turned)
        if turn is None or turn.op_type != "Transpose" or list(turn.attributes.get("perm", ())) != _LAST_AXES:
            continue
        source, third = graph.scaled(turn.inputs[0])
        if source != graph.pairs[key]:
            continue
        names = {"q": query, "k": keys.inputs[1], "v": values.inputs[1], "y": product.outputs[0]}
        return end, _attention(graph, key, value, sizes, scale * first * second * third, names, whole=False)
    return None


def _scores(graph: _Values, probabilities: str) -> tuple[Node, float] | None:
    """The product of queries and keys that probabilities are computed from, and the factor of its result."""
    node, name, scale, after = graph.maker(probabilities), probabilities, 1.0, True
    while node is not None:
        if after and node.op_type == "Softmax" and node.attributes.get("axis", -1) in (-1, 3):
            after, name = False, node.inputs[0]
        elif after and node.op_type == "Where" and graph.number(node.inputs[1]) is not None:
            name = node.inputs[2]
        elif node.op_type in ("Cast", "Identity"):
            name = node.inputs[0]
        elif not after and node.op_type == "Add":
            sums = [v for v in node.inputs if not graph.only_shapes(v)]
            if len(sums) != 1:
                return None
            [name] = sums
        elif not after and node.op_type in ("Mul", "Div"):
            number = graph.number(node.inputs[1])
            if number is None:
                return None
            name, scale = node.inputs[0], scale * (number if node.op_type == "Mul" else 1 / number)
        else:
            return (node, scale) if not after and node.op_type == "MatMul" else None
        node = graph.maker(name)
    return None


def _contributed(graph: _Values, key: str, value: str) -> tuple[int, Graph] | None:
    """The MultiHeadAttention that appends to a layer's caches, and what replaces it."""
    place, sizes = graph.makers.get(graph.pairs[key], -1), _Sizes.of(graph.inputs[key])
    node = graph.nodes[place]
    operands = [*node.inputs, *[""] * 8][:8]
    if place < 0 or sizes is None or node.op_type != "MultiHeadAttention" or any(operands[3:6]):
        return None
    others = (*operands[6:], *node.outputs[1:])
    if others != (key, value, graph.pairs[key], graph.pairs[value]) or any(node.inputs[8:]):
        return None
    if not node.attributes.get("unidirectional") or node.attributes.get("num_heads") != sizes.heads:
        return None
    names = dict(zip("qkvy", (*operands[:3], node.outputs[0]), strict=True))
    scale = float(node.attributes.get("scale") or sizes.size**-0.5)
    return place, _attention(graph, key, value, sizes, scale, names, whole=True)


def _attention(
    graph: _Values, key: str, value: str, sizes: _Sizes, scale: float, names: Mapping[str, str], *, whole: bool
) -> Graph:
    """GroupQueryAttention of queries ``q``, and new keys ``k`` and values ``v``, with the result ``y``: [rows, length, width] if
    ``whole``, else [rows, heads, length, size]."""
    before = "".join(
        f"{n}_turned = Transpose <perm = {_SWAPPED}> ({n}) {n}_whole = Reshape ({n}_turned, flat) " for n in "qkv"
    )
    after = f"y_apart = Reshape (y_whole, apart) y = Transpose <perm = {_SWAPPED}> (y_apart)"
    tail = "" if whole else "_whole"
    kind, width = sizes.kind, sizes.heads * sizes.size
    part = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
        attention ({kind} q, {kind} k, {kind} v, {kind} past_key, {kind} past_value, int32 last, int32 total)
            => ({kind} y, {kind} present_key, {kind} present_value)
        <int64[3] flat = {{ 0, 0, {width} }}, int64[4] apart = {{ 0, 0, {sizes.heads}, {sizes.size} }}>
        {{
            {"" if whole else before}
            y{tail}, present_key, present_value = com.microsoft.GroupQueryAttention
                <num_heads = {sizes.heads}, kv_num_heads = {sizes.heads}, scale = {scale:.9e}>
                (q{tail}, k{tail}, v{tail}, past_key, past_value, last, total)
            {"" if whole else after}
        }}
    """)
    own = {"past_key": key, "past_value": value, "present_key": graph.pairs[key], "present_value": graph.pairs[value]}
    return spliced(part, {**names, **own, "last": _LAST, "total": _TOTAL}, f"{_PREFIX}.{key}.")


def _table(graph: _Values, node: Node) -> Graph | None:
    """What replaces a node that reads a table of positions [positions, width]; None for another node."""
    if node.op_type not in ("Gather", "Slice"):
        return None
    table = graph.weights.get(node.inputs[0])
    if table is None or len(table.shape) != 2:
        return None
    ahead = graph.ahead(node.inputs[1]) if node.op_type == "Gather" else graph.beyond_past(node.inputs[1])
    if ahead is None:
        return None
    kind = TensorProto.DataType.Name(table.elem_type).lower()
    part = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        positions ({kind}[count, width] table, int64[rows, length] places) => ({kind}[rows, length, width] read)
        <int64 more = {{ {int(ahead)} }}>
        {{
            moved = Add (places, more)
            read = Gather (table, moved)
        }}
    """)
    return spliced(
        part, {"table": node.inputs[0], "places": POSITIONS, "read": node.outputs[0]}, f"{_PREFIX}.{node.name}."
    )


def _lengths() -> onnx.ModelProto:
    """GroupQueryAttention's inputs from the mask."""
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        lengths (int64[rows, total] {MASK}) => (int32[rows] last, int32 total)
        <int64[1] one = {{ 1 }}, int64 axis = {{ 1 }}>
        {{
            count = ReduceSum <keepdims = 0> ({MASK}, one)
            place = Sub (count, one)
            last = Cast <to = {TensorProto.INT32}> (place)
            shape = Shape ({MASK})
            size = Gather (shape, axis)
            total = Cast <to = {TensorProto.INT32}> (size)
        }}
    """)
