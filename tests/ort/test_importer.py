"""The external resource importer and graphics interop, through ONNX Runtime's own interop interface."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gpu_shared
from gpu_shared import SharedGpuContext
from gpu_shared.external import can_import_memory, can_import_semaphore, host_alignment
from tests.ort.conftest import OpenSession, device_of, graph
from tests.ort.interop_api import HOST_ALLOCATION, OPAQUE_FD, TIMELINE_FD, Interop, Refused
from tests.registry.exporter import Exporter

MODEL = graph("g (float[4,8] x) => (float[4,8] y) { y = Add(x, x) }")
X = np.arange(32, dtype=np.float32).reshape(4, 8)
Bind = Callable[..., Any]


@pytest.fixture
def interop(registered: Any) -> Iterator[Interop]:
    made = Interop(registered.EP_NAME)
    yield made
    made.close()


@pytest.fixture
def importer(interop: Interop) -> Iterator[Any]:
    made = interop.make("CreateImporter", interop.device)
    assert made
    yield made
    interop.release("ReleaseImporter", made)


@pytest.fixture
def exporter(vulkan: Any) -> Iterator[Exporter]:
    with Exporter() as made:
        if not can_import_memory(made.device):
            pytest.skip("this driver shares no memory by file descriptor")
        yield made


@pytest.fixture
def bound(session: OpenSession, registered: Any) -> Bind:
    """A session bound to memory at two addresses."""
    import onnxruntime

    device = onnxruntime.OrtDevice.make("gpu", 0, vendor_id=device_of(registered).device.vendor_id)._get_c_device()

    def bind(source: int, target: int, **options: Any) -> Callable[[], None]:
        made = session(MODEL, **options)
        binding = made.io_binding()
        binding._iobinding.bind_input("x", device, np.float32, X.shape, source)
        binding._iobinding.bind_output("y", device, np.float32, X.shape, target)
        return lambda: made.run_with_iobinding(binding)

    return bind


def test_an_applications_memory_is_read_and_written_without_a_copy(
    interop: Interop, importer: Any, exporter: Exporter, bound: Bind, copies: list[str]
) -> None:
    assert interop.can("CanImportMemory", importer, OPAQUE_FD)
    exported = exporter.memory(1024)
    memory = interop.import_memory(importer, OPAQUE_FD, exported.descriptor, exported.size, 256)
    source = interop.tensor(importer, memory, X.shape)
    target = interop.tensor(importer, memory, X.shape, 128)
    assert interop.address(target) - interop.address(source) == 128
    run = bound(interop.address(source), interop.address(target))
    copies.clear()
    for scale in (1, 3):
        exported.write(scale * X, 256)
        run()
        np.testing.assert_array_equal(exported.read(X.shape, 256 + 128), 2 * scale * X)
    assert copies == []
    interop.release("ReleaseValue", source)
    interop.release("ReleaseValue", target)
    interop.release("ReleaseMemory", memory)


def test_host_memory(interop: Interop, importer: Any, bound: Bind) -> None:
    if not interop.can("CanImportMemory", importer, HOST_ALLOCATION):
        pytest.skip("this driver imports no host memory")
    from vkep.ort.boundary import live

    size = max(4096, host_alignment(live("OrtExternalResourceImporterImpl")[-1]._domain.context.device))
    array = np.frombuffer(mmap.mmap(-1, size), np.float32)
    memory = interop.import_memory(importer, HOST_ALLOCATION, array.ctypes.data, size)
    values = [interop.tensor(importer, memory, X.shape, offset) for offset in (0, 512)]
    array[:32] = X.reshape(-1)
    bound(*map(interop.address, values))()
    np.testing.assert_array_equal(array[128:160], 2 * X.reshape(-1))
    for value in values:
        interop.release("ReleaseValue", value)
    interop.release("ReleaseMemory", memory)


def test_a_handle_outlives_its_importer_and_nothing_stays(interop: Interop, exporter: Exporter) -> None:
    gc.collect()
    before = gpu_shared.live_counts()
    importer = interop.make("CreateImporter", interop.device)
    exported = exporter.memory(256)
    memory = interop.import_memory(importer, OPAQUE_FD, exported.descriptor, exported.size)
    interop.release("ReleaseImporter", importer)
    assert gpu_shared.live_counts()["imported buffer"] == 1
    interop.release("ReleaseMemory", memory)
    gc.collect()
    assert "imported buffer" not in gpu_shared.live_counts()
    assert gpu_shared.live_counts() == before


def test_impossible_options_are_refused(interop: Interop, importer: Any, exporter: Exporter) -> None:
    assert not any(interop.can("CanImportMemory", importer, kind) for kind in (0, 1, 2, 9))
    assert not any(interop.can("CanImportSemaphore", importer, kind) for kind in (0, 1, 9))
    with pytest.raises(Refused, match="imports no memory of OrtExternalMemoryHandleType 0"):
        interop.import_memory(importer, 0, 1, 4096)
    exported = exporter.memory(1024)
    with pytest.raises(Refused, match="is no open file descriptor"):
        interop.import_memory(importer, OPAQUE_FD, 54321, 4096)
    with pytest.raises(Refused, match="offset_bytes is 1024"):
        interop.import_memory(importer, OPAQUE_FD, exported.descriptor, 1024, 1024)
    memory = interop.import_memory(importer, OPAQUE_FD, exported.descriptor, exported.size, 512)
    with pytest.raises(Refused, match="the imported memory holds 1024"):
        interop.tensor(importer, memory, (129,))
    with pytest.raises(Refused, match="kernels need multiples of 16"):
        interop.tensor(importer, memory, (4,), 4)
    with pytest.raises(Refused, match="negative dimension"):
        interop.tensor(importer, memory, (-1, 4))
    with pytest.raises(Refused, match="cannot lie in imported memory"):
        interop.tensor(importer, memory, (4,), element=8)
    interop.release("ReleaseMemory", memory)


def test_freed_memory_is_no_longer_known(interop: Interop, importer: Any, exporter: Exporter, bound: Bind) -> None:
    exported = exporter.memory(256)
    memory = interop.import_memory(importer, OPAQUE_FD, exported.descriptor, exported.size)
    value = interop.tensor(importer, memory, X.shape)
    run = bound(interop.address(value), interop.address(value), token="another")
    with pytest.raises(RuntimeError, match="lies on the context default:0, and this session runs on another:0"):
        run()
    from vkep.ort.memory.domain import domain_of

    pointer = interop.address(value)
    domain = domain_of(pointer)
    assert domain.find(pointer)[1] == 0
    interop.release("ReleaseValue", value)
    interop.release("ReleaseMemory", memory)
    with pytest.raises(ValueError, match="lies in no block"):
        domain.find(pointer)


def test_semaphores_order_a_run(interop: Interop, importer: Any, exporter: Exporter, bound: Bind, on_gpu: Any) -> None:
    if not can_import_semaphore(exporter.device):
        assert not interop.can("CanImportSemaphore", importer, TIMELINE_FD)
        with pytest.raises(Refused, match="imports no semaphore of OrtExternalSemaphoreType 2"):
            interop.import_semaphore(importer, 0)
        pytest.skip("this driver shares no timeline semaphores by file descriptor")
    raw, descriptor = exporter.semaphore()
    semaphore = interop.import_semaphore(importer, descriptor)
    _order(interop, importer, semaphore, lambda: exporter.signal(raw, 4), lambda: exporter.counter(raw), bound, on_gpu)
    interop.release("ReleaseSemaphore", semaphore)


def test_the_order_itself_with_a_semaphore_of_the_same_device(
    interop: Interop, importer: Any, bound: Bind, on_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a driver without shared semaphores can show: all but the import of the descriptor."""
    from gpu_shared import Timeline, vk
    from vkep.ort.memory import importer as module

    monkeypatch.setattr(module, "can_import_semaphore", lambda _device: True)
    monkeypatch.setattr(module, "ImportedSemaphore", lambda device, _descriptor: Timeline(device, label="application"))
    semaphore = interop.import_semaphore(importer, 3)
    from vkep.ort.boundary import live

    mine = live("OrtExternalSemaphoreHandle")[-1].semaphore
    device = mine.device

    def signal() -> None:
        info = vk.make("VkSemaphoreSignalInfo", semaphore=mine.raw, value=4)
        vk.check(device.fn.vkSignalSemaphore(device.raw, info.ptr), "vkSignalSemaphore")

    def counter() -> int:
        out = vk.out("uint64_t")
        vk.check(device.fn.vkGetSemaphoreCounterValue(device.raw, mine.raw, out), "counter")
        return int(out[0])

    _order(interop, importer, semaphore, signal, counter, bound, on_gpu)
    interop.release("ReleaseSemaphore", semaphore)


