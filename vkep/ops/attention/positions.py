"""ONNX Runtime's operators on positions and tokens (domain com.microsoft): rotary embeddings, relative biases, hashes.

Semantics: the operators' schemas in ONNX Runtime (docs/ContribOperators.md), and its kernels where those say no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep.dtypes import DTYPES, DType
from vkep.ir import algebra as fn
from vkep.ir.algebra import equal, where
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr, apply
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import SINGLE
from vkep.ops.attention.sdpa import merge_heads, split_heads
from vkep.ops.attention.standard import rotated
from vkep.ops.contraction import matrix_product
from vkep.ops.gather import gathered, rows_at, scatter_elements_
from vkep.ops.microsoft import MICROSOFT
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import FLOATS, operator

_FLOAT32, _INT32, _BOOL, _UINT32 = (DTYPES[n] for n in ("float32", "int32", "bool", "uint32"))


@operator(
    "GemmaRotaryEmbedding",
    domain=MICROSOFT,
    types={"emb": ("float32",), "q q_rot k k_rot": FLOATS},
)
def gemma_rotary_embedding(b: Builder, emb: Tensor, q: Tensor, q_rot: Tensor, k: Tensor, k_rot: Tensor) -> list[Tensor]:
    for what, tensor, shape in (("q_rot", q_rot, q.shape), ("k_rot", k_rot, k.shape)):
        b.expect(what, tensor, shape)
    if emb.rank != 3 or any(t.rank != 4 or (t.shape[0], *t.shape[2:]) != emb.shape for t in (q, k)):
        b.invalid(f"angles {list(emb.shape)} for queries {list(q.shape)} and keys {list(k.shape)}")
    angle = b.reshape(emb, (emb.shape[0], 1, *emb.shape[1:]))
    cos, sin = (b.pointwise(f, angle, dtype=q.dtype) for f in ("cos", "sin"))

    def rotation(x: Expr, cos: Expr, turned: Expr, sin: Expr) -> Expr:
        return x * cos + turned * sin

    return [b.pointwise(rotation, x, cos, turned, sin, shape=x.shape) for x, turned in ((q, q_rot), (k, k_rot))]


@operator(
    "MRotaryEmbedding",
    domain=MICROSOFT,
    types={"x cos_cache sin_cache": SINGLE, "position_ids": ("int64",)},
)
def m_rotary_embedding(
    b: Builder,
    x: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    mrope_layout: int = 0,
    mrope_section: Sequence[int],
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    """Rotary embedding of which each angle is of one of three positions: of time, height or width."""
    if is_packed_batching or scale != 1.0:
        b.decline("packed batching, or a scale")
    half = cos_cache.shape[-1] if cos_cache.rank == 2 else 0
    b.expect("sin_cache", sin_cache, cos_cache.shape)
    if len(mrope_section) != 3 or min(mrope_section) < 0 or sum(mrope_section) != half or mrope_layout not in (0, 1):
        b.invalid(
            f"mrope_section is {list(mrope_section)} in layout {mrope_layout} for tables of {list(cos_cache.shape)}"
        )
    flat = x.rank == 3
    if flat:
        size = x.shape[2] // num_heads if num_heads > 0 else rotary_embedding_dim or 2 * half
        x = split_heads(b, x, x.shape[2] // size if size else 0)
    if x.rank != 4 or (rotary_embedding_dim or x.shape[3]) != 2 * half:
        b.invalid(f"heads of shape {list(x.shape)} for tables of {list(cos_cache.shape)}")
    batch, length = x.shape[0], x.shape[2]
    b.expect("position_ids", position_ids, (3, batch, length))
    source = np.repeat(np.arange(3), mrope_section)
    if mrope_layout == 1:
        source = np.zeros(half, np.int64)
        for stream in (1, 2):
            source[stream : 3 * mrope_section[stream] : 3] = stream
    cos, sin = (_of_streams(b, table, position_ids, source) for table in (cos_cache, sin_cache))
    y = rotated(b, x, cos, sin, bool(interleaved))
    return merge_heads(b, y) if flat else y


def _of_streams(b: Builder, table: Tensor, positions: Tensor, source: np.ndarray) -> Tensor:
    """[batch, length, half]: column c of the table's rows at position stream ``source[c]`` of ``positions`` [3, ...]."""
    rows = rows_at(b, table, positions, "a position")
    stream = b.constant(source.astype(np.int32))
    parts = [b.reshape(rows.slice(0, k, 1), rows.shape[1:]) for k in range(3)]
    which, first, second, third = b.reads(stream, *parts)
    value = where(equal(which, 0), first, where(equal(which, 1), second, third))
    return b.store(value, table.dtype, shape=rows.shape[1:])


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
        b.invalid(f"{queries} queries and {keys} keys with a table of {list(table.shape)}")
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


