"""Queries the driver: a physical device's properties, limits, features, memory and queues, as `DeviceCapabilities`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any

from gpu_shared import vk
from gpu_shared.capabilities import (
    FEATURE_NAMES,
    REQUIRED_FEATURES,
    CooperativeMatrixShape,
    DeviceCapabilities,
    MemoryHeap,
    QueueFamily,
)

WITHOUT_VARIABLE = "VKEP_WITHOUT"
API_1_2 = (1, 2, 0)
API_1_3 = (1, 3, 0)

#: feature structure -> (its requirement: an API version or an extension, {Vulkan field: our name})
FEATURE_STRUCTS: dict[str, tuple[tuple[int, int, int] | str, dict[str, str]]] = {
    "VkPhysicalDeviceVulkan11Features": (API_1_2, {"storageBuffer16BitAccess": "storage_16bit"}),
    "VkPhysicalDeviceVulkan12Features": (
        API_1_2,
        {
            "storageBuffer8BitAccess": "storage_8bit",
            "shaderFloat16": "float16",
            "shaderInt8": "int8",
            "bufferDeviceAddress": "buffer_device_address",
            "timelineSemaphore": "timeline_semaphore",
            "scalarBlockLayout": "scalar_block_layout",
            "hostQueryReset": "host_query_reset",
            "vulkanMemoryModel": "vulkan_memory_model",
            "vulkanMemoryModelDeviceScope": "vulkan_memory_model_device_scope",
            "shaderSubgroupExtendedTypes": "subgroup_extended_types",
        },
    ),
    "VkPhysicalDeviceVulkan13Features": (
        API_1_3,
        {
            "subgroupSizeControl": "subgroup_size_control",
            "computeFullSubgroups": "compute_full_subgroups",
            "synchronization2": "synchronization2",
            "maintenance4": "maintenance4",
            "shaderIntegerDotProduct": "integer_dot_product",
        },
    ),
    "VkPhysicalDeviceCooperativeMatrixFeaturesKHR": (
        "VK_KHR_cooperative_matrix",
        {"cooperativeMatrix": "cooperative_matrix"},
    ),
    "VkPhysicalDeviceShaderBfloat16FeaturesKHR": (
        "VK_KHR_shader_bfloat16",
        {
            "shaderBFloat16Type": "bfloat16",
            "shaderBFloat16DotProduct": "bfloat16_dot_product",
            "shaderBFloat16CooperativeMatrix": "bfloat16_cooperative_matrix",
        },
    ),
    "VkPhysicalDeviceTensorFeaturesARM": (
        "VK_ARM_tensors",
        {
            "tensors": "tensors",
            "shaderTensorAccess": "shader_tensor_access",
            "tensorNonPacked": "tensor_non_packed",
        },
    ),
}
#: fields of VkPhysicalDeviceFeatures
CORE_FEATURES = {"shaderFloat64": "float64", "shaderInt64": "int64", "shaderInt16": "int16"}
#: extension -> its structure of properties, and the fields whose product is the number of cores
CORE_COUNTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "VK_NV_shader_sm_builtins": ("VkPhysicalDeviceShaderSMBuiltinsPropertiesNV", ("shaderSMCount",)),
    "VK_ARM_shader_core_builtins": ("VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM", ("shaderCoreCount",)),
    "VK_AMD_shader_core_properties2": ("VkPhysicalDeviceShaderCoreProperties2AMD", ("activeComputeUnitCount",)),
    "VK_AMD_shader_core_properties": (
        "VkPhysicalDeviceShaderCorePropertiesAMD",
        ("shaderEngineCount", "shaderArraysPerEngineCount", "computeUnitsPerShaderArray"),
    ),
}
#: features that a device has without enabling them
PROPERTY_FEATURES = frozenset({"subgroup_arithmetic", "subgroup_ballot", "subgroup_shuffle"})
#: extensions that are enabled where the device has them
WANTED_EXTENSIONS = (
    "VK_KHR_cooperative_matrix",
    "VK_KHR_shader_bfloat16",
    "VK_EXT_memory_budget",
    "VK_KHR_external_memory_fd",
    "VK_EXT_external_memory_host",
    "VK_KHR_external_semaphore_fd",
    "VK_KHR_calibrated_timestamps",
)

_DEVICE_TYPES = {0: "other", 1: "integrated", 2: "discrete", 3: "virtual", 4: "cpu"}
_QUEUE_BITS = {
    0x1: "graphics",
    0x2: "compute",
    0x4: "transfer",
    0x8: "sparse_binding",
    0x10: "protected",
    vk.QUEUE_DATA_GRAPH_ARM: "data_graph",
}
_SUBGROUP_OPERATIONS = {0x4: "subgroup_arithmetic", 0x8: "subgroup_ballot", 0x10: "subgroup_shuffle"}


def feature_names(names: Iterable[str]) -> frozenset[str]:
    """Our names for a mix of ours and Vulkan's field names (``shaderFloat16``); Vulkan features without a name here are
    left out. Raises ``TypeError`` for a single string."""
    if isinstance(names, str):
        raise TypeError(f"features is the text {names!r}, expected a collection of names")
    vulkan_names = dict(CORE_FEATURES)
    for _, fields in FEATURE_STRUCTS.values():
        vulkan_names.update(fields)
    return frozenset(vulkan_names.get(name, name) for name in names) & FEATURE_NAMES


def switched_off() -> frozenset[str]:
    """Features that the environment variable VKEP_WITHOUT (names with commas between) disables on every device.

    Raises ``ValueError`` for a name that is not a feature, or one of a feature that every device needs.
    """
    names = frozenset(name.strip() for name in os.environ.get(WITHOUT_VARIABLE, "").split(",")) - {""}
    optional = FEATURE_NAMES - REQUIRED_FEATURES
    if not names <= optional:
        raise ValueError(
            f"{WITHOUT_VARIABLE} names {', '.join(sorted(names - optional))}; it may name {', '.join(sorted(optional))}"
        )
    return names


def version(number: int) -> tuple[int, int, int]:
    """(major, minor, patch) of a packed Vulkan version."""
    return (number >> 22 & 0x7F, number >> 12 & 0x3FF, number & 0xFFF)


def device_extensions(physical: Any) -> frozenset[str]:
    """Names of the extensions that the physical device offers (without those of layers)."""
    found = vk.enumerate_all(
        vk.lib.vkEnumerateDeviceExtensionProperties,
        (physical, vk.ffi.NULL),
        "VkExtensionProperties",
        "vkEnumerateDeviceExtensionProperties",
    )
    return frozenset(vk.text(item.extensionName) for item in found)


def feature_chain(
    api: tuple[int, int, int], extensions: frozenset[str], only: frozenset[str] | None = None
) -> tuple[vk.Struct, dict[str, vk.Struct]]:
    """A VkPhysicalDeviceFeatures2 chain of all structures that a device of this version with these extensions supports,
    and its parts by name. With ``only``, those features are set to true.
    """
    parts: dict[str, vk.Struct] = {"VkPhysicalDeviceFeatures2": vk.make("VkPhysicalDeviceFeatures2")}
    for struct, (need, _) in FEATURE_STRUCTS.items():
        if need <= api if isinstance(need, tuple) else need in extensions:
            parts[struct] = vk.make(struct)
    if only is not None:
        for owner, field, name in _fields(parts):
            if name in only:
                setattr(owner, field, 1)
    return vk.chain(*parts.values()), parts


def _fields(parts: dict[str, vk.Struct]) -> Iterable[tuple[Any, str, str]]:
    core = parts["VkPhysicalDeviceFeatures2"].ptr.features
    yield from ((core, field, name) for field, name in CORE_FEATURES.items())
    for struct, part in parts.items():
        if struct in FEATURE_STRUCTS:
            yield from ((part.ptr, field, name) for field, name in FEATURE_STRUCTS[struct][1].items())


def capabilities(instance_fn: vk.Functions, physical: Any, index: int = 0) -> DeviceCapabilities:
    """Query the capabilities of a physical device. Raises `GpuError`."""
    basic = vk.out("VkPhysicalDeviceProperties")
    instance_fn.vkGetPhysicalDeviceProperties(physical, basic)
    api = version(basic.apiVersion)
    extensions = device_extensions(physical)

    names = ["VkPhysicalDeviceProperties2"]
    if api >= API_1_2:
        names += ["VkPhysicalDeviceVulkan11Properties", "VkPhysicalDeviceVulkan12Properties"]
    if api >= API_1_3:
        names += ["VkPhysicalDeviceVulkan13Properties"]
    counts = next((CORE_COUNTS[name] for name in CORE_COUNTS if name in extensions), None)
    names += [counts[0]] if counts is not None else []
    properties = {name: vk.make(name) for name in names}
    instance_fn.vkGetPhysicalDeviceProperties2(physical, vk.chain(*properties.values()).ptr)
    features_chain, feature_parts = feature_chain(api, extensions)
    instance_fn.vkGetPhysicalDeviceFeatures2(physical, features_chain.ptr)
    features = {name for owner, field, name in _fields(feature_parts) if getattr(owner, field)}

    more: dict[str, Any] = {}
    if counts is not None:
        struct, fields = counts
        more["compute_units"] = math.prod(getattr(properties[struct], name) for name in fields) or None
    if api >= API_1_2:
        p11, p12 = properties["VkPhysicalDeviceVulkan11Properties"], properties["VkPhysicalDeviceVulkan12Properties"]
        operations = (
            p11.subgroupSupportedOperations if p11.subgroupSupportedStages & vk.VK_SHADER_STAGE_COMPUTE_BIT else 0
        )
        features.update(name for bit, name in _SUBGROUP_OPERATIONS.items() if operations & bit)
        more.update(
            uuid=bytes(p11.deviceUUID).hex(),
            driver_name=vk.text(p12.driverName),
            driver_info=vk.text(p12.driverInfo),
            subgroup_size=p11.subgroupSize,
            min_subgroup_size=p11.subgroupSize,
            max_subgroup_size=p11.subgroupSize,
            max_allocation_size=p11.maxMemoryAllocationSize,
        )
    if api >= API_1_3:
        p13 = properties["VkPhysicalDeviceVulkan13Properties"]
        more.update(
            min_subgroup_size=p13.minSubgroupSize,
            max_subgroup_size=p13.maxSubgroupSize,
            max_buffer_size=p13.maxBufferSize,
        )
        if not p13.requiredSubgroupSizeStages & vk.VK_SHADER_STAGE_COMPUTE_BIT:
            features.discard("subgroup_size_control")
    features -= switched_off()
    heaps, unified = _memory(instance_fn, physical)
    limits = basic.limits
    return DeviceCapabilities(
        name=vk.text(basic.deviceName),
        vendor_id=basic.vendorID,
        device_id=basic.deviceID,
        driver_version=basic.driverVersion,
        device_type=_DEVICE_TYPES.get(int(basic.deviceType), "other"),
        api_version=api,
        index=index,
        max_workgroup_invocations=limits.maxComputeWorkGroupInvocations,
        max_workgroup_size=_triple(limits.maxComputeWorkGroupSize),
        max_workgroup_count=_triple(limits.maxComputeWorkGroupCount),
        max_shared_memory_bytes=limits.maxComputeSharedMemorySize,
        max_push_constants_size=limits.maxPushConstantsSize,
        max_allocation_count=limits.maxMemoryAllocationCount,
        max_storage_buffer_range=limits.maxStorageBufferRange,
        min_storage_buffer_alignment=limits.minStorageBufferOffsetAlignment,
        timestamp_period_ns=limits.timestampPeriod,
        features=frozenset(features),
        cooperative_matrix_shapes=_cooperative_matrices(instance_fn, physical)
        if "cooperative_matrix" in features
        else (),
        host_visible_device_local=unified,
        memory_heaps=heaps,
        extensions=extensions,
        queue_families=queue_families(instance_fn, physical),
        **more,
    )


def _triple(values: Any) -> tuple[int, int, int]:
    return (values[0], values[1], values[2])


def queue_families(instance_fn: vk.Functions, physical: Any) -> tuple[QueueFamily, ...]:
    """The queue families of a physical device, by index."""
    found = vk.enumerate_all(
        instance_fn.vkGetPhysicalDeviceQueueFamilyProperties,
        (physical,),
        "VkQueueFamilyProperties",
        "vkGetPhysicalDeviceQueueFamilyProperties",
    )
    return tuple(
        QueueFamily(
            index=index,
            count=family.queueCount,
            flags=frozenset(name for bit, name in _QUEUE_BITS.items() if family.queueFlags & bit),
            timestamp_valid_bits=family.timestampValidBits,
        )
        for index, family in enumerate(found)
    )


def _memory(instance_fn: vk.Functions, physical: Any) -> tuple[tuple[MemoryHeap, ...], bool]:
    memory = vk.out("VkPhysicalDeviceMemoryProperties")
    instance_fn.vkGetPhysicalDeviceMemoryProperties(physical, memory)
    heaps = tuple(
        MemoryHeap(memory.memoryHeaps[i].size, bool(memory.memoryHeaps[i].flags & vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT))
        for i in range(memory.memoryHeapCount)
    )
    mapped = (
        vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
        | vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT
        | vk.VK_MEMORY_PROPERTY_HOST_CACHED_BIT
        | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
    )
    covered = {
        memory.memoryTypes[i].heapIndex
        for i in range(memory.memoryTypeCount)
        if memory.memoryTypes[i].propertyFlags & mapped == mapped
    }
    local = {index for index, heap in enumerate(heaps) if heap.device_local}
    return heaps, bool(local) and local <= covered


def _cooperative_matrices(instance_fn: vk.Functions, physical: Any) -> tuple[CooperativeMatrixShape, ...]:
    call = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"
    found = vk.enumerate_all(
        getattr(instance_fn, call),
        (physical,),
        "VkCooperativeMatrixPropertiesKHR",
        call,
        template=vk.make("VkCooperativeMatrixPropertiesKHR"),
    )

    def component(value: int) -> str:
        return vk.COMPONENT_TYPES.get(int(value), f"component_type_{int(value)}")

    return tuple(
        CooperativeMatrixShape(
            m=item.MSize,
            n=item.NSize,
            k=item.KSize,
            a_type=component(item.AType),
            b_type=component(item.BType),
            c_type=component(item.CType),
            result_type=component(item.ResultType),
            scope=vk.SCOPES.get(int(item.scope), f"scope_{int(item.scope)}"),
            saturating=bool(item.saturatingAccumulation),
        )
        for item in found
    )
