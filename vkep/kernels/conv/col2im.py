"""Adding up overlapping windows: ONNX Col2Im, and the second half of ConvTranspose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_shared.capabilities import DeviceCapabilities
from vkep.kernels.dims import last_coordinates, magic_dims
from vkep.kernels.epilogue import call_arguments
from vkep.kernels.kernel import Kernel, KernelCall
from vkep.kernels.launch import element_defines, flat_lanes
from vkep.kernels.problem import Need, Problem
from vkep.kernels.reference import wide
from vkep.kernels.select import Candidate, Emission, implement

_SPATIAL = 3


def _reach(call: KernelCall) -> Mapping[str, int]:
    planes = (last_coordinates(call, 2 + _SPATIAL)[0] + 1) * call["dim1"]
    each = math.prod(call[f"{name}{axis}"] for name in ("kernel", "count") for axis in range(_SPATIAL))
    return {"x": planes * each * call.size_of("IN_T"), "y": call["total"] * call.size_of("OUT_T")}


COL2IM = Kernel(
    "col2im.comp", variants=tuple(element_defines(t) for t in ("float32", "float16", "float64")), reach=_reach
)


@dataclass(frozen=True)
class Col2ImProblem(Problem):
    """``y`` [images, channels, *out] = sums of the windows of ``x`` [images, channels, *kernel, *counts].

    ``lead`` is (images, channels), ``counts`` the windows along each axis, ``begins`` the padding before the result. float16 is
    summed in float32. The epilogue sees ``row``, the channel, and ``col``, the pixel.
    """

    lead: tuple[int, int]
    out: tuple[int, ...]
    counts: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    dtype: str

    def needs(self) -> tuple[Need, ...]:
        return (Need("x", self.dtype, (*self.lead, *self.kernel, *self.counts), flat=True),)

    def makes(self) -> tuple[Need, ...]:
        return (Need("y", self.dtype, (*self.lead, *self.out)),)

    @property
    def matrices(self) -> tuple[int, int, int]:
        return (*self.lead, math.prod(self.out))

    @property
    def flops(self) -> int:
        return self.needs()[0].extent

    def reference(self, x: np.ndarray) -> np.ndarray:
        spans = [
            max(n + b, (count - 1) * s + (k - 1) * d + 1)
            for n, b, count, s, k, d in zip(
                self.out, self.begins, self.counts, self.strides, self.kernel, self.dilations, strict=True
            )
        ]
        total: Any = np.zeros((*self.lead, *spans), wide(x).dtype)
        for tap in np.ndindex(*self.kernel):
            places = tuple(
                slice(t * d, t * d + (count - 1) * s + 1, s)
                for t, d, count, s in zip(tap, self.dilations, self.counts, self.strides, strict=True)
            )
            total[(..., *places)] += x[(slice(None), slice(None), *tap)]
        return np.asarray(total[(..., *(slice(b, b + n) for b, n in zip(self.begins, self.out, strict=True)))])


def _col2im(problem: Col2ImProblem, e: Emission) -> KernelCall:
    missing = _SPATIAL - len(problem.out)
    ones, zeros = (1,) * missing, (0,) * missing
    sizes = {
        "count": (*ones, *problem.counts),
        "kernel": (*ones, *problem.kernel),
        "stride": (*ones, *problem.strides),
        "dilation": (*ones, *problem.dilations),
        "pad": (*zeros, *problem.begins),
    }
    total = math.prod((*problem.lead, *problem.out))
    return COL2IM.call(
        **flat_lanes(e.caps, total),
        operands=e.operands,
        params={
            "total": total,
            **magic_dims((*problem.lead, *ones, *problem.out)),
            **{f"{name}{axis}": value for name, values in sizes.items() for axis, value in enumerate(values)},
        },
        **call_arguments(e.epilogue, element_defines(problem.dtype)),
    )


def _takes(problem: Col2ImProblem, caps: DeviceCapabilities) -> str:
    axes = len(problem.out)
    return f"windows over {axes} axes; the kernel takes up to {_SPATIAL}" if axes > _SPATIAL else ""


implement(Col2ImProblem, Candidate("windows added up", _col2im, when=_takes))
