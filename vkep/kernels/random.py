"""Random numbers from a seed and a counter (``shaders/random.comp``)."""

from __future__ import annotations

from typing import Any

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.kernel import Kernel, KernelCall, Operand
from vkep.kernels.launch import ceil_div, element_count, grid, lanes

RANDOM = Kernel(
    "random.comp",
    operands=(Operand("y", writes=True), Operand("fresh")),
    params=(("total", "uint"), ("seed_low", "uint"), ("seed_high", "uint"), ("shift", "float"), ("scale", "float")),
    spec={"NORMAL": 0, "HAS_FRESH": 0},
)


def random(
    distribution: str,
    count: int,
    seed: int,
    shift: float,
    scale: float,
    caps: DeviceCapabilities,
    y: Any,
    fresh: Any = None,
) -> list[KernelCall]:
    """``y`` float32 [count]: "uniform" in [shift, shift + scale) or "normal" with mean ``shift`` and deviation ``scale``.

    The same ``seed`` (64 bits) gives the same numbers; ``fresh`` (uint32 [2]) is mixed into it when the kernel runs.
    Raises `ValueError` for another distribution.
    """
    if distribution not in ("uniform", "normal"):
        raise ValueError(f"random: distribution is {distribution!r}, expected 'uniform' or 'normal'")
    if not element_count("random output", count):
        return []
    groups_of_four = ceil_div(count, 4)
    local = lanes(caps, groups_of_four)
    return [
        RANDOM.call(
            grid=grid(ceil_div(groups_of_four, local)),
            operands={"y": y, "fresh": fresh},
            params={
                "total": count,
                "seed_low": seed & 0xFFFFFFFF,
                "seed_high": (seed >> 32) & 0xFFFFFFFF,
                "shift": shift,
                "scale": scale,
            },
            spec={"NORMAL": int(distribution == "normal"), "HAS_FRESH": int(fresh is not None)},
            local_size=(local,),
        )
    ]
