"""The timeline of a queue, and submits that are prepared once and repeated.

A timeline is a timeline semaphore (Vulkan 1.2, "Timeline Semaphores") whose value each submit raises by one. Device
lost is sticky on it: the first call that reports it marks the timeline, and every later submit or wait raises the
same at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpu_shared import vk
from gpu_shared.errors import DeviceLostError
from gpu_shared.handles import Handle
from gpu_shared.lifetime import Reaper
from gpu_shared.waiting import until_done

if TYPE_CHECKING:
    from gpu_shared.commands import CommandBuffer
    from gpu_shared.device import Device


#: seconds that a wait for a GPU asks for the timeline's value before it blocks: a processor that sleeps takes tens of
#: microseconds to go on, and does so with empty caches
_POLLING = 0.01
#: seconds of them without a pause, where another core does the other threads' work: Linux lengthens each pause to 60 us
_SPINNING = 1e-4 if (os.cpu_count() or 1) > 1 else 0.0
_DEVICE_LOST = -4
_polled_until = 0.0  # until this time another thread of the process polls


def set_polling(seconds: float) -> None:
    """Set for how many seconds waits of this process ask for a timeline's value before they block; 0: they block at once, which
    suits a process whose other threads are busy with Python. Raises ``ValueError`` below 0."""
    global _POLLING
    if not seconds >= 0:
        raise ValueError(f"seconds is {seconds!r}, expected at least 0")
    _POLLING = seconds


class TimelineState:
    """The state that outlives the `Timeline` object: retired natives still check its progress."""

    def __init__(self, raw: Any, device_raw: Any, functions: vk.Functions, start: int, reaper: Reaper) -> None:
        self.raw, self._device_raw, self._functions, self._reaper = raw, device_raw, functions, reaper
        self.submitted = start  #: highest value that a submit will signal
        self.last_region = start  #: of those, the last that is a region, not copies
        self.completed = start  #: highest value read so far
        self.lost: DeviceLostError | None = None
        self.destroyed = False
        self.unsure = False  #: whether a submit is in progress, or was interrupted: its value may never be signalled

    def _read(self, out: Any = None) -> int:
        """Read the counter from the device, by ``out``, a ``uint64_t[1]`` of this thread; returns the result of the call."""
        out = out or vk.ffi.new("uint64_t[1]")
        result = self._functions.vkGetSemaphoreCounterValue(self._device_raw, self.raw, out)
        if result == 0:
            found = out[0]
            if found == vk.UINT64_MAX:  # which a lost device may return (specification, "Lost Device")
                return _DEVICE_LOST
            if found > self.completed:
                self.completed = min(found, self.submitted)
        return result

    def refresh(self, out: Any = None) -> int:
        """Read the counter from the device, as `_read`. Raises `GpuError`."""
        result = self._read(out)
        if result < 0:
            self.fail(result, "vkGetSemaphoreCounterValue")
        return self.completed

    def poll(self, value: int) -> bool:
        """Read the counter until it reaches ``value``, for at most `_POLLING` seconds; other Python threads run meanwhile.
        False where it has not reached it, or another thread polls. Raises `GpuError`."""
        global _polled_until
        now = time.perf_counter()
        if now < _polled_until:
            return False
        _polled_until = end = now + _POLLING
        spinning, out = min(now + _SPINNING, end), vk.ffi.new("uint64_t[1]")
        while self.refresh(out) < value and now < end:
            now = time.perf_counter()
            if now > spinning:
                time.sleep(0)  # gives other threads longer than the call above to take the interpreter's lock
        _polled_until = 0.0
        return value <= self.completed

    def passed(self, value: int) -> bool:
        """Whether the GPU is known to have finished with ``value``, or to access nothing again. Never raises; it records no
        loss, since that takes the queue's lock, which a thread may hold that waits for this one."""
        if value <= self.completed or self.destroyed or self.lost is not None:
            return True
        return self._read() == 0 and value <= self.completed

    def fail(self, result: int, call: str) -> None:
        """Raise for a failed call, and record a lost device."""
        try:
            vk.check(result, call, "timeline")
        except DeviceLostError as error:
            self._reaper.mark_lost(error)
            raise

    def raise_lost(self) -> None:
        """Raise `DeviceLostError` if the device is lost."""
        lost = self.lost
        if lost is not None:
            raise DeviceLostError(lost.call, lost.result, lost.label, lost.hint) from lost


