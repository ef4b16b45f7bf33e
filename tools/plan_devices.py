"""The imaginary devices that plans are made for where no device is needed."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_shared.capabilities import REQUIRED_FEATURES, CooperativeMatrixShape, DeviceCapabilities

DEVICES: Mapping[str, DeviceCapabilities] = {
    "cpu": DeviceCapabilities.for_tests(),
    "gpu with cooperative matrices": DeviceCapabilities.for_tests(
        name="imagined GPU",
        device_type="discrete",
        subgroup_size=32,
        min_subgroup_size=32,
        max_subgroup_size=32,
        max_workgroup_count=(2**31 - 1, 65535, 65535),
        max_shared_memory_bytes=49152,
        max_push_constants_size=256,
        compute_units=132,
        host_visible_device_local=False,
        features=DeviceCapabilities.for_tests().features | {"cooperative_matrix"},
        cooperative_matrix_shapes=tuple(
            CooperativeMatrixShape(16, n, k, t, t, c, c)
            for n in (8, 16)
            for t, k, c in (("float16", 16, "float16"), ("float16", 16, "float32"), ("int8", 32, "int32"))
        ),
    ),
    "small gpu": DeviceCapabilities.generic(device_type="integrated", features=REQUIRED_FEATURES),
}
