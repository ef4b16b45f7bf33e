"""In which order threads take vkep's locks, while tests run: a plugin of pytest.

    python -m pytest -n 0 -p tools.lock_order tests/session tests/ort

Every lock that vkep and gpu_shared make is noted, and each pair of which one is taken while the other is held. The run fails
where a pair breaks the order that docs/safety.md states, and where there is no order: two threads may then wait for each other.
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
            before.setdefault(self._name, set()).update({one._name for one in mine} - {self._name})
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


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Note locks from now on: nothing of vkep is imported yet."""
    threading.Lock, threading.RLock = _noting(threading.Lock), _noting(threading.RLock)


def stated() -> dict[str, int]:
    """The line of docs/safety.md that each lock stands in."""
    lines = re.findall(r"^(\d+)\. (.*)", (_ROOT / "docs" / "safety.md").read_text(), re.MULTILINE)
    return {name: int(number) for number, text in lines for name in re.findall(r"`([^`]+)`", text)}


def broken() -> list[str]:
    """What breaks the order."""
    order = stated()

    def line(lock: str) -> int | None:
        return next((order[name] for name in order if f".{lock}".endswith(f".{name}")), None)

    found = []
    for lock, others in sorted(before.items()):
        for other in sorted(others):
            inner, outer = line(lock), line(other)
            if inner is not None and outer is not None and outer >= inner:
                found.append(f"{lock} (line {inner}) is taken while {other} (line {outer}) is held")
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        found.append(f"each of these locks is taken while the one before it is held: {' '.join(error.args[1])}")
    return found


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the pairs, and what breaks the order."""
    terminalreporter.section("locks, and those that were held when they were taken")
    for line in [*(f"{lock}: {', '.join(sorted(others))}" for lock, others in sorted(before.items())), *broken()]:
        terminalreporter.line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where the order is broken."""
    if broken():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
