"""Attention by one kernel that never writes its scores (`vkep.kernels.attention`), where a device gains by it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vkep.dtypes import DTYPES, DType
from vkep.ir import expr as ex
from vkep.ir.builder import Builder
from vkep.ir.tensor import Tensor, alignment, broadcast_shapes
from vkep.kernels.attention import AttentionProblem, attention, takes_attention
from vkep.kernels.kernel import KernelCall
from vkep.kernels.launch import is_cpu
from vkep.kernels.select import Target

if TYPE_CHECKING:
    from vkep.ops.sdpa import Heads, Mask, Scoring

#: a mask that is written to memory for the kernel to read is at most so large, and at most this part of the scores
MASK_BYTES, MASK_PART = 64 << 20, 1 / 4
MINUS_INFINITY = "uintBitsToFloat(0xff800000u)"
_FLOATS = ("float32", "float16")
_NO_STRIDES = (0, 0, 0)  # of what has no place yet


def attend_fused(
    b: Builder, q: Tensor, k: Tensor, v: Tensor, heads: Heads, mask: Mask, scoring: Scoring, merged: bool
) -> Tensor | None:
    """The result of `sdpa` [batch, heads, queries, value size], or None where this kernel is not the better way.

    ``merged``: the result lies as [batch, queries, heads, value size].
    """
    if is_cpu(b.caps) or scoring.sink is not None or q.dtype.name not in _FLOATS or 0 in (*q.shape, *k.shape, *v.shape):
        return None
    batch, q_heads, queries, size = q.shape
    y = b.empty(q.dtype, (batch, queries, q_heads, v.shape[3]) if merged else (*q.shape[:3], v.shape[3]))
    window = mask.window
    origin = window.origin if window is not None else None
    first, end = (None, None) if window is None else (window.first, window.end)
    problem = AttentionProblem(
        *(batch, q_heads, heads.kv_heads, queries, heads.keys, size, v.shape[3]),
        *(_NO_STRIDES,) * 3,
        y_strides=_strides(_by_head(y, merged))[1:],
        scale=scoring.scale,
        softcap=scoring.softcap,
        first=first,
        end=end,
        dtype=q.dtype.name,
    )
    biases = _biases(b, mask, heads, q.dtype) if takes_attention(problem, b.caps) else None
    if biases is None:
        return None
    if biases:
        problem = replace(problem, bias_strides=_bias_strides(biases[0], heads), bias_dtype=biases[0].dtype.name)
    origins = [] if origin is None else [b.store(origin, DTYPES["int32"], shape=(batch, 1, 1, 1, 1))]

    def emit(t: Target, i: Sequence[Tensor], o: Sequence[Tensor], _: object) -> list[KernelCall]:
        q_strides, k_strides, v_strides = (_strides(x) for x in i[:3])
        placed = replace(
            problem,
            q_strides=q_strides,
            k_strides=k_strides,
            v_strides=v_strides,
            alignment=alignment(*i[:3], o[0]),
        )
        return attention(placed, t.caps, *i[:3], i[3] if biases else None, i[-1] if origins else None, o[0])

    rows = [t if _has_dense_rows(t) else b.copy(t) for t in (q, k, v)]
    flops = 2 * batch * q_heads * queries * heads.keys * (size + v.shape[3])
    b.kernel([*rows, *biases, *origins], [y], emit, flops=flops)
    return _by_head(y, merged)


def _by_head(y: Tensor, merged: bool) -> Tensor:
    return y.transpose((0, 2, 1, 3)) if merged else y


def _has_dense_rows(t: Tensor) -> bool:
    return min(t.strides) >= 0 and (t.strides[3] == 1 or t.shape[3] == 1)


def _strides(t: Tensor) -> tuple[int, int, int]:
    """Of batch, head and row; an axis of one has none."""
    batch, head, row = (stride if dim > 1 else 0 for dim, stride in zip(t.shape[:3], t.strides[:3], strict=True))
    return batch, head, row


# ---- masks


def _biases(b: Builder, mask: Mask, heads: Heads, dtype: DType) -> list[Tensor] | None:
    """The bias, if any, that stands for all of a mask but its window; None where there is none that is worth its memory.

    One that is there is read where it lies; else one is written, which only masks that several heads share are worth.
    """
    if any(t.dtype.name not in _FLOATS for t in mask.biases):
        return None
    if not mask.conditions and len(mask.biases) <= 1 and all(_bias_strides(t, heads) for t in mask.biases):
        return mask.biases
    read = [t.shape for condition in mask.conditions for t in ex.tensors(condition)]
    shape = broadcast_shapes((1,) * 5, *read, *(t.shape for t in mask.biases))
    wide = dtype.name == "float32" or len(mask.biases) > 1 or any(t.dtype.name == "float32" for t in mask.biases)
    kind = DTYPES["float32" if wide else "float16"]
    out = b.empty(kind, shape)
    if out.size > MASK_PART * math.prod(heads.shape) or out.nbytes > MASK_BYTES or _bias_strides(out, heads) is None:
        return None
    value: ex.Expr = ex.Const("float", value=0.0)
    for bias in mask.biases:
        value = b.expr("add", value, bias, ctype="float")
    for condition in mask.conditions:
        value = b.expr(f"({{0}} ? {{1}} : {MINUS_INFINITY})", condition, value, ctype="float")
    return [b.store(value, kind, out=out)]


def _bias_strides(bias: Tensor, heads: Heads) -> tuple[int, int, int, int] | None:
    """Of batch, head, query and key, for a bias that broadcasts to ``heads.shape``; None where the kernel has none."""
    batch, kv_head, head, query, key = (
        stride if dim > 1 else 0 for dim, stride in zip(bias.shape, bias.strides, strict=True)
    )
    if min(bias.strides) < 0 or key > 1:
        return None
    if heads.group == 1:
        head = kv_head
    elif heads.kv_heads > 1 and kv_head != heads.group * head:
        return None
    return batch, head, query, key
