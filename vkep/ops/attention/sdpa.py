"""Scaled dot-product attention, which every attention operator is lowered to: products, masks, softmax.

Where a device has a fused kernel that is faster (`sdpa_fused`), it computes everything. Else the scores are written to
memory, for a block of queries at a time if those of all queries are large; a block reads only the keys that its queries
may see. Masks by position (causal, sliding window) are expressions over index vectors, which fuse into the score product.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES, INT32, DType
from vkep.errors import Decline
from vkep.ir import expr as ex
from vkep.ir.builder import Builder
from vkep.ir.expr import Expr
from vkep.ir.tensor import Tensor, broadcast_shapes, contiguous_strides
from vkep.kernels.attention.attention import gains_by_attention
from vkep.kernels.attention.problem import AttentionProblem
from vkep.kernels.launch import ceil_div, is_cpu
from vkep.ops.attention.kv_cache import Coding
from vkep.ops.contraction import matrix_product
from vkep.ops.generators import positions
from vkep.ops.normalization import softmax_over
from vkep.sizes import at_hand, fixed, largest, matches, serves_others, smallest

#: maximum bytes of scores for a block of queries: enough to fill a large GPU, or a CPU's cores
SCORES_BYTES, SCORES_BYTES_CPU = 64 << 20, 32 << 20
#: a block's queries are a multiple of this (rows of a product's tile), unless its scores exceed LARGEST_SCORES_BYTES
_ROWS = 64
LARGEST_SCORES_BYTES = 1 << 30
#: minimum number of blocks of an attention with a window: with eight, a causal one computes 9/16 of its scores
_MASKED_BLOCKS = 8
#: a plan with sizes serves sizes with up to so many times the scores that its blocks are meant for
_ROOM = 4
#: maximum size of a bias that is written for the kernel, and its maximum fraction of the number of scores
MASK_BYTES, MASK_PART = 64 << 20, 1 / 4
_FLOATS = ("float32", "float16")


@dataclass(frozen=True)
class KeyWindow:
    """A mask by position: query i sees the keys from ``origin + i + first`` to ``origin + i + end``, excluded (None: no bound).

    ``conditions`` are equivalent expressions. ``origin`` is an integer for each batch known at run time; None where the
    bounds already include it.
    """

    conditions: tuple[Expr, ...]
    first: int | None
    end: int | None
    origin: Expr | None


@dataclass
class Mask:
    """Which keys a query sees: the window's conditions and all others must hold. Biases are added to the scores.

    Tensors broadcast to [batch, kv heads, query heads of a kv head, queries, keys]. ``may_hide_rows``: some query may see no
    key; its probabilities are zero then.
    """

    window: KeyWindow | None = None
    conditions: list[Expr] = field(default_factory=list)
    biases: list[Tensor] = field(default_factory=list)
    may_hide_rows: bool = False

    @property
    def first(self) -> int | None:
        """Query i sees no key before ``i + first`` (None: no bound that is known while planning)."""
        return self.window.first if self.window is not None and self.window.origin is None else None

    @property
    def end(self) -> int | None:
        """Query i sees no key from ``i + end`` on (None: no bound that is known while planning)."""
        return self.window.end if self.window is not None and self.window.origin is None else None

    def keys_of(self, start: int, count: int, keys: int) -> tuple[int, int]:
        """The range of keys (first, end) that queries ``start`` to ``start + count`` may see; not empty unless ``keys`` is 0."""
        if not keys:
            return 0, 0
        end = keys if self.end is None else largest(1, smallest(keys, start + count - 1 + self.end))
        first = 0 if self.first is None else largest(0, smallest(end - 1, start + self.first))
        return first, end

    def of(self, queries: tuple[int, int], keys: tuple[int, int]) -> Mask:
        """The mask of a block, given by its ranges (first, end) of queries and of keys."""
        spans = {3: queries, 4: keys}

        def block(tensor: Tensor) -> Tensor:
            for axis, (first, end) in spans.items():
                if not matches(tensor.shape[axis], 1):
                    tensor = tensor.slice(axis, first, end - first)
            return tensor

        def leaf(node: ex.Leaf) -> Expr | None:
            return ex.leaf(block(node.tensor)) if node.tensor is not None else None

        window = self.window
        if window is not None:
            window = replace(
                window, conditions=tuple(ex.substitute(condition, leaf) for condition in window.conditions)
            )
        return replace(
            self,
            window=window,
            conditions=[ex.substitute(condition, leaf) for condition in self.conditions],
            biases=[block(bias) for bias in self.biases],
        )

    def allowed(self, b: Builder) -> Expr | None:
        """Whether a query sees a key, None where it always does, but for biases of minus infinity."""
        parts = [*(self.window.conditions if self.window is not None else ()), *self.conditions]
        result: Expr | None = None
        for part in parts:
            result = part if result is None else b.expr("and", result, part)
        return result


@dataclass(frozen=True)
class Heads:
    """The shape of one attention: query heads share key and value heads in groups."""

    batch: int
    kv_heads: int
    group: int
    queries: int
    keys: int

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """Shape of the scores: [batch, heads of keys, queries' heads for each, queries, keys]."""
        return (self.batch, self.kv_heads, self.group, self.queries, self.keys)

    def query_index(self, b: Builder) -> Tensor:
        """0 to queries - 1 along the queries, repeated for each head of the group: an epilogue reads it by the product's row."""
        if serves_others(self.queries):
            step = self.queries if self.group == 1 else 0
            return positions(b, self.queries).view((1, 1, 1, self.queries, 1), (0, 0, step, 1, 0))
        group = int(fixed(self.group, "the places of queries are a constant, repeated for each head of a group"))
        index = np.tile(np.arange(self.queries, dtype=np.int32), group)
        return b.constant(index).view((1, 1, group, self.queries, 1), (0, 0, self.queries, 1, 0))

    def key_index(self, b: Builder) -> Tensor:
        """The position of each key, broadcast to the scores."""
        return positions(b, self.keys).view((1, 1, 1, 1, self.keys), (0, 0, 0, 0, 1))

    def mask_view(self, b: Builder, mask: Tensor) -> Tensor:
        """A mask that broadcasts to [batch, heads, queries, keys], as one that broadcasts to ``shape``.

        Raises `InvalidNode` for one that does not.
        """
        wide = b.broadcast("the mask", mask, (self.batch, self.kv_heads * self.group, self.queries, self.keys))
        # an axis without a step is broadcast: its dimension may be a size that has to be 1
        shape = [1 if matches(step, 0) else dim for dim, step in zip(wide.shape, wide.strides, strict=True)]
        view = wide.view(shape, wide.strides)
        if matches(view.shape[1], 1):
            return view.view((view.shape[0], 1, 1, *view.shape[2:]), (view.strides[0], 0, 0, *view.strides[2:]))
        per_head = view.strides[1]
        return view.view(
            (view.shape[0], self.kv_heads, self.group, *view.shape[2:]),
            (view.strides[0], per_head * self.group, per_head, *view.strides[2:]),
        )


@dataclass(frozen=True)
class Scoring:
    """The factor of the products q @ k.T, the cap of the scores (``cap * tanh(score / cap)``; 0: none), and an attention sink
    [heads]: one more score in each row's softmax, without a value.
    """

    scale: float
    softcap: float = 0.0
    sink: Tensor | None = None


@dataclass
class Attended:
    """The result of `sdpa` [batch, heads, queries, value size], and the scores at the requested stage."""

    y: Tensor
    scores: Tensor | None


def split_heads(b: Builder, x: Tensor, heads: int) -> Tensor:
    """[batch, length, heads * size] as [batch, heads, length, size]. Raises `InvalidNode` where the number of features
    does not fit."""
    if x.rank != 3 or heads <= 0 or x.shape[2] % heads:
        b.invalid(f"a tensor of shape {list(x.shape)} does not divide into {heads} heads")
    batch, length, width = x.shape
    return b.reshape(x, (batch, length, heads, width // heads)).transpose((0, 2, 1, 3))


def merge_heads(b: Builder, x: Tensor) -> Tensor:
    """The inverse of `split_heads`."""
    batch, heads, length, size = x.shape
    return b.reshape(x.transpose((0, 2, 1, 3)), (batch, length, heads * size))


def heads_of(b: Builder, q: Tensor, k: Tensor) -> Heads:
    """The shape of an attention of q and k [batch, heads, length, size]. Raises `InvalidNode` where they disagree."""
    batch, q_heads, queries, size = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    if k.shape[0] != batch or k.shape[3] != size or not kv_heads or q_heads % kv_heads:
        b.invalid(f"queries of shape {list(q.shape)} and keys of shape {list(k.shape)} do not fit together")
    return Heads(batch, kv_heads, q_heads // kv_heads, queries, keys)


def sdpa(
    b: Builder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: Heads,
    mask: Mask,
    *,
    scale: float,
    softcap: float = 0.0,
    scores_stage: int | None = None,
    sink: Tensor | None = None,
    merged: bool = False,
    coding: Coding | None = None,
) -> Attended:
    """``softmax(softcap(scale * q @ k.T) + mask) @ v`` with q, k, v [batch, heads, length, size] of one type.

    ``scores_stage``: also give the scores as products (0), after the soft cap (1), with the mask (2) or as
    probabilities (3). ``sink``: see `Scoring`. ``merged``: the caller passes the result to `merge_heads`; it gets the memory
    layout for which that is a view, where a kernel can write it. ``coding``: k and v are such codes. Raises `InvalidNode`
    where shapes disagree.
    """
    scoring = Scoring(scale, softcap, sink)
    b.expect("the sink", sink, (heads.kv_heads * heads.group,))
    if coding is not None:
        codes = fused_attention(b.caps, q, k, v, heads, mask, scoring, merged, coding) if scores_stage is None else None
        if codes is not None:
            return Attended(sdpa_fused(b, codes, q, k, v, mask, sink, coding), None)
        k, v = coding.numbers(b, k, v, q.dtype)
    if v.shape[:3] != k.shape[:3]:
        b.invalid(f"keys of shape {list(k.shape)} and values of shape {list(v.shape)} do not fit together")
    if scores_stage is not None:
        return _attend_block(b, q, k, v, heads, mask, scoring, scores_stage)
    fused = fused_attention(b.caps, q, k, v, heads, mask, scoring, merged)
    if fused is not None:
        return Attended(sdpa_fused(b, fused, q, k, v, mask, sink), None)
    out: Tensor | None = None
    for start, count in _blocks(b.caps, heads, q.dtype.itemsize, mask):
        first, end = mask.keys_of(start, count, heads.keys)
        whole = count == heads.queries and end - first == heads.keys
        made = _attend_block(
            b,
            q.slice(2, start, count),
            k.slice(2, first, end - first),
            v.slice(2, first, end - first),
            replace(heads, queries=count, keys=end - first),
            mask if whole else mask.of((start, start + count), (first, end)),
            scoring,
        )
        if count == heads.queries:
            return made
        if out is None:
            out = b.empty(q.dtype, (*q.shape[:3], v.shape[3]))
        b.copy(made.y, out=out.slice(2, start, count))
    return Attended(out if out is not None else b.empty(q.dtype, (*q.shape[:3], v.shape[3])), None)


def saves_scores(
    caps: DeviceCapabilities, q: Tensor, k: Tensor, v: Tensor, heads: Heads, mask: Mask, scoring: Scoring
) -> bool:
    """Whether `sdpa` avoids storing all scores: it has one kernel for everything, or processes the queries in
    blocks."""
    if len(_blocks(caps, heads, q.dtype.itemsize, mask)) > 1:
        return True
    return fused_attention(caps, q, k, v, heads, mask, scoring) is not None


def _blocks(caps: DeviceCapabilities, heads: Heads, itemsize: int, mask: Mask) -> list[tuple[int, int]]:
    """The first query and the number of queries of each block. Where these depend on sizes, a plan keeps the number of blocks,
    which divide the queries equally, up to `_ROOM` times the scores that a block is meant for."""
    queries, each = heads.queries, heads.batch * heads.kv_heads * heads.group * heads.keys * itemsize
    most, windowed = SCORES_BYTES_CPU if is_cpu(caps) else SCORES_BYTES, mask.first is not None or mask.end is not None
    if not serves_others(each * queries):
        block = _block(each, queries, most, windowed)
        return [(start, min(block, queries - start)) for start in range(0, queries, block)]
    count = _count(each, queries, most, windowed)
    # never for the sizes at hand: a plan with sizes has the opposite as a condition
    if each * queries > _ROOM * count * most:
        raise Decline(f"{each * queries} bytes of scores, a plan of {count} blocks is for {_ROOM * count * most}")
    ends = [queries * k // count for k in range(count + 1)]
    return [(start, end - start) for start, end in itertools.pairwise(ends)]


@at_hand
def _count(each: int, queries: int, most: int, windowed: bool) -> int:
    """The number of blocks of a plan with sizes."""
    return max(1, ceil_div(queries, _block(each, queries, most, windowed)))


def _block(each: int, queries: int, most: int, windowed: bool) -> int:
    """Number of queries of a block, for ``each`` bytes of scores of a query."""
    wanted = most // max(each, 1)
    if wanted >= queries:
        return max(queries, 1)
    if windowed:
        wanted = min(wanted, queries // _MASKED_BLOCKS)
    return max(wanted // _ROWS * _ROWS, min(LARGEST_SCORES_BYTES // each, _ROWS), 1)


def _attend_block(
    b: Builder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: Heads,
    mask: Mask,
    scoring: Scoring,
    scores_stage: int | None = None,
) -> Attended:
    flat = (heads.batch, heads.kv_heads, heads.group * heads.queries)
    rows = b.reshape(q, (*flat, q.shape[3]))
    product = matrix_product(b, rows, k.transpose((0, 1, 3, 2)))
    product = b.reshape(product, heads.shape)
    stages: dict[int, Tensor] = {}

    def stage(index: int, value: Expr) -> Expr:
        """Store the scores if this stage is requested; later operations then read them."""
        if scores_stage != index:
            return value
        stages[index] = b.store(value, q.dtype, shape=heads.shape)
        return b.expr("same", stages[index])

    value = stage(0, b.expr("mul", product, scoring.scale))
    if scoring.softcap:
        value = b.expr("mul", b.expr("tanh", b.expr("div", value, scoring.softcap)), scoring.softcap)
    value = stage(1, value)
    for bias in mask.biases:
        value = b.expr("add", value, bias)
    allowed = mask.allowed(b)
    if allowed is not None:
        value = b.expr("where", allowed, value, -math.inf)
    scores = b.store(stage(2, value), q.dtype, shape=heads.shape)
    hides = mask.may_hide_rows and (allowed is not None or bool(mask.biases))
    probabilities = _softmax(b, scores, heads, scoring.sink, hides)
    if scores_stage == 3:
        stages[3] = probabilities
    y = matrix_product(b, b.reshape(probabilities, (*flat, heads.keys)), v)
    q_heads = heads.kv_heads * heads.group
    asked = stages[scores_stage] if scores_stage is not None else None
    if asked is not None:
        asked = b.reshape(asked, (heads.batch, q_heads, heads.queries, heads.keys))
    return Attended(b.reshape(y, (heads.batch, q_heads, heads.queries, v.shape[3])), asked)


def _softmax(b: Builder, scores: Tensor, heads: Heads, sink: Tensor | None, hides: bool) -> Tensor:
    keys = heads.keys
    if sink is not None:  # one more column for the softmax, dropped afterwards
        keys += 1
        wide = b.empty(scores.dtype, (*heads.shape[:4], keys))
        b.copy(scores, out=wide.slice(4, 0, heads.keys))
        column = b.reshape(b.cast(sink, scores.dtype), (1, heads.kv_heads, heads.group, 1, 1))
        b.copy(column.expand((*heads.shape[:4], 1)), out=wide.slice(4, heads.keys, 1))
        scores = wide
    out = softmax_over(b, b.contiguous(scores), math.prod(heads.shape[:4]), keys, 1, zeros=hides)
    return out if sink is None else b.contiguous(out.slice(4, 0, heads.keys))


def per_batch(b: Builder, values: Tensor) -> Expr:
    """Integers, one for each batch, for a mask's conditions."""
    flat = b.reshape(values, (values.size, 1, 1, 1, 1))
    return b.expr("cast", flat, ctype="int")


def position_mask(b: Builder, heads: Heads, offset: Expr | int, causal: bool, left: int = -1, right: int = -1) -> Mask:
    """The mask of queries at positions ``offset + i``: no later key if ``causal``, none more than ``left`` before or ``right``
    after the query's position (-1: no bound).
    """
    if causal:
        right = 0 if right < 0 else min(right, 0)
    mask = Mask()
    if left < 0 and right < 0:
        return mask
    position = b.expr("add", heads.query_index(b), offset, ctype="int")
    key = heads.key_index(b)
    conditions = []
    if right >= 0:
        conditions.append(b.expr("le", key, b.expr("add", position, right)))
    if left >= 0:
        conditions.append(b.expr("ge", key, b.expr("sub", position, left)))
    start = offset if not isinstance(offset, Expr) else 0
    first, end = (start - left if left >= 0 else None), (start + right + 1 if right >= 0 else None)
    mask.window = KeyWindow(tuple(conditions), first, end, None if not isinstance(offset, Expr) else offset)
    # with a left bound and fewer keys than positions, the last queries see no key
    known = not isinstance(offset, Expr) and offset >= 0 and offset + heads.queries <= heads.keys
    mask.may_hide_rows = not known and not (left < 0 and not isinstance(offset, Expr) and offset >= 0)
    return mask


def default_scale(size: int) -> float:
    """1 / sqrt(size), and 1 for heads of size 0."""
    return 1.0 / math.sqrt(fixed(size, "the scale of attention is a constant")) if size else 1.0


# ---- by one kernel that never writes its scores (`vkep.kernels.attention.attention`), where that is faster


@dataclass(frozen=True)
class FusedAttention:
    """The problem of an attention, its bias (an operand of the attention, or a buffer for its mask) and its result:
    [batch, heads, queries, value size], or [batch, queries, heads, value size] where ``merged``."""

    problem: AttentionProblem
    bias: Tensor | None
    y: Tensor
    merged: bool


def fused_attention(
    caps: DeviceCapabilities,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: Heads,
    mask: Mask,
    scoring: Scoring,
    merged: bool = False,
    coding: Coding | None = None,
) -> FusedAttention | None:
    """The problem by which one kernel computes `sdpa`; None where there is none, or scores in memory are faster.
    ``coding``: of k and v.
    """
    if q.dtype.name not in _FLOATS or 0 in (*q.shape, *k.shape, *v.shape):
        return None
    batch, q_heads, queries, size = q.shape
    value_size = v.shape[3] if coding is None else coding.value_size
    lain = (batch, queries, q_heads, value_size) if merged else (batch, q_heads, queries, value_size)
    y = Tensor.contiguous(q.dtype, lain)
    window = mask.window
    problem = AttentionProblem(
        batch=batch,
        heads=q_heads,
        kv_heads=heads.kv_heads,
        queries=queries,
        keys=heads.keys,
        size=size,
        value_size=value_size,
        q_strides=_row_strides(q),
        k_strides=_row_strides(k),
        v_strides=_row_strides(v),
        y_strides=_row_strides(_by_head(y, merged))[1:],
        scale=scoring.scale,
        softcap=scoring.softcap,
        first=None if window is None else window.first,
        end=None if window is None else window.end,
        origin=window is not None and window.origin is not None,
        sink=scoring.sink is not None,
        dtype=q.dtype.name,
        coding="" if coding is None else coding.dtype.name,
        k_channels=coding is not None and coding.by_channel(coding.k_scale),
        v_channels=coding is not None and coding.by_channel(coding.v_scale),
    )
    biases = _biases(mask, heads, q.dtype) if gains_by_attention(problem, caps) else None
    if biases is None:
        return None
    if not biases:
        return FusedAttention(problem, None, y, merged)
    [bias] = biases
    problem = replace(problem, bias_strides=_bias_strides(bias, heads), bias_dtype=bias.dtype.name)
    return FusedAttention(problem, bias, y, merged)


def sdpa_fused(
    b: Builder,
    fused: FusedAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    sink: Tensor | None,
    coding: Coding | None = None,
) -> Tensor:
    """The result of `sdpa` [batch, heads, queries, value size], computed by `fused_attention` for the same operands."""
    operands = []
    if fused.bias is not None:
        if fused.bias not in mask.biases:
            _write_bias(b, mask, fused.bias)
        operands.append(fused.bias)
    if fused.problem.origin:
        assert mask.window is not None and mask.window.origin is not None
        operands.append(_positions(b, mask.window.origin, fused.problem.batch))
    if sink is not None:
        operands.append(b.contiguous(b.cast(sink, q.dtype)))
    operands += [] if coding is None else coding.scales
    rows = [t if _has_dense_rows(t) else b.copy(t) for t in (q, k, v)]
    b.compute(fused.problem, [*rows, *operands], [fused.y])
    return _by_head(fused.y, fused.merged)


def _positions(b: Builder, origin: ex.Expr, batch: int) -> Tensor:
    """An integer for each batch, as a tensor."""
    value = origin
    while value.op in ("same", "cast") and len(value.args) == 1:
        value = value.args[0]
    if isinstance(value, ex.Leaf) and value.tensor is not None:
        known = value.tensor
        if known.dtype.name == "int32" and known.size == batch and known.is_contiguous:
            return b.reshape(known, (batch,))
    return b.store(origin, INT32, shape=(batch, 1, 1, 1, 1))


def _by_head(y: Tensor, merged: bool) -> Tensor:
    return y.transpose((0, 2, 1, 3)) if merged else y


def _has_dense_rows(t: Tensor) -> bool:
    return all(s >= 0 for s in t.strides) and (matches(t.strides[3], 1) or matches(t.shape[3], 1))


def _row_strides(t: Tensor) -> tuple[int, int, int]:
    """Strides of batch, head and row (0 for an axis of one), those of a dense copy where rows are not dense."""
    strides = t.strides if _has_dense_rows(t) else contiguous_strides(t.shape)
    batch, head, row = (0 if matches(dim, 1) else stride for dim, stride in zip(t.shape[:3], strides[:3], strict=True))
    return batch, head, row


def _biases(mask: Mask, heads: Heads, dtype: DType) -> list[Tensor] | None:
    """The bias, if any, that is equivalent to a mask's biases and conditions (except its window); None where none is
    worth its memory.

    A single bias is read in place. Several, or conditions, need a new buffer (`_write_bias`), which is only used where
    heads share them.
    """
    if any(t.dtype.name not in _FLOATS for t in mask.biases):
        return None
    if not mask.conditions and len(mask.biases) <= 1 and all(_bias_strides(t, heads) for t in mask.biases):
        return mask.biases
    read = [t.shape for condition in mask.conditions for t in ex.tensors(condition)]
    shape = broadcast_shapes((1,) * 5, *read, *(t.shape for t in mask.biases))
    wide = dtype.name == "float32" or len(mask.biases) > 1 or any(t.dtype.name == "float32" for t in mask.biases)
    out = Tensor.contiguous(DTYPES["float32" if wide else "float16"], shape)
    too_large = out.size > MASK_PART * math.prod(heads.shape) or out.nbytes > MASK_BYTES
    return None if too_large or _bias_strides(out, heads) is None else [out]


def _write_bias(b: Builder, mask: Mask, out: Tensor) -> None:
    """The sum of a mask's biases, minus infinity where a condition does not hold."""
    value: ex.Expr = ex.Const("float", value=0.0)
    for bias in mask.biases:
        value = b.expr("add", value, bias, ctype="float")
    for condition in mask.conditions:
        value = b.expr("where", condition, value, -math.inf)
    b.store(value, out.dtype, out=out)


def _bias_strides(bias: Tensor, heads: Heads) -> tuple[int, int, int, int] | None:
    """Strides of batch, head, query and key, for a bias that broadcasts to ``heads.shape``; None where the kernel cannot read
    it by four strides, or its keys are neither dense nor broadcast.
    """
    batch, kv_head, head, query, key = (
        0 if matches(dim, 1) else stride for dim, stride in zip(bias.shape, bias.strides, strict=True)
    )
    if any(s < 0 for s in bias.strides) or key > 1:
        return None
    if heads.group == 1:
        head = kv_head
    elif heads.kv_heads > 1 and kv_head != heads.group * head:
        return None
    return batch, head, query, key
