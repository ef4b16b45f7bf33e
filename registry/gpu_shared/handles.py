"""The base of every GPU object: parents, closing, garbage collection, live counts.

An object has two parts. Python code holds the `Handle`: it refers strongly to its parent, so that a device outlives the
objects created on it, and weakly to its children, so that closing a parent closes them first. The `Native` represents
the Vulkan object itself. Natives form a separate tree, because garbage collection may finalize a cycle in any order: a
native is destroyed only when it is retired, when every timeline has passed the last submit that could use it, and when
its own children are destroyed.

Closing (and garbage collection, the safety net) retires a native. Retiring only appends to the device's queue of
retired natives, which is safe in a finalizer; `Reaper.collect` destroys those that are due. It runs at each close and
each submit.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from gpu_shared import vk
from gpu_shared.errors import ClosedError, DeviceLostError, ForkedProcessError
from gpu_shared.steady import End, closing, later, on_end, settle, steady
from gpu_shared.uncopied import Uncopied
from gpu_shared.waiting import until_done

if TYPE_CHECKING:
    from gpu_shared.device import Device

logger = logging.getLogger("gpu_shared")

_serials = itertools.count()
#: existing natives; set operations on it are atomic, so no lock is needed (and a finalizer must take none)
_live: set[Native] = set()
_tree_lock = threading.RLock()  # re-entrant: a finalizer may run inside a section that holds it


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
    return dict(sorted(Counter(native.kind for native in list(_live)).items()))


class Progress(Protocol):
    """The interface of a timeline that the reaper uses."""

    submitted: int
    lost: DeviceLostError | None

    def passed(self, value: int) -> bool:
        """Whether the GPU has reached ``value``."""


class Native:
    """A Vulkan object in the destruction order. ``destroy`` must not refer to the `Handle`."""

    __slots__ = ("__weakref__", "children", "dead", "destroy", "generation", "kind", "parent", "reaper", "waiting")

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
        self.waiting = self.dead = False
        self.generation = vk.generation
        if parent is not None:
            parent.children.add(self)
        if counted and destroy is not None:
            _live.add(self)

    def retire(self) -> None:
        """Queue for destruction. Callable from a finalizer: it takes no lock that others hold for long."""
        if self.generation != vk.generation or sys.is_finalizing():
            return  # an object of the parent process, or the interpreter is exiting
        if self.reaper is None:
            self.bury()
        else:
            self.reaper.retire(self)

    def bury(self) -> None:
        """Destroy now, or with the last child."""
        with _tree_lock:
            if self.dead:
                return
            if self.children:
                self.waiting = True
                return
            self.dead = True
        destroy, self.destroy = self.destroy, None
        try:
            if destroy is not None:
                destroy()
        finally:
            _live.discard(self)
            parent = self.parent
            if parent is not None:
                with _tree_lock:
                    parent.children.discard(self)
                    due = parent.waiting and not parent.children
                if due:
                    parent.bury()


class Reaper:
    """A device's queue of retired natives, each with the timeline values that must pass before its destruction."""

    def __init__(self, wait_idle: Callable[[], None] = lambda: None, queue_lock: Any = None) -> None:
        """``wait_idle`` waits until the device executes nothing, and ``queue_lock`` is held where work is submitted."""
        self._wait_idle, self._queue_lock = wait_idle, queue_lock or threading.RLock()
        self.timelines: tuple[Progress, ...] = ()
        self.retired: deque[tuple[tuple[tuple[Progress, int], ...], Native]] = deque()
        self.lock = threading.RLock()
        self.finished = False  # the device is idle for good: no wait is needed

    def add_timeline(self, timeline: Progress) -> None:
        """Also wait for this timeline before an object is destroyed."""
        with self.lock:
            self.timelines = (*self.timelines, timeline)

    def remove_timeline(self, timeline: Progress) -> None:
        """No longer wait for this timeline."""
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
            self.collect(block=False)

    def collect(self, block: bool = True) -> int:
        """Destroy the objects that are due; returns their number. With ``block=False`` it leaves the work to a thread
        that is already doing it."""
        total = 0
        while self.retired:
            if not self.lock.acquire(blocking=block):
                break
            try:
                done = self._destroy_due()
            finally:
                self.lock.release()
            total += done
            # check again after the release: another thread may have appended and found the lock taken
            if not done and not self.finished:
                break
        return total

    def begin_collecting(self) -> None:
        """Where an object is due, have the finalizers' thread call `collect`. Does not wait for it: the caller may hold a lock
        that destroying an object takes."""
        try:
            values, _ = self.retired[0]
        except IndexError:  # another thread destroyed the last one
            return
        if self.finished or all(timeline.passed(value) for timeline, value in values):
            later(functools.partial(self.collect, block=False))

    def _destroy_due(self) -> int:
        count = 0
        while self.retired:
            values, native = self.retired[0]
            if not self.finished and not all(timeline.passed(value) for timeline, value in values):
                break  # in order of retirement: later ones wait at least as long
            self.retired.popleft()
            native.bury()
            count += 1
        return count