# ---- tokens, checks, hashes


@operator("NGramRepeatBlock", domain=MICROSOFT, types={"ids": ("int64",), "scores": ("float32",)})
def ngram_repeat_block(b: Builder, ids: Tensor, scores: Tensor, *, ngram_size: int) -> Tensor:
    """Scores with minus infinity for each token that would end an n-gram which the ids have already."""
    if ids.rank != 2 or scores.rank != 2 or ids.shape[0] != scores.shape[0] or ngram_size < 1:
        b.invalid(f"ids {list(ids.shape)}, scores {list(scores.shape)} and n-grams of {ngram_size}")
    length, before = ids.shape[1], ngram_size - 1
    many = length - before  # n-grams that the ids have
    if many <= 0:
        return scores
    repeats: Expr | None = None
    for j in range(before):
        same = equal(*b.reads(ids.slice(1, j, many), ids.slice(1, length - before + j, 1)))
        repeats = same if repeats is None else repeats & same
    last = b.copy(ids.slice(1, before, many))
    if repeats is None:
        bans = b.full(last.shape, -np.inf, _FLOAT32)
    else:
        bans = b.store(b.expr("where", repeats, -np.inf, np.inf, ctype="float"), _FLOAT32, shape=last.shape)
    return scatter_elements_(b, scores, last, b.contiguous(bans), 1, "min", what="a token", from_end=False)


@operator("IsAllFinite", domain=MICROSOFT, types={})
def is_all_finite(b: Builder, *xs: Tensor, isinf_only: int = 0, isnan_only: int = 0) -> Tensor:
    if isinf_only and isnan_only:
        b.invalid("isinf_only and isnan_only are both set")

    def finite(x: Expr) -> Expr:
        return ~(fn.isinf(x) if isinf_only else fn.isnan(x) if isnan_only else fn.isinf(x) | fn.isnan(x))

    each = []
    for x in xs:
        if x.dtype.kind != "float":
            b.decline(f"an input of {x.dtype}; the kernels take floats")
        fine = b.pointwise(finite, x, dtype=_BOOL)
        each.append(reduce_axes(b, "all", fine, range(x.rank), False) if x.rank else fine)
    whole = b.expr("same", each[0])
    for one in each[1:]:
        whole = b.expr("and", whole, one)
    return b.store(whole, _BOOL, shape=())


def _words(x: Expr) -> list[Expr]:
    """The 32-bit words of an element, the lower one first."""
    if x.ctype == "double":
        return [apply("low_word", x), apply("high_word", x)]
    low = fn.float_bits(x) if x.ctype == "float" else fn.cast(x, "uint")
    return [low, fn.cast(x >> 32, "uint")] if x.ctype in ("int64_t", "uint64_t") else [low]


def _turned(value: Expr, bits: int) -> Expr:
    return (value << bits) | (value >> (32 - bits))


@operator("MurmurHash3", domain=MICROSOFT, types={"x": ("int32", "uint32", "float32", "int64", "uint64", "float64")})
def murmur_hash(b: Builder, x: Tensor, *, positive: int = 1, seed: int = 0) -> Tensor:
    """MurmurHash3_x86_32 (Appleby) of each element's bytes."""
    words = _words(b.reads(x)[0])
    state = b.reads(words[0], seed & 0xFFFFFFFF)[1]
    for word in words:
        mixed = _turned(word * 0xCC9E2D51, 15)
        state = _turned(state ^ (mixed * 0x1B873593), 13) * 5 + 0xE6546B64
    state = state ^ (4 * len(words))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> shift)) * factor
    state = state ^ (state >> 16)
    made: DType = _UINT32 if positive == 1 else _INT32
    return b.store(fn.cast(state, made.glsl_compute), made, shape=x.shape)


@operator("SampleOp", domain=MICROSOFT, types={"x": (*FLOATS, "float64", "int32", "int64", "uint32", "uint64")})
def sample_op(b: Builder, x: Tensor) -> Tensor:
    """An echo: what ONNX Runtime shows how an operator is added with."""
    return x