def _order(
    interop: Interop, importer: Any, semaphore: Any, signal: Any, counter: Any, bound: Bind, on_gpu: Any
) -> None:
    """Wait for 4, run, signal 5: nothing runs before the application's signal, and 5 comes after the run."""
    import threading

    source, target = on_gpu(X), on_gpu(np.zeros_like(X))
    run = bound(source.data_ptr(), target.data_ptr())
    stream = interop.stream()
    interop.call("WaitSemaphore", importer, semaphore, stream, 4)
    interop.call("SignalSemaphore", importer, semaphore, stream, 5)
    thread = threading.Thread(target=run)  # its end waits for the queue
    thread.start()
    thread.join(0.2)
    assert thread.is_alive() and counter() == 0
    signal()
    thread.join(120)
    assert not thread.is_alive() and counter() == 5
    np.testing.assert_array_equal(target.numpy(), 2 * X)
    with pytest.raises(Refused, match="stream"):
        interop.call("WaitSemaphore", importer, semaphore, interop_null(), 9)
    interop.release("ReleaseSyncStream", stream)


def interop_null() -> Any:
    from tests.ort.interop_api import ffi

    return ffi.NULL


# ---- graphics interop


@pytest.fixture
def application(vulkan: Any) -> Iterator[Any]:
    """An application's device, which outlives the sessions on it."""
    with SharedGpuContext.create(app_name="application") as context:
        yield context.device


