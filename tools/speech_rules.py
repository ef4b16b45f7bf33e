"""Which token follows in a transcription with times, by numpy: what tests and tables compare `vkep.generation.speech` with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkep.models.language import END
from vkep.models.sources import SPEECH

Array = np.ndarray[Any, Any]
NO_TIMES = SPEECH["<|notimestamps|>"]
FIRST = NO_TIMES + 1


def chosen_by_rules(scores: Array, tokens: Sequence[int], never: tuple[int, ...] = (), latest: int = 50) -> int:
    """The most probable token that may follow, token by token, as arXiv:2212.04356 and OpenAI's decoder say it."""
    open_ = np.ones(len(scores), np.bool_)
    open_[[NO_TIMES, *never]] = False
    pairs = [t >= FIRST for t in tokens]
    for token in range(len(scores)):
        if not tokens and not FIRST <= token <= FIRST + latest:
            open_[token] = False
        if pairs[-1:] == [True] and (pairs[-2:] == [True, True] or len(pairs) == 1):
            open_[token] &= token < FIRST  # a segment has begun
        elif pairs[-1:] == [True]:
            open_[token] &= token >= END  # a segment has ended: another one begins, or the answer ends
        times = [t for t in tokens if t >= FIRST]
        if times and token >= FIRST:
            is_begin = pairs[-2:] == [False, True]
            open_[token] &= token >= times[-1] if is_begin else token > times[-1]
    values = np.where(open_, scores.astype(np.float64), -np.inf)
    best = values.max()
    mass = np.log(np.exp(values[FIRST:] - best).sum()) + best if np.isfinite(values[FIRST:]).any() else -np.inf
    if mass > values[:FIRST].max():
        values[:FIRST] = -np.inf
    return int(values.argmax())
