"""Shared contexts on the machine's driver: making, borrowing, leases, sync modes, sharing, ends of life."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_shared import (
    Buffer,
    ContextMode,
    SharedGpuCompileSpec,
    SharedGpuContext,
    SharedGpuContextRegistry,
    SyncMode,
    list_devices,
    make_shared_gpu_compile_specs,
    vk,
)
from gpu_shared.errors import (
    ClosedError,
    ContextExistsError,
    ContextIncompatibleError,
    ContextNotFoundError,
    DeviceLostError,
    DeviceNotFoundError,
    GpuError,
)
from gpu_shared.steady import settle
from tools.waiting import LONG_S


@pytest.fixture
def registry() -> Any:
    return SharedGpuContextRegistry()


def test_create_takes_token_group_and_sync_mode_from_compile_specs(gpu: Any, no_leaks: Any) -> None:
    specs = make_shared_gpu_compile_specs(token="scene", group_id=7, sync_mode="none")
    with SharedGpuContext.create(specs, device=gpu) as context:
        assert context.key == ("scene", 7)
        assert context.sync_mode == "none"
        assert context.owns_instance
        assert context.owns_device
        assert context.owns_timeline_semaphore
        valid = [context.is_valid]
        assert context.enabled_extensions <= gpu.capabilities.extensions
        assert context.capabilities.name == gpu.name
        assert all(context.has_extension(name) for name in context.enabled_extensions)
        assert not context.has_extension("VK_KHR_swapchain")
        assert context.memory_budget()
    valid.append(context.is_valid)
    assert context.closed and valid == [True, False]
    with pytest.raises(ClosedError, match="scene:7"):
        _ = context.queue


def test_require_says_exactly_what_is_missing(context: Any) -> None:
    context.require(features=["timeline_semaphore"], queue_flags=["compute"])
    with pytest.raises(ContextIncompatibleError) as caught:
        context.require(
            extensions=["VK_ARM_tensors", *context.enabled_extensions],
            features=["bfloat16_dot_product", "timeline_semaphore"],
            queue_flags=["compute", "data_graph"],
        )
    error = caught.value
    assert error.extensions == ("VK_ARM_tensors",)
    assert error.queue_flags == ("data_graph",)
    if "bfloat16_dot_product" not in context.device.features:
        assert error.features == ("bfloat16_dot_product",)
    assert "VK_ARM_tensors" in str(error)
    assert "data_graph" in str(error)
    with pytest.raises(ValueError, match="flaot16"):
        context.require(features=["flaot16"])


def test_failed_creation_leaves_nothing(gpu: Any, no_leaks: Any) -> None:
    with pytest.raises(ContextIncompatibleError, match="VK_XX_none"):
        SharedGpuContext.create(extra_device_extensions=["VK_XX_none"])
    with pytest.raises(GpuError, match="VK_LAYER_XX_none"):
        SharedGpuContext.create(extra_instance_layers=["VK_LAYER_XX_none"])
    with pytest.raises(DeviceNotFoundError, match="no such card"):
        SharedGpuContext.create(device="no such card")


def test_a_lease_has_its_own_pool_and_logs(context: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "gpu_shared.delegate"):
        with context.lease("vulkan") as one, context.lease("vgf", sync_mode="queue_wait_idle") as two:
            assert one.command_pool.raw_int != two.command_pool.raw_int
            submit = one.prepare([one.allocate().begin().end()])
            value = one.submit(submit)
            one.wait(value)
            assert sorted(context.users) == ["lease 'vgf'", "lease 'vulkan'"]
        text = caplog.text
    for line in ("[vulkan] init:", "[vulkan] execute: value=1", "[vulkan] destroy:", "[vgf] destroy:"):
        assert line in text
    assert context.users == ()
    one.close()
    for use in (lambda: one.context, lambda: one.command_pool, one.allocate):
        with pytest.raises(ClosedError, match="lease vulkan"):
            use()


class Recorder:
    """Stands for vkQueueSubmit and notes what each submit waits for."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.waits: list[Any] = []

    def __call__(self, queue: Any, count: Any, info: Any, fence: Any) -> Any:
        values = vk.ffi.cast("VkTimelineSemaphoreSubmitInfo *", info.pNext)
        self.waits.append(values.pWaitSemaphoreValues[0] if info.waitSemaphoreCount else None)
        return self.real(queue, count, info, fence)


