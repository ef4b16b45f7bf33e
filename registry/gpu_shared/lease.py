"""A delegate's lease on a shared context."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_shared import vk
from gpu_shared.commands import CommandBuffer, CommandPool
from gpu_shared.compile_spec import SyncMode
from gpu_shared.errors import ClosedError, ForkedProcessError
from gpu_shared.resources import SharedResource
from gpu_shared.steady import check_wanted, closing, on_end, steady
from gpu_shared.timeline import PreparedSubmit, Timeline
from gpu_shared.uncopied import Uncopied

if TYPE_CHECKING:
    from gpu_shared.context import SharedGpuContext
    from gpu_shared.device import Device

logger = logging.getLogger("gpu_shared.delegate")
T = TypeVar("T")


class DelegateLease(Uncopied):
    """One delegate on one context: holds the context alive and owns a command pool (used by one thread at a time).

    Made by `SharedGpuContext.lease`. Its holder is a user of the context until `close`, and takes further leases and
    shared resources by `lease` and `shared_resource`, also after `SharedGpuContext.close`.

    `submit` applies the sync mode at the boundary to another delegate's region (see `gpu_shared.compile_spec`). With
    ``copies_only`` its submits are not regions: copies that begin and end with barriers against shaders and copies, so
    that no other delegate waits for them. Logs init, execute and destroy at debug level to the logger
    ``gpu_shared.delegate``.
    """

    _instead = "take another lease of its context"

    def __init__(
        self, context: SharedGpuContext, name: str, sync_mode: SyncMode, *, copies_only: bool = False, user: int = 0
    ) -> None:
        self.name = name
        self._copies_only = copies_only
        self.sync_mode = sync_mode
        self._context: SharedGpuContext | None = context
        self._generation = vk.generation
        self._token = context._add_user(f"lease {name!r}", user)
        try:
            self._pool: CommandPool | None = context.create_command_pool(label=f"{name} command pool")
        except BaseException:
            context._remove_user(self._token)
            raise
        # its owner may still use it in its own finalizer at exit
        self._finalizer = on_end(self, _end, context, self._token, self._pool, name, at_exit=False)
        self._executions = 0
        self._last_value = 0
        logger.debug("[%s] init: context=%s sync_mode=%s", name, context.label, sync_mode)

    @property
    def context(self) -> SharedGpuContext:
        """The context, held until `close`. Raises `ClosedError`, `ForkedProcessError`."""
        context = self._context
        if self._generation != vk.generation:
            raise ForkedProcessError(f"lease {self.name}")
        if context is None:
            raise ClosedError(f"lease {self.name}")
        return context

    @property
    def device(self) -> Device:
        """The context's device. Raises as `context`."""
        return self.context.device

    @property
    def timeline(self) -> Timeline:
        """The context's timeline. Raises as `context`."""
        return self.context.timeline

    @steady
    def lease(self, name: str, sync_mode: SyncMode | str | None = None, *, copies_only: bool = False) -> DelegateLease:
        """A further lease for the same user. ``sync_mode`` defaults to this lease's. Raises as `context`."""
        mode = self.sync_mode if sync_mode is None else SyncMode(sync_mode)
        return DelegateLease(self.context, name, mode, copies_only=copies_only, user=self._token)

    @steady
    def shared_resource(self, key: Hashable, factory: Callable[[], T]) -> SharedResource[T]:
        """As `SharedGpuContext.shared_resource`, for the lease's holder. Raises as `context`."""
        return self.context._shared_resource(key, factory, self._token)

    @property
    def command_pool(self) -> CommandPool:
        """The pool of this delegate's command buffers. Raises as `context`."""
        self.context  # noqa: B018  # raises when closed
        assert self._pool is not None
        return self._pool

    @property
    def closed(self) -> bool:
        """Whether the lease was released."""
        return self._context is None

    def allocate(self, label: str = "") -> CommandBuffer:
        """Allocate a command buffer of this delegate's pool."""
        return self.command_pool.allocate(label or f"{self.name} command buffer")

    def prepare(self, command_buffers: Sequence[CommandBuffer]) -> PreparedSubmit:
        """Prepare a submit on the context's timeline, for `submit`."""
        return PreparedSubmit(self.context.timeline, command_buffers)

    def submit(self, prepared: PreparedSubmit, wait_value: int | None = None) -> int:
        """Submit one region of this delegate; returns the timeline value that it signals.

        In the mode ``timeline`` the GPU first waits for the last region, where another delegate submitted since; in
        ``queue_wait_idle`` this call returns when the queue is idle; in ``none`` nothing is added. ``wait_value`` adds
        a wait, in any mode.

        Raises ``ValueError`` for a submit that was prepared for another context, and as `PreparedSubmit.submit`.
        """
        context, timeline = self.context, prepared.timeline
        if timeline is not context._timeline:
            raise ValueError(f"lease {self.name!r}: the submit was prepared for another context's timeline")
        with context._device.queue_lock:
            if self._copies_only:
                value = prepared.submit(wait_value, region=False)
            else:
                check_wanted()  # after an interrupt a later region may have been submitted, whose results this one would replace
                if self.sync_mode is SyncMode.TIMELINE:
                    last = timeline._state.last_region
                    if last != self._last_value:  # another delegate's, after this delegate's last region
                        wait_value = max(last, wait_value or 0)
                value = self._last_value = prepared.submit(wait_value)
            self._executions += 1
            if self.sync_mode is SyncMode.QUEUE_WAIT_IDLE:
                context.wait_idle()
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("[%s] execute: value=%d wait=%s executions=%d", self.name, value, wait_value, self._executions)
        return value

    def joined(self, value: int) -> None:
        """Record that a region of this delegate was part of another delegate's submit, which signals ``value``."""
        self._last_value = value
        self._executions += 1
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("[%s] execute: value=%d joined executions=%d", self.name, value, self._executions)

    def wait(self, value: int | None = None, timeout_s: float | None = None) -> None:
        """Block until the timeline reaches ``value`` (default: everything submitted so far)."""
        self.context._timeline.wait(value, timeout_s)

    def wait_to_free(self, value: int) -> None:
        """See `Timeline.wait_to_free`."""
        self.context._timeline.wait_to_free(value)

    @closing
    def close(self) -> None:
        """Release the lease: the pool is destroyed once the GPU has finished with it, the context if this was its last
        user. Idempotent."""
        self._finalizer()
        self._context = self._pool = None

    def __enter__(self) -> DelegateLease:
        self.context  # noqa: B018
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<DelegateLease {self.name!r}{' closed' if self.closed else ''}>"


def _end(context: SharedGpuContext, token: int, pool: Any, name: str) -> None:
    logger.debug("[%s] destroy: context=%s", name, context.label)
    pool.close()
    context._remove_user(token)
