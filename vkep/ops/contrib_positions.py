"""ONNX Runtime's operators on positions and tokens (domain com.microsoft): rotary embeddings, relative biases, hashes.

Semantics: the operators' schemas in ONNX Runtime (docs/ContribOperators.md), and its kernels where those say no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkep.dtypes import DTYPES, DType
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor
from vkep.ops.allowed import SINGLE
from vkep.ops.attention import rotated
from vkep.ops.contraction import matrix_product
from vkep.ops.contrib import MICROSOFT
from vkep.ops.gather import gathered, rows_at, scatter_elements_
from vkep.ops.reduction import reduce_axes
from vkep.ops.registry import FLOATS, operator
from vkep.ops.sdpa import merge_heads, split_heads

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
    cos, sin = (b.store(b.expr(f"accurate_{f}({{0}})", angle), q.dtype, shape=angle.shape) for f in ("cos", "sin"))
    return [
        b.pointwise("({0} * {1} + {2} * {3})", x, cos, turned, sin, shape=x.shape)
        for x, turned in ((q, q_rot), (k, k_rot))
    ]


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
    value = b.expr("({0} == 0 ? {1} : ({0} == 1 ? {2} : {3}))", stream, *parts, ctype="float")
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
    u, r = (b.expr("(1.0 / (1.0 + exp(-{0})))", sums.slice(3, k, 1)) for k in (0, 1))
    gate = b.expr("({0} * ({1} * {2} - 1.0) + 2.0)", u, r, eco_a)
    return b.store(b.expr("mul", gate, rel_pos), query.dtype, shape=(batch, num_heads, length, length))


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
        same = b.expr("eq", ids.slice(1, j, many), ids.slice(1, length - before + j, 1), ctype="bool")
        repeats = same if repeats is None else b.expr("and", repeats, same)
    minus, plus = "uintBitsToFloat(0xff800000u)", "uintBitsToFloat(0x7f800000u)"
    last = b.copy(ids.slice(1, before, many))
    if repeats is None:
        bans = b.full(last.shape, -np.inf, _FLOAT32)
    else:
        bans = b.store(b.expr(f"({{0}} ? {minus} : {plus})", repeats, ctype="float"), _FLOAT32, shape=last.shape)
    return scatter_elements_(b, scores, last, b.contiguous(bans), 1, "min", what="a token", from_end=False)


@operator("IsAllFinite", domain=MICROSOFT, types={})
def is_all_finite(b: Builder, *xs: Tensor, isinf_only: int = 0, isnan_only: int = 0) -> Tensor:
    if isinf_only and isnan_only:
        b.invalid("isinf_only and isnan_only are both set")
    wrong = "isinf({0})" if isinf_only else "isnan({0})" if isnan_only else "(isinf({0}) || isnan({0}))"
    each = []
    for x in xs:
        if x.dtype.kind != "float":
            b.decline(f"an input of {x.dtype}; the kernels take floats")
        fine = b.store(b.expr(f"(!{wrong})", x, ctype="bool"), _BOOL, shape=x.shape)
        each.append(reduce_axes(b, "all", fine, range(x.rank), False) if x.rank else fine)
    whole = b.expr("same", each[0])
    for one in each[1:]:
        whole = b.expr("and", whole, one)
    return b.store(whole, _BOOL, shape=())


#: the 32-bit words of an element, the lower one first
_WORDS = {
    "int32": ("uint({0})",),
    "uint32": ("{0}",),
    "float32": ("floatBitsToUint({0})",),
    "int64": ("uint({0})", "uint({0} >> 32)"),
    "uint64": ("uint({0})", "uint({0} >> 32)"),
    "float64": ("unpackDouble2x32({0}).x", "unpackDouble2x32({0}).y"),
}


@operator("MurmurHash3", domain=MICROSOFT, types={"x": tuple(_WORDS)})
def murmur_hash(b: Builder, x: Tensor, *, positive: int = 1, seed: int = 0) -> Tensor:
    """MurmurHash3_x86_32 (Appleby) of each element's bytes."""

    def turned(value: Expr, bits: int) -> Expr:
        return b.expr(f"(({{0}} << {bits}) | ({{0}} >> {32 - bits}))", value)

    words = _WORDS[x.dtype.name]
    state = b.expr(f"({seed & 0xFFFFFFFF}u + 0u * {words[0]})", x, ctype="uint")
    for word in words:
        mixed = turned(b.expr(f"({word} * 0xcc9e2d51u)", x, ctype="uint"), 15)
        state = turned(b.expr("({0} ^ ({1} * 0x1b873593u))", state, mixed), 13)
        state = b.expr("({0} * 5u + 0xe6546b64u)", state)
    state = b.expr(f"({{0}} ^ {4 * len(words)}u)", state)
    for shift, factor in ((16, "0x85ebca6bu"), (13, "0xc2b2ae35u")):
        state = b.expr(f"(({{0}} ^ ({{0}} >> {shift})) * {factor})", state)
    state = b.expr("({0} ^ ({0} >> 16))", state)
    made: DType = _UINT32 if positive == 1 else _INT32
    return b.store(b.expr("same" if positive == 1 else "int({0})", state, ctype=made.glsl_compute), made, shape=x.shape)


@operator("SampleOp", domain=MICROSOFT, types={"x": (*FLOATS, "float64", "int32", "int64", "uint32", "uint64")})
def sample_op(b: Builder, x: Tensor) -> Tensor:
    """An echo: what ONNX Runtime shows how an operator is added with."""
    return x
