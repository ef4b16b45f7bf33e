"""In which order threads take vkep's locks, while tests run: a plugin of pytest.

    python -m pytest -n 0 -p tools.lock_order tests/session tests/ort

Every lock that vkep and gpu_shared make is noted, and each pair of which one is taken while the other is held. At the end the
pairs are printed as a list in which each lock comes before those that are taken while it is held (docs/safety.md). The run
fails where there is no such list: two threads may then wait for each other.
"""

from __future__ import annotations

import contextvars
import linecache
import re
import sys
import threading
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[1]
_OURS = (str(_ROOT / "vkep"), str(_ROOT / "registry"))
#: work that another thread does for one takes locks while that one holds others: `gpu_shared.steady` passes its context
_held: contextvars.ContextVar[tuple[_Noted, ...]] = contextvars.ContextVar("_held", default=())
#: for each lock, those that were held when it was taken
before: dict[str, set[str]] = {}


class _Noted:
    """A lock that notes what its thread holds where it is taken."""

    def __init__(self, lock: Any, name: str) -> None:
        self._lock, self._name = lock, name

    def acquire(self, blocking: bool = True, timeout: float = -1, depth: int = 1) -> bool:
        mine = _held.get()
        ours = sys._getframe(depth).f_code.co_filename.startswith(_OURS)  # a test may hold locks in another order
        if ours and blocking and self not in mine:
            before.setdefault(self._name, set()).update(one._name for one in mine)
        taken: bool = self._lock.acquire(blocking, timeout)
        if ours and taken:
            _held.set((*mine, self))
        return taken

    def release(self) -> None:
        self._lock.release()
        mine = list(_held.get())
        if self in mine:  # a plain lock may be released by another thread
            mine.remove(self)  # of one that is taken several times all are equal
            _held.set(tuple(mine))

    def __enter__(self) -> bool:
        return self.acquire(depth=2)

    def __exit__(self, *_: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


def _noting(make: Any) -> Any:
    def noted() -> Any:
        frame = sys._getframe(1)
        path = frame.f_code.co_filename
        if not path.startswith(_OURS):
            return make()
        line = linecache.getline(path, frame.f_lineno)
        found = re.search(r"(\w+)(?:: [^=]+)? = .*Lock\(", line)
        where = Path(path).relative_to(_ROOT).with_suffix("").as_posix().replace("/", ".").removeprefix("registry.")
        return _Noted(make(), f"{where}.{found[1] if found else frame.f_lineno}")

    return noted


threading.Lock, threading.RLock = _noting(threading.Lock), _noting(threading.RLock)


def in_order() -> list[str]:
    """The locks, each before those that are taken while it is held. Raises ``CycleError``."""
    return list(TopologicalSorter(before).static_order())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the pairs."""
    terminalreporter.section("locks, and those that were held when they were taken")
    try:
        for name in in_order():
            terminalreporter.line(f"{name}: {', '.join(sorted(before.get(name, ())))}")
    except CycleError as error:
        terminalreporter.line(f"{error}")
        for name, others in before.items():
            terminalreporter.line(f"{name}: {', '.join(sorted(others))}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where the locks have no order."""
    try:
        in_order()
    except CycleError:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
