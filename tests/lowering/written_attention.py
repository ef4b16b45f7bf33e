"""Attention spelled out in nodes, for the tests of what takes it as one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.ops.cases import Array, graph_of

BATCH, HEADS, QUERIES, KEYS, SIZE = 2, 3, 5, 7, 8
SCORES = (BATCH, HEADS, QUERIES, KEYS)
LOWEST = float(np.finfo(np.float32).min)


@dataclass
class Spelling:
    """A graph as it grows, of one type of float. ``values`` holds its inputs and constants."""

    dtype: Any = np.float32
    opset: int = 18
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: dict[str, Array] = field(default_factory=dict)
    constants: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=lambda: ["y"])

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(23)
        self.q, self.k = self.normal(BATCH, HEADS, QUERIES, SIZE), self.normal(BATCH, HEADS, KEYS, SIZE)
        self.v = self.normal(BATCH, HEADS, KEYS, 4)

    def normal(self, *shape: int) -> str:
        return self.input(self.rng.normal(0, 1, shape).astype(self.dtype))

    def input(self, value: Array) -> str:
        self.values[f"in{len(self.values)}"] = value
        return f"in{len(self.values) - 1}"

    def constant(self, value: Any, dtype: Any = None) -> str:
        self.constants.append(self.input(np.asarray(value, dtype or self.dtype)))
        return self.constants[-1]

    def add(self, op_type: str, *inputs: str, into: str = "", **attributes: Any) -> str:
        name = into or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=f"{op_type}.{name}", **attributes))
        return name

    def scores(self) -> str:
        product = self.add("MatMul", self.q, self.add("Transpose", self.k, perm=[0, 1, 3, 2]))
        return self.add("Mul", product, self.constant(0.35))

    def mix(self, scores: str, into: str = "y") -> None:
        self.add("MatMul", self.add("Softmax", scores, axis=-1), self.v, into=into)

    def as_torch_exports(self) -> None:
        """A padding mask as torch's exporter writes it: q and k each times the root of the scale, the heads of k in its batch's
        axis for a transposition, the lowest finite number for what is hidden (here all of a row), and a guard against NaN."""
        batch, heads, keys, size = self.values[self.k].shape
        root = self.constant(0.6)
        one = self.add("Reshape", self.k, self.constant([batch * heads, keys, size], np.int64))
        turned = self.add("Transpose", one, perm=[0, 2, 1])
        k = self.add("Mul", self.add("Reshape", turned, self.constant([batch, heads, size, keys], np.int64)), root)
        seen = self.rng.random((batch, 1, self.values[self.q].shape[2], keys)) < 0.6
        seen[-1, 0, 2] = False
        lowest = self.constant(np.finfo(self.dtype).min)
        bias = self.add("Where", self.input(seen), self.constant(0), lowest)
        scores = self.add("MatMul", self.add("Mul", self.q, root), k)
        p = self.add("Softmax", self.add("Add", scores, bias), axis=-1)
        self.add("MatMul", self.add("Where", self.add("IsNaN", p), self.constant(0), p), self.v, into="y")

    def hide(self, scores: str, score: float, condition: str = "", seen: bool = False) -> str:
        """``scores`` with another in some places, never in all of a row; those are where ``condition`` is (not) true."""
        if not condition:
            hidden = self.rng.random((BATCH, 1, QUERIES, KEYS)) < 0.4
            hidden[..., 0] = False
            condition = self.input(hidden != seen)
        choice = (self.constant(score), scores)
        return self.add("Where", condition, *(choice[::-1] if seen else choice))

    def model(self) -> onnx.ModelProto:
        return graph_of(self.nodes, self.values, self.outputs, self.constants, self.opset)


def exported_decoder(length: int | str, sliding: int = 0, queries: int | str = "", layers: int = 1) -> onnx.ModelProto:
    """As exporters write it: positions by Range, a mask of tokens by Gather, minus infinity by Where, a guard against NaN.
    ``queries``: those of the last tokens, else of all."""
    window = "least = Sub(query, width) near = Greater(key, least) some = And(causal, near)"
    heads, of_queries = f"float[1,4,{length},64]", f"float[1,4,{queries or length},64]"
    attention = "".join(
        f"""product{n} = MatMul({f"y{n - 1}" if n else "q"}, turned) scores{n} = Add(product{n}, bias)
            p{n} = Softmax<axis = -1>(scores{n}) bad{n} = IsNaN(p{n}) kept{n} = Where(bad{n}, none, p{n})
            y{n} = MatMul(kept{n}, v) """
        for n in range(layers)
    )
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        decoder ({of_queries} q, {heads} k, {heads} v, int64[1,{length}] mask) => ({of_queries} y{layers - 1})
        <int64 zero = {{ 0 }}, int64 one = {{ 1 }}, int64 two = {{ 2 }}, int64[1] last = {{ 1 }}, int64 width = {{ {sliding} }},
         float none = {{ 0 }}, float hidden = {{ -inf }}>
        {{
            shape = Shape(k) keys = Gather(shape, two) key = Range(zero, keys, one)
            of_q = Shape(q) count = Gather(of_q, two) past = Sub(keys, count) place = Range(past, keys, one)
            query = Unsqueeze(place, last)
            causal = LessOrEqual(key, query)
            {window if sliding else "some = Identity(causal)"}
            seen = Cast<to = 9>(mask) token = Gather<axis = 1>(seen, key) all = And(some, token)
            bias = Where(all, none, hidden)
            turned = Transpose<perm = [0, 1, 3, 2]>(k)
            {attention}
        }}
    """)
