"""A decoder whose caches grow by Concat, changed so that each row of a run has a length of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto

from vkep.dtypes import onnx_name
from vkep.generation.rewrite import spliced
from vkep.graph.model import Graph, Model, Node, ValueInfo
from vkep.graph.weights import ArrayWeight, Weight

_PREFIX = "vkep.generation.lengths"
MASK, POSITIONS = "attention_mask", "position_ids"
_LAST, _TOTAL, _BEFORE, _ALL = (f"{_PREFIX}.{name}" for name in ("last", "total", "before", "all"))
#: operators that pass the value of a position on
_PASSED = {"Cast", "Expand", "Identity", "Reshape", "Squeeze", "Tile", "Unsqueeze"}
#: operators on single elements, as distances of positions are computed by, and on their order
_SINGLE = {
    *(
        "Abs",
        "Add",
        "Cast",
        "Div",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Min",
    ),
    *("Mul", "Neg", "Sub", "Where"),
}
#: of these, those that depend on the difference of two positions alone
_COMPARED = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Sub"}
_MOVED = {"Reshape", "Squeeze", "Transpose", "Unsqueeze"}
_SWAPPED, _LAST_AXES = [0, 2, 1, 3], [0, 1, 3, 2]


def with_lengths(model: Model, pairs: Mapping[str, str], logits: str) -> Model | None:
    """Return ``model`` with GroupQueryAttention in place of its attention to the caches ``pairs`` (an input, and the output that
    replaces it, [rows, heads, length, size]), so that they are buffers in which each row has a length of its own. It gets the
    inputs `MASK` int64 [rows, total], 1 for a row's tokens, and `POSITIONS` int64 [rows, length]. None for another form.

    Known are attention in torch's operators and MultiHeadAttention, whose scores get no addend but that of later tokens and one
    of distances between tokens (T5, arXiv:1910.10683, section 2.1), and positions that Gather or Slice reads a table by, or that
    have an axis of rows.
    """
    graph = Values(model.graph, pairs)
    replaced: dict[int, Graph] = {}  # by the node's place
    biases = _Biases(graph)
    for key, value in graph.layers():
        found = _plain(graph, key, value, biases) or _contributed(graph, key, value)
        if found is None:
            return None
        replaced[found[0]] = found[1]
    for place, node in enumerate(graph.nodes):
        part = _positions(graph, node)
        if part is not None:
            replaced[place] = part
    joins = {graph.makers[present] for present in pairs.values()} - replaced.keys()
    nodes = [
        n
        for place, node in enumerate(graph.nodes)
        if place not in joins
        for n in (replaced[place].nodes if place in replaced else [node])
    ]
    lengths = spliced(
        _lengths(),
        {MASK: MASK, POSITIONS: POSITIONS, "last": _LAST, "total": _TOTAL, "before": _BEFORE, "all": _ALL},
        f"{_PREFIX}.",
    )
    parts = [lengths, *biases.parts]
    weights = {n: w for part in (model.graph, *parts, *replaced.values()) for n, w in part.weights.items()}
    kept = needed([*(n for part in parts for n in part.nodes), *nodes], {logits, *pairs.values()})
    read = {name for node in kept for name in node.reads}
    if any(set(node.reads) & {*pairs, *pairs.values()} for node in kept if node.op_type != "GroupQueryAttention"):
        return None  # something else depends on how long the caches are
    rows = next(v for v in model.graph.inputs if v.name in pairs).shape or (None,)
    added = (
        ValueInfo(MASK, TensorProto.INT64, (rows[0], "total")),
        ValueInfo(POSITIONS, TensorProto.INT64, (rows[0], None)),
    )
    inputs = tuple(v for v in (*model.graph.inputs, *added) if v.name in read)
    outputs = tuple(v for v in model.graph.outputs if v.name == logits or v.name in pairs.values())
    numbered = tuple(replace(node, index=index) for index, node in enumerate(kept))
    whole = Graph(
        model.graph.name,
        numbered,
        inputs,
        outputs,
        {n: w for n, w in weights.items() if n in read},
    )
    identity = model.file_identity and f"{model.file_identity} own lengths"
    return replace(model, graph=whole, file_identity=identity)


def needed(nodes: Sequence[Node], outputs: Collection[str]) -> list[Node]:
    """The nodes that some values are computed by."""
    wanted, kept = set(outputs), list[Node]()
    for node in reversed(nodes):
        if wanted & set(node.outputs):
            wanted |= set(node.reads)
            kept.append(node)
    return kept[::-1]


class Values:
    """A graph's values, by the nodes that make and read them."""

    def __init__(self, graph: Graph, pairs: Mapping[str, str]) -> None:
        self.nodes, self.pairs, self.weights = graph.nodes, pairs, graph.weights
        self.makers = {output: place for place, node in enumerate(graph.nodes) for output in node.outputs}
        self.readers: dict[str, list[int]] = {}
        for place, node in enumerate(graph.nodes):
            for name in node.reads:
                self.readers.setdefault(name, []).append(place)
        self.inputs = {v.name: v for v in graph.inputs}
        self._relative: dict[str, bool] = {}

    def maker(self, name: str) -> Node | None:
        """The node that makes a value."""
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

    def relative(self, name: str) -> bool:
        """Whether a value is computed from the distances of two positions, element by element, and from shapes alone."""
        if name not in self._relative:
            self._relative[name] = self._is_relative(name)
        return self._relative[name]

    def _is_relative(self, name: str) -> bool:
        node = self.maker(name)
        if node is None:
            return False
        reads = node.reads
        if node.op_type in _COMPARED and all(self._is_place(value) for value in reads):
            return True
        if node.op_type == "Gather" and node.attributes.get("axis", 0) == 0:
            return self.constant(reads[0]) is not None and self.relative(reads[1])
        if node.op_type == "Slice":  # of queries
            axes = self.constant(reads[3]) if len(reads) > 3 else None
            return axes is not None and axes.reshape(-1).tolist() in ([2], [-2]) and self.relative(reads[0])
        if node.op_type in _MOVED:
            return self.relative(reads[0])
        if node.op_type not in _SINGLE:
            return False
        others = [value for value in reads if not self._is_uniform(value)]
        return bool(others) and all(self.relative(value) for value in others)

    def _is_uniform(self, name: str) -> bool:
        """Whether all elements of a value are the same, which shapes and numbers alone say."""
        node = self.maker(name)
        if node is None or self.number(name) is not None:
            return self.number(name) is not None
        if node.op_type in (*_SINGLE, *_PASSED):
            return all(
                self._is_uniform(value) for value in (node.reads if node.op_type in _SINGLE else node.inputs[:1])
            )
        source = self.maker(node.inputs[0]) if node.op_type == "Gather" else None
        return node.op_type == "ConstantOfShape" or (source is not None and source.op_type == "Shape")

    def _is_place(self, name: str) -> bool:
        """Whether a value is a position of each key, or of each query."""
        node = self.maker(name)
        while node is not None and node.op_type in (*_PASSED, "Range"):
            if node.op_type == "Range":
                return self.only_shapes(node.outputs[0]) and self.number(node.inputs[2]) == 1
            node = self.maker(node.inputs[0])
        return False

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
        return cls(shape[1], shape[3], onnx_name(past.elem_type))


