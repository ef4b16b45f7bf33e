"""Biases of attention's scores by the distance of query and key (domain com.microsoft: RelativePositionBias,
GatedRelativePositionBias).

Semantics: the operators' schemas in ONNX Runtime (docs/ContribOperators.md), and its CPU provider's kernels where those
say no more.
"""

from __future__ import annotations

import math

import numpy as np

from vkep.ir import algebra as fn
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops.attention.sdpa import split_heads
from vkep.ops.contraction import matrix_product
from vkep.ops.gather import gathered
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import FLOATS, operator


@operator(
    "RelativePositionBias",
    domain=MICROSOFT,
    types={"table": FLOATS, "query_length key_length": ("int64",)},
)
def relative_position_bias(
    b: Builder, table: Tensor, query_length: Tensor, key_length: Tensor, *, is_bidirectional: int = 0, max_distance: int
) -> Tensor:
    """T5's: rows of ``table`` [buckets, heads] by the distance of key and query, as [1, heads, queries, keys]."""
    queries, keys = (int(b.number(t, what)) for t, what in ((query_length, "query_length"), (key_length, "key_length")))
    if table.rank != 2 or queries < 1 or keys < 1 or table.shape[0] < 2 * (1 + bool(is_bidirectional)):
        b.invalid(
            f"{queries} queries and {keys} keys with a table of {list(table.shape)}; expected 1 or more, and [buckets, heads]"
        )
    buckets = _buckets(
        np.arange(keys) - np.arange(queries)[:, None], table.shape[0], max_distance, bool(is_bidirectional)
    )
    rows = gathered(b, table, b.constant(buckets.astype(np.int32)))
    return b.reshape(rows.transpose((2, 0, 1)), (1, table.shape[1], queries, keys))


def _buckets(distance: np.ndarray, buckets: int, furthest: int, both_ways: bool) -> np.ndarray:
    """The bucket of each distance from query to key: exact for near ones, by logarithm up to ``furthest``."""
    first: np.ndarray | int = 0
    if both_ways:
        buckets //= 2
        first = np.where(distance > 0, buckets, 0)
        distance = np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    exact = buckets // 2
    step = np.float32(math.log(furthest / exact)) if furthest > exact else np.float32(1)
    with np.errstate(divide="ignore"):
        wide = exact + (
            np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / step * (buckets - exact)
        )
    far = np.minimum(wide.astype(np.int64), buckets - 1)
    return first + np.where(distance < exact, distance, far)


@operator(
    "GatedRelativePositionBias",
    domain=MICROSOFT,
    types={"query query_bias rel_pos weight bias eco_a": FLOATS},
)
def gated_relative_position_bias(
    b: Builder,
    query: Tensor,
    query_bias: Tensor,
    rel_pos: Tensor,
    weight: Tensor,
    bias: Tensor,
    eco_a: Tensor,
    token_offset: Tensor | None = None,
    *,
    num_heads: int,
) -> Tensor:
    if token_offset is not None:
        b.decline("tokens without their padding")
    b.expect("query_bias", query_bias, query.shape[-1:])
    heads = split_heads(b, b.pointwise("add", query, query_bias, shape=query.shape), num_heads)
    batch, _, length, size = heads.shape
    b.expect("rel_pos", rel_pos, (1, num_heads, length, length))
    b.expect("eco_a", eco_a, (1, num_heads, 1, 1))
    if weight.rank != 2 or weight.shape[0] != size or weight.shape[1] % 2:
        b.invalid(f"weights of shape {list(weight.shape)} for heads of {size}")
    b.expect("bias", bias, weight.shape[1:])
    product = b.pointwise("add", matrix_product(b, heads, weight), bias)
    sums = reduce_axes(b, "sum", b.reshape(product, (batch, num_heads, length, 2, weight.shape[1] // 2)), [4], False)
    u, r, factor, place = b.reads(sums.slice(3, 0, 1), sums.slice(3, 1, 1), eco_a, rel_pos)
    gate = fn.sigmoid(u) * (fn.sigmoid(r) * factor - 1.0) + 2.0
    return b.store(gate * place, query.dtype, shape=(batch, num_heads, length, length))
