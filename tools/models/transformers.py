"""A BERT encoder with embeddings and mask (arXiv:1810.04805), its encoder alone, and a GPT-2 style decode step.

The operators are those of torch's exporter: gelu as Div, Erf, Add, Mul; attention as Reshape, Transpose, MatMul,
Softmax; the mask through Cast, GatherND or Expand, And, Where. With symbolic dimensions the graphs compute their shapes
from the inputs (Shape, Gather, Concat, Slice), as exported graphs with dynamic axes do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from tools.models.builder import Dim, GraphBuilder

# The float32 minimum would overflow float16; -1e4 masks in both.
MASKED = -1e4


@dataclass(frozen=True)
class BertShape:
    """Sizes of the encoder."""

    vocabulary: int = 8192
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    intermediate: int = 1024
    positions: int = 128
    epsilon: float = 1e-12


@dataclass(frozen=True)
class GptShape:
    """Sizes of the decoder; `past` is the number of tokens before this one."""

    vocabulary: int = 8192
    hidden: int = 512
    layers: int = 6
    heads: int = 8
    past: int = 127


BERT = BertShape()
GPT = GptShape()


def build_bert(graph: GraphBuilder, batch: Dim, sequence: Dim) -> None:
    """Inputs `ids` and `mask` int64 [batch, sequence] (mask 1 for a token), output `y` [batch, sequence, 256]."""
    ids = graph.input("ids", [batch, sequence], TensorProto.INT64)
    mask = graph.input("mask", [batch, sequence], TensorProto.INT64)
    x = _bert_embeddings(graph, ids, batch, sequence)
    bias = _bert_mask(graph, mask, batch, sequence)
    for layer in range(BERT.layers):
        x = _bert_layer(graph, x, f"encoder.layer.{layer}", bias)
    graph.output(x, "y", [batch, sequence, BERT.hidden])


def build_bert_encoder(graph: GraphBuilder, batch: Dim, sequence: Dim) -> None:
    """Input `x` [batch, sequence, 256], output `y` of the same shape: the layers without embeddings and mask."""
    x = graph.input("x", [batch, sequence, BERT.hidden])
    for layer in range(BERT.layers):
        x = _bert_layer(graph, x, f"encoder.layer.{layer}", None)
    graph.output(x, "y", [batch, sequence, BERT.hidden])


def _is_static(*dims: Dim) -> bool:
    return all(isinstance(dim, int) for dim in dims)


def _embedding(graph: GraphBuilder, name: str, rows: int, width: int) -> str:
    return graph.constant(f"{name}.weight", graph.weight(f"{name}.weight", (rows, width), 0.5))


def _bert_embeddings(graph: GraphBuilder, ids: str, batch: Dim, sequence: Dim) -> str:
    words = graph.add("Gather", _embedding(graph, "embeddings.word", BERT.vocabulary, BERT.hidden), ids, axis=0)
    positions = graph.constant("position_ids", np.arange(BERT.positions)[None])
    types_of_positions = graph.constant("token_type_ids", np.zeros((1, BERT.positions), np.int64))
    if not _is_static(batch, sequence):
        length = graph.add(
            "Unsqueeze",
            graph.add("Gather", graph.add("Shape", ids), graph.constant("one_index", np.asarray(1)), axis=0),
            graph.constant("axis_0", [0]),
        )
        zero, axis = graph.constant("slice_start", [0]), graph.constant("slice_axis", [1])
        positions = graph.add("Slice", positions, zero, length, axis)
        shape = graph.add("Shape", ids)
        types_of_positions = graph.add("Expand", graph.add("Slice", types_of_positions, zero, length, axis), shape)
        indices = graph.add("Expand", positions, shape)
    else:
        assert isinstance(sequence, int)
        assert isinstance(batch, int)
        positions = graph.constant("position_ids_used", np.arange(sequence)[None])
        types_of_positions = graph.constant("token_types_expanded", np.zeros((batch, BERT.positions), np.int64))
        indices = graph.constant("positions_expanded", np.tile(np.arange(sequence), (batch, 1)))
    token_types = graph.add("GatherElements", types_of_positions, indices, axis=1)
    types = graph.add("Gather", _embedding(graph, "embeddings.token_type", 2, BERT.hidden), token_types, axis=0)
    x = graph.add("Add", words, types)
    places = graph.add(
        "Gather", _embedding(graph, "embeddings.position", BERT.positions, BERT.hidden), positions, axis=0
    )
    return graph.layer_norm(graph.add("Add", x, places), "embeddings.norm", BERT.hidden, BERT.epsilon)


def _bert_mask(graph: GraphBuilder, mask: str, batch: Dim, sequence: Dim) -> str:
    """The addend to the attention scores, [batch, 1, sequence, sequence]: 0, or MASKED where the mask is 0."""
    keep = graph.add("Cast", mask, stem="keep", to=TensorProto.BOOL)
    if isinstance(batch, int) and isinstance(sequence, int):
        # As exported: the mask is read at constant (batch, key) indices for every query.
        rows, keys = np.broadcast_arrays(
            np.arange(batch)[:, None, None, None],
            np.arange(sequence)[None, None, None, :] + np.zeros((sequence, 1), int),
        )
        keep = graph.add("GatherND", keep, graph.constant("mask_indices", np.stack([rows, keys], -1)), batch_dims=0)
        every = graph.constant("mask_all", np.ones((batch, 1, sequence, sequence), np.bool_))
        keep = graph.add("And", every, keep)
    else:
        keep = graph.add("Unsqueeze", keep, graph.constant("mask_axes", [1, 2]))
        size = graph.add("Gather", graph.add("Shape", mask), graph.constant("size_order", [0, 1, 1]), axis=0)
        rows_name, length, _ = graph.add_many("Split", size, outputs=3, axis=0, num_outputs=3)
        shape = graph.add("Concat", rows_name, graph.constant("one_head", [1]), length, length, axis=0)
        keep = graph.add("Expand", keep, shape)
    return graph.add("Where", keep, graph.constant("mask_zero", 0.0), graph.constant("mask_value", MASKED))


def _attention(graph: GraphBuilder, q: str, k: str, v: str, hidden: int, heads: int, bias: str | None) -> str:
    """Softmax(q k / √d + bias) v for q, v [batch, heads, rows, d] and k [batch, heads, d, keys]; heads merged again."""
    scores = graph.add("Mul", graph.add("MatMul", q, k), graph.constant("attention_scale", (hidden // heads) ** -0.5))
    if bias is not None:
        scores = graph.add("Add", scores, bias)
    mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), v)
    merged = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
    return graph.add("Reshape", merged, graph.constant("merged_shape", [0, -1, hidden]), allowzero=0)


def _bert_layer(graph: GraphBuilder, x: str, name: str, bias: str | None) -> str:
    hidden, heads = BERT.hidden, BERT.heads
    split_shape = graph.constant("heads_shape", [0, -1, heads, hidden // heads])

    def split(part: str, perm: list[int]) -> str:
        linear = graph.linear(x, f"{name}.attention.{part}", hidden, hidden)
        return graph.add("Transpose", graph.add("Reshape", linear, split_shape, allowzero=0), perm=perm)

    q, k, v = split("query", [0, 2, 1, 3]), split("key", [0, 2, 3, 1]), split("value", [0, 2, 1, 3])
    inside = graph.linear(_attention(graph, q, k, v, hidden, heads, bias), f"{name}.attention.output", hidden, hidden)
    x = graph.layer_norm(graph.add("Add", inside, x), f"{name}.attention.norm", hidden, BERT.epsilon)
    inside = _gelu_erf(graph, graph.linear(x, f"{name}.intermediate", hidden, BERT.intermediate))
    inside = graph.linear(inside, f"{name}.output", BERT.intermediate, hidden)
    return graph.layer_norm(graph.add("Add", inside, x), f"{name}.output.norm", hidden, BERT.epsilon)


def _gelu_erf(graph: GraphBuilder, x: str) -> str:
    """x · ½ (1 + erf(x / √2)), arXiv:1606.08415."""
    inner = graph.add("Erf", graph.add("Div", x, graph.constant("sqrt_2", 2**0.5)))
    inner = graph.add("Add", inner, graph.constant("one", 1.0))
    return graph.add("Mul", x, graph.add("Mul", graph.constant("half", 0.5), inner))


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
        graph.add("Gather", _embedding(graph, "wte", GPT.vocabulary, hidden), ids, axis=0),
        graph.add("Gather", _embedding(graph, "wpe", GPT.past + 1, hidden), position, axis=0),
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
        inside = _attention(graph, q, turned, grown[1][-1], hidden, heads, None)
        x = graph.add("Add", x, graph.linear(inside, f"{name}.out", hidden, hidden))
        inside = graph.linear(graph.layer_norm(x, f"{name}.norm2", hidden, 1e-5), f"{name}.up", hidden, 4 * hidden)
        x = graph.add("Add", x, graph.linear(_gelu_tanh(graph, inside), f"{name}.down", 4 * hidden, hidden))
    x = graph.layer_norm(x, "norm", hidden, 1e-5)
    graph.output(graph.linear(x, "head", hidden, GPT.vocabulary, bias=False), "logits", [1, 1, GPT.vocabulary])
    longer: Dim = past + 1 if isinstance(past, int) else f"{past}_plus_1"
    for values, name in zip(grown, ("nk", "nv"), strict=True):
        graph.output(graph.add("Concat", *values, axis=0), name, [GPT.layers, heads, longer, width])
