"""The arithmetic rate of a device, by a kernel that only multiplies and adds in registers."""

from __future__ import annotations

from typing import Any

from gpu_shared.capabilities import CooperativeMatrixShape, DeviceCapabilities
from vkep.kernels.kernel import Kernel, KernelCall

_MATRICES = {"float16": {"T": "float16_t", "SUM": "float"}, "int8": {"T": "int8_t", "SUM": "int"}}
ARITHMETIC_RATE = Kernel("arithmetic_rate.comp", variants=({}, *_MATRICES.values()), reach=lambda call: {"y": 4})
_CHAINS, _COOPERATIVE_CHAINS = 24, 4
#: enough workgroups for several on each core, in a few waves each
_WORKGROUPS = {"cpu": 64, "discrete": 2048, "virtual": 2048}
_WORKGROUPS_ELSE = 256


def arithmetic(steps: int, caps: DeviceCapabilities, y: Any) -> KernelCall:
    """Float32 multiply-adds, ``steps`` in each chain of each lane; the condition for writing ``y`` never holds."""
    lanes = 128
    groups = _WORKGROUPS.get(caps.device_type, _WORKGROUPS_ELSE)
    return ARITHMETIC_RATE.call(
        grid=(groups, 1, 1),
        operands={"y": y},
        params={"steps": steps, "slope": 0.999, "intercept": 0.5},
        spec={"CHAINS": _CHAINS},
        local_size=(lanes, 1, 1),
        flops=2 * steps * _CHAINS * lanes * groups,
    )


def cooperative_arithmetic(shape: CooperativeMatrixShape, caps: DeviceCapabilities, y: Any, steps: int) -> KernelCall:
    """Products of cooperative matrices of float16 or int8, as `arithmetic`."""
    subgroups = 4
    groups = _WORKGROUPS.get(caps.device_type, _WORKGROUPS_ELSE)
    return ARITHMETIC_RATE.call(
        grid=(groups, 1, 1),
        operands={"y": y},
        params={"steps": steps, "slope": 1.0, "intercept": 1.0},
        spec={"CHAINS": _COOPERATIVE_CHAINS, "MAT_M": shape.m, "MAT_N": shape.n, "MAT_K": shape.k},
        defines=_MATRICES[shape.a_type],
        local_size=(subgroups * caps.subgroup_size, 1, 1),
        subgroup_size=caps.subgroup_size,
        flops=2 * steps * _COOPERATIVE_CHAINS**2 * shape.m * shape.n * shape.k * subgroups * groups,
    )
