"""Memory and semaphores of another device feed a session: no copy, order by semaphores, clear refusals, clean ends."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpu_shared
from gpu_shared import ContextIncompatibleError, GpuError, SharedGpuContext
from gpu_shared.external import HOST_ALLOCATION, can_import_memory, can_import_semaphore, host_alignment
from gpu_shared.handles import Handle
from tests.ort.conftest import graph
from tests.registry.exporter import Exporter
from vkep import InferenceSession
from vkep.device.delegate import VulkanDelegate

MODEL = graph("g (float[4,8] x) => (float[4,8] y) { y = Add(x, x) }")
X = np.arange(32, dtype=np.float32).reshape(4, 8)


@pytest.fixture
def opened() -> Iterator[InferenceSession]:
    with InferenceSession(MODEL, context_mode="disabled") as session:
        yield session


@pytest.fixture
def exporter(vulkan: Any) -> Iterator[Exporter]:
    with Exporter() as made:
        if not can_import_memory(made.device):
            pytest.skip("this driver shares no memory by file descriptor")
        yield made


def test_an_applications_buffers_are_read_and_written_in_place(opened: InferenceSession, exporter: Exporter) -> None:
    memory = exporter.memory(4096)
    with opened.import_memory(memory.descriptor, memory.size) as imported:
        source, target = imported.tensor(X.shape), imported.tensor(X.shape, offset=X.nbytes)
        binding = opened.io_binding()
        binding.bind_input("x", source)
        binding.bind_output("y", target)
        for scale in (1, 5):
            memory.write(scale * X)  # the application writes its own memory
            opened.run_with_iobinding(binding)
            opened.context.timeline.wait()
            np.testing.assert_array_equal(memory.read(X.shape, X.nbytes), 2 * scale * X)
        np.testing.assert_array_equal(target.numpy(), 10 * X)
        source.write(-X)
        opened.context.timeline.wait()
        np.testing.assert_array_equal(memory.read(X.shape), -X)


def test_host_memory_is_read_and_written_in_place(opened: InferenceSession) -> None:
    device = opened.context.device
    if not can_import_memory(device, HOST_ALLOCATION):
        pytest.skip("this driver imports no host memory")
    size = 2 * max(host_alignment(device), 4096)
    array = np.frombuffer(mmap.mmap(-1, size), np.float32)
    with opened.import_memory(array) as imported:
        binding = opened.io_binding()
        binding.bind_input("x", imported.tensor(X.shape))
        binding.bind_output("y", imported.tensor(X.shape, offset=size // 2))
        array[:32] = X.reshape(-1)
        opened.run_with_iobinding(binding)
        opened.context.timeline.wait()
        np.testing.assert_array_equal(array[size // 8 :][:32], 2 * X.reshape(-1))


def test_a_write_waits_for_runs_on_other_tensors_in_the_memory(opened: InferenceSession) -> None:
    device = opened.context.device
    if not can_import_memory(device, HOST_ALLOCATION):
        pytest.skip("this driver imports no host memory")
    array = np.frombuffer(mmap.mmap(-1, max(host_alignment(device), 4096)), np.float32)
    with opened.import_memory(array) as imported, opened.empty_device_tensor(X.shape) as y:
        one, other = imported.tensor(X.shape), imported.tensor((8,), offset=X.nbytes // 2)
        binding = opened.io_binding()
        binding.bind_input("x", one)
        binding.bind_output("y", y)
        for _ in range(50):
            one.write(X)
            opened.run_with_iobinding(binding)
            other.write(np.zeros(8, np.float32))
            np.testing.assert_array_equal(y.numpy(), 2 * X)


def test_a_device_that_stages_makes_results_in_host_memory_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a discrete GPU: the application reads its own array, which no copy to the host comes before."""
    monkeypatch.setattr(VulkanDelegate, "unified", property(lambda self: False))
    with InferenceSession(MODEL, context_mode="disabled") as session:
        device = session.context.device
        if not can_import_memory(device, HOST_ALLOCATION):
            pytest.skip("this driver imports no host memory")
        size = max(host_alignment(device), 4096)
        array = np.frombuffer(mmap.mmap(-1, size), np.float32)
        with session.import_memory(array) as imported:
            binding = session.io_binding()
            binding.bind_cpu_input("x", X)
            binding.bind_output("y", imported.tensor(X.shape))
            session.run_with_iobinding(binding)
            session.context.timeline.wait()
            np.testing.assert_array_equal(array[:32], 2 * X.reshape(-1))
        [recording] = [r for island in session.islands() for r in island.runner.recordings]
        assert [key.run.visible for key in recording._commands._submits] == [True]