def test_sessions_run_on_the_applications_own_device(interop: Interop, application: Any, session: OpenSession) -> None:
    from vkep.ort.boundary import live

    interop.init(
        queue=gpu_shared.vk.number(application.queue),
        instance=hex(application.instance.raw_int),
        physical_device=gpu_shared.vk.number(application.physical_device),
        device=application.raw_int,
        queue_family=application.queue_family,
        extensions=",".join(application.extensions),
        features=",".join(application.features),
        token="the application's",
    )
    try:
        with pytest.raises(Refused, match="initialised already"):
            interop.init()
        made = session(MODEL)
        np.testing.assert_array_equal(made.run(None, {"x": X})[0], 2 * X)
        context = live("OrtEp")[-1].runtime.context
        assert context.key == ("the application's", 0)
        assert context.device.raw_int == application.raw_int
        session(MODEL, token="its own")
        assert live("OrtEp")[-1].runtime.context.device.raw_int != application.raw_int
    finally:
        interop.deinit()
    np.testing.assert_array_equal(made.run(None, {"x": X})[0], 2 * X)  # who uses it ends first
    session(MODEL)
    assert live("OrtEp")[-1].runtime.context.device.raw_int != application.raw_int


def test_graphics_interop_that_cannot_be(interop: Interop) -> None:
    with pytest.raises(Refused, match="works with Vulkan"):
        interop.init(graphics_api=1)
    with pytest.raises(Refused, match="unknown graphics interop option 'colour'"):
        interop.init(colour="red")
    with pytest.raises(
        Refused, match="instance, physical_device, queue_family, extensions, features, command_queue are"
    ):
        interop.init(device=1)
    with pytest.raises(Refused, match="'group_id' is 'many', expected a number"):
        interop.init(group_id="many")
    with pytest.raises(Refused, match="is not initialised for"):
        interop.deinit()


def test_a_token_for_all_that_has_no_session(interop: Interop, session: OpenSession, on_gpu: Any) -> None:
    from vkep.ort.boundary import live

    interop.init(token="scene", group_id=3)
    try:
        importer = interop.make("CreateImporter", interop.device)
        made = session(MODEL)
        keys = {live("OrtEp")[-1].runtime.context.key}
        keys.add(live("OrtExternalResourceImporterImpl")[-1]._domain.context.key)
        assert keys == {("scene", 3)}
        del made
        interop.release("ReleaseImporter", importer)
    finally:
        interop.deinit()
