"""Devices, buffers, pipelines, commands on the machine's driver, with the validation layers watching."""

from __future__ import annotations

import json
import logging
import struct
from typing import Any

import numpy as np
import pytest

import gpu_shared
from gpu_shared import (
    Buffer,
    ComputePipeline,
    Device,
    Instance,
    PipelineCache,
    PipelineLayout,
    PreparedSubmit,
    QueryPool,
    ShaderModule,
    Timeline,
    vk,
)
from gpu_shared.capabilities import DeviceCapabilities, DeviceInfo
from gpu_shared.commands import CommandPool
from gpu_shared.errors import (
    ContextIncompatibleError,
    DeviceLostError,
    DeviceNotFoundError,
    GpuError,
    OutOfDeviceMemoryError,
)
from gpu_shared.memory import memory_budget


def has_validation_layer() -> Any:
    layers = vk.enumerate_all(vk.lib.vkEnumerateInstanceLayerProperties, (), "VkLayerProperties", "enumerate")
    return any(vk.text(layer.layerName) == "VK_LAYER_KHRONOS_validation" for layer in layers)


def add_on(device: Any, spirv: Any, addend: Any, count: int = 1000) -> Any:
    """Run the add shader through upload, device and download memory; returns the result."""
    timeline, pool, queries = Timeline(device), CommandPool(device), QueryPool(device, 2)
    size = 4 * count
    upload, there, download = Buffer(device, size, "upload"), Buffer(device, size), Buffer(device, size, "download")
    assert upload.mapped is not None and download.mapped is not None
    np.frombuffer(upload.mapped, np.int32)[:] = np.arange(count)
    layout = PipelineLayout(device, 20)
    cache = PipelineCache(device)
    pipeline = ComputePipeline(
        device, layout, ShaderModule(device, spirv), {1: 64, 4: addend}, cache=cache, label="add pipeline"
    )
    commands = pool.allocate().begin()
    commands.reset_query_pool(queries)
    commands.write_timestamp(queries, 0)
    commands.copy_buffer(upload, there, size)
    commands.barrier_after_transfer()
    commands.bind_pipeline(pipeline)
    for source, target in ((there, there), (there, download)):
        commands.push_constants(layout, struct.pack("<QQI", source.address, target.address, count))
        commands.dispatch(-(-count // 64))
        commands.memory_barrier()
    commands.barrier_to_host()
    commands.write_timestamp(queries, 1)
    commands.end()
    value = PreparedSubmit(timeline, [commands]).submit()
    timeline.wait(value, timeout_s=120)
    assert timeline.completed == value == 1
    begin, end = queries.results()
    assert queries.nanoseconds(begin, end) > 0
    download.invalidate()
    return np.frombuffer(download.mapped, np.int32).copy()


def test_compute_with_validation_is_right_and_silent(gpu: Any, add_spirv: Any, no_leaks: Any) -> None:
    if not has_validation_layer():
        pytest.skip("the Khronos validation layer is not installed (Debian: vulkan-validationlayers)")
    with Instance("test", validation=True) as instance:
        result = add_on(Device(instance, gpu), add_spirv, -5)
        assert (result == np.arange(1000) - 10).all()
        messages = instance.messages
    assert messages == []


def test_validation_messages_are_collected_and_logged(
    gpu: Any, no_leaks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if not has_validation_layer():
        pytest.skip("the Khronos validation layer is not installed (Debian: vulkan-validationlayers)")
    known = len(gpu_shared.validation_log)
    with Instance("test", validation=True) as instance, caplog.at_level(logging.WARNING, "gpu_shared.validation"):
        device = Device(instance, gpu)
        info = vk.make("VkBufferCreateInfo", size=0, usage=0x20)  # VUID-VkBufferCreateInfo-size-00912
        out = vk.out("VkBuffer")
        if device.fn.vkCreateBuffer(device.raw, info.ptr, vk.ffi.NULL, out) == 0:
            device.fn.vkDestroyBuffer(device.raw, out[0], vk.ffi.NULL)
        assert any("size-00912" in m.message_id for m in instance.messages)
        assert "size-00912" in caplog.text
    assert all(m.severity == "error" for m in gpu_shared.validation_log[known:])
    del gpu_shared.validation_log[known:]  # provoked: the whole suite's log stays clean


def test_validation_variable(monkeypatch: pytest.MonkeyPatch, gpu: Any, no_leaks: Any) -> None:
    monkeypatch.setenv("VKEP_VALIDATION", "maybe")
    with pytest.raises(ValueError, match=r"VKEP_VALIDATION.*'maybe'"):
        Instance("test")
    monkeypatch.setenv("VKEP_VALIDATION", "0")
    with Instance("test") as instance:
        assert not instance.validation


def test_capabilities_of_the_real_device(gpu: Any, device: Any) -> None:
    capabilities = device.capabilities
    assert capabilities.name == gpu.name
    assert len(capabilities.uuid) == 32
    assert capabilities.api_version >= (1, 3, 0)
    assert capabilities.subgroup_size & (capabilities.subgroup_size - 1) == 0
    assert capabilities.min_subgroup_size <= capabilities.subgroup_size <= capabilities.max_subgroup_size
    assert capabilities.max_push_constants_size >= 128
    assert capabilities.device_local_bytes > 0
    assert capabilities.has("buffer_device_address", "timeline_semaphore")
    assert capabilities.extensions <= gpu.capabilities.extensions
    assert json.loads(capabilities.to_json())["name"] == capabilities.name
    assert capabilities.name in str(capabilities)


def info(index: Any, name: Any, kind: Any, problems: Any = ()) -> Any:
    uuid = f"{index:032x}"
    return DeviceInfo(DeviceCapabilities.for_tests(name=name, device_type=kind, index=index, uuid=uuid), problems)


def test_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VKEP_DEVICE", raising=False)
    there = [
        info(0, "llvmpipe", "cpu"),
        info(1, "Old card", "discrete", ("misses int64",)),
        info(2, "Laptop GPU", "integrated"),
        info(3, "Big GPU", "discrete"),
    ]
    choose = gpu_shared.select_device
    assert choose(there).index == 3
    assert choose(there[:3]).index == 2
    assert choose(there, 0).index == 0
    assert choose(there, "2").index == 2
    assert choose(there, "LLVM").index == 0
    assert choose(there, "gpu").index == 3
    assert choose(there, "00000000-0000-0000-0000-000000000002").index == 2
    assert choose(there, there[0]).index == 0
    monkeypatch.setenv("VKEP_DEVICE", "llvmpipe")
    assert choose(there).index == 0
    assert choose(there, 2).index == 2
    monkeypatch.setenv("VKEP_DEVICE", "radeon")
    with pytest.raises(DeviceNotFoundError, match=r"VKEP_DEVICE 'radeon'.*0: llvmpipe.*not usable: misses int64"):
        choose(there)
    with pytest.raises(DeviceNotFoundError, match="9"):
        choose(there, 9)
    with pytest.raises(DeviceNotFoundError, match="Old card"):
        choose(there, "Old")
    with pytest.raises(TypeError, match="expected an index"):
        choose(there, 1.5)  # type: ignore[arg-type]


def test_an_extension_that_is_not_there_is_named(gpu: Any, no_leaks: Any) -> None:
    with Instance("test") as instance:
        with pytest.raises(ContextIncompatibleError, match="VK_XX_none") as caught:
            Device(instance, gpu, extensions=["VK_XX_none"])
        assert caught.value.extensions == ("VK_XX_none",)
        with pytest.raises(DeviceNotFoundError, match="families"):
            Device(instance, gpu, queue_family=99)


def test_a_layer_that_is_not_there_is_named(gpu: Any, no_leaks: Any) -> None:
    with pytest.raises(GpuError, match="VK_LAYER_XX_none"):
        Instance("test", layers=["VK_LAYER_XX_none"])
    with pytest.raises(GpuError, match="VK_XX_none"):
        Instance("test", extensions=["VK_XX_none"])


def test_buffers(device: Any) -> None:
    for kind in ("device", "upload", "download"):
        buffer = Buffer(device, 1000, kind, label=f"a {kind} buffer")
        assert buffer.size == 1000
        assert buffer.address > 0
        if kind != "device" or device.capabilities.host_visible_device_local:
            assert buffer.mapped is not None and buffer.mapped.nbytes == 1000
            assert not buffer.mapped.readonly
            buffer.flush()
            buffer.invalidate()
    with pytest.raises(ValueError, match="at least 1"):
        Buffer(device, 0)
    with pytest.raises(ValueError, match="memory_kind"):
        Buffer(device, 4, "fast")
    with pytest.raises(TypeError, match="size"):
        Buffer(device, 4.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="size"):
        Buffer(device, True)
    assert Buffer(device, np.int64(64)).size == 64


def test_out_of_memory_says_what_was_asked_and_leaves_the_device_usable(device: Any) -> None:
    with pytest.raises(OutOfDeviceMemoryError, match=str(2**50)) as caught:
        Buffer(device, 2**50, label="huge")
    assert caught.value.asked == 2**50
    assert "huge" in str(caught.value)
    device.fn.vkAllocateMemory = lambda *arguments: -2
    with pytest.raises(OutOfDeviceMemoryError, match=r"heap \d.*budget") as caught:
        Buffer(device, 4096, label="small")
    assert caught.value.result == "VK_ERROR_OUT_OF_DEVICE_MEMORY"
    assert caught.value.budget > 0
    del device.fn.vkAllocateMemory
    assert Buffer(device, 4096).size == 4096


def test_memory_budget(device: Any) -> None:
    heaps = memory_budget(device)
    assert len(heaps) == len(device.capabilities.memory_heaps)
    for heap in heaps:
        assert 0 < heap.budget <= heap.size
        assert heap.exact == ("VK_EXT_memory_budget" in device.extensions)


def test_pipeline_arguments_are_checked(device: Any, add_spirv: Any) -> None:
    with pytest.raises(ValueError, match="no SPIR-V"):
        ShaderModule(device, b"#version 460 void main(){}")
    with pytest.raises(TypeError, match="expected bytes"):
        ShaderModule(device, "text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="multiple of 4"):
        PipelineLayout(device, 7)
    with pytest.raises(ValueError, match="push_bytes is 1048576"):
        PipelineLayout(device, 1 << 20)
    layout, module = PipelineLayout(device, 20), ShaderModule(device, add_spirv)
    with pytest.raises(ValueError, match="32-bit"):
        ComputePipeline(device, layout, module, {1: 2**32})
    with pytest.raises(ValueError, match="power of two"):
        ComputePipeline(device, layout, module, {1: 8}, required_subgroup_size=3)
    sized = ComputePipeline(
        device, layout, module, {1: 64}, required_subgroup_size=device.capabilities.max_subgroup_size
    )
    assert sized.raw


def test_pipeline_cache_takes_its_own_data_and_ignores_others(device: Any, add_spirv: Any) -> None:
    layout, module, cache = PipelineLayout(device, 20), ShaderModule(device, add_spirv), PipelineCache(device)
    ComputePipeline(device, layout, module, {1: 8}, cache=cache)
    data = cache.data()
    assert PipelineCache.compatible(device, data)
    assert PipelineCache(device, data).data()[:32] == data[:32]
    assert not PipelineCache.compatible(device, b"short")
    foreign = data[:16] + bytes(16) + data[32:]
    assert not PipelineCache.compatible(device, foreign)
    assert PipelineCache(device, foreign).raw


def test_recording_is_checked(device: Any, add_spirv: Any) -> None:
    layout = PipelineLayout(device, 20)
    pipeline = ComputePipeline(device, layout, ShaderModule(device, add_spirv), {1: 8})
    commands = CommandPool(device).allocate()
    with pytest.raises(ValueError, match="begin"):
        commands.bind_pipeline(pipeline)
    commands.begin()
    with pytest.raises(ValueError, match="before bind_pipeline"):
        commands.dispatch(1)
    commands.bind_pipeline(pipeline)
    with pytest.raises(ValueError, match="grid"):
        commands.dispatch(device.capabilities.max_workgroup_count[0] + 1)
    with pytest.raises(ValueError, match="push constants"):
        commands.push_constants(layout, bytes(24))
    with pytest.raises(ValueError, match="push constants"):
        commands.push_constants(layout, bytes(3))
    small = Buffer(device, 16)
    with pytest.raises(ValueError, match="outside"):
        commands.copy_buffer(small, small, 32)
    commands.end()
    with pytest.raises(ValueError, match="not recording"):
        commands.dispatch(1)


def test_fill_and_host_reads(device: Any) -> None:
    timeline, pool = Timeline(device), CommandPool(device)
    buffer = Buffer(device, 64, "download")
    commands = pool.allocate().begin()
    commands.fill_buffer(buffer, 0xFFFFFFFF)
    commands.barrier_all()
    commands.fill_buffer(buffer, 7, offset=16, size=8)
    commands.barrier_to_host()
    commands.end()
    timeline.wait(PreparedSubmit(timeline, [commands]).submit())
    buffer.invalidate()
    assert buffer.mapped is not None
    assert list(np.frombuffer(buffer.mapped, np.uint32)) == [2**32 - 1] * 4 + [7] * 2 + [2**32 - 1] * 10


def test_structures_keep_nested_parts_alive() -> None:
    for _ in range(50):
        made = vk.make(
            "VkDeviceCreateInfo",
            queueCreateInfoCount=2,
            pQueueCreateInfos=[
                vk.make("VkDeviceQueueCreateInfo", queueCount=1, pQueuePriorities=[0.25]),
                vk.make("VkDeviceQueueCreateInfo", queueCount=2, pQueuePriorities=[0.5, 0.75]),
            ],
            ppEnabledExtensionNames=["VK_a", "VK_b"],
        )
        [bytes(1000) for _ in range(10)]
        assert made.pQueueCreateInfos[1].pQueuePriorities[1] == 0.75
        assert made.pQueueCreateInfos[0].pQueuePriorities[0] == 0.25
        assert [vk.text(made.ppEnabledExtensionNames[i]) for i in (0, 1)] == ["VK_a", "VK_b"]
    with pytest.raises(TypeError, match="no field 'sizes'"):
        vk.make("VkBufferCreateInfo", sizes=1)
    with pytest.raises(ValueError, match="null"):
        vk.handle("VkDevice", 0)


def test_results_become_exceptions() -> None:
    assert vk.check(0, "call") == 0
    assert vk.check(2, "call") == 2
    for result, kind in ((-4, DeviceLostError), (-2, OutOfDeviceMemoryError), (-3, GpuError)):
        with pytest.raises(kind, match="vkThing returned VK_ERROR") as caught:
            vk.check(result, "vkThing", "my object")
        assert "my object" in str(caught.value)
        assert type(caught.value) is kind


def test_enumeration_owns_its_items() -> None:
    def enumerate_numbers(count: Any, items: Any) -> None:
        if items == vk.ffi.NULL:
            count[0] = 3
        else:
            count[0] = 2  # fewer by the second call
            items[0], items[1] = 5, 6

    found = vk.enumerate_all(enumerate_numbers, (), "uint32_t", "enumerating")
    [bytearray(64) for _ in range(1000)]
    assert list(found) == [5, 6]
    assert vk.ffi.sizeof(found) == 8
