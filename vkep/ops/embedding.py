"""Sums of embeddings, normalized (domain com.microsoft: EmbedLayerNormalization, QEmbedLayerNormalization).

Semantics: the operators' schemas in ONNX Runtime (docs/ContribOperators.md), and its CPU provider's kernels where those
say no more.
"""

from __future__ import annotations

from vkep.dtypes import FLOAT32, INT32
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import BYTES
from vkep.ops.gather import rows_at
from vkep.ops.microsoft import MICROSOFT, outputs, wants_output
from vkep.ops.normalization import row_norm
from vkep.ops.quantized.qlinear import real
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import FLOATS, operator


@operator(
    "QEmbedLayerNormalization",
    domain=MICROSOFT,
    types={
        "input_ids segment_ids mask": ("int32",),
        "words positions segments gamma beta words_zero positions_zero segments_zero gamma_zero beta_zero": BYTES,
        "words_scale positions_scale segments_scale gamma_scale beta_scale": ("float32",),
    },
)
def qembed_layer_normalization(
    b: Builder,
    input_ids: Tensor,
    segment_ids: Tensor | None,
    words: Tensor,
    positions: Tensor,
    segments: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None,
    words_scale: Tensor,
    positions_scale: Tensor,
    segments_scale: Tensor | None,
    gamma_scale: Tensor,
    beta_scale: Tensor,
    words_zero: Tensor,
    positions_zero: Tensor,
    segments_zero: Tensor | None,
    gamma_zero: Tensor,
    beta_zero: Tensor,
    *,
    epsilon: float = 1e-12,
) -> list[Tensor]:
    of_segments = (segment_ids, segments, segments_scale, segments_zero)
    if len({t is None for t in of_segments}) != 1:
        b.invalid("only a part of the segments' inputs is there")
    tables = [t for t in (words, positions, segments) if t is not None]
    if input_ids.rank != 2 or any(t.rank != 2 or t.shape[1:] != gamma.shape for t in tables) or not epsilon >= 0:
        shapes = f"ids of shape {list(input_ids.shape)}, tables of {[list(t.shape) for t in tables]}"
        b.invalid(f"{shapes}, gamma of {list(gamma.shape)}, epsilon {epsilon}")
    batch, length = input_ids.shape
    for what, tensor, shape in (
        ("beta", beta, gamma.shape),
        ("segment_ids", segment_ids, input_ids.shape),
        ("mask", mask, input_ids.shape),
    ):
        b.expect(what, tensor, shape)
    if length > positions.shape[0]:
        b.invalid(f"{length} positions; the table holds {positions.shape[0]}")
    total = real(b, rows_at(b, words, input_ids, "an input id"), words_scale, words_zero)
    total = b.expr("add", total, real(b, positions.slice(0, 0, length), positions_scale, positions_zero))
    if segments is not None and segment_ids is not None and segments_scale is not None:
        rows = rows_at(b, segments, segment_ids, "a segment id")
        total = b.expr("add", total, real(b, rows, segments_scale, segments_zero))
    summed = b.store(total, FLOAT32, shape=(batch, length, gamma.size))
    pairs = ((gamma, gamma_scale, gamma_zero), (beta, beta_scale, beta_zero))
    factor, shift = (b.store(real(b, *pair), FLOAT32, shape=gamma.shape) for pair in pairs)
    out, _, _ = row_norm(b, summed, factor, shift, epsilon=epsilon)
    index = b.full((batch,), 0, INT32)
    if mask is not None and wants_output(b, 1):
        index = reduce_axes(b, "sum", mask, [1], False)
    return outputs(b, out, index)


@operator(
    "EmbedLayerNormalization",
    domain=MICROSOFT,
    types={
        "word_embedding position_embedding segment_embedding gamma beta": FLOATS,
        "input_ids segment_ids mask position_ids": ("int32",),
    },
)
def embed_layer_normalization(
    b: Builder,
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> list[Tensor]:
    if gamma is None or beta is None:
        b.invalid("the layer norm's scale or bias is missing")
    tables = [t for t in (word_embedding, position_embedding, segment_embedding) if t is not None]
    if input_ids.rank != 2 or any(t.rank != 2 or t.shape[1:] != gamma.shape for t in tables) or not epsilon >= 0:
        b.invalid(f"ids of shape {list(input_ids.shape)}, tables of {[list(t.shape) for t in tables]}, gamma of "
                  f"{list(gamma.shape)}, epsilon {epsilon}")  # fmt: skip
    b.expect("beta", beta, gamma.shape)
    for what, ids in {"segment_ids": segment_ids, "mask": mask}.items():
        b.expect(what, ids, input_ids.shape)
    b.expect("position_ids", position_ids, input_ids.shape, (1, input_ids.shape[1]))
    batch, length = input_ids.shape
    total = b.expr("same", rows_at(b, word_embedding, input_ids, "an input id"))
    if position_ids is not None:
        positions = rows_at(b, position_embedding, position_ids, "a position id")
    else:
        if length > position_embedding.shape[0]:
            b.invalid(f"{length} positions; the table holds {position_embedding.shape[0]}")
        positions = position_embedding.slice(0, 0, length)
    total = b.expr("add", total, positions)
    if segment_ids is not None and segment_embedding is not None:
        total = b.expr("add", total, rows_at(b, segment_embedding, segment_ids, "a segment id"))
    summed = b.store(total, word_embedding.dtype, shape=(batch, length, word_embedding.shape[1]))
    out, _, _ = row_norm(b, summed, gamma, beta, epsilon=epsilon)
    index = b.full((batch,), 0, INT32)
    if mask is not None and wants_output(b, 1):
        index = reduce_axes(b, "sum", b.cast(mask, INT32), [1], False)
    return outputs(b, out, index, summed)
