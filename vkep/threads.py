"""Thread pools that also work while the interpreter ends."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeVar

T = TypeVar("T")
#: bytes of results that `made_ahead` keeps for its caller
AHEAD_BYTES = 256 << 20


class Threads(ThreadPoolExecutor):
    """A pool whose work runs in the caller's thread once the interpreter starts no more threads: then functions of
    `atexit` run, which may run a session."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As `ThreadPoolExecutor.submit`."""
        if not getattr(threading, "_SHUTTING_DOWN", False):
            return super().submit(fn, *args, **kwargs)
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def made_ahead(
    makes: Iterable[tuple[Callable[[], T] | None, int]], most: int = AHEAD_BYTES
) -> Generator[T | None, None, None]:
    """What functions return, in order, with their bytes given; None for None. Threads call them while the caller uses the results
    before: those that wait for it have ``most`` bytes together, or are one. Raises what they raise."""
    waiting: deque[tuple[Future[T] | None, int]] = deque()
    ahead = 0
    with ExitStack() as left:
        pool: Threads | None = None
        for make, nbytes in makes:
            if make is None:
                waiting.append((None, 0))
            else:
                if pool is None:
                    pool = Threads(max(2, min(8, os.cpu_count() or 1)), thread_name_prefix="vkep-ahead")
                    left.callback(pool.shutdown, cancel_futures=True)
                waiting.append((pool.submit(make), nbytes))
                ahead += nbytes
            while waiting and (waiting[0][0] is None or ahead > most):
                made, used = waiting.popleft()
                ahead -= used
                yield None if made is None else made.result()
                del made  # and so its result
        while waiting:
            made, _ = waiting.popleft()
            yield None if made is None else made.result()
            del made
