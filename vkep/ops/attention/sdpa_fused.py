"""Attention by one kernel that never writes its scores (`vkep.kernels.attention`), where that is faster."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES, DType
from vkep.ir import expr as ex
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor, broadcast_shapes, contiguous_strides
from vkep.kernels.attention import gains_by_attention
from vkep.kernels.attention_problem import AttentionProblem
from vkep.ops.attention.kv_coding import Coding
from vkep.sizes import matches

if TYPE_CHECKING:
    from vkep.ops.attention.sdpa import Heads, Mask, Scoring

#: maximum size of a bias that is written for the kernel, and its maximum fraction of the number of scores
MASK_BYTES, MASK_PART = 64 << 20, 1 / 4
_FLOATS = ("float32", "float16")


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
    return b.store(origin, DTYPES["int32"], shape=(batch, 1, 1, 1, 1))


def _by_head(y: Tensor, merged: bool) -> Tensor:
    return y.transpose((0, 2, 1, 3)) if merged else y


def _has_dense_rows(t: Tensor) -> bool:
    return all(s >= 0 for s in t.strides) and (matches(t.strides[3], 1) or matches(t.shape[3], 1))


def _row_strides(t: Tensor) -> tuple[int, int, int]:
    """Strides of batch, head and row (0 for an axis of one), those of a dense copy where rows are not dense."""
    strides = t.strides if _has_dense_rows(t) else contiguous_strides(t.shape)
    batch, head, row = (0 if matches(dim, 1) else stride for dim, stride in zip(t.shape[:3], strides[:3], strict=True))
    return batch, head, row


# ---- masks


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
        stride if dim > 1 else 0 for dim, stride in zip(bias.shape, bias.strides, strict=True)
    )
    if any(s < 0 for s in bias.strides) or key > 1:
        return None
    if heads.group == 1:
        head = kv_head
    elif heads.kv_heads > 1 and kv_head != heads.group * head:
        return None
    return batch, head, query, key