class _Biases:
    """What is added to scores for distances between tokens, for rows of own lengths. The model computes it for the queries after
    the caches' keys; another length's are those of keys that are as far away."""

    def __init__(self, graph: Values) -> None:
        self.graph = graph
        self.parts: list[Graph] = []
        self._made: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The value [rows, heads, length, total] for ``name`` [1, heads, length, total]."""
        if name in self._made:
            return self._made[name]
        prefix = f"{_PREFIX}.bias{len(self._made)}."
        copied = self._copied(name, prefix)
        self._made[name] = f"{prefix}rows"
        elem = next(w.elem_type for n in self._upstream(name) if (w := self.graph.weights.get(n)) and len(w.shape) == 2)
        kind = onnx_name(elem)
        own = {"computed": copied, POSITIONS: POSITIONS, "all": _ALL, "rows": f"{prefix}rows"}
        self.parts.append(spliced(_shifted(kind), own, prefix))
        return self._made[name]

    def _upstream(self, name: str) -> list[str]:
        waiting, seen = [name], dict[str, None]()
        while waiting:
            value = waiting.pop()
            node = self.graph.maker(value)
            if value not in seen and (node is None or self._depends(value)):
                seen[value] = None
                waiting += node.reads if node is not None else ()
        return list(seen)

    def _depends(self, name: str) -> bool:
        """Whether a value is one of those of the distances, or of shapes, not what the model computes of tokens."""
        return self.graph.relative(name) or self.graph.only_shapes(name)

    def _copied(self, name: str, prefix: str) -> str:
        """Copy what computes a value, with the mask's length in place of the caches'."""
        graph, nodes, names, axis = (
            self.graph,
            list[Node](),
            dict[str, str](),
            ArrayWeight(f"{prefix}axis", np.array([0])),
        )
        lengths = {**dict.fromkeys(graph.pairs, _BEFORE), **dict.fromkeys(graph.pairs.values(), _ALL)}

        def copy(value: str) -> str:
            node = graph.maker(value)
            if not value or node is None or value in names or not self._depends(value):
                return names.get(value, value)
            shape = graph.maker(node.inputs[0]) if node.op_type == "Gather" else None
            names[value] = prefix + value
            if shape is not None and shape.op_type == "Shape" and shape.inputs[0] in lengths:
                index = graph.constant(node.inputs[1])
                plain = replace(node, op_type="Identity", inputs=(lengths[shape.inputs[0]],), attributes={})
                if index is not None and index.ndim:
                    plain = replace(plain, op_type="Unsqueeze", inputs=(*plain.inputs, axis.name))
                nodes.append(replace(plain, name=prefix + node.name, outputs=(names[value],)))
                return names[value]
            inputs = tuple(copy(v) if v else "" for v in node.inputs)
            outputs = tuple(prefix + v if v else "" for v in node.outputs)
            names.update(zip(node.outputs, outputs, strict=True))
            nodes.append(replace(node, name=prefix + node.name, inputs=inputs, outputs=outputs))
            return names[value]

        made = copy(name)
        self.parts.append(Graph(prefix, tuple(nodes), (), (), {axis.name: axis}))
        return made


def _plain(graph: Values, key: str, value: str, biases: _Biases) -> tuple[int, Graph] | None:
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
        product_of_keys, scale, bias = scores
        query, first = graph.scaled(product_of_keys.inputs[0])
        turned, second = graph.scaled(product_of_keys.inputs[1])
        turn = graph.maker(turned)
        if turn is None or turn.op_type != "Transpose" or list(turn.attributes.get("perm", ())) != _LAST_AXES:
            continue
        source, third = graph.scaled(turn.inputs[0])
        if source != graph.pairs[key]:
            continue
        names = {"q": query, "k": keys.inputs[1], "v": values.inputs[1], "y": product.outputs[0]}
        if bias:
            names["bias"] = biases.of(bias)
        return end, _attention(graph, key, value, sizes, scale * first * second * third, names, whole=False)
    return None


def _scores(graph: Values, probabilities: str) -> tuple[Node, float, str] | None:
    """The product of queries and keys that probabilities are computed from, the factor of its result, and what is added to it for
    distances ("": nothing)."""
    node, name, scale, after, bias = graph.maker(probabilities), probabilities, 1.0, True, ""
    while node is not None:
        if after and node.op_type == "Softmax" and node.attributes.get("axis", -1) in (-1, 3):
            after, name = False, node.inputs[0]
        elif after and node.op_type == "Where" and graph.number(node.inputs[1]) is not None:
            name = node.inputs[2]
        elif node.op_type in ("Cast", "Identity"):
            name = node.inputs[0]
        elif not after and node.op_type == "Add":
            sums = [v for v in node.inputs if not graph.only_shapes(v)]
            of_distances = [found for v in sums if (found := _of_distances(graph, v))]
            if len(sums) - len(of_distances) != 1 or (of_distances and (bias or scale != 1)):
                return None
            [bias] = of_distances or [bias]
            [name] = [v for v in sums if not _of_distances(graph, v)]
        elif not after and node.op_type in ("Mul", "Div"):
            number = graph.number(node.inputs[1])
            if number is None:
                return None
            name, scale = node.inputs[0], scale * (number if node.op_type == "Mul" else 1 / number)
        else:
            return (node, scale, bias) if not after and node.op_type == "MatMul" else None
        node = graph.maker(name)
    return None


def _of_distances(graph: Values, name: str) -> str:
    """The addend of distances in a sum of one and of those of later tokens; "" for another value."""
    node = graph.maker(name)
    if node is not None and node.op_type == "Add":
        sums = [v for v in node.inputs if not graph.only_shapes(v)]
        return _of_distances(graph, sums[0]) if len(sums) == 1 else ""
    return name if graph.relative(name) else ""


def _contributed(graph: Values, key: str, value: str) -> tuple[int, Graph] | None:
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
    graph: Values, key: str, value: str, sizes: _Sizes, scale: float, names: Mapping[str, str], *, whole: bool
) -> Graph:
    """GroupQueryAttention of queries ``q``, and new keys ``k`` and values ``v``, with the result ``y``: [rows, length, width] if
    ``whole``, else [rows, heads, length, size]."""
    before = "".join(
        f"{n}_turned = Transpose <perm = {_SWAPPED}> ({n}) {n}_whole = Reshape ({n}_turned, flat) " for n in "qkv"
    )
    after = f"y_apart = Reshape (y_whole, apart) y = Transpose <perm = {_SWAPPED}> (y_apart)"
    tail = "" if whole else "_whole"
    kind, width = sizes.kind, sizes.heads * sizes.size
    more, operand = (f", {kind} bias", ', "", "", "", bias') if "bias" in names else ("", "")
    part = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
        attention ({kind} q, {kind} k, {kind} v, {kind} past_key, {kind} past_value, int32 last, int32 total{more})
            => ({kind} y, {kind} present_key, {kind} present_value)
        <int64[3] flat = {{ 0, 0, {width} }}, int64[4] apart = {{ 0, 0, {sizes.heads}, {sizes.size} }}>
        {{
            {"" if whole else before}
            y{tail}, present_key, present_value = com.microsoft.GroupQueryAttention
                <num_heads = {sizes.heads}, kv_num_heads = {sizes.heads}, scale = {scale:.9e}>
                (q{tail}, k{tail}, v{tail}, past_key, past_value, last, total{operand})
            {"" if whole else after}
        }}
    """)
    own = {"past_key": key, "past_value": value, "present_key": graph.pairs[key], "present_value": graph.pairs[value]}
    return spliced(part, {**names, **own, "last": _LAST, "total": _TOTAL}, f"{_PREFIX}.{key}.")


