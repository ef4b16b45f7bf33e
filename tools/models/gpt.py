"""A GPT-2 style decode step, with the operators of torch's exporter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from vkep.models.bert import attention, embedding
from vkep.models.builder import Dim, GraphBuilder


@dataclass(frozen=True)
class GptShape:
    """Sizes of the decoder; `past` is the number of tokens before this one."""

    vocabulary: int = 8192
    hidden: int = 512
    layers: int = 6
    heads: int = 8
    past: int = 127


GPT = GptShape()


def _gelu_tanh(graph: GraphBuilder, x: str) -> str:
    """½ x (1 + tanh(√(2/π) (x + 0.044715 x³))), arXiv:1606.08415."""
    cube = graph.add("Mul", graph.add("Mul", x, x), x)
    inner = graph.add("Add", x, graph.add("Mul", cube, graph.constant("gelu_cubic", 0.044715)))
    inner = graph.add("Tanh", graph.add("Mul", inner, graph.constant("gelu_scale", (2 / np.pi) ** 0.5)))
    half = graph.add("Mul", x, graph.constant("half", 0.5))
    return graph.add("Mul", half, graph.add("Add", inner, graph.constant("one", 1.0)))


def build_gpt_step(graph: GraphBuilder, past: Dim) -> None:
    """One decode step. Inputs `ids`, `pos` int64 [1, 1]; `pk`, `pv` [6, 8, past, 64], the keys and values so far.
    Outputs `logits` [1, 1, 8192]; `nk`, `nv` [6, 8, past + 1, 64]."""
    hidden, heads, width = GPT.hidden, GPT.heads, GPT.hidden // GPT.heads
    ids = graph.input("ids", [1, 1], TensorProto.INT64)
    position = graph.input("pos", [1, 1], TensorProto.INT64)
    cache = [graph.input(name, [GPT.layers, heads, past, width]) for name in ("pk", "pv")]
    x = graph.add(
        "Add",
        graph.add("Gather", embedding(graph, "wte", GPT.vocabulary, hidden), ids, axis=0),
        graph.add("Gather", embedding(graph, "wpe", GPT.past + 1, hidden), position, axis=0),
    )
    head_shape = graph.constant("heads_shape", [1, 1, heads, width])
    axis = graph.constant("axis_0", [0])
    grown: tuple[list[str], list[str]] = ([], [])
    for layer in range(GPT.layers):
        name = f"block.{layer}"
        joined = graph.linear(graph.layer_norm(x, f"{name}.norm1", hidden, 1e-5), f"{name}.qkv", hidden, 3 * hidden)
        sizes = graph.constant("qkv_sizes", [hidden, hidden, hidden])
        parts = graph.add_many("Split", joined, sizes, outputs=3, axis=-1)
        q, k, v = (
            graph.add("Transpose", graph.add("Reshape", part, head_shape, allowzero=1), perm=[0, 2, 1, 3])
            for part in parts
        )
        for new, old, kept in zip((k, v), cache, grown, strict=True):
            start, end = graph.constant(f"layer_{layer}", [layer]), graph.constant(f"layer_{layer + 1}", [layer + 1])
            kept.append(graph.add("Concat", graph.add("Slice", old, start, end, axis), new, axis=2))
        turned = graph.add("Transpose", grown[0][-1], perm=[0, 1, 3, 2])
        inside = attention(graph, q, turned, grown[1][-1], hidden, heads, None)
        x = graph.add("Add", x, graph.linear(inside, f"{name}.out", hidden, hidden))
        inside = graph.linear(graph.layer_norm(x, f"{name}.norm2", hidden, 1e-5), f"{name}.up", hidden, 4 * hidden)
        x = graph.add("Add", x, graph.linear(_gelu_tanh(graph, inside), f"{name}.down", 4 * hidden, hidden))
    x = graph.layer_norm(x, "norm", hidden, 1e-5)
    graph.output(graph.linear(x, "head", hidden, GPT.vocabulary, bias=False), "logits", [1, 1, GPT.vocabulary])
    longer: Dim = past + 1 if isinstance(past, int) else f"{past}_plus_1"
    for values, name in zip(grown, ("nk", "nv"), strict=True):
        graph.output(graph.add("Concat", *values, axis=0), name, [GPT.layers, heads, longer, width])
