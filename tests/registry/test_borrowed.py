"""Contexts around Vulkan objects that the application made: borrowed, taken back, refused, handed over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu_shared import (
    Buffer,
    ContextMode,
    Device,
    Instance,
    SharedGpuCompileSpec,
    SharedGpuContext,
    SharedGpuContextRegistry,
    Timeline,
    vk,
)
from gpu_shared.capabilities import REQUIRED_FEATURES
from gpu_shared.errors import ContextIncompatibleError


@pytest.fixture
def registry() -> Any:
    return SharedGpuContextRegistry()


class Application:
    """An application that made its own Vulkan objects."""

    def __init__(self, gpu: Any, validation: Any = None) -> None:
        self.instance = Instance("application", validation=validation)
        self.device = Device(self.instance, gpu)
        self.semaphore = Timeline(self.device)

    def handles(self, kind: Any = lambda owner, raw: int(vk.ffi.cast("uintptr_t", raw))) -> Any:
        return {
            "instance": kind(self, self.instance.raw),
            "physical_device": kind(self, self.device.physical_device),
            "device": kind(self, self.device.raw),
            "queue": kind(self, self.device.queue),
            "queue_family_index": self.device.queue_family,
            "extensions": self.device.extensions,
            "features": self.device.features,
        }

    def close(self) -> None:
        self.instance.close()


@pytest.fixture
def application(gpu: Any, no_leaks: Any) -> Iterator[Any]:
    made = Application(gpu)
    yield made
    assert not made.device.closed
    made.device.wait_idle()
    made.close()


@pytest.mark.parametrize("form", ["int", "cffi"])
def test_an_application_registers_its_handles_and_takes_them_back(
    application: Any, registry: Any, alive: Any, form: Any
) -> None:
    before = alive()
    convert = {} if form == "int" else {"kind": lambda owner, raw: raw}
    context = SharedGpuContext.from_handles(**application.handles(**convert), token="app", group_id=9)
    assert (context.owns_instance, context.owns_device, context.owns_timeline_semaphore) == (False, False, True)
    assert context.capabilities.features == application.device.features
    assert context.capabilities.extensions == application.device.extensions
    assert context.device.queue_lock is application.device.queue_lock  # one queue, one lock
    registry.register_context(None, context)
    found = registry.resolve(SharedGpuCompileSpec(token="app", group_id=9, mode=ContextMode.LOOKUP_ONLY))
    assert found is context
    with found.lease("vulkan") as lease:
        buffer = Buffer(lease.device, 64, "download")
        commands = lease.allocate().begin()
        commands.fill_buffer(buffer, 0x01010101)
        commands.barrier_to_host()
        commands.end()
        lease.wait(lease.submit(lease.prepare([commands])))
        assert bytes(buffer.mapped or b"") == b"\1" * 64
    assert registry.unregister_context(context.key) is context
    context.close()
    assert buffer.closed
    assert alive() == before


def test_a_borrowed_timeline_counts_on(application: Any) -> None:
    raw = application.semaphore
    first = SharedGpuContext.from_handles(**application.handles(), timeline_semaphore=raw.raw_int)
    assert not first.owns_timeline_semaphore
    with first.lease("a") as lease:
        lease.wait(lease.submit(lease.prepare([lease.allocate().begin().end()])))
    first.close()
    second = SharedGpuContext.from_handles(**application.handles(), timeline_semaphore=raw.raw)
    with second.lease("b") as lease:
        assert lease.submit(lease.prepare([lease.allocate().begin().end()])) == 2
        lease.wait(2)
    second.close()


def test_refused_handles_stay_the_applications(application: Any, alive: Any) -> None:
    before = alive()
    good = application.handles()
    with pytest.raises(ContextIncompatibleError, match="buffer_device_address") as caught:
        SharedGpuContext.from_handles(
            **{**good, "features": ["timelineSemaphore"]}, owns_instance=True, owns_device=True
        )
    assert set(caught.value.features) == REQUIRED_FEATURES - {"timeline_semaphore"}
    with pytest.raises(ValueError, match="VkQueue is null"):
        SharedGpuContext.from_handles(**{**good, "queue": 0})
    with pytest.raises(ValueError, match="queue_family is 99"):
        SharedGpuContext.from_handles(**{**good, "queue_family_index": 99})
    with pytest.raises(TypeError, match="collection"):
        SharedGpuContext.from_handles(**{**good, "extensions": "VK_EXT_memory_budget"})
    with pytest.raises(ValueError, match="gpu_shared_group_id"):
        SharedGpuContext.from_handles(**good, group_id=-1)
    assert alive() == before


def test_handed_over_handles_are_destroyed_with_the_context(gpu: Any, alive: Any) -> None:
    # no validation: its messenger, and the Python callback behind it, would have to be handed over too
    application = Application(gpu, validation=False)
    handles, semaphore = application.handles(), application.semaphore.raw_int
    for owned in (application.semaphore, application.device, application.instance):  # the application lets go of them
        assert owned._finalizer is not None
        owned._finalizer.detach()
        owned._native.destroy = None
        owned._native.bury()
    context = SharedGpuContext.from_handles(
        **handles, timeline_semaphore=semaphore, owns_instance=True, owns_device=True, owns_timeline_semaphore=True
    )
    destroyed: list[str] = []

    def noted(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(*given: Any) -> None:
            destroyed.append(name)
            real(*given)

        return call

    for function, functions in (
        ("vkDestroySemaphore", context.device.fn),
        ("vkDestroyDevice", context.device.fn),
        ("vkDestroyInstance", context.instance.fn),
    ):
        setattr(functions, function, noted(function, getattr(functions, function)))
    assert context.owns_instance
    assert context.owns_device
    assert context.owns_timeline_semaphore
    context.close()
    assert destroyed == ["vkDestroySemaphore", "vkDestroyDevice", "vkDestroyInstance"]
    assert alive() == {}
