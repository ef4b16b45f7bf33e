"""A BERT encoder with embeddings and mask (arXiv:1810.04805).

The operators are those of torch's exporter: gelu as Div, Erf, Add, Mul; attention as Reshape, Transpose, MatMul,
Softmax; the mask through Cast, GatherND or Expand, And, Where. With symbolic dimensions the graphs compute their shapes
from the inputs (Shape, Gather, Concat, Slice), as exported graphs with dynamic axes do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from vkep.models.builder import Dim, GraphBuilder

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


BERT = BertShape()


def bert_features(graph: GraphBuilder, ids: str, mask: str, batch: Dim, sequence: Dim, shape: BertShape) -> str:
    """The last layer's result, float [batch, sequence, hidden], of the int64 values `ids` and `mask`."""
    x = _bert_embeddings(graph, ids, batch, sequence, shape)
    bias = _bert_mask(graph, mask, batch, sequence)
    for layer in range(shape.layers):
        x = bert_layer(graph, x, f"encoder.layer.{layer}", bias, shape)
    return x


def embedding(graph: GraphBuilder, name: str, rows: int, width: int) -> str:
    """The name of a table of random floats [rows, width]."""
    return graph.constant(f"{name}.weight", graph.weight(f"{name}.weight", (rows, width), 0.5))


def _bert_embeddings(graph: GraphBuilder, ids: str, batch: Dim, sequence: Dim, sizes: BertShape) -> str:
    words = graph.add("Gather", embedding(graph, "embeddings.word", sizes.vocabulary, sizes.hidden), ids, axis=0)
    positions = graph.constant("position_ids", np.arange(sizes.positions)[None])
    types_of_positions = graph.constant("token_type_ids", np.zeros((1, sizes.positions), np.int64))
    if not (isinstance(batch, int) and isinstance(sequence, int)):
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
        types_of_positions = graph.constant("token_types_expanded", np.zeros((batch, sizes.positions), np.int64))
        indices = graph.constant("positions_expanded", np.tile(np.arange(sequence), (batch, 1)))
    token_types = graph.add("GatherElements", types_of_positions, indices, axis=1)
    types = graph.add("Gather", embedding(graph, "embeddings.token_type", 2, sizes.hidden), token_types, axis=0)
    x = graph.add("Add", words, types)
    places = graph.add(
        "Gather", embedding(graph, "embeddings.position", sizes.positions, sizes.hidden), positions, axis=0
    )
    return graph.layer_norm(graph.add("Add", x, places), "embeddings.norm", sizes.hidden, sizes.epsilon)


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


def attention(graph: GraphBuilder, q: str, k: str, v: str, hidden: int, heads: int, bias: str | None) -> str:
    """Softmax(q k / √d + bias) v for q, v [batch, heads, rows, d] and k [batch, heads, d, keys]; heads merged again."""
    scores = graph.add("Mul", graph.add("MatMul", q, k), graph.constant("attention_scale", (hidden // heads) ** -0.5))
    if bias is not None:
        scores = graph.add("Add", scores, bias)
    mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), v)
    merged = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
    return graph.add("Reshape", merged, graph.constant("merged_shape", [0, -1, hidden]), allowzero=0)


def bert_layer(graph: GraphBuilder, x: str, name: str, bias: str | None, sizes: BertShape) -> str:
    """One layer of `x`, float [batch, sequence, hidden]; ``bias`` is added to the scores."""
    hidden, heads = sizes.hidden, sizes.heads
    split_shape = graph.constant("heads_shape", [0, -1, heads, hidden // heads])

    def split(part: str, perm: list[int]) -> str:
        linear = graph.linear(x, f"{name}.attention.{part}", hidden, hidden)
        return graph.add("Transpose", graph.add("Reshape", linear, split_shape, allowzero=0), perm=perm)

    q, k, v = split("query", [0, 2, 1, 3]), split("key", [0, 2, 3, 1]), split("value", [0, 2, 1, 3])
    inside = graph.linear(attention(graph, q, k, v, hidden, heads, bias), f"{name}.attention.output", hidden, hidden)
    x = graph.layer_norm(graph.add("Add", inside, x), f"{name}.attention.norm", hidden, sizes.epsilon)
    inside = _gelu_erf(graph, graph.linear(x, f"{name}.intermediate", hidden, sizes.intermediate))
    inside = graph.linear(inside, f"{name}.output", sizes.intermediate, hidden)
    return graph.layer_norm(graph.add("Add", inside, x), f"{name}.output.norm", hidden, sizes.epsilon)


def _gelu_erf(graph: GraphBuilder, x: str) -> str:
    """x · ½ (1 + erf(x / √2)), arXiv:1606.08415."""
    inner = graph.add("Erf", graph.add("Div", x, graph.constant("sqrt_2", 2**0.5)))
    inner = graph.add("Add", inner, graph.constant("one", 1.0))
    return graph.add("Mul", x, graph.add("Mul", graph.constant("half", 0.5), inner))
