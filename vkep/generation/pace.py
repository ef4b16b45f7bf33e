"""How many tokens of a prompt a step processes, so that the answers in progress continue meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

#: the most tokens of a prompt in one step, and the fewest that they are reduced to. Sizes between them are a factor of four
#: apart, since each may need a plan
CHUNK, LEAST_CHUNK = 512, 32
_FACTOR = 4
#: how many times as long as one without a prompt a step may take, and below how many the parts become larger
_LONG, _SHORT = 3.0, 1.5
#: shares of a shorter and of a longer step in the mean
_FALLS, _RISES = 0.5, 0.1


class Pace:
    """The size of a prompt's parts, from the time that steps take: smaller where two steps with a part took more than three times
    as long as one without (the first of them may have made a plan), larger where one took less than 1.5 times as long.

    The time of a step is that since the end of the one before, since steps may be submitted ahead.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last: float | None = None  # the end of the step before, where it was one of answers in progress
        self._without: float | None = None  # the mean of steps without a prompt
        self._tokens, self._long = CHUNK, 0

    def most(self, beside: int) -> int:
        """The most tokens of a prompt in the next step, in which ``beside`` answers get a token."""
        return self._tokens if beside else CHUNK

    def stepped(self, prompt: int, beside: int) -> None:
        """Take the time of a step that ends now: it had ``prompt`` tokens of a prompt, and ``beside`` answers got a token."""
        now = self._clock()
        seconds = now - self._last if self._last is not None and beside else None
        self._last = now if beside else None
        if seconds is None:
            return
        mean = self._without
        if not prompt:
            share = _FALLS if mean is None or seconds < mean else _RISES
            self._without = seconds if mean is None else mean + share * (min(seconds, _LONG * mean) - mean)
        elif mean is not None and prompt > self._tokens // _FACTOR:
            self._long = self._long + 1 if seconds > _LONG * mean else 0
            if self._long > 1:
                self._tokens, self._long = max(self._tokens // _FACTOR, LEAST_CHUNK), 0
            elif seconds < _SHORT * mean and prompt == self._tokens:
                self._tokens = min(self._tokens * _FACTOR, CHUNK)
