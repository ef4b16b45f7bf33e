"""Attention that leaves keys out by a pattern (domain com.microsoft: SparseAttention, LongformerAttention).

Semantics: the operators' schemas in ONNX Runtime (docs/ContribOperators.md), and its kernels where those say no more.
"""

from __future__ import annotations

import numpy as np

from vkep.dtypes import INT32
from vkep.ir.algebra import not_equal, where
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor
from vkep.ops.attention.grouped_query import grouped_parts
from vkep.ops.attention.kv_cache import Rotary, cached
from vkep.ops.attention.rotary import expect_turns
from vkep.ops.attention.sdpa import (
    Mask,
    default_scale,
    heads_of,
    merge_heads,
    per_batch,
    position_mask,
    sdpa,
    split_heads,
)
from vkep.ops.contraction import matrix_product
from vkep.ops.gather import gathered
from vkep.ops.generators import positions
from vkep.ops.microsoft import MICROSOFT, outputs
from vkep.ops.registry import FLOATS, operator
from vkep.sizes import whole


@operator(
    "SparseAttention",
    domain=MICROSOFT,
    types={
        "query key value past_key past_value cos_cache sin_cache": FLOATS,
        "block_rows block_columns total_sequence_length lengths": ("int32",),
    },
)
def sparse_attention(
    b: Builder,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor,
    past_value: Tensor,
    block_rows: Tensor,
    block_columns: Tensor,
    total_sequence_length: Tensor,
    lengths: Tensor,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    *,
    do_rotary: int = 0,
    kv_num_heads: int,
    num_heads: int,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sparse_block_size: int,
) -> list[Tensor]:
    """Causal, over a cache; a query sees the blocks of keys that its block's row lists, of one of several layouts by its head."""
    q, k, v = grouped_parts(b, query, key, value, num_heads, kv_num_heads)
    batch, length, room = q.shape[0], q.shape[2], past_key.shape[2] if past_key.rank == 4 else 0
    used = whole(b.number(total_sequence_length, "total_sequence_length"))
    b.expect("key_total_sequence_lengths", lengths, (batch,))
    if not length <= used <= room or sparse_block_size < 1:
        b.invalid(
            f"total_sequence_length is {used}: {length} new keys, a cache of {room}, blocks of {sparse_block_size}"
        )
    blocks = _dense_layouts(b, block_rows, block_columns, num_heads, -(-used // sparse_block_size))
    b.expect_range("key_total_sequence_lengths", lengths, 1 if length == used else length, used)
    if length == used:  # a prompt begins at 0 whatever its padding
        first = b.full((batch,), 0, INT32)
    else:
        first = b.pointwise("sub", lengths, length)
    rotary = None
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            b.invalid("do_rotary without tables of cos and sin")
        expect_turns(b, q, cos_cache, sin_cache)
        rotary = Rotary(cos_cache, sin_cache, None, bool(rotary_interleaved))
    q, present_key, present_value = cached(b, (past_key, past_value), (q, k, v), first, room, used, rotary)
    used_key, used_value = present_key.slice(2, 0, used), present_value.slice(2, 0, used)
    heads = heads_of(b, q, used_key)
    mask = position_mask(b, heads, b.expr("same", per_batch(b, first)), True)
    mask.conditions.append(b.expr("same", heads.mask_view(b, _seen(b, blocks, first, length, used, sparse_block_size))))
    factor = scale or default_scale(q.shape[3])
    done = sdpa(b, q, used_key, used_value, heads, mask, scale=factor, merged=True)
    return outputs(b, merge_heads(b, done.y), present_key, present_value)


def _dense_layouts(b: Builder, rows: Tensor, columns: Tensor, heads: int, used: int) -> np.ndarray:
    """Which blocks of keys a block of queries sees: bool [blocks of queries, heads, blocks of keys], from compressed rows."""
    starts, listed = b.value(rows, "block_row_indices"), b.value(columns, "block_col_indices")
    if starts.ndim != 2 or listed.ndim != 2 or len(starts) != len(listed) or not len(starts) or heads % len(starts):
        b.invalid(f"blocks of shape {list(starts.shape)} and {list(listed.shape)} for {heads} heads")
    most = starts.shape[1] - 1
    if most < used or (np.diff(starts, axis=1) < 0).any() or starts.min() < 0 or starts.max() > listed.shape[1]:
        b.invalid(
            f"block_row_indices: {most} rows for {used} blocks, up to {starts.max()} of {listed.shape[1]} columns"
        )
    seen = np.zeros((most, heads, most), bool)
    for head in range(heads):
        layout = head % len(starts)
        for row in range(most):
            blocks = listed[layout, starts[layout, row] : starts[layout, row + 1]]
            if ((blocks < 0) | (blocks >= most)).any():
                b.invalid(f"block_col_indices has {blocks.tolist()} in row {row}, expected 0 to {most - 1}")
            seen[row, head, blocks] = True
    return seen[:, :, :used]


def _seen(b: Builder, blocks: np.ndarray, first: Tensor, length: int, used: int, size: int) -> Tensor:
    """bool [batch, heads, queries, keys] from whole blocks, for queries from position ``first`` on."""
    batch = first.shape[0]
    row = b.expr("div", b.expr("add", positions(b, length), b.reshape(first, (batch, 1))), size)
    at = b.store(row, INT32, shape=(batch, length))
    of_queries = gathered(b, b.constant(blocks), at)  # [batch, queries, heads, blocks]
    key = b.pointwise("div", positions(b, used), size)
    return gathered(b, of_queries, key, 3).transpose((0, 2, 1, 3))


@operator(
    "LongformerAttention",
    domain=MICROSOFT,
    types={"x weight bias mask global_weight global_bias": FLOATS, "flags": ("int32",)},
)
def longformer_attention(
    b: Builder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mask: Tensor,
    global_weight: Tensor,
    global_bias: Tensor,
    flags: Tensor,
    *,
    num_heads: int,
    window: int,
) -> Tensor:
    """A token sees those at a distance of at most ``window``, and all flagged ones; a flagged token sees all, by
    separate weights."""
    if x.rank != 3:
        b.invalid(f"the input has shape {list(x.shape)}, expected 3 axes")
    hidden = x.shape[2]
    apart = (
        weight.rank == 3
    )  # a matrix each, and biases of queries, keys, values, global keys and values; of global queries
    matrices = (3, hidden, hidden) if apart else (hidden, 3 * hidden)
    biases = (5 * hidden, hidden) if apart else (3 * hidden, 3 * hidden)
    for name, tensor, shape in (
        ("weight", weight, matrices), ("global_weight", global_weight, matrices),
        ("bias", bias, biases[:1]), ("global_bias", global_bias, biases[1:]),
    ):  # fmt: skip
        b.expect(name, tensor, shape)

    def part(w: Tensor, k: int, added: Tensor, at: int) -> Tensor:
        matrix = b.reshape(w.slice(0, k, 1), (hidden, hidden)) if apart else w.slice(1, k * hidden, hidden)
        return b.pointwise("add", matrix_product(b, x, matrix), added.slice(0, at * hidden, hidden))

    q, k, v = (part(weight, n, bias, n) for n in range(3))
    global_q = part(global_weight, 0, global_bias, 0)
    global_k, global_v = (part(global_weight, n, bias if apart else global_bias, n + 2 if apart else n) for n in (1, 2))
    return longformer(b, (q, k, v), (global_q, global_k, global_v), mask, flags, num_heads, window)


#: queries, keys and values, each [batch, tokens, hidden]
Projections = tuple[Tensor, Tensor, Tensor]


def longformer(
    b: Builder, near_by: Projections, overall: Projections, mask: Tensor, flags: Tensor, num_heads: int, window: int
) -> Tensor:
    """Attention to what is near, and for the flagged tokens, by projections of their own, to all: [batch, tokens, hidden]."""
    x = near_by[0]
    if window < 1 or num_heads < 1 or x.shape[2] % num_heads:
        b.invalid(
            f"an input of shape {list(x.shape)}, {num_heads} heads, a window of {window}; "
            "expected heads that divide the last axis, and 1 or more"
        )
    batch, length, _ = x.shape
    b.expect("mask", mask, (batch, length))
    b.expect("global", flags, (batch, length))
    q, k, v = (split_heads(b, part, num_heads) for part in near_by)
    global_q, global_k, global_v = (split_heads(b, part, num_heads) for part in overall)
    heads = heads_of(b, q, k)
    is_global = b.expr("ne", b.reshape(flags, (batch, 1, 1, 1, length)), 0, ctype="bool")
    padding = b.reshape(mask, (batch, 1, 1, 1, length))
    distance = abs(b.expr("sub", heads.query_index(b), heads.key_index(b)))
    seen = b.expr("le", distance, window) | is_global
    # a masked token has no effect on others, and its own row is 0
    kept = b.expr("ge", padding, 0)
    own = b.expr("ge", b.reshape(mask, (batch, 1, 1, length, 1)), 0)
    local = Mask(conditions=[seen, kept, own], may_hide_rows=True)
    scale = default_scale(q.shape[3])
    y = sdpa(b, q, k, v, heads, local, scale=scale).y
    everywhere = Mask(conditions=[kept, own], may_hide_rows=True)
    global_y = sdpa(b, global_q, global_k, global_v, heads, everywhere, scale=scale).y
    flagged = b.reshape(flags, (batch, 1, length, 1))
    chosen = b.pointwise(lambda flag, x, y: where(not_equal(flag, 0), x, y), flagged, global_y, y, dtype=x.dtype)
    return merge_heads(b, chosen)
