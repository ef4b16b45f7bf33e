"""Devices as their drivers report them: plans are made for them without the hardware.

Each record names its source. lavapipe and SwiftShader were queried (``vkep devices --json``), and so was the H200.
"Report" is one of vulkan.gpuinfo.org that github.com/KhronosGroup/Vulkan-Profiles keeps (``profiles/LunarG/``, file
``vp_gpuinfo_<name>.json``). "Driver" is what Mesa's source says for the device. What neither says (cooperative matrices' shapes,
memory, the number of cores) is the poorer of what is known of the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_shared.capabilities import REQUIRED_FEATURES, CooperativeMatrixShape, DeviceCapabilities, MemoryHeap

GIB = 1 << 30
_VULKAN_1_3 = REQUIRED_FEATURES | {
    "compute_full_subgroups",
    "integer_dot_product",
    "subgroup_extended_types",
    "subgroup_size_control",
    "vulkan_memory_model",
    "vulkan_memory_model_device_scope",
}
_SUBGROUPS = frozenset({"subgroup_arithmetic", "subgroup_ballot", "subgroup_shuffle"})
_NARROW = frozenset({"int8", "storage_8bit", "int16", "float16", "storage_16bit"})


def _record(name: str, features: frozenset[str], subgroup: tuple[int, int, int], **more: Any) -> DeviceCapabilities:
    """``subgroup``: the size, and the least and the greatest that a pipeline may ask for."""
    values: dict[str, Any] = {
        "device_type": "integrated",
        "max_workgroup_invocations": 1024,
        "max_workgroup_size": (1024, 1024, 64),
        "max_buffer_size": 4 * GIB,
        "max_allocation_size": 4 * GIB,
        "memory_heaps": (MemoryHeap(4 * GIB, True),),
        "host_visible_device_local": True,
    }
    size, least, most = subgroup
    sizes = {"subgroup_size": size, "min_subgroup_size": least, "max_subgroup_size": most}
    return DeviceCapabilities(name=name, features=features, **{**values, **sizes, **more})


def _code_products(sizes: tuple[int, ...]) -> tuple[CooperativeMatrixShape, ...]:
    return tuple(CooperativeMatrixShape(16, n, 32, "int8", "int8", "int32", "int32") for n in sizes)


def _half_products(sizes: tuple[int, ...]) -> tuple[CooperativeMatrixShape, ...]:
    return tuple(
        CooperativeMatrixShape(16, n, 16, "float16", "float16", c, c) for n in sizes for c in ("float16", "float32")
    )


#: the record with all features comes first: the others' further declines are due to their missing features
RECORDS: Mapping[str, DeviceCapabilities] = {
    record.name: record
    for record in (
        _record(  # queried, driver 580; its limits are those of the report nvidia_geforce_rtx_5090_610_43_2_0_freebsd_15_1 too
            "NVIDIA H200",
            _VULKAN_1_3 | _SUBGROUPS | _NARROW | {"int64", "float64", "cooperative_matrix"},
            (32, 32, 32),
            device_type="discrete",
            max_workgroup_count=(2**31 - 1, 65535, 65535),
            max_shared_memory_bytes=49152,
            max_push_constants_size=256,
            compute_units=132,
            host_visible_device_local=False,
            memory_heaps=(MemoryHeap(139 * GIB, True),),
            cooperative_matrix_shapes=_half_products((8, 16)) + _code_products((8, 16)),
        ),
        _record(  # report amd_radeon_rx_7800_xt__radv_navi32__24_0_99_arch_unknown
            "AMD Radeon RX 7800 XT (RADV)",
            _VULKAN_1_3 | _SUBGROUPS | _NARROW | {"int64", "float64", "cooperative_matrix"},
            (64, 32, 64),
            device_type="discrete",
            max_workgroup_size=(1024, 1024, 1024),
            max_shared_memory_bytes=65536,
            max_push_constants_size=256,
            max_buffer_size=2**32 - 4,
            max_allocation_size=2**32 - 4,
            host_visible_device_local=False,
            memory_heaps=(MemoryHeap(16 * GIB, True),),
            cooperative_matrix_shapes=_half_products((16,)),
        ),
        _record(  # report intel_r__iris_r__xe_graphics__tgl_gt2__26_1_3_void_unknown
            "Intel Iris Xe (ANV)",
            _VULKAN_1_3 | _SUBGROUPS | _NARROW | {"int64"},
            (32, 8, 32),
            max_workgroup_size=(1024, 1024, 1024),
            max_workgroup_count=(2**31 - 1, 65535, 65535),
            max_shared_memory_bytes=49152,
            max_push_constants_size=256,
        ),
        _record(  # report intel_r__hd_graphics_620__kbl_gt2__26_1_2_debian_unknown
            "Intel HD Graphics 620 (ANV)",
            _VULKAN_1_3 | _SUBGROUPS | _NARROW | {"int64", "float64"},
            (32, 8, 32),
            max_workgroup_size=(1024, 1024, 1024),
            max_workgroup_count=(2**31 - 1, 65535, 65535),
            max_shared_memory_bytes=49152,
            max_push_constants_size=256,
        ),
        _record(  # report apple_m1_0_2_2209_macos_26_5_1: no stage takes a required size of subgroups
            "Apple M1 (MoltenVK)",
            (_VULKAN_1_3 | _SUBGROUPS | _NARROW | {"int64"}) - {"subgroup_size_control"},
            (32, 4, 32),
            max_workgroup_size=(1024, 1024, 1024),
            max_workgroup_count=(2**30, 2**30, 2**30),
            max_push_constants_size=4096,
        ),
        _record(  # report apple_m1_26_1_99_macos_26_5_0
            "Apple M1 (KosmicKrisp)",
            (_VULKAN_1_3 | _SUBGROUPS | _NARROW | {"int64"}) - {"subgroup_size_control"},
            (32, 32, 32),
            max_workgroup_size=(1024, 1024, 1024),
            max_workgroup_count=(2**31 - 1, 65535, 65535),
            max_push_constants_size=256,
        ),
        _record(  # driver src/freedreno/vulkan/tu_device.cc, freedreno_devices.py (a7xx)
            "Qualcomm Adreno 740 (Turnip)",
            _VULKAN_1_3 | _SUBGROUPS | _NARROW | {"int64"},
            (128, 64, 128),
            max_push_constants_size=256,
            max_allocation_size=2**32 - 1,
        ),
        _record(  # driver src/panfrost/vulkan/panvk_vX_physical_device.c (arch 10)
            "Arm Mali-G710 (PanVK)",
            _VULKAN_1_3 | _SUBGROUPS | _NARROW | {"int64"},
            (16, 16, 16),
            max_workgroup_size=(1024, 1024, 1024),
            max_push_constants_size=256,
            max_buffer_size=2**32 - 1,
            max_allocation_size=2**32 - 1,
        ),
        _record(  # driver src/broadcom/vulkan/v3dv_device.c: 16 KiB of shared memory in older releases, 32 KiB in newer ones
            "Raspberry Pi 5 (V3D 7.1)",
            _VULKAN_1_3 | _SUBGROUPS | {"storage_8bit", "storage_16bit"},
            (16, 16, 16),
            max_workgroup_invocations=256,
            max_workgroup_size=(256, 256, 256),
            max_shared_memory_bytes=16384,
            max_push_constants_size=128,
            max_buffer_size=GIB,
            max_allocation_size=GIB,
        ),
        _record(  # queried
            "SwiftShader",
            _VULKAN_1_3 | _SUBGROUPS,
            (4, 4, 4),
            device_type="cpu",
            max_workgroup_invocations=256,
            max_workgroup_size=(256, 256, 64),
            max_push_constants_size=128,
            max_buffer_size=GIB,
            max_allocation_size=GIB,
            memory_heaps=(MemoryHeap(2 * GIB, True),),
        ),
        _record(  # queried
            "lavapipe",
            _VULKAN_1_3 | _SUBGROUPS | _NARROW | {"int64", "float64"},
            (8, 8, 8),
            device_type="cpu",
            max_push_constants_size=256,
        ),
        DeviceCapabilities.generic(name="the least that Vulkan 1.3 allows", features=_VULKAN_1_3),
        DeviceCapabilities.generic(
            name="subgroups of one lane",
            features=REQUIRED_FEATURES,
            subgroup_size=1,
            min_subgroup_size=1,
            max_subgroup_size=1,
        ),
        _record(  # invented, as the two before
            "subgroups of 128 lanes", _VULKAN_1_3 | _SUBGROUPS | _NARROW, (128, 128, 128)
        ),
    )
}
