"""Random numbers from a seed and a counter (``shaders/random.comp``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import ceil_div, flat_lanes
from vkep.kernels.problem import Need, Problem
from vkep.kernels.select import Candidate, Emission, implement

#: the largest float32
MOST = (2 - 2**-23) * 2.0**127
RANDOM = Kernel("random.comp", reach=lambda call: {"y": 4 * call["total"], "fresh": 8})


@dataclass(frozen=True)
class RandomProblem(Problem):
    """``y`` float32 [count]: uniform in [shift, shift + scale), or ``normal`` with mean ``shift`` and deviation ``scale``.

    The same ``seed`` (64 bits) gives the same numbers; ``fresh`` (uint32 [2]) is mixed into it when the kernel runs.
    """

    count: int
    seed: int
    shift: float = 0.0
    scale: float = 1.0
    normal: bool = False
    fresh: bool = False

    def needs(self) -> tuple[Need, ...]:
        return (Need("fresh", "uint32", (2,)),) if self.fresh else ()

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", "float32", (self.count,), flat=True),)

    def reference(self, fresh: np.ndarray | None = None) -> np.ndarray:
        seed = np.array([self.seed & 0xFFFFFFFF, self.seed >> 32 & 0xFFFFFFFF], np.uint64)
        key = seed if fresh is None else seed ^ fresh.astype(np.uint64)
        low, blocks = np.uint64(0xFFFFFFFF), -(-self.count // 4)
        a, b, c, d = np.arange(blocks, dtype=np.uint64), *np.zeros((3, blocks), np.uint64)
        for _ in range(10):  # Philox-4x32-10 (Salmon et al., SC 2011)
            first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
            a, b, c, d = second >> 32 ^ b ^ key[0], second & low, first >> 32 ^ d ^ key[1], first & low
            key = (key + np.array([0x9E3779B9, 0xBB67AE85], np.uint64)) & low
        unit = (np.stack([a, b, c, d], axis=1) >> 8) / float(1 << 24)
        if self.normal:
            radius, angle = np.sqrt(-2 * np.log(1 - unit[:, ::2])), 2 * np.pi * unit[:, 1::2]
            unit = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2).reshape(blocks, 4)
        return self.shift + self.scale * unit.reshape(-1)[: self.count]


def _takes(problem: RandomProblem, caps: DeviceCapabilities) -> str:
    beyond = [v for v in (problem.shift, problem.scale) if not abs(v) <= MOST]
    return f"{beyond[0]} is no float32" if beyond else ""


def _random(problem: RandomProblem, e: Emission) -> KernelCall:
    return RANDOM.call(
        **flat_lanes(e.caps, ceil_div(problem.count, 4)),
        operands={"y": e["y"], "fresh": e.get("fresh")},
        params={
            "total": problem.count,
            "seed_low": problem.seed & 0xFFFFFFFF,
            "seed_high": (problem.seed >> 32) & 0xFFFFFFFF,
            "shift": problem.shift,
            "scale": problem.scale,
        },
        spec={"NORMAL": int(problem.normal), "HAS_FRESH": int(problem.fresh)},
    )


implement(RandomProblem, Candidate("random", _random, when=_takes))