@pytest.mark.usefixtures("collected")
def test_the_descriptor_stays_the_callers(opened: InferenceSession, exporter: Exporter) -> None:
    memory = exporter.memory(256)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        imported = opened.import_memory(memory.descriptor, memory.size)
        tensor = imported.tensor((2,))
        imported.close()
        tensor.write(np.array([1, 2], np.float32))  # a tensor keeps the import
        np.testing.assert_array_equal(tensor.numpy(), [1, 2])
        tensor.close()
        opened.context.device.collect()
    assert os.fstat(memory.descriptor)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("collected")
def test_nothing_is_left_behind(exporter: Exporter) -> None:
    before = gpu_shared.live_counts()
    memory = exporter.memory(256)
    session = InferenceSession(MODEL, context_mode="disabled")
    imported = session.import_memory(memory.descriptor, memory.size)
    tensor = imported.tensor((4,))
    assert gpu_shared.live_counts()["imported buffer"] == 1
    session.close()  # before what was made with it
    imported.close()
    tensor.close()
    del session, imported, tensor
    assert gpu_shared.live_counts() == before


def test_what_cannot_be_imported(opened: InferenceSession, exporter: Exporter) -> None:
    memory = exporter.memory(1024)
    with pytest.raises(ValueError, match="-7 is no open file descriptor"):
        opened.import_memory(-7, 1024)
    with pytest.raises(TypeError, match="size, the bytes of the whole allocation, is missing"):
        opened.import_memory(memory.descriptor)  # type: ignore[call-overload]
    with pytest.raises(GpuError, match="size and type must be"):
        opened.import_memory(memory.descriptor, memory.size + (64 << 20))
    with pytest.raises(ValueError, match="contiguous and writable"):
        opened.import_memory(np.zeros((4, 4), np.float32)[:, ::2])
    with pytest.raises(ValueError, match="must be multiples of"):
        opened.import_memory(np.zeros(100, np.float32))
    with opened.import_memory(memory.descriptor, memory.size) as imported:
        with pytest.raises(ValueError, match="but the imported memory holds 1024"):
            imported.tensor((200, 2))
        with pytest.raises(ValueError, match="starts at byte 4; kernels need multiples of 16"):
            imported.tensor((4,), offset=4)
        with pytest.raises(TypeError, match="dtype is 'text'"):
            imported.tensor((4,), "text")
    with pytest.raises(gpu_shared.ClosedError):
        imported.tensor((4,))


def test_a_semaphore_of_another_device(opened: InferenceSession, exporter: Exporter) -> None:
    context = opened.context
    if not can_import_semaphore(context.device):
        with pytest.raises(ContextIncompatibleError, match="VK_KHR_external_semaphore_fd"):
            opened.import_semaphore(0)
        pytest.skip("this driver shares no timeline semaphores by file descriptor")
    raw, descriptor = exporter.semaphore()
    semaphore = opened.import_semaphore(descriptor)
    source, target = opened.device_tensor(X), opened.empty_device_tensor(X.shape)
    binding = opened.io_binding()
    binding.bind_input("x", source)
    binding.bind_output("y", target)
    done = context.timeline.submitted
    semaphore.wait(7)
    opened.run_with_iobinding(binding)
    semaphore.signal(8)
    with pytest.raises(TimeoutError):
        context.timeline.wait(done + 1, timeout_s=0.05)
    exporter.signal(raw, 7)
    context.timeline.wait()
    assert exporter.counter(raw) == 8
    np.testing.assert_array_equal(target.numpy(), 2 * X)
    semaphore.close()


def test_the_queue_waits_for_and_signals_another_semaphore(own_context: SharedGpuContext) -> None:
    """The order itself, with a semaphore of the same device, which every driver has."""
    device, vk = own_context.device, gpu_shared.vk
    kind = vk.make("VkSemaphoreTypeCreateInfo", semaphoreType=vk.VK_SEMAPHORE_TYPE_TIMELINE)
    out = vk.out("VkSemaphore")
    info = vk.make("VkSemaphoreCreateInfo", pNext=kind)
    vk.check(device.fn.vkCreateSemaphore(device.raw, info.ptr, vk.ffi.NULL, out), "vkCreateSemaphore")
    raw, device_raw, fn = out[0], device.raw, device.fn
    end = lambda: fn.vkDestroySemaphore(device_raw, raw, vk.ffi.NULL)  # noqa: E731
    other = Handle(raw, parent=device, destroy=end, label="other", reaper=device.reaper)
    timeline = own_context.timeline
    waiting = timeline.enqueue(other, wait=3)
    after = timeline.enqueue(other, signal=5)
    with pytest.raises(TimeoutError):
        timeline.wait(waiting, timeout_s=0.05)
    assert timeline.completed < waiting
    signal = vk.make("VkSemaphoreSignalInfo", semaphore=raw, value=3)
    vk.check(fn.vkSignalSemaphore(device_raw, signal.ptr), "vkSignalSemaphore")
    timeline.wait(after)
    value = vk.out("uint64_t")
    vk.check(fn.vkGetSemaphoreCounterValue(device_raw, raw, value), "vkGetSemaphoreCounterValue")
    assert value[0] == 5
    other.close()