class Handle(Uncopied):
    """Base of GPU objects: ``raw``, ``label``, ``close()``, usable in ``with``.

    ``close`` is idempotent and safe at any time: children close first, and the Vulkan object is destroyed once the GPU
    has finished the submits that could use it. After it, any use raises `ClosedError`; in a forked child any use raises
    `ForkedProcessError` (and ``close`` does nothing). Constructors run in threads that no signal interrupts: between
    Vulkan's call and the finalizer an exception would lose the object.
    """

    kind: ClassVar[str] = "object"
    _native: Native
    _finalizer: End | None  #: None once it is closed

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            cls.__init__ = steady(cls.__init__)  # type: ignore[method-assign]

    def __init__(
        self,
        raw: Any,
        *,
        parent: Handle | None,
        destroy: Callable[[], None] | None,
        label: str = "",
        reaper: Reaper | None = None,
        finalize: Callable[[Native], None] = Native.retire,
    ) -> None:
        """``finalize`` gets the native when this object is closed or deleted."""
        self._raw = raw
        self.parent = parent
        self.label = label or self.kind
        self._closed = False
        self._generation = vk.generation
        self._children: dict[int, weakref.ref[Handle]] = {}
        self._native = Native(self.kind, destroy, parent._native if parent is not None else None, reaper)
        siblings, serial = (parent._children, next(_serials)) if parent is not None else (None, 0)
        if siblings is not None:
            siblings[serial] = weakref.ref(self)
        # not at the exit, where threads may still use it: instances are closed then, and their children with them
        self._finalizer = on_end(self, _finalize, finalize, self._native, siblings, serial, at_exit=False)

    @property
    def raw(self) -> Any:
        """The Vulkan handle (cffi). Raises `ClosedError` or `ForkedProcessError`."""
        if self._closed or self._generation != vk.generation:
            self.check_usable()
        return self._raw

    @property
    def device(self) -> Device:
        """The `Device` that it belongs to (itself, for a device). Raises `ClosedError` or `ForkedProcessError`."""
        self.check_usable()
        if self.parent is None:
            raise ClosedError(self.label)
        return self.parent.device

    @property
    def raw_int(self) -> int:
        """The Vulkan handle as an integer, to pass to another library."""
        return int(vk.ffi.cast("uintptr_t", self.raw))

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def check_usable(self) -> None:
        """Raise `ForkedProcessError` or `ClosedError` when the object may not be used."""
        if self._generation != vk.generation:
            raise ForkedProcessError(self.label)
        if self._closed:
            raise ClosedError(self.label)

    @closing
    def close(self) -> None:
        """Destroy the object, its children first, as soon as the GPU is done with it. Idempotent."""
        if self._generation != vk.generation:
            self._closed = True
            self._finalizer = None
        elif self._finalizer is not None:
            self._close()

    def _close(self) -> None:
        end = self._finalizer
        finalize = end.detach() if end is not None else None
        if finalize is None:  # already closed, or another thread is closing it
            return
        self._closed = True
        self._finalizer = None  # else deleting this object would call it, and wake the finalizers' thread
        self._close_children()
        self._before_retire()
        finalize()
        self.parent = None  # a closed object that is still referenced keeps no device alive
        if self._native.reaper is not None:
            self._native.reaper.collect()

    def _close_children(self) -> None:
        for serial in sorted(self._children, reverse=True):
            reference = self._children.get(serial)
            child = reference() if reference is not None else None
            if child is not None:
                child.close()

    def _before_retire(self) -> None:
        """Release what keeps the native alive (such as a mapping's view)."""

    def __enter__(self) -> Any:
        self.check_usable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label!r}{' closed' if self._closed else ''}>"


class DeviceObject(Handle):
    """An object that Vulkan's ``vkCreate<name>`` creates on a device from one structure, and ``vkDestroy<name>``
    destroys."""

    vulkan_name: ClassVar[str]

    def __init__(self, device: Device, info: vk.Struct, label: str) -> None:
        """Raises the errors of the call; see `vk.check`."""
        create, device_raw = f"vkCreate{self.vulkan_name}", device.raw
        out = vk.out(f"Vk{self.vulkan_name}")
        vk.check(getattr(device.fn, create)(device_raw, info.ptr, vk.ffi.NULL, out), create, label)
        raw, ended = out[0], getattr(device.fn, f"vkDestroy{self.vulkan_name}")
        super().__init__(
            raw,
            parent=device,
            destroy=lambda: ended(device_raw, raw, vk.ffi.NULL),
            label=label,
            reaper=device.reaper,
        )


def _finalize(finalize: Callable[[Native], None], native: Native, siblings: dict[int, Any] | None, serial: int) -> None:
    if siblings is not None:
        siblings.pop(serial, None)
    finalize(native)
