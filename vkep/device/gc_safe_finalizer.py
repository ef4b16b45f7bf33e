"""Where finalisers may take locks: never inside a garbage collection.

A collection can start at any allocation, also in code that holds the lock of an arena or a store. What it finds is then
ended by a thread of its own, so that a finaliser never waits for a lock that its own thread holds.
"""

from __future__ import annotations

import _thread
import gc
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("vkep.device")
_collecting: set[int] = set()


def _watch(phase: str, info: dict[str, Any]) -> None:
    (_collecting.add if phase == "start" else _collecting.discard)(threading.get_ident())


gc.callbacks.append(_watch)


def on_end(owner: object, work: Callable[..., None], *arguments: Any) -> weakref.finalize[..., Any]:
    """A finaliser of ``owner``: called, or when the last reference goes, it runs ``work`` at once; where the garbage
    collector found the owner, soon after.
    """
    return weakref.finalize(owner, _end, work, arguments)


def _end(work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    if threading.get_ident() not in _collecting:
        work(*arguments)
        return
    try:
        _thread.start_new_thread(_run, (work, arguments))
    except RuntimeError:  # the interpreter is ending, and the process gives everything back
        logger.debug("not ended, the interpreter is: %s", work)


def _run(work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    try:
        work(*arguments)
    except Exception:
        logger.exception("ending what the garbage collector found")
