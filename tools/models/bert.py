"""A BERT encoder with embeddings and mask, and its encoder alone (`vkep.models.bert`)."""

from __future__ import annotations

from onnx import TensorProto

from vkep.models.bert import BertShape, bert_features, bert_layer
from vkep.models.builder import Dim, GraphBuilder

BERT = BertShape()


def build_bert(graph: GraphBuilder, batch: Dim, sequence: Dim, shape: BertShape = BERT) -> None:
    """Inputs `ids` and `mask` int64 [batch, sequence] (mask 1 for a token), output `y` [batch, sequence, hidden]."""
    ids = graph.input("ids", [batch, sequence], TensorProto.INT64)
    mask = graph.input("mask", [batch, sequence], TensorProto.INT64)
    graph.output(bert_features(graph, ids, mask, batch, sequence, shape), "y", [batch, sequence, shape.hidden])


def build_bert_encoder(graph: GraphBuilder, batch: Dim, sequence: Dim, shape: BertShape = BERT) -> None:
    """Input `x` [batch, sequence, hidden], output `y` of the same shape: the layers without embeddings and mask."""
    x = graph.input("x", [batch, sequence, shape.hidden])
    for layer in range(shape.layers):
        x = bert_layer(graph, x, f"encoder.layer.{layer}", None, shape)
    graph.output(x, "y", [batch, sequence, shape.hidden])