def _positions(graph: Values, node: Node) -> Graph | None:
    """What replaces a node that reads a table of positions [positions, width], or gives positions an axis of rows; None for
    another node."""
    if node.op_type == "Unsqueeze":
        axes = graph.constant(node.inputs[1]) if len(node.inputs) > 1 else np.array(node.attributes.get("axes", ()))
        source = graph.maker(node.inputs[0])
        if axes is None or axes.reshape(-1).tolist() != [0] or source is None or source.op_type not in ("Range", "Add"):
            return None
        ahead = graph.ahead(node.inputs[0])
        return None if ahead is None else _moved(int(ahead), node)
    if node.op_type not in ("Gather", "Slice"):
        return None
    table = graph.weights.get(node.inputs[0])
    if table is None or len(table.shape) != 2:
        return None
    ahead = graph.ahead(node.inputs[1]) if node.op_type == "Gather" else graph.beyond_past(node.inputs[1])
    if ahead is None:
        return None
    kind = onnx_name(table.elem_type)
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


def _moved(ahead: int, node: Node) -> Graph:
    part = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        positions (int64[rows, length] places) => (int64[rows, length] moved)
        <int64 more = {{ {ahead} }}>
        {{ moved = Add (places, more) }}
    """)
    return spliced(part, {"places": POSITIONS, "moved": node.outputs[0]}, f"{_PREFIX}.{node.name}.")


def _shifted(kind: str) -> onnx.ModelProto:
    """Addends ``rows`` [rows, heads, length, all] of each row's distances, from ``computed`` [1, heads, length, all], of
    which the last query is at the last position: those of all keys that an earlier one sees are among its own."""
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        shifted ({kind} computed, int64[rows, length] {POSITIONS}, int64 all) => ({kind} rows)
        <int64 zero = {{ 0 }}, int64 one = {{ 1 }}, int64[1] first = {{ 0 }}, int64[1] newest = {{ -1 }},
         int64[1] end = {{ {2**31} }}, int64[1] queries = {{ 2 }}, int64[2] flat = {{ 0, -1 }}>
        {{
            alone = Slice (computed, newest, end, queries)
            heads = Squeeze (alone, first)
            table = Reshape (heads, flat)
            keys = Range (zero, all, one)
            last = Sub (all, one)
            away = Sub (last, {POSITIONS})
            apart = Unsqueeze (away, queries)
            places = Add (apart, keys)
            below = Min (places, last)
            within = Max (below, zero)
            read = Gather <axis = 1> (table, within)
            rows = Transpose <perm = [1, 0, 2, 3]> (read)
        }}
    """)


def _lengths() -> onnx.ModelProto:
    """GroupQueryAttention's inputs from the mask; the length of the mask ``all``, and ``before`` the new tokens."""
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        lengths (int64[rows, window] {MASK}, int64[rows, length] {POSITIONS})
            => (int32[rows] last, int32 total, int64 before, int64 all)
        <int64[1] one = {{ 1 }}, int64 axis = {{ 1 }}>
        {{
            count = ReduceSum <keepdims = 0> ({MASK}, one)
            place = Sub (count, one)
            last = Cast <to = {TensorProto.INT32}> (place)
            shape = Shape ({MASK})
            all = Gather (shape, axis)
            total = Cast <to = {TensorProto.INT32}> (all)
            new = Shape ({POSITIONS})
            length = Gather (new, axis)
            before = Sub (all, length)
        }}
    """)