class Timeline(Handle):
    """A timeline semaphore of ``device``. ``borrowed`` takes an existing VkSemaphore (timeline type), which the caller
    still owns: counting continues at the semaphore's value, and from then on only submits through this object may
    signal it.
    """

    kind = "timeline"

    def __init__(self, device: Device, *, borrowed: Any = None, owned: bool = True, label: str = "timeline") -> None:
        fn, device_raw = device.fn, device.raw
        if borrowed is None:
            kind = vk.make("VkSemaphoreTypeCreateInfo", semaphoreType=vk.VK_SEMAPHORE_TYPE_TIMELINE, initialValue=0)
            info = vk.make("VkSemaphoreCreateInfo", pNext=kind)
            out = vk.out("VkSemaphore")
            vk.check(fn.vkCreateSemaphore(device_raw, info.ptr, vk.ffi.NULL, out), "vkCreateSemaphore", label)
            raw, start = out[0], 0
        else:
            raw = vk.handle("VkSemaphore", borrowed)
            out = vk.out("uint64_t")
            vk.check(fn.vkGetSemaphoreCounterValue(device_raw, raw, out), "vkGetSemaphoreCounterValue", label)
            start = out[0]
        reaper, queue, queue_lock = device.reaper, device.queue, device.queue_lock
        state = TimelineState(raw, device_raw, fn, start, reaper)

        def destroy() -> None:
            state.destroyed = True
            reaper.remove_timeline(state)
            if owned:
                # Mesa's queue thread still accesses a semaphore that a submit waited for, after its last value is
                # signalled
                with queue_lock:
                    fn.vkQueueWaitIdle(queue)  # a lost device has finished with it, too
                fn.vkDestroySemaphore(device_raw, raw, vk.ffi.NULL)

        reaper.add_timeline(state)
        super().__init__(raw, parent=device, destroy=destroy, label=label, reaper=reaper)
        self._state = state
        self._polls = device.capabilities.device_type != "cpu"  # whose driver needs the processors
        self._semaphores = vk.ffi.new("VkSemaphore[1]", [raw])

    @property
    def submitted(self) -> int:
        """The value that the latest submit signals (0: none yet)."""
        return self._state.submitted

    @property
    def last_region(self) -> int:
        """The value of the latest submit that was a delegate's region, not copies (0: none yet)."""
        return self._state.last_region

    @property
    def completed(self) -> int:
        """The value that the GPU has reached. Raises `DeviceLostError`."""
        self.check_usable()
        self._state.raise_lost()
        return self._state.refresh()

    def has_passed(self, value: int) -> bool:
        """Whether ``value`` is known to have been reached, without a call of the driver."""
        return value <= self._state.completed

    @property
    def lost(self) -> bool:
        """Whether the device is lost."""
        return self._state.lost is not None

    def wait(self, value: int | None = None, timeout_s: float | None = None) -> None:
        """Block until ``value`` (default: the last submit's) is reached; other Python threads run meanwhile.

        Raises ``TimeoutError`` after ``timeout_s`` seconds, ``ValueError`` for a value that nothing submitted will
        signal, `DeviceLostError`.
        """
        if self._closed or self._generation != vk.generation:
            self.check_usable()
        state = self._state
        if value is None:
            value = state.submitted
        elif value > state.submitted:
            raise ValueError(
                f"waiting for value {value}, but the last submit signals {state.submitted}: it would never end"
            )
        if state.lost is not None:
            state.raise_lost()
        if value <= state.completed:
            return
        if state.unsure:
            self._keep_promise()
        if timeout_s is None and self._polls and _POLLING and state.poll(value):
            return
        values = vk.ffi.new("uint64_t[1]", (value,))  # local: several threads may wait at once
        info = vk.ffi.new("VkSemaphoreWaitInfo *")
        info.sType = 1000207004  # VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO
        info.semaphoreCount, info.pSemaphores, info.pValues = 1, self._semaphores, values
        if timeout_s is None:
            nanoseconds = vk.UINT64_MAX
        elif timeout_s >= 0:
            nanoseconds = min(int(timeout_s * 1e9), vk.UINT64_MAX)
        else:
            raise ValueError(f"timeout_s is {timeout_s}, expected seconds from 0 up")
        result = state._functions.vkWaitSemaphores(state._device_raw, info, nanoseconds)
        if result == 2:  # VK_TIMEOUT
            raise TimeoutError(
                f"{self.label}: value {value} was not reached within {timeout_s} s (at {state.refresh()})"
            )
        if result < 0:
            state.fail(result, "vkWaitSemaphores")
        if value > state.completed:
            state.completed = value

    def wait_to_free(self, value: int) -> None:
        """Wait for ``value`` before something is freed: a lost device has finished with it, and a failed call is
        repeated. Raises `GpuError` where it keeps failing: the objects in use must stay then."""
        until_done(lambda: self.wait(value))

    def _keep_promise(self) -> None:
        """Where an exception of a signal handler interrupted a submit, before or after the call: submit an empty one,
        whose value is above the doubtful one."""
        with self.device.queue_lock:
            if self._state.unsure:
                self.enqueue(self)

    def enqueue(self, semaphore: Handle, *, wait: int | None = None, signal: int | None = None) -> int:
        """Enqueue a wait for a value of another timeline semaphore, or a signal of one, in order with the other
        submits; the host does not block. Returns the value of this timeline that is reached then.

        Raises `DeviceLostError`, `GpuError`, `ClosedError`. A value that is never signalled stops the queue.
        """
        state, device, ffi = self._state, self.device, vk.ffi
        state.raise_lost()
        waits = [] if wait is None else [(semaphore.raw, wait)]
        signals = [] if signal is None else [(semaphore.raw, signal)]
        with device.queue_lock:
            self.check_usable()
            value = state.submitted + 1
            signals.append((self.raw, value))
            values = vk.make(
                "VkTimelineSemaphoreSubmitInfo",
                waitSemaphoreValueCount=len(waits),
                pWaitSemaphoreValues=[v for _, v in waits],
                signalSemaphoreValueCount=len(signals),
                pSignalSemaphoreValues=[v for _, v in signals],
            )
            info = vk.make(
                "VkSubmitInfo",
                pNext=values,
                waitSemaphoreCount=len(waits),
                pWaitSemaphores=[s for s, _ in waits],
                pWaitDstStageMask=[vk.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT] * len(waits),
                signalSemaphoreCount=len(signals),
                pSignalSemaphores=[s for s, _ in signals],
            )
            send = device.fn.vkQueueSubmit
            state.unsure, state.submitted = True, value
            result = send(device.queue, 1, info.ptr, ffi.NULL)
            if result < 0:
                state.submitted, state.unsure = value - 1, False
                state.fail(result, "vkQueueSubmit")
            state.last_region, state.unsure = value, False
        return value


