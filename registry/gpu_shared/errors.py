"""Exceptions of the shared GPU runtime. Pure: importable without Vulkan.

Bad arguments raise ``ValueError`` or ``TypeError`` where they are passed; the classes here are for errors that a caller
cannot foresee: those of the driver, the device and shared contexts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class PicklableError(Exception):
    """An error that can be pickled whatever arguments its constructor has: a process pool that cannot unpickle an error
    ends, or waits for ever."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class GpuError(PicklableError, RuntimeError):
    """A GPU call failed.

    ``call`` is the Vulkan function or the operation, ``result`` the VkResult's name (empty where no call was made),
    ``label`` names the object concerned and ``hint`` says what to do about it.
    """

    def __init__(self, call: str = "", result: str = "", label: str = "", hint: str = "") -> None:
        self.call, self.result, self.label, self.hint = call, result, label, hint
        super().__init__(self._message())

    def _message(self) -> str:
        text = self.call
        if self.result:
            text += f" returned {self.result}" if text else self.result
        if self.label:
            text += f" for {self.label!r}"
        if self.hint:
            text += f": {self.hint}" if text else self.hint
        return text


class DeviceLostError(GpuError):
    """The device stopped (VK_ERROR_DEVICE_LOST). Sticky: everything on the same timeline fails from then on."""


class OutOfDeviceMemoryError(GpuError, MemoryError):
    """Device memory is exhausted. ``asked`` are the requested bytes, ``budget`` and ``used`` those of the heap (-1: not
    known)."""

    def __init__(
        self,
        call: str = "",
        result: str = "",
        label: str = "",
        hint: str = "",
        *,
        asked: int = -1,
        budget: int = -1,
        used: int = -1,
    ) -> None:
        self.asked, self.budget, self.used = asked, budget, used
        super().__init__(call, result, label, hint)


class OutOfHostMemoryError(GpuError, MemoryError):
    """The driver could not allocate host memory (VK_ERROR_OUT_OF_HOST_MEMORY)."""


class DriverNotFoundError(GpuError):
    """No Vulkan loader, or no driver that it can load."""


class DeviceNotFoundError(GpuError):
    """No device matches the selection. The message lists the available devices."""


class ContextNotFoundError(GpuError):
    """``lookup_only`` found no live context under the key ``(token, group_id)``."""

    def __init__(self, token: str, group_id: int, hint: str = "") -> None:
        self.token, self.group_id = token, group_id
        super().__init__(
            "looking up a shared GPU context",
            hint=f"no live context has token {token!r} and group {group_id}"
            + (f"; {hint}" if hint else "; register one first, or use the mode 'lookup_or_create'"),
        )


class ContextExistsError(GpuError):
    """``create_only`` or a registration found a live context under the key ``(token, group_id)``."""

    def __init__(self, token: str, group_id: int, hint: str = "") -> None:
        self.token, self.group_id = token, group_id
        super().__init__(
            "registering a shared GPU context",
            hint=f"a live context already has token {token!r} and group {group_id}"
            + (f"; {hint}" if hint else "; choose another group_id or token, or use the mode 'lookup_or_create'"),
        )


class ContextIncompatibleError(GpuError):
    """A context's device lacks something that a user of it needs: ``extensions``, ``features`` and ``queue_flags`` name
    what is missing."""

    def __init__(
        self,
        label: str,
        *,
        extensions: Iterable[str] = (),
        features: Iterable[str] = (),
        queue_flags: Iterable[str] = (),
        hint: str = "",
    ) -> None:
        self.extensions = tuple(sorted(extensions))
        self.features = tuple(sorted(features))
        self.queue_flags = tuple(sorted(queue_flags))
        parts = []
        for what, names in (
            ("device extension", self.extensions),
            ("device feature", self.features),
            ("queue capability", self.queue_flags),
        ):
            if names:
                parts.append(f"{what}{'s' if len(names) > 1 else ''} {', '.join(names)}")
        missing = "it misses " + "; ".join(parts) if parts else "it does not fit"
        super().__init__("sharing a GPU context", label=label, hint=missing + (f"; {hint}" if hint else ""))


class ForkedProcessError(GpuError):
    """A GPU object was used in a process that was forked after the object (or the driver's state) was created."""

    def __init__(self, label: str = "") -> None:
        super().__init__(
            "using the GPU in a forked child",
            label=label,
            hint="GPU objects do not survive fork(); start processes with the 'spawn' or 'forkserver' method, "
            "or open the GPU only in the child",
        )


class ClosedError(GpuError):
    """An object was used after ``close()`` (its own, or that of a parent)."""

    def __init__(self, label: str) -> None:
        super().__init__("using a closed object", label=label, hint="it, or the object that it belongs to, was closed")
