"""Made-up devices that selection and planning are tested for, without a driver, and a GPU's kernels on any driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from gpu_shared.capabilities import FEATURE_NAMES, CooperativeMatrixShape, DeviceCapabilities
from vkep.kernels import select
from vkep.kernels.attention import attention
from vkep.kernels.attention import split as attention_split
from vkep.kernels.attention import stream as attention_stream
from vkep.kernels.matmul import codes as matmul_codes
from vkep.kernels.matmul import matmul

#: the shape of cooperative matrices that the float16 kernels use
HALF = CooperativeMatrixShape(16, 16, 16, "float16", "float16", "float32", "float32")
#: that of the kernels for 8-bit codes
CODES = CooperativeMatrixShape(16, 16, 32, "int8", "int8", "int32", "int32")
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
#: one with matrices of 8-bit codes
GPU_OF_CODES = replace(GPU, cooperative_matrix_shapes=(HALF, CODES))


@contextmanager
def as_a_gpu() -> Iterator[None]:
    """A decoder's step is computed by the kernels of a GPU, also where the driver is a CPU's."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (attention, attention_split, attention_stream, matmul_codes):
            patch.setattr(module, "is_cpu", lambda caps: False)
        patch.setattr(attention_stream, "_LANES", 32)  # several subgroups, that compile faster
        patch.setattr(matmul, "no_subgroup_tile", lambda *given: "as a GPU")
        select._asked.cache_clear()
        try:
            yield
        finally:
            select._asked.cache_clear()