def region(lease: Any, recorder: Any) -> Any:
    submit = lease.prepare([lease.allocate().begin().end()])
    submit._submit = recorder
    return submit


def test_timeline_mode_waits_on_the_gpu_at_a_boundary_only(context: Any) -> None:
    recorder = Recorder(context.device.fn.vkQueueSubmit)
    with context.lease("a") as a, context.lease("b") as b:
        one, two, again = region(a, recorder), region(b, recorder), region(b, recorder)
        assert [a.submit(one), b.submit(two), b.submit(again)] == [1, 2, 3]
        a.wait(3)
        assert a.submit(one) == 4
        a.wait()
    assert recorder.waits == [None, 1, None, 3]


def test_queue_wait_idle_mode_returns_with_the_queue_idle(context: Any) -> None:
    recorder = Recorder(context.device.fn.vkQueueSubmit)
    with context.lease("a", sync_mode="queue_wait_idle") as a:
        value = a.submit(region(a, recorder))
        assert context.timeline.completed == value
    assert recorder.waits == [None]


def test_none_mode_adds_no_waits(context: Any) -> None:
    recorder = Recorder(context.device.fn.vkQueueSubmit)
    with context.lease("a", sync_mode="none") as a, context.lease("b", sync_mode="none") as b:
        a.submit(region(a, recorder))
        b.submit(region(b, recorder))
        b.submit(region(b, recorder), wait_value=1)
        b.wait()
    assert recorder.waits == [None, None, 1]


def test_copies_and_other_delegates_do_not_wait_for_each_other(context: Any) -> None:
    recorder = Recorder(context.device.fn.vkQueueSubmit)
    with (
        context.lease("a") as a,
        context.lease("b") as b,
        context.lease("copies", copies_only=True) as copies,
    ):
        a.submit(region(a, recorder))
        copies.submit(region(copies, recorder))
        a.submit(region(a, recorder))  # 3: its own region before is the last
        assert copies.submit(region(copies, recorder)) == 4
        assert b.submit(region(b, recorder)) == 5
        copies.submit(region(copies, recorder), wait_value=5)
        b.wait()
        assert (context.timeline.submitted, context.timeline.last_region) == (6, 5)
    assert recorder.waits == [None, None, None, None, 3, 5]


def test_a_submit_of_another_context_is_refused(context: Any, gpu: Any) -> None:
    with SharedGpuContext.create(device=gpu) as other, other.lease("x") as theirs, context.lease("y") as ours:
        submit = theirs.prepare([theirs.allocate().begin().end()])
        with pytest.raises(ValueError, match="another context"):
            ours.submit(submit)


def test_close_is_deferred_while_leases_live(gpu: Any, alive: Any) -> None:
    context = SharedGpuContext.create(device=gpu)
    one, two = context.lease("one"), context.lease("two")
    context.close()
    context.close()
    assert not context.is_valid
    assert not context.closed
    with pytest.raises(ClosedError):
        context.lease("three")
    with pytest.raises(ClosedError):
        context.shared_resource("x", object)
    one.wait(one.submit(one.prepare([one.allocate().begin().end()])))  # the last users work on
    one.close()
    assert alive()["device"] == 1
    two.close()
    assert alive() == {}
    assert context.closed


def test_the_last_lease_ends_a_dropped_context(gpu: Any, alive: Any) -> None:
    context = SharedGpuContext.create(device=gpu)
    lease = context.lease("only")
    gone = weakref.ref(context)
    del context
    gc.collect()
    assert gone() is not None
    assert alive()["device"] == 1
    lease.close()
    assert gone() is None  # by reference count alone, no collection
    assert alive() == {}


