"""Replaces attention that a model writes as separate operations (`vkep.passes.match_attention`) by `vkep.ops.attention.sdpa`.

The replacement keeps the labels of all nodes it replaces, so reports do not change.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

from vkep.dtypes import DTYPES
from vkep.errors import Decline
from vkep.ir import expr as ex
from vkep.ir.builder import Builder
from vkep.ir.ops import Op
from vkep.ir.tensor import broadcast_shapes
from vkep.ops.attention.sdpa import Heads, KeyWindow, Mask, Scoring, saves_scores, sdpa
from vkep.passes.match_attention import AttentionMatch, Biased, Masked, match_attention
from vkep.passes.position_masks import Rule, rule_of
from vkep.passes.rewrite import Changes, Graph
from vkep.sizes import is_size, largest, matches, smallest

#: a score at or below this counts as masked: its probability is 0 beside any score that a model computes
_HIDES = -1e4
#: a float32 score at or below this absorbs what is added to it: as a bias it hides a key just as a replaced score does
_ABSORBS = -1e30


def fuse_attention(op: Op, graph: Graph) -> Changes | None:
    """An attention that ends with this product becomes `sdpa`, where that avoids storing all scores (`saves_scores`) and nothing
    else uses the scores or probabilities."""
    match = match_attention(op, graph)
    instead = _as_sdpa(match, graph) if match is not None else None
    if match is None or instead is None:
        return None
    return {**dict.fromkeys(match.replaced, ()), op: instead}


def _as_sdpa(match: AttentionMatch, graph: Graph) -> list[Op] | None:
    """The operations of `sdpa`, to replace the last product (and the copy that merges heads); None where the attention
    is not replaced."""
    batch, count, queries, _ = match.q.shape
    heads = Heads(batch, count, 1, queries, match.k.shape[2])
    caps, merged = graph.caps, match.head_merge
    b = Builder(caps)
    try:
        mask = _mask(b, match, heads, graph)
    except Decline:
        return None
    operands, scoring = (match.q, match.k, match.v), Scoring(match.scale)
    if mask is None or not saves_scores(caps, *operands, heads, mask, scoring):
        return None
    y = sdpa(b, *operands, heads, mask, scale=match.scale, merged=merged is not None).y
    if merged is None:
        b.copy(y, out=match.out)
    else:
        b.copy(y.transpose((0, 2, 1, 3)), out=merged.out)
    labels = list(dict.fromkeys(label for op in match.replaced for label in op.labels))
    return [replace(op, labels=labels) for op in b.ops]


def _mask(b: Builder, match: AttentionMatch, heads: Heads, graph: Graph) -> Mask | None:
    """The masks in the form of `sdpa`; None where the result would differ.

    A mask that hides keys becomes a window, conditions or both, and a bias stays a bias. A mask with a finite score that absorbs
    others (`_ABSORBS`) becomes a bias only if it is the first: after another bias it would be added to that one instead of
    replacing the sum.
    """
    guarded = match.has_nan_guard
    mask = Mask(may_hide_rows=guarded)
    firsts, ends = list[int](), list[int]()
    rules = [rule_of(_added(given), graph) for given in match.masks]
    # a row without a visible key is 0 after the guard; without one it is NaN, and has equal probabilities by a finite score
    hides = _HIDES if _shows(rules, heads) else -math.inf if guarded else math.nan
    for position, (given, rule) in enumerate(zip(match.masks, rules, strict=True)):
        if rule is not None and rule.score <= hides:
            firsts, ends = [*firsts, *rule.firsts], [*ends, *rule.ends]
            is_row = isinstance(given, Biased) and matches(given.bias.shape[2], 1)  # which all layers read as it is
            if rule.is_all and rule.by_key and not (is_row and rule.others):
                mask.conditions += _by_key(b, rule, heads)
                continue
        step = _as_mask(b, given) if isinstance(given, Biased) else given
        chosen = step.condition.array if isinstance(step, Masked) and len(match.masks) == 1 else None
        shows = isinstance(step, Masked) and chosen is not None and bool((chosen != step.when).any(-1).all())
        if isinstance(step, Masked) and (step.score == -math.inf or (step.score <= _HIDES and shows)):
            view = heads.mask_view(b, step.condition)
            mask.conditions.append(b.expr("not" if step.when else "same", view, ctype="bool"))
        elif isinstance(given, Biased):
            mask.biases.append(heads.mask_view(b, given.bias))
        elif given.score <= _ABSORBS and position == 0:
            mask.biases.append(heads.mask_view(b, b.store(_added(given), DTYPES["float32"])))
        else:
            return None
    if firsts or ends:
        mask.window = _window(b, heads, firsts, ends)
    return mask


def _added(mask: Biased | Masked) -> ex.Expr:
    """What a mask adds to scores, where one that replaces them adds its score."""
    if isinstance(mask, Biased):
        return ex.leaf(mask.bias)
    there, elsewhere = (mask.score, 0.0) if mask.when else (0.0, mask.score)
    scores = (ex.Const("float", value=score) for score in (there, elsewhere))
    return ex.Expr("float", "where", (ex.leaf(mask.condition), *scores))


def _shows(rules: Sequence[Rule | None], heads: Heads) -> bool:
    """Whether masks together show each query a key."""
    known = [rule for rule in rules if rule is not None and rule.is_all and not rule.others]
    if len(known) < len(rules) or not heads.keys:
        return False
    firsts, ends = [n for rule in known for n in rule.firsts], [n for rule in known for n in rule.ends]
    begun = all(first + heads.queries - 1 < heads.keys for first in firsts) and all(end >= 1 for end in ends)
    return begun and all(first < end for first in firsts for end in ends)


def _by_key(b: Builder, rule: Rule, heads: Heads) -> list[ex.Expr]:
    """What keys have to meet, computed once for all queries."""
    if not rule.others:
        return []
    read = functools.reduce(lambda x, y: ex.apply("and", x, y), rule.others)
    viewed = ex.substitute(read, lambda leaf: ex.leaf(heads.mask_view(b, leaf.tensor)) if leaf.tensor else None)
    if isinstance(viewed, ex.Leaf):
        return [viewed]
    shape = broadcast_shapes((1,) * 5, *(t.shape for t in ex.tensors(viewed)))
    return [ex.leaf(b.store(viewed, DTYPES["bool"], shape=shape))]


def _window(b: Builder, heads: Heads, firsts: list[int], ends: list[int]) -> KeyWindow | None:
    """The window of bounds; without one that hides no key: from the first query after it, from the last before it."""
    first = largest(*firsts) if firsts else None
    end = smallest(*ends) if ends else None
    if first is not None and not is_size(first) and not is_size(heads.queries) and first + heads.queries <= 1:
        first = None
    if end is not None and not is_size(end - heads.keys) and end >= heads.keys:
        end = None
    query, key = heads.query_index(b), heads.key_index(b)
    bounds = (("ge", first), ("lt", end))
    conditions = [b.expr(op, key, b.expr("add", query, bound)) for op, bound in bounds if bound is not None]
    return KeyWindow(tuple(conditions), first, end, None) if conditions else None


def _as_mask(b: Builder, given: Biased) -> Biased | Masked:
    """A constant bias with one value besides 0, as a mask of the keys with that value."""
    array = given.bias.array
    if array is None:
        return given
    seen = array == 0
    least = array.min()
    return Masked(b.constant(seen), False, float(least)) if bool((seen | (array == least)).all()) else given
