"""Attention written as operators, with drawn masks: comparisons of positions, chunks, a prefix, and booleans of keys or of keys
and queries, joined by logic or as sums and products of floats. All sizes are open: runs of other sizes go before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tools.fuzz.attention_calls import Array, Case, Rng, one_of

#: of hidden keys
SCORES = (-np.inf, -np.inf, -np.inf, float(np.finfo(np.float32).min), -1e4)
_SHAPES: dict[str, list[str | int | None]] = {
    "q": ["batch", "heads", "queries", "size"],
    "k": ["batch", "heads", "keys", "size"],
    "v": ["batch", "heads", "keys", "size"],
    "of_keys": ["batch", "keys"],
    "of_both": ["batch", "heads", "queries", "keys"],
}


@dataclass
class WrittenCase(Case):
    """``body``: the nodes, whose weights are in ``weights``."""

    body: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Its nodes and the shapes of its inputs."""
        shapes = {n: v.shape for n, v in self.inputs.items() if v is not None}
        nodes = [f"{', '.join(n.output)} = {n.op_type}({', '.join(n.input)})" for n in self.body]
        small = {n: v.tolist() for n, v in self.weights.items() if v.size < 4}
        return f"{shapes} {small}\n    " + "\n    ".join(nodes)

    def model(self, wide: bool = False) -> onnx.ModelProto:
        """The nodes as a model with open sizes."""
        inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), _SHAPES[n])
            for n, v in self.inputs.items()
            if v is not None
        ]
        weights = [numpy_helper.from_array(v, n) for n, v in self.weights.items()]
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "heads", "queries", "size"])
        graph = helper.make_graph(self.body, "written", inputs, [result], weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)


class _Draws:
    """The nodes of a graph as they are drawn."""

    def __init__(self, rng: Rng) -> None:
        self.rng, self.nodes, self.weights, self._ways = rng, list[onnx.NodeProto](), dict[str, Array](), 0
        for axis in (0, 1, 2):
            self.constant(np.array([axis]), f"axis{axis}")
        self.queries, self.keys = (self.node("Gather", self.node("Shape", x), self.constant(2)) for x in "qk")
        self.past = self.node("Sub", self.keys, self.queries)
        self.zero, self.one = self.constant(0), self.constant(1)

    def constant(self, value: Any, name: str = "") -> str:
        array = np.asarray(value)
        name = name or f"c{len(self.weights)}"
        self.weights[name] = array.astype(np.float32) if array.dtype.kind == "f" else array
        return name

    def node(self, op: str, *inputs: str, into: str = "", **attributes: Any) -> str:
        name = into or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def _positions(self, of_queries: bool) -> str:
        """[queries, 1] or [keys], by one of several ways; those of queries begin after the past, or at a drawn place."""
        shift = self.constant(int(self.rng.integers(-5, 6)))
        begin = one_of(self.rng, self.past, self.past, self.past, self.zero, self.node("Add", self.past, shift))
        if of_queries:
            x = self.node("Range", begin, self.node("Add", begin, self.queries), self.one)
            return self.node("Unsqueeze", x, "axis1")
        x = self.node("Range", self.zero, self.keys, self.one)
        return x if self.rng.random() < 0.7 else self.node("Unsqueeze", x, "axis0")

    def _compared(self) -> str:
        pair = [self._positions(True), self._positions(False)]
        draw = self.rng.random()
        if draw < 0.1:  # of one chunk, or as many places after a chunk's start
            op, length = one_of(self.rng, "Div", "Mod"), self.constant(int(self.rng.integers(2, 12)))
            return self.node("Equal", *[self.node(op, x, length) for x in pair])
        if draw < 0.2:
            return self.node("Less", pair[1], self.constant(int(self.rng.integers(0, 9))))
        if self.rng.random() < 0.4:
            at = int(self.rng.integers(2))
            shift = self.constant(int(self.rng.integers(-4, 9)))
            pair[at] = self.node(one_of(self.rng, "Add", "Sub"), pair[at], shift)
        op = one_of(self.rng, *["GreaterOrEqual"] * 4, "Greater", "Less", "LessOrEqual", "Equal")
        if self.rng.random() < 0.5:  # as a distance
            pair = [self.node("Sub", *pair), self.constant(int(self.rng.integers(-3, 9)))]
        return self.node(op, *pair) if self.rng.random() < 0.8 else self.node("Not", self.node(op, *pair[::-1]))

    def _of_keys(self) -> str:
        x = self.node("Cast", "of_keys", to=TensorProto.BOOL)
        return self.node("Unsqueeze", self.node("Unsqueeze", x, "axis1"), "axis2")

    def boolean(self, depth: int = 3) -> str:
        """[batch or 1, 1, queries or 1, keys], or fewer axes: true for keys that are seen, of most."""
        draw = self.rng.random()
        if depth and draw < 0.5:
            op = one_of(self.rng, *["And"] * 5, "Or")
            return self.node(op, self.boolean(depth - 1), self.boolean(depth - 1))
        if depth and draw < 0.58:
            return self.node("Not", self.boolean(depth - 1))
        if draw < 0.8:
            return self._compared()
        return self._of_keys() if draw < 0.97 else self.node("Cast", "of_both", to=TensorProto.BOOL)

    def bias(self, score: float, depth: int = 1) -> str:
        """0 for keys that are seen, and ``score``, or a sum of such."""
        draw, hidden, zero = self.rng.random(), self.constant(score), self.constant(0.0)
        if depth and draw < 0.2:
            return self.node("Add", self.bias(score, 0), self.bias(score, 0))
        seen = self.boolean()
        if draw < 0.3:  # of a matrix of the score, as models of transformers before 4.36 have it
            row = self.node("Unsqueeze", self.queries, "axis0"), self.node("Unsqueeze", self.keys, "axis0")
            full = self.node("Expand", hidden, self.node("Concat", *row, axis=0))
            later = self.node("Trilu", full, self.node("Add", self.past, self.one), upper=1)
            return self.node("Where", seen, later, hidden)
        if draw < 0.45 and score > -np.inf:
            unseen = self.node("Cast", self.node("Not", seen), to=TensorProto.FLOAT)
            return self.node("Mul", unseen, hidden)
        if draw < 0.65:
            return self.node("Where", self.node("Not", seen), hidden, zero)
        return self.node("Where", seen, zero, hidden)

    def attention(self) -> None:
        score = float(one_of(self.rng, *SCORES))
        turned = self.node("Transpose", "k", perm=[0, 1, 3, 2])
        scores = self.node("Mul", self.node("MatMul", "q", turned), self.constant(0.25))
        for _ in range(1 + (self.rng.random() < 0.15)):
            if self.rng.random() < 0.25:
                seen, hidden = self.boolean(), self.constant(score)
                scores = self.node("Where", seen, scores, hidden)
            else:
                scores = self.node("Add", scores, self.bias(score))
        p = self.node("Softmax", scores, axis=-1)
        if score == -np.inf and self.rng.random() < 0.75:
            p = self.node("Where", self.node("IsNaN", p), self.constant(0.0), p)
        self.node("MatMul", p, "v", into="y")