def test_a_forgotten_lease_ends_too(gpu: Any, alive: Any) -> None:
    lease = SharedGpuContext.create(device=gpu).lease("forgotten")
    lease.allocate()
    lease.submit(lease.prepare([lease.allocate().begin().end()]))
    del lease
    gc.collect()
    assert alive() == {}


def test_registry_with_real_contexts(gpu: Any, registry: Any, alive: Any) -> None:
    spec = SharedGpuCompileSpec(token="real", group_id=2)
    lookup = SharedGpuCompileSpec(token="real", group_id=2, mode=ContextMode.LOOKUP_ONLY)

    def make() -> Any:
        return SharedGpuContext.create(spec, device=gpu)

    with pytest.raises(ContextNotFoundError, match="'real' and group 2"):
        registry.resolve(lookup)
    first = registry.resolve(spec, make).lease("vulkan")
    second = registry.resolve(lookup).lease("vgf")
    assert first.context is second.context
    with pytest.raises(ContextExistsError, match="'real' and group 2"):
        registry.resolve(SharedGpuCompileSpec(token="real", group_id=2, mode=ContextMode.CREATE_ONLY), make)
    with pytest.raises(ContextIncompatibleError, match="VK_ARM_data_graph"):
        registry.resolve(lookup, extensions=["VK_ARM_data_graph"])
    assert alive()["device"] == 1
    first.close()
    second.close()
    assert alive() == {}
    assert registry.lookup(spec) is None
    again = registry.resolve(spec, make)
    assert again.is_valid
    again.close()
    assert registry.lookup(spec) is None  # closed is stale


def test_a_lost_context_is_replaced(gpu: Any, registry: Any, no_leaks: Any) -> None:
    spec = SharedGpuCompileSpec(token="lost")

    def make() -> Any:
        return SharedGpuContext.create(spec, device=gpu)

    lost = registry.resolve(spec, make)
    lost.device.fn.vkQueueWaitIdle = lambda queue: -4
    with pytest.raises(DeviceLostError):
        lost.wait_idle()
    assert not lost.is_valid
    with pytest.raises(DeviceLostError):
        lost.timeline.wait()
    fresh = registry.resolve(spec, make)
    assert fresh is not lost
    fresh.wait_idle()
    lost.close()
    fresh.close()


def test_sixteen_threads_share_one_real_context(gpu: Any, registry: Any, no_leaks: Any) -> None:
    spec, made, barrier = SharedGpuCompileSpec(token="race"), [], threading.Barrier(16)

    def make() -> Any:
        made.append(1)
        return SharedGpuContext.create(spec, device=gpu)

    def delegate(index: Any) -> Any:
        barrier.wait()
        context = registry.resolve(spec, make)
        with context.lease(f"delegate {index}") as lease:
            submit = lease.prepare([lease.allocate().begin(simultaneous=True).end()])
            values = [lease.submit(submit) for _ in range(20)]
            lease.wait(values[-1], timeout_s=LONG_S)
            barrier.wait()  # all hold it until all are done
            return values

    with ThreadPoolExecutor(16) as pool:
        values = [value for part in pool.map(delegate, range(16)) for value in part]
    assert made == [1]
    assert sorted(values) == list(range(1, 321))