class PreparedSubmit:
    """A VkSubmitInfo built once for a list of command buffers on a queue, signalling ``timeline``.

    It keeps its command buffers alive. A command buffer must not be submitted again while the GPU still runs it, unless
    it was begun with ``simultaneous=True``.
    """

    def __init__(self, timeline: Timeline, command_buffers: Sequence[CommandBuffer]) -> None:
        device = timeline.device
        self.timeline = timeline
        self.command_buffers = tuple(command_buffers)
        self._state = timeline._state
        self._lock = device.queue_lock
        self._reaper: Reaper = device.reaper
        self._queue = device.queue
        self._generation = vk.generation
        ffi = vk.ffi
        self._raws = ffi.new("VkCommandBuffer[]", [buffer.raw for buffer in self.command_buffers])
        self._signal_value = ffi.new("uint64_t[1]")
        self._wait_value = ffi.new("uint64_t[1]")
        self._stages = ffi.new("VkPipelineStageFlags[1]", [vk.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT])
        self._semaphores = ffi.new("VkSemaphore[1]", [timeline.raw])
        values = self._values = ffi.new("VkTimelineSemaphoreSubmitInfo *")
        values.sType = vk.VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO
        values.signalSemaphoreValueCount, values.pSignalSemaphoreValues = 1, self._signal_value
        values.pWaitSemaphoreValues = self._wait_value
        info = self._info = ffi.new("VkSubmitInfo *")
        info.sType = vk.VK_STRUCTURE_TYPE_SUBMIT_INFO
        info.pNext = values
        info.commandBufferCount, info.pCommandBuffers = len(self.command_buffers), self._raws
        info.signalSemaphoreCount, info.pSignalSemaphores = 1, self._semaphores
        info.pWaitSemaphores, info.pWaitDstStageMask = self._semaphores, self._stages
        self._submit = device.fn.vkQueueSubmit
        self._null_fence = ffi.NULL

    def submit(self, wait_value: int | None = None, *, region: bool = True) -> int:
        """Submit to the queue; returns the timeline value that it signals. ``region``: see `Timeline.last_region`.

        With ``wait_value`` the GPU first waits for that value of the timeline, with all memory effects. Raises
        ``ValueError`` for a value that no submit signals yet, `DeviceLostError` (sticky), `GpuError`, `ClosedError`.
        """
        state = self._state
        if self._reaper.retired:
            self._reaper.maintain_later()
        with self._lock:
            if state.lost is not None:  # possibly since another thread had the lock
                state.raise_lost()
            if self.timeline._closed or self._generation != vk.generation:
                self.timeline.check_usable()
            for buffer in self.command_buffers:
                if buffer._closed:
                    buffer.check_usable()
            count = 0 if wait_value is None else 1
            if count:
                assert wait_value is not None
                if wait_value > state.submitted:
                    raise ValueError(
                        f"wait_value is {wait_value}, but the last submit signals {state.submitted}: a deadlock"
                    )
                self._wait_value[0] = wait_value
            self._info.waitSemaphoreCount = self._values.waitSemaphoreValueCount = count
            value = state.submitted + 1
            self._signal_value[0] = value
            state.unsure = True
            state.submitted = value  # before the call: objects that are retired meanwhile wait for this submit
            result = self._submit(self._queue, 1, self._info, self._null_fence)
            if result < 0:
                state.submitted, state.unsure = value - 1, False
                state.fail(result, "vkQueueSubmit")
            if region:
                state.last_region = value
            state.unsure = False
            return value
