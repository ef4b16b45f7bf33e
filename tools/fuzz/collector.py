"""The garbage collector in the middle of calls, deleting what users close in ``__del__`` methods."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import vkep
from tools.fuzz.moments import STATIC, B, Moments, X

_MOST = 20_000  #: new objects after which it runs: about what opening a session makes


class _Service:
    """A session and a tensor that are closed with it. It refers to itself, so that only the collector deletes it."""

    ended = 0  #: how many were deleted

    def __init__(self) -> None:
        self._session = vkep.InferenceSession(STATIC, save_plans=False)
        self._session.run(None, {"x": X, "b": B})
        self._tensor = self._session.device_tensor(X)
        self._me = self

    def __del__(self) -> None:
        _Service.ended += 1
        self._tensor.close()
        self._session.close()


class Collections(Moments):
    """Instead of raising, lets the collector run after a random number of new objects, in the thread that makes them. Counts the
    calls in which it did."""

    def arm(self, typical: float) -> None:
        _Service()
        self._before = _Service.ended
        gc.set_threshold(int(_MOST ** self.random.random()), 1000, 1000)
        gc.enable()

    def disarm(self) -> None:
        if gc.isenabled():
            gc.disable()
            self.count += _Service.ended > self._before
            gc.collect()

    @contextmanager
    def in_main(self) -> Iterator[None]:
        before = gc.get_threshold()
        gc.disable()
        try:
            yield
        finally:
            gc.set_threshold(*before)
            gc.enable()
