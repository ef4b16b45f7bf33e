"""The base of every GPU object: parents, closing, garbage collection.

An object has two parts. Python code holds the `Handle`: it refers strongly to its parent, so that a device outlives the
objects created on it, and weakly to its children, so that closing a parent closes them first. The `Native` represents
the Vulkan object itself (`gpu_shared.lifetime`). Closing a handle, or deleting the last reference to it, retires its native.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from gpu_shared import vk
from gpu_shared.errors import ClosedError, ForkedProcessError
from gpu_shared.lifetime import Native, Reaper
from gpu_shared.steady import End, closing, on_end, steady
from gpu_shared.uncopied import Uncopied

if TYPE_CHECKING:
    from gpu_shared.device import Device

logger = logging.getLogger("gpu_shared")

_serials = itertools.count()


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
            self._native.reaper.maintain()

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
