"""The lifetime of Vulkan objects: one state machine, which `Reaper.maintain` runs.

    LIVE --retire--> RETIRED --maintain--> DESTROYED
                        |                      ^
                        +--maintain--> WAITING-+ with the last child

- LIVE: a `gpu_shared.handles.Handle` uses it.
- RETIRED: closed, or no longer referenced. It is in its device's queue, with the value of each timeline that was submitted
  then. An object without a queue (an instance) goes on at once.
- WAITING: every timeline has passed these values, but children are left: garbage collection may finalize a cycle in any
  order, and an array may still use a buffer's mapping.
- DESTROYED: ``destroy`` was called, once.

Two locks guard the states: `Reaper.lock` the queue, `_tree_lock` parents and children. Neither is held where ``destroy`` is
called, so objects may be destroyed in several threads at once. To retire one takes no lock: finalizers do that.
Both are re-entrant: the collector may run a program's finalizer, which uses a session, in a thread that has one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

from gpu_shared.errors import DeviceLostError
from gpu_shared.steady import later, settle
from gpu_shared.waiting import until_done

#: existing natives by kind; set operations are atomic, so no lock is needed (and a finalizer must take none)
_live: defaultdict[str, set[Native]] = defaultdict(set)
_tree_lock = threading.RLock()


def _after_fork_in_child() -> None:
    global _tree_lock
    _tree_lock = threading.RLock()
    _live.clear()  # they belong to the parent process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def live_counts() -> dict[str, int]:
    """How many Vulkan objects of each kind exist in this process (created here and not yet destroyed), for leak
    tests."""
    settle()
    return {kind: len(natives) for kind, natives in sorted(_live.items()) if natives}


def live() -> set[Native]:
    """The Vulkan objects that `live_counts` counts, and those that another thread is about to destroy."""
    return set().union(*_live.values())


class Progress(Protocol):
    """The interface of a timeline that the reaper uses."""

    submitted: int
    lost: DeviceLostError | None

    def passed(self, value: int) -> bool:
        """Whether the GPU has reached ``value``."""


State = Enum("State", "LIVE RETIRED WAITING DESTROYED")


class Native:
    """A Vulkan object in the destruction order. ``destroy`` must not refer to the `Handle`."""

    __slots__ = ("__weakref__", "children", "destroy", "kind", "parent", "reaper", "state")

    def __init__(
        self,
        kind: str,
        destroy: Callable[[], None] | None,
        parent: Native | None,
        reaper: Reaper | None,
        *,
        counted: bool = True,
    ) -> None:
        self.kind, self.destroy, self.parent, self.reaper = kind, destroy, parent, reaper
        self.children: set[Native] = set()
        self.state = State.LIVE
        if parent is not None:
            parent.children.add(self)
        if counted and destroy is not None:
            _live[self.kind].add(self)

    def retire(self) -> None:
        """Destroy it once the GPU has finished with it. Nothing uses it any more."""
        if sys.is_finalizing():
            return
        self.state = State.RETIRED
        if self.reaper is None:
            self.bury()
        else:
            self.reaper.retire(self)

    def bury(self) -> None:
        """Destroy now, or with the last child. The GPU has finished with it."""
        with _tree_lock:
            if self.state is State.DESTROYED:
                return
            self.state = State.WAITING if self.children else State.DESTROYED
            if self.children:
                return
        destroy, self.destroy = self.destroy, None
        try:
            if destroy is not None:
                destroy()
        finally:
            if self.kind in _live:  # else it would be a new one, perhaps while another thread reads them
                _live[self.kind].discard(self)
            if self.parent is not None:
                self.parent._lose(self)

    def _lose(self, child: Native) -> None:
        with _tree_lock:
            self.children.discard(child)
            due = self.state is State.WAITING and not self.children
        if due:
            self.bury()


#: the values that must pass, and what is destroyed then
_Retired = tuple[tuple[tuple[Progress, int], ...], Native]


class Reaper:
    """A device's queue of retired natives, each with the timeline values that must pass before its destruction."""

    def __init__(self, wait_idle: Callable[[], None] = lambda: None, queue_lock: Any = None) -> None:
        """``wait_idle`` waits until the device executes nothing, and ``queue_lock`` is held where work is submitted."""
        self._wait_idle, self._queue_lock = wait_idle, queue_lock or threading.RLock()
        self.timelines: tuple[Progress, ...] = ()
        self.retired: deque[_Retired] = deque()
        self.lock = threading.RLock()
        self.finished = False  # the device is idle for good: no wait is needed

    def add_timeline(self, timeline: Progress) -> None:
        """Also wait for this timeline before an object is destroyed."""
        with self.lock:
            self.timelines = (*self.timelines, timeline)

    def remove_timeline(self, timeline: Progress) -> None:
        """No longer wait for this timeline, nor ask it."""
        with self.lock:
            self.timelines = tuple(t for t in self.timelines if t is not timeline)

    def mark_lost(self, error: DeviceLostError) -> None:
        """The device is lost: once it is idle, every timeline on it fails, and no further wait is needed.

        The call that reported the loss counts as complete, and only what it waited for is out of use: other work may
        still execute. A wait for a lost device returns in finite time (Vulkan specification, "Lost Device"). Raises
        `GpuError` where the wait fails; then the loss is not recorded, and the next call reports it again."""
        # a separate exception: the other's traceback refers to the code that was running, and so to the device
        known = DeviceLostError(error.call, error.result, error.label, error.hint)
        with self._queue_lock:  # no submit between the wait and the record
            if all(timeline.lost is not None for timeline in self.timelines):
                return
            until_done(self._wait_idle)
            for timeline in self.timelines:
                if timeline.lost is None:
                    timeline.lost = known

    def retire(self, native: Native) -> None:
        """Destroy the object once every timeline has passed what has been submitted."""
        self.retired.append((tuple((t, t.submitted) for t in self.timelines), native))
        if self.finished:
            self.maintain()

    def maintain(self) -> int:
        """Destroy the objects that are due; returns their number. Call it where no exception of a signal handler comes
        between the steps."""
        count = 0
        while True:
            with self.lock:
                oldest = self._due()
                if oldest is None:
                    return count
                if not self.retired or self.retired[0] is not oldest:
                    continue  # a finalizer was here in between
                self.retired.popleft()
            oldest[1].bury()
            count += 1

    def maintain_later(self) -> None:
        """Where an object is due, have the finalizers' thread call `maintain`. Does not wait for it: the caller may hold a lock
        that destroying an object takes."""
        with self.lock:
            due = self._due()
        if due is not None:
            later(self.maintain)

    def _due(self) -> _Retired | None:
        """The oldest one where it is due: later ones wait at least as long."""
        oldest = self.retired[0] if self.retired else None
        if oldest is None or self.finished or all(timeline.passed(value) for timeline, value in oldest[0]):
            return oldest
        return None