def test_a_reference_that_is_collected_while_another_is_taken(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector may run at any allocation: also after the object was found, and before its new user is counted."""
    closed: list[int] = []
    unreachable: list[Any] = [context.shared_resource("x", lambda: SimpleNamespace(close=lambda: closed.append(1)))]
    unreachable.append(unreachable)

    class Collecting(dict[Any, Any]):
        def setdefault(self, key: Any, default: Any = None) -> Any:
            found = super().setdefault(key, default)
            gc.collect()
            return found

    monkeypatch.setattr(context._resources, "_entries", Collecting(context._resources._entries))
    del unreachable
    with context.shared_resource("x", object):
        settle()
        assert closed == []
    assert closed == [1]


def test_shared_resource_is_made_once_and_closed_by_its_last_user(context: Any) -> None:
    made, closed, barrier = [], [], threading.Barrier(8)

    def factory() -> Any:
        made.append(1)
        return SimpleNamespace(close=lambda: closed.append(1))

    def use(_: Any) -> Any:
        barrier.wait()
        reference = context.shared_resource("arena", factory)
        barrier.wait()
        return reference

    with ThreadPoolExecutor(8) as pool:
        references = list(pool.map(use, range(8)))
    assert len({id(r.value) for r in references}) == 1
    assert made == [1]
    for reference in references[:-1]:
        reference.release()
        reference.release()
    assert closed == []
    assert references[-1].value
    references.clear()  # the last is forgotten, not released
    gc.collect()
    settle()
    assert closed == [1]
    with context.shared_resource("arena", factory) as again:
        assert again is not None
    assert made == [1, 1]
    assert closed == [1, 1]


def test_a_failing_factory_leaves_nothing(context: Any) -> None:
    def fail() -> None:
        raise GpuError("making", hint="no")

    with pytest.raises(GpuError, match="no"):
        context.shared_resource("x", fail)
    assert context.users == ()
    with pytest.raises(RuntimeError, match="in its own creation"):
        context.shared_resource("x", lambda: context.shared_resource("x", object))
    with context.shared_resource("x", lambda: 5) as value:
        assert value == 5


def test_a_shared_resource_defers_close(gpu: Any, alive: Any) -> None:
    context = SharedGpuContext.create(device=gpu)
    reference = context.shared_resource("buffer", partial(Buffer, context.device, 1024))
    context.close()
    assert alive()["buffer"] == 1
    reference.release()
    assert alive() == {}
    with pytest.raises(ClosedError):
        _ = reference.value


def test_with_locked_queue_excludes_other_threads_and_is_reentrant(context: Any) -> None:
    lease = context.lease("other")
    submit = lease.prepare([lease.allocate().begin().end()])
    with context.with_locked_queue() as queue, context.with_locked_queue() as same:
        assert queue == same == context.queue
        thread = threading.Thread(target=lease.submit, args=(submit,))
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        assert context.timeline.submitted == 0
    thread.join(120)
    assert context.timeline.submitted == 1
    lease.close()


def test_listing_devices_leaves_nothing(gpu: Any, no_leaks: Any) -> None:
    assert [d.name for d in list_devices()].count(gpu.name) >= 1


@pytest.mark.parametrize("second", list(SyncMode))
@pytest.mark.parametrize("first", list(SyncMode))
def test_each_spec_has_its_own_sync_mode(gpu: Any, alive: Any, first: SyncMode, second: SyncMode) -> None:
    """Also on a context that was created for another spec; `find_or_create` always returns the context itself."""
    registry = SharedGpuContextRegistry()
    specs = [SharedGpuCompileSpec(token="modes", sync_mode=mode) for mode in (first, second)]
    one, other = [registry.resolve(spec, lambda: SharedGpuContext.create(specs[0], device=gpu)) for spec in specs]
    assert one == other and hash(one) == hash(other) and registry.find_or_create(specs[1]) is one
    assert other.sync_mode is second and other.label == "modes:0" and "modes:0" in repr(other)
    with one.lease("a") as a, other.lease("b") as b, other.lease("c", SyncMode.NONE) as c:
        assert [lease.sync_mode for lease in (a, b, c)] == [first, second, SyncMode.NONE]
        assert a.context is b.context is c.context is one
    elsewhere = SharedGpuContextRegistry()
    elsewhere.register_context(None, other)
    assert elsewhere.lookup(("modes", 0)) is one
    with other:
        pass
    assert one.closed
