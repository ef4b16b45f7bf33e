"""Replaces attention that a model writes as separate operations (`vkep.passes.match_attention`) by `vkep.ops.attention.sdpa`.

The replacement keeps the labels of all nodes it replaces, so reports do not change.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.dtypes import DTYPES
from vkep.errors import Decline
from vkep.ir import expr as ex
from vkep.ir.builder import Builder
from vkep.ir.ops import Op
from vkep.ir.tensor import Tensor
from vkep.ops.attention.sdpa import Heads, KeyWindow, Mask, Scoring, fused_attention, saves_scores, sdpa
from vkep.passes.match_attention import AttentionMatch, Biased, Masked, match_attention
from vkep.passes.rewrite import Changes, Graph

#: a score at or below this counts as masked: its probability is 0 beside any score that a model computes
_HIDES = -1e4
#: a float32 score at or below this absorbs what is added to it: as a bias it hides a key just as a replaced score does
_ABSORBS = -1e30


def fuse_attention(op: Op, graph: Graph) -> Changes | None:
    """An attention that ends with this product becomes `sdpa`, where that avoids storing all scores (`saves_scores`) and nothing
    else uses the scores or probabilities."""
    match = match_attention(op, graph)
    instead = _as_sdpa(match, graph.caps) if match is not None else None
    if match is None or instead is None:
        return None
    return {**dict.fromkeys(match.replaced, ()), op: instead}


def _as_sdpa(match: AttentionMatch, caps: DeviceCapabilities) -> list[Op] | None:
    """The operations of `sdpa`, to replace the last product (and the copy that merges heads); None where the attention
    is not replaced."""
    batch, count, queries, _ = match.q.shape
    heads = Heads(batch, count, 1, queries, match.k.shape[2])
    merged = match.head_merge
    b = Builder(caps)
    try:
        mask = _mask(b, match, heads)
    except Decline:
        return None
    operands, scoring = (match.q, match.k, match.v), Scoring(match.scale)
    if mask is None or not saves_scores(caps, *operands, heads, mask, scoring):
        return None
    # Where `sdpa` stores scores as float16, a score and a bias may sum up to minus infinity. In a row of such scores alone the
    # model's guard replaces NaN by 0; `sdpa` tests the masks instead and would keep it. A fused kernel stores no scores.
    rounded = match.has_nan_guard and mask.biases and match.q.dtype.name == "float16"
    if rounded and fused_attention(caps, *operands, heads, mask, scoring) is None:
        return None
    y = sdpa(b, *operands, heads, mask, scale=match.scale, merged=merged is not None).y
    if merged is None:
        b.copy(y, out=match.out)
    else:
        b.copy(y.transpose((0, 2, 1, 3)), out=merged.out)
    labels = list(dict.fromkeys(label for op in match.replaced for label in op.labels))
    return [replace(op, labels=labels) for op in b.ops]


def _mask(b: Builder, match: AttentionMatch, heads: Heads) -> Mask | None:
    """The masks in the form of `sdpa`; None where the result would differ.

    A mask that hides keys becomes the window or a condition, and a bias stays a bias. A mask with a finite score that absorbs
    others (`_ABSORBS`) becomes a bias only if it is the first: after another bias it would be added to that one instead of
    replacing the sum.
    """
    mask = Mask(may_hide_rows=match.has_nan_guard)
    for position, given in enumerate(match.masks):
        step = _as_mask(b, given) if isinstance(given, Biased) else given
        chosen = step.condition.array if isinstance(step, Masked) else None
        seen = chosen != step.when if isinstance(step, Masked) and chosen is not None else None
        # a finite score hides a key only if its row has a visible one; else all keys of the row have equal probabilities
        hides = seen is not None and len(match.masks) == 1 and bool(seen.any(-1).all())
        if isinstance(step, Masked) and (step.score == -math.inf or (step.score <= _HIDES and hides)):
            view = heads.mask_view(b, step.condition)
            condition = b.expr("not" if step.when else "same", view, ctype="bool")
            if seen is None or not _as_window(mask, condition, seen, heads):
                mask.conditions.append(condition)
        elif isinstance(given, Biased):
            mask.biases.append(heads.mask_view(b, given.bias))
        elif given.score <= _ABSORBS and position == 0:
            mask.biases.append(heads.mask_view(b, _as_bias(b, given)))
        else:
            return None
    # the model's test for NaN also finds rows whose two biases sum up to minus infinity though none is
    return None if match.has_nan_guard and len(mask.biases) > 1 else mask


def _as_mask(b: Builder, given: Biased) -> Biased | Masked:
    """A constant bias with one value besides 0, as a mask of the keys with that value."""
    array = given.bias.array
    if array is None:
        return given
    seen = array == 0
    least = array.min()
    return Masked(b.constant(seen), False, float(least)) if bool((seen | (array == least)).all()) else given


def _as_bias(b: Builder, mask: Masked) -> Tensor:
    """A mask with a score that absorbs others (`_ABSORBS`, which float16 cannot represent), as a float32 bias."""
    there, elsewhere = (mask.score, 0.0) if mask.when else (0.0, mask.score)
    array = mask.condition.array
    if array is not None:
        return b.constant(np.where(array, np.float32(there), np.float32(elsewhere)))
    scores = (ex.Const("float", value=score) for score in (there, elsewhere))
    return b.store(b.expr("where", mask.condition, *scores, ctype="float"), DTYPES["float32"])


def _as_window(mask: Mask, condition: ex.Expr, seen: np.ndarray, heads: Heads) -> bool:
    """Make a constant condition the mask's window, if each query sees the keys within fixed distances of its own position.

    ``seen`` (bool) broadcasts to [batch, heads, queries, keys]. Returns whether it was one.
    """
    if seen.shape[:2] != (1, 1) or mask.window is not None:
        return False
    rows = np.broadcast_to(seen[0, 0], (heads.queries, heads.keys))
    if not rows.any(1).all():
        return False
    queries, starts, ends = np.arange(heads.queries), rows.argmax(1), heads.keys - rows[:, ::-1].argmax(1)
    first, end = int((starts - queries).min()), int((ends - queries).max())
    at_once = rows.sum(1) == ends - starts
    if not (at_once & (starts == (queries + first).clip(0)) & (ends == (queries + end).clip(None, heads.keys))).all():
        return False
    # a bound counts only if it hides a key: from the last query before it, from the first after it
    bounded_before, bounded_after = first + heads.queries > 1, end < heads.keys
    mask.window = KeyWindow((condition,), first if bounded_before else None, end if bounded_after else None, None)
    return True
