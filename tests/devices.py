"""Made-up devices that selection and planning are tested for, without a driver, and a GPU's kernels and memory on any driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from gpu_shared.capabilities import FEATURE_NAMES, CooperativeMatrixShape, DeviceCapabilities
from vkep.kernels import attention, attention_split, attention_stream, matmul, matmul_codes, select

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


def take_for_discrete(patch: pytest.MonkeyPatch) -> None:
    """The driver's devices are taken for discrete GPUs: the host does not see their memory, and kernels are a GPU's."""
    from gpu_shared import memory, query  # load Vulkan

    asked, chosen = query.capabilities, memory.choose_type

    def capabilities(*given: Any) -> DeviceCapabilities:
        return replace(asked(*given), device_type="discrete", host_visible_device_local=False, compute_units=132)

    def choose_type(device: Any, kind: str, type_bits: int) -> tuple[int, int, int]:
        index, flags, heap = chosen(device, kind, type_bits)
        return index, flags & ~memory.HOST_VISIBLE if kind == "device" else flags, heap

    patch.setattr(query, "capabilities", capabilities)
    patch.setattr(memory, "choose_type", choose_type)
