"""Attention and rotary position embeddings: products, masks fused into them, softmax.

Semantics: ONNX Attention (opset 23 and later) and RotaryEmbedding. Masks by position are expressions over index vectors, so
that no mask is written to memory where the score product can apply it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto

from vkep.dtypes import DTYPES
from vkep.kernels.softmax import softmax
from vkep.lowering.builder import Builder
from vkep.lowering.expr import Expr
from vkep.lowering.tensor import Tensor
from vkep.ops.contraction import matrix_product
from vkep.ops.gather import gather_
from vkep.ops.registry import ANY, FLOATS, operator

_FLOAT32 = DTYPES["float32"]
_MINUS_INFINITY = "uintBitsToFloat(0xff800000u)"
_ATTENTION_FLOATS = (*FLOATS, "bfloat16")


@dataclass
class Mask:
    """Which keys a query sees: every condition must hold; biases are added to the scores.

    Tensors broadcast to [batch, kv heads, queries of a head, queries, keys]. ``may_hide_rows`` says that a query may see
    no key at all: its probabilities are zero then.
    """

    conditions: list[Expr] = field(default_factory=list)
    biases: list[Tensor] = field(default_factory=list)
    may_hide_rows: bool = False

    def allowed(self, b: Builder, with_biases: bool = False) -> Expr | None:
        """Whether a key is seen; ``with_biases`` also where a bias of minus infinity hides it."""
        parts = list(self.conditions)
        if with_biases:
            parts += [b.expr(f"({{0}} != {_MINUS_INFINITY})", t, ctype="bool") for t in self.biases]
        result: Expr | None = None
        for part in parts:
            result = part if result is None else b.expr("({0} && {1})", result, part)
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
        return (self.batch, self.kv_heads, self.group, self.queries, self.keys)

    def query_index(self, b: Builder) -> Tensor:
        """0 to queries - 1, along the queries (dense over the group, so that a product's rows can read it)."""
        index = np.tile(np.arange(self.queries, dtype=np.int32), self.group)
        return b.constant(index).view((1, 1, self.group, self.queries, 1), (0, 0, self.queries, 1, 0))

    def key_index(self, b: Builder) -> Tensor:
        return b.constant(np.arange(self.keys, dtype=np.int32)).view((1, 1, 1, 1, self.keys), (0, 0, 0, 0, 1))

    def mask_view(self, b: Builder, mask: Tensor) -> Tensor:
        """A mask that broadcasts to [batch, heads, queries, keys], as one that broadcasts to ``shape``."""
        view = mask.view((1,) * (4 - mask.rank) + mask.shape, (0,) * (4 - mask.rank) + mask.strides)
        heads = view.shape[1]
        if heads == 1:
            return view.view((view.shape[0], 1, 1, *view.shape[2:]), (view.strides[0], 0, 0, *view.strides[2:]))
        if heads != self.kv_heads * self.group:
            b.decline(f"a mask of shape {mask.shape} for {self.kv_heads * self.group} heads")
        per_head = view.strides[1]
        return view.view(
            (view.shape[0], self.kv_heads, self.group, *view.shape[2:]),
            (view.strides[0], per_head * self.group, per_head, *view.strides[2:]),
        )


@dataclass
class Attended:
    """What `attend` gives: the result [batch, heads, queries, value size] and the scores at the stage asked for."""

    y: Tensor
    scores: Tensor | None


def split_heads(b: Builder, x: Tensor, heads: int) -> Tensor:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    batch, length, width = x.shape
    if not heads or width % heads:
        b.decline(f"{width} features do not divide into {heads} heads")
    return b.reshape(x, (batch, length, heads, width // heads)).transpose((0, 2, 1, 3))


def merge_heads(b: Builder, x: Tensor) -> Tensor:
    """The inverse of `split_heads`."""
    batch, heads, length, size = x.shape
    return b.reshape(x.transpose((0, 2, 1, 3)), (batch, length, heads * size))


def joined(b: Builder, past: Tensor | None, new: Tensor) -> Tensor:
    """Past and new keys or values, one after the other."""
    if past is None or past.shape[2] == 0:
        return new
    if past.shape[:2] != new.shape[:2] or past.shape[3] != new.shape[3]:
        b.decline(f"past of shape {past.shape} and new of shape {new.shape} do not join")
    length = past.shape[2] + new.shape[2]
    out = b.empty(new.dtype, (*new.shape[:2], length, new.shape[3]))
    b.copy(past, out=out.slice(2, 0, past.shape[2]))
    b.copy(new, out=out.slice(2, past.shape[2], new.shape[2]))
    return out


def heads_of(b: Builder, q: Tensor, k: Tensor) -> Heads:
    batch, q_heads, queries, size = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    if k.shape[0] != batch or k.shape[3] != size or not kv_heads or q_heads % kv_heads:
        b.decline(f"queries of shape {q.shape} and keys of shape {k.shape} do not fit together")
    return Heads(batch, kv_heads, q_heads // kv_heads, queries, keys)


def attend(
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
) -> Attended:
    """``softmax(softcap(scale * q @ k.T) + mask) @ v`` with q, k, v [batch, heads, length, size] of one type.

    ``scores_stage``: also give the scores as products (0), after the soft cap (1), with the mask (2) or as
    probabilities (3). ``sink`` [heads] is a score that takes its share of each row without a value.
    """
    if v.shape[:3] != k.shape[:3]:
        b.decline(f"keys of shape {k.shape} and values of shape {v.shape} do not fit together")
    flat = (heads.batch, heads.kv_heads, heads.group * heads.queries)
    rows = b.reshape(q, (*flat, q.shape[3]))
    product = matrix_product(b, rows, k.transpose((0, 1, 3, 2)))
    product = b.reshape(product, heads.shape)
    stages: dict[int, Tensor] = {}

    def stage(index: int, value: Expr) -> Expr:
        """Store the scores where they are asked for, and go on from there."""
        if scores_stage != index:
            return value
        stages[index] = b.store(value, q.dtype, shape=heads.shape)
        return b.expr("{0}", stages[index])

    value = stage(0, b.expr("({0} * {1})", product, scale))
    if softcap:
        value = b.expr("({1} * limited_tanh({0} / {1}))", value, softcap)
    value = stage(1, value)
    for bias in mask.biases:
        value = b.expr("({0} + {1})", value, bias)
    allowed = mask.allowed(b)
    if allowed is not None:
        value = b.expr(f"({{0}} ? {{1}} : {_MINUS_INFINITY})", allowed, value, ctype="float")
    scores = b.store(stage(2, value), q.dtype, shape=heads.shape)
    probabilities = _softmax(b, scores, heads, sink)
    seen = mask.allowed(b, with_biases=True) if mask.may_hide_rows else None
    if seen is not None:
        kept = b.expr("({0} ? {1} : 0.0)", seen, probabilities, ctype="float")
        probabilities = b.store(kept, q.dtype, shape=heads.shape)
    if scores_stage == 3:
        stages[3] = probabilities
    y = matrix_product(b, b.reshape(probabilities, (*flat, heads.keys)), v)
    q_heads = heads.kv_heads * heads.group
    asked = stages[scores_stage] if scores_stage is not None else None
    if asked is not None:
        asked = b.reshape(asked, (heads.batch, q_heads, heads.queries, heads.keys))
    return Attended(b.reshape(y, (heads.batch, q_heads, heads.queries, v.shape[3])), asked)


def _softmax(b: Builder, scores: Tensor, heads: Heads, sink: Tensor | None) -> Tensor:
    keys = heads.keys
    if sink is not None:  # one more column, dropped again
        keys += 1
        wide = b.empty(scores.dtype, (*heads.shape[:4], keys))
        b.copy(scores, out=wide.slice(4, 0, heads.keys))
        column = b.reshape(b.cast(sink, scores.dtype), (1, heads.kv_heads, heads.group, 1, 1))
        b.copy(column.expand((*heads.shape[:4], 1)), out=wide.slice(4, heads.keys, 1))
        scores = wide
    out = b.empty(scores.dtype, scores.shape)
    outer = math.prod(heads.shape[:4])
    b.kernel(
        [b.contiguous(scores)],
        [out],
        lambda t, i, o, _: softmax(outer, keys, 1, scores.dtype.name, t.caps, i[0], o[0], log=False),
        flops=4 * scores.size,
    )
    return out if sink is None else b.contiguous(out.slice(4, 0, heads.keys))


def default_scale(size: int) -> float:
    return 1.0 / math.sqrt(size) if size else 1.0


@operator(
    "Attention",
    since=23,
    types={"T1": _ATTENTION_FLOATS, "T2": _ATTENTION_FLOATS, "U": (*ANY, "bfloat16")},
)
def attention(
    b: Builder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> list[Tensor]:
    if softmax_precision == TensorProto.DOUBLE:
        b.decline("a softmax in float64")
    dtype, flat = q.dtype, q.rank == 3
    if flat:
        q = split_heads(b, q, q_num_heads or 0)
        k, v = (split_heads(b, t, kv_num_heads or 0) for t in (k, v))
    if not q.rank == k.rank == v.rank == 4:
        b.decline(f"queries {q.shape}, keys {k.shape} and values {v.shape}; expected 3 or 4 axes each")
    present_key, present_value = joined(b, past_key, k), joined(b, past_value, v)
    wide = _FLOAT32 if dtype.name == "bfloat16" else dtype  # no matrix kernel stores bfloat16
    q, k, v = (b.cast(t, wide) for t in (q, present_key, present_value))
    heads = heads_of(b, q, k)
    offset = _offset(b, heads, past_key, nonpad_kv_seqlen)
    mask = position_mask(b, heads, offset, bool(is_causal), left_window_size, right_window_size)
    mask.may_hide_rows |= nonpad_kv_seqlen is not None
    if nonpad_kv_seqlen is not None:
        lengths = per_batch(b, nonpad_kv_seqlen)
        mask.conditions.append(b.expr("({0} < {1})", heads.key_index(b), lengths, ctype="bool"))
    if attn_mask is not None:
        _add_mask(b, mask, heads, attn_mask)
    wanted = b.node is not None and len(b.node.outputs) > 3 and bool(b.node.outputs[3])
    done = attend(
        b,
        q,
        k,
        v,
        heads,
        mask,
        scale=default_scale(q.shape[3]) if scale is None else scale,
        softcap=softcap,
        scores_stage=qk_matmul_output_mode if wanted else None,
    )
    y = b.cast(done.y, dtype)
    scores = b.cast(done.scores, dtype) if done.scores is not None else y
    made = [merge_heads(b, y) if flat else y, present_key, present_value, scores]
    return made[: len(b.node.outputs)] if b.node is not None else made


def per_batch(b: Builder, values: Tensor) -> Expr:
    """Integers, one for each of the batch, to stand in a mask's conditions."""
    flat = b.reshape(values, (values.size, 1, 1, 1, 1))
    return b.expr("int({0})", flat, ctype="int")


def _offset(b: Builder, heads: Heads, past: Tensor | None, lengths: Tensor | None) -> Expr | int:
    """The position of the first query among the keys."""
    if past is not None:
        return past.shape[2]
    if lengths is None:
        return 0
    return b.expr("({0} - {1})", per_batch(b, lengths), heads.queries)


def position_mask(b: Builder, heads: Heads, offset: Expr | int, causal: bool, left: int = -1, right: int = -1) -> Mask:
    """What a query at position ``offset + i`` sees: no later key where causal, none beyond the windows (-1: no bound)."""
    mask = Mask()
    if causal:
        right = 0 if right < 0 else min(right, 0)
    if left < 0 and right < 0:
        return mask
    position = b.expr("({0} + {1})", heads.query_index(b), offset, ctype="int")
    key = heads.key_index(b)
    if right >= 0:
        mask.conditions.append(b.expr("({0} <= {1} + {2})", key, position, right, ctype="bool"))
    if left >= 0:
        mask.conditions.append(b.expr("({0} >= {1} - {2})", key, position, left, ctype="bool"))
    # with a window to the left and fewer keys than positions, the last queries see nothing
    known = isinstance(offset, int) and offset >= 0 and offset + heads.queries <= heads.keys
    mask.may_hide_rows = not known and not (left < 0 and isinstance(offset, int) and offset >= 0)
    return mask


def _add_mask(b: Builder, mask: Mask, heads: Heads, given: Tensor) -> None:
    """The mask input: bool conditions, or numbers to add; keys beyond its last column are hidden."""
    mask.may_hide_rows = True
    columns = given.shape[-1]
    if columns < heads.keys and columns != 1:
        padded = b.empty(given.dtype, (*given.shape[:-1], heads.keys))
        axis = given.rank - 1
        b.copy(given, out=padded.slice(axis, 0, columns))
        rest = padded.slice(axis, columns, heads.keys - columns)
        hidden = False if given.dtype.kind == "bool" else -math.inf
        b.copy(b.full(rest.shape, hidden, given.dtype), out=rest)
        given = padded
    view = heads.mask_view(b, given)
    if given.dtype.kind == "bool":
        mask.conditions.append(b.expr("{0}", view))
    elif given.dtype.kind == "float":
        mask.biases.append(view)
    else:
        b.decline(f"a mask of {given.dtype}; the kernels take bool and float")


# ---- rotary position embeddings


def rotated(b: Builder, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """``x`` [batch, heads, length, size] turned by angles whose cos and sin are [batch or 1, length, width / 2].

    Features beyond ``width`` are kept. Pairs are (i, i + width / 2), or neighbours where ``interleaved``.
    """
    half = cos.shape[-1]
    if cos.shape != sin.shape or 2 * half > x.shape[3]:
        b.decline(f"cos {cos.shape} and sin {sin.shape} do not fit {x.shape}")
    out = b.empty(x.dtype, x.shape)
    source, target = (_pairs(t.slice(3, 0, 2 * half), half, interleaved) for t in (x, out))
    axis = 4 if interleaved else 3
    other = source.slice(axis, 1, 2, -1)
    angle_shape = (cos.shape[0], 1, cos.shape[1], half, 1) if interleaved else (cos.shape[0], 1, cos.shape[1], 1, half)
    cos, sin = b.reshape(cos, angle_shape), b.reshape(sin, angle_shape)
    sign_shape, sign_strides = ((2,), (1,)) if interleaved else ((2, 1), (1, 0))
    sign = b.constant(np.array([-1, 1], np.float32)).view(sign_shape, sign_strides)
    turned = b.expr("({0} * {1} + {4} * {2} * {3})", source, cos, other, sin, sign)
    b.store(turned, x.dtype, out=target)
    if 2 * half < x.shape[3]:
        rest = x.shape[3] - 2 * half
        b.copy(x.slice(3, 2 * half, rest), out=out.slice(3, 2 * half, rest))
    return out


def _pairs(t: Tensor, half: int, interleaved: bool) -> Tensor:
    """The last axis as [half, 2] (neighbours) or [2, half]."""
    step = t.strides[3]
    if interleaved:
        return t.view((*t.shape[:3], half, 2), (*t.strides[:3], 2 * step, step))
    return t.view((*t.shape[:3], 2, half), (*t.strides[:3], half * step, step))


def angles(b: Builder, cos: Tensor, sin: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
    """cos and sin [batch, length, half] at positions [batch, length]; tables that have a batch axis stand as they are."""
    if positions is None:
        return cos, sin
    return gather_(b, cos, positions, axis=0), gather_(b, sin, positions, axis=0)


@operator("RotaryEmbedding", since=23, types={"T": _ATTENTION_FLOATS, "M": ("int64",)})
def rotary_embedding(
    b: Builder,
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    cos, sin = angles(b, cos_cache, sin_cache, position_ids)
    if rotary_embedding_dim and cos.shape[-1] * 2 != rotary_embedding_dim:
        b.decline(f"rotary_embedding_dim {rotary_embedding_dim} with tables of width {cos.shape[-1]}")
    flat = x.rank == 3
    y = rotated(b, split_heads(b, x, num_heads or 0) if flat else x, cos, sin, bool(interleaved))
    return merge_heads(b, y) if flat else y