def _values(rng: Rng, names: set[str], batch: int, heads: int, queries: int, past: int) -> dict[str, Array]:
    keys, size = max(1, past + queries), 8
    shapes = {"q": (batch, heads, queries, size), "k": (batch, heads, keys, size), "v": (batch, heads, keys, size)}
    made: dict[str, Array] = {n: rng.normal(0, 1, s).astype(np.float32) for n, s in shapes.items()}
    for n in "qk":  # so that scores are exact: beside -1e4, of which a row may be full, few digits are left
        made[n] = np.round(2 * made[n]) / 2
    padded = rng.integers(0, keys + 1, batch) * (rng.random(batch) < 0.6)  # on the left, up to all of a row
    of_keys = (np.arange(keys) >= padded[:, None]).astype(np.int64)
    if rng.random() < 0.3:
        of_keys *= rng.integers(0, 2, (batch, keys))
    made |= {"of_keys": of_keys, "of_both": rng.random((batch, heads, queries, keys)) < 0.8}
    return {n: v for n, v in made.items() if n in names}


def written(rng: Rng) -> Case:
    """Attention of up to 40 queries, after two runs of other sizes; sometimes of fewer keys than queries."""
    draws = _Draws(rng)
    draws.attention()
    names = {name for node in draws.nodes for name in node.input}
    heads = int(rng.integers(1, 4))
    *before, last = (
        _values(rng, names, int(rng.integers(1, 4)), heads, int(rng.integers(1, 41)), one_of(rng, 0, 0, 3, 30, -2))
        for _ in range(3)
    )
    return WrittenCase(
        op="written",
        domain="written",
        opset=18,
        outputs=["y"],
        attributes={},
        dtype="float32",
        body=draws.nodes,
        weights=draws.weights,
        inputs=dict(last),
        before=before,
    )
