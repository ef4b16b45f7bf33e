"""Made-up devices that selection and planning are tested for, without a driver."""

from __future__ import annotations

from gpu_shared.capabilities import FEATURE_NAMES, CooperativeMatrixShape, DeviceCapabilities

#: the shape of cooperative matrices that the float16 kernels use
HALF = CooperativeMatrixShape(16, 16, 16, "float16", "float16", "float32", "float32")
#: a large GPU with every feature
GPU = DeviceCapabilities.for_tests(
    device_type="discrete",
    features=FEATURE_NAMES,
    cooperative_matrix_shapes=(HALF,),
    subgroup_size=32,
    min_subgroup_size=32,
    max_subgroup_size=32,
    max_shared_memory_bytes=49152,
    compute_units=132,
)
